//! The tensors of a file: which of them are parameters, and where their elements are.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use half::{bf16, f16};
use prost::Message;
use prost::bytes::Bytes;

use super::array::{Array, shape_of};
use super::element_type::ElementType;
use super::node::{Body, Graph, Node, Source};
use super::ops::FUSED_ATTENTION;
use super::proto::TensorProto;
use super::value::Value;
use super::{detail, fault};
use crate::device::Device;
use crate::device::cpu::with_room;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::util::regular_file;

/// Float tensors with at most this many elements that are neither parameters nor statistics stay on the host: scales, bounds.
const FEW: usize = 64;

/// A tensor of a model.
pub(super) struct Weight {
    pub name: String,
    pub stored: Stored,
}

pub(super) enum Stored {
    /// As it is in the file.
    Raw(Box<TensorProto>),
    /// On the host, or computed when the model was loaded.
    Constant(Value),
    /// What training changes.
    Parameter(Tensor),
    /// What moves with the module and is not trained.
    Buffer(Tensor),
    /// What nothing reads.
    Unused,
}

/// What a node does with a weight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    None,
    /// Integers of a few bits in bytes, which products read as they are: they stay bytes.
    Packed,
    Constant,
    Buffer,
    /// An operand of elementwise arithmetic: a parameter if it has several elements.
    Arithmetic,
    Parameter,
}

impl Weight {
    pub fn raw(name: &str, proto: TensorProto) -> Weight {
        Weight { name: name.to_owned(), stored: Stored::Raw(Box::new(proto)) }
    }

    /// The value for execution.
    pub fn value(&self) -> Result<Value> {
        match &self.stored {
            Stored::Raw(proto) => Array::decode(proto).map(Value::from),
            Stored::Constant(value) => Ok(value.clone()),
            Stored::Parameter(tensor) | Stored::Buffer(tensor) => Ok(Value::natural(tensor.clone())),
            Stored::Unused => Err(fault(format!("tensor '{}' was dropped", self.name))),
        }
    }

    /// The sizes that it claims to have.
    pub fn shape(&self) -> Result<Vec<usize>> {
        match &self.stored {
            Stored::Raw(proto) => Ok(shape_of(proto)?.0),
            _ => Ok(self.value()?.shape()?.to_vec()),
        }
    }

    /// How many elements it claims to have, and whether they are floats.
    pub fn about(&self) -> Result<(usize, ElementType)> {
        match &self.stored {
            Stored::Raw(proto) => Ok((shape_of(proto)?.1, ElementType::of(proto.data_type)?)),
            _ => {
                let value = self.value()?;
                Ok((value.shape()?.iter().product(), value.kind()))
            }
        }
    }
}

impl Weight {
    /// How many elements it has at most, by the size of what is in the file.
    pub fn present(&self) -> Result<usize> {
        let count = self.about()?.0;
        Ok(match &self.stored {
            // At most two elements lie in a byte.
            Stored::Raw(proto) => count.min(proto.encoded_len().saturating_mul(2)),
            _ => count,
        })
    }
}

impl Clone for Weight {
    /// Clones keep copies of the host's values on devices of their own: each clone may be on another device.
    fn clone(&self) -> Weight {
        let stored = match &self.stored {
            Stored::Raw(proto) => Stored::Raw(proto.clone()),
            Stored::Constant(Value::Host(host)) => Stored::Constant(host.array.clone().into()),
            Stored::Constant(value) => Stored::Constant(value.clone()),
            Stored::Parameter(tensor) => Stored::Parameter(tensor.clone()),
            Stored::Buffer(tensor) => Stored::Buffer(tensor.clone()),
            Stored::Unused => Stored::Unused,
        };
        Weight { name: self.name.clone(), stored }
    }
}

/// Decides what each weight is, by the operators that read it, and decodes it.
pub(super) fn assign(weights: &mut [Weight], graph: &Graph) -> Result<()> {
    let mut roles = vec![Role::None; weights.len()];
    let mut raise = |source: Source, role: Role| {
        if let Source::Weight(weight) = source {
            roles[weight] = roles[weight].max(role);
        }
    };
    graph.outputs.iter().for_each(|&output| raise(output, Role::Constant));
    graph.visit(&mut |node| {
        node.inputs.iter().enumerate().filter_map(|(i, source)| Some((i, (*source)?))).for_each(|(i, source)| {
            raise(source, role(node, i));
        });
        node.body.graphs().for_each(|graph| {
            graph.outputs.iter().for_each(|&output| raise(output, Role::Constant));
            graph.captures.iter().for_each(|&(outer, _)| raise(outer, Role::Constant));
        });
    });
    for (weight, role) in weights.iter_mut().zip(roles) {
        let failed = |error| fault(format!("tensor '{}': {}", weight.name, detail(&error)));
        let stored = decoded(weight, role).map_err(failed)?;
        weight.stored = stored;
    }
    name_apart(weights);
    Ok(())
}

/// Gives each parameter and buffer its own name. A tensor that fusion made for two convolutions, or a constant of a
/// function that is called twice, has the same name in both places.
fn name_apart(weights: &mut [Weight]) {
    let (mut names, mut numbers) = (HashSet::new(), HashMap::new());
    for weight in weights.iter_mut().filter(|weight| matches!(weight.stored, Stored::Parameter(_) | Stored::Buffer(_)))
    {
        let base = weight.name.clone();
        while !names.insert(weight.name.clone()) {
            let number = numbers.entry(base.clone()).or_insert(1);
            *number += 1;
            weight.name = format!("{base}.{number}");
        }
    }
}

