//! Attention and rotary positions as ONNX Runtime's tools for transformers write them.

use super::super::super::call::{Call, Operator, size, sizes};
use super::super::super::fault;
use super::super::super::value::Value;
use super::super::attention::{
    Attend, Bias, after_past, behind, count, joined_heads, rotate, rows, split_heads, whole, window,
};
use super::super::state::written;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "Attention" => Operator::Values(attention),
        "MultiHeadAttention" => Operator::Values(multi_head),
        "GroupQueryAttention" => Operator::Values(group_query),
        "RotaryEmbedding" => Operator::One(rotary_embedding),
        _ => return None,
    })
}

/// A scale of 0 means the same as no scale in the file.
fn scale(call: &Call) -> Option<f32> {
    Some(call.float("scale", 0.0)).filter(|&scale| scale != 0.0)
}

/// The result of attention with the caches that come after it.
fn outputs(call: &Call, attend: Attend) -> Result<Vec<Value>> {
    let kind = call.needed(0)?.kind();
    let caches = [attend.k.clone(), attend.v.clone()];
    let y = joined_heads(&attend.result()?)?;
    let mut values = vec![Value::of(y.to_dtype(kind.word())?, kind)];
    if call.outputs() > 1 {
        values.extend(caches.map(|cache| Value::of(cache, kind)));
    }
    Ok(values)
}

/// Queries, keys and values with their parts of one bias. Keys and values may have the dimensions of a cache.
fn projections(call: &Call, heads: i64) -> Result<[Tensor; 3]> {
    let (Some(keys), Some(values)) = (call.maybe(1)?, call.maybe(2)?) else {
        return call.refuse("a tensor with queries, keys and values");
    };
    let (bias, mut start) = (call.maybe(3)?, 0);
    let mut part = |x: Tensor| match (&bias, x.shape()) {
        (Some(bias), &[_, _, hidden]) => {
            start += hidden;
            split_heads(x.add(&bias.narrow(0, start - hidden, hidden)?)?, heads)
        }
        _ => split_heads(x, heads),
    };
    Ok([part(call.x(0)?)?, part(keys)?, part(values)?])
}

fn multi_head(call: &Call) -> Result<Vec<Value>> {
    if call.value(9).is_some() {
        return call.refuse("a cache of beams");
    }
    if call.wants(3) {
        return call.refuse("the output of scores");
    }
    let [q, k, v] = projections(call, call.int("num_heads", 0))?;
    let ([k, v], past) = after_past(call, 6, [k, v])?;
    let (queries, keys) = (q.shape()[2], k.shape()[2]);
    let mut bias = Bias::default();
    if let Some(added) = call.maybe(5)? {
        bias.added = Some(added.to_dtype(DType::F32)?);
    }
    if let Some(padding) = call.maybe(4)? {
        hide(call, &mut bias, &padding, q.shape()[0], keys)?;
    }
    if call.flag("unidirectional") {
        bias.allow(behind(&Tensor::scalar(whole(past)?, call.device)?, queries, keys)?.ge(0)?)?;
    }
    outputs(call, Attend { q, k, v, mask: bias.mask()?, scale: scale(call), softcap: 0.0, causal: false })
}

/// Adds to the scores of keys that a mask hides. The mask has a value for each key, of each sample or of each query too; or it is the
/// number of keys of each sample, and then the first key of each.
fn hide(call: &Call, bias: &mut Bias, mask: &Tensor, batch: usize, keys: usize) -> Result<()> {
    let places = || count(keys, call.device);
    let bounds = |start: usize| mask.to_dtype(DType::I32)?.narrow(0, start, batch)?.reshape([-1, 1, 1, 1]);
    let seen = match mask.rank() {
        1 if mask.elem_count() == batch => places()?.lt(&bounds(0)?)?,
        1 if mask.elem_count() == 2 * batch && call.op() == "Attention" => {
            places()?.lt(&bounds(0)?)?.logical_and(&places()?.ge(&bounds(batch)?)?)?
        }
        2 => mask.ne(0)?.unsqueeze(1)?.unsqueeze(1)?,
        3 => mask.ne(0)?.unsqueeze(1)?,
        _ => return call.refuse(format!("a mask of shape {:?}", mask.shape())),
    };
    let hidden = seen.where_cond(0.0, call.float("mask_filter_value", -10000.0))?;
    bias.added = Some(bias.added.take().map_or(Ok(hidden.clone()), |added| added.add(&hidden))?);
    Ok(())
}

