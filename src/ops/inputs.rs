//! The inputs of ops on the host and on adapters, and the strides with which kernels read them.

use std::marker::PhantomData;
use std::sync::Arc;

use anygpu_host::tasks::share;

use crate::device::Storage;
use crate::device::cpu::{CpuBuffer, ReadGuard, WriteGuard};
use crate::device::gpu::{AsBuffer, Buffer, Gpu, Slots, params, wgsl};
use crate::dtype::{DType, Word};
use crate::error::{Error, Result};
use crate::ops::elementwise::unary::CHUNK;
use crate::shape::{Layout, broadcast_shapes};
use crate::tensor::Tensor;

/// The most dimensions that a strided kernel can read (after neighbouring dimensions are merged).
pub(crate) const MAX_RANK: usize = 8;

/// Headers for shaders that are written once for all element types.
pub(crate) const SCALAR_HEADERS: [&str; 3] = ["alias T = f32;\n", "alias T = i32;\n", "alias T = u32;\n"];

/// Returns the header that makes `T` the given type, or the type in which a packed type is computed.
pub(crate) fn scalar_header(dtype: DType) -> &'static str {
    match dtype.wide() {
        DType::F32 => SCALAR_HEADERS[0],
        DType::I32 => SCALAR_HEADERS[1],
        _ => SCALAR_HEADERS[2],
    }
}

/// The layouts that an op reads: [`Dense`] or [`Strided`].
pub(crate) trait Reads: Send + Sync + 'static {
    const DENSE: bool;
}

/// A row-major layout without gaps, from any offset on.
#[derive(Debug)]
pub(crate) enum Dense {}

/// Any layout.
#[derive(Debug)]
pub(crate) enum Strided {}

impl Reads for Dense {
    const DENSE: bool = true;
}

impl Reads for Strided {
    const DENSE: bool = false;
}

/// An input of an op: its whole storage `S` and the layout of its elements.
pub(crate) struct In<'a, S, L> {
    storage: S,
    layout: &'a Layout,
    dtype: DType,
    reads: PhantomData<L>,
}

/// An input on the host.
pub(crate) type CpuIn<'a, L> = In<'a, &'a [u32], L>;

/// An input on an adapter.
pub(crate) type GpuIn<'a, L> = In<'a, &'a Buffer, L>;

impl<'a, S: Copy, L> In<'a, S, L> {
    /// Returns the position of the first element, in elements.
    pub fn offset(&self) -> usize {
        self.layout.offset
    }

    pub fn shape(&self) -> &'a [usize] {
        &self.layout.shape
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn elem_count(&self) -> usize {
        self.layout.elem_count()
    }

    pub fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Returns an input with the same storage and another layout.
    pub fn through<'b>(&self, layout: &'b Layout) -> In<'b, S, Strided> {
        In { storage: self.storage, layout, dtype: self.dtype, reads: PhantomData }
    }
}

impl<'a, L: Reads> CpuIn<'a, L> {
    /// Returns the input for a tensor whose storage is locked by one of the guards.
    pub fn new(tensor: &'a Tensor, guards: &'a Guards<'_>) -> Result<Self> {
        debug_assert!(!L::DENSE || tensor.layout().is_contiguous());
        let guard = guards.iter().find(|(id, _)| *id == tensor.storage().id());
        let (_, words) = guard.ok_or_else(|| misplaced(tensor))?;
        Ok(In { storage: words, layout: tensor.layout(), dtype: tensor.dtype(), reads: PhantomData })
    }
}

impl<'a> CpuIn<'a, Dense> {
    /// Returns the elements.
    pub fn slice<T: Word>(&self) -> &'a [T] {
        let all: &[T] = bytemuck::cast_slice(self.storage);
        &all[self.layout.offset..self.layout.offset + self.layout.elem_count()]
    }
}

impl<'a> CpuIn<'a, Strided> {
    /// Returns the whole storage as elements of one type. The layout gives their positions.
    pub fn all<T: bytemuck::Pod>(&self) -> &'a [T] {
        bytemuck::cast_slice(self.storage)
    }
}

impl<L> AsBuffer for GpuIn<'_, L> {
    fn as_buffer(&self) -> &Buffer {
        self.storage
    }
}

impl<'a, L> GpuIn<'a, L> {
    pub fn buffer(&self) -> &'a Buffer {
        self.storage
    }
}

