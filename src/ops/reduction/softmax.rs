//! softmax and log-softmax along a dimension.

use std::sync::Arc;

use anygpu_host::tasks::share;
use anygpu_host::vectorised;
use anygpu_host::vectors::{MulAdd, exp_below_zero, larger, with_vectors};
use pulp::{Simd, WithSimd};

use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::elementwise::unary::CHUNK;
use crate::ops::elementwise::unary::special::exp;
use crate::ops::inputs::{around, rows_in_fours};
use crate::ops::names::{Names, names};
use crate::ops::parts::alike;
use crate::ops::traced::Traced;
use crate::ops::{Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Saves, apply, of_sums};
use crate::shape::{Dim, dimension};
use crate::tensor::Tensor;

params! {
    struct Params { offset: usize, outer: usize, reduced: usize, inner: usize }
}
shader!(SHADER: Params = "reduction/softmax");

/// The longest row that one invocation of the kernel reads (three times). Other ops compute longer rows.
pub(in crate::ops) const MAX_ROW: usize = 16 * 1024;

/// The terms that each element of a vector sums up before their total is added in f64.
const TERMS: usize = 32;

/// The number of columns that the host computes together.
pub(in crate::ops) const COLUMNS: usize = 64;

#[derive(Debug)]
struct Softmax {
    dim: usize,
    log: bool,
}

impl Op for Softmax {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Raise);
    const NAMES: Names = names!["log_softmax", "softmax"];

    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Softmax { dim: self.dim, log: self.log })
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        if dim == self.dim { None } else { alike(shapes, dim) }
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let [_, reduced, inner] = around(inputs[0].shape(), self.dim);
        let (x, out, block) = (inputs[0].slice::<f32>(), out.slice::<f32>(), reduced * inner);
        let part = (CHUNK / block).max(1) * block;
        share(out.chunks_mut(part).zip(x.chunks(part)), 1, |(out, x)| match inner {
            1 => with_vectors(Rows { x, out, count: block, log: self.log }),
            _ => {
                for (out, x) in out.chunks_mut(block).zip(x.chunks(block)) {
                    let starts = (0..inner).step_by(COLUMNS);
                    starts.for_each(|first| vectorised!(<M> columns::<M>(x, out, (first, inner), self.log)));
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let [outer, reduced, inner] = around(x.shape(), self.dim);
        let fours = rows_in_fours(inner, reduced, x.offset());
        let (entry, reduced) = if fours { ("rows4", reduced / 4) } else { ("softmax", reduced) };
        let params = Params { offset: x.offset(), outer, reduced, inner };
        let kernel = Kernel::build(SHADER, entry, params).constant("LOG", self.log);
        Ok(vec![kernel.input(x).output(out).each(outer * inner)])
    }

    fn saves(&self) -> Saves {
        Saves::Output
    }

    /// Computes y · (g − Σ g·y) for softmax, and g − e^y · Σ g for log-softmax.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (y, g) = (ctx.out, ctx.grad);
        let grad = match self.log {
            true => g.sub(&y.exp()?.mul(&g.sum([self.dim], true)?)?)?,
            false => y.mul(&g.sub(&g.mul(y)?.sum([self.dim], true)?)?)?,
        };
        Ok(vec![Some(grad)])
    }
}

/// Computes rows of `count` elements on the host. A NaN makes the sum NaN, and so every result of its row.
struct Rows<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
    count: usize,
    log: bool,
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Rows { x, out, count, log } = self;
        let mut rows = x.chunks_exact(count).peekable();
        let mut max = rows.peek().map_or(f32::NEG_INFINITY, |row| largest(simd, row));
        for out in out.chunks_exact_mut(count) {
            let Some(row) = rows.next() else { return };
            // The maximum of the next row is found meanwhile: the processor waits for memory as it computes.
            let (sum, next) = exponentials(simd, row, max, out, rows.peek().unwrap_or(&row));
            if log {
                let sum = sum.ln() as f32;
                out.iter_mut().zip(row).for_each(|(out, x)| *out = (x - max) - sum);
            } else {
                let scale = (1.0 / sum) as f32; // a product takes less time than a quotient
                let (vectors, rest) = S::as_mut_simd_f32s(out);
                vectors.iter_mut().for_each(|v| *v = simd.mul_f32s(*v, simd.splat_f32s(scale)));
                rest.iter_mut().for_each(|v| *v *= scale);
            }
            max = next;
        }
    }
}

/// Returns the largest element of `lanes` and of the end of a row.
#[inline(always)]
fn joined<S: Simd>(simd: S, lanes: S::f32s, end: &[f32]) -> f32 {
    let max = |a: f32, b: &f32| if *b > a { *b } else { a };
    end.iter().fold(simd.reduce_max_f32s(lanes), max)
}

/// Returns the largest element that is not NaN, or −∞.
#[inline(always)]
pub(in crate::ops) fn largest<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let (vectors, end) = S::as_simd_f32s(row);
    let lanes = vectors.iter().fold(simd.splat_f32s(f32::NEG_INFINITY), |max, v| larger(simd, max, *v));
    joined(simd, lanes, end)
}

