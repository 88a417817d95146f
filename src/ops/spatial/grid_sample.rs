//! Sampling images at positions that are computed: `grid_sample`. A composition: the pixels around each position are slices
//! of all channels, taken by one index, so that the gradient of the images is a sum by a sorted index.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::long::refuse;
use crate::ops::{expect_float, named, same_device};
use crate::tensor::Tensor;

/// The method by which [`Tensor::grid_sample`] computes a value from the pixels around its position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridMode {
    /// Linear interpolation between the neighbouring pixels: bilinear in two dimensions, trilinear in three.
    #[default]
    Bilinear,
    /// The nearest pixel; ties go to the even one.
    Nearest,
    /// A cubic convolution with a = −0.75; for two dimensions only.
    Bicubic,
}

/// The values that [`Tensor::grid_sample`] reads outside of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridPadding {
    /// Zeros.
    #[default]
    Zeros,
    /// The pixel at the border.
    Border,
    /// The image, mirrored at its borders.
    Reflection,
}

/// The options of a call.
#[derive(Clone, Copy)]
struct Sampling {
    mode: GridMode,
    padding: GridPadding,
    align_corners: bool,
}

/// The pixels along one dimension that a position is between: their places as whole floats, and their weights.
type Taps = Vec<(Tensor, Tensor)>;

impl Sampling {
    /// Returns positions in pixels from those in −1 … 1.
    fn pixels(self, grid: &Tensor, size: usize) -> Result<Tensor> {
        let size = size as f32;
        match self.align_corners {
            true => grid.add_scalar(1.0)?.mul_scalar((size - 1.0) / 2.0),
            false => grid.add_scalar(1.0)?.mul_scalar(size / 2.0)?.sub_scalar(0.5),
        }
    }

    /// Mirrors and limits positions as the padding says.
    fn within(self, at: &Tensor, size: usize) -> Result<Tensor> {
        let last = size as f32 - 1.0;
        let limited = |at: &Tensor| at.clamp(Some(0.0), Some(last));
        match self.padding {
            GridPadding::Zeros => Ok(at.clone()),
            GridPadding::Border => limited(at),
            GridPadding::Reflection => {
                let (low, span) = if self.align_corners { (0.0, last) } else { (-0.5, size as f32) };
                if span == 0.0 {
                    return at.mul_scalar(0.0);
                }
                let from_low = at.sub_scalar(low)?.abs()?;
                let rest = from_low.fmod(2.0 * span)?;
                // The second half runs backwards.
                let mirrored = rest.gt(span)?.where_cond(&rest.neg()?.add_scalar(2.0 * span)?, &rest)?;
                limited(&mirrored.add_scalar(low)?)
            }
        }
    }

    /// Returns the pixels around positions in −1 … 1 along a dimension.
    fn taps(self, grid: &Tensor, size: usize) -> Result<Taps> {
        let at = self.pixels(grid, size)?;
        if self.mode == GridMode::Bicubic {
            return cubic(&at);
        }
        let at = self.within(&at, size)?;
        if self.mode == GridMode::Nearest {
            // Ones, with the gradient 0 for every position.
            return Ok(vec![(at.detach().round()?, at.sign()?.mul_scalar(0.0)?.add_scalar(1.0)?)]);
        }
        let first = at.detach().floor()?;
        let share = at.sub(&first)?;
        Ok(vec![(first.clone(), share.neg()?.add_scalar(1.0)?), (first.add_scalar(1.0)?, share)])
    }

    /// Returns each place as an index within the image, with whether it is in the image.
    fn index(self, place: &Tensor, size: usize) -> Result<(Tensor, Option<Tensor>)> {
        let last = size as f32 - 1.0;
        let place = if self.mode == GridMode::Bicubic { self.within(place, size)? } else { place.clone() };
        let inside = match self.padding {
            GridPadding::Zeros => Some(place.ge(0.0)?.logical_and(&place.le(last)?)?),
            _ => None,
        };
        let place = place.isfinite()?.where_cond(&place, 0.0)?.clamp(Some(0.0), Some(last))?;
        Ok((place.to_dtype(DType::U32)?, inside))
    }
}

/// Returns four pixels and the weights of a cubic convolution with a = −0.75.
fn cubic(at: &Tensor) -> Result<Taps> {
    const A: f32 = -0.75;
    let first = at.detach().floor()?;
    let share = at.sub(&first)?;
    let near = |d: &Tensor| d.mul_scalar(A + 2.0)?.sub_scalar(A + 3.0)?.mul(d)?.mul(d)?.add_scalar(1.0);
    let far = |d: &Tensor| d.sub_scalar(5.0)?.mul(d)?.add_scalar(8.0)?.mul(d)?.sub_scalar(4.0)?.mul_scalar(A);
    let rest = share.neg()?.add_scalar(1.0)?;
    let weights = [far(&share.add_scalar(1.0)?)?, near(&share)?, near(&rest)?, far(&rest.add_scalar(1.0)?)?];
    let places = [-1.0, 0.0, 1.0, 2.0].map(|d| first.add_scalar(d));
    places.into_iter().zip(weights).map(|(place, weight)| Ok((place?, weight))).collect()
}

