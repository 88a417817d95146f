//! Writing, adding and reducing by index: `scatter`, `scatter_add`, `index_add`, `index_copy`; kernels of `scatter_reduce`.
//!
//! Adapters have no float atomics, and sums with atomics would differ from run to run. Instead the indices are sorted
//! (stably), and each element of the output adds its own sources in their order.

use std::sync::Arc;

use anygpu_host::sums::{LONG, Sum};

use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel};
use crate::dtype::{DType, Word};
use crate::error::{Error, Result};
use crate::ops::elementwise::binary::Number;
use crate::ops::index::gather::{dim_and_index, leading};
use crate::ops::index::range::{check_indices, check_on_adapter};
use crate::ops::index::scatter_variants::{self, ALONE, FAMILY, Params, SHADER};
use crate::ops::index::sort::order;
use crate::ops::inputs::{around, scalar_header};
use crate::ops::long::{by_index, unsupported};
use crate::ops::names::{Names, names};
use crate::ops::parts::{Part, written_rows};
use crate::ops::reduction::reduce::Reduction;
use crate::ops::shape::copy::strided_kernel;
use crate::ops::traced::Traced;
use crate::ops::variants::Adapter;
use crate::ops::{
    CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply, expect_dtype, same_device,
};
use crate::shape::{Dim, Layout};
use crate::tensor::Tensor;

/// The most sources that one invocation adds up in one dispatch.
const CHUNK: usize = 16 * 1024;

/// What is done with a source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ScatterMode {
    /// The element and its sources are reduced, in the order of the sources.
    Reduce(Reduction),
    /// The source replaces the element; the last source is kept.
    Assign,
}

/// The sum.
pub(super) const ADD: ScatterMode = ScatterMode::Reduce(Reduction::Sum);

impl ScatterMode {
    /// Returns the shader's `OP`.
    fn code(self) -> u8 {
        match self {
            ScatterMode::Reduce(reduction) => reduction as u8,
            ScatterMode::Assign => 4,
        }
    }
}

/// `base: [A, R, B]`, `index: [A, K, B]`, or `[K]` if it is shared, `src: [A, K, B]` → `[A, R, B]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scatter {
    pub dim: usize,
    pub shared: bool,
    pub mode: ScatterMode,
}

impl Op for Scatter {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["index_add", "scatter_add", "index_copy", "scatter", "index_reduce", "scatter_reduce"];

