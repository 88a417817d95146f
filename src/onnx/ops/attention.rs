//! Attention over heads, with caches of keys and values, and rotary positions.

use super::super::call::{Call, Operator, size};
use super::super::fault;
use super::super::value::Value;
use crate::Attention;
use crate::device::Device;
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
pub(super) struct Bias {
    allowed: Option<Tensor>,
    pub added: Option<Tensor>,
}

impl Bias {
    pub fn allow(&mut self, condition: Tensor) -> Result<()> {
        self.allowed = Some(match self.allowed.take() {
            Some(allowed) => allowed.logical_and(&condition)?,
            None => condition,
        });
        Ok(())
    }

    /// One mask: of `bool` if nothing is added, else of floats.
    pub fn mask(self) -> Result<Option<Tensor>> {
        match (self.allowed, self.added) {
            (Some(allowed), Some(added)) => Ok(Some(allowed.where_cond(&added, f32::NEG_INFINITY)?)),
            (allowed, added) => Ok(allowed.or(added)),
        }
    }
}

/// Keys and values after the past ones, which are input `at` and the next one or left out, and how many keys these are.
pub(super) fn after_past(call: &Call, at: usize, [k, v]: [Tensor; 2]) -> Result<([Tensor; 2], usize)> {
    match (call.maybe(at)?, call.maybe(at + 1)?) {
        (Some(keys), Some(values)) => {
            let past = *keys.shape().get(2).ok_or_else(|| fault("past keys without four dimensions"))?;
            Ok(([Tensor::cat(&[&keys, &k], 2)?, Tensor::cat(&[&values, &v], 2)?], past))
        }
        (None, None) => Ok(([k, v], 0)),
        _ => Err(fault("past keys and past values are given together or not at all")),
    }
}

/// The queries, keys and values of the heads of one call.
struct Heads {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /// How many keys come before the keys of the first query.
    past: usize,
}

impl Heads {
    fn of(call: &Call) -> Result<Heads> {
        let (q, k, v) = (call.x(0)?, call.x(1)?, call.x(2)?);
        let (queries, keys) = (call.int("q_num_heads", 0), call.int("kv_num_heads", 0));
        let q = split_heads(q, queries)?;
        let ([k, v], past) = after_past(call, 4, [split_heads(k, keys)?, split_heads(v, keys)?])?;
        Ok(Heads { q, k, v, past })
    }

    /// The numbers of queries and of keys.
    fn lengths(&self) -> (usize, usize) {
        (self.q.shape()[2], self.k.shape()[2])
    }

    /// What the queries may see; with `causal`, without the keys that follow them.
    fn bias(&self, call: &Call, causal: bool) -> Result<Bias> {
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
        let (left, right) = (call.int("left_window_size", -1), call.int("right_window_size", -1));
        if causal || left >= 0 || right >= 0 {
            let past = match &valid {
                Some(valid) => valid.sub(whole(queries)?)?,
                None => Tensor::scalar(whole(self.past)?, call.device)?,
            };
            let behind = behind(&past, queries, keys)?;
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
            bias.allow(count(keys, call.device)?.lt(&valid)?)?;
        }
        Ok(bias)
    }
}

/// The numbers from 0.
pub(super) fn count(length: usize, device: &Device) -> Result<Tensor> {
    Tensor::iota(length, device)?.to_dtype(DType::I32)
}

/// How far each key is behind each query, 0 for the query's own: `[.., queries, keys]`. `past` is the number of keys before the
/// first query, one number or `[batch, 1, 1, 1]`.
pub(super) fn behind(past: &Tensor, queries: usize, keys: usize) -> Result<Tensor> {
    let device = past.device();
    count(queries, device)?.unsqueeze(1)?.add(past)?.sub(&count(keys, device)?)
}

pub(super) fn whole(length: usize) -> Result<i32> {
    i32::try_from(length).map_err(|_| fault(format!("a sequence of {length}")))
}