impl<'a, L: Reads> GpuIn<'a, L> {
    pub fn new(tensor: &'a Tensor) -> Result<Self> {
        debug_assert!(!L::DENSE || tensor.layout().is_contiguous());
        let Storage::Gpu(storage) = tensor.storage() else { return Err(misplaced(tensor)) };
        Ok(GpuIn::at(storage, tensor.layout(), tensor.dtype()))
    }

    /// Returns the input of elements that are in a buffer.
    pub fn at(storage: &'a Buffer, layout: &'a Layout, dtype: DType) -> Self {
        debug_assert!(!L::DENSE || layout.is_contiguous());
        In { storage, layout, dtype, reads: PhantomData }
    }
}

/// The output's elements on the host.
pub(crate) struct CpuOut<'a>(pub &'a mut [u32]);

impl<'a> CpuOut<'a> {
    pub fn slice<T: Word>(self) -> &'a mut [T] {
        bytemuck::cast_slice_mut(self.0)
    }
}

/// Read locks by storage identity.
pub(crate) type Guards<'a> = Vec<(usize, ReadGuard<'a>)>;

/// Locks each distinct storage of the inputs once.
pub(crate) fn read_all<'a>(inputs: &[&'a Tensor]) -> Result<Guards<'a>> {
    if let [tensor] = inputs {
        return Ok(vec![(tensor.storage().id(), cpu_buffer(tensor)?.read())]);
    }
    lock_all(inputs, &[]).map(|(guards, _)| guards)
}

/// Locks all storages of an op: each distinct storage of `reads` once, and the storages of `writes`, which are distinct
/// and not among `reads`. The guards of `writes` come in their order.
///
/// All ops take the locks in one order, by the storages' identities. Otherwise `a.copy_(&b)` and `b.copy_(&a)` could
/// each hold what the other one waits for, and so could two reads of one storage with a writer that waits between them.
pub(crate) fn lock_all<'a>(reads: &[&'a Tensor], writes: &[&'a Tensor]) -> Result<(Guards<'a>, Vec<WriteGuard<'a>>)> {
    let id = |tensor: &Tensor| tensor.storage().id();
    let mut order: Vec<_> = reads.iter().map(|&tensor| (id(tensor), None, tensor)).collect();
    order.extend(writes.iter().enumerate().map(|(i, &tensor)| (id(tensor), Some(i), tensor)));
    order.sort_unstable_by_key(|&(id, write, _)| (id, write));
    order.dedup_by_key(|&mut (id, write, _)| (id, write));
    if order.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::internal("an op writes a storage twice, or one that it also reads"));
    }
    let mut read = Guards::with_capacity(reads.len());
    let mut written: Vec<_> = writes.iter().map(|_| None).collect();
    for (id, write, tensor) in order {
        let buffer = cpu_buffer(tensor)?;
        match write {
            None => read.push((id, buffer.read())),
            Some(i) => written[i] = Some(buffer.write()),
        }
    }
    Ok((read, written.into_iter().flatten().collect()))
}

pub(crate) fn cpu_buffer(tensor: &Tensor) -> Result<&Arc<CpuBuffer>> {
    match tensor.storage() {
        Storage::Cpu(buffer) => Ok(buffer),
        Storage::Gpu(_) => Err(misplaced(tensor)),
    }
}

/// Returns the error for a tensor whose storage is not on its device: a bug in this crate, reported instead of a panic.
fn misplaced(tensor: &Tensor) -> Error {
    let (device, shape) = (tensor.device(), tensor.shape());
    Error::internal(format!("the storage of a tensor of shape {shape:?} is not on its device, {device}"))
}

params! {
    /// The parameters of `shaders/common/strided.wgsl`.
    pub(crate) struct StridedParams {
        count: usize, rank: usize, number: u32, run: usize, offsets: [usize; 4], dims: Slots,
    }
}

/// The text that precedes the shaders of operands with strides.
pub(crate) const STRIDED: &str = wgsl!("common/strided");

/// The layouts of several operands of one shape, merged to as few dimensions as possible.
pub(crate) struct Walk<const K: usize> {
    pub dims: Vec<usize>,
    pub strides: [Vec<usize>; K],
    pub offsets: [usize; K],
}

/// Returns whether the layouts are row-major without gaps, and of one shape.
fn all_dense(layouts: &[&Layout]) -> bool {
    layouts.iter().all(|layout| layout.shape == layouts[0].shape && layout.is_contiguous())
}

