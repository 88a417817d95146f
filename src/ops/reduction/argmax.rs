//! The position of the largest or smallest element along a dimension.

use std::sync::Arc;

use anygpu_host::tasks::share;

use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel, params, shader};
use crate::dtype::{DType, Word};
use crate::error::{Error, Result};
use crate::ops::inputs::{SCALAR_HEADERS, around, scalar_header};
use crate::ops::long::reduce::{Kind, rows};
use crate::ops::names::{Names, names};
use crate::ops::parts::alike;
use crate::ops::reduction::plan::{PartParams, Rows, Way, way};
use crate::ops::reduction::reduce::ROW_PARTS;
use crate::ops::reduction::softmax::LINES;
use crate::ops::traced::Traced;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, apply, named};
use crate::shape::{Dim, dimension};
use crate::tensor::Tensor;

params! {
    struct Params {
        offset: usize,
        outer: usize,
        reduced: usize,
        inner: usize,
        chunks: usize,
        length: usize,
        candidates: usize,
    }
}
shader!(SHADER: Params = "reduction/argmax", headers || SCALAR_HEADERS.to_vec());
shader!(SHARED: PartParams = "reduction/argmax_rows", after [LINES, ROW_PARTS], headers || SCALAR_HEADERS.to_vec());

/// The most elements that one invocation compares.
const CHUNK: usize = 4096;

#[derive(Debug)]
struct Arg {
    dim: usize,
    smallest: bool,
}

impl Op for Arg {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["argmin", "argmax"];

    fn name(&self) -> &'static str {
        if self.smallest { "argmin" } else { "argmax" }
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Arg { dim: self.dim, smallest: self.smallest })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let x = inputs[0];
        let mut shape = x.shape().to_vec();
        if shape.remove(self.dim) == 0 && !shape.contains(&0) {
            let detail = format!("the empty dimension {} of {:?} has no element", self.dim, x.shape());
            return Err(Error::argument(self.name(), detail));
        }
        Ok((shape, DType::U32))
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let (shape, _) = self.output(inputs)?;
        let sizes = around(inputs[0].shape(), self.dim);
        rows(self.name(), Kind::Position { smallest: self.smallest }, inputs[0], sizes, shape)
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        alike(shapes, if dim < self.dim { dim } else { dim + 1 })
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (x, sizes) = (&inputs[0], around(inputs[0].shape(), self.dim));
        let first_nan = |v: f32, best: f32| v.is_nan() && !best.is_nan();
        match (x.dtype(), self.smallest) {
            (DType::F32, false) => find(x.slice(), out, sizes, |v: f32, best| v > best || first_nan(v, best)),
            (DType::F32, true) => find(x.slice(), out, sizes, |v: f32, best| v < best || first_nan(v, best)),
            (DType::I32, false) => find(x.slice(), out, sizes, |v: i32, best| v > best),
            (DType::I32, true) => find(x.slice(), out, sizes, |v: i32, best| v < best),
            (_, false) => find(x.slice(), out, sizes, |v: u32, best| v > best),
            (_, true) => find(x.slice(), out, sizes, |v: u32, best| v < best),
        }
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        kernels(gpu, (x.as_buffer(), x.offset(), x.dtype()), self.smallest, around(x.shape(), self.dim), None, out)
    }

    fn backward(&self, _ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![None]) // an index has no gradient
    }
}

