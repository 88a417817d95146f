//! How batches are split among devices.

use crate::device::Device;
use crate::error::{Error, Result};
pub use crate::shape::split_sizes;
use crate::tensor::{Tensor, to_together};

/// Splits a batch, `images: [N, ..]` and `labels: [N, ..]`, into one part per device, of sizes as equal as possible.
///
/// Images and labels of a part are moved in one copy. The parts are outside the graph.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless there are as many labels as images; [`Error::InvalidArgument`] for scalars and an
/// empty list of devices; the errors of the copies.
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

/// Splits a batch as [`split_batch`] does, into parts in proportion to `weights`.
///
/// There is one weight for each device: see [`split_sizes`].
///
/// # Errors
/// The errors of [`split_batch`], and [`Error::InvalidArgument`] unless there is one weight per device.
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
        assert!(matches!(split_batch_by(&x, &x, &cpu, &[]), Err(Error::InvalidArgument { .. })));
        let labels = Tensor::from_slice(&[0u32; 3], 3, None).unwrap();
        assert!(matches!(split_batch(&x, &labels, &cpu), Err(Error::ShapeMismatch { .. })));
    }
}
