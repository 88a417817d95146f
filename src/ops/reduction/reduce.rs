//! Sum, product, maximum and minimum along dimensions.
//!
//! A reduction over several dimensions reduces one group of neighbouring dimensions after another, so that the kernel
//! only computes `[A, R, B] → [A, B]`. The order of additions depends on the shape only, so that two executions are
//! bit-identical. Halves stay f32 from one group to the next.

use std::ops::Range;
use std::sync::Arc;

use anygpu_host::tasks::share;

use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel, params, shader, wgsl};
use crate::dtype::{DType, Word};
use crate::error::{Error, Result};
use crate::ops::elementwise::binary::Number;
use crate::ops::inplace::fill_kernel;
use crate::ops::inputs::{SCALAR_HEADERS, rows_in_fours, scalar_header};
use crate::ops::long::reduce::{Kind, rows};
use crate::ops::names::{Names, names};
use crate::ops::parts::{Part, alike, read_rows};
use crate::ops::reduction::plan::{ColumnParams, Columns, PartParams, Rows, Way, way};
use crate::ops::reduction::scan::without_zeros;
use crate::ops::reduction::softmax::LINES;
use crate::ops::shape::copy::strided_kernel;
use crate::ops::traced::Traced;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply, of_sums};
use crate::shape::{Dims, Layout, dimensions};
use crate::tensor::Tensor;

params! {
    struct Params {
        offset: usize, outer: usize, reduced: usize, inner: usize, chunks: usize, apart: usize, step: usize, span: usize,
    }
}
/// The texts of the operation, and of the parts of rows.
pub(super) const JOIN: &str = wgsl!("reduction/join");
pub(super) const ROW_PARTS: &str = wgsl!("reduction/row_parts");
shader!(SHADER: Params = "reduction/reduce", after [JOIN], headers || SCALAR_HEADERS.to_vec());
shader!(SHARED: PartParams = "reduction/reduce_rows", after [JOIN, BY_ONE, LINES, ROW_PARTS], headers || SCALAR_HEADERS.to_vec());
shader!(SHARED_IN_FOURS: PartParams = "reduction/reduce_rows" named "reduce_rows_4", after [JOIN, BY_FOUR, LINES, ROW_PARTS], headers || SCALAR_HEADERS.to_vec());
shader!(COLUMNS: ColumnParams = "reduction/reduce_columns", after [JOIN, BY_ONE], headers || SCALAR_HEADERS.to_vec());
shader!(COLUMNS_IN_FOURS: ColumnParams = "reduction/reduce_columns" named "reduce_columns_4", after [JOIN, BY_FOUR], headers || SCALAR_HEADERS.to_vec());

/// What invocations that share a row, or columns, read at once, and its reduction.
const BY_ONE: &str = "alias V = T;
fn joined(a: V, v: V) -> V { return join(a, v); }
fn within(v: V) -> T { return v; }
";
const BY_FOUR: &str = "alias V = vec4<T>;
fn joined(a: V, v: V) -> V { return vec4(join(a.x, v.x), join(a.y, v.y), join(a.z, v.z), join(a.w, v.w)); }
fn within(v: V) -> T { return join(join(v.x, v.y), join(v.z, v.w)); }
";

/// The most elements that one invocation adds up before a partial result is stored.
const CHUNK: usize = 1024;

/// The rows that the host adds up before it adds the result to the total, to limit the rounding error of many rows.
const BLOCK: usize = 256;

/// The fewest elements that one task of the host reduces, and the elements of a long row that one task takes.
const TASK: usize = 16 * 1024;
const PART: usize = 1 << 16;

/// The reductions, in the order of the shader's codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) enum Reduction {
    Sum,
    Prod,
    Max,
    Min,
}

impl Reduction {
    pub fn name(self) -> &'static str {
        ["sum", "prod", "max", "min"][self as usize]
    }
}

/// Reduces the dimensions `first .. first + count` to size 1.
#[derive(Debug)]
struct Reduce {
    reduction: Reduction,
    first: usize,
    count: usize,
    /// The type of the result.
    dtype: DType,
}

