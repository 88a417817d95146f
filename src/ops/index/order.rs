//! Functions that use sorted elements: medians, quantiles, different elements; and running extremes.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::index::advanced::positions;
use crate::ops::reduction::reduce::Reduction;
use crate::ops::reduction::scan::running;
use crate::ops::{expect_float, named};
use crate::shape::{Dim, dimension};
use crate::tensor::Tensor;

/// Checks the dimension, which must not be empty, and returns it with its size.
fn filled(op: &'static str, x: &Tensor, dim: impl Dim) -> Result<(usize, usize)> {
    let dim = dimension(op, dim, x.shape())?;
    match x.shape()[dim] {
        0 => Err(Error::argument(op, format!("dimension {dim} of {:?} is empty", x.shape()))),
        size => Ok((dim, size)),
    }
}

/// Returns positions that sort the elements. If the last element is NaN, the largest of all, its position replaces the
/// one at each of `places`.
fn places_or_nan(x: &Tensor, dim: usize, places: &[usize]) -> Result<Vec<Tensor>> {
    let order = x.argsort(dim, false)?;
    let last = order.narrow(dim, x.shape()[dim] - 1, 1)?;
    let nan = if x.dtype().is_float() { Some(x.detach().gather(dim, &last)?.isnan()?) } else { None };
    let one = |&place: &usize| {
        let at = order.narrow(dim, place, 1)?;
        nan.as_ref().map_or(Ok(at.clone()), |nan| nan.where_cond(&last, &at))
    };
    places.iter().map(one).collect()
}

/// Returns 1 at the first of equal neighbours of a sorted vector, else 0.
fn firsts(sorted: &Tensor) -> Result<Tensor> {
    let (n, device) = (sorted.elem_count(), sorted.device());
    let one = Tensor::full(n.min(1), true, device)?;
    let rest = n.saturating_sub(1);
    let changed = sorted.narrow(0, n - rest, rest)?.ne(&sorted.narrow(0, 0, rest)?)?;
    Tensor::cat(&[&one, &changed], 0)
}

