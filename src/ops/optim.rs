//! Optimiser steps, in place on dense ranges: one dispatch for all parameters of a device.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::Backend;
use crate::device::gpu::{Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{cpu_buffer, fits_u32, gpu_view, grid, read_all, view};
use crate::ops::shader;
use crate::ops::unary::CHUNK;
use crate::tensor::Tensor;

pub(super) const SHADER: Shader = shader!("optim");

/// The numbers of a step of stochastic gradient descent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SgdRule {
    pub rate: f32,
    pub momentum: f32,
    pub decay: f32,
}

/// `d ← g + λ·w; v ← μ·v + d; w ← w − η·v`, or `w ← w − η·d` without a velocity. All dense, of one size, on one device.
pub(crate) fn sgd_step(w: &Tensor, g: &Tensor, v: Option<&Tensor>, rule: SgdRule) -> Result<()> {
    let mut all = vec![w, g];
    all.extend(v);
    super::same_device("sgd_step", &all)?;
    for tensor in &all {
        super::expect_dtype("sgd_step", tensor, DType::F32)?;
        if tensor.elem_count() != w.elem_count() || !tensor.layout().is_contiguous() {
            let detail = "parameters, gradients and velocities must be dense and of one size";
            return Err(Error::shapes("sgd_step", w.shape(), tensor.shape(), detail));
        }
    }
    if all[1..].iter().any(|t| t.storage().id() == w.storage().id()) {
        return Err(Error::argument("sgd_step", "a gradient shares its parameter's elements: copy it first"));
    }
    if w.elem_count() == 0 {
        return Ok(());
    }
    match w.device().backend()? {
        Backend::Cpu(_) => on_cpu(w, g, v, rule)?,
        Backend::Gpu(gpu) => on_gpu(gpu, w, g, v, rule)?,
    }
    w.storage().bump();
    Ok(())
}

fn on_cpu(w: &Tensor, g: &Tensor, v: Option<&Tensor>, rule: SgdRule) -> Result<()> {
    let guards = read_all(&[g])?;
    let g = view(g, &guards)?.slice::<f32>();
    let range = |t: &Tensor| t.layout().offset..t.layout().offset + t.elem_count();
    let mut words = cpu_buffer(w)?.write();
    let parameters: &mut [f32] = bytemuck::cast_slice_mut(&mut words[range(w)]);
    let SgdRule { rate, momentum, decay } = rule;
    let pairs = parameters.par_chunks_mut(CHUNK).zip(g.par_chunks(CHUNK));
    match v {
        None => pairs.for_each(|(w, g)| w.iter_mut().zip(g).for_each(|(w, g)| *w -= rate * (g + decay * *w))),
        Some(v) => {
            let mut velocity = cpu_buffer(v)?.write();
            let velocity: &mut [f32] = bytemuck::cast_slice_mut(&mut velocity[range(v)]);
            pairs.zip(velocity.par_chunks_mut(CHUNK)).for_each(|((w, g), v)| {
                w.iter_mut().zip(g).zip(v).for_each(|((w, g), v)| {
                    *v = momentum * *v + (g + decay * *w);
                    *w -= rate * *v;
                });
            });
        }
    }
    Ok(())
}

fn on_gpu(gpu: &Arc<Gpu>, w: &Tensor, g: &Tensor, v: Option<&Tensor>, rule: SgdRule) -> Result<()> {
    let count = fits_u32("sgd_step", w.elem_count())?;
    let (weights, gradients) = (gpu_view(w)?, gpu_view(g)?);
    let velocity = v.map(gpu_view).transpose()?;
    let mut outputs = vec![weights.buffer.clone()];
    outputs.extend(velocity.iter().map(|v| v.buffer.clone()));
    gpu.run(Kernel {
        shader: SHADER,
        entry: if velocity.is_some() { "sgd_momentum" } else { "sgd" },
        header: "",
        constants: vec![],
        params: vec![
            count,
            weights.offset(),
            gradients.offset(),
            velocity.map_or(0, |v| v.offset()),
            rule.rate.to_bits(),
            rule.momentum.to_bits(),
            rule.decay.to_bits(),
        ],
        inputs: vec![gradients.buffer.clone()],
        outputs,
        groups: grid(count as usize),
    })
}
