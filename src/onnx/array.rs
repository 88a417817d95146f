//! Arrays on the host: constants of a file, and the shape arithmetic of a graph, which has 64-bit integers.

use half::{bf16, f16};

use super::element_type::ElementType;
use super::fault;
use super::minifloat::{self, Conversion};
use super::proto::TensorProto;
use crate::device::Device;
use crate::device::cpu::with_room;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::checked_elem_count;
use crate::tensor::Tensor;

/// The elements of an [`Array`]: exact for every type but integers of 2⁶³ and more, which are refused. Where one is computed, it is
/// negative until [`checked`](Array::checked) finds it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Elements {
    Ints(Vec<i64>),
    Floats(Vec<f64>),
}

/// A tensor on the host, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Array {
    pub shape: Vec<usize>,
    pub kind: ElementType,
    pub elements: Elements,
}

impl Array {
    /// Integers of one dimension, as shapes and axes are.
    pub fn ints(values: Vec<i64>) -> Array {
        Array { shape: vec![values.len()], kind: ElementType::Int64, elements: Elements::Ints(values) }
    }

    pub fn scalar(kind: ElementType, value: i64) -> Array {
        Array { shape: Vec::new(), kind, elements: Elements::Ints(vec![value]) }
    }

    pub fn bool(value: bool) -> Array {
        Array::scalar(ElementType::Bool, value.into())
    }

    pub fn count(&self) -> usize {
        match &self.elements {
            Elements::Ints(values) => values.len(),
            Elements::Floats(values) => values.len(),
        }
    }

    /// The elements as integers; floats are truncated.
    pub fn to_ints(&self) -> Vec<i64> {
        match &self.elements {
            Elements::Ints(values) => values.clone(),
            Elements::Floats(values) => values.iter().map(|&value| value as i64).collect(),
        }
    }

    pub fn to_floats(&self) -> Vec<f64> {
        match &self.elements {
            Elements::Ints(values) => values.iter().map(|&value| value as f64).collect(),
            Elements::Floats(values) => values.clone(),
        }
    }

    /// Returns the same elements in another shape of as many.
    pub fn reshaped(&self, shape: Vec<usize>) -> Array {
        Array { shape, ..self.clone() }
    }

    /// Returns the elements at these positions.
    pub fn picked(&self, shape: Vec<usize>, positions: impl Iterator<Item = usize>) -> Array {
        let elements = match &self.elements {
            Elements::Ints(values) => Elements::Ints(positions.map(|i| values[i]).collect()),
            Elements::Floats(values) => Elements::Floats(positions.map(|i| values[i]).collect()),
        };
        Array { shape, kind: self.kind, elements }
    }

    /// Returns this array, unless its type has no negative numbers and it does.
    pub fn checked(self) -> Result<Array> {
        match &self.elements {
            Elements::Ints(values) if self.kind == ElementType::Uint64 && values.iter().any(|&value| value < 0) => {
                Err(fault("a number of uint64 beyond 2⁶³ − 1 is not supported"))
            }
            _ => Ok(self),
        }
    }

    /// Whether tensors of words hold these elements.
    pub fn fits_words(&self) -> bool {
        match (&self.elements, self.kind) {
            (Elements::Ints(values), ElementType::Int64) => values.iter().all(|&value| i32::try_from(value).is_ok()),
            (Elements::Ints(values), ElementType::Uint64) => values.iter().all(|&value| u32::try_from(value).is_ok()),
            (_, kind) => !kind.is_long(),
        }
    }

    /// Returns a copy on `cpu`, in a type of 64 bits.
    pub fn exact(&self) -> Result<Tensor> {
        let shape = self.shape.as_slice();
        match &self.elements {
            Elements::Ints(values) => Tensor::from_slice(values, shape, None),
            Elements::Floats(values) => Tensor::from_f64(values, shape, None),
        }
    }

    /// Returns the elements converted: floats are truncated to integers and rounded to narrower floats, integers wrap, and floats
    /// that are too large for 8 bits become the largest. Halves are rounded from f32, as ONNX Runtime's are.
    pub fn cast(&self, kind: ElementType) -> Array {
        self.converted(kind, Conversion::default())
    }

    /// Like [`cast`](Array::cast), with other rules for floats of 8 and fewer bits.
    pub fn converted(&self, kind: ElementType, conversion: Conversion) -> Array {
        let rounded = |value: f64, kind| rounded(value, kind, conversion);
        let elements = match (&self.elements, kind) {
            (elements, kind) if kind.is_float() => {
                let floats = match elements {
                    Elements::Ints(values) => {
                        values.iter().map(|&value| rounded(float_of(value, kind), kind)).collect()
                    }
                    Elements::Floats(values) => values.iter().map(|&value| rounded(value, kind)).collect(),
                };
                Elements::Floats(floats)
            }
            (Elements::Ints(values), ElementType::Bool) => {
                Elements::Ints(values.iter().map(|&value| (value != 0).into()).collect())
            }
            (Elements::Floats(values), ElementType::Bool) => {
                Elements::Ints(values.iter().map(|&value| (value != 0.0).into()).collect())
            }
            (Elements::Ints(values), kind) => {
                Elements::Ints(values.iter().map(|&value| wrapped(value, kind)).collect())
            }
            (Elements::Floats(values), kind) => {
                Elements::Ints(values.iter().map(|&value| wrapped(whole(value), kind)).collect())
            }
        };
        Array { shape: self.shape.clone(), kind, elements }
    }

