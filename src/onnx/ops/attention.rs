//! Attention over heads, with caches of keys and values, and rotary positions.

use super::super::call::{Call, Operator, size};
use super::super::fault;
use super::super::value::Value;
use crate::Attention;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "Attention" => Operator::Values(attention),
        "RotaryEmbedding" => Operator::One(rotary_embedding),
        _ => return None,
    })
}

/// `[batch, length, heads · width]` → `[batch, heads, length, width]`. A tensor of four dimensions has this shape.
pub(super) fn split_heads(x: Tensor, heads: i64) -> Result<Tensor> {
    match *x.shape() {
        [_, _, _, _] => Ok(x),
        [batch, length, hidden] => {
            let heads = size(heads)?;
            if heads == 0 || hidden % heads != 0 {
                return Err(fault(format!("{hidden} elements do not divide into {heads} heads")));
            }
            x.reshape([batch, length, heads, hidden / heads])?.transpose(1, 2)
        }
        _ => Err(fault(format!("an input of shape {:?}, where three or four dimensions are expected", x.shape()))),
    }
}

/// `[batch, heads, length, width]` → `[batch, length, heads · width]`.
pub(super) fn joined_heads(x: &Tensor) -> Result<Tensor> {
    let &[batch, heads, length, width] = x.shape() else { return Ok(x.clone()) };
    x.transpose(1, 2)?.reshape([batch, length, heads * width])
}

/// What a query may see: conditions, which are all to be true, and what is added to the scores.
#[derive(Default)]
struct Bias {
    allowed: Option<Tensor>,
    added: Option<Tensor>,
}

impl Bias {
    fn allow(&mut self, condition: Tensor) -> Result<()> {
        self.allowed = Some(match self.allowed.take() {
            Some(allowed) => allowed.logical_and(&condition)?,
            None => condition,
        });
        Ok(())
    }

    /// One mask: of `bool` if nothing is added, else of floats.
    fn mask(self) -> Result<Option<Tensor>> {
        match (self.allowed, self.added) {
            (Some(allowed), Some(added)) => Ok(Some(allowed.where_cond(&added, f32::NEG_INFINITY)?)),
            (allowed, added) => Ok(allowed.or(added)),
        }
    }
}

/// The queries, keys and values of the heads of one call.
struct Heads {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /// How many keys come before those of the first query.
    past: usize,
}

impl Heads {
    fn of(call: &Call) -> Result<Heads> {
        let (q, k, v) = (call.x(0)?, call.x(1)?, call.x(2)?);
        let (queries, keys) = (call.int("q_num_heads", 0), call.int("kv_num_heads", 0));
        let (q, mut k, mut v) = (split_heads(q, queries)?, split_heads(k, keys)?, split_heads(v, keys)?);
        let mut past = 0;
        match (call.maybe(4)?, call.maybe(5)?) {
            (Some(keys), Some(values)) => {
                past = *keys.shape().get(2).ok_or_else(|| fault("past keys without four dimensions"))?;
                (k, v) = (Tensor::cat(&[&keys, &k], 2)?, Tensor::cat(&[&values, &v], 2)?);
            }
            (None, None) => {}
            _ => return Err(fault("past keys and past values are given together or not at all")),
        }
        Ok(Heads { q, k, v, past })
    }

    /// The numbers of queries and of keys.
    fn lengths(&self) -> (usize, usize) {
        (self.q.shape()[2], self.k.shape()[2])
    }

    /// How many query heads share one head of keys and values.
    fn group(&self) -> Result<usize> {
        let (queries, keys) = (self.q.shape()[1], self.k.shape()[1]);
        match keys {
            0 => Ok(1),
            _ if queries % keys == 0 => Ok(queries / keys),
            _ => Err(fault(format!("{queries} heads of queries do not divide among {keys} heads of keys"))),
        }
    }

