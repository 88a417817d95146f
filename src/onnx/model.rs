//! A model of a file as a module.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use super::array::Array;
use super::build::Builder;
use super::element_type::ElementType;
use super::fault;
use super::fold::fold;
use super::fuse::fuse;
use super::info::ValueInfo;
use super::node::Graph;
use super::proto::ModelProto;
use super::run::Run;
use super::value::Value;
use super::weights::{ExternalData, Stored, Weight, assign};
use crate::autograd::{is_recording, no_grad};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{Mode, Module};
use crate::tensor::Tensor;

/// Integer inputs on `cpu` with at most this many elements are values of the host, like shapes.
const FEW: usize = 4096;

/// A model that [`load`](super::load) has read.
///
/// It is a [`Module`]: see the [module's documentation](super).
///
/// A model starts in evaluation mode, unlike a net of layers, since most files contain a trained model.
///
/// Several threads may run one model at the same time. Clones share their parameters until one of them is moved.
/// They always share the description of the model.
#[derive(Clone)]
pub struct Model {
    description: Arc<Description>,
    weights: Vec<Weight>,
    mode: Mode,
}

/// What clones share.
struct Description {
    graph: Graph,
    inputs: Vec<ValueInfo>,
    outputs: Vec<ValueInfo>,
    producer: String,
    opset: i64,
}

impl Model {
    pub(super) fn new(proto: &ModelProto, external: ExternalData) -> Result<Model> {
        let Some(graph) = &proto.graph else { return Err(fault("the file has no graph")) };
        let mut builder = Builder::new(&proto.opset_import, &proto.functions, external)?;
        let mut built = builder.model(graph)?;
        let mut weights = std::mem::take(&mut builder.weights);
        fold(&mut built, &mut weights)?;
        no_grad(|| fuse(&mut built, &mut weights));
        assign(&mut weights, &built)?;
        let given: HashSet<&str> = graph.initializer.iter().map(|initializer| initializer.name.as_str()).collect();
        let open = graph.input.iter().filter(|input| !given.contains(input.name.as_str()));
        let inputs = open.map(ValueInfo::of).collect::<Result<_>>()?;
        let outputs = graph.output.iter().map(ValueInfo::of).collect::<Result<_>>()?;
        let producer = format!("{} {}", proto.producer_name, proto.producer_version).trim().to_owned();
        let opset = proto.opset_import.iter().find(|set| set.domain.is_empty()).map_or(0, |set| set.version);
        let description = Arc::new(Description { graph: built, inputs, outputs, producer, opset });
        let model = Model { description, weights, mode: Mode::default() };
        model.eval();
        Ok(model)
    }

    /// Returns the descriptions of the model's inputs, in order.
    pub fn inputs(&self) -> &[ValueInfo] {
        &self.description.inputs
    }

    /// Returns the descriptions of the model's outputs, in order.
    pub fn outputs(&self) -> &[ValueInfo] {
        &self.description.outputs
    }

    /// Computes the outputs for inputs given by name, on the device of the model's parameters.
    ///
    /// If the model has no parameters, it runs on the device of the first input that is not of 64-bit floats.
    ///
    /// Inputs have the type of [`ElementType::dtype`](super::ElementType::dtype). For integers, `u8` and `u32` are
    /// accepted too; for signed integers also `i32`, and for 64-bit floats also `f32`. Inputs of integers, bools
    /// and 64-bit floats may be on `cpu`, whatever the model's device is. Their elements are then known to the
    /// host: a graph that computes shapes or conditions from them need not read them back.
    ///
    /// Outputs have the type of [`ElementType::dtype`](super::ElementType::dtype) too. They are on the model's
    /// device, except for 64-bit floats, which are on `cpu`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for names that the model does not have, for missing inputs, and for shapes that
    /// differ from the declared ones; [`Error::DTypeMismatch`]; [`Error::DeviceMismatch`]; the errors of operators,
    /// with the name of the node.
    pub fn run(&self, inputs: &[(&str, &Tensor)]) -> Result<Outputs> {
        let description = &self.description;
        if let Some((name, _)) =
            inputs.iter().find(|(name, _)| !description.inputs.iter().any(|info| info.name == *name))
        {
            let known: Vec<String> = description.inputs.iter().map(ValueInfo::to_string).collect();
            return Err(fault(format!("the model has no input '{name}'; its inputs are {}", known.join(", "))));
        }
        let device = self.device().or_else(|| {
            // Floats of 64 bits are on `cpu`, wherever the model runs.
            let says = inputs.iter().find(|(_, tensor)| tensor.dtype() != DType::F64);
            says.map(|(_, tensor)| tensor.device().clone())
        });
        let device = device.unwrap_or_else(Device::cpu);
        let mut symbols = HashMap::new();
        let mut values = Vec::with_capacity(description.inputs.len());
        for info in &description.inputs {
            let found = inputs.iter().find(|(name, _)| *name == info.name);
            let (_, tensor) = found.ok_or_else(|| fault(format!("input {info} is missing")))?;
            info.check(tensor.shape(), &mut symbols)?;
            values.push(input(info, tensor, &device)?);
        }
        let run = Run::new(&self.weights, &device, self.mode.is_training());
        let outputs = run.graph(&description.graph, values, &Vec::new())?;
        let tensors = outputs.into_iter().map(|value| value.into_output(&device)).collect::<Result<_>>()?;
        Ok(Outputs { description: self.description.clone(), tensors })
    }

    /// The device of its parameters and buffers, if it has any.
    fn device(&self) -> Option<Device> {
        self.weights.iter().find_map(|weight| match &weight.stored {
            Stored::Parameter(tensor) | Stored::Buffer(tensor) => Some(tensor.device().clone()),
            _ => None,
        })
    }
}