impl Reduce {
    /// Returns `[A, R, B]` for a shape.
    fn sizes(&self, shape: &[usize]) -> [usize; 3] {
        let end = self.first + self.count;
        [shape[..self.first].iter().product(), shape[self.first..end].iter().product(), shape[end..].iter().product()]
    }

    fn dims(&self) -> Vec<usize> {
        (self.first..self.first + self.count).collect()
    }
}

impl Op for Reduce {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["sum", "prod", "max", "min"];

    fn name(&self) -> &'static str {
        self.reduction.name()
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Reduce { reduction: self.reduction.name(), dims: self.dims() })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let mut shape = inputs[0].shape().to_vec();
        let [outer, reduced, inner] = self.sizes(&shape);
        if reduced == 0 && outer * inner > 0 && matches!(self.reduction, Reduction::Max | Reduction::Min) {
            let detail = format!("the empty dimensions of {shape:?} have no element");
            return Err(Error::argument(self.name(), detail));
        }
        shape[self.first..self.first + self.count].fill(1);
        Ok((shape, self.dtype))
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let (shape, _) = self.output(inputs)?;
        rows(self.name(), Kind::Whole(self.reduction), inputs[0], self.sizes(inputs[0].shape()), shape)
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        let end = self.first + self.count;
        let [_, reduced, inner] = self.sizes(shapes[0]);
        // Otherwise a part of the reduced dimensions is read in order, and a part of the others would not be.
        let apart = dim < self.first || (dim >= end && reduced < inner);
        if apart { alike(shapes, dim) } else { None }
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let x = &inputs[0];
        let sizes = self.sizes(x.shape());
        if sizes[1] == 0 {
            out.0.fill(empty(self.reduction, x.dtype()));
            return Ok(());
        }
        match x.dtype() {
            DType::F32 => self.fold::<f32>(x.slice(), out, sizes),
            DType::I32 => self.fold::<i32>(x.slice(), out, sizes),
            _ => self.fold::<u32>(x.slice(), out, sizes),
        }
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let sizes = self.sizes(x.shape());
        if sizes[0] == 1 && x.buffer().len() > gpu.largest_binding() {
            return self.in_ranges(gpu, x, sizes, out);
        }
        kernels(gpu, (x.as_buffer(), x.offset(), x.dtype()), self.reduction, sizes, None, out)
    }

    fn saves(&self) -> Saves {
        if self.reduction == Reduction::Sum { Saves::Nothing } else { Saves::All }
    }

    fn gradient_changes_with(&self, _input: usize) -> Saves {
        if self.reduction == Reduction::Prod { Saves::All } else { Saves::Nothing }
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let x = &ctx.inputs[0];
        let grad = match self.reduction {
            Reduction::Sum => ctx.grad.broadcast_to(x.shape())?,
            Reduction::Max | Reduction::Min => {
                // Equal elements share the gradient evenly, as in torch.amax.
                let hits = x.detach().same(&ctx.out.detach())?;
                hits.mul(&ctx.grad.div(&hits.sum(self.dims(), true)?)?)?
            }
            Reduction::Prod => {
                without_zeros(self.name(), &[x])?;
                ctx.grad.mul(&self.products_of_the_others(x)?)?
            }
        };
        Ok(vec![Some(grad)])
    }
}

impl Reduce {
    /// Returns the kernels for `[1, R, B] → [1, B]` of more elements than a kernel can bind: the results of ranges, then their result.
    fn in_ranges(&self, gpu: &Gpu, x: &GpuIn<Dense>, sizes: [usize; 3], out: &Buffer) -> Result<Vec<Kernel>> {
        let [_, reduced, inner] = sizes;
        let layout = Layout { offset: x.offset(), ..Layout::contiguous(&[reduced, inner]) };
        let whole = Part::of(&x.through(&layout));
        let of_range = |range: Range<usize>, result: &Buffer| {
            let part = whole.narrow(0, range.start, range.len()).bound(gpu);
            let of_part = (&part.buffer, part.layout.offset, x.dtype());
            kernels(gpu, of_part, self.reduction, [1, range.len(), inner], None, result)
        };
        joined_ranges(gpu, (self.reduction, x.dtype()), read_rows(gpu, reduced, inner), (out, inner), of_range)
    }