/// Samples `[N, C, size..]` at `[N, P, dims]`, whose last dimension counts from the innermost one: `[N, P, C]`.
fn sampled(x: &Tensor, grid: &Tensor, how: Sampling) -> Result<Tensor> {
    let (n, c, sizes) = (x.shape()[0], x.shape()[1], &x.shape()[2..]);
    let (points, pixels) = (grid.shape()[1], sizes.iter().product::<usize>());
    let rows = x.reshape([n, c, pixels])?.permute([0, 2, 1])?.reshape([n * pixels, c])?;
    // The partial sums over the dimensions so far: the row of each combination of pixels, and its weight.
    let image = Tensor::iota(n, x.device())?.reshape([n, 1])?.broadcast_to([n, points])?;
    let mut all: Vec<(Tensor, Option<Tensor>)> = vec![(image, None)];
    for (d, &size) in sizes.iter().enumerate() {
        let taps = how.taps(&grid.select(2, sizes.len() - 1 - d)?, size)?;
        let mut next = Vec::new();
        for (row, weight) in &all {
            for (place, share) in &taps {
                let (place, inside) = how.index(place, size)?;
                let share = match inside {
                    Some(inside) => inside.where_cond(share, 0.0)?,
                    None => share.clone(),
                };
                let weight = weight.as_ref().map_or(Ok(share.clone()), |weight| weight.mul(&share))?;
                next.push((row.mul(size)?.add(&place)?, Some(weight)));
            }
        }
        all = next;
    }
    let mut sum: Option<Tensor> = None;
    for (row, weight) in all {
        let values = rows.index_select(0, &row.reshape(n * points)?)?.reshape([n, points, c])?;
        let part = weight.map_or(Ok(values.clone()), |weight| values.mul(&weight.unsqueeze(2)?))?;
        sum = Some(sum.map_or(Ok(part.clone()), |sum| sum.add(&part))?);
    }
    sum.ok_or_else(|| Error::internal("an image of no dimensions"))
}

impl Tensor {
    /// Samples images at the positions of a grid, like `torch.nn.functional.grid_sample`: `[N, C, H, W]` and
    /// `[N, h, w, 2]` → `[N, C, h, w]`, or `[N, C, D, H, W]` and `[N, d, h, w, 3]` → `[N, C, d, h, w]`.
    ///
    /// A position is `(x, y)` or `(x, y, z)`, each from −1 to 1 within the image. With `align_corners`, −1 and 1 are
    /// the centres of the first and the last pixel. Otherwise they are the borders of the image. Images and grid have
    /// gradients.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the shapes are not as above, if an image has no pixels, or if the mode is
    /// [`GridMode::Bicubic`] in three dimensions; [`Error::DTypeMismatch`] unless both are of one float type;
    /// [`Error::DeviceMismatch`].
    ///
    /// ```
    /// # use anygpu::{GridMode, GridPadding, Tensor};
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?.reshape([1, 1, 2, 2])?;
    /// let grid = Tensor::new([[0.0, 0.0], [-1.0, 1.0]], None)?.reshape([1, 1, 2, 2])?;
    /// let y = x.grid_sample(&grid, GridMode::Bilinear, GridPadding::Zeros, true)?;
    /// assert_eq!(y.to_vec::<f32>()?, [2.5, 3.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn grid_sample(
        &self,
        grid: &Tensor,
        mode: GridMode,
        padding: GridPadding,
        align_corners: bool,
    ) -> Result<Tensor> {
        named("grid_sample", || {
            same_device("grid_sample", &[self, grid])?;
            expect_float("grid_sample", self)?;
            if grid.dtype() != self.dtype() {
                let (expected, got) = (self.dtype().to_string(), grid.dtype().to_string());
                return Err(Error::DTypeMismatch { op: "grid_sample", expected, got });
            }
            let (shape, at) = (self.shape(), grid.shape());
            let dims = shape.len().wrapping_sub(2);
            let fits = (2..=3).contains(&dims) && at.len() == dims + 2 && at[dims + 1] == dims && at[0] == shape[0];
            if !fits || (mode == GridMode::Bicubic && dims == 3) || shape[2..].contains(&0) {
                let detail = format!("images of {shape:?} cannot be sampled by {mode:?} at a grid of {at:?}");
                return Err(Error::argument("grid_sample", detail));
            }
            refuse("grid_sample", [self])?;
            // Halves could not tell the pixels of a large image apart.
            let (x, wide) = (self.to_dtype(DType::F32)?, grid.to_dtype(DType::F32)?);
            let points = at[1..=dims].iter().product::<usize>();
            let out = sampled(&x, &wide.reshape([at[0], points, dims])?, Sampling { mode, padding, align_corners })?;
            let out = out.permute([0, 2, 1])?.reshape([&shape[..2], &at[1..=dims]].concat())?;
            out.to_dtype(self.dtype())
        })
    }
}
