//! What flows along the edges of a graph.

use std::sync::{Arc, Mutex};

use super::array::Array;
use super::call::wrapped;
use super::element_type::ElementType;
use super::fault;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::util::sync::lock;

/// A value on the host, or a tensor on the device of the model.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Shape arithmetic and constants. It is copied to the device when an operator needs it there.
    Host(Arc<HostValue>),
    /// The element type says what the tensor stands for. Integers of 64 bits are words here, which hold their values; floats of 64
    /// bits are always on the host.
    Device(Tensor, ElementType),
    /// Tensors in order, for the operators of sequences.
    Sequence(Vec<Value>),
}

/// An array, and its copy on the device that asked for it last.
#[derive(Debug)]
pub(super) struct HostValue {
    pub array: Array,
    copy: Mutex<Option<Tensor>>,
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value::Host(Arc::new(HostValue { array, copy: Mutex::new(None) }))
    }
}

impl Value {
    /// A tensor in the type of ONNX that it has by itself.
    pub fn natural(tensor: Tensor) -> Value {
        let kind = ElementType::natural(tensor.dtype());
        Value::Device(tensor, kind)
    }

    /// A tensor that stands for the type, if it can: else in its own type.
    pub fn of(tensor: Tensor, kind: ElementType) -> Value {
        // Integers of 64 bits stand for narrower ones until they settle.
        let words = match tensor.dtype() {
            DType::I64 => !kind.is_float(),
            dtype => kind != ElementType::Double && kind.word() == dtype,
        };
        if words || kind.dtype() == tensor.dtype() { Value::Device(tensor, kind) } else { Value::natural(tensor) }
    }

    /// The numbers of a tensor as a value of the type.
    pub fn made(tensor: &Tensor, kind: ElementType) -> Result<Value> {
        match kind {
            ElementType::Double => Array::download(tensor, kind).map(Value::from),
            kind => Ok(Value::Device(tensor.to_dtype(kind.word())?, kind)),
        }
    }

    /// What an operator computed exactly, on `cpu`, as a value of a model on `device`.
    pub fn settled(self, device: &Device) -> Result<Value> {
        match self {
            Value::Device(tensor, kind) if kind.is_long() => Array::download(&tensor, kind)?.checked().map(Value::from),
            // The words of a narrower integer.
            Value::Device(tensor, kind) if tensor.dtype().is_long() => {
                Ok(Value::Device(wrapped(tensor.to_dtype(kind.word())?, kind)?.to(device)?, kind))
            }
            Value::Device(tensor, kind) => Ok(Value::Device(tensor.to(device)?, kind)),
            value => Ok(value),
        }
    }

    pub fn kind(&self) -> ElementType {
        match self {
            Value::Host(host) => host.array.kind,
            Value::Device(_, kind) => *kind,
            Value::Sequence(values) => values.first().map_or(ElementType::Float, Value::kind),
        }
    }

    /// The sizes of its dimensions.
    pub fn shape(&self) -> Result<&[usize]> {
        match self {
            Value::Host(host) => Ok(&host.array.shape),
            Value::Device(tensor, _) => Ok(tensor.shape()),
            Value::Sequence(_) => Err(fault("a sequence has no shape")),
        }
    }

    /// The array, if it is on the host.
    pub fn array(&self) -> Option<&Array> {
        match self {
            Value::Host(host) => Some(&host.array),
            _ => None,
        }
    }

    /// The elements on the host. A tensor is read back, which waits for its device.
    pub fn read(&self) -> Result<Array> {
        match self {
            Value::Host(host) => Ok(host.array.clone()),
            Value::Device(tensor, kind) => {
                log::trace!("onnx: a tensor of shape {:?} is read back", tensor.shape());
                Array::download(tensor, *kind)
            }
            Value::Sequence(_) => Err(fault("a tensor is expected, not a sequence")),
        }
    }

    /// The value, of 64 bits if it is on the host and has these; else on the device.
    pub fn whole(&self, device: &Device) -> Result<Tensor> {
        match self {
            Value::Host(host) if host.array.kind.is_long() => self.exact(),
            value => value.tensor(device),
        }
    }

    /// Several values of one type as one, by a function of their tensors.
    pub fn joined(
        values: &[Value],
        kind: ElementType,
        device: &Device,
        join: impl FnOnce(Vec<Tensor>) -> Result<Tensor>,
    ) -> Result<Value> {
        let exact = kind.is_long() && values.iter().any(|value| matches!(value, Value::Host(_)));
        let tensor = |value: &Value| if exact { value.exact() } else { value.tensor(device) };
        Value::of(join(values.iter().map(tensor).collect::<Result<_>>()?)?, kind).settled_if_long(device)
    }

    /// As [`settled`](Value::settled) for a tensor of 64 bits; others as they are.
    pub fn settled_if_long(self, device: &Device) -> Result<Value> {
        match &self {
            Value::Device(tensor, _) if tensor.dtype().is_long() => self.settled(device),
            _ => Ok(self),
        }
    }

    /// The tensor on `cpu`, with elements of 64 bits where the type has these.
    pub fn exact(&self) -> Result<Tensor> {
        let cpu = Device::cpu();
        match self {
            Value::Host(host) if host.array.kind.is_long() => host.array.exact(),
            Value::Device(tensor, kind) if kind.is_long() => tensor.to(&cpu)?.to_dtype(kind.dtype()),
            value => value.tensor(&cpu),
        }
    }

    /// The tensor on a device. A copy of a host's value is kept for the next call.
    ///
    /// # Errors
    ///
    /// If it has floats of 64 bits, or integers that do not fit 32.
    pub fn tensor(&self, device: &Device) -> Result<Tensor> {
        match self {
            Value::Device(tensor, _) if tensor.device() == device => Ok(tensor.clone()),
            Value::Device(tensor, _) => tensor.to(device),
            Value::Host(host) => {
                let mut copy = lock(&host.copy);
                if let Some(tensor) = copy.as_ref().filter(|tensor| tensor.device() == device) {
                    return Ok(tensor.clone());
                }
                let tensor = host.array.upload(device)?;
                *copy = Some(tensor.clone());
                Ok(tensor)
            }
            Value::Sequence(_) => Err(fault("a tensor is expected, not a sequence")),
        }
    }

    /// The same value on a device of the caller's, in the type that stands for its own: for outputs. Floats of 64 bits stay on `cpu`.
    pub fn into_output(self, device: &Device) -> Result<Tensor> {
        match &self {
            Value::Host(host) if host.array.kind == ElementType::Double => host.array.exact(),
            Value::Host(host) if host.array.kind.is_long() => host.array.exact()?.to(device),
            Value::Device(tensor, kind) if kind.dtype() == DType::I64 => tensor.to(device)?.to_dtype(DType::I64),
            Value::Device(tensor, kind) if !kind.is_float() && kind.word() == DType::I32 => tensor.to_dtype(DType::I32),
            _ => self.tensor(device),
        }
    }
}
