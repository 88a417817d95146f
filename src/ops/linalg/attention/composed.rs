//! Attention as a composition of products and a softmax, which has masks, dropout and rows of any width: of all queries at once, or,
//! where their scores would fill the memory, of blocks of them.

use super::{hide, hide_future, past};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::products;
use crate::ops::recomputed::{Cut, InParts, in_parts};
use crate::shape::broadcast_shapes;
use crate::tensor::Tensor;

/// What the composition computes from queries, keys and values and, if there is one, a mask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Composed {
    pub scale: f32,
    /// Whether query i attends to the keys 0 to i only.
    pub causal: bool,
    pub dropout: f32,
}

/// Attention of blocks of at most so many scores, if a query has no more.
struct Blocks {
    op: Composed,
    scores: usize,
}

impl Composed {
    /// Returns the results of f32 queries. `first` is the number of the first query.
    pub fn apply(&self, inputs: &[Tensor], first: usize) -> Result<Tensor> {
        let (queries, keys, values, mask) = (&inputs[0], &inputs[1], &inputs[2], inputs.get(3));
        let _products = products(None);
        // Scales the queries instead of the scores: they usually have fewer elements.
        let mut scores = queries.mul_scalar(self.scale)?.matmul_mixed(&keys.t()?)?;
        if self.causal {
            scores = hide_future(&scores, first)?;
        }
        // Queries without a key attend to all keys, so that no score is NaN. Their results are replaced at the end.
        let sizes = [queries, keys].map(|x| x.shape()[x.rank() - 2]);
        let past = || self.causal.then(|| past(sizes, first, queries.device())).transpose();
        let served = mask.map(|mask| served(mask, past()?.as_ref())).transpose()?;
        if let (Some(mask), Some(served)) = (mask, &served) {
            scores = match mask.dtype() {
                DType::Bool => hide(&scores, &mask.logical_or(&served.logical_not()?)?)?,
                _ => scores.add(&served.where_cond(&mask.to_dtype(DType::F32)?, 0)?)?,
            };
        }
        let mut weights = scores.softmax(-1)?;
        drop(scores); // their memory is free for the last product
        if self.dropout != 0.0 {
            weights = weights.dropout(self.dropout, true)?;
        }
        let out = weights.matmul_mixed(values)?;
        served.map_or(Ok(out.clone()), |served| served.where_cond(&out, 0))
    }

    /// Returns the results in blocks of at most so many scores.
    pub fn in_blocks(self, inputs: &[Tensor], scores: usize) -> Result<Tensor> {
        in_parts("attention", Blocks { op: self, scores }, &inputs.iter().collect::<Vec<_>>())
    }
}

/// Returns the dimensions of the heads of all operands.
fn heads(inputs: &[Tensor]) -> Result<Vec<usize>> {
    let batch = |x: &Tensor| x.shape()[..x.rank().saturating_sub(2)].to_vec();
    inputs.iter().try_fold(Vec::new(), |all, x| broadcast_shapes("attention", &all, &batch(x)))
}

/// Returns the scores of all queries.
pub(super) fn scores(inputs: &[Tensor]) -> usize {
    let [queries, keys] = [0, 1].map(|i| inputs[i].shape()[inputs[i].rank() - 2]);
    heads(inputs).into_iter().flatten().chain([queries, keys]).fold(1, usize::saturating_mul)
}

impl InParts for Blocks {
    /// Cuts the outermost dimension of the result that has more than one element.
    fn cut(&self, inputs: &[Tensor]) -> Option<Cut> {
        let scores = scores(inputs);
        if scores <= self.scores {
            return None;
        }
        let heads = heads(inputs).ok()?;
        let rank = heads.len() + 2;
        let queries = inputs[0].shape()[inputs[0].rank() - 2];
        let (dim, &size) = heads.iter().chain([&queries]).enumerate().find(|&(_, &size)| size > 1)?;
        let each = size.div_ceil(scores.div_ceil(self.scores).min(size));
        // Dimensions count from the right. Keys and values have no dimension of queries, and others may be broadcast.
        let of_input = |(i, x): (usize, &Tensor)| {
            let own = (dim + x.rank()).checked_sub(rank)?;
            let cut = x.shape()[own] > 1 && (dim + 2 < rank || i == 0 || i == 3);
            cut.then_some(own)
        };
        Some(Cut { dim, each, inputs: inputs.iter().enumerate().map(of_input).collect() })
    }

    fn shape(&self, inputs: &[Tensor]) -> Result<Vec<usize>> {
        let [queries, values] = [0, 2].map(|i| inputs[i].shape());
        let last = [queries[queries.len() - 2], values[values.len() - 1]];
        Ok([&heads(inputs)?[..], &last].concat())
    }

