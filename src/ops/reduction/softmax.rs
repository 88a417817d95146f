//! softmax and log-softmax along a dimension.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::elementwise::unary::CHUNK;
use crate::ops::elementwise::unary::special::exp;
use crate::ops::inputs::{around, rows_in_fours};
use crate::ops::sums::{PART, fold_lanes};
use crate::ops::vectorised::vectorised;
use crate::ops::{Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Saves, apply, of_sums};
use crate::shape::{Dim, dimension};
use crate::tensor::Tensor;

params! {
    struct Params { offset: usize, outer: usize, reduced: usize, inner: usize }
}
shader!(SHADER: Params = "softmax");

/// The longest row that one invocation of the kernel reads (three times). Other ops compute longer rows.
const MAX_ROW: usize = 16 * 1024;

/// The number of columns that the host computes together.
const COLUMNS: usize = 64;

#[derive(Debug)]
struct Softmax {
    dim: usize,
    log: bool,
}

impl Op for Softmax {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Raise);

    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let [_, reduced, inner] = around(inputs[0].shape(), self.dim);
        let (x, out, block) = (inputs[0].slice::<f32>(), out.slice::<f32>(), reduced * inner);
        let part = (CHUNK / block).max(1) * block;
        let parts = out.par_chunks_mut(part).zip(x.par_chunks(part));
        parts.for_each(|(out, x)| match inner {
            1 => vectorised!(rows(x, out, block, self.log)),
            _ => {
                for (out, x) in out.chunks_mut(block).zip(x.chunks(block)) {
                    let starts = (0..inner).step_by(COLUMNS);
                    starts.for_each(|first| vectorised!(columns(x, out, (first, inner), self.log)));
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

/// Computes rows of `count` elements on the host.
#[inline(always)]
fn rows(x: &[f32], out: &mut [f32], count: usize, log: bool) {
    for (out, x) in out.chunks_mut(count).zip(x.chunks(count)) {
        row(x, out, log);
    }
}

/// Computes one row on the host, in a few passes that vectorise. A NaN makes the total NaN, and so every result.
#[inline(always)]
fn row(x: &[f32], out: &mut [f32], log: bool) {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let max = fold_lanes([f32::NEG_INFINITY; 16], x, larger, larger);
    let sum = exponentials(x, max, out);
    if log {
        let sum = sum.ln() as f32;
        out.iter_mut().zip(x).for_each(|(out, x)| *out = (x - max) - sum);
    } else {
        let scale = (1.0 / sum) as f32; // a product takes less time than a quotient
        out.iter_mut().for_each(|out| *out *= scale);
    }
}

/// Writes `exp(x − max)` and returns the sum, added as [`total`](crate::ops::sums::total) adds.
#[inline(always)]
fn exponentials(x: &[f32], max: f32, out: &mut [f32]) -> f64 {
    let mut total = 0f64;
    for (out, x) in out.chunks_mut(PART).zip(x.chunks(PART)) {
        let ((x, rest), (out, last)) = (x.as_chunks::<16>(), out.as_chunks_mut::<16>());
        let mut sums = [0f32; 16];
        for (out, x) in out.iter_mut().zip(x) {
            for i in 0..16 {
                out[i] = exp(x[i] - max);
                sums[i] += out[i];
            }
        }
        if !rest.is_empty() {
            // As a whole vector: single exponentials would take as long as that many vectors.
            let mut vector = [0f32; 16];
            vector[..rest.len()].copy_from_slice(rest);
            for v in &mut vector {
                *v = exp(*v - max);
            }
            last.copy_from_slice(&vector[..rest.len()]);
            for (sum, v) in sums.iter_mut().zip(last) {
                *sum += *v;
            }
        }
        total += f64::from(fold_lanes(sums, &[], |sum, _| sum, |a, b| a + b));
    }
    total
}

/// Computes some columns of `[R, inner]` on the host together.
#[inline(always)]
fn columns(x: &[f32], out: &mut [f32], (first, inner): (usize, usize), log: bool) {
    let width = COLUMNS.min(inner - first);
    let range = |row: usize| row * inner + first..row * inner + first + width;
    let (mut max, mut sums) = ([f32::NEG_INFINITY; COLUMNS], [0f64; COLUMNS]);
    let count = x.len() / inner;
    for row in 0..count {
        max.iter_mut().zip(&x[range(row)]).for_each(|(max, &v)| *max = if v > *max { v } else { *max });
    }
    for row in 0..count {
        let line = &mut out[range(row)];
        line.iter_mut().zip(&x[range(row)]).zip(&max).for_each(|((out, x), max)| *out = exp(x - max));
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
