//! Tensors between devices, and several tensors as one block of memory.

use crate::device::{Device, transfer};
use crate::error::Result;
use crate::ops;
use crate::tensor::Tensor;

/// Tensors that share a block start at multiples of this many elements: 256 bytes, what every adapter can bind.
pub(crate) const SLOT: usize = 64;

/// Moves several tensors of one device to another in one staged copy; each keeps its shape and element type.
///
/// A batch's images and labels cost one crossing instead of two. The results are views of one block and outside the graph.
///
/// # Errors
/// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) if the tensors are not all on one device; what either device says.
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
    let words: Vec<Tensor> = tensors.iter().map(|t| t.as_words()).collect::<Result<_>>()?;
    let block = move_dense(&flatten_together(&words)?, device)?;
    let mut offset = 0;
    let mut part = |(tensor, words): (&&Tensor, &Tensor)| {
        let start = offset;
        offset += words.elem_count().next_multiple_of(SLOT);
        block.tensor_at_word(start, tensor.shape(), tensor.dtype())
    };
    Ok(tensors.iter().zip(&words).map(&mut part).collect())
}

/// The tensors one after the other in one block `[slots · SLOT]`, each at the start of a slot; the gaps are zero.
pub(crate) fn flatten_together(tensors: &[Tensor]) -> Result<Tensor> {
    let mut parts = Vec::with_capacity(2 * tensors.len());
    for tensor in tensors {
        let tensor = tensor.detach();
        let gap = tensor.elem_count().next_multiple_of(SLOT) - tensor.elem_count();
        let zeros = match gap {
            0 => None,
            _ => Some(ops::inplace::filled_words(&[gap], 0, tensor.dtype(), tensor.device())?),
        };
        parts.push(tensor.reshape(tensor.elem_count())?);
        parts.extend(zeros);
    }
    ops::cat(&parts.iter().collect::<Vec<_>>(), 0)
}

/// A copy on another device, outside the graph.
pub(crate) fn move_dense(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    let words = tensor.as_words()?;
    let storage = transfer::to(words.storage(), words.layout().offset, words.elem_count(), words.device(), device)?;
    Ok(Tensor::from_storage(storage, tensor.shape(), tensor.dtype(), device.clone()))
}