    fn fold<T: Word + Number>(&self, x: &[T], out: CpuOut, sizes: [usize; 3]) {
        match self.reduction {
            Reduction::Sum => fold(x, out, sizes, T::plus),
            Reduction::Prod => fold(x, out, sizes, T::times),
            Reduction::Max => fold(x, out, sizes, |a, v: T| v.larger(a)),
            Reduction::Min => fold(x, out, sizes, |a, v: T| v.smaller(a)),
        }
    }

    /// Returns for each element x the product of the other elements of its row. Let P be the product of the elements
    /// that are not 0, and Z the number of zeros. The result is P / x if Z = 0, P if x is the only zero, and else 0, or
    /// NaN if one of the others is infinite or NaN.
    fn products_of_the_others(&self, x: &Tensor) -> Result<Tensor> {
        let zero = x.eq(0)?.to_dtype(DType::F32)?;
        let without_zeros = x.add(&zero)?;
        let product = without_zeros.prod(self.dims(), true)?;
        let alone = zero.same(&zero.sum(self.dims(), true)?)?;
        let odd = x.isfinite()?.logical_not()?.to_dtype(DType::F32)?;
        let others = odd.sum(self.dims(), true)?.sub(&odd)?;
        let beside_zero = others.eq(0)?.where_cond(0.0, f32::NAN)?; // not 0 · P: P may be infinite
        alone.where_cond(&product.div(&without_zeros)?, &beside_zero)
    }
}

/// Returns the word of a reduction over no elements.
fn empty(reduction: Reduction, dtype: DType) -> u32 {
    match (reduction, dtype) {
        (Reduction::Prod, DType::F32) => 1f32.to_bits(),
        (Reduction::Prod, _) => 1,
        _ => 0,
    }
}

/// Returns the kernels for `[A, R, B] → [A, B]` on an adapter, of elements of a type from an offset on, in the way of the plan
/// unless one is given.
pub(super) fn kernels(
    gpu: &Gpu,
    (x, offset, dtype): (&Buffer, usize, DType),
    reduction: Reduction,
    [outer, mut reduced, inner]: [usize; 3],
    mut given: Option<Way>,
    out: &Buffer,
) -> Result<Vec<Kernel>> {
    if reduced == 0 {
        return Ok(vec![fill_kernel(out, 0, outer * inner, empty(reduction, dtype))]);
    }
    let (mut source, mut offset) = (x.clone(), offset);
    let mut kernels = Vec::new();
    loop {
        let rows = Rows::new([outer, reduced, inner], offset);
        let way = given.map_or_else(|| way(gpu, rows), Ok)?;
        if let Way::Shared { lanes, parts } = way {
            let params = PartParams::new(rows, offset, lanes, parts);
            let parts = params.parts;
            let target = if parts > 1 { gpu.alloc(params.lines)? } else { out.clone() };
            let kernel = Kernel::build(if rows.width == 4 { SHARED_IN_FOURS } else { SHARED }, "rows", params);
            let kernel = kernel.header(scalar_header(dtype)).constant("OP", reduction as u32);
            kernels.push(kernel.input(&source).output(&target).workgroups(params.workgroups()));
            if parts == 1 {
                return Ok(kernels);
            }
            (source, offset, reduced) = (target, 0, parts);
            given = given.map(|_| Way::Shared { lanes, parts: 1 });
            continue;
        }
        let columns = Columns::new(rows.sizes, offset);
        if given.is_none()
            && let Some(params) = columns.shared(gpu, offset)?
        {
            let target = if params.parts > 1 { gpu.alloc(outer * params.parts * inner)? } else { out.clone() };
            kernels.push(columns_kernel((&source, dtype), reduction, columns, params, &target));
            if params.parts == 1 {
                return Ok(kernels);
            }
            (source, offset, reduced) = (target, 0, params.parts);
            continue;
        }
        // Few results from many elements: compute partial results first, enough of them to use the whole adapter.
        let crowded = reduced > CHUNK || (reduced > 64 && outer * inner < 1024);
        let chunks = if crowded { reduced.div_ceil(64).min(reduced.div_ceil(CHUNK).max(1024)) } else { 1 };
        let fours = rows_in_fours(inner, reduced, offset);
        let (entry, steps) = if fours { ("rows4", reduced / 4) } else { ("reduce", reduced) };
        let span = steps.div_ceil(chunks);
        let chunks = steps.div_ceil(span); // no part is empty
        let target = if crowded { gpu.alloc(outer * chunks * inner)? } else { out.clone() };
        // Neighbouring invocations should read neighbouring elements, but each one a range on software adapters.
        let ranges = inner == 1 && gpu.caps().software;
        let (apart, step, span) = if ranges { (span, 1, span) } else { (1, chunks, steps) };
        let params = Params { offset, outer, reduced: steps, inner, chunks, apart, step, span };
        let kernel = Kernel::build(SHADER, entry, params).header(scalar_header(dtype));
        let kernel = kernel.constant("OP", reduction as u32).input(&source).output(&target);
        kernels.push(kernel.each(outer * chunks * inner));
        if !crowded {
            return Ok(kernels);
        }
        (source, offset, reduced) = (target, 0, chunks);
    }
}

