//! Moving a tensor to another device; the gradient moves back.

use crate::device::IntoDevice;
use crate::error::Result;
use crate::ops::traced::Traced;
use crate::ops::{Differentiable, Gradient, Gradients, Saves};
use crate::tensor::Tensor;

#[derive(Debug)]
struct ToDevice;

impl Differentiable for ToDevice {
    fn op_name(&self) -> &'static str {
        "to"
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Same)
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn gradients(&self, ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![Some(ctx.grad.to(ctx.inputs[0].device())?)])
    }
}

impl Tensor {
    /// Returns this tensor on another device.
    ///
    /// This is one staged copy, and it has a gradient. If the tensor is on that device already, returns the same
    /// tensor: no copy, no allocation.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) or [`Error::DeviceLost`](crate::Error::DeviceLost) of either
    /// device.
    ///
    /// ```
    /// use anygpu::{Device, Tensor, try_gpu};
    ///
    /// let x = Tensor::ones([3], &try_gpu(0))?;
    /// let y = x.to(&Device::cpu())?;
    /// assert_eq!(y.device(), &Device::cpu());
    /// assert!(y.is_same(&y.to("cpu")?));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn to(&self, device: impl IntoDevice) -> Result<Tensor> {
        let device = device.into_device()?;
        if *self.device() == device {
            return Ok(self.clone());
        }
        let moved = crate::tensor::move_dense(self, &device);
        let moved = moved.map_err(|error| error.instead("Tensor::to", "Tensor::to_async"))?;
        Ok(crate::autograd::record(ToDevice, &[self], moved))
    }

    /// Asynchronous form of [`Tensor::to`].
    ///
    /// Use it on threads that must not wait, such as a browser page's thread. Elsewhere, it waits when it is polled.
    ///
    /// # Errors
    /// Same as [`Tensor::to`].
    ///
    /// ```
    /// use anygpu::{Device, Tensor};
    ///
    /// # pollster::block_on(async {
    /// let x = Tensor::ones([3], &anygpu::try_gpu(0))?;
    /// let y = x.exp()?.to_async(&Device::cpu()).await?;
    /// println!("{y}");
    /// # Ok::<(), anygpu::Error>(())
    /// # })?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub async fn to_async(&self, device: impl IntoDevice) -> Result<Tensor> {
        let device = device.into_device()?;
        self.device().rerun(|| self.to(&device)).await
    }
}
