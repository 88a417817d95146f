//! Copies within a device: to a dense layout, and several tensors into one.

use std::sync::Arc;

use anygpu_host::tasks::share;

use crate::device::cpu::copy;
use crate::device::gpu::{Buffer, FOURS, Gpu, Kernel, shader};
use crate::error::{Error, Result};
use crate::ops::elementwise::cast::repacked;
use crate::ops::inputs::{STRIDED, StridedParams, Walk, elements_each, neighbours_each};
use crate::ops::long::moved;
use crate::ops::names::{Names, names};
use crate::ops::parts::{Part, alike, copies};
use crate::ops::shape::join;
use crate::ops::traced::Traced;
use crate::ops::{
    CpuIn, CpuOut, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, Strided, apply, expect_dtype, named,
};
use crate::shape::{Dim, Layout, dimension};
use crate::tensor::Tensor;

shader!(SHADER: StridedParams = "shape/copy", after [FOURS, STRIDED]);

/// Returns the kernel that copies between two layouts of one shape.
pub(in crate::ops) fn strided_kernel(gpu: &Gpu, src: &GpuIn<Strided>, out: &Buffer, to: &Layout) -> Result<Kernel> {
    let walk = Walk::new([src.layout(), to]);
    let params = walk.params("copy")?;
    // A copy to a part of `out` must not write past its end.
    let in_fours = walk.is_dense() && walk.is_in_fours() && params.count.is_multiple_of(4);
    let each = elements_each(gpu, in_fours);
    if in_fours {
        let params = StridedParams { run: each / 4, ..params };
        let kernel = Kernel::build(SHADER, "fours", params).input(src).output(out);
        return Ok(kernel.each(params.count.div_ceil(each)));
    }
    let width = walk.dims.last().copied().unwrap_or(1).max(1);
    let run = neighbours_each(gpu, params.count);
    let params = StridedParams { count: params.count / width * width.div_ceil(run), run, ..params };
    Ok(Kernel::build(SHADER, "strided", params).input(src).output(out).each(params.count))
}

/// Copies between two layouts of one shape on the host.
pub(in crate::ops) fn strided_copy(src: &CpuIn<Strided>, out: &mut [u32], to: &Layout) {
    let (from, words) = (src.layout(), src.all::<u32>());
    if from.elem_count() == 0 {
        return;
    }
    if from.is_contiguous() && to.is_contiguous() {
        let len = from.elem_count();
        copy(&words[from.offset..from.offset + len], &mut out[to.offset..to.offset + len]);
    } else if to.is_contiguous() {
        let out = &mut out[to.offset..to.offset + to.elem_count()];
        Walk::new([from]).rows(out, 1, |[at], [step], out| match step {
            0 => out.fill(words[at]),
            1 => out.copy_from_slice(&words[at..at + out.len()]),
            // The step may be negative, as a wrapped number.
            _ => out.iter_mut().enumerate().for_each(|(i, out)| *out = words[at.wrapping_add(i.wrapping_mul(step))]),
        });
    } else {
        // Rows along the innermost dimension that both layouts walk alike.
        let Walk { dims, strides, .. } = Walk::new([from, to]);
        let inner = dims.len() - 1;
        let [rows, targets] = [(from, &strides[0]), (to, &strides[1])].map(|(layout, strides)| Layout {
            shape: dims[..inner].to_vec(),
            strides: strides[..inner].to_vec(),
            offset: layout.offset,
        });
        let (count, steps) = (dims[inner], strides.each_ref().map(|strides| strides[inner]));
        for (from, to) in rows.positions().zip(targets.positions()) {
            if steps == [1, 1] {
                out[to..to + count].copy_from_slice(&words[from..from + count]);
                continue;
            }
            let place = |start: usize, i: usize, step: usize| start.wrapping_add(i.wrapping_mul(step));
            (0..count).for_each(|i| out[place(to, i, steps[1])] = words[place(from, i, steps[0])]);
        }
    }
}

/// The op that copies each input to its part of one dense output.
#[derive(Debug)]
struct Cat {
    dim: usize,
}

impl Cat {
    /// Returns the layout of each input's part of the output.
    fn places<'a>(&self, shapes: impl Iterator<Item = &'a [usize]> + Clone) -> Vec<Layout> {
        let mut whole = shapes.clone().next().unwrap_or_default().to_vec();
        whole[self.dim] = shapes.clone().map(|s| s[self.dim]).sum();
        let whole = Layout::contiguous(&whole);
        let mut start = 0;
        shapes
            .map(|shape| {
                let place = whole.narrow(self.dim, start, shape[self.dim]);
                start += shape[self.dim];
                place
            })
            .collect()
    }
}

/// The most elements that one thread joins.
const FEW: usize = 1 << 15;

