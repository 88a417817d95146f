//! Collectives: scatter, gather, broadcast and reduction of tensors on several devices.
//!
//! The first dimension of a batch is that of the samples, N. All sums are computed in the order of the slice, so that
//! repeated runs give the same bits.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::inplace::copy_;
pub use crate::shape::split_sizes;
use crate::tensor::{Tensor, to_together, weighted_sum};

/// Splits `x: [N, ..]` along its first dimension into one part per device, of sizes as equal as possible. Part i is
/// moved to device i. With fewer samples than devices, the last parts are empty.
///
/// # Errors
/// [`Error::InvalidArgument`] for a scalar or an empty list of devices, and those of the copies.
///
/// # Example
/// ```
/// use anygpu::{Device, Tensor, parallel::scatter};
///
/// let x = Tensor::arange(0.0, 20.0, 1.0, None)?.reshape([4, 5])?;
/// let parts = scatter(&x, &[Device::cpu(), anygpu::try_gpu(0)])?;
/// assert_eq!((parts[0].shape(), parts[1].shape()), (&[2, 5][..], &[2, 5][..]));
/// assert_eq!(parts[1].to_vec::<f32>()?[0], 10.0);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn scatter(x: &Tensor, devices: &[Device]) -> Result<Vec<Tensor>> {
    let parts = cut(x, devices.len(), &vec![1.0; devices.len()], "scatter")?;
    parts.iter().zip(devices).map(|(part, device)| part.to(device)).collect()
}

/// Splits a batch, `images: [N, ..]` and `labels: [N, ..]`, into one part per device, of sizes as equal as possible.
/// Images and labels of a part are moved in one copy. The parts are outside the graph.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless there are as many labels as images, and those of [`scatter`].
///
/// # Example
/// ```
/// use anygpu::{Device, Tensor, parallel::split_batch};
///
/// let images = Tensor::rand([5, 1, 28, 28], None)?;
/// let labels = Tensor::from_slice(&[1u32, 2, 3, 4, 5], [5], None)?;
/// let (images, labels) = split_batch(&images, &labels, &[Device::cpu(), Device::cpu()])?;
/// assert_eq!((images[0].shape()[0], images[1].shape()[0]), (3, 2));
/// assert_eq!(labels[1].to_vec::<u32>()?, [4, 5]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn split_batch(images: &Tensor, labels: &Tensor, devices: &[Device]) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    split_batch_by(images, labels, devices, &vec![1.0; devices.len()])
}

/// Like [`split_batch`], with part sizes in proportion to `weights`, one per device; see [`split_sizes`].
///
/// # Errors
/// Those of [`split_batch`], and [`Error::InvalidArgument`] unless there is one weight per device.
pub fn split_batch_by(
    images: &Tensor,
    labels: &Tensor,
    devices: &[Device],
    weights: &[f64],
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    if images.shape().first() != labels.shape().first() {
        let rule = "there must be as many labels as images: the first dimensions must be equal";
        return Err(Error::shapes("split_batch", images.shape(), labels.shape(), rule));
    }
    let images = cut(images, devices.len(), weights, "split_batch")?;
    let labels = cut(labels, devices.len(), weights, "split_batch")?;
    let mut parts = (Vec::new(), Vec::new());
    for ((images, labels), device) in images.iter().zip(&labels).zip(devices) {
        let mut moved = to_together(&[images, labels], device)?.into_iter();
        parts.0.extend(moved.next());
        parts.1.extend(moved.next());
    }
    Ok(parts)
}

/// Returns views of `parts` ranges of the first dimension, sized by `weights`.
fn cut(x: &Tensor, parts: usize, weights: &[f64], op: &'static str) -> Result<Vec<Tensor>> {
    if parts == 0 || weights.len() != parts {
        return Err(Error::argument(
            op,
            format!("{parts} devices and {} weights: there must be one weight per device", weights.len()),
        ));
    }
    let Some(&n) = x.shape().first() else {
        return Err(Error::argument(op, "a scalar has no first dimension to split"));
    };
    x.split_sizes(&split_sizes(n, weights), 0)
}

/// Concatenates `[Nᵢ, ..]` tensors along their first dimension, in order, on `device`. It is the inverse of
/// [`scatter`]. Gradients flow back to each tensor.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the other dimensions differ, [`Error::InvalidArgument`] for an empty slice, and those of
/// the copies.
///
/// # Example
/// ```
/// use anygpu::{Device, Tensor, parallel::{gather, scatter}};
///
/// let x = Tensor::rand([7, 3], None)?;
/// let parts = scatter(&x, &[anygpu::try_gpu(0), Device::cpu()])?;
/// assert_eq!(gather(&parts, &Device::cpu())?.to_vec::<f32>()?, x.to_vec::<f32>()?);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn gather(tensors: &[Tensor], device: &Device) -> Result<Tensor> {
    let here = tensors.iter().map(|tensor| tensor.to(device)).collect::<Result<Vec<_>>>()?;
    crate::ops::cat(&here.iter().collect::<Vec<_>>(), 0)
}

