//! Attention that files write as several operators, and that a fusion made one.

use super::super::call::{Call, Operator};
use super::reduce;
use crate::Attention;
use crate::error::Result;
use crate::tensor::Tensor;

/// The name that the operator has in a graph. Files cannot call it.
pub(in crate::onnx) const FUSED_ATTENTION: &str = "FusedAttention";

pub(in crate::onnx) fn fused_attention() -> Operator {
    Operator::One(attention)
}

/// softmax(q kᵀ · scale + mask) v for queries, keys, values and a mask that may be left out. `transposed` says that the second
/// input is kᵀ.
fn attention(call: &Call) -> Result<Tensor> {
    let (q, k, v, mask) = (call.x(0)?, call.x(1)?, call.x(2)?, call.maybe(3)?);
    let (scale, axis, transposed) = (call.float("scale", 1.0), call.int("axis", -1), call.flag("transposed"));
    let other = |k: &Tensor| k.transpose(-2, -1);
    let rank = q.rank().max(k.rank());
    let one_op =
        !call.exact && [&q, &k, &v].iter().all(|x| x.rank() >= 2 && x.dtype().is_float() && x.dtype() == q.dtype());
    if mask.is_none() && one_op && (axis == -1 || axis == rank as i64 - 1) {
        let k = if transposed { other(&k)? } else { k };
        return q.attention(&k, &v, &Attention::new().scale(scale));
    }
    // With a mask, `Tensor::attention` is a composition on every device, with more ops: it finds the queries that
    // attend to nothing, and makes their results 0. Here they are NaN, as the operators of the file define.
    let k = if transposed { k } else { other(&k)? };
    let q = if scale == 1.0 { q } else { q.mul_scalar(scale)? };
    let scores = masked(q.matmul(&k)?, mask)?;
    let weights = reduce::along_axis(call, &scores, axis, reduce::softmax)?;
    drop(scores);
    weights.matmul(&v)
}

/// Takes the scores, so that their memory is free before the softmax.
fn masked(scores: Tensor, mask: Option<Tensor>) -> Result<Tensor> {
    match mask {
        Some(mask) => scores.add(&mask),
        None => Ok(scores),
    }
}
