//! Objects of NumPy, which training scripts save beside a model: a number such as `numpy.float64(0.9)` becomes a
//! number, and an array is skipped.
//!
//! NumPy pickles a number as `scalar(dtype, bytes)`, and its dtype as `dtype('f8', False, True)` with the byte order as
//! the second item of its state.

use half::f16;

use super::pickle::{Machine, Object, Ref, Step, whole};
use crate::checkpoint::file_dtype::FileDType;

impl Machine<'_> {
    /// Returns the result of `numpy.dtype(name, …)`, or `None` for a type that is not read.
    pub(super) fn numpy_dtype(&self, name: Ref) -> Step<Object> {
        Ok(Object::NumpyType(match self.text_of(name)? {
            "f8" => Some(FileDType::F64),
            "f4" => Some(FileDType::F32),
            "f2" => Some(FileDType::F16),
            "i8" => Some(FileDType::I64),
            "i4" => Some(FileDType::I32),
            "i2" => Some(FileDType::I16),
            "i1" => Some(FileDType::I8),
            "u8" => Some(FileDType::U64),
            "u4" => Some(FileDType::U32),
            "u2" => Some(FileDType::U16),
            "u1" => Some(FileDType::U8),
            "b1" => Some(FileDType::Bool),
            _ => None,
        }))
    }

    /// Sets the byte order of a dtype: big-endian numbers are not read.
    pub(super) fn set_numpy_byte_order(&mut self, dtype: Ref, state: Ref) -> Step<()> {
        let Object::Tuple(parts) = &self.objects[state] else {
            return Err("its pickle has a NumPy type without a state".into());
        };
        let order = parts.get(1).ok_or("its pickle has a NumPy type without a byte order")?;
        if self.text_of(*order)? == ">" {
            self.objects[dtype] = Object::NumpyType(None);
        }
        Ok(())
    }

    /// Returns the result of `numpy.core.multiarray.scalar(dtype, bytes)`.
    pub(super) fn numpy_scalar(&self, dtype: Ref, data: Ref) -> Step<Object> {
        let (file_dtype, bytes) = match (&self.objects[dtype], &self.objects[data]) {
            (Object::NumpyType(Some(file_dtype)), Object::Bytes(bytes)) if bytes.len() == file_dtype.size() => {
                (*file_dtype, bytes)
            }
            (Object::NumpyType(None), _) => return Ok(Object::Unsupported("a NumPy value of a type that is not read")),
            _ => return Err("its pickle has a NumPy number without a type or of another size".into()),
        };
        let low = |count: usize| bytes.iter().take(count).rev().fold(0u64, |all, &byte| all << 8 | u64::from(byte));
        Ok(match file_dtype {
            FileDType::F64 => Object::Float(f64::from_bits(low(8))),
            FileDType::F32 => Object::Float(f32::from_bits(low(4) as u32).into()),
            FileDType::F16 => Object::Float(f16::from_bits(low(2) as u16).into()),
            FileDType::Bool => Object::Bool(low(1) != 0),
            FileDType::U64 | FileDType::U32 | FileDType::U16 | FileDType::U8 => whole(&[bytes, &[0][..]].concat())?,
            _ => whole(bytes)?,
        })
    }
}
