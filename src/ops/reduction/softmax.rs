//! softmax and log-softmax along a dimension.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::error::{Error, Result};
use crate::ops::inputs::around;
use crate::ops::{Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, apply};
use crate::shape::check_dim;
use crate::tensor::Tensor;

params! {
    struct Params { offset: usize, outer: usize, reduced: usize, inner: usize }
}
shader!(SHADER: Params = "softmax");

/// The longest row that one invocation of the kernel walks (three times); longer ones are composed of other ops.
const MAX_ROW: usize = 16 * 1024;

#[derive(Debug)]
struct Softmax {
    dim: usize,
    log: bool,
}

impl Op for Softmax {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Raise);

    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((inputs[0].shape().to_vec(), inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let [_, reduced, inner] = around(inputs[0].shape(), self.dim);
        let (x, out, block) = (inputs[0].slice::<f32>(), out.slice::<f32>(), reduced * inner);
        out.par_chunks_mut(block).zip(x.par_chunks(block)).with_min_len(64).for_each(|(out, x)| {
            for b in 0..inner {
                let row = || (b..block).step_by(inner);
                let max = row().map(|i| x[i]).fold(f32::NEG_INFINITY, f32::max);
                let total: f32 = row().map(|i| (x[i] - max).exp()).sum();
                let log_total = total.ln();
                for i in row() {
                    let v = x[i] - max;
                    out[i] = if self.log { v - log_total } else { v.exp() / total };
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let [outer, reduced, inner] = around(x.shape(), self.dim);
        let params = Params { offset: x.offset(), outer, reduced, inner };
        let kernel = Kernel::build(SHADER, "softmax", params).constant("LOG", self.log);
        Ok(vec![kernel.input(x).output(out).each(outer * inner)])
    }

    /// softmax: y · (g − Σ g·y); log-softmax: g − e^y · Σ g
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (y, g) = (ctx.out, ctx.grad);
        let grad = match self.log {
            true => g.sub(&y.exp()?.mul(&g.sum(&[self.dim], true)?)?)?,
            false => y.mul(&g.sub(&g.mul(y)?.sum(&[self.dim], true)?)?)?,
        };
        Ok(vec![Some(grad)])
    }
}

/// softmax along a dimension too long for the kernel, as a composition.
fn long_softmax(x: &Tensor, dim: usize) -> Result<Tensor> {
    let e = x.sub(&x.detach().max(&[dim], true)?)?.exp()?;
    e.div(&e.sum(&[dim], true)?)
}

/// log-softmax along a dimension too long for the kernel, as a composition.
fn long_log_softmax(x: &Tensor, dim: usize) -> Result<Tensor> {
    let shifted = x.sub(&x.detach().max(&[dim], true)?)?;
    shifted.sub(&shifted.exp()?.sum(&[dim], true)?.log()?)
}

fn check(x: &Tensor, dim: usize, name: &'static str) -> Result<bool> {
    check_dim(name, dim, x.shape())?;
    if !x.dtype().is_float() {
        return Err(Error::DTypeMismatch { op: name, expected: "a float type".into(), got: x.dtype().to_string() });
    }
    Ok(x.shape()[dim] > MAX_ROW && !x.device().is_cpu())
}

impl Tensor {
    /// `exp(x) / Σ exp(x)` along `dim`, without overflow; the same shape. Halves are computed as f32.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension; [`Error::DTypeMismatch`] unless of floats.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::zeros([1, 4], None)?.softmax(1)?.to_vec::<f32>()?, [0.25; 4]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn softmax(&self, dim: usize) -> Result<Tensor> {
        match check(self, dim, "softmax")? {
            true => long_softmax(self, dim),
            false => apply(Softmax { dim, log: false }, &[self]),
        }
    }

    /// `x − log Σ exp(x)` along `dim`, without overflow; the same shape.
    ///
    /// # Errors
    /// As [`Tensor::softmax`].
    pub fn log_softmax(&self, dim: usize) -> Result<Tensor> {
        match check(self, dim, "log_softmax")? {
            true => long_log_softmax(self, dim),
            false => apply(Softmax { dim, log: true }, &[self]),
        }
    }
}