    fn part(&self, inputs: &[Tensor], first: usize) -> Result<Tensor> {
        let rows = inputs[0].rank() - 2;
        let (queries, keys) = (inputs[0].shape()[rows], inputs[1].shape()[inputs[1].rank() - 2]);
        // Keys that none of these queries sees need no scores.
        let seen = if self.op.causal { keys.min(first + queries) } else { keys };
        let of_seen = |(i, x): (usize, &Tensor)| match i {
            1 | 2 if seen < keys => x.narrow(-2, 0, seen),
            3 if seen < keys && x.shape().last().is_some_and(|&columns| columns > 1) => x.narrow(-1, 0, seen),
            _ => Ok(x.clone()),
        };
        self.op.apply(&inputs.iter().enumerate().map(of_seen).collect::<Result<Vec<_>>>()?, first)
    }
}

/// Returns whether each query has a key that the mask and `past` allow: `[.., L, 1]`.
fn served(mask: &Tensor, past: Option<&Tensor>) -> Result<Tensor> {
    let mask = if mask.rank() == 0 { mask.reshape([1])? } else { mask.detach() };
    let open = if mask.dtype() == DType::Bool { mask } else { mask.ne(f32::NEG_INFINITY)? };
    let open = past.map_or(Ok(open.clone()), |past| open.logical_and(past))?;
    open.any(-1, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::ops::linalg::matmul_variants::numbers;
    use crate::{GradOptions, grad};

    /// Queries, keys and values of several heads, of which some are broadcast, a mask, and the most scores of a block.
    const CASES: [([&[usize]; 4], usize); 4] = [
        ([&[2, 3, 7, 4], &[2, 3, 9, 4], &[2, 3, 9, 5], &[7, 9]], 20),
        ([&[2, 1, 7, 4], &[3, 9, 4], &[9, 5], &[2, 1, 1, 9]], 100),
        ([&[5, 4], &[4, 4], &[4, 2], &[4]], 1),
        ([&[1, 3, 1, 4], &[4, 1, 6, 4], &[6, 2], &[]], 30),
    ];

    /// Returns the result, its gradients by all inputs, and the gradients of a product of two of these gradients.
    fn all_of(inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<Vec<Tensor>> {
        let leaves: Vec<Tensor> =
            inputs.iter().map(|x| if x.dtype().is_float() { x.requires_grad() } else { x.clone() }).collect();
        let tracked: Vec<&Tensor> = leaves.iter().filter(|x| x.is_tracked()).collect();
        let out = f(&leaves)?;
        let slopes = Tensor::from_vec(numbers(out.elem_count(), 9), out.shape(), out.device())?;
        let options = GradOptions::new().output_grad(&slopes).retain_graph().allow_unused();
        let firsts = grad(&out, &tracked, &options)?;
        let seconds = grad(&out, &tracked, &options.create_graph())?;
        let product = seconds[0].sum_all()?.mul(&seconds[1].sum_all()?)?;
        let seconds = grad(&product, &tracked, &GradOptions::new().allow_unused())?;
        Ok([vec![out.detach()], firsts, seconds].concat())
    }

    #[test]
    fn blocks_give_the_numbers_of_the_whole() -> Result<()> {
        for device in Device::all() {
            for (i, (shapes, scores)) in CASES.into_iter().enumerate() {
                let of = |(seed, shape): (u32, &[usize])| {
                    Tensor::from_vec(numbers(shape.iter().product(), seed), shape, &device)
                };
                let all: Vec<Tensor> = (1..).zip(shapes).map(of).collect::<Result<_>>()?;
                let seen = all[3].gt(0.0)?;
                for (causal, inputs) in
                    [(i % 2 == 0, all[..3].to_vec()), (i % 2 == 1, all.clone()), (true, [&all[..3], &[seen]].concat())]
                {
                    let op = Composed { scale: 0.7, causal, dropout: 0.0 };
                    let expected = all_of(&inputs, |x| op.apply(x, 0))?;
                    let got = all_of(&inputs, |x| op.in_blocks(x, scores))?;
                    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                        let (got, expected) = (got.to_vec::<f32>()?, expected.to_vec::<f32>()?);
                        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5 * (1.0 + b.abs()); // false for NaN
                        let same = got.len() == expected.len() && got.iter().zip(&expected).all(close);
                        let case = format!("{shapes:?} in blocks of {scores}, causal: {causal}");
                        assert!(same, "{device}: tensor {i} of {case}: {got:?}, not {expected:?}");
                    }
                }
            }
        }
        Ok(())
    }
}
