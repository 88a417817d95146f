//! Matrix products `[.., M, K] · [.., K, N] → [.., M, N]`, and the panels that convolution multiplies too.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, collapse, fits_u32, fold, grid};
use crate::ops::promote::apply_float;
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::{Gradient, Op, Spec, expect_dtype, shader};
use crate::shape::{Layout, broadcast_shapes};
use crate::tensor::Tensor;

pub(in crate::ops) const SHADER: Shader = shader!("matmul");
/// Goes before the source of each variant of the product.
pub(in crate::ops) const HEADER: Shader = shader!("product");
pub(in crate::ops) const PACK_SHADER: Shader = shader!("pack");

/// Rows of A in a panel, and of out in an invocation.
const A_WIDTH: usize = 8;
/// Columns of B in a panel, and of out in a workgroup.
const B_WIDTH: usize = 64;
/// Elements that one invocation packs.
const PACK_RUN: usize = 8;
/// The most products that one invocation adds up: some drivers leave a loop after 65 535 iterations, and in silence.
pub(in crate::ops) const MAX_DEPTH: usize = 32_768;
/// Rows of out in a workgroup.
const TILE_M: usize = 64;

#[derive(Debug)]
struct MatMul;

/// The sizes of one product and its operands' layouts, all batch dimensions stretched to the output's.
struct Sizes {
    batch: Vec<usize>,
    m: usize,
    k: usize,
    n: usize,
}

impl Sizes {
    fn of(a: &[usize], b: &[usize]) -> Result<Sizes> {
        let (Some((batch_a, &[m, k])), Some((batch_b, &[k2, n]))) = (a.split_last_chunk(), b.split_last_chunk()) else {
            return Err(Error::shapes("matmul", a, b, "both need at least two dimensions, [.., m, k] and [.., k, n]"));
        };
        if k != k2 {
            let detail = format!("[.., m, k] · [.., k, n]: k is {k} on the left and {k2} on the right");
            return Err(Error::shapes("matmul", a, b, detail));
        }
        let batch = broadcast_shapes("matmul", batch_a, batch_b)
            .map_err(|_| Error::shapes("matmul", a, b, "the batch dimensions must be equal, or one of them 1"))?;
        Ok(Sizes { batch, m, k, n })
    }

    fn stretched(&self, layout: &Layout) -> Layout {
        let mut shape = self.batch.clone();
        shape.extend(&layout.shape[layout.shape.len() - 2..]);
        layout.broadcast_to(&shape)
    }
}

/// The last two strides.
fn matrix_strides(layout: &Layout) -> [usize; 2] {
    let rank = layout.strides.len();
    [layout.strides[rank - 2], layout.strides[rank - 1]]
}

/// The batch part of a layout.
fn batch_layout(layout: &Layout) -> Layout {
    let rank = layout.shape.len() - 2;
    Layout { shape: layout.shape[..rank].to_vec(), strides: layout.strides[..rank].to_vec(), offset: layout.offset }
}

impl Op for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        inputs.iter().try_for_each(|t| expect_dtype("matmul", t, DType::F32))?;
        let Sizes { mut batch, m, n, .. } = Sizes::of(inputs[0].shape(), inputs[1].shape())?;
        batch.extend([m, n]);
        Ok(Spec::Fresh(batch, DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let sizes = Sizes::of(&inputs[0].layout.shape, &inputs[1].layout.shape)?;
        let (a, b) = (sizes.stretched(inputs[0].layout), sizes.stretched(inputs[1].layout));
        let starts: Vec<_> = batch_layout(&a).positions().zip(batch_layout(&b).positions()).collect();
        let Sizes { m, k, n, .. } = sizes;
        let (x, y) = (inputs[0].all::<f32>(), inputs[1].all::<f32>());
        let one = |out: &mut [f32], (at_a, at_b): (usize, usize), threads| {
            let (sa, sb) = (matrix_strides(&a), matrix_strides(&b));
            gemm(out, Operand::new(x, at_a, sa), Operand::new(y, at_b, sb), [m, k, n], false, threads);
        };
        let out = out.slice::<f32>();
        if starts.len() < 2 * rayon::current_num_threads() {
            out.chunks_mut(m * n).zip(starts).for_each(|(out, start)| one(out, start, Threads::All));
        } else {
            out.par_chunks_mut(m * n).zip(starts).for_each(|(out, start)| one(out, start, Threads::One));
        }
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let sizes = Sizes::of(&inputs[0].layout.shape, &inputs[1].layout.shape)?;
        let Sizes { ref batch, m, k, n } = sizes;
        if k == 0 {
            return Ok(vec![crate::ops::inplace::fill_kernel(out, 0, batch.iter().product::<usize>() * m * n, 0)]);
        }
        let mut kernels = Vec::new();
        let (a, a_step) = pack_batches(gpu, &inputs[0], &sizes, A_WIDTH, &mut kernels)?;
        let (b, b_step) = pack_batches(gpu, &inputs[1], &sizes, B_WIDTH, &mut kernels)?;
        let count: usize = batch.iter().product();
        let to = Target { offset: 0, batch: m * n, row: n, inner: n, outer: 0 };
        let splits = k.div_ceil(MAX_DEPTH);
        let partial = if splits == 1 { out.clone() } else { gpu.alloc(count * splits * m * n)? };
        let product = Product { m, k, n, batch: count, splits, steps: [a_step, b_step] };
        kernels.push(product.kernel([&a, &b], None, &partial, to)?);
        if splits > 1 {
            kernels.extend(sum_parts(gpu, &partial, [count, splits, m * n], out)?);
        }
        Ok(kernels)
    }

    /// dA [.., m, k] ← g · Bᵀ, dB [.., k, n] ← Aᵀ · g
    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let (a, b, g) = (ctx.inputs[0].detach(), ctx.inputs[1].detach(), ctx.grad);
        let da = ctx.needs[0].then(|| g.matmul(&b.t()?)).transpose()?;
        let db = ctx.needs[1].then(|| a.t()?.matmul(g)).transpose()?;
        Ok(vec![da, db])
    }
}