    fn name(&self) -> &'static str {
        match (self.mode, self.shared) {
            (ADD, true) => "index_add",
            (ADD, false) => "scatter_add",
            (ScatterMode::Assign, true) => "index_copy",
            (ScatterMode::Assign, false) => "scatter",
            (ScatterMode::Reduce(_), true) => "index_reduce",
            (ScatterMode::Reduce(_), false) => "scatter_reduce",
        }
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        match self.mode {
            ScatterMode::Assign => by_index(*self, self.shared, inputs),
            ScatterMode::Reduce(_) => Err(unsupported(self.name(), inputs[0])),
        }
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        let reduction = match self.mode {
            ScatterMode::Reduce(reduction) => Some(reduction.name()),
            ScatterMode::Assign => None,
        };
        Some(Traced::Scatter { dim: self.dim, shared: self.shared, reduction })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        expect_dtype(self.name(), inputs[2], inputs[0].dtype())?;
        Ok((inputs[0].shape().to_vec(), inputs[0].dtype()))
    }

    fn along(&self, _shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        let index = if self.shared { None } else { Some(dim) };
        (dim < self.dim).then(|| vec![Some(dim), index, Some(dim)])
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let sizes = around(inputs[0].shape(), self.dim);
        let index = inputs[1].slice::<u32>();
        check_indices(self.name(), index, sizes[1])?;
        match inputs[0].dtype() {
            DType::F32 if self.mode == ADD && inputs[2].shape()[self.dim] > LONG => self.add_many(inputs, out, sizes),
            DType::F32 => self.fold::<f32>(inputs, out, sizes),
            DType::I32 => self.fold::<i32>(inputs, out, sizes),
            _ => self.fold::<u32>(inputs, out, sizes),
        }
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (base, index, src) = (&inputs[0], &inputs[1], &inputs[2]);
        let [outer, size, inner] = around(base.shape(), self.dim);
        let picks = src.shape()[self.dim];
        let rows = if self.shared { 1 } else { outer * inner };
        let (count, edges) = (outer * size * inner, rows * (size + 1));
        let mut kernels = vec![check_on_adapter(gpu, self.name(), index, size, None)?];
        // The indices as rows: [A, K, B] → [A, B, K].
        let (mut buffer, mut offset) = (index.as_buffer().clone(), index.offset());
        if !self.shared && inner > 1 {
            let apart = Layout { offset, ..Layout::contiguous(&[outer, picks, inner]) }.permute(&[0, 2, 1]);
            (buffer, offset) = (gpu.alloc(rows * picks)?, 0);
            kernels.push(strided_kernel(gpu, &index.through(&apart), &buffer, &Layout::contiguous(&apart.shape))?);
        }
        let (places, starts) = (gpu.alloc(rows * picks)?, gpu.alloc(edges)?);
        let (sorting, sorted) = order(gpu, (&buffer, offset, DType::U32), [rows, picks], false, None, &places)?;
        kernels.extend(sorting);
        let assign = self.mode == ScatterMode::Assign;
        let dtype = if assign { DType::U32 } else { base.dtype() };
        let params = |count: usize, (row, base_offset): (usize, usize), first: usize| {
            let (src_offset, last) = (src.offset(), first + CHUNK);
            let params =
                Params { count, inner, size, picks, row, base_offset, src_offset, first, last, ..Params::default() };
            params.shared(self.shared)
        };
        let kernel = Kernel::build(SHADER, "bounds", params(edges, (0, 0), 0)).header(scalar_header(dtype));
        let kernel = kernel.constant("SHARED", self.shared).constant("OP", self.mode.code());
        kernels.push(kernel.input(&sorted).output(&starts).each(edges));
        let variant = if assign { &ALONE } else { gpu.chosen(&FAMILY, &params(count, (0, 0), 0))? };
        let chunks = if assign { 1 } else { picks.div_ceil(CHUNK).max(1) };
        let mut sums = |base: &Buffer, count, from: (usize, usize), out: &Buffer| {
            for chunk in 0..chunks {
                let of = (dtype, self.shared, self.mode.code());
                kernels.push(scatter_variants::kernel(variant, params(count, from, chunk * CHUNK), of, |kernel| {
                    kernel.input(base).input(&starts).input(&places).input(src).output(out)
                }));
            }
        };
        let most = gpu.largest_binding();
        if outer > 1 || (base.buffer().len() <= most && out.len() <= most) {
            sums(base.buffer(), count, (0, base.offset()), out);
            return Ok(kernels);
        }
        let layout = Layout { offset: base.offset(), ..Layout::contiguous(&[size, inner]) };
        let whole = Part::of(&base.through(&layout));
        for range in written_rows(gpu, size, inner) {
            let part = whole.narrow(0, range.start, range.len()).bound(gpu);
            let (start, count) = (range.start * inner, range.len() * inner);
            sums(&part.buffer, count, (range.start, part.layout.offset), &out.part(start, count));
        }
        Ok(kernels)
    }

    fn saves(&self) -> Saves {
        let extreme = matches!(self.mode, ScatterMode::Reduce(Reduction::Max | Reduction::Min));
        if extreme { Saves::All } else { Saves::Inputs }
    }

    fn gradient_changes_with(&self, _input: usize) -> Saves {
        if self.mode == ScatterMode::Reduce(Reduction::Prod) { Saves::Inputs } else { Saves::Nothing }
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let of_src = || self.taken(ctx.grad, &ctx.inputs[1]);
        match self.mode {
            ADD => Ok(vec![Some(ctx.grad.clone()), None, ctx.needs[2].then(of_src).transpose()?]),
            ScatterMode::Reduce(Reduction::Prod) => self.gradients_of_products(ctx),
            ScatterMode::Reduce(_) => self.gradients_of_extremes(ctx),
            ScatterMode::Assign => self.gradients_of_assignment(ctx),
        }
    }
}