impl<const K: usize> Walk<K> {
    /// Merges neighbouring dimensions that every operand can read with one stride, and drops dimensions of size 1. The
    /// result has at least one dimension.
    pub fn new(layouts: [&Layout; K]) -> Self {
        let (shape, strides) = (&layouts[0].shape, layouts.map(|layout| &layout.strides));
        let offsets = layouts.map(|layout| layout.offset);
        let mut walk = Walk { dims: Vec::new(), strides: std::array::from_fn(|_| Vec::new()), offsets };
        let Walk { dims, strides: merged, .. } = &mut walk;
        for d in (0..shape.len()).filter(|&d| shape[d] != 1) {
            let joins = |k: usize| merged[k].last().is_some_and(|&s| s == strides[k][d].wrapping_mul(shape[d]));
            match dims.last_mut() {
                Some(last) if (0..K).all(joins) => {
                    *last *= shape[d];
                    merged
                        .iter_mut()
                        .zip(strides)
                        .for_each(|(m, s)| m.iter_mut().last().into_iter().for_each(|m| *m = s[d]));
                }
                _ => {
                    dims.push(shape[d]);
                    merged.iter_mut().zip(strides).for_each(|(m, s)| m.push(s[d]));
                }
            }
        }
        if dims.is_empty() {
            dims.push(1);
            merged.iter_mut().for_each(|s| s.push(0));
        }
        walk
    }

    /// Broadcasts the operands to their common shape.
    pub fn broadcast(op: &'static str, layouts: [&Layout; K]) -> Result<Self> {
        if layouts[0].elem_count() > 1 && all_dense(&layouts) {
            let (dims, strides) = (vec![layouts[0].elem_count()], std::array::from_fn(|_| vec![1])); // as `new` finds them
            return Ok(Walk { dims, strides, offsets: layouts.map(|layout| layout.offset) });
        }
        let join = |shape: Vec<usize>, layout: &&Layout| broadcast_shapes(op, &shape, &layout.shape);
        let shape = layouts.iter().try_fold(Vec::new(), join)?;
        Ok(Walk::new(layouts.map(|layout| layout.broadcast_to(&shape)).each_ref()))
    }

    /// Returns whether kernels can read every operand in vectors of four elements along the last dimension: all of them
    /// are next to one another and begin at a multiple of four, or all are one element.
    pub fn is_in_fours(&self) -> bool {
        let inner = self.dims.len() - 1;
        let fits = |(strides, offset): (&Vec<usize>, &usize)| match strides[inner] {
            0 => true,
            1 => strides[..inner].iter().chain([offset]).all(|n| n % 4 == 0),
            _ => false,
        };
        (inner == 0 || self.dims[inner].is_multiple_of(4)) && self.strides.iter().zip(&self.offsets).all(fits)
    }

    /// Broadcasts the operands and calls `f` as [`Walk::rows`] does, with at least so many parts for each task.
    pub fn broadcast_rows<R: Send>(
        op: &'static str,
        layouts: [&Layout; K],
        out: &mut [R],
        least: usize,
        f: impl Fn([usize; K], [usize; K], &mut [R]) + Sync,
    ) -> Result<()> {
        // Dense operands of one shape need no walk: making one would take longer than the op of a small tensor.
        if all_dense(&layouts) {
            let offsets = layouts.map(|layout| layout.offset);
            share(out.chunks_mut(CHUNK).enumerate(), least, |(i, part)| {
                f(offsets.map(|offset| offset + i * CHUNK), [1; K], part)
            });
        } else {
            Walk::broadcast(op, layouts)?.rows(out, least, f);
        }
        Ok(())
    }

    /// Returns whether the elements of every operand are next to one another, in order.
    pub fn is_dense(&self) -> bool {
        self.dims.len() == 1 && (self.dims[0] == 1 || self.strides.iter().all(|strides| strides[0] == 1))
    }

    /// Calls `f` in parallel, in tasks of at least `least` parts, for every row along the innermost dimension, or for parts of a row,
    /// with each operand's first element and step, and that part of `out`. Negative strides are numbers that wrap around.
    pub fn rows<R: Send>(&self, out: &mut [R], least: usize, f: impl Fn([usize; K], [usize; K], &mut [R]) + Sync) {
        let Walk { dims, strides, offsets } = self;
        let inner = dims.len() - 1;
        let (length, steps) = (dims[inner], strides.each_ref().map(|s| s[inner]));
        share(out.chunks_mut(CHUNK).enumerate(), least, |(i, mut part)| {
            let (mut row, mut column) = (i * CHUNK / length, i * CHUNK % length);
            while !part.is_empty() {
                let (mut rest, mut at) =
                    (row, std::array::from_fn(|k: usize| offsets[k].wrapping_add(column.wrapping_mul(steps[k]))));
                for d in (0..inner).rev() {
                    let index = rest % dims[d];
                    (0..K).for_each(|k| at[k] = at[k].wrapping_add(index.wrapping_mul(strides[k][d])));
                    rest /= dims[d];
                }
                let count = part.len().min(length - column);
                let (now, later) = part.split_at_mut(count);
                f(at, steps, now);
                (part, row, column) = (later, row + 1, 0);
            }
        });
    }

