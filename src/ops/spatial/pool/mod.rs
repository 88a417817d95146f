//! Pooling: `sliding` has windows of one size, `adaptive` windows that divide an image into a given number of parts. `volumes`
//! pools three dimensions by planes and then along the depth.

mod adaptive;
mod sliding;
mod volumes;

use anygpu_host::pool::Mode;
use anygpu_host::window::WindowParams;

use sliding::{Positions, Windows};

use crate::error::{Error, Result};
use crate::ops::apply;
use crate::ops::named;
use crate::ops::spatial::window::{Sizes, over, window_setters};
use crate::tensor::Tensor;

/// Windows of more elements than this are pooled along one dimension after the other: fewer steps, the same result.
const SEPARABLE: usize = 256;

/// The windows of a pooling over `D` dimensions, for [`Tensor::max_pool2d`] and similar methods.
///
/// Sizes are one number for all dimensions, or an array, `[vertical, horizontal]` for two.
///
/// ```
/// use anygpu::{Pool, Tensor};
/// let x = Tensor::ones([1, 1, 7, 7], None)?;
/// assert_eq!(x.max_pool2d(Pool::new(2))?.shape(), [1, 1, 3, 3]);
/// assert_eq!(x.max_pool2d(Pool::new(2).ceil_mode(true))?.shape(), [1, 1, 4, 4]);
/// assert_eq!(x.max_pool2d(Pool::new(3).stride([2, 1]).padding(1))?.shape(), [1, 1, 4, 7]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Pool<const D: usize> {
    window: WindowParams<D>,
    ceil_mode: bool,
    count_include_pad: bool,
}

window_setters! {
    Pool {
        /// Sets the step from one window to the next.
        stride;
        /// Sets the padding around the image, at most half a window. A maximum ignores it; a mean counts it as zeros.
        padding;
        /// Sets the distance between neighbouring elements of a window. A mean allows only 1.
        dilation;
    }
}

/// Adjacent windows: `x.max_pool2d(2)` is `x.max_pool2d(Pool::new(2))`.
impl<const D: usize> From<usize> for Pool<D> {
    fn from(kernel: usize) -> Self {
        Pool::new(kernel)
    }
}

impl<const D: usize> From<[usize; D]> for Pool<D> {
    fn from(kernel: [usize; D]) -> Self {
        Pool::new(kernel)
    }
}

impl<const D: usize> Pool<D> {
    /// Returns adjacent windows: the stride is the kernel's size. There is no padding and no dilation, and a partial
    /// window at the end is left out.
    pub fn new(kernel: impl Sizes<D>) -> Self {
        let kernel = kernel.sizes();
        let window = WindowParams { kernel, stride: kernel, padding: [0; D], dilation: [1; D] };
        Pool { window, ceil_mode: false, count_include_pad: true }
    }

    /// Sets whether a last window that extends past the padded image counts. Such a window must start before the
    /// padding at the end.
    pub fn ceil_mode(mut self, ceil_mode: bool) -> Self {
        self.ceil_mode = ceil_mode;
        self
    }

    /// Sets whether a mean divides by the number of its pixels and padding elements (the default), or only by the
    /// number of its pixels.
    ///
    /// Elements of a `ceil_mode` window that are past the padding never count.
    pub fn count_include_pad(mut self, count_include_pad: bool) -> Self {
        self.count_include_pad = count_include_pad;
        self
    }
}

impl Pool<1> {
    /// Returns the same windows for images of height 1: they move along the width.
    fn flat(self) -> Pool<2> {
        let Pool { window, ceil_mode, count_include_pad } = self;
        Pool { window: window.flat(), ceil_mode, count_include_pad }
    }
}

impl<const D: usize> Pool<D> {
    fn mode(&self, max: bool) -> Mode {
        if max { Mode::Max } else { Mode::Avg { count_include_pad: self.count_include_pad } }
    }