    fn bias(&self, call: &Call) -> Result<Bias> {
        let (queries, keys) = self.lengths();
        let mut bias = Bias::default();
        if let Some(mask) = call.maybe(3)? {
            let mask = completed(mask, keys)?;
            match mask.dtype() {
                DType::Bool => bias.allowed = Some(mask),
                _ => bias.added = Some(mask.to_dtype(DType::F32)?),
            }
        }
        let valid = match call.maybe(6)? {
            Some(valid) => Some(valid.to_dtype(DType::I32)?.reshape([-1, 1, 1, 1])?),
            None => None,
        };
        let causal = call.flag("is_causal");
        let (left, right) = (call.int("left_window_size", -1), call.int("right_window_size", -1));
        let count = |length: usize| Tensor::iota(length, call.device)?.to_dtype(DType::I32);
        if causal || left >= 0 || right >= 0 {
            // How far the key is behind the query: 0 for the query's own.
            let rows = count(queries)?.unsqueeze(1)?;
            let own = match &valid {
                Some(valid) => rows.add(&valid.sub(whole(queries)?)?)?,
                None => rows.add(whole(self.past)?)?,
            };
            let behind = own.sub(&count(keys)?)?;
            if causal {
                bias.allow(behind.ge(0)?)?;
            }
            if left >= 0 {
                bias.allow(behind.le(window(left))?)?;
            }
            if right >= 0 {
                bias.allow(behind.ge(-window(right))?)?;
            }
        }
        if let Some(valid) = valid {
            bias.allow(count(keys)?.lt(&valid)?)?;
        }
        Ok(bias)
    }
}

fn whole(length: usize) -> Result<i32> {
    i32::try_from(length).map_err(|_| fault(format!("a sequence of {length}")))
}

/// The size of a window; one beyond all positions has no bound.
fn window(size: i64) -> i32 {
    i32::try_from(size).unwrap_or(i32::MAX)
}

/// A mask that may be shorter than the keys; what it does not name is not seen.
fn completed(mask: Tensor, keys: usize) -> Result<Tensor> {
    let Some(&given) = mask.shape().last() else { return Ok(mask) };
    if given >= keys || given == 1 {
        return Ok(mask);
    }
    let shape = [&mask.shape()[..mask.rank() - 1], &[keys - given]].concat();
    let rest = match mask.dtype() {
        DType::Bool => Tensor::full(shape, false, mask.device())?,
        dtype => Tensor::full(shape, f32::NEG_INFINITY, mask.device())?.to_dtype(dtype)?,
    };
    Tensor::cat(&[&mask, &rest], -1)
}

/// A mask that broadcasts to `[batch, heads, L, S]`, for heads in groups: `[batch, key heads, group, L, S]`.
fn grouped(mask: &Tensor, group: usize) -> Result<Tensor> {
    let rank = mask.rank();
    if rank < 3 {
        return Ok(mask.clone());
    }
    match mask.shape()[rank - 3] {
        1 => mask.unsqueeze(rank - 3),
        heads => {
            let (before, last) = mask.shape().split_at(rank - 3);
            mask.reshape([before, &[heads / group, group], &last[1..]].concat())
        }
    }
}

/// Attention as ONNX has it since operator set 23. A query without a key that it may see has a result of 0.
///
/// Scores and weights are f32 for all types of inputs, which is at least the precision that the file asks for.
fn attention(call: &Call) -> Result<Vec<Value>> {
    let heads = Heads::of(call)?;
    let ranks = call.x(0)?.rank();
    let kind = call.needed(0)?.kind();
    let group = heads.group()?;
    let mut mask = heads.bias(call)?.mask()?;
    let (mut q, mut k, mut v) = (heads.q.clone(), heads.k.clone(), heads.v.clone());
    if group > 1 {
        let &[batch, _, queries, width] = q.shape() else { return Err(fault("queries without heads")) };
        q = q.reshape([batch, k.shape()[1], group, queries, width])?;
        (k, v) = (k.unsqueeze(2)?, v.unsqueeze(2)?);
        mask = mask.map(|mask| grouped(&mask, group)).transpose()?;
    }
    let width = q.shape().last().copied().unwrap_or(1);
    let scale = call.float("scale", (width as f32).sqrt().recip());
    let softcap = call.float("softcap", 0.0);
    let mut scores = None;
    let out = if softcap == 0.0 && !call.wants(3) {
        let mut options = Attention::new().scale(scale);
        if let Some(mask) = &mask {
            options = options.mask(mask);
        }
        q.attention(&k, &v, &options)?
    } else {
        let (out, shown) = explicit(call, [&q, &k, &v], mask.as_ref(), scale, softcap)?;
        scores = Some(shown);
        out
    };
    let shape = heads.q.shape();
    let whole = |x: &Tensor| {
        let last = x.shape().last().copied().unwrap_or(0);
        x.reshape([shape[0], shape[1], shape[2], last])
    };
    let out = whole(&out)?;
    let out = if ranks == 3 { joined_heads(&out)? } else { out };
    let mut outputs = vec![Value::of(out.to_dtype(kind.dtype())?, kind)];
    if call.outputs() > 1 {
        outputs.extend([heads.k.clone(), heads.v.clone()].map(|cache| Value::of(cache, kind)));
        outputs.extend(scores.map(|x| Ok(Value::of(whole(&x)?.to_dtype(kind.dtype())?, kind))).transpose()?);
    }
    Ok(outputs)
}

