//! Counting, searching and repeating: compositions of sums and choices by index.

use crate::device::cpu::with_room;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::index::gather::indices;
use crate::ops::reduction::statistics::wide;
use crate::ops::{named, of_sums, same_device};
use crate::shape::{Dim, checked_elem_count, dimension};
use crate::tensor::Tensor;

/// The first number that is no index of anything: what a negative i32 becomes is at or above it.
const BEYOND: u32 = 1 << 31;

impl Tensor {
    /// Counts how often each number occurs: `[n]` of u32, i32, u8 or i64 → `[c]` of u32.
    ///
    /// Element i is the count of the number i. c is one more than the largest number, and at least `min_length`.
    ///
    /// With `weights` of the same shape, returns the sum of the weights of each number instead. It has the weights'
    /// type (halves are added up as f32) and their gradient.
    ///
    /// The largest number is read back, so the call waits for the device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the rank is not 1, or if a number is negative or 2³¹ or more;
    /// [`Error::DTypeMismatch`] for other types, and for weights that are not floats; [`Error::ShapeMismatch`] or
    /// [`Error::DeviceMismatch`] if the weights do not fit.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1u32, 3, 1], None)?;
    /// assert_eq!(x.bincount(None, 0)?.to_vec::<u32>()?, [0, 2, 0, 1]);
    /// let weights = Tensor::new([0.5, 2.0, 0.25], None)?;
    /// assert_eq!(x.bincount(Some(&weights), 5)?.to_vec::<f32>()?, [0.0, 0.75, 0.0, 2.0, 0.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn bincount(&self, weights: Option<&Tensor>, min_length: usize) -> Result<Tensor> {
        const NAME: &str = "bincount";
        named(NAME, || {
            let &[count] = self.shape() else {
                return Err(Error::argument(NAME, format!("the numbers are [n], not {:?}", self.shape())));
            };
            if let Some(weights) = weights {
                same_device(NAME, &[self, weights])?;
                if weights.shape() != self.shape() {
                    let rule = "there must be one weight for each number";
                    return Err(Error::shapes(NAME, self.shape(), weights.shape(), rule));
                }
            }
            let numbers = indices(NAME, self)?;
            let largest = if count == 0 { None } else { Some(numbers.max_all()?.item::<u32>()?) };
            if let Some(largest) = largest.filter(|&largest| largest >= BEYOND) {
                let detail = match self.dtype() {
                    DType::U32 => format!("the number {largest} is 2^31 or more"),
                    _ => "a number is negative, or 2^31 or more".to_owned(),
                };
                return Err(Error::argument(NAME, detail));
            }
            let length = largest.map_or(0, |largest| largest as usize + 1).max(min_length);
            let device = self.device();
            match weights {
                None => {
                    let none = Tensor::full(length, 0u32, device)?;
                    none.scatter_add(0, &numbers, &Tensor::full(count, 1u32, device)?)
                }
                Some(weights) => {
                    let sums = wide(NAME, weights)?;
                    let none = Tensor::zeros(length, device)?.to_dtype(sums.dtype())?;
                    none.scatter_add(0, &numbers, &sums)?.to_dtype(of_sums(weights.dtype()))
                }
            }
        })
    }

    /// Returns the positions at which `values` can be inserted into this sorted tensor so that it stays sorted.
    ///
    /// The positions are u32, in the shape of `values`. A value is inserted before the elements that are equal to it,
    /// or after them if `right` is true.
    ///
    /// This tensor must be ascending along its last dimension, which is not checked. Its shape is `[n]`, with `values`
    /// of any shape, or `[.., n]`, with `values` of shape `[.., m]` and the same leading sizes. As in PyTorch, NaN is
    /// sorted after all numbers. There is no gradient.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the shapes do not fit; [`Error::DTypeMismatch`] if there is no common type;
    /// [`Error::DeviceMismatch`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let edges = Tensor::new([1.0, 3.0, 5.0], None)?;
    /// let x = Tensor::new([[0.0, 3.0], [4.0, 9.0]], None)?;
    /// assert_eq!(edges.searchsorted(&x, false)?.to_vec::<u32>()?, [0, 1, 2, 3]);
    /// assert_eq!(edges.searchsorted(&x, true)?.to_vec::<u32>()?, [0, 2, 2, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn searchsorted(&self, values: &Tensor, right: bool) -> Result<Tensor> {
        const NAME: &str = "searchsorted";
        named(NAME, || {
            same_device(NAME, &[self, values])?;
            let rank = self.rank();
            let fits = match rank {
                0 => false,
                1 => true,
                _ => values.rank() == rank && values.shape()[..rank - 1] == self.shape()[..rank - 1],
            };
            if !fits {
                let rule = "this tensor is [n], or [.., n] for values [.., m] with the same leading sizes";
                return Err(Error::shapes(NAME, self.shape(), values.shape(), rule));
            }
            let (sorted, size) = (self.detach(), self.shape()[rank - 1]);
            let flat = if rank == 1 { vec![values.elem_count()] } else { values.shape().to_vec() };
            let wanted = values.detach().reshape(flat)?;
            // The number of elements before the place is found bit by bit, from the highest on.
            let mut found = Tensor::full(wanted.shape(), 0u32, self.device())?;
            let mut step = size.checked_ilog2().map_or(0, |bits| 1 << bits);
            while step > 0 {
                let next = found.add(step)?;
                let last = next.minimum(size)?.sub(1)?;
                let element = sorted.gather(rank - 1, &last)?;
                // NaN is neither above nor below anything, and so behind all.
                let stops = if right { element.gt(&wanted)? } else { element.ge(&wanted)? };
                let passes = next.le(size)?.logical_and(&stops.logical_not()?)?;
                found = passes.where_cond(&next, &found)?;
                step /= 2;
            }
            found.reshape(values.shape())
        })
    }

    /// Repeats each slice along `dim` `times` times, with its copies next to it: `[.., n, ..]` → `[.., n · times, ..]`.
    /// ([`Tensor::repeat`] repeats the whole tensor.) The gradient of a slice is the sum over its copies.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or the result has too many elements.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1, 2], [3, 4]], None)?;
    /// let y = x.repeat_interleave(2, 0)?;
    /// assert_eq!(y.to_vec2::<i32>()?, [[1, 2], [1, 2], [3, 4], [3, 4]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn repeat_interleave(&self, times: usize, dim: impl Dim) -> Result<Tensor> {
        const NAME: &str = "repeat_interleave";
        named(NAME, || {
            let dim = dimension(NAME, dim, self.shape())?;
            let mut copies = self.shape().to_vec();
            copies.insert(dim + 1, times);
            checked_elem_count(NAME, &copies)?;
            let mut shape = self.shape().to_vec();
            shape[dim] *= times;
            self.unsqueeze(dim + 1)?.broadcast_to(copies)?.reshape(shape)
        })
    }

    /// Repeats slice i along `dim` `counts[i]` times: `[.., n, ..]` and counts `[n]` of u32, i32, u8 or i64 →
    /// `[.., sum of counts, ..]`.
    ///
    /// The counts are read back, so the call waits for the device.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] unless there is one count for each slice; [`Error::InvalidArgument`] for a negative count, a sum
    /// beyond u32, or if there is no such dimension; [`Error::DTypeMismatch`] for other types; [`Error::DeviceMismatch`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1.0, 2.0, 3.0], None)?;
    /// let y = x.repeat_interleave_by(&Tensor::new([2u32, 0, 1], None)?, 0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 1.0, 3.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn repeat_interleave_by(&self, counts: &Tensor, dim: impl Dim) -> Result<Tensor> {
        const NAME: &str = "repeat_interleave_by";
        named(NAME, || {
            let dim = dimension(NAME, dim, self.shape())?;
            same_device(NAME, &[self, counts])?;
            if counts.shape() != &self.shape()[dim..=dim] {
                let rule = format!("there must be one count for each slice along dimension {dim}");
                return Err(Error::shapes(NAME, self.shape(), counts.shape(), rule));
            }
            let counts = indices(NAME, counts)?.to_vec::<u32>()?;
            if let Some(slice) = counts.iter().position(|&count| count >= BEYOND) {
                let detail = format!("the count of slice {slice} is negative, or 2^31 or more");
                return Err(Error::argument(NAME, detail));
            }
            let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
            let total = u32::try_from(total)
                .map_err(|_| Error::argument(NAME, format!("{total} slices are more than an index of u32 counts")))?;
            let mut places: Vec<u32> = with_room(total as usize)?;
            let copies = (0u32..).zip(&counts).flat_map(|(i, &count)| std::iter::repeat_n(i, count as usize));
            places.extend(copies);
            self.index_select(dim, &Tensor::from_vec(places, total as usize, self.device())?)
        })
    }
}
