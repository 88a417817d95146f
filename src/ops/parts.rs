//! Ops on tensors that are larger than a kernel of an adapter can bind.
//!
//! A buffer may be many times as long as what one kernel can bind of it ([`Gpu::largest_binding`]; often 128 MiB). So the result
//! is divided along a dimension, as [`Op::along`] allows, until each part and all that it reads can be bound. An input that
//! lies in a long buffer is bound by the part that holds its elements. If these are too far apart, they are copied first. Ops
//! that read all of an input for each part of the result divide their work themselves: sums over leading dimensions,
//! `gather`, `scatter`, joins. What cannot be divided is an error when the kernel is recorded.
//!
//! Other ops refuse such a tensor by the name of the limit: dropout, convolutions, pooling, sorts, normalisations, `argmax` over all of it,
//! and halves that would begin within a word.

use std::ops::Range;
use std::sync::Arc;

use crate::device::gpu::{BINDING_ALIGNMENT, Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::any_op::AnyOp;
use crate::ops::inplace::fill_kernel;
use crate::ops::shape::copy::strided_kernel;
use crate::ops::{GpuIn, inputs::Reads};
use crate::shape::Layout;

/// An input, or a part of one, and the buffer that holds its elements.
#[derive(Clone)]
pub(in crate::ops) struct Part {
    pub buffer: Buffer,
    pub layout: Layout,
    dtype: DType,
}

impl Part {
    pub fn of<L>(input: &GpuIn<L>) -> Part {
        Part { buffer: input.buffer().clone(), layout: input.layout().clone(), dtype: input.dtype() }
    }

    pub fn input<L: Reads>(&self) -> GpuIn<'_, L> {
        GpuIn::at(&self.buffer, &self.layout, self.dtype)
    }

    /// Returns a range of a dimension.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Part {
        Part { layout: self.layout.narrow(dim, start, len), ..self.clone() }
    }

    /// Returns the words from the first element to the last, from a place on at which a part of a buffer can begin.
    fn reach(&self) -> Range<usize> {
        let Layout { shape, strides, offset } = &self.layout;
        if self.layout.elem_count() == 0 {
            return 0..self.buffer.len().min(1);
        }
        let (mut first, mut last) = (*offset, *offset);
        for (size, stride) in shape.iter().zip(strides) {
            let span = (size - 1).wrapping_mul(*stride);
            // Negative strides are numbers that wrap around.
            let end = if (span as isize) < 0 { &mut first } else { &mut last };
            *end = end.wrapping_add(span);
        }
        let per_word = self.dtype.per_word();
        first / per_word / BINDING_ALIGNMENT * BINDING_ALIGNMENT..last / per_word + 1
    }

    /// Returns this with the part of the buffer that holds the elements, if not all of it can be bound.
    pub fn bound(self, gpu: &Gpu) -> Part {
        if self.buffer.len() <= gpu.largest_binding() {
            return self;
        }
        let reach = self.reach();
        let offset = self.layout.offset.wrapping_sub(reach.start * self.dtype.per_word());
        Part { buffer: self.buffer.part(reach.start, reach.len()), layout: Layout { offset, ..self.layout }, ..self }
    }

    /// Returns the words that a kernel binds to read this: from the first to the last word, or the words of a dense
    /// copy.
    pub fn words(&self, gpu: &Gpu, dense: bool) -> usize {
        let most = gpu.largest_binding();
        let in_place = match dense && !self.layout.is_contiguous() {
            true => usize::MAX,
            false if self.buffer.len() <= most => self.buffer.len(),
            false => self.reach().len(),
        };
        if in_place <= most || self.dtype.is_packed() { in_place } else { in_place.min(self.layout.elem_count()) }
    }

    /// Returns this as an op can bind it: in place, or as a dense copy. What is too large for both stays as it is.
    pub fn ready(&self, gpu: &Gpu, dense: bool) -> Result<Part> {
        let most = gpu.largest_binding();
        let in_order = !dense || self.layout.is_contiguous();
        if in_order && (self.buffer.len() <= most || self.reach().len() <= most) {
            return Ok(self.clone().bound(gpu));
        }
        if self.dtype.is_packed() || (in_order && self.layout.elem_count() > most) {
            return Ok(self.clone());
        }
        let layout = Layout::contiguous(&self.layout.shape);
        let buffer = gpu.alloc(layout.elem_count())?;
        copies(gpu, self, &buffer, &layout)?.into_iter().try_for_each(|kernel| gpu.run(kernel))?;
        Ok(Part { buffer, layout, dtype: self.dtype })
    }
}

/// Returns the division of an op's inputs for which each has the dimension of the result.
pub(in crate::ops) fn alike(shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
    Some(vec![Some(dim); shapes.len()])
}