/// Writes `exp(x − max)` and returns the sum, and the largest element of the next row, which is as long.
#[inline(always)]
pub(in crate::ops) fn exponentials<S: Simd>(simd: S, x: &[f32], max: f32, out: &mut [f32], next: &[f32]) -> (f64, f32) {
    let (max, lowest) = (simd.splat_f32s(max), simd.splat_f32s(f32::NEG_INFINITY));
    let ((x, x_end), (next, next_end)) = (S::as_simd_f32s(x), S::as_simd_f32s(next));
    let (out, out_end) = S::as_mut_simd_f32s(out);
    let mut total = 0f64;
    let mut highest = [lowest; 2];
    // Short sums in two vectors, so that neither waits for itself; their totals in f64.
    for ((out, x), next) in out.chunks_mut(2 * TERMS).zip(x.chunks(2 * TERMS)).zip(next.chunks(2 * TERMS)) {
        let mut sums = [simd.splat_f32s(0.0); 2];
        let (outs, out_last) = out.as_chunks_mut::<2>();
        let ((xs, x_last), (nexts, next_last)) = (x.as_chunks::<2>(), next.as_chunks::<2>());
        for ((out, x), next) in outs.iter_mut().zip(xs).zip(nexts) {
            for i in 0..2 {
                out[i] = exp_below_zero(simd, simd.sub_f32s(x[i], max));
                sums[i] = simd.add_f32s(sums[i], out[i]);
                highest[i] = larger(simd, highest[i], next[i]);
            }
        }
        for ((out, x), next) in out_last.iter_mut().zip(x_last).zip(next_last) {
            *out = exp_below_zero(simd, simd.sub_f32s(*x, max));
            sums[0] = simd.add_f32s(sums[0], *out);
            highest[0] = larger(simd, highest[0], *next);
        }
        total += f64::from(simd.reduce_sum_f32s(simd.add_f32s(sums[0], sums[1])));
    }
    if !x_end.is_empty() {
        let last = exp_below_zero(simd, simd.sub_f32s(simd.partial_load_f32s(x_end), max));
        simd.partial_store_f32s(out_end, last);
        total += f64::from(simd.reduce_sum_f32s(simd.partial_load_f32s(out_end))); // the other elements are 0
    }
    (total, joined(simd, larger(simd, highest[0], highest[1]), next_end))
}

/// Computes some columns of `[R, inner]` on the host together.
#[inline(always)]
pub(in crate::ops) fn columns<M: MulAdd>(x: &[f32], out: &mut [f32], (first, inner): (usize, usize), log: bool) {
    let width = COLUMNS.min(inner - first);
    let range = |row: usize| row * inner + first..row * inner + first + width;
    let (mut max, mut sums) = ([f32::NEG_INFINITY; COLUMNS], [0f64; COLUMNS]);
    let count = x.len() / inner;
    for row in 0..count {
        max.iter_mut().zip(&x[range(row)]).for_each(|(max, &v)| *max = if v > *max { v } else { *max });
    }
    for row in 0..count {
        let line = &mut out[range(row)];
        for ((out, x), max) in line.iter_mut().zip(&x[range(row)]).zip(&max) {
            *out = exp::<M>(x - max);
        }
        sums.iter_mut().zip(line).for_each(|(sum, v)| *sum += f64::from(*v));
    }
    let sums = sums.map(|sum| if log { sum.ln() as f32 } else { sum as f32 });
    for row in 0..count {
        let line = out[range(row)].iter_mut().zip(&x[range(row)]);
        line.zip(max.iter().zip(&sums)).for_each(|((out, x), (max, sum))| {
            *out = if log { (x - max) - sum } else { *out / sum };
        });
    }
}

fn softmax(x: &Tensor, dim: impl Dim, log: bool) -> Result<Tensor> {
    let op = |dim| Softmax { dim, log };
    if x.rank() == 0 {
        return softmax(&x.reshape([1])?, dimension(op(0).name(), dim, &[1])?, log)?.reshape(());
    }
    let dim = dimension(op(0).name(), dim, x.shape())?;
    if x.shape()[dim] <= MAX_ROW || x.device().is_cpu() || !x.dtype().is_float() {
        return apply(op(dim), &[x]);
    }
    // A row that is too long for the kernel is computed by other ops. The sum of halves is an f32 sum.
    let dtype = x.dtype();
    let x = &x.to_dtype(DType::F32)?;
    let shifted = x.sub(&x.detach().max(dim, true)?)?;
    let exponentials = shifted.exp()?;
    let sum = exponentials.sum(dim, true)?;
    let out = if log { shifted.sub(&sum.log()?)? } else { exponentials.div(&sum)? };
    out.to_dtype(of_sums(dtype))
}

impl Tensor {
    /// Returns `exp(x) / Σ exp(x)` along `dim`, without overflow, in the same shape. Halves are computed as f32. A row
    /// that contains a NaN or ∞, or only −∞, becomes NaN. A tensor of rank 0 is one row along dimension 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there is no such dimension;
    /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) unless the elements are floats.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::zeros([1, 4], None)?.softmax(-1)?.to_vec::<f32>()?, [0.25; 4]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn softmax(&self, dim: impl Dim) -> Result<Tensor> {
        softmax(self, dim, false)
    }

    /// Returns `x − log Σ exp(x)` along `dim`, without overflow, in the same shape.
    ///
    /// # Errors
    /// As [`Tensor::softmax`].
    pub fn log_softmax(&self, dim: impl Dim) -> Result<Tensor> {
        softmax(self, dim, true)
    }
}
