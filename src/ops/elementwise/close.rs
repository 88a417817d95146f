//! Whether two tensors are equal, or nearly so: one answer for all elements.

use crate::error::{Error, Result};
use crate::ops::reduction::statistics::wide;
use crate::ops::{named, same_device};
use crate::tensor::Tensor;

impl Tensor {
    /// Returns whether both tensors have the same shape and equal elements, like `torch.equal`.
    ///
    /// NaN is not equal to anything. Waits until the device has computed the answer.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`]; errors of the device.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1, 2, 3], None)?;
    /// assert!(x.equal(&Tensor::new([1, 2, 3], None)?)?);
    /// assert!(!x.equal(&x.reshape((3, 1))?)?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn equal(&self, other: &Tensor) -> Result<bool> {
        same_device("equal", &[self, other])?;
        if self.shape() != other.shape() {
            return Ok(false);
        }
        named("equal", || self.eq(other)?.all_all()?.item())
    }

    /// Returns whether `|self − other| ≤ atol + rtol · |other|` for every element, like `torch.allclose`.
    ///
    /// The shapes are broadcast by NumPy's rule. Infinities are close if they are equal; NaN is close to nothing. The
    /// tensors must be floats, and the comparison is in f32. Waits until the device has computed the answer.
    ///
    /// PyTorch's defaults are `rtol = 1e-5` and `atol = 1e-8`.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for other types than floats; [`Error::ShapeMismatch`]; [`Error::DeviceMismatch`];
    /// [`Error::InvalidArgument`] for a negative tolerance or NaN; errors of the device.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1.0, 1000.0], None)?;
    /// let y = Tensor::new([1.0, 1000.5], None)?;
    /// assert!(x.allclose(&y, 1e-3, 0.0)? && !x.allclose(&y, 1e-5, 1e-8)?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn allclose(&self, other: &Tensor, rtol: f32, atol: f32) -> Result<bool> {
        if !(rtol >= 0.0 && atol >= 0.0) {
            let detail = format!("the tolerances {rtol} and {atol} are not both 0 or more");
            return Err(Error::argument("allclose", detail));
        }
        same_device("allclose", &[self, other])?;
        named("allclose", || {
            let (x, y) = (wide("allclose", &self.detach())?, wide("allclose", &other.detach())?);
            let distance = x.sub(&y)?.abs()?;
            let near = distance.le(&y.abs()?.mul(rtol)?.add(atol)?)?.logical_and(&distance.isfinite()?)?;
            near.logical_or(&x.eq(&y)?)?.all_all()?.item()
        })
    }
}
