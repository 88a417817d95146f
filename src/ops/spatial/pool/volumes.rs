//! Pooling over three dimensions: the planes are pooled, and then the results along the depth. For maxima this is the same,
//! and for means too, since a window's divisor is a product of one number for each dimension.

use super::Pool;
use super::adaptive;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::long::refuse;
use crate::ops::named;
use crate::ops::spatial::window::Sizes;
use crate::ops::spatial::window::counts;
use crate::tensor::Tensor;

impl Pool<3> {
    fn run(self, op: &'static str, x: &Tensor, max: bool) -> Result<Tensor> {
        let &[n, c, d, h, w] = x.shape() else {
            return Err(Error::argument(op, format!("the input is [N, C, D, H, W], not {:?}", x.shape())));
        };
        self.check(op, x, max)?;
        let [od, oh, ow] = counts(&self.window, op, [d, h, w], self.ceil_mode)?;
        let part = |window| Pool { window, ceil_mode: self.ceil_mode, count_include_pad: self.count_include_pad };
        refuse(op, [x])?;
        named(op, || {
            // A mean of halves is rounded once, at the end.
            let dtype = x.dtype();
            let x = if !max && dtype.is_float() { x.to_dtype(DType::F32)? } else { x.clone() };
            let planes = part(self.window.planes()).run(&x.reshape([n, c * d, h, w])?, max)?;
            let columns = part(self.window.depth()).run(&planes.reshape([n, c, d, oh * ow])?, max)?;
            columns.reshape([n, c, od, oh, ow])?.to_dtype(dtype)
        })
    }
}

impl Tensor {
    /// Returns the largest element of each window: `[N, C, D, H, W]` → `[N, C, OD, OH, OW]`, like
    /// [`Tensor::max_pool2d`].
    ///
    /// # Errors
    /// Same as [`Tensor::max_pool2d`].
    ///
    /// ```
    /// # use anygpu::{Pool, Tensor};
    /// let x = Tensor::arange(0.0, 16.0, 1.0, None)?.reshape([1, 1, 4, 2, 2])?;
    /// assert_eq!(x.max_pool3d(2)?.to_vec::<f32>()?, [7.0, 15.0]);
    /// assert_eq!(x.max_pool3d(Pool::new([3, 1, 2]).stride(1))?.shape(), [1, 1, 2, 2, 1]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn max_pool3d(&self, pool: impl Into<Pool<3>>) -> Result<Tensor> {
        pool.into().run("max_pool3d", self, true)
    }

    /// Returns the mean of each window: `[N, C, D, H, W]` → `[N, C, OD, OH, OW]`, like [`Tensor::avg_pool2d`].
    ///
    /// # Errors
    /// Same as [`Tensor::avg_pool2d`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::arange(0.0, 16.0, 1.0, None)?.reshape([1, 1, 4, 2, 2])?;
    /// assert_eq!(x.avg_pool3d(2)?.to_vec::<f32>()?, [3.5, 11.5]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn avg_pool3d(&self, pool: impl Into<Pool<3>>) -> Result<Tensor> {
        pool.into().run("avg_pool3d", self, false)
    }

    /// Computes means over parts: `[N, C, D, H, W]` → `[N, C, OD, OH, OW]`, like [`Tensor::adaptive_avg_pool2d`].
    ///
    /// # Errors
    /// Same as [`Tensor::adaptive_avg_pool2d`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::arange(0.0, 16.0, 1.0, None)?.reshape([1, 1, 4, 2, 2])?;
    /// assert_eq!(x.adaptive_avg_pool3d(1)?.to_vec::<f32>()?, [7.5]);
    /// assert_eq!(x.adaptive_avg_pool3d([2, 1, 1])?.to_vec::<f32>()?, [3.5, 11.5]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn adaptive_avg_pool3d(&self, size: impl Sizes<3>) -> Result<Tensor> {
        adaptive::pool("adaptive_avg_pool3d", self, false, 5, &size.sizes())
    }

    /// Returns the largest elements of parts: `[N, C, D, H, W]` → `[N, C, OD, OH, OW]`, like
    /// [`Tensor::adaptive_max_pool2d`].
    ///
    /// # Errors
    /// Same as [`Tensor::adaptive_max_pool2d`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::arange(0.0, 16.0, 1.0, None)?.reshape([1, 1, 4, 2, 2])?;
    /// assert_eq!(x.adaptive_max_pool3d([2, 1, 1])?.to_vec::<f32>()?, [7.0, 15.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn adaptive_max_pool3d(&self, size: impl Sizes<3>) -> Result<Tensor> {
        adaptive::pool("adaptive_max_pool3d", self, true, 5, &size.sizes())
    }
}
