//! Copies within a device: to a dense layout, to another element type, and several tensors into one.

use std::sync::Arc;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid, strided_params};
use crate::ops::{Gradient, Op, Spec, apply, shader};
use crate::shape::{Layout, check_dim};
use crate::tensor::Tensor;

pub(super) const SHADER: Shader = shader!("copy");
pub(super) const CAST_SHADER: Shader = shader!("cast");

/// The headers of all conversions, `[from][to]` in the order of [`DType`].
pub(super) const CAST_HEADERS: [&str; 6] = [
    "alias S = f32;\nalias T = i32;\n",
    "alias S = f32;\nalias T = u32;\n",
    "alias S = i32;\nalias T = f32;\n",
    "alias S = i32;\nalias T = u32;\n",
    "alias S = u32;\nalias T = f32;\n",
    "alias S = u32;\nalias T = i32;\n",
];

/// The kernel that copies between two layouts of one shape.
pub(super) fn strided_kernel(src: &GpuIn, out: &Buffer, to: &Layout) -> Result<Kernel> {
    let from = (src.layout.strides.as_slice(), src.layout.offset);
    Ok(Kernel {
        shader: SHADER,
        entry: "strided",
        header: "",
        constants: vec![],
        params: strided_params("copy", &src.layout.shape, from, (&to.strides, to.offset))?,
        inputs: vec![src.buffer.clone()],
        outputs: vec![out.clone()],
        groups: grid(src.layout.elem_count()),
    })
}

/// Copies between two layouts of one shape on the host.
pub(super) fn strided_copy(src: &CpuIn, out: &mut [u32], to: &Layout) {
    if src.layout.is_contiguous() && to.is_contiguous() {
        let len = src.layout.elem_count();
        out[to.offset..to.offset + len].copy_from_slice(src.slice());
    } else {
        src.layout.positions().zip(to.positions()).for_each(|(from, to)| out[to] = src.words[from]);
    }
}

/// The inputs, each in its part of one dense output.
#[derive(Debug)]
struct Cat {
    dim: usize,
}

impl Cat {
    /// Where each input goes in the output.
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

impl Op for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        let first = inputs[0];
        check_dim("cat", self.dim, first.shape())?;
        let mut shape = first.shape().to_vec();
        for other in &inputs[1..] {
            super::expect_dtype("cat", other, first.dtype())?;
            let fits = |d: usize| d == self.dim || other.shape()[d] == shape[d];
            if other.rank() != first.rank() || !(0..first.rank()).all(fits) {
                let detail = format!("all sizes but that of dimension {} must be equal", self.dim);
                return Err(Error::shapes("cat", first.shape(), other.shape(), detail));
            }
            shape[self.dim] += other.shape()[self.dim];
        }
        Ok(Spec::Fresh(shape, first.dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let places = self.places(inputs.iter().map(|i| i.layout.shape.as_slice()));
        inputs.iter().zip(&places).for_each(|(input, place)| strided_copy(input, out.0, place));
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let places = self.places(inputs.iter().map(|i| i.layout.shape.as_slice()));
        let parts = inputs.iter().zip(&places).filter(|(i, _)| i.layout.elem_count() > 0);
        parts.map(|(input, place)| strided_kernel(input, out, place)).collect()
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let mut start = 0;
        let mut part = |input: &Tensor| {
            let len = input.shape()[self.dim];
            start += len;
            ctx.grad.narrow(self.dim, start - len, len).map(Some)
        };
        ctx.inputs.iter().map(&mut part).collect()
    }
}

/// The tensors one after the other along a dimension: `[.., a, ..], [.., b, ..] → [.., a + b, ..]`.
pub(crate) fn cat(tensors: &[&Tensor], dim: usize) -> Result<Tensor> {
    let full: Vec<&Tensor> = tensors.iter().copied().filter(|t| t.elem_count() > 0).collect();
    if full.is_empty() {
        return tensors.first().map(|&t| t.clone()).ok_or_else(|| Error::argument("cat", "needs a tensor"));
    }
    apply(Cat { dim }, &full)
}

#[derive(Debug)]
struct Contiguous;

impl Op for Contiguous {
    fn name(&self) -> &'static str {
        "contiguous"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        Ok(Spec::Fresh(inputs[0].shape().to_vec(), inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        strided_copy(&inputs[0], out.0, &Layout::contiguous(&inputs[0].layout.shape));
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        Ok(vec![strided_kernel(&inputs[0], out, &Layout::contiguous(&inputs[0].layout.shape))?])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(ctx.grad.clone())])
    }
}

#[derive(Debug)]
struct Cast(DType);

impl Op for Cast {
    fn name(&self) -> &'static str {
        "to_dtype"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        Ok(Spec::Fresh(inputs[0].shape().to_vec(), self.0))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let x = &inputs[0];
        match (x.dtype, self.0) {
            (DType::F32, DType::I32) => convert(x.slice(), out.slice(), |v: f32| v as i32),
            (DType::F32, DType::U32) => convert(x.slice(), out.slice(), |v: f32| v as u32),
            (DType::I32, DType::F32) => convert(x.slice(), out.slice(), |v: i32| v as f32),
            (DType::U32, DType::F32) => convert(x.slice(), out.slice(), |v: u32| v as f32),
            (DType::I32 | DType::U32, DType::I32 | DType::U32) | (DType::F32, DType::F32) => {
                out.0.copy_from_slice(x.slice());
            }
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let wanted = format!("alias S = {};\nalias T = {};\n", x.dtype, self.0);
        let header = CAST_HEADERS.into_iter().find(|h| *h == wanted);
        Ok(vec![Kernel {
            shader: CAST_SHADER,
            entry: "convert",
            header: header.ok_or_else(|| Error::argument("to_dtype", "no such conversion"))?,
            constants: vec![],
            params: vec![fits_u32("to_dtype", x.layout.elem_count())?, x.offset()],
            inputs: vec![x.buffer.clone()],
            outputs: vec![out.clone()],
            groups: grid(x.layout.elem_count()),
        }])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        match ctx.inputs[0].dtype() == DType::F32 && self.0 == DType::F32 {
            true => Ok(vec![Some(ctx.grad.clone())]),
            false => Ok(vec![None]), // integers carry no gradient
        }
    }
}

fn convert<S: Copy, T>(from: &[S], to: &mut [T], f: impl Fn(S) -> T) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = f(from));
}

impl Tensor {
    /// The elements in row-major order without gaps; the same tensor where they are so already.
    ///
    /// # Errors
    /// If the device has no room for the copy.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.layout().is_contiguous() { Ok(self.clone()) } else { apply(Contiguous, &[self]) }
    }

    /// The elements as another type, rounded towards zero from f32 to an integer (values out of range saturate).
    ///
    /// # Errors
    /// If the device has no room for the copy.
    ///
    /// ```
    /// # use anygpu::{DType, Tensor};
    /// let x = Tensor::try_from([1.9, -1.9])?.to_dtype(DType::I32)?;
    /// assert_eq!(x.to_vec::<i32>()?, [1, -1]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        apply(Cast(dtype), &[&self.contiguous()?])
    }
}