impl Op for Cat {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["cat"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Cat(self.dim))
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        self.output(inputs)?;
        moved(Cat { dim: self.dim }, inputs)
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let first = inputs[0];
        let mut shape = first.shape().to_vec();
        for other in &inputs[1..] {
            expect_dtype("cat", other, first.dtype())?;
            let fits = |d: usize| d == self.dim || other.shape()[d] == shape[d];
            if other.rank() != first.rank() || !(0..first.rank()).all(fits) {
                let detail = format!("all sizes must be equal, except in dimension {}", self.dim);
                return Err(Error::shapes("cat", first.shape(), other.shape(), detail));
            }
            let whole = shape[self.dim].checked_add(other.shape()[self.dim]);
            shape[self.dim] = whole.ok_or_else(|| Error::argument("cat", "the tensors together are too long"))?;
        }
        Ok((shape, first.dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let places = self.places(inputs.iter().map(|i| i.shape()));
        if !places.iter().all(Layout::is_contiguous) {
            inputs.iter().zip(&places).for_each(|(input, place)| strided_copy(input, out.0, place));
            return Ok(());
        }
        // The places follow one another: each is a part of the output that one task can write.
        let mut rest = out.0;
        let mut parts = Vec::with_capacity(inputs.len());
        for (input, place) in inputs.iter().zip(places) {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(input.elem_count());
            parts.push((input, part, Layout { offset: 0, ..place }));
            rest = others;
        }
        // To wake other threads takes longer than to copy a few thousand elements.
        let few = inputs.iter().map(|input| input.elem_count()).sum::<usize>() <= FEW;
        let copy = |(input, part, place): (&CpuIn<Strided>, &mut [u32], Layout)| strided_copy(input, part, &place);
        match few {
            true => parts.into_iter().for_each(copy),
            false => share(parts, 1, copy),
        }
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        let places = self.places(inputs.iter().map(|i| i.shape()));
        let parts: Vec<join::Part> = inputs.iter().zip(&places).filter(|(i, _)| i.elem_count() > 0).collect();
        let most = gpu.largest_binding();
        if out.len() > most || parts.iter().any(|(input, _)| input.buffer().len() > most) {
            let all = parts.iter().map(|(input, place)| copies(gpu, &Part::of(*input), out, place));
            return Ok(all.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect());
        }
        join::kernels(gpu, &parts, out)
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let mut start = 0;
        let mut part = |input: &Tensor| {
            let len = input.shape()[self.dim];
            start += len;
            ctx.grad.narrow(self.dim, start - len, len).map(Some)
        };
        ctx.inputs.iter().map(&mut part).collect()
    }
}

/// Joins tensors along a dimension: `[.., a, ..], [.., b, ..] → [.., a + b, ..]`, in the common type of all.
pub(crate) fn cat(tensors: &[&Tensor], dim: impl Dim) -> Result<Tensor> {
    let first = tensors.first().ok_or_else(|| Error::argument("cat", "needs at least one tensor"))?;
    let dim = dimension("cat", dim, first.shape())?;
    let dtype = named("cat", || tensors.iter().try_fold(first.dtype(), |dtype, t| dtype.promote(t.dtype())))?;
    let alike = tensors.iter().map(|t| t.to_dtype(dtype)).collect::<Result<Vec<_>>>()?;
    apply(Cat { dim }, &alike.iter().collect::<Vec<_>>())
}

/// Returns a copy, even if the elements are in order already.
pub(crate) fn duplicate(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_packed() { repacked(x) } else { apply(Contiguous, &[x]) }
}

#[derive(Debug)]
struct Contiguous;

impl Op for Contiguous {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["contiguous"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Same)
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        moved(Contiguous, inputs)
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        alike(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        strided_copy(&inputs[0], out.0, &Layout::contiguous(inputs[0].shape()));
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        Ok(vec![strided_kernel(gpu, &inputs[0], out, &Layout::contiguous(inputs[0].shape()))?])
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![Some(ctx.grad.clone())])
    }
}

impl Tensor {
    /// Returns the elements in row-major order without gaps: the same tensor if it has that layout already, otherwise a
    /// copy.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory for the copy.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.layout().is_contiguous() {
            return Ok(self.clone());
        }
        named("contiguous", || duplicate(self))
    }

    /// Returns a copy in its own memory, in the graph, like PyTorch's `clone`. Rust's `clone` of a [`Tensor`] returns
    /// another handle of the same elements.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory for the copy.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::zeros([2], None)?;
    /// let (handle, copy) = (x.clone(), x.copy()?);
    /// x.fill_(1.0)?;
    /// assert_eq!((handle.to_vec::<f32>()?, copy.to_vec::<f32>()?), (vec![1.0; 2], vec![0.0; 2]));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn copy(&self) -> Result<Tensor> {
        named("copy", || duplicate(self))
    }
}