/// Returns the division of an op's inputs that are broadcast to the shape of the result.
pub(in crate::ops) fn broadcast(shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
    let rank = shapes.iter().map(|shape| shape.len()).max()?;
    let own = |shape: &&[usize]| (dim + shape.len()).checked_sub(rank).filter(|&d| shape[d] != 1);
    Some(shapes.iter().map(own).collect())
}

/// Returns the kernels that copy words between two layouts of one shape.
pub(in crate::ops) fn copies(gpu: &Gpu, src: &Part, out: &Buffer, to: &Layout) -> Result<Vec<Kernel>> {
    let most = gpu.largest_binding();
    let target = Part { buffer: out.clone(), layout: to.clone(), dtype: src.dtype };
    let too_large = |x: &&Part| x.buffer.len() > most && x.reach().len() > most;
    let span = |x: &Part, d: usize| (x.layout.shape[d] - 1).saturating_mul(x.layout.strides[d]);
    let longest = |x: &Part| (0..to.shape.len()).max_by_key(|&d| span(x, d)).filter(|&d| to.shape[d] > 1);
    let Some(dim) = [src, &target].into_iter().find(too_large).and_then(longest) else {
        let (src, target) = (src.clone().bound(gpu), target.bound(gpu));
        return Ok(vec![strided_kernel(gpu, &src.input(), &target.buffer, &target.layout)?]);
    };
    let (size, half) = (to.shape[dim], to.shape[dim] / 2);
    let mut kernels = copies(gpu, &src.narrow(dim, 0, half), out, &to.narrow(dim, 0, half))?;
    kernels.extend(copies(gpu, &src.narrow(dim, half, size - half), out, &to.narrow(dim, half, size - half))?);
    Ok(kernels)
}

/// Returns the ranges into which `count` words are divided, so that each can be bound, and a part of a buffer can begin there.
pub(in crate::ops) fn ranges(gpu: &Gpu, count: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    steps(count, (gpu.largest_binding() / BINDING_ALIGNMENT * BINDING_ALIGNMENT).max(BINDING_ALIGNMENT))
}

/// Returns the ranges into which rows of `inner` words are divided, so that each can be bound to be read.
pub(in crate::ops) fn read_rows(gpu: &Gpu, count: usize, inner: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    // A part that is bound can begin up to `BINDING_ALIGNMENT` words before it.
    steps(count, (gpu.largest_binding().saturating_sub(BINDING_ALIGNMENT) / inner.max(1)).max(1))
}

/// Returns the ranges into which rows of `inner` words are divided, so that each can be bound to be written.
pub(in crate::ops) fn written_rows(
    gpu: &Gpu,
    count: usize,
    inner: usize,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let unit = unit(BINDING_ALIGNMENT, inner);
    steps(count, (gpu.largest_binding() / inner.max(1) / unit * unit).max(unit))
}

/// Returns the ranges of `step` numbers below `count`; the last one may have fewer.
pub(in crate::ops) fn steps(count: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(step).map(move |start| start..(start + step).min(count))
}

/// Returns how many rows of `inner` elements are a multiple of `part` elements.
fn unit(part: usize, inner: usize) -> usize {
    let (mut a, mut b) = (part, inner.max(1));
    while b > 0 {
        (a, b) = (b, a % b);
    }
    part / a
}

/// Returns the first `count` words of a buffer, in ranges that can be bound, each with its part of the buffer.
pub(in crate::ops) fn written(gpu: &Gpu, out: &Buffer, count: usize) -> Vec<(Range<usize>, Buffer)> {
    match out.len() <= gpu.largest_binding() {
        true => vec![(0..count, out.clone())],
        false => ranges(gpu, count).map(|range| (range.clone(), out.part(range.start, range.len()))).collect(),
    }
}

/// Returns the kernels that write one word `count` times from the start of a buffer.
pub(in crate::ops) fn fills(gpu: &Gpu, out: &Buffer, count: usize, value: u32) -> Vec<Kernel> {
    written(gpu, out, count).iter().map(|(range, part)| fill_kernel(part, 0, range.len(), value)).collect()
}

/// A result of some type, or a part of one.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub buffer: &'a Buffer,
    pub shape: &'a [usize],
    pub dtype: DType,
}

/// A dimension of the result, the dimensions of the inputs, and the size of a part.
struct Division {
    dim: usize,
    along: Vec<Option<usize>>,
    size: usize,
}

