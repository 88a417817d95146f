//! NumPy's objects, which training scripts keep beside a model: a number such as `numpy.float64(0.9)` becomes a number, and
//! an array is skipped.
//!
//! NumPy pickles a number as `scalar(dtype, bytes)`, and its dtype as `dtype('f8', False, True)` with the byte order in the
//! second place of its state.

use half::f16;

use super::pickle::{Machine, Object, Ref, Step, whole};
use crate::checkpoint::wire::Wire;

impl Machine<'_> {
    /// The result of `numpy.dtype(name, …)`; of a type that is not read, `None`.
    pub(super) fn numpy_dtype(&self, name: Ref) -> Step<Object> {
        Ok(Object::NumpyType(match self.text_of(name)? {
            "f8" => Some(Wire::F64),
            "f4" => Some(Wire::F32),
            "f2" => Some(Wire::F16),
            "i8" => Some(Wire::I64),
            "i4" => Some(Wire::I32),
            "i2" => Some(Wire::I16),
            "i1" => Some(Wire::I8),
            "u8" => Some(Wire::U64),
            "u4" => Some(Wire::U32),
            "u2" => Some(Wire::U16),
            "u1" => Some(Wire::U8),
            "b1" => Some(Wire::Bool),
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

    /// The result of `numpy.core.multiarray.scalar(dtype, bytes)`.
    pub(super) fn numpy_scalar(&self, dtype: Ref, data: Ref) -> Step<Object> {
        let (wire, bytes) = match (&self.objects[dtype], &self.objects[data]) {
            (Object::NumpyType(Some(wire)), Object::Bytes(bytes)) if bytes.len() == wire.size() => (*wire, bytes),
            (Object::NumpyType(None), _) => return Ok(Object::Unsupported("a NumPy value of a type that is not read")),
            _ => return Err("its pickle has a NumPy number without a type or of another size".into()),
        };
        let low = |count: usize| bytes.iter().take(count).rev().fold(0u64, |all, &byte| all << 8 | u64::from(byte));
        Ok(match wire {
            Wire::F64 => Object::Float(f64::from_bits(low(8))),
            Wire::F32 => Object::Float(f32::from_bits(low(4) as u32).into()),
            Wire::F16 => Object::Float(f16::from_bits(low(2) as u16).into()),
            Wire::Bool => Object::Bool(low(1) != 0),
            Wire::U64 | Wire::U32 | Wire::U16 | Wire::U8 => whole(&[bytes, &[0][..]].concat())?,
            _ => whole(bytes)?,
        })
    }
}