    /// Checks what the windows and the image `[N, C, ..]` must have for a maximum or a mean.
    fn check(&self, op: &'static str, x: &Tensor, max: bool) -> Result<()> {
        let WindowParams { kernel, padding, dilation, .. } = self.window;
        if (0..D).any(|d| padding[d] > kernel[d] / 2) {
            let detail = format!("padding {padding:?} must be at most half the kernel {kernel:?}");
            return Err(Error::argument(op, detail));
        }
        if !max && dilation != [1; D] {
            return Err(Error::argument(op, format!("dilation {dilation:?} is for maxima only")));
        }
        if x.shape()[2..].contains(&0) {
            return Err(Error::argument(op, format!("the planes of {:?} have no pixels", x.shape())));
        }
        Ok(())
    }
}

impl Pool<2> {
    /// Returns the windows' part in direction `d`, with size 1 in the other direction.
    fn along(mut self, d: usize) -> Self {
        let (window, other) = (&mut self.window, 1 - d);
        (window.kernel[other], window.stride[other], window.padding[other], window.dilation[other]) = (1, 1, 0, 1);
        self
    }

    /// Returns the windows over the planes of x.
    fn windows(self, op: &'static str, x: &Tensor, max: bool) -> Result<Windows> {
        let &[_, _, h, w] = x.shape() else {
            return Err(Error::argument(op, format!("the input is [N, C, H, W], not {:?}", x.shape())));
        };
        self.check(op, x, max)?;
        Ok(Windows { mode: self.mode(max), window: over(self.window, op, [h, w], self.ceil_mode)? })
    }

    fn run(self, x: &Tensor, max: bool) -> Result<Tensor> {
        let windows = self.windows(if max { "max_pool2d" } else { "avg_pool2d" }, x, max)?;
        let kernel = self.window.kernel;
        if kernel.iter().all(|&k| k > 1) && kernel[0].saturating_mul(kernel[1]) > SEPARABLE {
            return self.along(0).run(&self.along(1).run(x, max)?, max);
        }
        apply(windows, &[x])
    }
}

/// Returns `[N, C, L]` as images of height 1.
fn unflattened(op: &'static str, x: &Tensor) -> Result<Tensor> {
    match x.rank() {
        3 => x.unsqueeze(2),
        _ => Err(Error::argument(op, format!("the input is [N, C, L], not {:?}", x.shape()))),
    }
}