/// Attention with the product that makes queries, keys and values of its input. One tensor holds the past keys and values.
fn attention(call: &Call) -> Result<Vec<Value>> {
    if call.flag("do_rotary") || call.flag("past_present_share_buffer") || call.value(6).is_some() {
        return call.refuse("a rotation, or a cache that is longer than what it holds,");
    }
    let (x, weights) = (call.x(0)?, call.x(1)?);
    let (&[batch, length, width], &[rows, columns]) = (x.shape(), weights.shape()) else {
        return Err(fault(format!("an input of shape {:?} and weights of shape {:?}", x.shape(), weights.shape())));
    };
    let parts = match call.ints("qkv_hidden_sizes").filter(|parts| !parts.is_empty()) {
        Some(parts) => sizes(&parts)?,
        None => vec![columns / 3; 3],
    };
    if rows != width || parts.len() != 3 || parts.iter().sum::<usize>() != columns {
        return Err(fault(format!(
            "weights of shape {:?} for an input of {width} and parts of {parts:?}",
            weights.shape()
        )));
    }
    let mut all = x.matmul(&weights)?;
    if let Some(bias) = call.maybe(2)? {
        all = all.add(&bias)?;
    }
    let heads = call.int("num_heads", 0);
    let part = |i: usize| split_heads(all.narrow(2, parts[..i].iter().sum(), parts[i])?, heads);
    let (q, mut k, mut v) = (part(0)?, part(1)?, part(2)?);
    if let Some(past) = call.maybe(4)? {
        if past.rank() != 5 || past.shape()[0] != 2 {
            return Err(fault(format!("past keys and values of shape {:?}", past.shape())));
        }
        k = Tensor::cat(&[&past.select(0, 0)?, &k], 2)?;
        v = Tensor::cat(&[&past.select(0, 1)?, &v], 2)?;
    }
    let keys = k.shape()[2];
    let mut bias = Bias::default();
    if let Some(added) = call.maybe(5)? {
        bias.added = Some(added.to_dtype(DType::F32)?);
    }
    if let Some(mask) = call.maybe(3)? {
        hide(call, &mut bias, &mask, batch, keys)?;
    }
    if call.flag("unidirectional") {
        bias.allow(behind(&Tensor::scalar(whole(keys - length)?, call.device)?, length, keys)?.ge(0)?)?;
    }
    let kind = call.needed(0)?.kind();
    let present = if call.wants(1) { Some(Tensor::stack(&[&k, &v], 0)?) } else { None };
    let attend = Attend { q, k, v, mask: bias.mask()?, scale: scale(call), softcap: 0.0, causal: false };
    let y = joined_heads(&attend.result()?)?;
    let values = [Some(y.to_dtype(kind.word())?), present];
    Ok(values.into_iter().flatten().map(|x| Value::of(x, kind)).collect())
}

