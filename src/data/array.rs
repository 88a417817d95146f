//! The parts of samples: arrays in host memory. They are smaller than tensors, because an epoch creates one for each
//! part of each sample.

use crate::device::cpu::with_room;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::shape::{Shape, checked_elem_count};
use crate::tensor::Tensor;

/// One sample of a [`Dataset`](crate::data::Dataset): its parts in order, for instance an image and a label.
///
/// All samples of a dataset have the same number of parts, of the same types. Within a batch, a part has the same shape
/// in all samples.
pub type Sample = Vec<Array>;

/// Elements in row-major order in the host's memory, with a shape: a part of a [`Sample`].
///
/// ```
/// use anygpu::data::Array;
///
/// let image = Array::new(vec![0.0f32, 0.5, 1.0, 0.25], [1, 2, 2])?;
/// assert_eq!(image.as_slice::<f32>()?[3], 0.25);
/// assert!(Array::scalar(7u32).shape().is_empty());
/// assert!(Array::new(vec![1u8, 2], [3]).is_err());
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Packed as in a tensor, so that elements of four bytes are copied into a batch without conversion.
    words: Vec<u32>,
    shape: Vec<usize>,
    dtype: DType,
}

impl Array {
    /// Creates an array of these elements. For four-byte elements, the memory of the vector is reused.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the shape has another number of elements.
    pub fn new<T: Element>(values: Vec<T>, shape: impl Into<Shape>) -> Result<Array> {
        let shape = shape.into().dims().to_vec();
        if checked_elem_count("Array", &shape)? != values.len() {
            return Err(Error::argument("Array", format!("{} elements do not fill shape {shape:?}", values.len())));
        }
        Ok(Array { words: T::pack_vec(values, with_room)?, shape, dtype: T::DTYPE })
    }

    /// Creates an array of rank 0, for instance a label.
    pub fn scalar<T: Element>(value: T) -> Array {
        let bits = value.bits();
        let words = if T::DTYPE.is_long() { vec![bits as u32, (bits >> 32) as u32] } else { vec![bits as u32] };
        Array { words, shape: Vec::new(), dtype: T::DTYPE }
    }

    /// Creates an array with the elements of a tensor, which are read from its device.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_vec`].
    pub fn from_tensor(tensor: &Tensor) -> Result<Array> {
        Ok(Array { words: tensor.to_words()?, shape: tensor.shape().to_vec(), dtype: tensor.dtype() })
    }

    /// Returns the size in each dimension, outermost first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn elem_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the elements.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] if the elements have another type than `T`.
    pub fn as_slice<T: Element + bytemuck::Pod>(&self) -> Result<&[T]> {
        self.expect(T::DTYPE)?;
        let elements: &[T] = bytemuck::try_cast_slice(&self.words).map_err(|_| misaligned())?;
        Ok(&elements[..self.elem_count()])
    }

    /// Returns the elements, mutably.
    ///
    /// # Errors
    /// The errors of [`as_slice`](Array::as_slice).
    pub fn as_mut_slice<T: Element + bytemuck::Pod>(&mut self) -> Result<&mut [T]> {
        self.expect(T::DTYPE)?;
        let count = self.elem_count();
        let elements: &mut [T] = bytemuck::try_cast_slice_mut(&mut self.words).map_err(|_| misaligned())?;
        Ok(&mut elements[..count])
    }

    /// The sizes `[C, H, W]` of an image.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming `what` for another rank, or a side of 0.
    pub(super) fn image_size(&self, what: &'static str) -> Result<[usize; 3]> {
        match self.shape[..] {
            [c, h, w] if c > 0 && h > 0 && w > 0 => Ok([c, h, w]),
            _ => {
                Err(Error::argument(what, format!("an image is [C, H, W] of at least one pixel, not {:?}", self.shape)))
            }
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.elem_count() * self.dtype.size()]
    }

    /// An array of zeros, overwritten by `fill`.
    pub(super) fn from_bytes(shape: Vec<usize>, dtype: DType, fill: impl FnOnce(&mut [u8])) -> Result<Array> {
        let count: usize = shape.iter().product();
        let mut words = with_room(dtype.words(count))?;
        words.resize(dtype.words(count), 0);
        fill(&mut bytemuck::cast_slice_mut(&mut words)[..count * dtype.size()]);
        Ok(Array { words, shape, dtype })
    }

    /// Element `i` of the first dimension.
    pub(super) fn row(&self, i: usize) -> Result<Array> {
        let shape = self.shape[1..].to_vec();
        let len = shape.iter().product::<usize>() * self.dtype.size();
        let row = &self.bytes()[i * len..][..len];
        Array::from_bytes(shape, self.dtype, |bytes| bytes.copy_from_slice(row))
    }

    fn expect(&self, dtype: DType) -> Result<()> {
        if dtype == self.dtype {
            return Ok(());
        }
        Err(Error::DTypeMismatch { op: "Array", expected: dtype.to_string(), got: self.dtype.to_string() })
    }
}

/// Returns the error for eight-byte elements in memory that is aligned for words only. Allocators do not return such
/// memory for vectors of more than one word.
fn misaligned() -> Error {
    Error::argument("Array", "the memory of the elements is not aligned for their type")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_packed_types_begin_within_words() -> Result<()> {
        let bytes = Array::new((0..6u8).collect(), [2, 3])?;
        assert_eq!(bytes.row(1)?.as_slice::<u8>()?, [3, 4, 5]);
        assert_eq!(bytes.row(1)?.shape(), [3]);
        let tensor = Tensor::from_slice(&[true, false, true], 3, None)?;
        assert_eq!(Array::from_tensor(&tensor)?.row(2)?, Array::scalar(true));
        assert!(bytes.as_slice::<f32>().is_err());
        Ok(())
    }
}
