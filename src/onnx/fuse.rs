//! Fusions, when a model is loaded: scales and shifts of channels become part of the convolution before or after them, and
//! activations, normalisations and attention that exporters write as several operators become one.

pub(super) mod activations;
mod affine;
mod attention;
pub(super) mod norms;
pub(super) mod then;

use std::collections::HashMap;

use super::call::Operator;
use super::element_type::ElementType;
use super::node::{Body, Graph, Node, Source};
use super::proto::AttributeProto;
use super::weights::Weight;

/// The most dimensions that a fusion assumes of a tensor: as many as a kernel walks.
pub(super) const MOST_DIMENSIONS: usize = 8;

/// Fuses in a graph and in those within it. The weights of convolutions are new tensors under their old names.
pub(super) fn fuse(graph: &mut Graph, weights: &mut Vec<Weight>) {
    for node in &mut graph.nodes {
        node.dead.clear();
        node.body.graphs_mut().for_each(|graph| fuse(graph, weights));
    }
    let nodes = std::mem::take(&mut graph.nodes).into_iter().map(Some).collect();
    let own = weights.len();
    let mut fuser = Fuser { nodes, weights, users: HashMap::new(), makers: HashMap::new(), own };
    fuser.count_users(graph);
    for at in 0..fuser.nodes.len() {
        fuser.hardswish(at);
        fuser.swish(at);
        fuser.gelu(at);
        fuser.norm(at);
        fuser.attention(at);
    }
    for at in 0..fuser.nodes.len() {
        fuser.affine_after(at);
    }
    for at in 0..fuser.nodes.len() {
        fuser.affine_before(at);
    }
    for at in 0..fuser.nodes.len() {
        fuser.activation_after(at);
    }
    graph.nodes = fuser.nodes.into_iter().flatten().collect();
    graph.finish();
}

struct Fuser<'a> {
    /// `None` for a node that became part of another.
    nodes: Vec<Option<Node>>,
    weights: &'a mut Vec<Weight>,
    /// The nodes that read each slot; a slot that the graph's outputs or inner graphs read has a user beyond the last node.
    users: HashMap<usize, Vec<usize>>,
    /// The node that computes each slot.
    makers: HashMap<usize, usize>,
    /// The weights of the file; those beyond were made here.
    own: usize,
}

/// What takes the place of several nodes.
struct Fused {
    op_type: &'static str,
    operator: Operator,
    opset: i64,
    inputs: Vec<Option<Source>>,
    attributes: Vec<AttributeProto>,
}

/// One element of the file.
struct Constant {
    value: f64,
    rank: usize,
    kind: ElementType,
}