/// Attention whose cache of keys and values is as long as the file says, of which each sample has filled a part.
fn group_query(call: &Call) -> Result<Vec<Value>> {
    let (heads, shared) = (call.int("num_heads", 0), call.int("kv_num_heads", 0));
    for attribute in ["smooth_softmax", "kv_cache_bit_width", "qk_output"] {
        if call.int(attribute, 0) > 0 {
            return call.refuse(format!("the attribute {attribute}"));
        }
    }
    if call.value(11).is_some() {
        return call.refuse("a sink of heads");
    }
    let (mut q, mut k, v) = match (call.maybe(1)?, call.maybe(2)?) {
        (Some(k), Some(v)) => (split_heads(call.x(0)?, heads)?, split_heads(k, shared)?, split_heads(v, shared)?),
        (None, None) => {
            // Queries, keys and values of all heads, one after the other.
            let all = split_heads(call.x(0)?, heads.saturating_add(shared.saturating_mul(2)))?;
            let (heads, shared) = (size(heads)?, size(shared)?);
            (all.narrow(1, 0, heads)?, all.narrow(1, heads, shared)?, all.narrow(1, heads + shared, shared)?)
        }
        _ => return Err(fault("keys and values are given together or not at all")),
    };
    let &[batch, _, length, _] = q.shape() else { return Err(fault("queries without four dimensions")) };
    let total = call.whole(6)?.and_then(|total| total.first().copied());
    let total = size(total.ok_or_else(|| fault("the total length is missing"))?)?;
    let filled = filled_by_all(call, batch, total, length);
    // The places that each sample has filled: none for a first prompt, whose samples may end before the longest one.
    let past = || match filled {
        Some(filled) => Tensor::full([batch, 1, 1, 1], whole(filled)?, call.device),
        None => call.x(5)?.to_dtype(DType::I32)?.add(1)?.sub(whole(length)?)?.reshape([batch, 1, 1, 1]),
    };
    if call.flag("do_rotary") {
        let places = call.maybe(9)?;
        let table = |i: usize| match (&places, filled) {
            (Some(places), _) => rows(&call.x(i)?, places),
            (None, Some(filled)) => call.x(i)?.narrow(0, filled, length)?.unsqueeze(0),
            (None, None) => rows(&call.x(i)?, &past()?.reshape([batch, 1])?.add(&count(length, call.device)?)?),
        };
        let (cos, sin) = (table(7)?, table(8)?);
        let interleaved = call.flag("rotary_interleaved");
        let rotated = 2 * cos.shape().last().copied().unwrap_or(0);
        q = rotate(&q, [&cos, &sin], rotated, interleaved)?;
        k = rotate(&k, [&cos, &sin], rotated, interleaved)?;
    }
    let cache = |old: Option<Tensor>, new: &Tensor| {
        let held = old.as_ref().map_or(0, |old| old.shape().get(2).copied().unwrap_or(0));
        if filled == Some(held) {
            return old.map_or_else(|| new.contiguous(), |old| Tensor::cat(&[&old, new], 2));
        }
        let shape = [new.shape()[0], new.shape()[1], total.saturating_sub(held), new.shape()[3]];
        let rest = Tensor::zeros(shape, call.device)?.to_dtype(new.dtype())?;
        let whole = old.map_or(Ok(rest.clone()), |old| Tensor::cat(&[&old, &rest], 2))?;
        written(&whole, new, 2, Some(&past()?), false)
    };
    let (k, v) = (cache(call.maybe(3)?, &k)?, cache(call.maybe(4)?, &v)?);
    let (size, softcap) = (call.int("local_window_size", -1), call.float("softcap", 0.0));
    let all_seen = size < 0 || usize::try_from(size).is_ok_and(|size| size >= total);
    // One token sees all before it, and a prompt is what causal attention is for: neither needs a mask.
    let plain = all_seen && k.shape()[2] == total && call.value(10).is_none() && softcap == 0.0;
    if let Some(filled) = filled.filter(|filled| plain && (length == 1 || *filled == 0)) {
        let causal = filled == 0 && length > 1;
        return outputs(call, Attend { q, k, v, mask: None, scale: scale(call), softcap, causal });
    }
    let behind = behind(&past()?, length, k.shape()[2])?;
    let mut bias = Bias::default();
    bias.allow(behind.ge(0)?)?;
    if size >= 0 {
        bias.allow(behind.lt(window(size))?)?;
    }
    if let Some(added) = call.maybe(10)? {
        bias.added = Some(added.to_dtype(DType::F32)?);
    }
    outputs(call, Attend { q, k, v, mask: bias.mask()?, scale: scale(call), softcap, causal: false })
}

/// Returns the places of the cache that every sample has filled before `length` further ones, if all have filled as many and the host
/// knows it.
fn filled_by_all(call: &Call, batch: usize, total: usize, length: usize) -> Option<usize> {
    if total == length {
        return Some(0);
    }
    let last = total.checked_sub(1)?;
    let all = call.value(5)?.array()?.to_ints();
    let alike = all.len() == batch && all.iter().all(|&one| usize::try_from(one) == Ok(last));
    if alike { total.checked_sub(length) } else { None }
}

/// As ONNX's operator, with its inputs in another order. A single place is the place of the first position.
fn rotary_embedding(call: &Call) -> Result<Tensor> {
    if call.flag("is_packed_batching") || call.float("scale", 1.0) != 1.0 {
        return call.refuse("a packed batch, or a scale");
    }
    let (x, cos, sin) = (call.x(0)?, call.x(2)?, call.x(3)?);
    let rank = x.rank();
    let rotated = 2 * cos.shape().last().copied().unwrap_or(0);
    let heads = match (call.int("num_heads", 0), x.shape()) {
        // Without a number of heads, the tables have the width of one.
        (0, &[_, _, hidden]) if rotated > 0 => split_heads(x, (hidden / rotated) as i64)?,
        (heads, _) => split_heads(x, heads)?,
    };
    let (batch, length) = (heads.shape()[0], heads.shape()[2]);
    let places = call.x(1)?.to_dtype(DType::I32)?;
    let places = match places.elem_count() == 1 {
        true => places.reshape([1, 1])?.add(&count(length, call.device)?)?.broadcast_to([batch, length])?,
        false => places,
    };
    let turned = rotate(&heads, [&rows(&cos, &places)?, &rows(&sin, &places)?], rotated, call.flag("interleaved"))?;
    if rank == 3 { joined_heads(&turned) } else { Ok(turned) }
}
