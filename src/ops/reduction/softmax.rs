//! softmax and log-softmax along a dimension.

use std::sync::Arc;

use anygpu_host::tasks::share;
use anygpu_host::vectorised;
use anygpu_host::vectors::{MulAdd, exp_below_zero, larger, with_vectors};
use pulp::{Simd, WithSimd};

use crate::autograd::is_recording;
use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel, params, shader, wgsl};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::elementwise::unary::CHUNK;
use crate::ops::elementwise::unary::special::exp;
use crate::ops::inputs::around;
use crate::ops::names::{Names, names};
use crate::ops::parts::alike;
use crate::ops::reduction::plan::{Rows, Way, are_shared, way};
use crate::ops::traced::Traced;
use crate::ops::{Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Saves, apply, of_sums};
use crate::shape::{Dim, dimension};
use crate::tensor::Tensor;

params! {
    pub(in crate::ops) struct Params { offset: usize, outer: usize, reduced: usize, inner: usize, parts: usize, span: usize, lanes: usize }
}
params! {
    struct GradParams { y_offset: usize, g_offset: usize, outer: usize, reduced: usize, inner: usize, lanes: usize }
}
/// The texts before the shaders whose workgroups share rows.
pub(in crate::ops) const BY_ONE: &str = wgsl!("common/by_one");
pub(in crate::ops) const BY_FOUR: &str = wgsl!("common/by_four");
pub(in crate::ops) const LINES: &str = wgsl!("common/lines");
pub(in crate::ops) const ROWS: &str = wgsl!("common/rows");
pub(in crate::ops) const EXPONENTIALS: &str = wgsl!("reduction/exponentials");

shader!(pub(in crate::ops) ALONE_SHADER: Params = "reduction/softmax");
shader!(pub(in crate::ops) SHARED_SHADER: Params = "reduction/softmax_rows", after [BY_ONE, LINES, ROWS, EXPONENTIALS]);
shader!(SHARED_IN_FOURS: Params = "reduction/softmax_rows" named "softmax_rows_4", after [BY_FOUR, LINES, ROWS, EXPONENTIALS]);
shader!(GRAD_ALONE: GradParams = "reduction/softmax_grad");
shader!(GRAD_SHARED: GradParams = "reduction/softmax_grad_rows", after [BY_ONE, LINES, ROWS]);
shader!(GRAD_SHARED_IN_FOURS: GradParams = "reduction/softmax_grad_rows" named "softmax_grad_rows_4", after [BY_FOUR, LINES, ROWS]);

/// The longest row that one invocation of the kernel reads (three times). Workgroups share longer rows, or other ops compute them.
pub(in crate::ops) const MAX_ROW: usize = 16 * 1024;

/// The terms that each element of a vector sums up before their total is added in f64.
const TERMS: usize = 32;

/// The number of columns that the host computes together.
pub(in crate::ops) const COLUMNS: usize = 64;

#[derive(Clone, Copy, Debug)]
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
            1 => with_vectors(HostRows { x, out, count: block, log: self.log }),
            _ => {
                for (out, x) in out.chunks_mut(block).zip(x.chunks(block)) {
                    let starts = (0..inner).step_by(COLUMNS);
                    starts.for_each(|first| vectorised!(<M> columns::<M>(x, out, (first, inner), self.log)));
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let sizes = around(x.shape(), self.dim);
        let way = way(&**gpu, Rows::new(sizes, x.offset()))?;
        kernels(gpu, (x.as_buffer(), x.offset()), sizes, self.log, way, out)
    }

    fn saves(&self) -> Saves {
        Saves::Output
    }

    /// Computes y · (g − Σ g·y) for softmax, and g − e^y · Σ g for log-softmax.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (y, g) = (ctx.out, ctx.grad);
        let short = y.shape()[self.dim] <= MAX_ROW || y.device().is_cpu();
        let grad =
            if !is_recording() && y.dtype() == DType::F32 && g.dtype() == DType::F32 && (short || shares(y, self.dim)?)
            {
                apply(SoftmaxGrad(*self), &[y, g])?
            } else if self.log {
                g.sub(&y.exp()?.mul(&g.sum([self.dim], true)?)?)?
            } else {
                y.mul(&g.sub(&g.mul(y)?.sum([self.dim], true)?)?)?
            };
        Ok(vec![Some(grad)])
    }
}

