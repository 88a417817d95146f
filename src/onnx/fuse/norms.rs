//! Layer norms and RMS norms that exporters write as several operators.

use super::super::node::{Node, Source};
use super::super::ops;
use super::super::proto::AttributeProto;
use super::{Fused, Fuser, MOST_DIMENSIONS};

/// The attribute with the rank that the input must have for the normalised dimensions to be its last ones; 0 for any.
pub(in crate::onnx) const RANK: &str = "anygpu.rank";

/// The dimensions of a mean: as many, which are the last ones if they count from the end (`rank` 0) or if there are `rank`.
#[derive(Clone, Copy, PartialEq)]
struct Trailing {
    count: usize,
    rank: usize,
}

/// √(mean of x² + ε) or its reciprocal.
struct Root {
    x: usize,
    dims: Trailing,
    epsilon: f64,
    /// Its nodes, of which the last computes it.
    parts: Vec<usize>,
    slot: usize,
    /// The only node that reads it.
    user: usize,
    is_reciprocal: bool,
}

/// A norm, and the nodes before the last of it.
struct Norm {
    inputs: Vec<Option<Source>>,
    parts: Vec<usize>,
    last: usize,
}

impl Fuser<'_> {
    /// Norms, from the mean of squares on, and their weights.
    pub(super) fn norm(&mut self, at: usize) {
        let Some(root) = self.root(at) else { return };
        let (norm, op_type) = if let Some(norm) = self.expanded(&root) {
            (norm, "LayerNormalization")
        } else {
            let Some(norm) = self.quotient(&root) else { return };
            match self.centred(&root, &norm) {
                Some(norm) => (self.with_weights(norm, root.dims, &["Mul", "Add"]), "LayerNormalization"),
                None if self.closed(&norm.parts, norm.last, &norm.inputs) => {
                    (self.with_weights(norm, root.dims, &["Mul"]), "RMSNormalization")
                }
                None => return,
            }
        };
        let Some(operator) = ops::find("", op_type) else { return };
        let attributes = vec![
            AttributeProto { name: "axis".into(), i: -(root.dims.count as i64), ..Default::default() },
            AttributeProto { name: RANK.into(), i: root.dims.rank as i64, ..Default::default() },
            AttributeProto { name: "epsilon".into(), f: root.epsilon as f32, ..Default::default() },
        ];
        self.replace(norm.last, Fused { op_type, operator, opset: 23, inputs: norm.inputs, attributes }, &norm.parts);
    }

    /// √(mean of x² + ε), from the mean on, and its reciprocal if that is what is read.
    fn root(&self, at: usize) -> Option<Root> {
        let mean = self.op(at, "ReduceMean")?;
        let dims = self.trailing(mean)?;
        let Some(Source::Slot(squares)) = *mean.inputs.first()? else { return None };
        let square = *self.makers.get(&squares)?;
        let x = self.squared(square)?;
        let (variance, add) = self.only_user(at)?;
        let epsilon = self.float(self.other(add, "Add", variance)?).filter(|epsilon| (0.0..1e30).contains(epsilon))?;
        let (_, root) = self.only_user(add)?;
        self.op(root, "Sqrt")?;
        let (slot, user) = self.only_user(root)?;
        let parts = vec![square, at, add, root];
        let node = self.node(user).filter(|node| node.opset >= 7)?;
        let is_reciprocal = match (node.op_type.as_str(), &node.inputs[..]) {
            ("Reciprocal", _) => true,
            ("Div", [Some(one), Some(second)]) => *second == Source::Slot(slot) && self.float(*one) == Some(1.0),
            _ => false,
        };
        if !is_reciprocal {
            return Some(Root { x, dims, epsilon, parts, slot, user, is_reciprocal });
        }
        let parts = [&parts[..], &[user]].concat();
        let (slot, user) = self.only_user(user)?;
        Some(Root { x, dims, epsilon, parts, slot, user, is_reciprocal })
    }

    /// x / √(mean of x² + ε), where x may be computed twice.
    fn quotient(&self, root: &Root) -> Option<Norm> {
        let x = match root.is_reciprocal {
            true => self.other(root.user, "Mul", root.slot)?,
            false => match self.op(root.user, "Div")?.inputs[..] {
                [Some(x), Some(second)] if second == Source::Slot(root.slot) => x,
                _ => return None,
            },
        };
        let Source::Slot(x) = x else { return None };
        let mut parts = root.parts.clone();
        if x != root.x {
            parts.push(self.twin(x, root.x)?);
        }
        Some(Norm { inputs: vec![Some(Source::Slot(root.x))], parts, last: root.user })
    }

    /// The value whose difference from its mean is in the root, the mean, and the nodes of both.
    fn difference(&self, root: &Root) -> Option<(usize, usize, [usize; 2])> {
        let difference = self.made(root.x, "Sub")?;
        let [Some(Source::Slot(x)), Some(Source::Slot(centre))] = self.node(difference)?.inputs[..] else {
            return None;
        };
        let mean = self.made(centre, "ReduceMean")?;
        let node = self.node(mean)?;
        let fits = node.inputs.first() == Some(&Some(Source::Slot(x))) && self.trailing(node)? == root.dims;
        fits.then_some((x, centre, [difference, mean]))
    }

    /// The layer norm that the norm of a difference from the mean is.
    fn centred(&self, root: &Root, norm: &Norm) -> Option<Norm> {
        let (x, _, nodes) = self.difference(root)?;
        let (parts, inputs) = ([&norm.parts[..], &nodes].concat(), vec![Some(Source::Slot(x))]);
        self.closed(&parts, norm.last, &inputs).then_some(Norm { inputs, parts, last: norm.last })
    }

    /// The layer norm x · s + (bias − mean · s), where s is the weight by the root, as TensorFlow writes it.
    fn expanded(&self, root: &Root) -> Option<Norm> {
        let (x, mean, nodes) = self.difference(root).filter(|_| root.is_reciprocal)?;
        let weight = self.other(root.user, "Mul", root.slot)?;
        let shape = self.fitting(weight, root.dims.count)?;
        let [Some(scale)] = self.node(root.user)?.outputs[..] else { return None };
        let [one, other] = self.users.get(&scale)?[..] else { return None };
        let is = |at: usize, of: usize| self.other(at, "Mul", scale) == Some(Source::Slot(of));
        let (scaled, centre) = if is(one, x) && is(other, mean) { (one, other) } else { (other, one) };
        if !is(scaled, x) || !is(centre, mean) {
            return None;
        }
        let (product, shift) = self.only_user(centre)?;
        let [Some(bias), Some(second)] = self.op(shift, "Sub")?.inputs[..] else { return None };
        let (_, last) = self.only_user(shift)?;
        let sums = self.only_user(scaled)?.1 == last && self.op(last, "Add").is_some();
        let fits = sums && second == Source::Slot(product) && self.fitting(bias, root.dims.count)? == shape;
        let parts = [&root.parts[..], &nodes, &[root.user, scaled, centre, shift]].concat();
        let inputs = vec![Some(Source::Slot(x)), Some(weight), Some(bias)];
        (fits && self.closed(&parts, last, &inputs)).then_some(Norm { inputs, parts, last })
    }

    /// A norm with the weight that multiplies it, and then the bias of the same shape that is added.
    fn with_weights(&self, mut norm: Norm, dims: Trailing, ops: &[&str]) -> Norm {
        let mut shape = None;
        for (i, op) in ops.iter().enumerate() {
            let found = self.only_user(norm.last).and_then(|(slot, next)| {
                let weight = self.other(next, op, slot)?;
                Some((weight, next, self.fitting(weight, dims.count)?))
            });
            let Some((weight, next, sizes)) = found else { continue };
            if shape.as_ref().is_some_and(|shape| *shape != sizes) {
                break;
            }
            shape = Some(sizes);
            norm.parts.push(norm.last);
            norm.last = next;
            norm.inputs.resize(i + 1, None);
            norm.inputs.push(Some(weight));
        }
        norm
    }

    /// The dimensions of a mean that keeps its dimensions, if they may be the last ones.
    fn trailing(&self, mean: &Node) -> Option<Trailing> {
        if mean.attribute("keepdims").is_some_and(|attribute| attribute.i == 0) {
            return None;
        }
        let mut axes = match mean.attribute("axes") {
            Some(attribute) => attribute.ints.clone(),
            None => self.ints((*mean.inputs.get(1)?)?)?,
        };
        axes.sort_unstable();
        let (first, last) = (*axes.first()?, *axes.last()?);
        let consecutive = axes.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
        let rank = match last {
            -1 => 0,
            // Whether they are the last ones is known when it runs.
            0.. if first >= 0 => usize::try_from(last).ok().filter(|&last| last < MOST_DIMENSIONS)? + 1,
            _ => return None,
        };
        consecutive.then_some(Trailing { count: axes.len(), rank })
    }

    /// What a node squares.
    fn squared(&self, at: usize) -> Option<usize> {
        let node = self.node(at).filter(|node| node.opset >= 7)?;
        match (node.op_type.as_str(), &node.inputs[..]) {
            ("Mul", [Some(Source::Slot(x)), second]) if *second == Some(Source::Slot(*x)) => Some(*x),
            ("Pow", [Some(Source::Slot(x)), exponent]) if self.is_scalar(*exponent) => {
                (self.number(*exponent)? == 2.0).then_some(*x)
            }
            _ => None,
        }
    }

    /// The node that computes `x`, if it computes the same difference as the node of `base`.
    fn twin(&self, x: usize, base: usize) -> Option<usize> {
        let (one, other) = (self.made(x, "Sub")?, self.made(base, "Sub")?);
        (self.node(one)?.inputs == self.node(other)?.inputs).then_some(one)
    }

    /// The shape of a weight of as many dimensions. Of one of size 1 it is unknown whether x has it or it is broadcast.
    fn fitting(&self, weight: Source, dimensions: usize) -> Option<Vec<usize>> {
        let Source::Weight(place) = weight else { return None };
        let is_float = self.weights[place].about().ok()?.1.is_float();
        self.shape(weight).filter(|shape| is_float && shape.len() == dimensions && shape.iter().all(|&size| size > 1))
    }
}
