//! Makes tensors from samples: all parts of a batch are in one block of memory, which is copied to a device in one
//! copy.

use super::{Array, Sample};
use crate::device::{Device, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::inplace::filled_words;
use crate::shape::checked_elem_count;
use crate::tensor::{Tensor, move_dense, slots};

/// The type of a batch: `(Tensor, Tensor)` by default, or one tensor, three, or a `Vec`; see
/// [`DataLoader::items`](crate::data::DataLoader::items).
pub trait Batch: Sized {
    /// Makes a batch from its parts, in order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number of parts.
    fn from_parts(parts: Vec<Tensor>) -> Result<Self>;
}

fn exactly<const N: usize>(parts: Vec<Tensor>) -> Result<[Tensor; N]> {
    parts.try_into().map_err(|parts: Vec<Tensor>| {
        let remedy = match parts.len() {
            1 => "items::<Tensor>()",
            2 => "items::<(Tensor, Tensor)>()",
            3 => "items::<(Tensor, Tensor, Tensor)>()",
            _ => "items::<Vec<Tensor>>()",
        };
        let detail = format!(
            "a sample has {} parts, and the loop takes {N} (by default 2): call .{remedy} on the loader",
            parts.len()
        );
        Error::argument("DataLoader", detail)
    })
}

impl Batch for Vec<Tensor> {
    fn from_parts(parts: Vec<Tensor>) -> Result<Self> {
        Ok(parts)
    }
}

impl Batch for Tensor {
    fn from_parts(parts: Vec<Tensor>) -> Result<Self> {
        exactly::<1>(parts).map(|[part]| part)
    }
}

impl Batch for (Tensor, Tensor) {
    fn from_parts(parts: Vec<Tensor>) -> Result<Self> {
        exactly::<2>(parts).map(|[a, b]| (a, b))
    }
}

impl Batch for (Tensor, Tensor, Tensor) {
    fn from_parts(parts: Vec<Tensor>) -> Result<Self> {
        exactly::<3>(parts).map(|[a, b, c]| (a, b, c))
    }
}

/// A batch that is being assembled: samples with the shapes and types of the first one, in one block.
pub(super) struct Stack {
    block: Tensor,
    parts: Vec<PartLayout>,
}

/// One part of a batch.
struct PartLayout {
    shape: Vec<usize>,
    dtype: DType,
    /// Its first word in the block.
    start: usize,
}

impl Stack {
    /// Allocates a block for `count` samples like `first`.
    pub(super) fn new(first: &Sample, count: usize) -> Result<Stack> {
        Self::of(first.iter().map(|part| ([&[count], part.shape()].concat(), part.dtype())))
    }

    /// Allocates a block for parts of these shapes and types.
    fn of(parts: impl Iterator<Item = (Vec<usize>, DType)>) -> Result<Stack> {
        let mut end = 0usize;
        let place = |(shape, dtype): (Vec<usize>, DType)| {
            let start = end;
            let words = slots(dtype.words(checked_elem_count("DataLoader", &shape)?));
            end = start.checked_add(words).ok_or_else(|| Error::argument("DataLoader", "the batch is too large"))?;
            Ok(PartLayout { shape, dtype, start })
        };
        let parts: Vec<PartLayout> = parts.map(place).collect::<Result<_>>()?;
        if parts.is_empty() {
            return Err(Error::argument("DataLoader", "a sample has no parts: it needs one array at least"));
        }
        Ok(Stack { block: filled_words(&[end], 0, DType::U32, &Device::cpu())?, parts })
    }

    /// Writes sample `i`.
    pub(super) fn put(&mut self, i: usize, sample: &Sample) -> Result<()> {
        if sample.len() != self.parts.len() {
            let detail = format!("one sample has {} parts, another {}", self.parts.len(), sample.len());
            return Err(Error::argument("DataLoader", detail));
        }
        let Stack { block, parts } = self;
        for (part, array) in parts.iter().zip(sample) {
            if array.dtype() != part.dtype {
                let (expected, got) = (part.dtype.to_string(), array.dtype().to_string());
                return Err(Error::DTypeMismatch { op: "DataLoader", expected, got });
            }
            if array.shape() != &part.shape[1..] {
                let rule =
                    "the samples of a batch have one shape: resize or crop them, or give the loader a collate function";
                return Err(Error::shapes("DataLoader", &part.shape[1..], array.shape(), rule));
            }
            write(block, part, i * array.bytes().len(), array)?;
        }
        Ok(())
    }

    /// Returns a block of the arrays that a `collate` function made from a whole batch.
    pub(super) fn whole(arrays: &[Array]) -> Result<Stack> {
        let stack = Self::of(arrays.iter().map(|array| (array.shape().to_vec(), array.dtype())))?;
        stack.parts.iter().zip(arrays).try_for_each(|(part, array)| write(&stack.block, part, 0, array))?;
        Ok(stack)
    }

    /// Returns the tensors on `device`: views of the one block, which is copied there in one copy.
    pub(super) fn finish(self, device: Option<&Device>) -> Result<Vec<Tensor>> {
        let elsewhere = device.filter(|device| *device != self.block.device());
        let block = elsewhere.map_or(Ok(self.block.clone()), |device| move_dense(&self.block, device))?;
        self.parts.iter().map(|part| block.tensor_at_word(part.start, &part.shape, part.dtype)).collect()
    }
}

/// Writes an array at byte `at` of a part.
fn write(block: &Tensor, part: &PartLayout, at: usize, array: &Array) -> Result<()> {
    let Storage::Cpu(buffer) = block.storage() else {
        return Err(Error::internal("the block of a batch is not in host memory"));
    };
    let mut words = buffer.write();
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words[part.start..]);
    bytes[at..][..array.bytes().len()].copy_from_slice(array.bytes());
    Ok(())
}
