//! ONNX's element types.

use std::fmt;

use super::fault;
use crate::dtype::DType;
use crate::error::Result;

/// The type of the elements of a tensor in an ONNX file.
///
/// [`dtype`](ElementType::dtype) is the type of the tensors that this crate computes with instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// 32-bit float.
    Float,
    /// 8-bit unsigned integer.
    Uint8,
    /// 8-bit signed integer.
    Int8,
    /// 16-bit unsigned integer.
    Uint16,
    /// 16-bit signed integer.
    Int16,
    /// 32-bit signed integer.
    Int32,
    /// 64-bit signed integer: sizes and indices.
    Int64,
    /// `true` or `false`.
    Bool,
    /// 16-bit float, IEEE 754 binary16.
    Float16,
    /// 64-bit float.
    Double,
    /// 32-bit unsigned integer.
    Uint32,
    /// 64-bit unsigned integer.
    Uint64,
    /// The upper half of a 32-bit float.
    Bfloat16,
    /// 4-bit unsigned integer.
    Uint4,
    /// 4-bit signed integer.
    Int4,
    /// 8-bit float: 4 bits of exponent, 3 of fraction, no infinity.
    Float8E4m3fn,
    /// 8-bit float: 4 bits of exponent, 3 of fraction, no infinity and no negative zero.
    Float8E4m3fnuz,
    /// 8-bit float: 5 bits of exponent, 2 of fraction.
    Float8E5m2,
    /// 8-bit float: 5 bits of exponent, 2 of fraction, no infinity and no negative zero.
    Float8E5m2fnuz,
    /// 4-bit float: 2 bits of exponent, 1 of fraction, no infinity and no NaN.
    Float4E2m1,
    /// 8 bits of exponent: powers of 2, the scales of microscaling formats.
    Float8E8m0,
    /// 2-bit unsigned integer.
    Uint2,
    /// 2-bit signed integer.
    Int2,
}

/// The codes of `TensorProto.DataType`.
const CODES: [(i32, ElementType); 23] = [
    (1, ElementType::Float),
    (2, ElementType::Uint8),
    (3, ElementType::Int8),
    (4, ElementType::Uint16),
    (5, ElementType::Int16),
    (6, ElementType::Int32),
    (7, ElementType::Int64),
    (9, ElementType::Bool),
    (10, ElementType::Float16),
    (11, ElementType::Double),
    (12, ElementType::Uint32),
    (13, ElementType::Uint64),
    (16, ElementType::Bfloat16),
    (17, ElementType::Float8E4m3fn),
    (18, ElementType::Float8E4m3fnuz),
    (19, ElementType::Float8E5m2),
    (20, ElementType::Float8E5m2fnuz),
    (21, ElementType::Uint4),
    (22, ElementType::Int4),
    (23, ElementType::Float4E2m1),
    (24, ElementType::Float8E8m0),
    (25, ElementType::Uint2),
    (26, ElementType::Int2),
];

impl ElementType {
    /// The type of a code of `TensorProto.DataType`.
    pub(super) fn of(code: i32) -> Result<ElementType> {
        if let Some((_, kind)) = CODES.iter().find(|(known, _)| *known == code) {
            return Ok(*kind);
        }
        Err(fault(match code {
            8 => "elements of type string are not supported".into(),
            14 | 15 => "elements of complex types are not supported".into(),
            code => format!("element type {code} is unknown"),
        }))
    }

    /// The code of a type in `TensorProto.DataType`.
    pub(super) fn code(self) -> i32 {
        CODES.iter().find(|(_, kind)| *kind == self).map_or(0, |(code, _)| *code) // every type has one
    }

    /// Returns the type of the tensors that hold values of this type: `f32` for floats of 8 bits and fewer, `i64`
    /// for integers of 64 bits, and `i32` for other signed integers and for unsigned integers of 2, 4 and 16 bits.
    #[must_use]
    pub fn dtype(self) -> DType {
        match self {
            ElementType::Float => DType::F32,
            kind if kind.is_minifloat() => DType::F32,
            ElementType::Double => DType::F64,
            ElementType::Float16 => DType::F16,
            ElementType::Bfloat16 => DType::BF16,
            ElementType::Uint32 => DType::U32,
            ElementType::Int64 | ElementType::Uint64 => DType::I64,
            ElementType::Uint8 => DType::U8,
            ElementType::Bool => DType::Bool,
            _ => DType::I32,
        }
    }

