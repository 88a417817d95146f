//! From the graph to the messages of the file.

use std::collections::{HashMap, HashSet};

use prost::bytes::Bytes;

use super::batch::{Extent, Input, Merged};
use super::graph::{Attribute, Graph, Id, Node, Operand, Source};
use crate::error::{Error, Result};
use crate::onnx::ElementType;
use crate::onnx::proto::{
    AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OpsetProto, ShapeProto, TensorProto,
    TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::tensor::Tensor;

/// The name of the dimension of the batch.
const BATCH: &str = "batch";

/// What the file says of an input or an output.
pub(super) struct Port {
    pub name: String,
    pub kind: ElementType,
    pub shape: Vec<Extent>,
}

/// Returns the messages of a model.
pub(super) fn model(
    graph: &Graph,
    merged: &Merged,
    name: &str,
    inputs: &[Port],
    outputs: &[Port],
) -> Result<ModelProto> {
    let mut writer = Writer::new(graph, merged, inputs, outputs);
    for (i, node) in graph.nodes.iter().enumerate() {
        writer.node(i, node)?;
    }
    let proto = GraphProto {
        node: writer.nodes,
        name: name.to_owned(),
        initializer: writer.initializers,
        input: inputs.iter().map(port).collect(),
        output: outputs.iter().map(port).collect(),
        sparse_initializer: Vec::new(),
    };
    // The version of the format that came with the operator set.
    let ir_version = if graph.opset <= 18 { 8 } else { 9 };
    Ok(ModelProto {
        ir_version,
        producer_name: env!("CARGO_PKG_NAME").to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        graph: Some(proto),
        opset_import: vec![OpsetProto { domain: String::new(), version: graph.opset }],
        functions: Vec::new(),
    })
}

fn port(port: &Port) -> ValueInfoProto {
    let dim = |extent: &Extent| match *extent {
        Extent { fixed, per_sample: 0 } => DimensionProto { dim_value: Some(fixed), dim_param: None },
        Extent { fixed: 0, per_sample: 1 } => DimensionProto { dim_value: None, dim_param: Some(BATCH.to_owned()) },
        _ => DimensionProto::default(),
    };
    let shape = ShapeProto { dim: port.shape.iter().map(dim).collect() };
    let tensor_type = TensorTypeProto { elem_type: port.kind.code(), shape: Some(shape) };
    ValueInfoProto { name: port.name.clone(), r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) }
}

struct Writer<'a> {
    graph: &'a Graph,
    merged: &'a Merged,
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    /// The names that values have by now.
    names: Vec<Option<String>>,
    taken: HashSet<String>,
    /// The first input, whose first dimension is the batch, and the name of its size once it is computed.
    first_input: String,
    batch: Option<String>,
    /// The lists of integers that are written, with their names.
    lists: HashMap<Vec<i64>, String>,
}

