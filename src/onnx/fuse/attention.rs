//! Attention that exporters write as products, a softmax and what is between them.

use super::super::node::Source;
use super::super::ops;
use super::super::proto::AttributeProto;
use super::{Fused, Fuser};

/// Scores of queries and keys before a mask is added.
struct Scores {
    queries: Source,
    keys: Source,
    /// Whether the keys are as the product takes them, `[.., E, S]`, since no transposition before it could be left out.
    transposed: bool,
    /// The number of dimensions of the keys, where a transposition tells it.
    rank: Option<usize>,
    scale: f64,
    parts: Vec<usize>,
}

impl Fuser<'_> {
    /// softmax(q kᵀ · scale + mask) v, from the softmax on.
    pub(super) fn attention(&mut self, at: usize) {
        let find = || {
            let softmax = self.op(at, "Softmax")?;
            let default = if softmax.opset < 13 { 1 } else { -1 };
            let axis = softmax.attribute("axis").map_or(default, |attribute| attribute.i);
            let Some(Source::Slot(input)) = *softmax.inputs.first()? else { return None };
            let (weights, last) = self.only_user(at)?;
            let [Some(first), Some(values)] = self.op(last, "MatMul")?.inputs[..] else { return None };
            if first != Source::Slot(weights) || values == first {
                return None;
            }
            let mut options = vec![(input, None)];
            if let Some(add) = self.made(input, "Add")
                && let [Some(a), Some(b)] = self.node(add)?.inputs[..]
            {
                options = Vec::new();
                for (scores, mask) in [(a, b), (b, a)] {
                    if let Source::Slot(slot) = scores {
                        options.push((slot, Some((mask, add))));
                    }
                }
            }
            options.into_iter().find_map(|(slot, mask)| {
                let mut scores = self.scores(slot)?;
                let is_last = axis == -1 || scores.rank.is_some_and(|rank| axis == rank as i64 - 1);
                scores.parts.push(at);
                scores.parts.extend(mask.map(|(_, add)| add));
                let mask = mask.map(|(mask, _)| mask);
                let inputs = [Some(scores.queries), Some(scores.keys), Some(values), mask];
                let fits = is_last && self.closed(&scores.parts, last, &inputs);
                fits.then_some((last, axis, softmax.opset, scores, inputs))
            })
        };
        let Some((last, axis, opset, scores, inputs)) = find() else { return };
        let Scores { transposed, scale, parts, .. } = scores;
        let attributes = vec![
            AttributeProto { name: "scale".into(), f: scale as f32, ..Default::default() },
            AttributeProto { name: "transposed".into(), i: transposed.into(), ..Default::default() },
            AttributeProto { name: "axis".into(), i: axis, ..Default::default() },
        ];
        let (op_type, operator) = (ops::FUSED_ATTENTION, ops::fused_attention());
        self.replace(last, Fused { op_type, operator, opset, inputs: inputs.to_vec(), attributes }, &parts);
    }

    /// The product of queries and keys, each of which or the product may be scaled by numbers.
    fn scores(&self, slot: usize) -> Option<Scores> {
        let (mut scale, mut parts) = (1.0, Vec::new());
        let Source::Slot(product) = self.unscaled(Source::Slot(slot), &mut scale, &mut parts) else { return None };
        let product = self.made(product, "MatMul")?;
        parts.push(product);
        let [Some(queries), Some(keys)] = self.node(product)?.inputs[..] else { return None };
        let queries = self.unscaled(queries, &mut scale, &mut parts);
        let mut keys = self.unscaled(keys, &mut scale, &mut parts);
        let (mut transposed, mut rank) = (true, None);
        if let Source::Slot(slot) = keys
            && let Some(transpose) = self.made(slot, "Transpose")
        {
            let node = self.node(transpose)?;
            let perm = node.attribute("perm").map(|attribute| &attribute.ints[..]).unwrap_or_default();
            rank = Some(perm.len()).filter(|&rank| rank > 0);
            let last = perm.len() as i64 - 1;
            let swaps = |(i, &from): (usize, &i64)| match last - i as i64 {
                0 => from == last - 1,
                1 => from == last,
                _ => from == i as i64,
            };
            if perm.len() >= 2 && perm.iter().enumerate().all(swaps) {
                keys = (*node.inputs.first()?)?;
                transposed = false;
                if self.only_user(transpose).is_some() {
                    parts.push(transpose);
                    keys = self.unscaled(keys, &mut scale, &mut parts);
                }
            }
        }
        (scale as f32).is_finite().then_some(Scores { queries, keys, transposed, rank, scale, parts })
    }

    /// The source without the numbers that nodes before it, which nothing else reads, multiply it by or divide it by.
    fn unscaled(&self, mut source: Source, scale: &mut f64, parts: &mut Vec<usize>) -> Source {
        while let Source::Slot(slot) = source
            && let Some(&at) = self.makers.get(&slot)
            && let Some(node) = self.node(at).filter(|node| node.opset >= 7)
            && self.only_user(at).is_some()
        {
            let (next, factor) = match (node.op_type.as_str(), &node.inputs[..]) {
                ("Mul", &[Some(x), Some(number)]) if self.float(number).is_some() => (x, self.float(number)),
                ("Mul", &[Some(number), Some(x)]) => (x, self.float(number)),
                ("Div", &[Some(x), Some(number)]) => (x, self.float(number).map(f64::recip)),
                _ => return source,
            };
            let Some(factor) = factor else { return source };
            *scale *= factor;
            parts.push(at);
            source = next;
        }
        source
    }
}
