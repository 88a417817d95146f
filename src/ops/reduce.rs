//! Sum and maximum along dimensions, and the mean that follows from the sum.
//!
//! A reduction over several dimensions is one over each run of neighbouring dimensions in turn, so that the kernel only
//! knows `[A, R, B] → [A, B]`. The order of additions depends on the shape alone: two runs are bit-identical.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::{DType, Word};
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid, scalar_header};
use crate::ops::promote::apply_wide;
use crate::ops::{Gradient, Op, Spec, expect_dtype, shader};
use crate::shape::{Layout, check_dim};
use crate::tensor::Tensor;

pub(super) const SHADER: Shader = shader!("reduce");

/// The most elements that one invocation adds up before a partial result is stored.
const CHUNK: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Sum,
    Max,
}

/// Reduces the dimensions `first .. first + count` to size 1.
#[derive(Debug)]
struct Reduce {
    kind: Kind,
    first: usize,
    count: usize,
}

impl Reduce {
    /// `[A, R, B]`
    fn sizes(&self, shape: &[usize]) -> [usize; 3] {
        let end = self.first + self.count;
        [shape[..self.first].iter().product(), shape[self.first..end].iter().product(), shape[end..].iter().product()]
    }
}

impl Op for Reduce {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Sum => "sum",
            Kind::Max => "max",
        }
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        let mut shape = inputs[0].shape().to_vec();
        if self.sizes(&shape)[1] == 0 && self.kind == Kind::Max {
            return Err(Error::argument("max", format!("no maximum over the empty dimensions of {shape:?}")));
        }
        shape[self.first..self.first + self.count].fill(1);
        Ok(Spec::Fresh(shape, inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let x = &inputs[0];
        let sizes = self.sizes(&x.layout.shape);
        match (x.dtype, self.kind) {
            (DType::F32, Kind::Sum) => fold_f32_sum(x.slice(), out.slice(), sizes),
            (DType::F32, Kind::Max) => {
                fold(x.slice(), out.slice(), sizes, |a: f32, v| if v > a || v.is_nan() { v } else { a })
            }
            (DType::I32, Kind::Sum) => fold(x.slice(), out.slice(), sizes, i32::wrapping_add),
            (DType::I32, Kind::Max) => fold(x.slice::<i32>(), out.slice(), sizes, Ord::max),
            (_, Kind::Sum) => fold(x.slice(), out.slice(), sizes, u32::wrapping_add),
            (_, Kind::Max) => fold(x.slice::<u32>(), out.slice(), sizes, Ord::max),
        }
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        kernels(gpu, &inputs[0], self.kind, self.sizes(&inputs[0].layout.shape), out)
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let x = ctx.inputs[0].detach();
        let grad = match self.kind {
            Kind::Sum => ctx.grad.broadcast_to(x.shape())?,
            Kind::Max => {
                // Shared evenly between equal maxima, as torch.amax does.
                let hits = x.eq(ctx.out)?;
                let dims: Vec<usize> = (self.first..self.first + self.count).collect();
                hits.mul(&ctx.grad.div(&hits.sum(&dims, true)?)?)?
            }
        };
        Ok(vec![Some(grad)])
    }
}

/// The kernels for `[A, R, B] → [A, B]` on an adapter.
fn kernels(gpu: &Gpu, x: &GpuIn, kind: Kind, sizes: [usize; 3], out: &Buffer) -> Result<Vec<Kernel>> {
    let [outer, mut reduced, inner] = sizes;
    fits_u32("reduce", outer * reduced * inner)?;
    if reduced == 0 {
        return Ok(vec![super::inplace::fill_kernel(out, 0, outer * inner, 0)]);
    }
    let (mut source, mut offset) = (x.buffer.clone(), x.offset());
    let mut kernels = Vec::new();
    loop {
        // Few results from many elements: partial results first, as many as keep the machine busy.
        let crowded = reduced > CHUNK || (reduced > 64 && outer * inner < 1024);
        let chunks = if crowded { reduced.div_ceil(64).min(reduced.div_ceil(CHUNK).max(1024)) } else { 1 };
        let target = if crowded { gpu.alloc(outer * chunks * inner)? } else { out.clone() };
        kernels.push(Kernel {
            shader: SHADER,
            entry: "reduce",
            header: scalar_header(x.dtype),
            constants: vec![("OP", f64::from(u8::from(kind == Kind::Max)))],
            params: vec![offset, outer as u32, reduced as u32, inner as u32, chunks as u32],
            inputs: vec![source],
            outputs: vec![target.clone()],
            groups: grid(outer * chunks * inner),
        });
        if !crowded {
            return Ok(kernels);
        }
        (source, offset, reduced) = (target, 0, chunks);
    }
}

/// The kernels that add up partial results `[outer, parts, len]` → `[outer, len]`, from the start of a buffer.
pub(super) fn sum_parts(gpu: &Gpu, buffer: &Buffer, sizes: [usize; 3], out: &Buffer) -> Result<Vec<Kernel>> {
    let layout = Layout::contiguous(&sizes);
    kernels(gpu, &GpuIn { buffer, layout: &layout, dtype: DType::F32 }, Kind::Sum, sizes, out)
}

