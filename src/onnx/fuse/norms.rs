//! Layer norms and RMS norms that exporters write as several operators.

use super::super::node::{Node, Source};
use super::super::ops;
use super::super::proto::AttributeProto;
use super::{Fused, Fuser};

/// The attribute with the rank that the input must have for the normalised dimensions to be its last ones; 0 for any.
pub(in crate::onnx) const RANK: &str = "anygpu.rank";
pub(in crate::onnx) const MOST_DIMENSIONS: usize = 8;

/// The dimensions of a mean: as many, which are the last ones if they count from the end (`rank` 0) or if there are `rank`.
#[derive(Clone, Copy, PartialEq)]
struct Trailing {
    count: usize,
    rank: usize,
}

/// x / √(mean of x² + ε), and the nodes before the last of them.
struct Norm {
    x: usize,
    dims: Trailing,
    epsilon: f64,
    parts: Vec<usize>,
    last: usize,
}

impl Fuser<'_> {
    /// Norms, from the mean of squares on, and their weights.
    pub(super) fn norm(&mut self, at: usize) {
        let Some(root) = self.over_root(at) else { return };
        let (mut norm, centred) = match self.centred(&root) {
            Some(norm) => (norm, true),
            None if self.closed(&root.parts, root.last, &[Some(Source::Slot(root.x))]) => (root, false),
            None => return,
        };
        let mut inputs = vec![Some(Source::Slot(norm.x))];
        let mut shape = None;
        let mut steps = vec![("Mul", 1)];
        if centred {
            steps.push(("Add", 2));
        }
        for (op, place) in steps {
            let Some((weight, next)) = self.weighted(norm.last, op, norm.dims.count) else { continue };
            let found = self.shape(weight);
            if shape.is_some() && shape != found {
                break;
            }
            shape = found;
            norm.parts.push(norm.last);
            norm.last = next;
            inputs.resize(place, None);
            inputs.push(Some(weight));
        }
        let op_type = if centred { "LayerNormalization" } else { "RMSNormalization" };
        let Some(operator) = ops::find("", op_type) else { return };
        let attributes = vec![
            AttributeProto { name: "axis".into(), i: -(norm.dims.count as i64), ..Default::default() },
            AttributeProto { name: RANK.into(), i: norm.dims.rank as i64, ..Default::default() },
            AttributeProto { name: "epsilon".into(), f: norm.epsilon as f32, ..Default::default() },
        ];
        self.replace(norm.last, Fused { op_type, operator, opset: 23, inputs, attributes }, &norm.parts);
    }

    /// x / √(mean of x² + ε) or x · (1 / √…), from the mean on.
    fn over_root(&self, at: usize) -> Option<Norm> {
        let mean = self.op(at, "ReduceMean")?;
        let dims = self.trailing(mean)?;
        let Some(Source::Slot(squares)) = *mean.inputs.first()? else { return None };
        let square = *self.makers.get(&squares)?;
        let base = self.squared(square)?;
        let (variance, add) = self.only_user(at)?;
        let epsilon = self.float(self.other(add, "Add", variance)?).filter(|epsilon| (0.0..1e30).contains(epsilon))?;
        let (_, root) = self.only_user(add)?;
        self.op(root, "Sqrt")?;
        let (deviation, mut last) = self.only_user(root)?;
        let mut parts = vec![square, at, add, root];
        let node = self.node(last).filter(|node| node.opset >= 7)?;
        let divisor = Some(Source::Slot(deviation));
        let inverts = match (node.op_type.as_str(), &node.inputs[..]) {
            ("Reciprocal", _) => true,
            ("Div", [Some(one), second]) if *second == divisor => self.float(*one) == Some(1.0),
            _ => false,
        };
        let x = if inverts {
            parts.push(last);
            let (inverse, product) = self.only_user(last)?;
            last = product;
            self.other(product, "Mul", inverse)?
        } else {
            match self.op(last, "Div")?.inputs[..] {
                [Some(x), second] if second == divisor => x,
                _ => return None,
            }
        };
        let Source::Slot(x) = x else { return None };
        if x != base {
            parts.push(self.twin(x, base)?);
        }
        Some(Norm { x: base, dims, epsilon, parts, last })
    }

    /// The layer norm that the norm of a difference from the mean is.
    fn centred(&self, norm: &Norm) -> Option<Norm> {
        let difference = self.made(norm.x, "Sub")?;
        let [Some(Source::Slot(x)), Some(Source::Slot(centre))] = self.node(difference)?.inputs[..] else {
            return None;
        };
        let mean = self.made(centre, "ReduceMean")?;
        let node = self.node(mean)?;
        if node.inputs.first() != Some(&Some(Source::Slot(x))) || self.trailing(node)? != norm.dims {
            return None;
        }
        let parts = [&norm.parts[..], &[difference, mean]].concat();
        self.closed(&parts, norm.last, &[Some(Source::Slot(x))]).then_some(Norm { x, parts, ..*norm })
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

    /// The node that computes `x`, if it is the same difference as that which computes `base`.
    fn twin(&self, x: usize, base: usize) -> Option<usize> {
        let (one, other) = (self.made(x, "Sub")?, self.made(base, "Sub")?);
        (self.node(one)?.inputs == self.node(other)?.inputs).then_some(one)
    }

    /// The weight of as many dimensions that the only user of a node multiplies or adds, and this user.
    fn weighted(&self, at: usize, op: &str, rank: usize) -> Option<(Source, usize)> {
        let (slot, next) = self.only_user(at)?;
        let weight = self.other(next, op, slot)?;
        let Source::Weight(place) = weight else { return None };
        let is_float = self.weights[place].about().ok()?.1.is_float();
        // Of a dimension of size 1, it is unknown whether it is one of x or is broadcast.
        let fits = |shape: &Vec<usize>| shape.len() == rank && shape.iter().all(|&size| size > 1);
        (is_float && self.shape(weight).as_ref().is_some_and(fits)).then_some((weight, next))
    }
}