/// An input as a value of its declared type.
fn input(info: &ValueInfo, tensor: &Tensor, device: &Device) -> Result<Value> {
    let (kind, dtype) = (info.element_type, info.element_type.dtype());
    if tensor.device() != device && !tensor.device().is_cpu() {
        return Err(Error::DeviceMismatch { op: "onnx", left: device.to_string(), right: tensor.device().to_string() });
    }
    let tensor = match (dtype, tensor.dtype()) {
        (DType::F64, DType::F32) if tensor.is_tracked() && is_recording() => {
            return Err(fault(format!(
                "input {info}: a gradient through double is not supported: detach() the tensor"
            )));
        }
        (DType::F64, DType::F64 | DType::F32) => return Array::download(tensor, kind).map(Value::from),
        (DType::I64, DType::I64) => {
            let array = Array::download(tensor, kind)?.checked()?;
            if tensor.elem_count() <= FEW || !array.fits_words() {
                return Ok(Value::from(array));
            }
            tensor.to_dtype(kind.word())?
        }
        (DType::I64, DType::I32) if kind == ElementType::Int64 => tensor.clone(),
        (DType::I64, DType::U32 | DType::U8) if kind == ElementType::Uint64 => tensor.to_dtype(DType::U32)?,
        (DType::I64, DType::U8) => tensor.to_dtype(DType::I32)?,
        (DType::I64, DType::U32) => {
            let array = Array::download(tensor, kind)?;
            match tensor.elem_count() <= FEW || !array.fits_words() {
                true => return Ok(Value::from(array)),
                false => tensor.to_dtype(DType::I32)?,
            }
        }
        (DType::I32, DType::U32 | DType::U8) => tensor.to_dtype(DType::I32)?,
        (expected, got) if expected == got => tensor.clone(),
        (expected, got) => {
            let expected = format!("{expected} for input {info}");
            return Err(Error::DTypeMismatch { op: "onnx", expected, got: got.to_string() });
        }
    };
    match tensor.device() == device {
        true if kind.is_float() || !device.is_cpu() || tensor.elem_count() > FEW => Ok(Value::Device(tensor, kind)),
        false if kind.is_float() => {
            Err(Error::DeviceMismatch { op: "onnx", left: device.to_string(), right: tensor.device().to_string() })
        }
        false if tensor.elem_count() > FEW => Ok(Value::Device(tensor.to(device)?, kind)),
        _ => Array::download(&tensor, kind).map(Value::from),
    }
}

impl Module for Model {
    /// Applies a model with one input. The result is its first output. For other models, see [`run`](Model::run).
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [info] = self.inputs() else {
            return Err(fault(format!("the model has {} inputs: call run, with their names", self.inputs().len())));
        };
        let outputs = self.run(&[(&info.name, x)])?;
        outputs.tensors.into_iter().next().ok_or_else(|| fault("the model has no output"))
    }

    fn visit(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        for weight in &self.weights {
            if let Stored::Parameter(tensor) = &weight.stored {
                f(&weight.name, tensor);
            }
        }
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        for weight in &mut self.weights {
            if let Stored::Parameter(tensor) = &mut weight.stored {
                f(&weight.name, tensor);
            }
        }
    }

    fn visit_buffers(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        for weight in &self.weights {
            if let Stored::Buffer(tensor) = &weight.stored {
                f(&weight.name, tensor);
            }
        }
    }

    fn visit_buffers_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        for weight in &mut self.weights {
            if let Stored::Buffer(tensor) = &mut weight.stored {
                f(&weight.name, tensor);
            }
        }
    }

    fn set_training(&self, training: bool) {
        crate::nn::Child::tell_training(&self.mode, training);
    }
}

/// The inputs, the outputs and how often each operator occurs.
impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let description = &self.description;
        let mut operators: BTreeMap<&str, usize> = BTreeMap::new();
        description.graph.nodes.iter().for_each(|node| *operators.entry(&node.op_type).or_default() += 1);
        let by = if description.producer.is_empty() { String::new() } else { format!(", by {}", description.producer) };
        writeln!(f, "operator set {}{by}", description.opset)?;
        description.inputs.iter().try_for_each(|info| writeln!(f, "input {info}"))?;
        description.outputs.iter().try_for_each(|info| writeln!(f, "output {info}"))?;
        writeln!(f, "{} parameters", self.num_parameters())?;
        let operators: Vec<String> = operators.iter().map(|(name, count)| format!("{name} {count}")).collect();
        write!(f, "operators: {}", operators.join(", "))
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("inputs", &self.inputs())
            .field("outputs", &self.outputs())
            .finish_non_exhaustive()
    }
}

/// The outputs of a [`Model`], by name and in order.
pub struct Outputs {
    description: Arc<Description>,
    tensors: Vec<Tensor>,
}

impl Outputs {
    /// Returns the output of this name, if there is one.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.iter().find(|(here, _)| *here == name).map(|(_, tensor)| tensor)
    }

    /// Returns the outputs with their names, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.description.outputs.iter().map(|info| info.name.as_str()).zip(&self.tensors)
    }

    /// Returns the tensors, in order.
    pub fn into_vec(self) -> Vec<Tensor> {
        self.tensors
    }
}

/// # Panics
/// If the model has no output of this name.
impl Index<&str> for Outputs {
    type Output = Tensor;

    fn index(&self, name: &str) -> &Tensor {
        self.get(name).unwrap_or_else(|| panic!("the model has no output '{name}'"))
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