/// Returns whether invocations of the device share the rows along a dimension.
fn shares(x: &Tensor, dim: usize) -> Result<bool> {
    are_shared(x.device(), Rows::new(around(x.shape(), dim), 0))
}

/// Returns the kernels of softmax or its logarithm along R of `[A, R, B]`, dense from an offset of a buffer on.
pub(super) fn kernels(
    gpu: &Gpu,
    (x, offset): (&Buffer, usize),
    sizes: [usize; 3],
    log: bool,
    way: Way,
    out: &Buffer,
) -> Result<Vec<Kernel>> {
    let rows = Rows::new(sizes, offset);
    let ([outer, _, inner], reduced, in_fours) = (sizes, rows.loads(), rows.width == 4);
    let Way::Shared { lanes, parts } = way else {
        let params = Params { offset, outer, reduced, inner, parts: 1, span: reduced, lanes: 1 };
        let entry = if in_fours { "rows4" } else { "softmax" };
        let kernel = Kernel::build(ALONE_SHADER, entry, params).constant("LOG", log);
        return Ok(vec![kernel.input(x).output(out).each(outer * inner)]);
    };
    let (span, parts) = rows.parts(parts);
    let params = Params { offset: offset / rows.width, outer, reduced, inner, parts, span, lanes };
    let shader = if in_fours { SHARED_IN_FOURS } else { SHARED_SHADER };
    let workgroups = Way::workgroups(outer * parts, lanes);
    let kernel = |entry| Kernel::build(shader, entry, params).constant("LOG", log).input(x);
    if parts > 1 {
        let found = gpu.alloc(4 * outer * parts)?;
        let results = kernel("from_parts").input(&found).output(out);
        return Ok(vec![kernel("parts").output(&found).workgroups(workgroups), results.workgroups(workgroups)]);
    }
    Ok(vec![kernel(rows.entry(lanes)).output(out).workgroups(workgroups)])
}

/// Computes rows of `count` elements on the host. A NaN makes the sum NaN, and so every result of its row.
struct HostRows<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
    count: usize,
    log: bool,
}

impl WithSimd for HostRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let HostRows { x, out, count, log } = self;
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

/// The gradient of softmax or of its logarithm, from the result and the result's gradient.
#[derive(Debug)]
struct SoftmaxGrad(Softmax);