    /// The type of tensors on a device: the type of [`dtype`](ElementType::dtype), except for 64 bits, which no
    /// adapter computes with.
    pub(super) fn word(self) -> DType {
        match self {
            ElementType::Double => DType::F32,
            ElementType::Int64 => DType::I32,
            ElementType::Uint64 => DType::U32,
            kind => kind.dtype(),
        }
    }

    pub(super) fn is_long(self) -> bool {
        self.dtype().is_long()
    }

    /// The type of ONNX that a tensor of this crate has by itself.
    pub(super) fn natural(dtype: DType) -> ElementType {
        match dtype {
            DType::F32 => ElementType::Float,
            DType::F16 => ElementType::Float16,
            DType::BF16 => ElementType::Bfloat16,
            DType::I32 => ElementType::Int32,
            DType::U32 => ElementType::Uint32,
            DType::U8 => ElementType::Uint8,
            DType::Bool => ElementType::Bool,
            DType::I64 => ElementType::Int64,
            DType::F64 => ElementType::Double,
        }
    }

    pub(super) fn is_float(self) -> bool {
        self.dtype().is_float()
    }

    /// Whether it is a float of 8 bits or fewer.
    pub(super) fn is_minifloat(self) -> bool {
        use ElementType::{Float4E2m1, Float8E4m3fn, Float8E4m3fnuz, Float8E5m2, Float8E5m2fnuz, Float8E8m0};
        matches!(self, Float8E4m3fn | Float8E4m3fnuz | Float8E5m2 | Float8E5m2fnuz | Float4E2m1 | Float8E8m0)
    }

    /// The size of an element in a file in bits.
    pub(super) fn bits(self) -> usize {
        match self {
            ElementType::Uint2 | ElementType::Int2 => 2,
            ElementType::Uint4 | ElementType::Int4 | ElementType::Float4E2m1 => 4,
            ElementType::Uint8 | ElementType::Int8 | ElementType::Bool => 8,
            kind if kind.is_minifloat() => 8,
            ElementType::Uint16 | ElementType::Int16 | ElementType::Float16 | ElementType::Bfloat16 => 16,
            ElementType::Float | ElementType::Int32 | ElementType::Uint32 => 32,
            _ => 64,
        }
    }

    /// The least and the greatest integer of this type; for floats, the limits of integers of 64 bits.
    pub(super) fn range(self) -> (i64, i64) {
        match self {
            ElementType::Bool => (0, 1),
            ElementType::Uint2 => (0, 3),
            ElementType::Int2 => (-2, 1),
            ElementType::Uint4 => (0, 15),
            ElementType::Int4 => (-8, 7),
            ElementType::Uint8 => (0, u8::MAX.into()),
            ElementType::Int8 => (i8::MIN.into(), i8::MAX.into()),
            ElementType::Uint16 => (0, u16::MAX.into()),
            ElementType::Int16 => (i16::MIN.into(), i16::MAX.into()),
            ElementType::Int32 => (i32::MIN.into(), i32::MAX.into()),
            ElementType::Uint32 => (0, u32::MAX.into()),
            ElementType::Uint64 => (0, i64::MAX),
            _ => (i64::MIN, i64::MAX),
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ElementType::Float => "float",
            ElementType::Uint8 => "uint8",
            ElementType::Int8 => "int8",
            ElementType::Uint16 => "uint16",
            ElementType::Int16 => "int16",
            ElementType::Int32 => "int32",
            ElementType::Int64 => "int64",
            ElementType::Bool => "bool",
            ElementType::Float16 => "float16",
            ElementType::Double => "double",
            ElementType::Uint32 => "uint32",
            ElementType::Uint64 => "uint64",
            ElementType::Bfloat16 => "bfloat16",
            ElementType::Uint4 => "uint4",
            ElementType::Int4 => "int4",
            ElementType::Float8E4m3fn => "float8e4m3fn",
            ElementType::Float8E4m3fnuz => "float8e4m3fnuz",
            ElementType::Float8E5m2 => "float8e5m2",
            ElementType::Float8E5m2fnuz => "float8e5m2fnuz",
            ElementType::Float4E2m1 => "float4e2m1",
            ElementType::Float8E8m0 => "float8e8m0",
            ElementType::Uint2 => "uint2",
            ElementType::Int2 => "int2",
        })
    }
}
