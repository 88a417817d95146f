//! Operators that carry a state from one call to the next: caches that are written in part, recurrences without a softmax.

use super::super::call::{Call, Operator};
use super::super::fault;
use super::super::value::Value;
use super::attention::{count, joined_heads, split_heads, whole};
use crate::Conv;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "TensorScatter" => Operator::One(tensor_scatter),
        "CausalConvWithState" => Operator::Values(causal_convolution),
        "LinearAttention" => Operator::Values(linear_attention),
        _ => return None,
    })
}

/// A cache with an update in a range of one dimension, which begins at another place in each sample.
fn tensor_scatter(call: &Call) -> Result<Tensor> {
    let (cache, update) = (call.x(0)?, call.x(1)?);
    let dim = call.axis(-2, cache.rank())?;
    if dim == 0 || update.rank() != cache.rank() {
        return Err(fault(format!(
            "an update of shape {:?} in dimension {dim} of {:?}",
            update.shape(),
            cache.shape()
        )));
    }
    written(&cache, &update, dim, call.maybe(2)?.as_ref(), call.text("mode", "linear") == "circular")
}

/// A tensor with `update` in dimension `dim`, from the place `first` of each sample on, or from 0; around its end if `circular`.
pub(super) fn written(
    cache: &Tensor,
    update: &Tensor,
    dim: usize,
    first: Option<&Tensor>,
    circular: bool,
) -> Result<Tensor> {
    let along =
        |at: usize| -> Vec<usize> { (0..cache.rank()).map(|d| if d == at { update.shape()[d] } else { 1 }).collect() };
    let mut places = count(update.shape()[dim], cache.device())?.reshape(along(dim))?;
    if let Some(first) = first {
        places = places.add(&first.to_dtype(DType::I32)?.reshape(along(0))?)?;
    }
    if circular {
        places = places.rem(whole(cache.shape()[dim])?)?;
    }
    cache.scatter(dim, &places.broadcast_to(update.shape())?, update)
}

/// A convolution of each channel over the present and earlier positions; the state is the last positions.
fn causal_convolution(call: &Call) -> Result<Vec<Value>> {
    let (x, weight, kind) = (call.x(0)?, call.x(1)?, call.needed(0)?.kind());
    let (&[batch, channels, _], &[_, 1, taps]) = (x.shape(), weight.shape()) else {
        return Err(fault(format!("a kernel of shape {:?} over {:?}", weight.shape(), x.shape())));
    };
    if taps == 0 {
        return Err(fault("a kernel of size 0"));
    }
    let past = match call.maybe(3)? {
        Some(past) => past,
        None => Tensor::zeros([batch, channels, taps - 1], x.device())?.to_dtype(x.dtype())?,
    };
    let padded = Tensor::cat(&[&past, &x], 2)?;
    let y = padded.conv1d(&weight, call.maybe(2)?.as_ref(), Conv::new().groups(channels))?;
    let y = match call.text("activation", "none").as_ref() {
        "none" => y,
        "silu" | "swish" => y.silu()?,
        other => return call.refuse(format!("the activation {other}")),
    };
    let state = padded.narrow(2, padded.shape()[2] + 1 - taps, taps - 1)?;
    Ok([y, state].map(|x| Value::of(x, kind)).into())
}

/// The inputs of a linear attention for each head: `[batch, heads, length, …]`.
struct Recurrence {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /// The factor of the state at each position, of one element or one for each row.
    decay: Option<Tensor>,
    /// How much of the error of the state each position corrects.
    rate: Option<Tensor>,
    scale: f32,
}

impl Recurrence {
    /// Returns the results of all positions, and the last state. At each position, the state is decayed. Then the
    /// product of the key and the value is added to it, or the product of the key and what the state lacks to give
    /// the value.
    fn run(&self, mut state: Tensor) -> Result<(Tensor, Tensor)> {
        let &[batch, heads, length, width] = self.q.shape() else { return Err(fault("queries without heads")) };
        let keys = self.k.shape()[1];
        let group = heads / keys.max(1);
        // One column for each query head of a group.
        let queries = self.q.mul_scalar(self.scale)?.reshape([batch, keys, group, length, width])?;
        let mut results = Vec::with_capacity(length);
        for t in 0..length {
            let at = |x: &Tensor| x.narrow(2, t, 1);
            if let Some(decay) = &self.decay {
                state = state.mul(&at(decay)?.transpose(2, 3)?)?;
            }
            let key = at(&self.k)?;
            let mut value = at(&self.v)?;
            if let Some(rate) = &self.rate {
                value = value.sub(&key.matmul(&state)?)?.mul(&at(rate)?)?;
            }
            state = state.add(&key.transpose(2, 3)?.matmul(&value)?)?;
            results.push(queries.select(3, t)?.matmul(&state)?);
        }
        let out = self.v.shape()[3];
        let y = match results.is_empty() {
            true => Tensor::zeros([batch, heads, 0, out], state.device())?,
            false => Tensor::stack(&results, 3)?.reshape([batch, heads, length, out])?,
        };
        Ok((y, state))
    }
}

/// Attention without a softmax, by a state that each position changes. All is computed in f32.
fn linear_attention(call: &Call) -> Result<Vec<Value>> {
    let kind = call.needed(0)?.kind();
    let rule = call.text("update_rule", "gated_delta");
    let (gated, delta) = match rule.as_ref() {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return call.refuse(format!("the update rule {other}")),
    };
    let keys = call.int("kv_num_heads", 0);
    let part = |i: usize, heads: i64| split_heads(call.x(i)?.to_dtype(DType::F32)?, heads);
    let (q, k, v) = (part(0, call.int("q_num_heads", 0))?, part(1, keys)?, part(2, keys)?);
    let (&[batch, heads, _, width], &[_, shared, ..], &[.., out]) = (q.shape(), k.shape(), v.shape()) else {
        return Err(fault("queries without heads"));
    };
    if shared == 0 || heads % shared != 0 || k.shape()[3] != width {
        return Err(fault(format!("queries of {:?} for keys of {:?}", q.shape(), k.shape())));
    }
    let wanted = |i: usize, given: bool, heads: i64| match (given, call.value(i).is_some()) {
        (true, true) => part(i, heads).map(Some),
        (false, false) => Ok(None),
        _ => Err(fault(format!("the update rule {rule} and input {i} do not belong together"))),
    };
    let decay = wanted(4, gated, keys)?.map(|decay| decay.exp()).transpose()?;
    // One rate for all heads has a last dimension of 1.
    let rates = call.value(5).map(|rate| rate.shape().map(|shape| shape.last() == Some(&1))).transpose()?;
    let rate = wanted(5, delta, if rates == Some(true) { 1 } else { keys })?;
    let scale = match call.float("scale", 0.0) {
        0.0 => (width as f32).sqrt().recip(),
        scale => scale,
    };
    let (state, state_kind) = match call.value(3) {
        Some(past) => (call.x(3)?.to_dtype(DType::F32)?, past.kind()),
        None => (Tensor::zeros([batch, shared, width, out], call.device)?, kind),
    };
    let (y, state) = Recurrence { q, k, v, decay, rate, scale }.run(state)?;
    Ok(vec![
        Value::of(joined_heads(&y)?.to_dtype(kind.word())?, kind),
        Value::of(state.to_dtype(state_kind.word())?, state_kind),
    ])
}