/// Returns the kernel of workgroups that share columns. Its results are the results of the parts.
pub(super) fn columns_kernel(
    (x, dtype): (&Buffer, DType),
    reduction: Reduction,
    columns: Columns,
    params: ColumnParams,
    out: &Buffer,
) -> Kernel {
    let shader = if columns.width == 4 { COLUMNS_IN_FOURS } else { COLUMNS };
    let kernel = Kernel::build(shader, "columns", params).header(scalar_header(dtype)).constant("OP", reduction as u32);
    kernel.input(x).output(out).workgroups(params.count)
}

/// Returns the kernels that add up partial results `[outer, parts, len]` → `[outer, len]`, from the start of a buffer.
pub(in crate::ops) fn sum_parts(gpu: &Gpu, buffer: &Buffer, sizes: [usize; 3], out: &Buffer) -> Result<Vec<Kernel>> {
    kernels(gpu, (buffer, 0, DType::F32), Reduction::Sum, sizes, None, out)
}

/// Returns the kernels that compute `len` results of each range, by those that `of_range` returns, and reduce them to `out`.
pub(in crate::ops) fn joined_ranges(
    gpu: &Gpu,
    (reduction, dtype): (Reduction, DType),
    ranges: impl Iterator<Item = Range<usize>>,
    (out, len): (&Buffer, usize),
    of_range: impl Fn(Range<usize>, &Buffer) -> Result<Vec<Kernel>>,
) -> Result<Vec<Kernel>> {
    let ranges: Vec<_> = ranges.collect();
    let results = gpu.alloc(ranges.len() * len)?;
    let (count, line, mut all) = (ranges.len(), Layout::contiguous(&[len]), Vec::new());
    for (i, range) in ranges.into_iter().enumerate() {
        let result = gpu.alloc(len)?;
        all.extend(of_range(range, &result)?);
        let place = Layout { offset: i * len, ..line.clone() };
        all.push(strided_kernel(gpu, &GpuIn::at(&result, &line, dtype), &results, &place)?);
    }
    all.extend(kernels(gpu, (&results, 0, dtype), reduction, [1, count, len], None, out)?);
    Ok(all)
}