/// Returns one copy of `x` per device. Where `x` already is on the device, it is the same tensor.
///
/// # Errors
/// Those of the copies.
///
/// # Example
/// ```
/// use anygpu::{Device, Tensor, parallel::broadcast};
///
/// let copies = broadcast(&Tensor::ones([3], None)?, &[Device::cpu(), anygpu::try_gpu(0)])?;
/// assert_eq!(copies[1].to_vec::<f32>()?, [1.0; 3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn broadcast(x: &Tensor, devices: &[Device]) -> Result<Vec<Tensor>> {
    devices.iter().map(|device| x.to(device)).collect()
}

/// Replaces each tensor's elements by the sum of all tensors, in place. Afterwards, every device holds the same values.
/// All tensors must have the same shape and must not share memory. The sum is computed on the first tensor's device, in
/// order, outside the graph.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the shapes differ, and those of the copies.
///
/// # Example
/// ```
/// use anygpu::{Device, Tensor, parallel::all_reduce};
///
/// let data = [Tensor::full([2], 1.0, None)?, Tensor::full([2], 2.0, &anygpu::try_gpu(0))?];
/// all_reduce(&data)?;
/// assert_eq!(data[0].to_vec::<f32>()?, [3.0, 3.0]);
/// assert_eq!(data[1].to_vec::<f32>()?, [3.0, 3.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn all_reduce(tensors: &[Tensor]) -> Result<()> {
    reduce_with(tensors, None)
}

/// Like [`all_reduce`], with the mean weighted by `weights` instead of the sum. If the weights are the numbers of
/// samples that each device processed, the mean of their gradients is the gradient of the whole batch.
///
/// # Errors
/// Those of [`all_reduce`], and [`Error::InvalidArgument`] unless there is one weight per tensor, no weight is negative
/// and at least one is positive.
///
/// # Example
/// ```
/// use anygpu::{Tensor, parallel::all_reduce_mean};
///
/// let gradients = [Tensor::full([2], 1.0, None)?, Tensor::full([2], 5.0, None)?];
/// all_reduce_mean(&gradients, &[3.0, 1.0])?; // from 3 samples and from 1
/// assert_eq!(gradients[1].to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn all_reduce_mean(tensors: &[Tensor], weights: &[f64]) -> Result<()> {
    let total: f64 = weights.iter().sum();
    let valid = weights.len() == tensors.len() && weights.iter().all(|w| *w >= 0.0) && total > 0.0 && total.is_finite();
    if !valid {
        let detail = format!(
            "{} tensors and weights {weights:?}: there must be one weight ≥ 0 per tensor, not all 0",
            tensors.len()
        );
        return Err(Error::argument("all_reduce_mean", detail));
    }
    reduce_with(tensors, Some(&weights.iter().map(|weight| weight / total).collect::<Vec<_>>()))
}

fn reduce_with(tensors: &[Tensor], weights: Option<&[f64]>) -> Result<()> {
    let [first, _, ..] = tensors else { return Ok(()) }; // the sum and the mean of one tensor are the tensor
    if let Some(other) = tensors.iter().find(|tensor| tensor.shape() != first.shape()) {
        return Err(Error::shapes("all_reduce", first.shape(), other.shape(), "all shapes must be equal"));
    }
    let sum = weighted_sum(tensors, weights)?;
    tensors.iter().try_for_each(|tensor| copy_(tensor, &sum.to(tensor.device())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_add_up_and_follow_the_weights() {
        for n in [0, 1, 2, 7, 64, 255] {
            for weights in [&[1.0][..], &[1.0; 3], &[5.0, 0.1, 1.0], &[1e-12, 1.0], &[0.0; 4], &[f64::NAN, 1.0]] {
                let sizes = split_sizes(n, weights);
                assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (weights.len(), n), "{n} by {weights:?}");
                let everyone = sizes.iter().all(|&size| size > 0);
                assert!(everyone || n < weights.len(), "{n} by {weights:?}: {sizes:?}");
            }
        }
        assert_eq!(split_sizes(100, &[3.0, 1.0]), [75, 25]);
        assert_eq!(split_sizes(5, &[]), Vec::<usize>::new());
    }

    #[test]
    fn misfits_are_errors() {
        let x = Tensor::zeros([4, 2], None).unwrap();
        let cpu = [Device::cpu()];
        assert!(matches!(scatter(&x, &[]), Err(Error::InvalidArgument { .. })));
        assert!(matches!(scatter(&Tensor::scalar(1.0, None).unwrap(), &cpu), Err(Error::InvalidArgument { .. })));
        let labels = Tensor::from_slice(&[0u32; 3], 3, None).unwrap();
        assert!(matches!(split_batch(&x, &labels, &cpu), Err(Error::ShapeMismatch { .. })));
        let shapes = [x.clone(), Tensor::zeros([2, 4], None).unwrap()];
        assert!(matches!(all_reduce(&shapes), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(all_reduce_mean(&[x], &[]), Err(Error::InvalidArgument { .. })));
        assert!(gather(&[], &Device::cpu()).is_err());
    }
}