/// What an operator's input is, if it comes from the file.
fn role(node: &Node, input: usize) -> Role {
    if !matches!(node.body, Body::Operator(_)) {
        return Role::Constant;
    }
    match (node.op_type.as_str(), input) {
        ("BatchNormalization", 3 | 4) => Role::Buffer,
        (
            "Conv"
            | "FusedConv"
            | "ConvTranspose"
            | "BatchNormalization"
            | "LayerNormalization"
            | "InstanceNormalization",
            1 | 2,
        )
        | ("GroupNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization", 1 | 2)
        | ("Gemm" | "FusedGemm" | "MatMul" | "FusedMatMul" | "Einsum", _)
        | (FUSED_ATTENTION, 0..=2)
        | ("PRelu", 1)
        | ("LSTM" | "GRU" | "RNN", 1..=3)
        | ("Gather", 0) => Role::Parameter,
        ("MatMulNBits", 1 | 3) => Role::Packed,
        ("Add" | "Sub" | "Mul" | "Div", _) | (FUSED_ATTENTION, 3) => Role::Arithmetic,
        _ => Role::Constant,
    }
}

fn decoded(weight: &Weight, role: Role) -> Result<Stored> {
    if role == Role::None {
        return Ok(Stored::Unused);
    }
    let (count, kind) = weight.about()?;
    let constant = matches!(role, Role::Constant | Role::Packed);
    let packed = role == Role::Packed && kind == ElementType::Uint8;
    let on_host = !(kind.is_float() || packed)
        || kind == ElementType::Double
        || (constant && count <= FEW)
        || (role == Role::Arithmetic && count <= 1);
    if on_host {
        // What was computed on `cpu` when the model was loaded does not move with it; a value of the host does.
        return Ok(Stored::Constant(match weight.value()? {
            value @ Value::Device(..) => value.read()?.into(),
            value => value,
        }));
    }
    let tensor = match &weight.stored {
        Stored::Raw(proto) => numbers(proto, kind)?,
        _ => weight.value()?.tensor(&Device::cpu())?,
    };
    Ok(match role {
        Role::Parameter | Role::Arithmetic => Stored::Parameter(tensor.requires_grad()),
        _ => Stored::Buffer(tensor),
    })
}

/// Decodes a tensor of floats or bytes without a detour over wider elements.
fn numbers(proto: &TensorProto, kind: ElementType) -> Result<Tensor> {
    let (shape, count) = shape_of(proto)?;
    let raw = &proto.raw_data;
    let whole = raw.len() == count.saturating_mul(kind.bits() / 8);
    match kind {
        ElementType::Float if whole => {
            let mut values: Vec<f32> = with_room(count)?;
            values.extend(raw.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            Tensor::from_vec(values, shape, None)
        }
        ElementType::Float16 if whole => {
            let mut values: Vec<f16> = with_room(count)?;
            values.extend(raw.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]])));
            Tensor::from_vec(values, shape, None)
        }
        ElementType::Bfloat16 if whole => {
            let mut values: Vec<bf16> = with_room(count)?;
            values.extend(raw.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]])));
            Tensor::from_vec(values, shape, None)
        }
        ElementType::Uint8 if whole => Tensor::from_slice(raw, shape, None),
        _ => Array::decode(proto)?.upload(&Device::cpu()),
    }
}

/// Where the elements of tensors are that are not in the model's own file: in files of its folder.
#[derive(Clone, Default)]
pub(super) struct ExternalData {
    folder: Option<PathBuf>,
}

impl ExternalData {
    pub fn beside(file: &Path) -> ExternalData {
        let folder = file.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
        ExternalData { folder: folder.map(Path::to_owned) }
    }

    /// Returns the tensor with its elements in `raw_data`.
    pub fn resolve(&self, proto: &TensorProto) -> Result<TensorProto> {
        if proto.data_location != 1 {
            return Ok(proto.clone());
        }
        let entry =
            |key: &str| proto.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
        let number = |key: &str| {
            let parsed = entry(key).map(|text| text.trim().parse::<u64>());
            parsed.transpose().map_err(|_| fault(format!("{key} of its external data is not a number")))
        };
        let location = entry("location").ok_or_else(|| fault("its external data has no location"))?;
        let Some(folder) = &self.folder else {
            return Err(fault(format!("its elements are in the file '{location}': load the model by its path")));
        };
        let (_, count) = shape_of(proto)?;
        let bits = count.checked_mul(ElementType::of(proto.data_type)?.bits());
        let length = bits.ok_or_else(|| fault("its size overflows"))?.div_ceil(8);
        let bytes = read(folder, location, number("offset")?.unwrap_or(0), length)?;
        Ok(TensorProto { raw_data: bytes, data_location: 0, external_data: Vec::new(), ..proto.clone() })
    }
}

/// Reads `length` bytes of a file within the folder.
fn read(folder: &Path, location: &str, offset: u64, length: usize) -> Result<Bytes> {
    let failed = |why: String| fault(format!("external data '{location}': {why}"));
    if !Path::new(location).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(failed("the file must be in the model's folder".into()));
    }
    let path = folder.join(location);
    let within = || Ok::<_, std::io::Error>(path.canonicalize()?.starts_with(folder.canonicalize()?));
    if !within().map_err(|error| failed(error.to_string()))? {
        return Err(failed("the file must be in the model's folder, and is a link out of it".into()));
    }
    let (mut file, size) = regular_file::open(&path).map_err(|error| failed(error.to_string()))?;
    if offset.checked_add(length as u64).is_none_or(|end| end > size) {
        return Err(failed(format!("{length} bytes at {offset} are beyond its end at {size}")));
    }
    let mut bytes: Vec<u8> = with_room(length)?;
    file.seek(SeekFrom::Start(offset)).map_err(|error| failed(error.to_string()))?;
    file.take(length as u64).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    match bytes.len() == length {
        true => Ok(bytes.into()),
        false => Err(failed("it was cut while it was read".into())),
    }
}