/// Computes `out[a, b] ← x[a, 0, b] ⊕ x[a, 1, b] ⊕ …` of at least one element.
fn fold<T: Word>(x: &[T], out: CpuOut, [outer, reduced, inner]: [usize; 3], f: impl Fn(T, T) -> T + Send + Sync) {
    let out = out.slice::<T>();
    if inner == 1 {
        return share(out.iter_mut().zip(x.chunks(reduced)), TASK / reduced, |(out, row)| {
            // A list of blocks for each of many short rows would take longer than their sums.
            let total = match row.len() {
                0..=PART => joined(row, &f),
                _ => {
                    let mut totals = vec![None; row.len().div_ceil(PART)];
                    share(totals.iter_mut().zip(row.chunks(PART)), 1, |(total, block)| *total = joined(block, &f));
                    totals.into_iter().flatten().reduce(&f)
                }
            };
            total.into_iter().for_each(|total| *out = total);
        });
    }
    // Few rows: each is split into ranges of columns, so that all threads have work.
    let width = if outer < 16 { inner.div_ceil(16).max(256) } else { inner };
    let rows = out.chunks_mut(inner).zip(x.chunks(reduced * inner));
    let fold = |(out, x): (&mut [T], &[T])| {
        share(out.chunks_mut(width).enumerate(), 1, |(i, out)| fold_columns(x, out, i * width, inner, &f));
    };
    if outer < 16 { rows.for_each(fold) } else { share(rows, 8, fold) }
}

/// Reduces neighbours: sixteen running results over parts of the block, so that the loop vectorises and the rounding
/// error grows with the logarithm of the block's length, not with the length.
fn joined<T: Word>(block: &[T], f: impl Fn(T, T) -> T) -> Option<T> {
    let parts = block.chunks(512).filter_map(|part| {
        let Some((first, rest)) = part.split_first_chunk::<16>() else { return part.iter().copied().reduce(&f) };
        let (mut lanes, rows) = (*first, rest.chunks_exact(16));
        let tail = rows.remainder().iter().copied();
        rows.for_each(|row| lanes.iter_mut().zip(row).for_each(|(lane, &v)| *lane = f(*lane, v)));
        lanes.into_iter().chain(tail).reduce(&f)
    });
    parts.reduce(&f)
}

/// Reduces the columns from `start` on of `x: [R, inner]` to `out`: at most `BLOCK` rows, or results of such blocks,
/// one after the other.
fn fold_columns<T: Word>(x: &[T], out: &mut [T], start: usize, inner: usize, f: &impl Fn(T, T) -> T) {
    let count = x.len() / inner;
    if count <= BLOCK {
        out.copy_from_slice(&x[start..][..out.len()]);
        for row in x[inner..].chunks_exact(inner) {
            out.iter_mut().zip(&row[start..]).for_each(|(out, &v)| *out = f(*out, v));
        }
        return;
    }
    let mut blocks = x.chunks(count.div_ceil(BLOCK).max(BLOCK) * inner);
    blocks.next().into_iter().for_each(|rows| fold_columns(rows, out, start, inner, f));
    let mut part = vec![T::zeroed(); out.len()];
    for rows in blocks {
        fold_columns(rows, &mut part, start, inner, f);
        out.iter_mut().zip(&part).for_each(|(out, &v)| *out = f(*out, v));
    }
}

/// Returns the dimensions in ascending order, each once.
pub(in crate::ops) fn distinct(name: &'static str, dims: impl Dims, shape: &[usize]) -> Result<Vec<usize>> {
    let mut sorted = dimensions(name, dims, shape)?;
    sorted.sort_unstable();
    sorted.dedup();
    Ok(sorted)
}

/// Applies a reduction to each group of neighbouring dimensions. The result has the type of `x`; sums of floats within
/// `autocast` are f32.
pub(in crate::ops) fn over(x: &Tensor, reduction: Reduction, dims: impl Dims, keepdim: bool) -> Result<Tensor> {
    let sorted = distinct(reduction.name(), dims, x.shape())?;
    let dtype = if reduction == Reduction::Sum { of_sums(x.dtype()) } else { x.dtype() };
    // Neighbouring dimensions as one. Those of size 1 have nothing to add, unless there are no others.
    let mut runs: Vec<&[usize]> = sorted.chunk_by(|a, b| a + 1 == *b).collect();
    if runs.iter().any(|run| run.iter().any(|&d| x.shape()[d] != 1)) {
        runs.retain(|run| run.iter().any(|&d| x.shape()[d] != 1));
    }
    let kept: Vec<usize> = (0..x.rank()).filter(|d| !sorted.contains(d)).collect();
    let mut out = x.clone();
    if runs.len() > 1 && matches!(reduction, Reduction::Max | Reduction::Min) {
        // Equal extremes share their gradient evenly over all dimensions, which needs one reduction over all of them.
        let mut ones = x.shape().to_vec();
        sorted.iter().for_each(|&d| ones[d] = 1);
        let moved = out.permute([&kept[..], &sorted].concat())?;
        out = apply(Reduce { reduction, first: kept.len(), count: sorted.len(), dtype }, &[&moved])?.reshape(ones)?;
    } else {
        for (i, run) in runs.iter().enumerate().rev() {
            let dtype = if i == 0 { dtype } else { dtype.wide() };
            out = apply(Reduce { reduction, first: run[0], count: run.len(), dtype }, &[&out])?;
        }
        out = out.to_dtype(dtype)?; // if there is no dimension to reduce
    }
    if keepdim { Ok(out) } else { out.reshape(kept.iter().map(|&d| x.shape()[d]).collect::<Vec<_>>()) }
}