impl Scatter {
    /// Returns the elements that an index refers to.
    pub fn taken(&self, x: &Tensor, index: &Tensor) -> Result<Tensor> {
        if self.shared { x.index_select(self.dim, index) } else { x.gather(self.dim, index) }
    }

    /// Applies the op with another mode.
    pub fn put(&self, mode: ScatterMode, base: &Tensor, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        apply(Scatter { mode, ..*self }, &[base, index, src])
    }

    fn gradients_of_assignment(&self, ctx: &Gradient) -> Result<Gradients> {
        let (g, index, src) = (ctx.grad, &ctx.inputs[1], &ctx.inputs[2]);
        let of_base = || self.put(ScatterMode::Assign, g, index, &src.zeros_like()?);
        // A source has a gradient only if it is the last one of its index. Then its own position is at this index.
        let of_src = || {
            let shape = src.shape();
            let mut column = vec![1; shape.len()];
            column[self.dim] = shape[self.dim];
            let own = Tensor::iota(shape[self.dim], g.device())?.reshape(column)?.broadcast_to(shape)?;
            let nobody = Tensor::full(g.shape(), 0u32, g.device())?;
            let last = self.taken(&self.put(ScatterMode::Assign, &nobody, index, &own)?, index)?;
            last.eq(&own)?.where_cond(&self.taken(g, index)?, 0.0)
        };
        let base = ctx.needs[0].then(of_base).transpose()?;
        Ok(vec![base, None, ctx.needs[2].then(of_src).transpose()?])
    }

    fn fold<T: Word + Number>(&self, inputs: &[CpuIn<Dense>], out: CpuOut, sizes: [usize; 3]) {
        match self.mode {
            ScatterMode::Reduce(Reduction::Sum) => self.scatter(inputs, out, sizes, T::plus),
            ScatterMode::Reduce(Reduction::Prod) => self.scatter(inputs, out, sizes, T::times),
            ScatterMode::Reduce(Reduction::Max) => self.scatter(inputs, out, sizes, |a, v: T| v.larger(a)),
            ScatterMode::Reduce(Reduction::Min) => self.scatter(inputs, out, sizes, |a, v: T| v.smaller(a)),
            ScatterMode::Assign => self.scatter(inputs, out, sizes, |_, v: T| v),
        }
    }

    /// Adds as [`Scatter::scatter`] does, for f32. A target with more than `LONG` sources is added in f64.
    fn add_many(&self, inputs: &[CpuIn<Dense>], out: CpuOut, [_, size, inner]: [usize; 3]) {
        let (index, src, out) = (inputs[1].slice::<u32>(), inputs[2].slice::<f32>(), out.slice::<f32>());
        out.copy_from_slice(inputs[0].slice());
        let picks = inputs[2].shape()[self.dim];
        // A target is a row of `width` elements that have the same sources.
        let (targets, width) = if self.shared { (size, inner) } else { (size * inner, 1) };
        for (a, (out, src)) in out.chunks_mut(size * inner).zip(src.chunks(picks * inner)).enumerate() {
            let index = if self.shared { index } else { &index[a * picks * inner..][..picks * inner] };
            let target = |i: usize| if self.shared { index[i] as usize } else { index[i] as usize * inner + i % inner };
            let mut counts = vec![0usize; targets];
            (0..index.len()).for_each(|i| counts[target(i)] += 1);
            // The place of each target's sums: a number from 1 on is a place in `sums`; 0 means in place, in `out`.
            let (mut slots, mut sums) = (counts, vec![0f64; width]);
            for (t, slot) in slots.iter_mut().enumerate() {
                let long = *slot > LONG;
                *slot = if long { sums.len() / width } else { 0 };
                sums.extend(out[t * width..][..if long { width } else { 0 }].iter().map(|&v| f64::from(v)));
            }
            for (i, src) in src.chunks(width).enumerate() {
                match slots[target(i)] {
                    0 => out[target(i) * width..][..width].iter_mut().zip(src).for_each(|(out, v)| *out += v),
                    slot => sums[slot * width..][..width].iter_mut().zip(src).for_each(|(sum, v)| sum.take(*v)),
                }
            }
            for (t, &slot) in slots.iter().enumerate().filter(|(_, slot)| **slot > 0) {
                let line = out[t * width..][..width].iter_mut().zip(&sums[slot * width..]);
                line.for_each(|(out, &sum)| *out = sum as f32);
            }
        }
    }