    /// Returns the elements with the same bits, in a type of as many bits.
    pub fn with_bits_as(&self, kind: ElementType) -> Result<Array> {
        if kind.bits() != self.kind.bits() {
            return Err(fault(format!("the bits of {} as {kind}, which has another number of bits", self.kind)));
        }
        let bits = match &self.elements {
            Elements::Ints(values) => values.iter().map(|&value| value as u64).collect(),
            Elements::Floats(values) => {
                values.iter().map(|&value| float_bits(value, self.kind)).collect::<Result<Vec<_>>>()?
            }
        };
        let elements = match kind.is_float() {
            true => Elements::Floats(bits.into_iter().map(|bits| float(kind, bits)).collect()),
            false if kind == ElementType::Uint64 => {
                Elements::Ints(bits.into_iter().map(unsigned).collect::<Result<_>>()?)
            }
            false => Elements::Ints(bits.into_iter().map(|bits| wrapped(bits as i64, kind)).collect()),
        };
        Ok(Array { shape: self.shape.clone(), kind, elements })
    }

    /// Returns a copy on a device.
    ///
    /// # Errors
    ///
    /// If an integer does not fit 32 bits, and for floats of 64.
    pub fn upload(&self, device: &Device) -> Result<Tensor> {
        let shape = self.shape.as_slice();
        let dtype = self.kind.word();
        let tensor = match &self.elements {
            Elements::Floats(_) if self.kind == ElementType::Double => {
                return Err(fault("double is not supported by this operator: convert to float before it"));
            }
            Elements::Floats(values) => {
                let mut words = with_room(values.len())?;
                words.extend(values.iter().map(|&value| value as f32));
                Tensor::from_vec(words, shape, device)?
            }
            Elements::Ints(values) => match dtype {
                DType::I32 => {
                    let mut words = with_room(values.len())?;
                    for &value in values {
                        words.push(i32::try_from(value).map_err(|_| beyond(value, self.kind, dtype))?);
                    }
                    Tensor::from_vec(words, shape, device)?
                }
                _ => {
                    let mut words = with_room(values.len())?;
                    for &value in values {
                        let word = u32::try_from(value);
                        words.push(word.map_err(|_| beyond(value, self.kind, dtype))?);
                    }
                    Tensor::from_vec(words, shape, device)?
                }
            },
        };
        tensor.to_dtype(dtype)
    }

    /// Reads a tensor back.
    pub fn download(tensor: &Tensor, kind: ElementType) -> Result<Array> {
        let elements = match tensor.dtype() {
            dtype if dtype.is_float() || kind == ElementType::Double => Elements::Floats(tensor.to_vec_f64()?),
            DType::I64 => Elements::Ints(tensor.to_vec::<i64>()?),
            DType::I32 => Elements::Ints(tensor.to_vec::<i32>()?.into_iter().map(i64::from).collect()),
            _ => Elements::Ints(tensor.to_dtype(DType::U32)?.to_vec::<u32>()?.into_iter().map(i64::from).collect()),
        };
        Ok(Array { shape: tensor.shape().to_vec(), kind, elements })
    }

    /// Decodes a tensor of a file, whose elements lie in the message itself.
    pub fn decode(proto: &TensorProto) -> Result<Array> {
        let kind = ElementType::of(proto.data_type)?;
        let (shape, count) = shape_of(proto)?;
        let elements = match kind {
            _ if !proto.raw_data.is_empty() => raw(kind, &proto.raw_data, count)?,
            ElementType::Float => Elements::Floats(proto.float_data.iter().map(|&v| v.into()).collect()),
            ElementType::Double => Elements::Floats(proto.double_data.clone()),
            ElementType::Int64 => Elements::Ints(proto.int64_data.clone()),
            ElementType::Uint32 | ElementType::Uint64 => {
                Elements::Ints(proto.uint64_data.iter().map(|&v| unsigned(v)).collect::<Result<_>>()?)
            }
            ElementType::Float16 => {
                Elements::Floats(proto.int32_data.iter().map(|&v| f16::from_bits(v as u16).to_f64()).collect())
            }
            ElementType::Bfloat16 => {
                Elements::Floats(proto.int32_data.iter().map(|&v| bf16::from_bits(v as u16).to_f64()).collect())
            }
            kind if kind.bits() <= 4 || kind.is_minifloat() => {
                let bytes: Vec<u8> = proto.int32_data.iter().map(|&v| v as u8).collect();
                raw(kind, &bytes, count)?
            }
            _ => Elements::Ints(proto.int32_data.iter().map(|&v| v.into()).collect()),
        };
        let array = Array { shape, kind, elements };
        if array.count() != count {
            return Err(fault(format!("a tensor of shape {:?} has {} elements", array.shape, array.count())));
        }
        Ok(array)
    }
}