/// `out[a, b] ← x[a, 0, b] ⊕ x[a, 1, b] ⊕ …`; the empty reduction is 0.
fn fold<T: Word>(x: &[T], out: &mut [T], [_, reduced, inner]: [usize; 3], f: impl Fn(T, T) -> T + Send + Sync) {
    if reduced == 0 {
        return out.fill(T::zeroed());
    }
    out.par_chunks_mut(inner).zip(x.par_chunks(reduced * inner)).with_min_len(8).for_each(|(out, x)| {
        out.copy_from_slice(&x[..inner]);
        for row in x[inner..].chunks(inner) {
            out.iter_mut().zip(row).for_each(|(out, &v)| *out = f(*out, v));
        }
    });
}

/// As [`fold`] for a sum of floats: where the reduced elements lie next to each other, sixteen running sums over blocks,
/// so that the loop vectorises and rounding grows with the logarithm of the block, not with its length.
fn fold_f32_sum(x: &[f32], out: &mut [f32], sizes @ [_, reduced, inner]: [usize; 3]) {
    if inner != 1 || reduced == 0 {
        return fold(x, out, sizes, |a, v| a + v);
    }
    out.par_iter_mut().zip(x.par_chunks(reduced)).with_min_len(8).for_each(|(out, row)| {
        let blocks: Vec<f64> = row.par_chunks(1 << 16).map(|block| f64::from(sum_block(block))).collect();
        *out = blocks.iter().sum::<f64>() as f32;
    });
}

fn sum_block(block: &[f32]) -> f32 {
    let mut total = 0.0;
    for part in block.chunks(512) {
        let mut lanes = [0f32; 16];
        let mut rows = part.chunks_exact(16);
        for row in &mut rows {
            lanes.iter_mut().zip(row).for_each(|(lane, v)| *lane += v);
        }
        total += lanes.iter().sum::<f32>() + rows.remainder().iter().sum::<f32>();
    }
    total
}

/// Applies a reduction to each run of neighbouring dimensions.
fn over(x: &Tensor, kind: Kind, dims: &[usize], keepdim: bool) -> Result<Tensor> {
    let name = if kind == Kind::Sum { "sum" } else { "max" };
    dims.iter().try_for_each(|&d| check_dim(name, d, x.shape()))?;
    let mut sorted = dims.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut out = x.contiguous()?;
    for run in sorted.chunk_by(|a, b| a + 1 == *b).rev() {
        out = apply_wide(Reduce { kind, first: run[0], count: run.len() }, &[&out])?;
    }
    if keepdim {
        return Ok(out);
    }
    let kept: Vec<usize> = (0..x.rank()).filter(|d| !sorted.contains(d)).map(|d| x.shape()[d]).collect();
    out.reshape(kept)
}

impl Tensor {
    /// The sum over `dims`, which become size 1 (`keepdim`) or go. Over an empty dimension it is 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([[1.0, 2.0], [3.0, 4.0]])?;
    /// assert_eq!(x.sum(&[0], false)?.to_vec::<f32>()?, [4.0, 6.0]);
    /// assert_eq!(x.sum(&[1], true)?.shape(), [2, 1]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn sum(&self, dims: &[usize], keepdim: bool) -> Result<Tensor> {
        over(self, Kind::Sum, dims, keepdim)
    }

    /// The largest element over `dims` (torch's `amax`), which become size 1 (`keepdim`) or go. NaN wins.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or an empty one is reduced.
    pub fn max(&self, dims: &[usize], keepdim: bool) -> Result<Tensor> {
        over(self, Kind::Max, dims, keepdim)
    }

    /// The mean over `dims` (f32), which become size 1 (`keepdim`) or go. Over an empty dimension it is NaN.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension; [`Error::DTypeMismatch`] unless f32.
    pub fn mean(&self, dims: &[usize], keepdim: bool) -> Result<Tensor> {
        expect_dtype("mean", self, DType::F32)?;
        let sum = self.sum(dims, keepdim)?;
        let mut distinct = dims.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let count: usize = distinct.iter().map(|&d| self.shape()[d]).product();
        if count == 0 {
            return sum.add_scalar(f32::NAN);
        }
        sum.mul_scalar(1.0 / count as f32)
    }

    /// The sum of all elements, rank 0.
    ///
    /// # Errors
    /// If the device cannot compute it.
    pub fn sum_all(&self) -> Result<Tensor> {
        self.sum(&self.all_dims(), false)
    }

    /// The mean of all elements, rank 0.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] unless f32.
    pub fn mean_all(&self) -> Result<Tensor> {
        self.mean(&self.all_dims(), false)
    }

    /// The largest of all elements, rank 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is none.
    pub fn max_all(&self) -> Result<Tensor> {
        self.max(&self.all_dims(), false)
    }

    fn all_dims(&self) -> Vec<usize> {
        (0..self.rank()).collect()
    }
}