impl Tensor {
    /// Returns the largest element of each window: `[N, C, H, W]` → `[N, C, OH, OW]`.
    ///
    /// The height of the result is `OH = (H + 2·padding − dilation·(K − 1) − 1) / stride + 1`, rounded down unless
    /// [`Pool::ceil_mode`] is on. The same formula gives OW.
    ///
    /// NaN counts as the largest. The gradient goes to the first of equal maxima. A window without a pixel, which is
    /// possible with a dilation, returns −∞.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the input has another rank or planes without pixels, a window does not fit, a size
    /// is 0 where it must not be, the padding is more than half the window, or, on adapters, a window is more than
    /// 60 000 long in one direction; [`Error::DTypeMismatch`] unless the type is a float.
    ///
    /// ```
    /// # use anygpu::{Pool, Tensor};
    /// let x = Tensor::new([[1.0, 2.0, 5.0], [3.0, 6.0, 4.0]], None)?.reshape([1, 1, 2, 3])?;
    /// assert_eq!(x.max_pool2d(Pool::new(2).stride(1))?.to_vec::<f32>()?, [6.0, 6.0]);
    /// assert_eq!(x.max_pool2d(Pool::new([1, 2]).dilation([1, 2]))?.to_vec::<f32>()?, [5.0, 4.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn max_pool2d(&self, pool: impl Into<Pool<2>>) -> Result<Tensor> {
        pool.into().run(self, true)
    }

    /// Returns the largest element of each window, like [`Tensor::max_pool2d`], and its position as u32.
    ///
    /// The position is in the plane: `h · W + w`. The first of equal maxima counts. The position of a window without a
    /// pixel is [`u32::MAX`].
    ///
    /// # Errors
    /// Same as [`Tensor::max_pool2d`].
    ///
    /// ```
    /// # use anygpu::{Pool, Tensor};
    /// let x = Tensor::new([[1.0, 2.0, 5.0], [3.0, 6.0, 4.0]], None)?.reshape([1, 1, 2, 3])?;
    /// let (values, positions) = x.max_pool2d_with_indices(Pool::new([1, 3]))?;
    /// assert_eq!(values.to_vec::<f32>()?, [5.0, 6.0]);
    /// assert_eq!(positions.to_vec::<u32>()?, [2, 4]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn max_pool2d_with_indices(&self, pool: impl Into<Pool<2>>) -> Result<(Tensor, Tensor)> {
        let (op, pool) = ("max_pool2d_with_indices", pool.into());
        let windows = pool.windows(op, self, true)?;
        named(op, || Ok((pool.run(self, true)?, apply(Positions(windows), &[self])?)))
    }

    /// Returns the largest element of each window, like [`Tensor::max_pool1d`], and its position as u32. See
    /// [`Tensor::max_pool2d_with_indices`].
    ///
    /// # Errors
    /// Same as [`Tensor::max_pool2d`].
    ///
    /// ```
    /// # use anygpu::{Pool, Tensor};
    /// let x = Tensor::new([1.0, 3.0, 2.0, 4.0, 9.0], None)?.reshape([1, 1, 5])?;
    /// let (_, positions) = x.max_pool1d_with_indices(Pool::new(2))?;
    /// assert_eq!(positions.to_vec::<u32>()?, [1, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn max_pool1d_with_indices(&self, pool: impl Into<Pool<1>>) -> Result<(Tensor, Tensor)> {
        let images = unflattened("max_pool1d_with_indices", self)?;
        named("max_pool1d_with_indices", || {
            let (values, positions) = images.max_pool2d_with_indices(pool.into().flat())?;
            Ok((values.squeeze(2)?, positions.squeeze(2)?))
        })
    }

    /// Returns the mean of each window: `[N, C, H, W]` → `[N, C, OH, OW]`, as in [`Tensor::max_pool2d`].
    ///
    /// # Errors
    /// Same as [`Tensor::max_pool2d`], and [`Error::InvalidArgument`] if there is a dilation.
    ///
    /// ```
    /// # use anygpu::{Pool, Tensor};
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 6.0]], None)?.reshape([1, 1, 2, 2])?;
    /// assert_eq!(x.avg_pool2d(Pool::new(2))?.to_vec::<f32>()?, [3.0]);
    /// let padded = Pool::new(2).padding(1);
    /// assert_eq!(x.avg_pool2d(padded)?.to_vec::<f32>()?, [0.25, 0.5, 0.75, 1.5]);
    /// assert_eq!(x.avg_pool2d(padded.count_include_pad(false))?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 6.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn avg_pool2d(&self, pool: impl Into<Pool<2>>) -> Result<Tensor> {
        pool.into().run(self, false)
    }

    /// Returns the largest element of each window: `[N, C, L]` → `[N, C, OL]`, like [`Tensor::max_pool2d`] with a
    /// height of 1.
    ///
    /// # Errors
    /// Same as [`Tensor::max_pool2d`].
    ///
    /// ```
    /// # use anygpu::{Pool, Tensor};
    /// let x = Tensor::new([1.0, 3.0, 2.0, 4.0, 9.0], None)?.reshape([1, 1, 5])?;
    /// assert_eq!(x.max_pool1d(Pool::new(2))?.to_vec::<f32>()?, [3.0, 4.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn max_pool1d(&self, pool: impl Into<Pool<1>>) -> Result<Tensor> {
        let images = unflattened("max_pool1d", self)?;
        named("max_pool1d", || images.max_pool2d(pool.into().flat())?.squeeze(2))
    }

    /// Returns the mean of each window: `[N, C, L]` → `[N, C, OL]`, like [`Tensor::avg_pool2d`] with a height of 1.
    ///
    /// # Errors
    /// Same as [`Tensor::avg_pool2d`].
    ///
    /// ```
    /// # use anygpu::{Pool, Tensor};
    /// let x = Tensor::new([1.0, 3.0, 2.0, 4.0, 9.0], None)?.reshape([1, 1, 5])?;
    /// assert_eq!(x.avg_pool1d(Pool::new(2).ceil_mode(true))?.to_vec::<f32>()?, [2.0, 3.0, 9.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn avg_pool1d(&self, pool: impl Into<Pool<1>>) -> Result<Tensor> {
        let images = unflattened("avg_pool1d", self)?;
        named("avg_pool1d", || images.avg_pool2d(pool.into().flat())?.squeeze(2))
    }
}
