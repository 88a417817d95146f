//! From recorded ops to the nodes of a graph.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::graph::{Graph, Id, Source};
use super::{elementwise, layers, movement};
use crate::dtype::DType;
use crate::error::Result;
use crate::onnx::{ElementType, fault};
use crate::ops::traced::{Key, Step, Traced};
use crate::tensor::Tensor;

/// The graph as far as it is made, and which value each tensor is.
pub(super) struct Translator<'a> {
    pub graph: Graph,
    known: HashMap<Key, Id>,
    named: &'a HashMap<Key, String>,
    /// The storages of the inputs and of what is computed from them.
    computed: HashSet<usize>,
}

/// One op to be translated.
pub(super) struct Call<'a, 'b> {
    pub translator: &'b mut Translator<'a>,
    pub step: &'b Step,
}

/// Returns the graph of these ops.
///
/// # Errors
/// [`Error::InvalidArgument`] with the names of all ops that have no operator of ONNX.
pub(super) fn translate(
    steps: &[Step],
    inputs: &[Tensor],
    outputs: &[Tensor],
    named: &HashMap<Key, String>,
) -> Result<Graph> {
    let mut translator = Translator { graph: Graph::new(), known: HashMap::new(), named, computed: HashSet::new() };
    for (i, input) in inputs.iter().enumerate() {
        let id = translator.graph.add(Source::Input(i), ElementType::natural(input.dtype()), true);
        translator.known.insert(Key::of(input), id);
        translator.computed.insert(input.storage().id());
    }
    let mut unknown = BTreeSet::new();
    for step in steps {
        if !translator.step(step)? {
            unknown.insert(step.name);
        }
    }
    if !unknown.is_empty() {
        let names: Vec<&str> = unknown.into_iter().collect();
        return Err(fault(format!("ONNX has no operator, or this crate no translation, for: {}", names.join(", "))));
    }
    for output in outputs {
        let id = translator.value(output)?;
        let id = translator.graph.cast(id, ElementType::natural(output.dtype()));
        // An output is the result of a node of its own.
        let alone = matches!(translator.graph.values[id].source, Source::Node { .. });
        let taken = !alone || translator.graph.outputs.contains(&id);
        let id = if taken { translator.graph.simple("Identity", &[id]) } else { id };
        translator.graph.outputs.push(id);
    }
    translator.graph.remove_unused();
    Ok(translator.graph)
}

impl<'a> Translator<'a> {
    /// Adds the nodes of an op. Returns whether it has a translation.
    fn step(&mut self, step: &Step) -> Result<bool> {
        let key = Key::of(&step.out);
        // A view that changes nothing, or a result that other ops have computed.
        if self.known.contains_key(&key) {
            return Ok(true);
        }
        let mut live = false;
        for input in &step.inputs {
            let id = self.value(input)?;
            live |= self.graph.values[id].live;
        }
        if !live {
            return Ok(true); // the result is a constant
        }
        let translated = match &step.what {
            Some(what) => Call { translator: self, step }.translate(what)?,
            None => None,
        };
        // What cannot be translated has a value too, so that the ops after it are looked at.
        let id = translated
            .unwrap_or_else(|| self.graph.add(Source::Number(0.0), ElementType::natural(step.out.dtype()), true));
        self.known.insert(key, id);
        self.computed.insert(step.out.storage().id());
        Ok(translated.is_some())
    }

    /// Returns the value of a tensor.
    pub fn value(&mut self, x: &Tensor) -> Result<Id> {
        let key = Key::of(x);
        if let Some(&id) = self.known.get(&key) {
            return Ok(id);
        }
        let kind = ElementType::natural(x.dtype());
        // Parameters may lie in one storage, also with views of one of them.
        let id = match self.named.get(&key) {
            Some(name) => self.graph.add(Source::Named(name.clone(), x.clone()), kind, true),
            None if self.computed.contains(&x.storage().id()) => {
                let shape = x.shape();
                return Err(fault(format!(
                    "a view of shape {shape:?} of what is computed from the input is not recorded"
                )));
            }
            None => self.graph.add(Source::Tensor(x.detach()), kind, false),
        };
        self.known.insert(key, id);
        Ok(id)
    }
}

impl Call<'_, '_> {
    pub fn graph(&mut self) -> &mut Graph {
        &mut self.translator.graph
    }

    /// Returns an input as it is in the graph, where its type may differ from the tensor's.
    pub fn stored(&mut self, i: usize) -> Result<Id> {
        self.translator.value(&self.step.inputs[i])
    }

    /// Returns an input of the type of the tensor; halves as f32, in which ops compute.
    pub fn input(&mut self, i: usize) -> Result<Id> {
        self.input_as(i, ElementType::natural(self.dtype(i).wide()))
    }

    /// Returns an input as a value of this type.
    pub fn input_as(&mut self, i: usize, kind: ElementType) -> Result<Id> {
        let id = self.stored(i)?;
        Ok(self.graph().cast(id, kind))
    }

    pub fn dtype(&self, i: usize) -> DType {
        self.step.inputs[i].dtype()
    }

    pub fn shape(&self, i: usize) -> &[usize] {
        self.step.inputs[i].shape()
    }

    pub fn out_shape(&self) -> &[usize] {
        self.step.out.shape()
    }

    fn translate(&mut self, what: &Traced) -> Result<Option<Id>> {
        match what {
            Traced::Same => self.stored(0).map(Some),
            Traced::Cast(_)
            | Traced::Truth(_)
            | Traced::Unary(..)
            | Traced::Binary(_)
            | Traced::WithNumber { .. }
            | Traced::Where
            | Traced::MaskedFill(_) => elementwise::translate(self, what),
            Traced::MatMul
            | Traced::Attention { .. }
            | Traced::Conv { .. }
            | Traced::ConvTranspose { .. }
            | Traced::MaxPool(_)
            | Traced::MaxPoolPositions(_)
            | Traced::AvgPool { .. }
            | Traced::Columns(_)
            | Traced::Planes(_)
            | Traced::Moments(_)
            | Traced::Normalise(_) => layers::translate(self, what),
            _ => movement::translate(self, what),
        }
    }
}