/// Attention one operator after the other, and the scores that the file asks to see: as they are (0), capped (1), with the bias (2),
/// or as weights (3).
fn explicit(
    call: &Call,
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    scale: f32,
    softcap: f32,
) -> Result<(Tensor, Tensor)> {
    let [q, k, v] = [q, k, v].map(|x| x.to_dtype(DType::F32));
    let raw = q?.mul_scalar(scale)?.matmul(&k?.transpose(-2, -1)?)?;
    let capped = match softcap == 0.0 {
        true => raw.clone(),
        false => raw.mul_scalar(1.0 / softcap)?.tanh()?.mul_scalar(softcap)?,
    };
    let biased = match mask {
        Some(mask) if mask.dtype() == DType::Bool => mask.where_cond(&capped, f32::NEG_INFINITY)?,
        Some(mask) => capped.add(mask)?,
        None => capped.clone(),
    };
    let mut weights = biased.softmax(-1)?;
    if let Some(mask) = mask {
        let open = if mask.dtype() == DType::Bool { mask.clone() } else { mask.ne(f32::NEG_INFINITY)? };
        weights = open.any(-1, true)?.where_cond(&weights, 0.0)?;
    }
    let out = weights.matmul(&v?)?;
    let shown = match call.int("qk_matmul_output_mode", 0) {
        0 => raw,
        1 => capped,
        2 => biased,
        3 => weights,
        mode => return call.refuse(format!("the output mode {mode}")),
    };
    Ok((out, shown))
}

/// Rotates pairs of elements by angles of the position, whose cosines and sines are given (Su et al., "RoFormer", 2021, eq. 34).
fn rotary_embedding(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let rank = x.rank();
    let heads = split_heads(x, call.int("num_heads", 0))?;
    let width = heads.shape()[3];
    let rotated = match size(call.int("rotary_embedding_dim", 0))? {
        0 => width,
        rotated if rotated <= width => rotated,
        rotated => return Err(fault(format!("{rotated} elements to rotate, of {width}"))),
    };
    let half = rotated / 2;
    let table = |i: usize| {
        let table = call.x(i)?;
        let table = match call.maybe(3)? {
            Some(places) => {
                let shape = [places.shape(), &table.shape()[1..]].concat();
                table.index_select(0, &places.reshape(-1)?)?.reshape(shape)?
            }
            None => table,
        };
        match table.shape().last() {
            Some(&last) if last == half && rotated % 2 == 0 => table.unsqueeze(1),
            _ => Err(fault(format!("a table of shape {:?} for {rotated} elements to rotate", table.shape()))),
        }
    };
    let (cos, sin) = (table(1)?, table(2)?);
    let part = heads.narrow(3, 0, rotated)?;
    let interleaved = call.flag("interleaved");
    let (a, b) = match interleaved {
        true => (part.slice(3, 0, rotated, 2)?, part.slice(3, 1, rotated, 2)?),
        false => (part.narrow(3, 0, half)?, part.narrow(3, half, half)?),
    };
    let (real, imaginary) = (a.mul(&cos)?.sub(&b.mul(&sin)?)?, a.mul(&sin)?.add(&b.mul(&cos)?)?);
    let turned = match interleaved {
        true => Tensor::stack(&[&real, &imaginary], -1)?.reshape(part.shape())?,
        false => Tensor::cat(&[&real, &imaginary], -1)?,
    };
    let turned = match rotated == width {
        true => turned,
        false => Tensor::cat(&[&turned, &heads.narrow(3, rotated, width - rotated)?], -1)?,
    };
    if rank == 3 { joined_heads(&turned) } else { Ok(turned) }
}
