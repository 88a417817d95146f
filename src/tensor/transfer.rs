//! Moving tensors between devices.

use crate::autograd::no_grad;
use crate::device::{Backend, Device, Storage, transfer};
use crate::error::{Error, Result};
use crate::ops;
use crate::tensor::{Tensor, copied_together};

/// Moves several tensors of one device to another in one staged copy.
///
/// Each keeps its shape and element type.
///
/// For example, the images and labels of a batch then need one transfer instead of two. The results are views of one
/// block, outside the graph.
///
/// # Errors
/// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) if the tensors are not all on one device; errors of either
/// device.
///
/// ```
/// use anygpu::{Device, Tensor, tensor::to_together};
///
/// let images = Tensor::rand([2, 1, 4, 4], None)?;
/// let labels = Tensor::from_slice(&[3, 1u32], [2], None)?;
/// let moved = to_together(&[&images, &labels], &Device::cpu())?;
/// assert_eq!(moved[1].to_vec::<u32>()?, [3, 1]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn to_together(tensors: &[&Tensor], device: &Device) -> Result<Vec<Tensor>> {
    ops::same_device("to_together", tensors)?;
    if tensors.iter().all(|t| t.device() == device) {
        return Ok(tensors.iter().map(|t| t.detach()).collect());
    }
    copied_together(tensors, device)
}

impl Tensor {
    /// Returns this tensor on the CPU: `x.to(&Device::cpu())`.
    ///
    /// # Errors
    /// Same as [`Tensor::to`].
    ///
    /// ```
    /// # use anygpu::{Tensor, try_gpu};
    /// assert!(Tensor::ones([3], &try_gpu(0))?.cpu()?.device().is_cpu());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn cpu(&self) -> Result<Tensor> {
        self.to(Device::cpu())
    }
}

/// Returns Σ wᵢ · xᵢ, summed in the order of the slice, on the first tensor's device and outside the graph. Without
/// weights, it returns Σ xᵢ. The shapes must be equal.
///
/// # Errors
/// [`Error::InvalidArgument`] if there are no tensors; errors of the device.
pub(crate) fn weighted_sum(tensors: &[Tensor], weights: Option<&[f64]>) -> Result<Tensor> {
    let [first, others @ ..] = tensors else { return Err(Error::argument("weighted_sum", "needs a tensor")) };
    let term = |i: usize, tensor: Tensor| match weights.and_then(|weights| weights.get(i)) {
        Some(&weight) => tensor.mul_scalar(weight as f32),
        None => Ok(tensor),
    };
    no_grad(|| {
        let mut sum = term(0, first.detach())?;
        for (i, tensor) in others.iter().enumerate() {
            sum = sum.add(&term(i + 1, tensor.detach().to(first.device())?)?)?;
        }
        Ok(sum)
    })
}

/// Overwrites the words of a contiguous tensor on an adapter with the words of a tensor on the host, without a copy
/// between them. Returns whether it could: both tensors are where that is possible, and have equal lengths.
pub(crate) fn overwrite(dst: &Tensor, src: &Tensor) -> Result<bool> {
    let (Storage::Gpu(to), Storage::Cpu(from)) = (dst.storage(), src.storage()) else { return Ok(false) };
    let (Backend::Gpu(gpu), true) = (dst.device().backend()?, dst.elem_count() == src.elem_count()) else {
        return Ok(false);
    };
    let [start, at] = [src, dst].map(|x| x.dtype().word_of(x.layout().offset));
    gpu.write(to, at, &from.read()[start..start + src.dtype().words(src.elem_count())])?;
    dst.storage().bump();
    Ok(true)
}

/// Returns a copy on another device, outside the graph.
pub(crate) fn move_dense(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    ops::long::held("to", tensor.dtype(), device)?;
    let words = tensor.as_words()?;
    let storage = transfer::to(words.storage(), words.layout().offset, words.elem_count(), words.device(), device)?;
    Ok(Tensor::from_storage(storage, tensor.shape(), tensor.dtype(), device.clone()))
}