impl Fuser<'_> {
    fn count_users(&mut self, graph: &Graph) {
        let beyond = self.nodes.len();
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            node.outputs.iter().flatten().for_each(|&slot| _ = self.makers.insert(slot, at));
            for source in node.inputs.iter().flatten() {
                if let Source::Slot(slot) = source {
                    self.users.entry(*slot).or_default().push(at);
                }
            }
            for (outer, _) in node.body.graphs().flat_map(|graph| &graph.captures) {
                if let Source::Slot(slot) = outer {
                    self.users.entry(*slot).or_default().push(beyond);
                }
            }
        }
        for output in &graph.outputs {
            if let Source::Slot(slot) = output {
                self.users.entry(*slot).or_default().push(beyond);
            }
        }
    }

    fn node(&self, at: usize) -> Option<&Node> {
        // A function of the file may have the name of an operator.
        self.nodes.get(at)?.as_ref().filter(|node| matches!(node.body, Body::Operator(_)))
    }

    /// The only output of a node, and the only node that reads it.
    fn only_user(&self, at: usize) -> Option<(usize, usize)> {
        let [Some(slot)] = self.node(at)?.outputs[..] else { return None };
        match self.users.get(&slot)?[..] {
            [user] if user < self.nodes.len() => Some((slot, user)),
            _ => None,
        }
    }

    /// The only element of a weight.
    fn number(&self, source: Option<Source>) -> Option<f64> {
        self.constant(source?).map(|constant| constant.value)
    }

    /// Whether a weight is one element of at most one dimension.
    fn is_scalar(&self, source: Option<Source>) -> bool {
        source.and_then(|source| self.constant(source)).is_some_and(|constant| constant.rank <= 1)
    }

    /// A node of this operator in the form that it has since operator set 7. The arithmetic of earlier sets
    /// broadcasts in another way.
    fn op(&self, at: usize, op: &str) -> Option<&Node> {
        self.node(at).filter(|node| node.op_type == op && node.opset >= 7)
    }

    /// The node that computes a slot, if it is of this operator.
    fn made(&self, slot: usize, op: &str) -> Option<usize> {
        self.makers.get(&slot).copied().filter(|&at| self.op(at, op).is_some())
    }

    /// The other input of a node of two inputs, one of which is a slot.
    fn other(&self, at: usize, op: &str, slot: usize) -> Option<Source> {
        match self.op(at, op)?.inputs[..] {
            [Some(Source::Slot(one)), Some(other)] if one == slot => Some(other),
            [Some(other), Some(Source::Slot(one))] if one == slot => Some(other),
            _ => None,
        }
    }

    /// Whether nothing but `last` and the nodes themselves reads what `parts` compute, and none of these computes one of the inputs
    /// that `last` gets instead.
    fn closed(&self, parts: &[usize], last: usize, inputs: &[Option<Source>]) -> bool {
        let made = |source: &Source| matches!(source, Source::Slot(slot) if self.makers.get(slot).is_some_and(|at| parts.contains(at)));
        if inputs.iter().flatten().any(made) {
            return false;
        }
        let inside = |user: &usize| *user == last || parts.contains(user);
        parts.iter().all(|&part| {
            let outputs = self.node(part).map(|node| node.outputs.iter().flatten());
            outputs.is_some_and(|mut slots| {
                slots.all(|slot| self.users.get(slot).is_some_and(|all| all.iter().all(inside)))
            })
        })
    }

    /// The sizes of a weight.
    fn shape(&self, source: Source) -> Option<Vec<usize>> {
        let Source::Weight(weight) = source else { return None };
        self.weights[weight].shape().ok()
    }

    /// The few integers of a weight.
    fn ints(&self, source: Source) -> Option<Vec<i64>> {
        let Source::Weight(weight) = source else { return None };
        let weight = &self.weights[weight];
        let (count, kind) = weight.about().ok()?;
        if count > 8 || kind.is_float() {
            return None;
        }
        Some(weight.value().ok()?.read().ok()?.to_ints())
    }

    /// One float of the file, of at most one dimension.
    fn float(&self, source: Source) -> Option<f64> {
        let constant = self.constant(source)?;
        (constant.kind.is_float() && constant.rank <= 1).then_some(constant.value)
    }

    /// The only element of a weight.
    fn constant(&self, source: Source) -> Option<Constant> {
        let Source::Weight(weight) = source else { return None };
        let weight = &self.weights[weight];
        // What is fused is computed in at most 32 bits.
        let (1, kind) = weight.about().ok().filter(|(_, kind)| *kind != ElementType::Double)? else { return None };
        let value = weight.value().ok()?;
        Some(Constant { value: *value.read().ok()?.to_floats().first()?, rank: value.shape().ok()?.len(), kind })
    }

    /// The two inputs of a node, the one that is computed first.
    fn computed_and_weight(&self, node: &Node) -> Option<(usize, Option<Source>)> {
        match node.inputs[..] {
            [Some(Source::Slot(slot)), other @ Some(Source::Weight(_))] => Some((slot, other)),
            [other @ Some(Source::Weight(_)), Some(Source::Slot(slot))] => Some((slot, other)),
            _ => None,
        }
    }

    /// Makes node `at` another operator, and removes the others of the pattern.
    fn replace(&mut self, at: usize, new: Fused, parts: &[usize]) {
        for &part in parts {
            if let Some(node) = self.nodes[part].take() {
                self.forget(part, &node);
            }
        }
        let Some(old) = self.nodes[at].take() else { return };
        self.forget(at, &old);
        for source in new.inputs.iter().flatten() {
            if let Source::Slot(slot) = *source {
                self.users.entry(slot).or_default().push(at);
            }
        }
        let Fused { op_type, operator, opset, inputs, attributes } = new;
        let body = Body::Operator(operator);
        self.nodes[at] = Some(Node { op_type: op_type.to_owned(), opset, attributes, inputs, body, ..old });
    }

    fn forget(&mut self, at: usize, node: &Node) {
        for source in node.inputs.iter().flatten() {
            if let Source::Slot(slot) = source
                && let Some(users) = self.users.get_mut(slot)
                && let Some(place) = users.iter().position(|user| *user == at)
            {
                users.remove(place);
            }
        }
    }
}