/// Converts booleans and bytes to i32, the type of their sum and product.
pub(in crate::ops) fn countable(x: &Tensor) -> Result<Tensor> {
    if matches!(x.dtype(), DType::Bool | DType::U8) { x.to_dtype(DType::I32) } else { Ok(x.clone()) }
}

impl Tensor {
    /// Returns the sum over `dims`.
    ///
    /// With `keepdim`, the reduced dimensions keep size 1. Otherwise they are removed. The sum over an empty dimension
    /// is 0.
    ///
    /// Sums of floats keep their type (halves are added up as f32). Sums of `u32` and `i64` keep their type. Sums of
    /// all other integers and of booleans are `i32` (`i64` in PyTorch): sums beyond 2³¹ wrap around.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?;
    /// assert_eq!(x.sum(&[0], false)?.to_vec::<f32>()?, [4.0, 6.0]);
    /// assert_eq!(x.sum(&[1], true)?.shape(), [2, 1]);
    /// assert_eq!(Tensor::new([true, false, true], None)?.sum_all()?.item::<i32>()?, 2);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn sum(&self, dims: impl Dims, keepdim: bool) -> Result<Tensor> {
        over(&countable(self)?, Reduction::Sum, dims, keepdim)
    }

    /// Returns the product over `dims`.
    ///
    /// With `keepdim`, the reduced dimensions keep size 1. Otherwise they are removed. The product over an empty
    /// dimension is 1. The types are as in [`Tensor::sum`]. The gradient is also correct where elements are 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([2.0, 0.0, 5.0], None)?.requires_grad();
    /// x.prod_all()?.backward()?;
    /// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [0.0, 10.0, 0.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn prod(&self, dims: impl Dims, keepdim: bool) -> Result<Tensor> {
        over(&countable(self)?, Reduction::Prod, dims, keepdim)
    }

    /// Returns the largest element over `dims`, like PyTorch's `amax`.
    ///
    /// With `keepdim`, the reduced dimensions keep size 1. Otherwise they are removed. The result is NaN if an element
    /// is NaN. Equal elements share the gradient evenly. For the positions, use [`Tensor::argmax`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or a reduced dimension is empty.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([[3, -2], [1, 4]], None)?.max(&[1], false)?.to_vec::<i32>()?, [3, 4]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn max(&self, dims: impl Dims, keepdim: bool) -> Result<Tensor> {
        over(self, Reduction::Max, dims, keepdim)
    }

    /// Returns the smallest element over `dims`, like PyTorch's `amin`.
    ///
    /// With `keepdim`, the reduced dimensions keep size 1. Otherwise they are removed. The result is NaN if an element
    /// is NaN. Equal elements share the gradient evenly.
    ///
    /// # Errors
    /// Same as [`Tensor::max`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[3, -2], [1, 4]], None)?;
    /// assert_eq!(x.min(&[1], false)?.to_vec::<i32>()?, [-2, 1]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn min(&self, dims: impl Dims, keepdim: bool) -> Result<Tensor> {
        over(self, Reduction::Min, dims, keepdim)
    }

    pub(in crate::ops) fn all_dims(&self) -> Vec<usize> {
        (0..self.rank()).collect()
    }
}