impl Tensor {
    /// Returns the median along `dim`, and its position as u32.
    ///
    /// For an even number of elements, the median is the lower of the two in the middle, as in PyTorch. It is NaN if an
    /// element is NaN. With `keepdim`, the dimension keeps size 1. Otherwise it is removed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or it is empty.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let (value, position) = Tensor::new([3.0, 1.0, 4.0, 2.0], None)?.median(0, false)?;
    /// assert_eq!((value.item::<f32>()?, position.item::<u32>()?), (2.0, 3));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn median(&self, dim: impl Dim, keepdim: bool) -> Result<(Tensor, Tensor)> {
        named("median", || {
            let (dim, size) = filled("median", self, dim)?;
            let position = places_or_nan(self, dim, &[(size - 1) / 2])?.remove(0);
            let value = self.gather(dim, &position)?;
            if keepdim { Ok((value, position)) } else { Ok((value.squeeze(dim)?, position.squeeze(dim)?)) }
        })
    }

    /// Returns the quantile `q` along `dim`, linearly interpolated between two elements.
    ///
    /// The quantile 0 is the smallest element, 0.5 is the median, and 1 is the largest element. The result is NaN if an
    /// element is NaN. With `keepdim`, the dimension keeps size 1. Otherwise it is removed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, it is empty, or `q` is not from 0 to 1;
    /// [`Error::DTypeMismatch`] unless the type is a float.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([3.0, 1.0, 4.0, 2.0], None)?;
    /// assert_eq!(x.quantile(0.5, 0, false)?.item::<f32>()?, 2.5);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn quantile(&self, q: f64, dim: impl Dim, keepdim: bool) -> Result<Tensor> {
        named("quantile", || {
            let (dim, size) = filled("quantile", self, dim)?;
            expect_float("quantile", self)?;
            if !(0.0..=1.0).contains(&q) {
                return Err(Error::argument("quantile", format!("a share of {q} is not from 0 to 1")));
            }
            let at = q * (size - 1) as f64;
            let share = (at - at.floor()) as f32;
            let places = places_or_nan(self, dim, &[at.floor() as usize, at.ceil() as usize])?;
            let below = self.gather(dim, &places[0])?;
            // Without a share of it, an infinite neighbour does not count.
            let value = match share {
                0.0 => below,
                _ => below.mul_scalar(1.0 - share)?.add(&self.gather(dim, &places[1])?.mul_scalar(share)?)?,
            };
            if keepdim { Ok(value) } else { value.squeeze(dim) }
        })
    }

    /// Returns the different elements in ascending order: `[n]`.
    ///
    /// Each NaN differs from all others. The number of different elements is read back, so the call waits for the
    /// device. The result has no gradient.
    ///
    /// # Errors
    /// Errors of earlier work on the device.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([[3, 1], [3, 2]], None)?.unique()?.to_vec::<i32>()?, [1, 2, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn unique(&self) -> Result<Tensor> {
        named("unique", || {
            let sorted = self.detach().reshape(self.elem_count())?.sort(0, false)?.0;
            sorted.index_select(0, &positions(&firsts(&sorted)?)?)
        })
    }

    /// Returns the different elements, the position of each element among them, and their counts.
    ///
    /// The different elements are as in [`Tensor::unique`]. The positions have this tensor's shape. Positions and
    /// counts are u32.
    ///
    /// # Errors
    /// Same as [`Tensor::unique`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let (values, inverse, counts) = Tensor::new([3, 1, 3], None)?.unique_with_counts()?;
    /// assert_eq!(values.to_vec::<i32>()?, [1, 3]);
    /// assert_eq!(inverse.to_vec::<u32>()?, [1, 0, 1]);
    /// assert_eq!(counts.to_vec::<u32>()?, [1, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn unique_with_counts(&self) -> Result<(Tensor, Tensor, Tensor)> {
        named("unique_with_counts", || {
            let count = self.elem_count();
            let (sorted, order) = self.detach().reshape(count)?.sort(0, false)?;
            let first = firsts(&sorted)?;
            let starts = positions(&first)?;
            let found = starts.elem_count();
            // Each run of equal elements ends where the next one starts.
            let last = Tensor::full(found.min(1), count as u32, self.device())?;
            let ends = Tensor::cat(&[&starts.narrow(0, found.min(1), found.saturating_sub(1))?, &last], 0)?;
            let numbers = first.to_dtype(DType::U32)?.cumsum(0)?.sub(1)?;
            let inverse = numbers.zeros_like()?.scatter(0, &order, &numbers)?.reshape(self.shape())?;
            Ok((sorted.index_select(0, &starts)?, inverse, ends.sub(&starts)?))
        })
    }

    /// Returns the cumulative maximum along `dim`, and its positions as u32.
    ///
    /// Both results have this tensor's shape. Of equal elements, the position is the last one. NaN counts as the
    /// largest. The gradient goes to the elements at the positions.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let (values, positions) = Tensor::new([1, 3, 2, 3], None)?.cummax(0)?;
    /// assert_eq!(values.to_vec::<i32>()?, [1, 3, 3, 3]);
    /// assert_eq!(positions.to_vec::<u32>()?, [0, 1, 1, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn cummax(&self, dim: impl Dim) -> Result<(Tensor, Tensor)> {
        named("cummax", || self.running_extreme(Reduction::Max, dimension("cummax", dim, self.shape())?))
    }

    /// Returns the cumulative minimum along `dim`, and its positions as u32.
    ///
    /// Both results have this tensor's shape. Of equal elements, the position is the last one. NaN counts as the
    /// smallest. The gradient goes to the elements at the positions.
    ///
    /// # Errors
    /// Same as [`Tensor::cummax`].
    pub fn cummin(&self, dim: impl Dim) -> Result<(Tensor, Tensor)> {
        named("cummin", || self.running_extreme(Reduction::Min, dimension("cummin", dim, self.shape())?))
    }

    fn running_extreme(&self, reduction: Reduction, dim: usize) -> Result<(Tensor, Tensor)> {
        let x = self.detach();
        let extremes = running(&x, reduction, dim)?;
        let mut hits = x.eq(&extremes)?;
        if x.dtype().is_float() {
            hits = hits.logical_or(&x.isnan()?)?;
        }
        // The last position at which an element was the extreme of all before it.
        let mut column = vec![1; self.rank()];
        column[dim] = self.shape()[dim];
        let own = Tensor::iota(self.shape()[dim], self.device())?.reshape(column)?;
        let position = running(&hits.where_cond(&own, &own.zeros_like()?)?, Reduction::Max, dim)?;
        Ok((self.gather(dim, &position)?, position))
    }
}