/// The size of a window; one beyond all positions has no bound.
pub(super) fn window(size: i64) -> i32 {
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

/// What attention computes: queries `[batch, heads, L, E]`, keys and values `[batch, key heads, S, …]`, of which each serves a group of
/// heads, and a mask that broadcasts to `[batch, heads, L, S]`.
pub(super) struct Attend {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub mask: Option<Tensor>,
    /// `None` is 1/√E.
    pub scale: Option<f32>,
    /// The bound of the scores; 0 is none.
    pub softcap: f32,
    /// Whether query i sees the keys 0 to i only; not together with a bound, nor with scores that are shown.
    pub causal: bool,
}

/// The scores that a file may ask to see.
#[derive(Clone, Copy)]
enum Shown {
    Raw,
    Capped,
    Biased,
    Weights,
}

impl Attend {
    /// Returns `[batch, heads, L, V]`. A query without a key that it may see has a result of 0.
    ///
    /// Scores and weights are f32 for all types of inputs.
    pub fn result(self) -> Result<Tensor> {
        self.results(None).map(|(out, _)| out)
    }

    fn results(mut self, shown: Option<Shown>) -> Result<(Tensor, Option<Tensor>)> {
        let (&[batch, heads, queries, width], &[_, shared, ..]) = (self.q.shape(), self.k.shape()) else {
            return Err(fault("queries and keys without four dimensions"));
        };
        if shared == 0 || heads % shared != 0 {
            return Err(fault(format!("{heads} heads of queries do not divide among {shared} heads of keys")));
        }
        let group = heads / shared;
        if group > 1 && self.mask.is_none() && !self.causal && shown.is_none() && self.softcap == 0.0 {
            // The queries of a group are rows of one product with its keys, which are read once.
            self.q = self.q.reshape([batch, shared, group * queries, width])?;
        } else if group > 1 {
            self.q = self.q.reshape([batch, shared, group, queries, width])?;
            (self.k, self.v) = (self.k.unsqueeze(2)?, self.v.unsqueeze(2)?);
            self.mask = self.mask.map(|mask| grouped(&mask, group)).transpose()?;
        }
        let scale = self.scale.unwrap_or_else(|| (width as f32).sqrt().recip());
        let (out, scores) = match shown {
            None if self.softcap == 0.0 => {
                let mut options = Attention::new().scale(scale);
                if self.causal {
                    options = options.causal();
                }
                if let Some(mask) = &self.mask {
                    options = options.mask(mask);
                }
                (self.q.attention(&self.k, &self.v, &options)?, None)
            }
            shown => {
                let (out, scores) = self.explicit(scale, shown.unwrap_or(Shown::Raw))?;
                (out, shown.is_some().then_some(scores))
            }
        };
        let whole = |x: Tensor| x.reshape([batch, heads, queries, x.shape().last().copied().unwrap_or(0)]);
        Ok((whole(out)?, scores.map(whole).transpose()?))
    }

    /// Returns the result, one operator after the other, and the scores.
    fn explicit(&self, scale: f32, shown: Shown) -> Result<(Tensor, Tensor)> {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|x| x.to_dtype(DType::F32));
        let raw = q?.mul_scalar(scale)?.matmul(&k?.transpose(-2, -1)?)?;
        let capped = match self.softcap == 0.0 {
            true => raw.clone(),
            false => raw.mul_scalar(1.0 / self.softcap)?.tanh()?.mul_scalar(self.softcap)?,
        };
        let biased = match &self.mask {
            Some(mask) if mask.dtype() == DType::Bool => mask.where_cond(&capped, f32::NEG_INFINITY)?,
            Some(mask) => capped.add(mask)?,
            None => capped.clone(),
        };
        let mut weights = biased.softmax(-1)?;
        if let Some(mask) = &self.mask {
            let open = if mask.dtype() == DType::Bool { mask.clone() } else { mask.ne(f32::NEG_INFINITY)? };
            weights = open.any(-1, true)?.where_cond(&weights, 0.0)?;
        }
        let out = weights.matmul(&v?)?;
        let scores = match shown {
            Shown::Raw => raw,
            Shown::Capped => capped,
            Shown::Biased => biased,
            Shown::Weights => weights,
        };
        Ok((out, scores))
    }
}

