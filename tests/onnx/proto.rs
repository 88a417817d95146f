//! Models of ONNX by the library's own messages, and conversion of their tensors to plain values, which is written again here.

#[path = "../../src/onnx/proto.rs"]
mod messages;

#[allow(unused_imports, reason = "each test that compiles this file uses its own part of it")]
pub use messages::{
    AttributeProto as Attribute, DimensionProto as Dim, EntryProto as Entry, FunctionProto as Function,
    GraphProto as Graph, ModelProto as Model, NodeProto as Node, OpsetProto as Opset, ShapeProto as Shape, TensorProto,
    TensorTypeProto as TensorKind, TypeProto as Kind, ValueInfoProto as ValueInfo,
};

/// `TensorProto.DataType`, as far as we read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Float,
    Uint8,
    Int8,
    Uint16,
    Int16,
    Int32,
    Int64,
    Bool,
    Float16,
    Double,
    Uint32,
    Uint64,
    Bfloat16,
    /// 8 bits: 4 or 5 of exponent, by the code of the format.
    Float8(i32),
    Uint4,
    Int4,
    /// 4 bits: 2 of exponent, 1 of fraction.
    Float4,
    /// 8 bits of exponent.
    Power,
    Uint2,
    Int2,
}

impl Type {
    /// The type of a code, or the name of one that we cannot read.
    pub fn of(code: i32) -> Result<Type, &'static str> {
        Ok(match code {
            1 => Type::Float,
            2 => Type::Uint8,
            3 => Type::Int8,
            4 => Type::Uint16,
            5 => Type::Int16,
            6 => Type::Int32,
            7 => Type::Int64,
            8 => return Err("string"),
            9 => Type::Bool,
            10 => Type::Float16,
            11 => Type::Double,
            12 => Type::Uint32,
            13 => Type::Uint64,
            14 | 15 => return Err("complex"),
            16 => Type::Bfloat16,
            17..=20 => Type::Float8(code),
            21 => Type::Uint4,
            22 => Type::Int4,
            23 => Type::Float4,
            24 => Type::Power,
            25 => Type::Uint2,
            26 => Type::Int2,
            _ => return Err("unknown"),
        })
    }

    fn size(self) -> usize {
        match self {
            Type::Uint8 | Type::Int8 | Type::Bool | Type::Float8(_) | Type::Uint4 | Type::Int4 => 1,
            Type::Float4 | Type::Power | Type::Uint2 | Type::Int2 => 1,
            Type::Uint16 | Type::Int16 | Type::Float16 | Type::Bfloat16 => 2,
            Type::Float | Type::Int32 | Type::Uint32 => 4,
            Type::Int64 | Type::Double | Type::Uint64 => 8,
        }
    }
}

/// A tensor on the host. Every value of every type that we read is an exact f64, but for integers past 2⁵³.
#[derive(Clone, Debug)]
pub struct Value {
    pub shape: Vec<usize>,
    pub kind: Type,
    pub data: Vec<f64>,
}

impl TensorProto {
    /// The values; the name of the type where we cannot read it.
    pub fn value(&self) -> Result<Value, &'static str> {
        let kind = Type::of(self.data_type)?;
        let shape: Vec<usize> = self.dims.iter().map(|&dim| dim as usize).collect();
        let count = shape.iter().product();
        let data: Vec<f64> = match kind {
            // Two elements of 4 bits share a byte, or four of 2 bits.
            Type::Uint4 | Type::Int4 | Type::Float4 | Type::Uint2 | Type::Int2 => {
                let bytes: Vec<u8> = match self.raw_data.is_empty() {
                    true => self.int32_data.iter().map(|&v| v as u8).collect(),
                    false => self.raw_data.to_vec(),
                };
                let two = matches!(kind, Type::Uint2 | Type::Int2);
                let parts = |&byte: &u8| match two {
                    true => vec![byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6],
                    false => vec![byte & 15, byte >> 4],
                };
                let value = |bits: u8| match kind {
                    Type::Int4 if bits > 7 => f64::from(bits) - 16.0,
                    Type::Int2 if bits > 1 => f64::from(bits) - 4.0,
                    Type::Float4 => {
                        let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(bits & 7)];
                        if bits > 7 { -size } else { size }
                    }
                    _ => f64::from(bits),
                };
                bytes.iter().flat_map(parts).take(count).map(value).collect()
            }
            Type::Float8(_) | Type::Power if self.raw_data.is_empty() => {
                self.int32_data.iter().map(|&v| number(kind, &[v as u8])).collect()
            }
            _ if !self.raw_data.is_empty() => {
                self.raw_data.chunks_exact(kind.size()).map(|bytes| number(kind, bytes)).collect()
            }
            Type::Float => self.float_data.iter().map(|&v| v.into()).collect(),
            Type::Double => self.double_data.clone(),
            Type::Int64 => self.int64_data.iter().map(|&v| v as f64).collect(),
            Type::Uint32 | Type::Uint64 => self.uint64_data.iter().map(|&v| v as f64).collect(),
            // Halves are kept as their bits.
            Type::Float16 | Type::Bfloat16 => {
                self.int32_data.iter().map(|&v| number(kind, &(v as u16).to_le_bytes())).collect()
            }
            _ => self.int32_data.iter().map(|&v| v.into()).collect(),
        };
        assert_eq!(data.len(), shape.iter().product::<usize>(), "elements of a {kind:?} of shape {shape:?}");
        Ok(Value { shape, kind, data })
    }
}

/// One little-endian element.
fn number(kind: Type, bytes: &[u8]) -> f64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match kind {
        Type::Float => f32::from_bits(bits as u32).into(),
        Type::Double => f64::from_bits(bits),
        Type::Bfloat16 => f32::from_bits((bits as u32) << 16).into(),
        Type::Float16 => half(bits as u16),
        Type::Int8 => (bits as i8).into(),
        Type::Int16 => (bits as i16).into(),
        Type::Int32 => (bits as i32).into(),
        Type::Int64 => bits as i64 as f64,
        Type::Float8(code) => float8(code, bits as u8),
        Type::Power if bits == 255 => f64::NAN,
        Type::Power => 2f64.powi(bits as i32 - 127),
        _ => bits as f64,
    }
}

/// IEEE 754 binary16: (−1)ˢ · 2ᵉ⁻¹⁵ · 1.m, or (−1)ˢ · 2⁻¹⁴ · 0.m where e = 0.
fn half(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
    let size = match exponent {
        0 => mantissa * 2f64.powi(-14),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + mantissa) * 2f64.powi(exponent - 15),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// 17: e4m3fn, 18: e4m3fnuz, 19: e5m2, 20: e5m2fnuz.
fn float8(code: i32, byte: u8) -> f64 {
    let (fraction, bias) = [(3, 7), (3, 8), (2, 15), (2, 16)][code as usize - 17];
    let (exponent, m) =
        (i32::from(byte & 127) >> fraction, f64::from(byte & ((1 << fraction) - 1)) / f64::from(1 << fraction));
    let size = match (code, byte & 127) {
        (18 | 20, 0) if byte == 128 => f64::NAN,
        (17, 127) | (19, 125..) => f64::NAN,
        (19, 124) => f64::INFINITY,
        _ if exponent == 0 => m * 2f64.powi(1 - bias),
        _ => (1.0 + m) * 2f64.powi(exponent - bias),
    };
    if byte > 127 { -size } else { size }
}
