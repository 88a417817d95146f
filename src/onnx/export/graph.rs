//! The graph that is written: nodes over values.

use std::collections::HashMap;

use crate::onnx::ElementType;
use crate::tensor::Tensor;

/// The index of a value in [`Graph::values`].
pub(super) type Id = usize;

/// A value: where it comes from, and its type in the file.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub source: Source,
    pub kind: ElementType,
    /// Whether it depends on an input or on a tensor with a name. Others are constants.
    pub live: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Source {
    /// The input of this number.
    Input(usize),
    /// A parameter or a buffer of the module.
    Named(String, Tensor),
    Tensor(Tensor),
    /// A scalar, or a list of floats with a shape.
    Number(f64),
    Floats(Vec<f32>, Vec<i64>),
    /// A result of a node.
    Node {
        node: usize,
        output: usize,
    },
}

/// An input of a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    Value(Id),
    /// A list of 64-bit integers, such as a shape. It may depend on the size of the batch.
    Ints(Vec<i64>),
    /// An optional input that is not given.
    Nothing,
}

impl From<Id> for Operand {
    fn from(id: Id) -> Self {
        Operand::Value(id)
    }
}

impl From<&[usize]> for Operand {
    fn from(sizes: &[usize]) -> Self {
        Operand::Ints(sizes.iter().map(|&size| size as i64).collect())
    }
}

impl From<&Vec<usize>> for Operand {
    fn from(sizes: &Vec<usize>) -> Self {
        sizes.as_slice().into()
    }
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Attribute {
    Int(i64),
    Float(f32),
    Text(&'static str),
    Ints(Vec<i64>),
}

impl From<i64> for Attribute {
    fn from(value: i64) -> Self {
        Attribute::Int(value)
    }
}

impl From<usize> for Attribute {
    fn from(value: usize) -> Self {
        Attribute::Int(value as i64)
    }
}

impl From<bool> for Attribute {
    fn from(value: bool) -> Self {
        Attribute::Int(value.into())
    }
}

impl From<f32> for Attribute {
    fn from(value: f32) -> Self {
        Attribute::Float(value)
    }
}

impl From<&'static str> for Attribute {
    fn from(value: &'static str) -> Self {
        Attribute::Text(value)
    }
}

impl From<&[usize]> for Attribute {
    fn from(values: &[usize]) -> Self {
        Attribute::Ints(values.iter().map(|&value| value as i64).collect())
    }
}

/// The attributes of a node.
pub(super) type Attributes<'a> = &'a [(&'static str, Attribute)];

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub op: &'static str,
    pub inputs: Vec<Operand>,
    pub attributes: Vec<(&'static str, Attribute)>,
    pub outputs: Vec<Id>,
}

/// Nodes in the order in which they run.
#[derive(Debug)]
pub(super) struct Graph {
    pub values: Vec<Value>,
    pub nodes: Vec<Node>,
    pub outputs: Vec<Id>,
    /// The operator set that the nodes need.
    pub opset: i64,
    casts: HashMap<(Id, ElementType), Id>,
    /// The masks of attention, by the numbers of queries and keys.
    pub causal_masks: HashMap<[usize; 2], Id>,
}

impl Graph {
    pub fn new() -> Graph {
        // 18 has the reductions with axes as inputs, and is what runtimes of the last years take.
        let (casts, causal_masks) = (HashMap::new(), HashMap::new());
        Graph { values: Vec::new(), nodes: Vec::new(), outputs: Vec::new(), opset: 18, casts, causal_masks }
    }

    pub fn add(&mut self, source: Source, kind: ElementType, live: bool) -> Id {
        self.values.push(Value { source, kind, live });
        self.values.len() - 1
    }

    pub fn kind(&self, id: Id) -> ElementType {
        self.values[id].kind
    }

    /// Adds a node whose results have these types.
    pub fn nodes<const N: usize>(
        &mut self,
        op: &'static str,
        inputs: &[Operand],
        attributes: Attributes,
        kinds: [ElementType; N],
    ) -> [Id; N] {
        let live = inputs.iter().any(|input| matches!(input, Operand::Value(id) if self.values[*id].live));
        let node = self.nodes.len();
        let outputs = std::array::from_fn(|output| self.add(Source::Node { node, output }, kinds[output], live));
        let (inputs, attributes) = (inputs.to_vec(), attributes.to_vec());
        self.nodes.push(Node { op, inputs, attributes, outputs: outputs.to_vec() });
        outputs
    }

    /// Adds a node whose result is of the type of its first input, which is a value.
    pub fn node(&mut self, op: &'static str, inputs: &[Operand], attributes: Attributes) -> Id {
        let kind = match inputs.first() {
            Some(Operand::Value(id)) => self.kind(*id),
            _ => ElementType::Float,
        };
        let [id] = self.nodes(op, inputs, attributes, [kind]);
        id
    }

    /// Adds a node of values without attributes, with a result of the type of the first.
    pub fn simple(&mut self, op: &'static str, inputs: &[Id]) -> Id {
        self.node(op, &inputs.iter().map(|&id| id.into()).collect::<Vec<_>>(), &[])
    }

    /// Adds a node of values without attributes, with a result of truth.
    pub fn truth(&mut self, op: &'static str, inputs: &[Id]) -> Id {
        let inputs: Vec<Operand> = inputs.iter().map(|&id| id.into()).collect();
        let [id] = self.nodes(op, &inputs, &[], [ElementType::Bool]);
        id
    }

    /// Returns a value as one of another type.
    pub fn cast(&mut self, id: Id, kind: ElementType) -> Id {
        if self.kind(id) == kind {
            return id;
        }
        if let Some(&done) = self.casts.get(&(id, kind)) {
            return done;
        }
        let [done] = self.nodes("Cast", &[id.into()], &[("to", i64::from(kind.code()).into())], [kind]);
        self.casts.insert((id, kind), done);
        done
    }

    /// Returns a scalar constant.
    pub fn number(&mut self, value: f64, kind: ElementType) -> Id {
        self.add(Source::Number(value), kind, false)
    }

    pub fn floats(&mut self, values: Vec<f32>, shape: &[usize]) -> Id {
        let shape = shape.iter().map(|&size| size as i64).collect();
        self.add(Source::Floats(values, shape), ElementType::Float, false)
    }

    pub fn reshape(&mut self, id: Id, shape: &[usize]) -> Id {
        // Without the attribute, 0 stands for the size of the input.
        let zero = ("allowzero", true.into());
        self.node(
            "Reshape",
            &[id.into(), shape.into()],
            if shape.contains(&0) { std::slice::from_ref(&zero) } else { &[] },
        )
    }

    /// Returns the node that computes a value, if a node of this operator does.
    pub fn made_by(&self, id: Id, op: &str) -> Option<&Node> {
        match self.values[id].source {
            Source::Node { node, .. } => Some(&self.nodes[node]).filter(|node| node.op == op),
            _ => None,
        }
    }

    /// Removes the nodes that no output needs.
    pub fn remove_unused(&mut self) {
        let mut needed = vec![false; self.values.len()];
        self.outputs.iter().for_each(|&id| needed[id] = true);
        let mut kept = vec![false; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate().rev() {
            kept[i] = node.outputs.iter().any(|&id| needed[id]);
            if kept[i] {
                node.inputs.iter().for_each(|input| {
                    if let Operand::Value(id) = input {
                        needed[*id] = true;
                    }
                });
            }
        }
        let mut kept = kept.into_iter();
        self.nodes.retain(|_| kept.next().unwrap_or(true));
    }
}