/// Returns the kernels for `[A, R, B] → [A, B]` on an adapter, of elements of a type from an offset on, in the way of the plan unless one
/// is given.
pub(super) fn kernels(
    gpu: &Gpu,
    (x, offset, dtype): (&Buffer, usize, DType),
    smallest: bool,
    sizes: [usize; 3],
    given: Option<Way>,
    out: &Buffer,
) -> Result<Vec<Kernel>> {
    let [outer, reduced, inner] = sizes;
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut found: Option<(Buffer, usize)> = None;
    let rows = Rows { sizes, width: 1 };
    if let Way::Shared { lanes, parts } = given.map_or_else(|| way(gpu, rows), Ok)? {
        let params = PartParams::new(rows, offset, lanes, parts);
        let target = if params.parts > 1 { gpu.alloc(params.lines)? } else { out.clone() };
        let kernel = Kernel::build(SHARED, "rows", params).header(scalar_header(dtype)).constant("SMALLEST", smallest);
        let kernel = kernel.input(x).output(&target);
        kernels.push(kernel.workgroups(params.workgroups()));
        if params.parts == 1 {
            return Ok(kernels);
        }
        found = Some((target, params.parts));
    }
    loop {
        let candidates = found.as_ref().map_or(reduced, |(_, count)| *count);
        let chunks = candidates.div_ceil(CHUNK);
        let target = if chunks == 1 { out.clone() } else { gpu.alloc(outer * chunks * inner)? };
        let params = Params { offset, outer, reduced, inner, chunks, length: CHUNK, candidates };
        let kernel = Kernel::build(SHADER, "argmax", params).header(scalar_header(dtype));
        let kernel = kernel.constant("SMALLEST", smallest).constant("MERGE", found.is_some()).input(x);
        let chosen = found.as_ref().map_or(x, |(found, _)| found);
        kernels.push(kernel.input(chosen).output(&target).each(outer * chunks * inner));
        if chunks == 1 {
            return Ok(kernels);
        }
        found = Some((target, chunks));
    }
}

/// Writes the position of the best element of each row. `beats(v, best)` returns whether `v` replaces the best so far.
fn find<T: Word>(x: &[T], out: CpuOut, sizes: [usize; 3], beats: impl Fn(T, T) -> bool + Sync) {
    let [_, reduced, inner] = sizes;
    let rows = out.slice::<u32>().chunks_mut(inner).zip(x.chunks(reduced * inner));
    share(rows, 64, |(out, x)| {
        for (b, out) in out.iter_mut().enumerate() {
            let mut best = (0, x[b]);
            for r in 1..reduced {
                let v = x[r * inner + b];
                if beats(v, best.1) {
                    best = (r, v);
                }
            }
            *out = best.0 as u32;
        }
    });
}

fn arg(x: &Tensor, dim: impl Dim, smallest: bool) -> Result<Tensor> {
    let dim = dimension(if smallest { "argmin" } else { "argmax" }, dim, x.shape())?;
    apply(Arg { dim, smallest }, &[x])
}

impl Tensor {
    /// Returns the position of the first largest element along `dim`, as u32: `[.., n, ..]` → `[.., ..]`.
    ///
    /// If there is a NaN, the result is the position of the first NaN.
    ///
    /// For PyTorch's `keepdim`, call [`unsqueeze`](Tensor::unsqueeze) on the result.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or it is empty.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 5.0, 5.0], [9.0, 0.0, 2.0]], None)?;
    /// assert_eq!(x.argmax(1)?.to_vec::<u32>()?, [1, 0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn argmax(&self, dim: impl Dim) -> Result<Tensor> {
        arg(self, dim, false)
    }

    /// Returns the position of the first smallest element along `dim`, as u32: `[.., n, ..]` → `[.., ..]`.
    ///
    /// If there is a NaN, the result is the position of the first NaN.
    ///
    /// # Errors
    /// Same as [`Tensor::argmax`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1, 5, -5], [9, 0, 0]], None)?;
    /// assert_eq!(x.argmin(1)?.to_vec::<u32>()?, [2, 1]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn argmin(&self, dim: impl Dim) -> Result<Tensor> {
        arg(self, dim, true)
    }

    /// Returns the position of the largest of all elements, as u32 of rank 0.
    ///
    /// The position is in row-major order. Of equal elements, the first one counts. If there is a NaN, the result is
    /// the position of the first NaN.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no element.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([[1.0, 5.0], [9.0, 0.0]], None)?.argmax_all()?.item::<u32>()?, 2);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn argmax_all(&self) -> Result<Tensor> {
        named("argmax_all", || self.reshape(-1)?.argmax(0))
    }

    /// Returns the position of the smallest of all elements, as u32 of rank 0.
    ///
    /// The position is in row-major order. Of equal elements, the first one counts. If there is a NaN, the result is
    /// the position of the first NaN.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no element.
    pub fn argmin_all(&self) -> Result<Tensor> {
        named("argmin_all", || self.reshape(-1)?.argmin(0))
    }
}