    /// Applies every source in its order, on the host; the indices are within `[A, R, B]`.
    fn scatter<T: Word + Number>(
        &self,
        inputs: &[CpuIn<Dense>],
        out: CpuOut,
        [_, size, inner]: [usize; 3],
        put: impl Fn(T, T) -> T,
    ) {
        let (index, src, out) = (inputs[1].slice::<u32>(), inputs[2].slice::<T>(), out.slice::<T>());
        out.copy_from_slice(inputs[0].slice::<T>());
        let picks = inputs[2].shape()[self.dim];
        for (row, src) in src.chunks(inner).enumerate() {
            let out = &mut out[row / picks * size * inner..][..size * inner];
            if self.shared {
                let out = &mut out[index[row % picks] as usize * inner..][..inner];
                out.iter_mut().zip(src).for_each(|(out, &v)| *out = put(*out, v));
            } else {
                let index = &index[row * inner..][..inner];
                for (b, (&v, &r)) in src.iter().zip(index).enumerate() {
                    let out = &mut out[r as usize * inner + b];
                    *out = put(*out, v);
                }
            }
        }
    }
}

/// Checks and applies an op of elements, such as `scatter` and `scatter_add`.
pub(super) fn scattered(
    base: &Tensor,
    dim: impl Dim,
    index: &Tensor,
    src: &Tensor,
    mode: ScatterMode,
) -> Result<Tensor> {
    let op = |dim| Scatter { dim, shared: false, mode };
    let name = op(0).name();
    let (dim, index) = dim_and_index(name, base, dim, index, false)?;
    same_device(name, &[base, src])?;
    expect_dtype(name, src, base.dtype())?;
    if mode == ADD && base.dtype() == DType::Bool {
        return whether_any(base, src, |base, src| scattered(base, dim, &index, src, mode));
    }
    if src.rank() != index.rank() || index.shape().iter().zip(src.shape()).any(|(i, s)| i > s) {
        let detail = "the source must have the index's rank, and no smaller sizes";
        return Err(Error::shapes(name, src.shape(), index.shape(), detail));
    }
    let src = leading(src, index.shape(), None)?;
    // If the index is smaller, only the leading part of this tensor changes.
    if let Some(d) = (0..base.rank()).find(|&d| d != dim && index.shape()[d] < base.shape()[d]) {
        let kept = index.shape()[d];
        let changed = scattered(&base.narrow(d, 0, kept)?, dim, &index, &src, mode)?;
        return Tensor::cat(&[&changed, &base.narrow(d, kept, base.shape()[d] - kept)?], d);
    }
    apply(op(dim), &[base, &index, &src])
}