/// Computes an op whose result or inputs are too large to be bound, in parts.
pub(super) fn compute(op: &dyn AnyOp, gpu: &Arc<Gpu>, inputs: &[Part], out: Target) -> Result<()> {
    if out.shape.len() > 1 && is_of_elements(op, inputs, out) {
        let line = [out.shape.iter().product()];
        let flat = |x: &Part| {
            let layout = Layout { offset: x.layout.offset, ..Layout::contiguous(&line) };
            Part { layout, ..x.clone() }
        };
        let inputs: Vec<Part> = inputs.iter().map(flat).collect();
        return compute(op, gpu, &inputs, Target { shape: &line, ..out });
    }
    let Some(Division { dim, along, size }) = division(op, gpu, inputs, out) else {
        let inputs: Vec<Part> = inputs.iter().map(|x| x.ready(gpu, op.reads_dense())).collect::<Result<_>>()?;
        return gpu.run_op(op.op_name(), op.gpu_of_parts(gpu, &inputs, out.buffer)?, out.buffer);
    };
    let (whole, inner) = (out.shape[dim], out.shape[dim + 1..].iter().product::<usize>());
    for start in (0..whole).step_by(size) {
        let len = size.min(whole - start);
        let own = |(x, along): (&Part, &Option<usize>)| along.map_or_else(|| x.clone(), |d| x.narrow(d, start, len));
        let inputs: Vec<Part> = inputs.iter().zip(&along).map(own).collect();
        let mut shape = out.shape.to_vec();
        shape[dim] = len;
        let words = out.dtype.words(shape.iter().product());
        let part = |buffer| Target { buffer, shape: &shape, dtype: out.dtype };
        let first = start * inner;
        let leading = out.shape[..dim].iter().all(|&size| size == 1);
        if leading && first.is_multiple_of(BINDING_ALIGNMENT * out.dtype.per_word()) {
            compute(op, gpu, &inputs, part(&out.buffer.part(first / out.dtype.per_word(), words)))?;
            continue;
        }
        let result = Part { buffer: gpu.alloc(words)?, layout: Layout::contiguous(&shape), dtype: out.dtype };
        compute(op, gpu, &inputs, part(&result.buffer))?;
        let place = Layout::contiguous(out.shape).narrow(dim, start, len);
        copies(gpu, &result, out.buffer, &place)?.into_iter().try_for_each(|kernel| gpu.run(kernel))?;
    }
    Ok(())
}

/// Returns whether each element of the result depends on the elements at its place in the inputs alone, which are in order: the op
/// can be divided along every dimension. Its shape does not matter then.
fn is_of_elements(op: &dyn AnyOp, inputs: &[Part], out: Target) -> bool {
    let shapes: Vec<&[usize]> = inputs.iter().map(|x| &x.layout.shape[..]).collect();
    let alike = |dim: usize| op.along(&shapes, dim).is_some_and(|all| all.iter().all(|own| *own == Some(dim)));
    inputs.iter().all(|x| x.layout.shape == out.shape && x.layout.is_contiguous()) && (0..out.shape.len()).all(alike)
}

/// Returns how an op is divided; `None` if all can be bound, or if no division helps.
fn division(op: &dyn AnyOp, gpu: &Gpu, inputs: &[Part], out: Target) -> Option<Division> {
    let most = gpu.largest_binding();
    let of_inputs =
        |parts: &mut dyn Iterator<Item = Part>| parts.map(|x| x.words(gpu, op.reads_dense())).max().unwrap_or(0);
    let now = of_inputs(&mut inputs.iter().cloned()).max(out.buffer.len());
    if now <= most {
        return None;
    }
    let shapes: Vec<&[usize]> = inputs.iter().map(|x| &x.layout.shape[..]).collect();
    let mut best: Option<(usize, Division)> = None;
    for dim in (0..out.shape.len()).filter(|&d| out.shape[d] > 1) {
        let Some(along) = op.along(&shapes, dim) else { continue };
        let row = out.shape.iter().product::<usize>() / out.shape[dim];
        let needed = |size: usize| {
            let own = |(x, d): (&Part, &Option<usize>)| d.map_or_else(|| x.clone(), |d| x.narrow(d, 0, size));
            of_inputs(&mut inputs.iter().zip(&along).map(own)).max(out.dtype.words(row * size))
        };
        let inner = out.shape[dim + 1..].iter().product();
        let leading = out.shape[..dim].iter().all(|&size| size == 1);
        let unit = unit(BINDING_ALIGNMENT * out.dtype.per_word(), inner);
        let least = needed(1);
        // The largest size that fits, or half of the dimension if none does but it helps.
        let (mut size, mut above) = (1, out.shape[dim]);
        if least > most {
            size = out.shape[dim].div_ceil(2);
        } else {
            while above - size > 1 {
                let middle = size.midpoint(above);
                if needed(middle) <= most { size = middle } else { above = middle }
            }
        }
        let aligned = leading && size >= unit;
        if aligned {
            size = size / unit * unit;
        } else if out.dtype.is_packed() {
            continue; // a part would begin within a word, or be copied as words
        }
        let helps = least <= most || least < now / 4 * 3;
        if helps && best.as_ref().is_none_or(|(other, _)| *other > most && least < *other) {
            best = Some((least, Division { dim, along, size }));
        }
    }
    best.map(|(_, division)| division)
}

#[cfg(test)]
mod tests;