/// Attention as ONNX has it since operator set 23.
fn attention(call: &Call) -> Result<Vec<Value>> {
    let heads = Heads::of(call)?;
    let (rank, kind) = (call.x(0)?.rank(), call.needed(0)?.kind());
    let shown = match call.int("qk_matmul_output_mode", 0) {
        _ if !call.wants(3) => None,
        0 => Some(Shown::Raw),
        1 => Some(Shown::Capped),
        2 => Some(Shown::Biased),
        3 => Some(Shown::Weights),
        mode => return call.refuse(format!("the output mode {mode}")),
    };
    let softcap = call.float("softcap", 0.0);
    let windows = call.int("left_window_size", -1) >= 0 || call.int("right_window_size", -1) >= 0;
    // The usual case, for which the host has an op of its own.
    let plain = heads.past == 0 && call.value(6).is_none() && !windows && softcap == 0.0 && shown.is_none();
    let is_causal = call.flag("is_causal");
    let mask = heads.bias(call, is_causal && !plain)?.mask()?;
    let caches = [heads.k.clone(), heads.v.clone()];
    let scale = call.has("scale").then(|| call.float("scale", 1.0));
    let Heads { q, k, v, .. } = heads;
    let attend = Attend { q, k, v, mask, scale, softcap, causal: is_causal && plain };
    let (out, scores) = attend.results(shown)?;
    let out = if rank == 3 { joined_heads(&out)? } else { out };
    let mut outputs = vec![Value::of(out.to_dtype(kind.word())?, kind)];
    if call.outputs() > 1 {
        outputs.extend(caches.map(|cache| Value::of(cache, kind)));
        outputs.extend(scores.map(|x| Ok(Value::of(x.to_dtype(kind.word())?, kind))).transpose()?);
    }
    Ok(outputs)
}

/// Rotates pairs of elements by angles of the position, whose cosines and sines are given (Su et al., "RoFormer", 2021, eq. 34).
fn rotary_embedding(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let rank = x.rank();
    let heads = split_heads(x, call.int("num_heads", 0))?;
    let rotated = size(call.int("rotary_embedding_dim", 0))?;
    let places = call.maybe(3)?;
    let table = |i: usize| match &places {
        Some(places) => rows(&call.x(i)?, places),
        None => call.x(i),
    };
    let turned = rotate(&heads, [&table(1)?, &table(2)?], rotated, call.flag("interleaved"))?;
    if rank == 3 { joined_heads(&turned) } else { Ok(turned) }
}

/// The rows of a table at these places: `[batch, length, …]`.
pub(super) fn rows(table: &Tensor, places: &Tensor) -> Result<Tensor> {
    let shape = [places.shape(), table.shape().get(1..).unwrap_or_default()].concat();
    table.index_select(0, &places.reshape(-1)?)?.reshape(shape)
}

/// Rotates the first `rotated` elements of each head, all for 0, by the angles of `[batch, length, rotated / 2]`.
pub(super) fn rotate(heads: &Tensor, [cos, sin]: [&Tensor; 2], rotated: usize, interleaved: bool) -> Result<Tensor> {
    let width = heads.shape().last().copied().unwrap_or(0);
    let rotated = if rotated == 0 { width } else { rotated };
    let half = rotated / 2;
    let fits = |table: &Tensor| table.rank() == 3 && table.shape()[2] == half;
    if rotated > width || rotated % 2 != 0 || !fits(cos) || !fits(sin) {
        let (cos, sin) = (cos.shape(), sin.shape());
        return Err(fault(format!("tables of shapes {cos:?} and {sin:?} to rotate {rotated} of {width} elements")));
    }
    let (cos, sin) = (cos.unsqueeze(1)?, sin.unsqueeze(1)?);
    let part = heads.narrow(3, 0, rotated)?;
    let (a, b) = match interleaved {
        true => (part.slice(3, 0, rotated, 2)?, part.slice(3, 1, rotated, 2)?),
        false => (part.narrow(3, 0, half)?, part.narrow(3, half, half)?),
    };
    let (real, imaginary) = (a.mul(&cos)?.sub(&b.mul(&sin)?)?, a.mul(&sin)?.add(&b.mul(&cos)?)?);
    let turned = match interleaved {
        true => Tensor::stack(&[&real, &imaginary], -1)?.reshape(part.shape())?,
        false => Tensor::cat(&[&real, &imaginary], -1)?,
    };
    match rotated == width {
        true => Ok(turned),
        false => Tensor::cat(&[&turned, &heads.narrow(3, rotated, width - rotated)?], -1),
    }
}
