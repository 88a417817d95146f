//! Attention as one op of the host, which stores no scores: the gradient computes them again. On adapters it is a
//! composition, and so is a gradient that is to have a gradient.

use std::sync::Arc;

use anygpu_host::attention::{Head, Rows};
use anygpu_host::matmul::panel_width;
use anygpu_host::tasks::try_share;

use super::{hide, past};
use crate::autograd::is_recording;
use crate::device::cpu::host_error;
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::error::{Error, Result};
use crate::ops::names::{Names, names};
use crate::ops::traced::Traced;
use crate::ops::{
    Casting, CpuIn, CpuOut, Elements, GpuIn, Gradient, Gradients, Op, Output, Strided, apply, only_on_the_host,
};
use crate::shape::{Layout, broadcast_shapes, checked_elem_count};
use crate::tensor::Tensor;

/// Queries `[.., L, E]`, keys `[.., S, E]` and values `[.., S, V]` → `[.., L, V]`, for sizes that are not 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fused {
    pub scale: f32,
    /// Whether query i attends to the keys 0 to i only.
    pub causal: bool,
}

/// Queries, keys, values and the gradient of the result → the gradients of the three, one head after the other.
#[derive(Debug)]
struct FusedGrad(Fused);

/// The sizes of attention.
struct Sizes {
    batch: Vec<usize>,
    queries: usize,
    keys: usize,
    /// The elements of a query and of a key.
    width: usize,
    /// The elements of a value.
    out: usize,
}

impl Sizes {
    fn of([q, k, v]: [&[usize]; 3]) -> Result<Sizes> {
        let (Some((batch_q, &[queries, width])), Some((batch_k, &[keys, e])), Some((batch_v, &[s, out]))) =
            (q.split_last_chunk(), k.split_last_chunk(), v.split_last_chunk())
        else {
            return Err(Error::shapes("attention", k, v, "takes [.., L, E], [.., S, E] and [.., S, V]"));
        };
        if width != e {
            return Err(Error::shapes("attention", q, k, "a query and a key need as many elements"));
        }
        if keys != s {
            return Err(Error::shapes("attention", k, v, "there must be as many values as keys"));
        }
        let batch = broadcast_shapes("attention", &broadcast_shapes("attention", batch_q, batch_k)?, batch_v)?;
        checked_elem_count("attention", &[keys.max(width).max(out), 2 * panel_width()])?; // the memory for a panel
        Ok(Sizes { batch, queries, keys, width, out })
    }

    fn heads(&self) -> usize {
        self.batch.iter().product()
    }

    /// Returns the shape of a tensor with these last two sizes.
    fn with(&self, last: [usize; 2]) -> Vec<usize> {
        [&self.batch[..], &last].concat()
    }

    /// Returns the rows of each head in an operand with these last two sizes.
    fn rows<'a>(&self, x: &CpuIn<'a, Strided>, last: [usize; 2]) -> Vec<Rows<'a>> {
        let layout = x.layout().broadcast_to(&self.with(last));
        let rank = self.batch.len();
        let step = layout.strides[rank];
        let heads =
            Layout { shape: self.batch.clone(), strides: layout.strides[..rank].to_vec(), offset: layout.offset };
        heads.positions().map(|at| Rows::new(&x.all::<f32>()[at..], step)).collect()
    }
}

impl Fused {
    /// Returns each head.
    fn heads<'a>(&self, inputs: &[CpuIn<'a, Strided>]) -> Result<(Sizes, Vec<Head<'a>>)> {
        let sizes = Sizes::of([0, 1, 2].map(|i| inputs[i].shape()))?;
        let Sizes { queries, keys, width, out, .. } = sizes;
        let q = sizes.rows(&inputs[0], [queries, width]);
        let k = sizes.rows(&inputs[1], [keys, width]);
        let v = sizes.rows(&inputs[2], [keys, out]);
        let sides = [queries, keys, width, out];
        let head = |((q, k), v)| Head { q, k, v, sizes: sides, scale: self.scale, causal: self.causal };
        let heads = q.into_iter().zip(k).zip(v).map(head).collect();
        Ok((sizes, heads))
    }
}

