//! One node with its inputs on a device: the interface for the mappings.

use anygpu::{DType, Device, Tensor};

use super::proto::{Attribute, Node, Type, Value};

/// Why a node did not give its outputs.
#[derive(Debug)]
pub enum Stop {
    /// It asks for something that we do not have; the reason is in the committed list.
    Skip(String),
    /// We have it, and it did not work.
    Failed(String),
}

impl From<anygpu::Error> for Stop {
    fn from(error: anygpu::Error) -> Stop {
        Stop::Failed(error.to_string())
    }
}

pub type Outcome<T = Vec<Tensor>> = Result<T, Stop>;

pub fn skip<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Stop::Skip(reason.into()))
}

/// A node, its opset, its inputs (`None` where left out) and how many outputs it has.
pub struct Call<'a> {
    pub node: &'a Node,
    pub opset: i64,
    pub inputs: Vec<Option<Value>>,
    pub device: &'a Device,
}

/// The element type of ours that holds an ONNX type's values; for types that are not ours, a wider one that holds them.
pub fn dtype_of(kind: Type) -> DType {
    match kind {
        Type::Float | Type::Double => DType::F32,
        Type::Float16 => DType::F16,
        Type::Bfloat16 => DType::BF16,
        Type::Int8 | Type::Int16 | Type::Int32 | Type::Int64 => DType::I32,
        Type::Uint16 | Type::Uint32 | Type::Uint64 => DType::U32,
        Type::Uint8 => DType::U8,
        Type::Bool => DType::Bool,
    }
}

/// Whether we have the type itself.
pub fn is_ours(kind: Type) -> bool {
    use Type::*;
    matches!(kind, Float | Float16 | Bfloat16 | Int32 | Uint32 | Uint8 | Bool)
}

impl Call<'_> {
    pub fn op(&self) -> &str {
        &self.node.op_type
    }

    fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.node.attribute.iter().find(|attribute| attribute.name == name)
    }

    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, |attribute| attribute.i)
    }

    pub fn float(&self, name: &str, default: f32) -> f32 {
        self.attribute(name).map_or(default, |attribute| attribute.f)
    }

    pub fn text(&self, name: &str, default: &str) -> String {
        self.attribute(name).map_or(default.into(), |attribute| String::from_utf8_lossy(&attribute.s).into_owned())
    }

    pub fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.attribute(name).map(|attribute| attribute.ints.clone())
    }

    pub fn has(&self, name: &str) -> bool {
        self.attribute(name).is_some()
    }

    /// The value of a tensor attribute.
    pub fn tensor(&self, name: &str) -> Option<Value> {
        self.attribute(name)?.t.as_ref()?.value().ok()
    }

    /// The values of input `i`, or `None` where it is left out.
    pub fn value(&self, i: usize) -> Option<&Value> {
        self.inputs.get(i)?.as_ref()
    }

    /// The values of input `i` as integers: axes, shapes, sizes.
    pub fn whole(&self, i: usize) -> Option<Vec<i64>> {
        Some(self.value(i)?.data.iter().map(|&v| v as i64).collect())
    }

    /// What later opsets give as an input and earlier ones as an attribute.
    pub fn list(&self, name: &str, i: usize) -> Option<Vec<i64>> {
        self.whole(i).or_else(|| self.ints(name))
    }

    /// Input `i` as a tensor on the device.
    pub fn x(&self, i: usize) -> Outcome<Tensor> {
        match self.value(i) {
            Some(value) => upload(value, self.device),
            None => Err(Stop::Failed(format!("{} lacks input {i}", self.op()))),
        }
    }

    /// Input `i`, or `None` where it is left out.
    pub fn maybe(&self, i: usize) -> Outcome<Option<Tensor>> {
        self.value(i).map(|value| upload(value, self.device)).transpose()
    }

    /// All inputs that are given.
    pub fn all(&self) -> Outcome {
        self.inputs.iter().flatten().map(|value| upload(value, self.device)).collect()
    }

    /// The dimension that an axis names, counted from the end where it is negative.
    pub fn dim(&self, axis: i64, rank: usize) -> usize {
        (if axis < 0 { axis + rank as i64 } else { axis }) as usize
    }
}

/// A value on a device, in the element type that holds it.
pub fn upload(value: &Value, device: &Device) -> Outcome<Tensor> {
    let dtype = dtype_of(value.kind);
    let shape = value.shape.clone();
    let whole = |lo: f64, hi: f64| match value.data.iter().find(|v| !(lo..=hi).contains(*v)) {
        Some(v) => skip(format!("{v} of {:?} fits no type of ours", value.kind)),
        None => Ok(()),
    };
    let wide = match dtype {
        DType::I32 => {
            whole(f64::from(i32::MIN), f64::from(i32::MAX))?;
            Tensor::from_slice(&value.data.iter().map(|&v| v as i32).collect::<Vec<_>>(), shape, device)?
        }
        DType::U32 | DType::U8 | DType::Bool => {
            whole(0.0, f64::from(u32::MAX))?;
            Tensor::from_slice(&value.data.iter().map(|&v| v as u32).collect::<Vec<_>>(), shape, device)?
        }
        _ => Tensor::from_slice(&value.data.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape, device)?,
    };
    Ok(wide.to_dtype(dtype)?)
}
