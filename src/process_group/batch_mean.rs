//! Means over a batch whose parts are on several devices.

use crate::dtype::DType;
use crate::error::Result;
use crate::ops::named;
use crate::process_group;
use crate::tensor::Tensor;

/// Returns the mean of a tensor over the parts of a batch that several devices compute, weighted by their samples.
///
/// Use it for statistics that a custom layer keeps in a buffer, so that they are the same on all devices. `x`, of any
/// shape, is a mean over the samples that the layer sees. All devices must call this equally often. Integers become
/// f32. The result has no gradient.
///
/// Outside a step of a [`DataParallel`](crate::DataParallel), and with one device, returns `x` itself. Each micro-batch
/// of a [`Pipeline`](crate::Pipeline) has its own mean.
///
/// # Errors
/// [`Error::Abandoned`](crate::Error::Abandoned) if another device has failed or does not call this; errors of the
/// devices.
///
/// ```
/// use anygpu::nn::{Buffer, Module};
/// use anygpu::parallel::batch_mean;
/// use anygpu::{Result, Tensor, no_grad};
///
/// /// Subtracts the running mean of the samples.
/// #[derive(Clone)]
/// struct Centre {
///     mean: Buffer,
/// }
///
/// impl Module for Centre {
///     anygpu::children!(mean);
///
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let now = batch_mean(&x.mean(0, false)?)?;
///         no_grad(|| self.mean.0.copy_(&(self.mean.0.mul(0.9)? + now.mul(0.1)?)?))?;
///         x.sub(&self.mean.0)
///     }
/// }
/// let centre = Centre { mean: Buffer(Tensor::zeros([2], None)?) };
/// centre.forward(&Tensor::ones([5, 2], None)?)?;
/// assert_eq!(centre.mean.0.to_vec::<f32>()?, [0.1; 2]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn batch_mean(x: &Tensor) -> Result<Tensor> {
    named("batch_mean", || {
        let x = x.detach();
        let x = if x.dtype().is_float() { x } else { x.to_dtype(DType::F32)? };
        let Some(rank) = process_group::rank() else { return Ok(x) };
        if !rank.is_joint() {
            rank.note_statistics();
            return Ok(x);
        }
        let own = x.to_dtype(DType::F32)?.to_vec::<f32>()?;
        let mean = rank.weighted_sum(own)?;
        Tensor::from_slice(&mean, x.shape(), x.device())?.to_dtype(x.dtype())
    })
}
