//! Running sums, products and extremes along a dimension.
//!
//! Adapters scan each chunk and then the totals of the chunks, in as many levels as needed. The order of additions
//! depends on the shape only. On the host, f32 is added in f64.

use std::sync::Arc;

use anygpu_host::tasks::share;

use crate::autograd::is_recording;
use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel, params, shader};
use crate::dtype::{DType, Word};
use crate::error::{Error, Result};
use crate::ops::elementwise::binary::Number;
use crate::ops::inputs::{SCALAR_HEADERS, around, scalar_header};
use crate::ops::long::reduce::{Kind, rows};
use crate::ops::names::{Names, names};
use crate::ops::parts::alike;
use crate::ops::reduction::plan::{Sharing, by_chunks};
use crate::ops::reduction::reduce::{JOIN, Reduction, countable};
use crate::ops::traced::Traced;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Saves, apply};
use crate::shape::{Dim, dimension};
use crate::tensor::Tensor;

params! {
    struct Params { count: usize, reduced: usize, inner: usize, chunks: usize, length: usize, offset: usize }
}
shader!(SHADER: Params = "reduction/scan", after [JOIN], headers || SCALAR_HEADERS.to_vec());

/// The longest dimension that one invocation scans alone if there are enough invocations.
const ROW: usize = 1024;

/// The length of a chunk otherwise.
const CHUNK: usize = 64;

/// The length of a chunk of a workgroup; `LENGTH` in `shaders/reduction/scan.wgsl`.
const LENGTH: usize = 2048;

/// The running result of a reduction. Running extremes have no gradient.
#[derive(Debug)]
struct Scan {
    reduction: Reduction,
    dim: usize,
}

/// Returns the result of a reduction up to each element.
pub(in crate::ops) fn running(x: &Tensor, reduction: Reduction, dim: usize) -> Result<Tensor> {
    apply(Scan { reduction, dim }, &[x])
}

impl Op for Scan {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["cumsum", "cumprod", "cummax", "cummin"];

    fn name(&self) -> &'static str {
        ["cumsum", "cumprod", "cummax", "cummin"][self.reduction as usize]
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        (self.reduction == Reduction::Sum).then_some(Traced::RunningSum(self.dim))
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        rows(self.name(), Kind::Running(self.reduction), x, around(x.shape(), self.dim), x.shape().to_vec())
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        if dim == self.dim { None } else { alike(shapes, dim) }
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let x = &inputs[0];
        let sizes = around(x.shape(), self.dim);
        match (x.dtype(), self.reduction) {
            (DType::F32, Reduction::Sum) => scan(x, out, sizes, 0f64, |a, v: f32| a + f64::from(v), |a| a as f32),
            (DType::F32, Reduction::Prod) => scan(x, out, sizes, 1f64, |a, v: f32| a * f64::from(v), |a| a as f32),
            (DType::F32, _) => self.fold::<f32>(x, out, sizes, [1.0, f32::NEG_INFINITY, f32::INFINITY]),
            (DType::I32, _) => self.fold::<i32>(x, out, sizes, [1, i32::MIN, i32::MAX]),
            _ => self.fold::<u32>(x, out, sizes, [1, u32::MIN, u32::MAX]),
        }
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let elements = (x.as_buffer(), x.offset(), x.dtype());
        kernels(gpu, elements, self.reduction, around(x.shape(), self.dim), None, out)
    }

    fn saves(&self) -> Saves {
        if self.reduction == Reduction::Prod { Saves::All } else { Saves::Nothing }
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let backwards = |g: &Tensor| g.flip([self.dim])?.cumsum(self.dim)?.flip([self.dim]);
        match self.reduction {
            Reduction::Sum => return Ok(vec![Some(backwards(ctx.grad)?)]),
            Reduction::Prod => {}
            _ => return Ok(vec![None]),
        }
        // The gradient of x[i] is Σ_{j ≥ i} g[j] · y[j] / x[i]. For the first zero of a row, this is 0 / 0. The
        // gradient of this zero is Σ g[j] · y'[j], where y' are the products of the row with a 1 in place of the zero.
        // The gradient of all elements after it is 0.
        let (x, g) = (&ctx.inputs[0], ctx.grad);
        without_zeros(self.name(), &[x])?;
        let zero = x.eq(&x.zeros_like()?)?.to_dtype(x.dtype())?;
        let first = zero.cumsum(self.dim)?;
        let first = first.eq(&first.ones_like()?)?.to_dtype(x.dtype())?.mul(&zero)?;
        let at_zero = backwards(&g.mul(&x.add(&first)?.cumprod(self.dim)?)?)?;
        let elsewhere = backwards(&g.mul(ctx.out)?)?.div(&x.add(&zero)?)?;
        let others = first.ones_like()?.sub(&first)?;
        Ok(vec![Some(first.where_cond(&at_zero, &elsewhere.mul(&others)?)?)])
    }
}

