//! What flows along the edges of a graph.

use std::sync::{Arc, Mutex};

use super::array::Array;
use super::element_type::ElementType;
use super::fault;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::sync::lock;
use crate::tensor::Tensor;

/// A value on the host, or a tensor on the device of the model.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Shape arithmetic and constants. It is copied to the device when an operator needs it there.
    Host(Arc<HostValue>),
    /// The element type says what the tensor stands for.
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
        if kind.dtype() == tensor.dtype() { Value::Device(tensor, kind) } else { Value::natural(tensor) }
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

    /// The tensor on a device. A copy of a host's value is kept for the next call.
    pub fn tensor(&self, device: &Device) -> Result<Tensor> {
        match self {
            Value::Device(tensor, _) => Ok(tensor.clone()),
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

    /// The same value on a device of the caller's, in the type that stands for its own: for outputs.
    pub fn into_output(self, device: &Device) -> Result<Tensor> {
        match &self {
            Value::Host(_) => self.tensor(device),
            Value::Device(tensor, kind) if !kind.is_float() && kind.dtype() == DType::I32 => {
                tensor.to_dtype(DType::I32)
            }
            _ => self.tensor(device),
        }
    }
}