    /// Returns the parameters of a kernel, which takes at most [`MAX_RANK`] dimensions and three operands.
    pub fn params(&self, op: &'static str) -> Result<StridedParams> {
        let Walk { dims, strides, offsets } = self;
        if dims.len() > MAX_RANK {
            let detail = format!("a layout of more than {MAX_RANK} separate dimensions: {dims:?}");
            return Err(Error::argument(op, detail));
        }
        let (mut starts, mut rows) = ([0; 4], vec![[0; 4]; dims.len()]);
        starts[..K].copy_from_slice(offsets);
        for (d, row) in rows.iter_mut().enumerate() {
            (0..K).for_each(|k| row[k] = strides[k][d]);
            row[3] = dims[d];
        }
        let (count, rank) = (dims.iter().product(), dims.len());
        Ok(StridedParams { count, rank, number: 0, run: 1, offsets: starts, dims: Slots::new(&rows) })
    }
}

/// The most loop iterations of one invocation: some drivers end its loops after 65 535 iterations in total, without an
/// error.
pub(crate) const MAX_LOOPS: usize = 60_000;

/// Checks that one invocation takes no more loop iterations than every driver allows. `what` names the computation.
pub(crate) fn loops_within(op: &'static str, loops: usize, what: impl FnOnce() -> String) -> Result<()> {
    if loops <= MAX_LOOPS {
        return Ok(());
    }
    let detail = format!("{} takes {loops} steps for one element, more than the {MAX_LOOPS} that every", what());
    Err(Error::argument(op, format!("{detail} adapter allows: use smaller sizes or the cpu")))
}

/// Returns how many neighbours of `elements` one invocation should compute, if that saves a division. Neighbouring
/// invocations of hardware should read neighbouring elements instead.
pub(crate) fn neighbours_each(gpu: &Gpu, elements: usize) -> usize {
    if gpu.caps().software { run_of(elements, 1) } else { 1 }
}

/// Returns how many of `elements` one invocation should compute, if each takes `loops` iterations: up to 8, so that the
/// division that finds its place is shared, but 1 if there are few elements, so that all cores of an adapter have work.
pub(crate) fn run_of(elements: usize, loops: usize) -> usize {
    (elements >> 16).min(MAX_LOOPS / loops.max(1)).clamp(1, 8)
}

/// Returns how many neighbouring elements one invocation computes: one, or, if `in_fours`, some
/// [vectors](crate::device::gpu::Caps::vectors_each).
pub(crate) fn elements_each(gpu: &Gpu, in_fours: bool) -> usize {
    if in_fours { 4 * gpu.caps().vectors_each() } else { 1 }
}

/// Returns whether kernels can read the rows of `[A, reduced, inner]`, dense from `offset` on, in vectors of four elements.
pub(crate) fn rows_in_fours(inner: usize, reduced: usize, offset: usize) -> bool {
    inner == 1 && reduced.is_multiple_of(4) && offset.is_multiple_of(4)
}

/// Returns the sizes `[A, dim, B]` of a dense shape: the dimensions before `dim` as one, `dim`, and those after it as
/// one.
pub(crate) fn around(shape: &[usize], dim: usize) -> [usize; 3] {
    [shape[..dim].iter().product(), shape[dim], shape[dim + 1..].iter().product()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_merge_where_all_operands_walk_alike() {
        let dense = Layout::contiguous(&[2, 3, 4]);
        let walk = Walk::new([&dense, &dense]);
        assert_eq!((walk.dims, walk.strides), (vec![24], [vec![1], vec![1]]));
        let walk = Walk::new([&dense, &Layout { strides: vec![0, 4, 1], ..dense.clone() }]);
        assert_eq!((walk.dims, walk.strides), (vec![2, 12], [vec![12, 1], vec![0, 1]]));
        let walk = Walk::new([&Layout { strides: vec![5, 5], ..Layout::contiguous(&[1, 1]) }]);
        assert_eq!((walk.dims, walk.strides), (vec![1], [vec![0]]));
    }
}
