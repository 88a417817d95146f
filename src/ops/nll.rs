//! The negative log-likelihood of labels, and cross-entropy on top of it.

use std::sync::Arc;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid};
use crate::ops::promote::apply_float;
use crate::ops::{Gradient, Op, Spec, apply, expect_dtype, shader};
use crate::tensor::Tensor;

pub(super) const SHADER: Shader = shader!("nll");

/// `[N, C]` log-probabilities and `[N]` labels → `[N]` losses.
#[derive(Debug)]
struct Nll;

/// `[N]` gradients and `[N]` labels → `[N, C]` gradients.
#[derive(Debug)]
struct NllBackward {
    classes: usize,
}

fn kernel(entry: &'static str, inputs: &[GpuIn], out: &Buffer, rows: usize, classes: usize) -> Result<Vec<Kernel>> {
    let elements = fits_u32("nll", rows * classes)? as usize;
    let (x, labels) = (&inputs[0], &inputs[1]);
    Ok(vec![Kernel {
        shader: SHADER,
        entry,
        header: "",
        constants: vec![],
        params: vec![rows as u32, classes as u32, x.offset(), labels.offset()],
        inputs: vec![x.buffer.clone(), labels.buffer.clone()],
        outputs: vec![out.clone()],
        groups: grid(if entry == "forward" { rows } else { elements }),
    }])
}

impl Op for Nll {
    fn name(&self) -> &'static str {
        "nll"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        let (x, labels) = (inputs[0], inputs[1]);
        expect_dtype("nll", x, DType::F32)?;
        expect_dtype("nll", labels, DType::U32)?;
        match (x.shape(), labels.shape()) {
            (&[n, _], &[m]) if n == m => Ok(Spec::Fresh(vec![n], DType::F32)),
            (a, b) => Err(Error::shapes("nll", a, b, "log-probabilities are [N, C], labels [N]")),
        }
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let classes = inputs[0].layout.shape[1];
        let (x, labels) = (inputs[0].slice::<f32>(), inputs[1].slice::<u32>());
        for (n, (out, &label)) in out.slice::<f32>().iter_mut().zip(labels).enumerate() {
            if label as usize >= classes {
                return Err(Error::argument("nll", format!("label {label} of row {n} is none of {classes} classes")));
            }
            *out = -x[n * classes + label as usize];
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let shape = &inputs[0].layout.shape;
        kernel("forward", inputs, out, shape[0], shape[1])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let classes = ctx.inputs[0].shape()[1];
        let grad = apply(NllBackward { classes }, &[&ctx.grad.contiguous()?, &ctx.inputs[1]])?;
        Ok(vec![Some(grad), None])
    }
}

impl Op for NllBackward {
    fn name(&self) -> &'static str {
        "nll_backward"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        Ok(Spec::Fresh(vec![inputs[0].elem_count(), self.classes], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let (g, labels) = (inputs[0].slice::<f32>(), inputs[1].slice::<u32>());
        for ((row, &g), &label) in out.slice::<f32>().chunks_mut(self.classes).zip(g).zip(labels) {
            row.fill(0.0);
            row[label as usize] = -g; // the forward pass has checked the label
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        kernel("backward", inputs, out, inputs[0].layout.elem_count(), self.classes)
    }
}

impl Tensor {
    /// The mean cross-entropy of class scores (logits, not probabilities): `mean_n(−log softmax(x[n])[label[n]])`.
    ///
    /// `[N, C]` f32 and `[N]` u32 → rank 0.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] or [`Error::DTypeMismatch`] if the inputs are of other shapes or types;
    /// [`Error::InvalidArgument`] on the CPU if a label is not below C. An adapter cannot report that: the loss is NaN there.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let logits = Tensor::zeros([2, 4], None)?;
    /// let loss = logits.cross_entropy(&Tensor::try_from([0u32, 3])?)?.item::<f32>()?;
    /// assert!((loss - 4f32.ln()).abs() < 1e-6);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn cross_entropy(&self, labels: &Tensor) -> Result<Tensor> {
        super::same_device("cross_entropy", &[self, labels])?;
        if self.rank() != 2 || labels.rank() != 1 {
            return Err(Error::shapes("cross_entropy", self.shape(), labels.shape(), "scores are [N, C], labels [N]"));
        }
        apply_float(Nll, &[&self.log_softmax(1)?, &labels.contiguous()?])?.mean_all()
    }
}