/// Returns an error if the gradient is recorded and an element is 0. The gradient of a product treats zeros apart, by
/// numbers that are outside the graph.
pub(in crate::ops) fn without_zeros(op: &'static str, factors: &[&Tensor]) -> Result<()> {
    for x in factors.iter().filter(|_| is_recording()) {
        if x.detach().eq(0)?.any_all()?.item::<bool>()? {
            return Err(Error::Autograd(format!("the gradient of {op} has no gradient where an element is 0")));
        }
    }
    Ok(())
}

impl Scan {
    /// Scans on the host with the arithmetic of the elements, from 1, the smallest or the largest of them on.
    fn fold<T: Word + Number>(&self, x: &CpuIn<Dense>, out: CpuOut, sizes: [usize; 3], [one, low, high]: [T; 3]) {
        match self.reduction {
            Reduction::Sum => scan(x, out, sizes, T::zeroed(), T::plus, |a| a),
            Reduction::Prod => scan(x, out, sizes, one, T::times, |a| a),
            Reduction::Max => scan(x, out, sizes, low, |a, v: T| v.larger(a), |a| a),
            Reduction::Min => scan(x, out, sizes, high, |a, v: T| v.smaller(a), |a| a),
        }
    }
}

/// Returns the kernels for `[A, R, B]` of elements of a type from an offset on, in the way of the plan unless one is given.
pub(super) fn kernels(
    gpu: &Gpu,
    (x, offset, dtype): (&Buffer, usize, DType),
    reduction: Reduction,
    [outer, reduced, inner]: [usize; 3],
    given: Option<Sharing>,
    out: &Buffer,
) -> Result<Vec<Kernel>> {
    let shared = given.map_or_else(|| by_chunks(gpu, [outer, reduced, inner]), Ok)? == Sharing::Shared;
    let busy = reduced <= CHUNK || (reduced <= ROW && outer * inner >= 256);
    let length = match shared {
        true => LENGTH,
        false if busy => reduced,
        false => CHUNK,
    };
    let chunks = reduced.div_ceil(length);
    let kernel = |entry, count: usize| {
        let params = Params { count, reduced, inner, chunks, length, offset };
        Kernel::build(SHADER, entry, params).header(scalar_header(dtype)).constant("OP", reduction as u8)
    };
    let (parts, whole) = (outer * chunks * inner, outer * reduced * inner);
    let totals = gpu.alloc(parts)?;
    let first = kernel(if shared { "scan_rows" } else { "scan" }, parts).input(x).output(out).output(&totals);
    let mut all = vec![if shared { first.workgroups(parts) } else { first.each(parts) }];
    if chunks > 1 {
        let before = gpu.alloc(parts)?;
        all.extend(kernels(gpu, (&totals, 0, dtype), reduction, [outer, chunks, inner], given, &before)?);
        all.push(kernel("shift", whole).input(&before).output(out).each(whole));
    }
    Ok(all)
}

/// Computes `out[a, r, b] ← give(start ∘ x[a, 0, b] ∘ … ∘ x[a, r, b])` on the host.
fn scan<T: Word, A: Copy + Send + Sync>(
    x: &CpuIn<Dense>,
    out: CpuOut,
    [_, reduced, inner]: [usize; 3],
    start: A,
    step: impl Fn(A, T) -> A + Send + Sync,
    give: impl Fn(A) -> T + Send + Sync,
) {
    let rows = out.slice::<T>().chunks_mut(reduced * inner).zip(x.slice::<T>().chunks(reduced * inner));
    share(rows, 8, |(out, x)| {
        let mut totals = vec![start; inner];
        for (out, x) in out.chunks_mut(inner).zip(x.chunks(inner)) {
            for ((out, &x), total) in out.iter_mut().zip(x).zip(&mut totals) {
                *total = step(*total, x);
                *out = give(*total);
            }
        }
    });
}

impl Tensor {
    /// Returns the sum up to each element along `dim`, in the same shape.
    ///
    /// u8 and bool are summed as i32, as in [`Tensor::sum`] (i64 in PyTorch). Integers wrap around.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], None)?;
    /// assert_eq!(x.cumsum(1)?.to_vec::<f32>()?, [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn cumsum(&self, dim: impl Dim) -> Result<Tensor> {
        apply(Scan { reduction: Reduction::Sum, dim: dimension("cumsum", dim, self.shape())? }, &[&countable(self)?])
    }

    /// Returns the product up to each element along `dim`, in the same shape.
    ///
    /// u8 and bool are multiplied as i32 (i64 in PyTorch). Integers wrap around.
    ///
    /// The gradient is also correct where elements are 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1.0, 2.0, 3.0, 4.0], None)?;
    /// assert_eq!(x.cumprod(0)?.to_vec::<f32>()?, [1.0, 2.0, 6.0, 24.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn cumprod(&self, dim: impl Dim) -> Result<Tensor> {
        apply(Scan { reduction: Reduction::Prod, dim: dimension("cumprod", dim, self.shape())? }, &[&countable(self)?])
    }
}
