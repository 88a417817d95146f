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

/// softmax(q kᵀ · scale + mask) v for queries, keys, values and a mask that may be left out. `turned` says that the second
/// input is kᵀ.
fn attention(call: &Call) -> Result<Tensor> {
    let (q, k, v, mask) = (call.x(0)?, call.x(1)?, call.x(2)?, call.maybe(3)?);
    let (scale, axis, turned) = (call.float("scale", 1.0), call.int("axis", -1), call.flag("turned"));
    let other = |k: &Tensor| k.transpose(-2, -1);
    let rank = q.rank().max(k.rank());
    let one_op = [&q, &k, &v].iter().all(|x| x.rank() >= 2 && x.dtype().is_float() && x.dtype() == q.dtype());
    if mask.is_none() && one_op && (axis == -1 || axis == rank as i64 - 1) {
        let k = if turned { other(&k)? } else { k };
        return q.attention(&k, &v, &Attention::new().scale(scale));
    }
    // With a mask, one op is no quicker than its parts, and it has a work of its own for rows that are masked entirely. Their results
    // are NaN here, as ONNX's composition defines.
    let k = if turned { k } else { other(&k)? };
    let q = if scale == 1.0 { q } else { q.mul_scalar(scale)? };
    let scores = q.matmul(&k)?;
    let scores = mask.map_or(Ok(scores.clone()), |mask| scores.add(&mask))?;
    reduce::along_axis(call, &scores, axis, |x, dim| x.softmax(dim))?.matmul(&v)
}