/// The sizes of a tensor of a file, and how many elements these make.
pub(super) fn shape_of(proto: &TensorProto) -> Result<(Vec<usize>, usize)> {
    let size = |&dim: &i64| usize::try_from(dim).map_err(|_| fault(format!("a tensor has the dimension {dim}")));
    let shape: Vec<usize> = proto.dims.iter().map(size).collect::<Result<_>>()?;
    let count = checked_elem_count("onnx", &shape)?;
    Ok((shape, count))
}

/// Decodes `count` little-endian elements; elements of 4 and of 2 bits share a byte, the first in its lowest bits.
fn raw(kind: ElementType, bytes: &[u8], count: usize) -> Result<Elements> {
    let expected = count.checked_mul(kind.bits()).map(|bits| bits.div_ceil(8));
    if expected != Some(bytes.len()) {
        return Err(fault(format!("{count} elements of {kind} do not lie in {} bytes", bytes.len())));
    }
    if kind.bits() < 8 {
        let (bits, each) = (kind.bits(), 8 / kind.bits());
        let part = |i: usize| bytes[i / each] >> (bits * (i % each)) & ((1 << bits) - 1);
        return Ok(match kind.is_minifloat() {
            true => Elements::Floats((0..count).map(|i| minifloat::decoded(kind, part(i))).collect()),
            false => Elements::Ints((0..count).map(|i| wrapped(part(i).into(), kind)).collect()),
        });
    }
    let words = bytes.chunks_exact(kind.bits() / 8).map(|chunk| {
        let mut wide = [0; 8];
        wide[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(wide)
    });
    Ok(match kind {
        kind if kind.is_float() => Elements::Floats(words.map(|bits| float(kind, bits)).collect()),
        ElementType::Uint64 => Elements::Ints(words.map(unsigned).collect::<Result<_>>()?),
        _ => Elements::Ints(words.map(|bits| wrapped(bits as i64, kind)).collect()),
    })
}

/// The float of these bits.
fn float(kind: ElementType, bits: u64) -> f64 {
    match kind {
        ElementType::Float => f32::from_bits(bits as u32).into(),
        ElementType::Float16 => f16::from_bits(bits as u16).to_f64(),
        ElementType::Bfloat16 => bf16::from_bits(bits as u16).to_f64(),
        kind if kind.is_minifloat() => minifloat::decoded(kind, bits as u8),
        _ => f64::from_bits(bits),
    }
}

/// The bits of a float that has a value of the type.
fn float_bits(value: f64, kind: ElementType) -> Result<u64> {
    Ok(match kind {
        ElementType::Float => (value as f32).to_bits().into(),
        ElementType::Float16 => f16::from_f64(value).to_bits().into(),
        ElementType::Bfloat16 => bf16::from_f64(value).to_bits().into(),
        kind if kind.is_minifloat() => return Err(fault(format!("the bits of {kind} are not supported"))),
        _ => value.to_bits(),
    })
}

fn unsigned(value: u64) -> Result<i64> {
    i64::try_from(value).map_err(|_| fault(format!("{value} is beyond the integers of 63 bits")))
}

/// The value in a narrower float type.
fn rounded(value: f64, kind: ElementType, conversion: Conversion) -> f64 {
    match kind {
        ElementType::Float => (value as f32).into(),
        ElementType::Float16 => f16::from_f32(value as f32).to_f64(),
        ElementType::Bfloat16 => bf16::from_f32(value as f32).to_f64(),
        _ => minifloat::rounded(kind, value, conversion),
    }
}

/// An integer as the float that is rounded to a narrower type: of f64 only for that, so that none is rounded twice.
fn float_of(value: i64, kind: ElementType) -> f64 {
    if kind == ElementType::Double { value as f64 } else { (value as f32).into() }
}

/// A float as an integer; −2⁶³ if it is too large or not a number, as on x86 processors.
fn whole(value: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&value) { value as i64 } else { i64::MIN }
}

/// The value in a narrower integer type, without its upper bits.
fn wrapped(value: i64, kind: ElementType) -> i64 {
    match kind {
        ElementType::Int2 => value << 62 >> 62,
        ElementType::Uint2 => value & 3,
        ElementType::Int4 => value << 60 >> 60,
        ElementType::Uint4 => value & 15,
        ElementType::Int8 => (value as i8).into(),
        ElementType::Uint8 => (value as u8).into(),
        ElementType::Int16 => (value as i16).into(),
        ElementType::Uint16 => (value as u16).into(),
        ElementType::Int32 => (value as i32).into(),
        ElementType::Uint32 => (value as u32).into(),
        _ => value,
    }
}

/// The error of an operator that computes in 32 bits.
fn beyond(value: i64, kind: ElementType, dtype: DType) -> Error {
    fault(format!(
        "{value} of {kind} is not supported by this operator: it does not fit {dtype}, in which it is computed"
    ))
}
