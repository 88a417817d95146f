//! A choice between two tensors by a third.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, MAX_RANK, collapse, fits_u32, grid};
use crate::ops::elementwise::binary::operand::Operand;
use crate::ops::elementwise::unary::CHUNK;
use crate::ops::promote::{apply_wide, result_type};
use crate::ops::{Gradient, Op, Spec, expect_dtype, shader};
use crate::shape::{Layout, broadcast_shapes};
use crate::tensor::Tensor;

pub(in crate::ops) const SHADER: Shader = shader!("where");

/// Of `[a, b, condition]`: a where the condition, of u32, is not 0, else b.
#[derive(Debug)]
struct Choose;

impl Op for Choose {
    fn name(&self) -> &'static str {
        "where_cond"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        let [a, b, condition] = [0, 1, 2].map(|i| inputs[i]);
        expect_dtype(self.name(), b, a.dtype())?;
        let both = broadcast_shapes(self.name(), a.shape(), b.shape())?;
        Ok(Spec::Fresh(broadcast_shapes(self.name(), condition.shape(), &both)?, a.dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let (shape, layouts) = stretched([0, 1, 2].map(|i| inputs[i].layout))?;
        let [a, b, condition] = [0, 1, 2].map(|i| inputs[i].words);
        let (dims, steps) = collapse(&shape, [0, 1, 2].map(|i| layouts[i].strides.as_slice()));
        let inner = dims.len() - 1;
        out.0.par_chunks_mut(CHUNK).enumerate().for_each(|(part, out)| {
            let mut done = 0;
            while done < out.len() {
                // Up to the end of a row, along which every step is constant.
                let (mut rest, mut at) = (part * CHUNK + done, [0, 1, 2].map(|i| layouts[i].offset));
                let count = (dims[inner] - rest % dims[inner]).min(out.len() - done);
                for d in (0..dims.len()).rev() {
                    (0..3).for_each(|i| at[i] += rest % dims[d] * steps[i][d]);
                    rest /= dims[d];
                }
                let step = [0, 1, 2].map(|i| steps[i][inner]);
                for (i, out) in out[done..done + count].iter_mut().enumerate() {
                    let chosen = condition[at[2] + i * step[2]] != 0;
                    *out = if chosen { a[at[0] + i * step[0]] } else { b[at[1] + i * step[1]] };
                }
                done += count;
            }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let (shape, layouts) = stretched([0, 1, 2].map(|i| inputs[i].layout))?;
        let (dims, steps) = collapse(&shape, [0, 1, 2].map(|i| layouts[i].strides.as_slice()));
        if dims.len() > MAX_RANK {
            let why = format!("a layout of more than {MAX_RANK} separate dimensions: {shape:?}");
            return Err(Error::argument(self.name(), why));
        }
        let count = fits_u32(self.name(), shape.iter().product())?;
        let [a, b, condition] = [0, 1, 2].map(|i| layouts[i].offset as u32);
        let mut params = vec![count, dims.len() as u32, a, b, condition, 0, 0, 0];
        for list in std::iter::once(&dims).chain(&steps) {
            params.extend((0..MAX_RANK).map(|d| list.get(d).map_or(0, |&v| v as u32)));
        }
        Ok(vec![Kernel {
            shader: SHADER,
            entry: if layouts.iter().all(Layout::is_contiguous) { "dense" } else { "strided" },
            header: "",
            constants: vec![],
            params,
            inputs: inputs.iter().map(|input| input.buffer.clone()).collect(),
            outputs: vec![out.clone()],
            groups: grid(count as usize),
        }])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let (condition, zero) = (&ctx.inputs[2], 0f32);
        let side = |i: usize, a: Operand, b: Operand| ctx.needs[i].then(|| condition.where_cond(a, b)).transpose();
        Ok(vec![side(0, ctx.grad.into(), zero.into())?, side(1, zero.into(), ctx.grad.into())?, None])
    }
}

/// All layouts stretched to their common shape.
fn stretched(layouts: [&Layout; 3]) -> Result<(Vec<usize>, [Layout; 3])> {
    let [a, b, condition] = layouts.map(|layout| layout.shape.as_slice());
    let shape = broadcast_shapes("where_cond", condition, &broadcast_shapes("where_cond", a, b)?)?;
    let stretched = layouts.map(|layout| layout.broadcast_to(&shape));
    Ok((shape, stretched))
}

impl Tensor {
    /// `a` where this tensor is true (or not 0), else `b`; all three are broadcast by NumPy's rule, and `a` and `b`, tensors
    /// or numbers, meet in one type as in [`Tensor::add`]. `torch.where(condition, a, b)`.
    ///
    /// What is not chosen has no influence, be it NaN, and gets a gradient of 0.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DeviceMismatch`] or [`Error::DTypeMismatch`] if the three do not go together.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([-4.0, 9.0])?;
    /// let root = Tensor::where_cond(&x.ge(0)?, &x.sqrt()?, 0.0)?;
    /// assert_eq!(root.to_vec::<f32>()?, [0.0, 3.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn where_cond<'a>(&self, a: impl Into<Operand<'a>>, b: impl Into<Operand<'a>>) -> Result<Tensor> {
        let op = Choose.name();
        let (a, b) = (a.into(), b.into());
        let dtype = match (a, b) {
            (Operand::Tensor(a), Operand::Tensor(b)) => {
                crate::ops::same_device(op, &[self, a, b])?;
                result_type(op, a, b)?
            }
            (Operand::Tensor(x), Operand::Scalar(s)) | (Operand::Scalar(s), Operand::Tensor(x)) => s.meets(x.dtype()),
            (Operand::Scalar(a), Operand::Scalar(b)) => b.meets(a.meets(DType::Bool)),
        };
        let tensor = |operand| match operand {
            Operand::Tensor(x) => x.to_dtype(dtype),
            Operand::Scalar(s) => s.tensor(op, dtype, self.device()),
        };
        let condition = self.detach().to_dtype(DType::Bool)?;
        apply_wide(Choose, &[&tensor(a)?, &tensor(b)?, &condition])
    }
}
