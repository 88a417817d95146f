//! Elements in files: little-endian, with more types than tensors have.

use half::{bf16, f16};

use super::Fault;
use crate::device::Device;
use crate::device::cpu::with_room;
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::ops::KEEP_LONGS;
use crate::tensor::{Tensor, from_words};

/// An element type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FileDType {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    /// Two halves. Complex types cannot be read; the size is needed to find the storages after it.
    Complex32,
    Complex64,
    Complex128,
    /// A type of 8-bit or 4-bit floats, or of quantised numbers: its name and its size in bytes. None of these can be
    /// read.
    Other(&'static str, usize),
}

impl FileDType {
    /// The number of bytes of one element.
    pub fn size(self) -> usize {
        match self {
            FileDType::Complex128 => 16,
            FileDType::F64 | FileDType::I64 | FileDType::U64 | FileDType::Complex64 => 8,
            FileDType::F32 | FileDType::I32 | FileDType::U32 | FileDType::Complex32 => 4,
            FileDType::F16 | FileDType::BF16 | FileDType::I16 | FileDType::U16 => 2,
            FileDType::I8 | FileDType::U8 | FileDType::Bool => 1,
            FileDType::Other(_, size) => size,
        }
    }

    /// Returns the tensor of these elements on `cpu`, in the nearest element type of this crate. Within
    /// [`narrow_64_bits`](crate::narrow_64_bits), `f64` is rounded to `f32`, and 64-bit integers become 32-bit
    /// integers. A value that does not fit is [`Fault::Unsupported`].
    ///
    /// The number of `elements` must fit the shape.
    pub fn tensor<'a>(
        self,
        shape: &[usize],
        elements: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    ) -> Result<Tensor, Fault> {
        let keeps = KEEP_LONGS.get();
        match self {
            FileDType::F64 if keeps => {
                let values = numbers(elements, |b| Ok(f64::from_le_bytes(b)))?;
                Ok(Tensor::from_f64(&values, shape, None)?)
            }
            FileDType::I64 if keeps => collect(shape, elements, |b| Ok(i64::from_le_bytes(b))),
            FileDType::F64 => collect(shape, elements, |b| rounded(f64::from_le_bytes(b))),
            FileDType::F32 => collect(shape, elements, |b| Ok(f32::from_le_bytes(b))),
            FileDType::F16 => collect(shape, elements, |b| Ok(f16::from_le_bytes(b))),
            FileDType::BF16 => collect(shape, elements, |b| Ok(bf16::from_le_bytes(b))),
            FileDType::I64 => match collect(shape, elements.clone(), |b| narrow::<i64, i32>(i64::from_le_bytes(b))) {
                Err(Fault::Unsupported(_)) => collect(shape, elements, |b| narrow::<i64, u32>(i64::from_le_bytes(b))),
                other => other,
            },
            FileDType::I32 => collect(shape, elements, |b| Ok(i32::from_le_bytes(b))),
            FileDType::I16 => collect(shape, elements, |b| Ok(i32::from(i16::from_le_bytes(b)))),
            FileDType::I8 => collect(shape, elements, |b| Ok(i32::from(i8::from_le_bytes(b)))),
            FileDType::U64 => match collect(shape, elements.clone(), |b| narrow::<u64, u32>(u64::from_le_bytes(b))) {
                Err(Fault::Unsupported(_)) if keeps => collect(shape, elements, |b| {
                    let value = u64::from_le_bytes(b);
                    let beyond = |_| Fault::Unsupported(format!("the integer {value} does not fit i64"));
                    i64::try_from(value).map_err(beyond)
                }),
                other => other,
            },
            FileDType::U32 => collect(shape, elements, |b| Ok(u32::from_le_bytes(b))),
            FileDType::U16 => collect(shape, elements, |b| Ok(u32::from(u16::from_le_bytes(b)))),
            FileDType::U8 => collect(shape, elements, |[b]: [u8; 1]| Ok(b)),
            FileDType::Bool => collect(shape, elements, |[b]: [u8; 1]| match b {
                0 | 1 => Ok(b == 1),
                _ => Err(format!("the byte {b} is neither true nor false").into()),
            }),
            FileDType::Complex32 | FileDType::Complex64 | FileDType::Complex128 => {
                let bits = 8 * self.size();
                Err(Fault::Unsupported(format!("complex numbers of {bits} bits, for which there is no element type")))
            }
            FileDType::Other(name, _) => {
                Err(Fault::Unsupported(format!("numbers of {name}, for which there is no element type")))
            }
        }
    }
}

impl FileDType {
    /// Changes the sign of each of these elements.
    pub fn negate(self, elements: &mut [u8]) -> Result<(), Fault> {
        match self {
            FileDType::F64 | FileDType::F32 | FileDType::F16 | FileDType::BF16 => {
                elements.chunks_exact_mut(self.size()).for_each(|element| element[element.len() - 1] ^= 0x80);
            }
            FileDType::I64 | FileDType::I32 | FileDType::I16 | FileDType::I8 => {
                for element in elements.chunks_exact_mut(self.size()) {
                    // The complement plus 1.
                    let mut carry = true;
                    for byte in element {
                        (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
                    }
                }
            }
            _ => return Err(Fault::Unsupported("a view with a negative sign of elements without one".into())),
        }
        Ok(())
    }
}

fn narrow<S: Copy + std::fmt::Display, T: TryFrom<S>>(value: S) -> Result<T, Fault> {
    T::try_from(value).map_err(|_| Fault::Unsupported(format!("the integer {value} does not fit 32 bits")))
}

fn rounded(value: f64) -> Result<f32, Fault> {
    match value as f32 {
        rounded if rounded.is_infinite() && value.is_finite() => {
            Err(Fault::Unsupported(format!("the value {value:e} does not fit f32")))
        }
        rounded => Ok(rounded),
    }
}

/// Makes a tensor of elements of `N` bytes.
fn collect<'a, const N: usize, T: Element>(
    shape: &[usize],
    elements: impl ExactSizeIterator<Item = &'a [u8]>,
    read: impl Fn([u8; N]) -> Result<T, Fault>,
) -> Result<Tensor, Fault> {
    Ok(from_words(T::pack_vec(numbers(elements, read)?, with_room)?, shape, T::DTYPE, Device::cpu())?)
}

/// Reads elements of `N` bytes.
fn numbers<'a, const N: usize, T>(
    elements: impl ExactSizeIterator<Item = &'a [u8]>,
    read: impl Fn([u8; N]) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let mut values = with_room(elements.len())?;
    for element in elements {
        let bytes = <[u8; N]>::try_from(element).map_err(|_| Fault::from("an element is cut off"));
        values.push(bytes.and_then(&read)?);
    }
    Ok(values)
}

/// Calls `f` with the elements of a tensor on `cpu` in the format of files. (All hosts of this crate are
/// little-endian.)
pub(super) fn with_bytes<R>(tensor: &Tensor, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
    let len = tensor.elem_count() * tensor.dtype().size();
    tensor.as_words()?.with_slice(|words: &[u32]| f(&bytemuck::cast_slice(words)[..len]))
}

/// The name of an element type in safetensors files.
pub(super) fn safetensors_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I32 => "I32",
        DType::U32 => "U32",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
        DType::I64 => "I64",
        DType::F64 => "F64",
    }
}