impl Op for SoftmaxGrad {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["log_softmax", "softmax"];

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        if dim == self.0.dim { None } else { alike(shapes, dim) }
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let [_, reduced, inner] = around(inputs[0].shape(), self.0.dim);
        let (y, g, out, log) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>(), self.0.log);
        let block = reduced * inner;
        let part = (CHUNK / block).max(1) * block;
        share(out.chunks_mut(part).zip(y.chunks(part).zip(g.chunks(part))), 1, |(out, (y, g))| {
            for (out, (y, g)) in out.chunks_mut(block).zip(y.chunks(block).zip(g.chunks(block))) {
                if inner == 1 {
                    vectorised!(<M> row_gradient::<M>(y, g, out, log));
                } else {
                    let starts = (0..inner).step_by(COLUMNS);
                    starts.for_each(|first| vectorised!(<M> column_gradients::<M>(y, g, out, (first, inner), log)));
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (y, g) = (&inputs[0], &inputs[1]);
        let sizes = around(y.shape(), self.0.dim);
        let offset = if g.offset().is_multiple_of(4) { y.offset() } else { g.offset() };
        let rows = Rows::new(sizes, offset);
        let ([outer, _, inner], reduced, width) = (sizes, rows.loads(), rows.width);
        let params = GradParams { y_offset: y.offset(), g_offset: g.offset(), outer, reduced, inner, lanes: 1 };
        let kernel = match way(&**gpu, rows)? {
            Way::Alone => {
                let entry = if width == 4 { "rows4" } else { "softmax_grad" };
                let kernel = Kernel::build(GRAD_ALONE, entry, params).constant("LOG", self.0.log);
                kernel.input(y).input(g).output(out).each(outer * inner)
            }
            Way::Shared { lanes, .. } => {
                let params = GradParams { y_offset: y.offset() / width, g_offset: g.offset() / width, lanes, ..params };
                let shader = if width == 4 { GRAD_SHARED_IN_FOURS } else { GRAD_SHARED };
                let kernel = Kernel::build(shader, rows.entry(lanes), params).constant("LOG", self.0.log);
                kernel.input(y).input(g).output(out).workgroups(Way::workgroups(outer, lanes))
            }
        };
        Ok(vec![kernel])
    }
}

/// Terms that are added up in f32 before their total is added in f64.
const TOTALLED: usize = 256;

/// Computes the gradient of a row on the host.
#[inline(always)]
fn row_gradient<M: MulAdd>(y: &[f32], g: &[f32], out: &mut [f32], log: bool) {
    let blocks = y.chunks(TOTALLED).zip(g.chunks(TOTALLED));
    let total = blocks.map(|(y, g)| {
        let mut sums = [0f32; 16];
        let (ys, y_end) = y.as_chunks::<16>();
        let (gs, g_end) = g.as_chunks::<16>();
        for (y, g) in ys.iter().zip(gs) {
            sums.iter_mut().zip(y.iter().zip(g)).for_each(|(sum, (y, g))| *sum += if log { *g } else { g * y });
        }
        sums.iter_mut().zip(y_end.iter().zip(g_end)).for_each(|(sum, (y, g))| *sum += if log { *g } else { g * y });
        f64::from(sums.iter().sum::<f32>())
    });
    let total = total.sum::<f64>() as f32;
    for (out, (y, g)) in out.iter_mut().zip(y.iter().zip(g)) {
        *out = if log { g - exp::<M>(*y) * total } else { y * (g - total) };
    }
}

/// Computes the gradients of some columns of `[R, inner]` on the host together.
#[inline(always)]
fn column_gradients<M: MulAdd>(y: &[f32], g: &[f32], out: &mut [f32], (first, inner): (usize, usize), log: bool) {
    let width = COLUMNS.min(inner - first);
    let range = |row: usize| row * inner + first..row * inner + first + width;
    let mut totals = [0f64; COLUMNS];
    let count = y.len() / inner;
    for row in 0..count {
        let terms = y[range(row)].iter().zip(&g[range(row)]).map(|(y, g)| if log { *g } else { g * y });
        totals.iter_mut().zip(terms).for_each(|(total, term)| *total += f64::from(term));
    }
    let totals = totals.map(|total| total as f32);
    for row in 0..count {
        let line = out[range(row)].iter_mut().zip(y[range(row)].iter().zip(&g[range(row)]));
        line.zip(&totals).for_each(|((out, (y, g)), total)| {
            *out = if log { g - exp::<M>(*y) * total } else { y * (g - total) };
        });
    }
}

fn softmax(x: &Tensor, dim: impl Dim, log: bool) -> Result<Tensor> {
    let op = |dim| Softmax { dim, log };
    if x.rank() == 0 {
        return softmax(&x.reshape([1])?, dimension(op(0).name(), dim, &[1])?, log)?.reshape(());
    }
    let dim = dimension(op(0).name(), dim, x.shape())?;
    if x.shape()[dim] <= MAX_ROW || x.device().is_cpu() || !x.dtype().is_float() || shares(x, dim)? {
        return apply(op(dim), &[x]);
    }
    // A row that is too long for one invocation is computed by other ops. The sum of halves is an f32 sum.
    let dtype = x.dtype();
    let x = &x.to_dtype(DType::F32)?;
    let shifted = x.sub(&x.detach().max(dim, true)?)?;
    let exponentials = shifted.exp()?;
    let sum = exponentials.sum(dim, true)?;
    let out = if log { shifted.sub(&sum.log()?)? } else { exponentials.div(&sum)? };
    out.to_dtype(of_sums(dtype))
}

impl Tensor {
    /// Returns `exp(x) / Σ exp(x)` along `dim`, without overflow, in the same shape.
    ///
    /// Halves are computed as f32. A row that contains a NaN or ∞, or only −∞, becomes NaN. A tensor of rank 0 is one
    /// row along dimension 0.
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
    /// Same as [`Tensor::softmax`].
    pub fn log_softmax(&self, dim: impl Dim) -> Result<Tensor> {
        softmax(self, dim, true)
    }
}