impl<'a> Writer<'a> {
    fn new(graph: &'a Graph, merged: &'a Merged, inputs: &[Port], outputs: &[Port]) -> Writer<'a> {
        let mut names = vec![None; graph.values.len()];
        for (id, value) in graph.values.iter().enumerate() {
            if let Source::Input(i) = value.source {
                names[id] = Some(inputs[i].name.clone());
            }
        }
        graph.outputs.iter().zip(outputs).for_each(|(&id, port)| names[id] = Some(port.name.clone()));
        let taken = inputs.iter().chain(outputs).map(|port| port.name.clone()).collect();
        Writer {
            graph,
            merged,
            nodes: Vec::new(),
            initializers: Vec::new(),
            names,
            taken,
            first_input: inputs.first().map(|port| port.name.clone()).unwrap_or_default(),
            batch: None,
            lists: HashMap::new(),
        }
    }

    /// Returns a name that no other value has.
    fn fresh(&mut self, wanted: &str) -> String {
        let numbered = (1..).map(|i| format!("{wanted}_{i}"));
        let free = std::iter::once(wanted.to_owned()).chain(numbered).find(|name| !self.taken.contains(name));
        let free = free.unwrap_or_default();
        self.taken.insert(free.clone());
        free
    }

    fn node(&mut self, i: usize, node: &Node) -> Result<()> {
        let inputs = &self.merged.inputs[i];
        let last = inputs.iter().rposition(|input| !matches!(input, Input::Operand(Operand::Nothing)));
        let mut names = Vec::with_capacity(inputs.len());
        for input in &inputs[..last.map_or(0, |last| last + 1)] {
            names.push(match input {
                Input::Operand(Operand::Nothing) => String::new(),
                Input::Operand(Operand::Value(id)) => self.value(*id)?,
                Input::Operand(Operand::Ints(list)) => self.list(list),
                Input::Extents(extents) => self.extents(node.op, extents),
            });
        }
        let outputs: Vec<String> = node.outputs.iter().map(|&id| self.result(id, node.op)).collect();
        let attribute = node.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
        self.push(node.op, names, outputs, attribute);
        Ok(())
    }

    fn push(&mut self, op: &str, input: Vec<String>, output: Vec<String>, attribute: Vec<AttributeProto>) {
        let name = format!("{}/{}", self.nodes.len(), op);
        self.nodes.push(NodeProto { input, output, name, op_type: op.to_owned(), attribute, domain: String::new() });
    }

    /// Returns the name of a node's result.
    fn result(&mut self, id: Id, op: &str) -> String {
        if let Some(name) = &self.names[id] {
            return name.clone();
        }
        let name = self.fresh(&op.to_lowercase());
        self.names[id] = Some(name.clone());
        name
    }

    /// Returns the name of a value; a constant is written at its first use.
    fn value(&mut self, id: Id) -> Result<String> {
        if let Some(name) = &self.names[id] {
            return Ok(name.clone());
        }
        let value = &self.graph.values[id];
        let wanted = match &value.source {
            Source::Named(name, _) => name.as_str(),
            _ => "constant",
        };
        let name = self.fresh(wanted);
        if let Some(uniform) = &self.merged.uniform[id] {
            let scalar = self.fresh("constant");
            self.initializers.push(number(scalar.clone(), uniform.number, value.kind));
            let shape = self.extents("Expand", &uniform.shape);
            self.push("Expand", vec![scalar, shape], vec![name.clone()], Vec::new());
        } else {
            let proto = match &value.source {
                Source::Named(_, x) | Source::Tensor(x) => tensor(name.clone(), x, value.kind)?,
                Source::Floats(values, dims) => {
                    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    raw(name.clone(), dims.clone(), ElementType::Float, bytes)
                }
                Source::Number(value_of) => number(name.clone(), *value_of, value.kind),
                Source::Input(_) | Source::Node { .. } => return Err(Error::internal("a value without a name")),
            };
            self.initializers.push(proto);
        }
        self.names[id] = Some(name.clone());
        Ok(name)
    }

    fn list(&mut self, list: &[i64]) -> String {
        if let Some(name) = self.lists.get(list) {
            return name.clone();
        }
        let name = self.fresh("integers");
        let bytes = list.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initializers.push(raw(name.clone(), vec![list.len() as i64], ElementType::Int64, bytes));
        self.lists.insert(list.to_vec(), name.clone());
        name
    }

    /// Returns the name of a list that depends on the size of the batch.
    fn extents(&mut self, op: &str, extents: &[Extent]) -> String {
        let varying = extents.iter().filter(|extent| extent.per_sample != 0).count();
        let zero = extents.contains(&Extent { fixed: 0, per_sample: 0 });
        if op == "Reshape" && varying == 1 && !zero {
            // One size is computed from the number of elements.
            let sizes: Vec<i64> = extents.iter().map(|e| if e.per_sample != 0 { -1 } else { e.fixed }).collect();
            return self.list(&sizes);
        }
        let parts: Vec<String> = extents.iter().map(|extent| self.extent(*extent)).collect();
        if let [one] = &parts[..] {
            return one.clone();
        }
        let name = self.fresh("sizes");
        self.push("Concat", parts, vec![name.clone()], vec![attribute("axis", &Attribute::Int(0))]);
        name
    }

    /// Returns the name of a list of this one number.
    fn extent(&mut self, Extent { fixed, per_sample }: Extent) -> String {
        if per_sample == 0 {
            return self.list(&[fixed]);
        }
        let mut name = self.batch();
        if per_sample != 1 {
            let factor = self.list(&[per_sample]);
            name = self.computed("Mul", [name, factor]);
        }
        if fixed != 0 {
            let more = self.list(&[fixed]);
            name = self.computed("Add", [name, more]);
        }
        name
    }

    fn computed(&mut self, op: &str, inputs: [String; 2]) -> String {
        let name = self.fresh("size");
        self.push(op, inputs.into(), vec![name.clone()], Vec::new());
        name
    }

    fn batch(&mut self) -> String {
        if let Some(name) = &self.batch {
            return name.clone();
        }
        let name = self.fresh("batch_size");
        let range = [attribute("start", &Attribute::Int(0)), attribute("end", &Attribute::Int(1))];
        self.push("Shape", vec![self.first_input.clone()], vec![name.clone()], range.into());
        self.batch = Some(name.clone());
        name
    }
}

fn attribute(name: &str, value: &Attribute) -> AttributeProto {
    let named = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    match value {
        Attribute::Float(f) => AttributeProto { f: *f, r#type: 1, ..named },
        Attribute::Int(i) => AttributeProto { i: *i, r#type: 2, ..named },
        Attribute::Text(s) => AttributeProto { s: Bytes::from_static(s.as_bytes()), r#type: 3, ..named },
        Attribute::Ints(ints) => AttributeProto { ints: ints.clone(), r#type: 7, ..named },
    }
}

fn raw(name: String, dims: Vec<i64>, kind: ElementType, bytes: Vec<u8>) -> TensorProto {
    TensorProto { dims, data_type: kind.code(), name, raw_data: bytes.into(), ..TensorProto::default() }
}

/// A scalar of this type.
fn number(name: String, value: f64, kind: ElementType) -> TensorProto {
    let bytes = match kind {
        ElementType::Int64 => (value as i64).to_le_bytes().to_vec(),
        ElementType::Int32 => (value as i32).to_le_bytes().to_vec(),
        ElementType::Uint32 => (value as u32).to_le_bytes().to_vec(),
        ElementType::Uint8 => vec![value as u8],
        ElementType::Bool => vec![u8::from(value != 0.0)],
        ElementType::Float16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
        ElementType::Bfloat16 => half::bf16::from_f64(value).to_le_bytes().to_vec(),
        _ => (value as f32).to_le_bytes().to_vec(),
    };
    raw(name, Vec::new(), kind, bytes)
}

/// The elements of a tensor. Packed types lie in words as they lie in the file.
fn tensor(name: String, x: &Tensor, kind: ElementType) -> Result<TensorProto> {
    let words = x.to_words()?;
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(x.elem_count() * kind.bits() / 8);
    Ok(raw(name, x.shape().iter().map(|&size| size as i64).collect(), kind, bytes))
}