/// Checks and applies an op of slices, such as `index_add`.
pub(super) fn sliced(base: &Tensor, dim: impl Dim, index: &Tensor, src: &Tensor, mode: ScatterMode) -> Result<Tensor> {
    let op = |dim| Scatter { dim, shared: true, mode };
    let name = op(0).name();
    let (dim, index) = dim_and_index(name, base, dim, index, true)?;
    same_device(name, &[base, src])?;
    expect_dtype(name, src, base.dtype())?;
    let mut shape = base.shape().to_vec();
    shape[dim] = index.elem_count();
    if src.shape() != shape {
        return Err(Error::shapes(name, src.shape(), &shape, "the index requires the second shape"));
    }
    let put = |base: &Tensor, src: &Tensor| apply(op(dim), &[base, &index, src]);
    if mode == ADD && base.dtype() == DType::Bool { whether_any(base, src, put) } else { put(base, src) }
}

/// Computes a sum of booleans: whether any of them is true, as in PyTorch. They are added as numbers.
fn whether_any(base: &Tensor, src: &Tensor, add: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    add(&base.to_dtype(DType::U32)?, &src.to_dtype(DType::U32)?)?.to_dtype(DType::Bool)
}

impl Tensor {
    /// Adds sources to this tensor by index along `dim`: `out[i][index[i][j][k]][k] += src[i][j][k]` for `dim` 1.
    ///
    /// The index is u32, i32, u8 or i64 and has the rank of this tensor. Its sizes must not be larger than the sizes of
    /// `src`, nor, except along `dim`, than this tensor's sizes. The sources of one element are added in their order,
    /// so two runs are bit-identical. The sum of booleans is true if any of them is true.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] or [`Error::DeviceMismatch`] if the index or the source does
    /// not fit; [`Error::InvalidArgument`] if there is no such dimension, or if an index is out of range. An adapter
    /// reports an index that is out of range at the next call that waits for it, and drops the source.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::zeros([3], None)?;
    /// let index = Tensor::new([0u32, 2, 0], None)?;
    /// let y = x.scatter_add(0, &index, &Tensor::new([1.0, 2.0, 3.0], None)?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [4.0, 0.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn scatter_add(&self, dim: impl Dim, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        scattered(self, dim, index, src, ADD)
    }

    /// Writes sources into this tensor by index along `dim`: `out[i][index[i][j][k]][k] = src[i][j][k]` for `dim` 1.
    ///
    /// If an element has several sources, the last one along `dim` is kept, on every device, and only that one has a
    /// gradient. The shapes are as in [`Tensor::scatter_add`].
    ///
    /// # Errors
    /// Same as [`Tensor::scatter_add`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::zeros([3], None)?;
    /// let index = Tensor::new([0u32, 2, 0], None)?;
    /// let y = x.scatter(0, &index, &Tensor::new([1.0, 2.0, 3.0], None)?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [3.0, 0.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn scatter(&self, dim: impl Dim, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        scattered(self, dim, index, src, ScatterMode::Assign)
    }

    /// Adds slices to this tensor by index: `[.., n, ..]`, an index `[k]` and sources `[.., k, ..]` → `[.., n, ..]`.
    ///
    /// # Errors
    /// Same as [`Tensor::scatter_add`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::zeros([2, 2], None)?;
    /// let y = x.index_add(0, &Tensor::new([1u32, 1], None)?, &Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 0.0, 4.0, 6.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn index_add(&self, dim: impl Dim, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        sliced(self, dim, index, src, ADD)
    }

    /// Writes slices into this tensor by index: `[.., n, ..]`, an index `[k]` and sources `[.., k, ..]` →
    /// `[.., n, ..]`.
    ///
    /// If a slice has several sources, the last one is kept, on every device, and only that one has a gradient.
    ///
    /// # Errors
    /// Same as [`Tensor::scatter_add`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::zeros([3, 2], None)?;
    /// let y = x.index_copy(0, &Tensor::new([2u32, 0], None)?, &Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [3.0, 4.0, 0.0, 0.0, 1.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn index_copy(&self, dim: impl Dim, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        sliced(self, dim, index, src, ScatterMode::Assign)
    }
}
