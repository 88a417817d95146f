//! Attention as one op, which stores no scores: the gradient computes them again. [`plan`](super::plan) says when an adapter computes it
//! so; else it is a composition, and so is a gradient that is to have a gradient.

use std::sync::Arc;

use anygpu_host::attention::{Head, Rows};
use anygpu_host::matmul::panel_width;
use anygpu_host::tasks::try_share;

use super::gpu::Operands;
use super::hide_future;
use super::plan::fuses;
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
pub(super) struct Sizes {
    pub batch: Vec<usize>,
    pub queries: usize,
    pub keys: usize,
    /// The elements of a query and of a key.
    pub width: usize,
    /// The elements of a value.
    pub out: usize,
}

impl Sizes {
    pub fn of([q, k, v]: [&[usize]; 3]) -> Result<Sizes> {
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

    pub fn heads(&self) -> usize {
        self.batch.iter().product()
    }

    /// Returns the elements of the gradients of a head.
    pub fn gradients(&self) -> usize {
        self.queries * self.width + self.keys * (self.width + self.out)
    }

    /// Returns the shape of a tensor with these last two sizes.
    pub fn with(&self, last: [usize; 2]) -> Vec<usize> {
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
            scores = hide_future(&scores, 0)?;
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

/// Returns the gradient of the result as the loops and the kernels read it: on an adapter it is dense, in vectors of four.
fn gradient_as_read(g: &Tensor) -> Result<Tensor> {
    let aligned = g.layout().is_contiguous() && g.layout().offset.is_multiple_of(4);
    match g.device().is_cpu() {
        true => with_dense_rows(g),
        false if aligned => Ok(g.clone()),
        false => g.copy(),
    }
}

/// Computes attention as one op, or returns `None` where it is to be a composition.
pub(super) fn attention(op: Fused, inputs: [&Tensor; 3]) -> Result<Option<Tensor>> {
    if !inputs[0].device().is_cpu() {
        return if fuses(op, inputs)? { apply(op, &inputs).map(Some) } else { Ok(None) };
    }
    let [q, k, v] = [with_dense_rows(inputs[0])?, with_dense_rows(inputs[1])?, with_dense_rows(inputs[2])?];
    apply(op, &[&q, &k, &v]).map(Some)
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

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (operands, buffers) = operands(self.name(), inputs)?;
        Ok(operands.forward(*self, buffers, out))
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let [q, k, v] = [0, 1, 2].map(|i| &ctx.inputs[i]);
        if is_recording() {
            return self.composed_gradients([q, k, v], ctx);
        }
        let sizes = Sizes::of([q.shape(), k.shape(), v.shape()])?;
        let Sizes { queries, keys, width, out, .. } = sizes;
        let all = apply(FusedGrad(*self), &[q, k, v, &gradient_as_read(ctx.grad)?])?;
        let head = sizes.gradients();
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
        Ok((vec![sizes.heads(), sizes.gradients()], inputs[0].dtype()))
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

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (operands, buffers) = operands(self.name(), inputs)?;
        let g = &inputs[3];
        operands.backward(gpu, self.0, buffers, (g.buffer(), g.layout().offset), out)
    }
}

/// Returns the operands of an op that [`plan`](super::plan) has found to be one pass.
fn operands<'a>(op: &'static str, inputs: &[GpuIn<'a, Strided>]) -> Result<(Operands, [&'a Buffer; 3])> {
    let operands = Operands::new([0, 1, 2].map(|i| inputs[i].layout()))?.ok_or_else(|| only_on_the_host(op))?;
    Ok((operands, [0, 1, 2].map(|i| inputs[i].buffer())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Attention;
    use crate::device::Device;
    use crate::ops::linalg::matmul_variants::numbers;
    use crate::ops::variants::forced;

    /// Returns the result, and the gradients of queries, keys and values of these shapes, as a net has them: heads that are a view of
    /// `[B, L, heads, E]`.
    fn results(device: &Device, shapes: [[usize; 4]; 3], causal: bool) -> Result<Vec<Vec<f32>>> {
        let operands: Vec<Tensor> = (1..)
            .zip(shapes)
            .map(|(seed, shape)| {
                let values = numbers(shape.iter().product(), seed);
                Ok(Tensor::from_vec(values, shape, None)?.to(device)?.requires_grad())
            })
            .collect::<Result<_>>()?;
        let [q, k, v] = [0, 1, 2].map(|i| operands[i].transpose(1, 2));
        let options = if causal { Attention::new().causal() } else { Attention::new() };
        let out = q?.attention(&k?, &v?, &options)?;
        let slopes = Tensor::from_vec(numbers(out.elem_count(), 9), out.shape(), None)?.to(device)?;
        out.mul(&slopes)?.sum_all()?.backward()?;
        let gradients = operands.iter().map(|x| x.grad().expect("a gradient").to_vec());
        [out.to_vec()].into_iter().chain(gradients).collect()
    }

    #[test]
    fn one_pass_on_an_adapter_gives_the_numbers_of_the_host() -> Result<()> {
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
            for (shapes, causal) in [
                ([[2, 9, 3, 8], [2, 11, 3, 8], [2, 11, 3, 4]], false),
                ([[1, 70, 2, 64], [1, 70, 2, 64], [1, 70, 2, 64]], true),
                ([[2, 5, 4, 8], [2, 7, 1, 8], [2, 7, 1, 8]], false), // grouped heads: keys and values of one for all
                ([[1, 5, 2, 8], [1, 90, 2, 8], [1, 90, 2, 8]], true), // keys that no query sees
            ] {
                let expected = results(&Device::cpu(), shapes, causal)?;
                let got = forced("attention", "fused", || results(&device, shapes, causal))?;
                for (what, (got, expected)) in
                    ["result", "queries", "keys", "values"].iter().zip(got.iter().zip(&expected))
                {
                    let off = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    let nan = got.iter().any(|v| v.is_nan());
                    assert!(
                        got.len() == expected.len() && off < 2e-5 && !nan,
                        "{device}: {what} of {shapes:?} off by {off}"
                    );
                }
            }
        }
        Ok(())
    }
}
