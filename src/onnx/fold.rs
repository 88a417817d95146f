//! Constant folding: nodes that read only weights are computed once, when the model is loaded.

use std::collections::HashMap;

use super::call::{Call, Operator};
use super::host;
use super::node::{Body, Graph, Node, Source};
use super::value::Value;
use super::weights::{Stored, Weight};
use crate::autograd::no_grad;
use crate::device::Device;
use crate::error::Result;

/// Operators whose output has at most as many elements as their inputs together.
const NOT_GROWING: &[&str] = &[
    "Reshape",
    "Transpose",
    "Unsqueeze",
    "Squeeze",
    "Flatten",
    "Cast",
    "CastLike",
    "DequantizeLinear",
    "Slice",
    "Concat",
    "Split",
    "Neg",
    "Abs",
    "Sqrt",
    "Reciprocal",
    "Exp",
    "Log",
    "Tanh",
    "Sigmoid",
    "Floor",
    "Ceil",
];
/// Elements that may be computed besides four times the elements of the file: a short file can ask for many.
const SPARE: usize = 1 << 22;

/// Folds a model's graph. Results become weights with the names of the outputs.
pub(super) fn fold(graph: &mut Graph, weights: &mut Vec<Weight>) -> Result<()> {
    let mut room = SPARE;
    for weight in weights.iter() {
        room = room.saturating_add(weight.present()?.saturating_mul(4));
    }
    let mut folder = Folder { weights, room };
    no_grad(|| folder.graph(graph, HashMap::new()));
    graph.finish();
    Ok(())
}

struct Folder<'a> {
    weights: &'a mut Vec<Weight>,
    /// Elements that may still be computed.
    room: usize,
}

impl Folder<'_> {
    /// Folds a graph, some of whose values are known to be weights.
    fn graph(&mut self, graph: &mut Graph, mut known: HashMap<usize, usize>) {
        let place = |known: &HashMap<usize, usize>, source: Source| match source {
            Source::Slot(slot) => known.get(&slot).map_or(source, |&weight| Source::Weight(weight)),
            Source::Weight(_) => source,
        };
        let mut kept = Vec::with_capacity(graph.nodes.len());
        for mut node in std::mem::take(&mut graph.nodes) {
            node.dead.clear();
            node.inputs.iter_mut().for_each(|input| *input = input.map(|source| place(&known, source)));
            for inner in node.body.graphs_mut() {
                let mut captured = HashMap::new();
                inner.captures.retain(|&(outer, slot)| match place(&known, outer) {
                    Source::Weight(weight) => {
                        captured.insert(slot, weight);
                        false
                    }
                    Source::Slot(_) => true,
                });
                self.graph(inner, captured);
            }
            match self.evaluate(&node) {
                Some(values) => self.replace(&node, values, &mut known),
                None => kept.push(node),
            }
        }
        graph.nodes = kept;
        graph.outputs.iter_mut().for_each(|output| *output = place(&known, *output));
    }

    /// The outputs of a node that reads only weights, if it is one to fold. One that fails is left for the run, which then has
    /// the error.
    fn evaluate(&mut self, node: &Node) -> Option<Vec<Value>> {
        let Body::Operator(operator) = node.body else { return None };
        let mut count: usize = 0;
        // Before anything is decoded, which takes more memory than the file: a table of embeddings is read with indices that are no weight.
        for source in node.inputs.iter().flatten() {
            let Source::Weight(weight) = source else { return None };
            count = count.saturating_add(self.weights[*weight].about().ok()?.0);
        }
        if node.inputs.is_empty() || count > self.room {
            return None;
        }
        let value = |source: &Option<Source>| match source {
            Some(Source::Weight(weight)) => self.weights[*weight].value().ok().map(Some),
            Some(Source::Slot(_)) => None,
            None => Some(None),
        };
        let inputs: Vec<Option<Value>> = node.inputs.iter().map(value).collect::<Option<_>>()?;
        let cpu = Device::cpu();
        let call = Call::new(node, &inputs, &cpu, false).ok()?;
        let values = self.values(&call, operator)?;
        let made: usize = values.iter().filter_map(|value| Some(value.shape().ok()?.iter().product::<usize>())).sum();
        self.room = self.room.checked_sub(made)?;
        Some(values)
    }

    fn values(&self, call: &Call, operator: Operator) -> Option<Vec<Value>> {
        if let Some(values) = host::evaluate(call) {
            return values.ok();
        }
        match NOT_GROWING.contains(&call.op()) {
            true => operator.call(call).ok(),
            false => None,
        }
    }

    fn replace(&mut self, node: &Node, values: Vec<Value>, known: &mut HashMap<usize, usize>) {
        let named = |weights: &[Weight], i: usize| {
            let of = node.inputs.iter().flatten().find_map(|source| match source {
                Source::Weight(weight) => Some(weights[*weight].name.as_str()),
                Source::Slot(_) => None,
            });
            // The weight that it is made of tells more than the name of an output.
            let suffix = if i == 0 { String::new() } else { format!(".{i}") };
            format!("{}.{}{suffix}", of.unwrap_or_default(), node.op_type)
        };
        for (i, value) in values.into_iter().enumerate() {
            let Some(&Some(slot)) = node.outputs.get(i) else { continue };
            let name = named(self.weights, i);
            known.insert(slot, self.weights.len());
            self.weights.push(Weight { name, stored: Stored::Constant(value) });
        }
    }
}