/// Packs the matrices of a batch; returns the panels and the step from one batch element's to the next, in elements.
///
/// A matrix that serves the whole batch is packed once. Batches whose matrices do not lie at even distances are made
/// dense first.
fn pack_batches(
    gpu: &Arc<Gpu>,
    input: &GpuIn,
    sizes: &Sizes,
    width: usize,
    kernels: &mut Vec<Kernel>,
) -> Result<(Buffer, usize)> {
    let mut layout = sizes.stretched(input.layout);
    let mut buffer = input.buffer.clone();
    let (dims, [strides]) = collapse(&batch_layout(&layout).shape, [&batch_layout(&layout).strides]);
    let (count, mut step) = (dims.iter().product::<usize>(), strides[0]);
    if dims.len() > 1 {
        let dense = Layout::contiguous(&layout.shape);
        buffer = gpu.alloc(dense.elem_count())?;
        let source = GpuIn { buffer: input.buffer, layout: &layout, dtype: input.dtype };
        kernels.push(crate::ops::shape::copy::strided_kernel(&source, &buffer, &dense)?);
        step = sizes.k * if width == A_WIDTH { sizes.m } else { sizes.n };
        layout = dense;
    }
    let [rows, columns] = matrix_strides(&layout);
    // A is walked along its columns (k) with its rows side by side, B along its rows (k) with its columns side by side.
    let (across, k_step, j_step) = if width == A_WIDTH { (sizes.m, columns, rows) } else { (sizes.n, rows, columns) };
    let pack = Pack { width, depth: sizes.k, across, k: Walk::even(sizes.k, k_step), j: Walk::even(across, j_step) };
    let size = Pack::size(width, sizes.k, across);
    let distinct = if step == 0 { 1 } else { count };
    let panels = gpu.alloc(size * distinct)?;
    kernels.push(pack.kernel(&buffer, layout.offset, distinct, step, &panels)?);
    Ok((panels, if step == 0 { 0 } else { size }))
}

/// How an index becomes a position: `(i / inner) · outer + (i % inner) · step`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Walk {
    pub inner: usize,
    pub step: usize,
    pub outer: usize,
}

impl Walk {
    pub fn even(count: usize, step: usize) -> Walk {
        Walk { inner: count.max(1), step, outer: 0 }
    }
}

/// Laying an operand out in panels, see `shaders/pack.wgsl`.
pub(in crate::ops) struct Pack {
    pub width: usize,
    pub depth: usize,
    pub across: usize,
    pub k: Walk,
    pub j: Walk,
}

impl Pack {
    /// A left operand `[across, depth]`.
    pub fn left(depth: usize, across: usize, k: Walk, j: Walk) -> Pack {
        Pack { width: A_WIDTH, depth, across, k, j }
    }

    /// A right operand `[depth, across]`.
    pub fn right(depth: usize, across: usize, k: Walk, j: Walk) -> Pack {
        Pack { width: B_WIDTH, depth, across, k, j }
    }

    /// Elements of one operand's panels.
    fn size(width: usize, depth: usize, across: usize) -> usize {
        across.div_ceil(width) * width * depth
    }

    pub fn alloc(&self, gpu: &Gpu) -> Result<Buffer> {
        gpu.alloc(Pack::size(self.width, self.depth, self.across))
    }

    pub fn kernel(&self, src: &Buffer, offset: usize, batch: usize, step: usize, dst: &Buffer) -> Result<Kernel> {
        let Pack { width, depth, across, k, j } = *self;
        let count = fits_u32("matmul", Pack::size(width, depth, across) * batch)?;
        let panels = across.div_ceil(width);
        let numbers =
            [depth, panels, across, offset, step, k.inner, k.step, k.outer, j.inner, j.step, j.outer].map(|n| n as u32);
        Ok(Kernel {
            shader: PACK_SHADER,
            entry: "pack",
            header: "",
            constants: vec![("W", width as f64)],
            params: [count].into_iter().chain(numbers).collect(),
            inputs: vec![src.clone()],
            outputs: vec![dst.clone()],
            groups: grid(count as usize / PACK_RUN),
        })
    }
}