impl Fused {
    /// Returns the gradients by ops that have gradients themselves, with all scores in memory.
    fn composed_gradients(&self, [q, k, v]: [&Tensor; 3], ctx: &Gradient) -> Result<Gradients> {
        let (g, needs) = (ctx.grad, ctx.needs);
        let mut scores = q.mul_scalar(self.scale)?.matmul(&k.t()?)?;
        if self.causal {
            scores = hide(&scores, &past(q, k)?)?;
        }
        let weights = scores.softmax(-1)?;
        let by_values = needs[2].then(|| weights.t()?.matmul(g)).transpose()?;
        if !needs[0] && !needs[1] {
            return Ok(vec![None, None, by_values]);
        }
        let by_weights = weights.mul(&g.matmul(&v.t()?)?)?;
        let by_scores = by_weights.sub(&weights.mul(&by_weights.sum(-1, true)?)?)?.mul_scalar(self.scale)?;
        let by_queries = needs[0].then(|| by_scores.matmul(k)).transpose()?;
        let by_keys = needs[1].then(|| by_scores.t()?.matmul(q)).transpose()?;
        Ok(vec![by_queries, by_keys, by_values])
    }
}

/// Returns the tensor if the elements of its rows are next to one another, as the loops read them, else a copy.
fn with_dense_rows(x: &Tensor) -> Result<Tensor> {
    match x.layout().strides.last() {
        Some(1) => Ok(x.clone()),
        _ => x.contiguous(),
    }
}

/// Computes attention on the host.
pub(super) fn attention(op: Fused, inputs: [&Tensor; 3]) -> Result<Tensor> {
    let [q, k, v] = [with_dense_rows(inputs[0])?, with_dense_rows(inputs[1])?, with_dense_rows(inputs[2])?];
    apply(op, &[&q, &k, &v])
}

impl Op for Fused {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = names!["attention"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Attention { scale: self.scale.into(), causal: self.causal })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let sizes = Sizes::of([0, 1, 2].map(|i| inputs[i].shape()))?;
        Ok((sizes.with([sizes.queries, sizes.out]), inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let (sizes, heads) = self.heads(inputs)?;
        let parts = out.slice::<f32>().chunks_mut(sizes.queries * sizes.out);
        try_share(parts.zip(&heads), 1, |(out, head)| head.forward(out)).map_err(host_error)
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn<Strided>], _out: &Buffer) -> Result<Vec<Kernel>> {
        Err(only_on_the_host(self.name()))
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let [q, k, v] = [0, 1, 2].map(|i| &ctx.inputs[i]);
        if is_recording() {
            return self.composed_gradients([q, k, v], ctx);
        }
        let all = apply(FusedGrad(*self), &[q, k, v, &with_dense_rows(ctx.grad)?])?;
        let sizes = Sizes::of([q.shape(), k.shape(), v.shape()])?;
        let Sizes { queries, keys, width, out, .. } = sizes;
        let head = queries * width + keys * (width + out);
        let part = |needed: bool, offset: usize, [rows, columns]: [usize; 2]| {
            let mut layout = Layout::contiguous(&sizes.with([rows, columns]));
            let batch = sizes.batch.len();
            layout.strides[..batch].iter_mut().for_each(|stride| *stride = *stride / (rows * columns) * head);
            needed.then(|| all.with_layout(Layout { offset, ..layout }))
        };
        let [first, second] = [queries * width, (queries + keys) * width];
        Ok(vec![
            part(ctx.needs[0], 0, [queries, width]),
            part(ctx.needs[1], first, [keys, width]),
            part(ctx.needs[2], second, [keys, out]),
        ])
    }
}

impl Op for FusedGrad {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = names!["attention_grad"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let sizes = Sizes::of([0, 1, 2].map(|i| inputs[i].shape()))?;
        let Sizes { queries, keys, width, out, .. } = sizes;
        Ok((vec![sizes.heads(), queries * width + keys * (width + out)], inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let (sizes, heads) = self.0.heads(inputs)?;
        let grads = sizes.rows(&inputs[3], [sizes.queries, sizes.out]);
        let out = out.slice::<f32>();
        let parts = out.chunks_mut(out.len() / heads.len());
        // As many parts for any number of threads: they decide the order of sums.
        let split = 16usize.div_ceil(heads.len());
        try_share(parts.zip(&heads).zip(&grads), 1, |((out, head), g)| head.backward(*g, out, split))
            .map_err(host_error)
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn<Strided>], _out: &Buffer) -> Result<Vec<Kernel>> {
        Err(only_on_the_host(self.name()))
    }
}