/// A product of panels.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Product {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub batch: usize,
    /// Parts into which k is cut; part s of batch element z is written as element `z · splits + s`.
    pub splits: usize,
    /// From one batch element's panels to the next, in elements, for A and B.
    pub steps: [usize; 2],
}

/// Where results go: element (z, m, n) at `offset + z · batch + m · row + (n / inner) · outer + n % inner`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Target {
    pub offset: usize,
    pub batch: usize,
    pub row: usize,
    pub inner: usize,
    pub outer: usize,
}

impl Product {
    pub fn kernel(
        self,
        [a, b]: [&Buffer; 2],
        bias: Option<(&Buffer, usize)>,
        out: &Buffer,
        to: Target,
    ) -> Result<Kernel> {
        let Product { m, k, n, batch, splits, steps } = self;
        if k.div_ceil(splits) > MAX_DEPTH {
            let detail = format!("sums of {k} products are longer than the {MAX_DEPTH} that one pass adds up");
            return Err(Error::argument("matmul", detail));
        }
        let (m_tiles, n_tiles) = (m.div_ceil(TILE_M), n.div_ceil(B_WIDTH));
        let (bias_buffer, bias_offset) = bias.unwrap_or((a, 0));
        let inner = to.inner.max(1);
        let numbers = [m, n, k, m_tiles, n_tiles, steps[0] / 4, steps[1] / 4, k.div_ceil(splits), splits];
        let places = [to.offset, to.batch, to.row, inner, to.outer, bias_offset, batch * splits];
        Ok(Kernel {
            shader: SHADER,
            entry: "matmul",
            header: HEADER.source,
            constants: vec![("HAS_BIAS", f64::from(u8::from(bias.is_some())))],
            params: numbers.into_iter().chain(places).map(|n| n as u32).collect(),
            inputs: vec![a.clone(), b.clone(), bias_buffer.clone()],
            outputs: vec![out.clone()],
            groups: fold(m_tiles * n_tiles * batch * splits),
        })
    }
}

/// How many threads a host product may use.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::ops) enum Threads {
    One,
    All,
}

/// A strided matrix on the host.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Operand<'a> {
    data: &'a [f32],
    start: usize,
    strides: [usize; 2],
}

impl<'a> Operand<'a> {
    pub fn new(data: &'a [f32], start: usize, strides: [usize; 2]) -> Self {
        Operand { data, start, strides }
    }

    /// Whether a `rows × columns` matrix lies within the data.
    fn holds(&self, rows: usize, columns: usize) -> bool {
        let last = self.start + (rows - 1) * self.strides[0] + (columns - 1) * self.strides[1];
        last < self.data.len()
    }
}

/// `out [m, n] ← A [m, k] · B [k, n]`, or `out + A · B` where `add`. `out` is row-major without gaps.
pub(in crate::ops) fn gemm(
    out: &mut [f32],
    a: Operand,
    b: Operand,
    [m, k, n]: [usize; 3],
    add: bool,
    threads: Threads,
) {
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !add {
            out.fill(0.0);
        }
        return;
    }
    assert!(out.len() >= m * n && a.holds(m, k) && b.holds(k, n), "a matrix reaches past its storage");
    let parallelism = if threads == Threads::All { gemm::Parallelism::Rayon(0) } else { gemm::Parallelism::None };
    let [ars, acs] = a.strides.map(|s| s as isize);
    let [brs, bcs] = b.strides.map(|s| s as isize);
    #[expect(unsafe_code, reason = "the crate's interface takes pointers; the assertion above keeps them in bounds")]
    // SAFETY: every element that the strides reach lies within its slice (asserted), and `out` is borrowed mutably.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            add,
            a.data.as_ptr().add(a.start),
            acs,
            ars,
            b.data.as_ptr().add(b.start),
            bcs,
            brs,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

impl Tensor {
    /// The matrix product: `[.., m, k] · [.., k, n] → [.., m, n]`, batch dimensions broadcast.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the inner sizes differ or the batches do not go together; [`Error::DeviceMismatch`];
    /// [`Error::DTypeMismatch`] unless both are of one float type. Halves are added up as f32. Unlike `torch.matmul`, vectors
    /// are refused: see [`Tensor::mv`], [`Tensor::dot`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::try_from([[1.0, 2.0], [3.0, 4.0]])?;
    /// let b = Tensor::try_from([[1.0], [10.0]])?;
    /// assert_eq!(a.matmul(&b)?.to_vec::<f32>()?, [21.0, 43.0]);
    /// assert!(b.matmul(&a).is_err()); // [2, 1] · [2, 2]
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        apply_float(MatMul, &[self, other])
    }
}
