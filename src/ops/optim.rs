//! Optimiser steps, in place on dense ranges: one dispatch for all parameters of a device.

use std::sync::Arc;

use anygpu_host::tasks::share;
use anygpu_host::vectorised;

use crate::device::Backend;
use crate::device::gpu::{Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::unary::CHUNK;
use crate::ops::inputs::lock_all;
use crate::ops::parts::{Part, ranges};
use crate::ops::{CpuIn, Dense, GpuIn, expect_dtype, same_device};
use crate::shape::Layout;
use crate::tensor::Tensor;

params! {
    #[derive(Default)]
    struct Params {
        count: usize,
        w_offset: usize,
        g_offset: usize,
        s_offset: usize,
        r_offset: usize,
        q_offset: usize,
        rate: f32,
        decay: f32,
        momentum: f32,
        fresh: f32,
        nesterov: bool,
        shrink: f32,
        beta1: f32,
        beta2: f32,
        alpha: f32,
        eps: f32,
        spread: f32,
    }
}
shader!(SHADER: Params = "optim");

/// The rule by which one step changes a parameter w, given its gradient g, as in PyTorch. s, r and q are the optimiser
/// state, 0 at first. The formulas are in `shaders/optim.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum UpdateRule {
    /// Gradient descent without momentum and without optimiser state.
    Plain { rate: f32, decay: f32 },
    /// `fresh` is the share of the gradient that enters the velocity.
    Momentum { rate: f32, decay: f32, momentum: f32, fresh: f32, nesterov: bool },
    /// `rate` is η / (1 − β₁ᵗ) and `spread` is √(1 − β₂ᵗ). `shrink` is AdamW's decay: `shrink · w` is subtracted from w
    /// first.
    Adam { rate: f32, decay: f32, shrink: f32, beta1: f32, beta2: f32, eps: f32, spread: f32 },
    /// RMSprop; without momentum if `momentum` is 0.
    RMSprop { rate: f32, decay: f32, alpha: f32, eps: f32, momentum: f32 },
    /// Adam whose denominator is the largest so far, in a third state tensor (AMSGrad).
    AmsGrad { rate: f32, decay: f32, shrink: f32, beta1: f32, beta2: f32, eps: f32, spread: f32 },
    /// Adagrad.
    Adagrad { rate: f32, decay: f32, eps: f32 },
    /// Adadelta; `alpha` is ρ.
    Adadelta { rate: f32, decay: f32, alpha: f32, eps: f32 },
    /// Lion. `shrink · w` is subtracted from w first.
    Lion { rate: f32, shrink: f32, beta1: f32, beta2: f32 },
}

impl UpdateRule {
    /// Returns how many tensors of optimiser state a parameter has.
    pub(crate) fn state_tensors(self) -> usize {
        match self {
            UpdateRule::Plain { .. } => 0,
            UpdateRule::Momentum { .. } | UpdateRule::Adagrad { .. } | UpdateRule::Lion { .. } => 1,
            UpdateRule::Adam { .. } | UpdateRule::RMSprop { .. } | UpdateRule::Adadelta { .. } => 2,
            UpdateRule::AmsGrad { .. } => 3,
        }
    }

    fn entry(self) -> &'static str {
        match self {
            UpdateRule::Plain { .. } => "plain",
            UpdateRule::Momentum { .. } => "momentum",
            UpdateRule::Adam { .. } => "adam",
            UpdateRule::RMSprop { .. } => "rms_prop",
            UpdateRule::AmsGrad { .. } => "ams_grad",
            UpdateRule::Adagrad { .. } => "adagrad",
            UpdateRule::Adadelta { .. } => "adadelta",
            UpdateRule::Lion { .. } => "lion",
        }
    }

    /// Returns the numbers of the rule as the shader's parameters; the other parameters are 0.
    fn params(self) -> Params {
        let zero = Params::default();
        match self {
            UpdateRule::Plain { rate, decay } => Params { rate, decay, ..zero },
            UpdateRule::Momentum { rate, decay, momentum, fresh, nesterov } => {
                Params { rate, decay, momentum, fresh, nesterov, ..zero }
            }
            UpdateRule::Adam { rate, decay, shrink, beta1, beta2, eps, spread }
            | UpdateRule::AmsGrad { rate, decay, shrink, beta1, beta2, eps, spread } => {
                Params { rate, decay, shrink, beta1, beta2, eps, spread, ..zero }
            }
            UpdateRule::RMSprop { rate, decay, alpha, eps, momentum } => {
                Params { rate, decay, alpha, eps, momentum, ..zero }
            }
            UpdateRule::Adagrad { rate, decay, eps } => Params { rate, decay, eps, ..zero },
            UpdateRule::Adadelta { rate, decay, alpha, eps } => Params { rate, decay, alpha, eps, ..zero },
            UpdateRule::Lion { rate, shrink, beta1, beta2 } => Params { rate, shrink, beta1, beta2, ..zero },
        }
    }

    /// Makes the step of neighbouring elements: from w, its gradient, s, r and q to the new w, s, r and q. A rule without s, r or q
    /// does not read it.
    fn step(self, w: &mut [f32], g: &[f32], [s, r, q]: [&mut [f32]; 3]) {
        let pairs = w.iter_mut().zip(g);
        match self {
            UpdateRule::Plain { rate, decay } => vectorised!(for (w, g) in pairs {
                *w -= rate * (g + decay * *w);
            }),
            UpdateRule::Momentum { rate, decay, momentum, fresh, nesterov } => {
                vectorised!(for ((w, g), s) in pairs.zip(s) {
                    let d = g + decay * *w;
                    *s = momentum * *s + fresh * d;
                    *w -= rate * if nesterov { d + momentum * *s } else { *s };
                })
            }
            UpdateRule::Adam { rate, decay, shrink, beta1, beta2, eps, spread } => {
                vectorised!(for (((w, g), s), r) in pairs.zip(s).zip(r) {
                    *w -= shrink * *w;
                    let d = g + decay * *w;
                    *s = beta1 * *s + (1.0 - beta1) * d;
                    *r = beta2 * *r + (1.0 - beta2) * d * d;
                    *w -= rate * *s / (r.sqrt() / spread + eps);
                })
            }
            UpdateRule::RMSprop { rate, decay, alpha, eps, momentum } => {
                vectorised!(for (((w, g), s), r) in pairs.zip(s).zip(r) {
                    let d = g + decay * *w;
                    *r = alpha * *r + (1.0 - alpha) * d * d;
                    *s = momentum * *s + d / (r.sqrt() + eps);
                    *w -= rate * *s;
                })
            }
            UpdateRule::AmsGrad { rate, decay, shrink, beta1, beta2, eps, spread } => {
                vectorised!(for ((((w, g), s), r), q) in pairs.zip(s).zip(r).zip(q) {
                    *w -= shrink * *w;
                    let d = g + decay * *w;
                    *s = beta1 * *s + (1.0 - beta1) * d;
                    *r = beta2 * *r + (1.0 - beta2) * d * d;
                    *q = if *q >= *r { *q } else { *r };
                    *w -= rate * *s / (q.sqrt() / spread + eps);
                })
            }
            UpdateRule::Adagrad { rate, decay, eps } => vectorised!(for ((w, g), s) in pairs.zip(s) {
                let d = g + decay * *w;
                *s += d * d;
                *w -= rate * d / (s.sqrt() + eps);
            }),
            UpdateRule::Adadelta { rate, decay, alpha, eps } => {
                vectorised!(for (((w, g), s), r) in pairs.zip(s).zip(r) {
                    let d = g + decay * *w;
                    *s = alpha * *s + (1.0 - alpha) * d * d;
                    let delta = (*r + eps).sqrt() / (*s + eps).sqrt() * d;
                    *r = alpha * *r + (1.0 - alpha) * delta * delta;
                    *w -= rate * delta;
                })
            }
            UpdateRule::Lion { rate, shrink, beta1, beta2 } => vectorised!(for ((w, g), s) in pairs.zip(s) {
                let d = beta1 * *s + (1.0 - beta1) * g;
                let sign = if d > 0.0 {
                    1.0
                } else if d < 0.0 {
                    -1.0
                } else {
                    d
                };
                *w -= shrink * *w;
                *w -= rate * sign;
                *s = beta2 * *s + (1.0 - beta2) * g;
            }),
        }
    }
}

/// Changes `w` by `rule`. All tensors are dense, of one size and on one device. `state` has as many tensors as the rule
/// needs.
pub(crate) fn optimiser_step(w: &Tensor, g: &Tensor, state: &[Tensor], rule: UpdateRule) -> Result<()> {
    const NAME: &str = "optimiser step";
    let mut all = vec![w, g];
    all.extend(state);
    same_device(NAME, &all)?;
    for tensor in &all {
        expect_dtype(NAME, tensor, DType::F32)?;
        if tensor.elem_count() != w.elem_count() || !tensor.layout().is_contiguous() {
            let detail = "parameters, gradients and optimiser state must be dense and of one size";
            return Err(Error::shapes(NAME, w.shape(), tensor.shape(), detail));
        }
    }
    let shared = (1..all.len()).any(|i| all[..i].iter().any(|t| t.storage().id() == all[i].storage().id()));
    if state.len() != rule.state_tensors() || shared {
        return Err(Error::argument(NAME, "a gradient shares its parameter's elements: copy it first"));
    }
    if w.elem_count() == 0 {
        return Ok(());
    }
    match w.device().backend()? {
        Backend::Cpu(cpu) => cpu.timed(NAME, || on_cpu(w, g, state, rule))?,
        Backend::Gpu(gpu) => on_gpu(gpu, w, g, state, rule)?,
    }
    w.storage().bump();
    Ok(())
}

fn on_cpu(w: &Tensor, g: &Tensor, state: &[Tensor], rule: UpdateRule) -> Result<()> {
    let targets: Vec<&Tensor> = [w].into_iter().chain(state).collect();
    let (read, mut written) = lock_all(&[g], &targets)?;
    let g = CpuIn::<Dense>::new(g, &read)?.slice::<f32>();
    let mut slices = written.iter_mut().zip(targets).map(|(words, t)| {
        let range = t.layout().offset..t.layout().offset + t.elem_count();
        bytemuck::cast_slice_mut::<u32, f32>(&mut words[range])
    });
    let Some(parameters) = slices.next() else { return Ok(()) };
    let pairs = parameters.chunks_mut(CHUNK).zip(g.chunks(CHUNK));
    let none = || -> &mut [f32] { &mut [] };
    match (slices.next(), slices.next(), slices.next()) {
        (Some(s), Some(r), Some(q)) => {
            let all = pairs.zip(s.chunks_mut(CHUNK)).zip(r.chunks_mut(CHUNK)).zip(q.chunks_mut(CHUNK));
            share(all, 1, |((((w, g), s), r), q)| rule.step(w, g, [s, r, q]));
        }
        (Some(s), Some(r), None) => {
            let all = pairs.zip(s.chunks_mut(CHUNK)).zip(r.chunks_mut(CHUNK));
            share(all, 1, |(((w, g), s), r)| rule.step(w, g, [s, r, none()]));
        }
        (Some(s), None, _) => share(pairs.zip(s.chunks_mut(CHUNK)), 1, |((w, g), s)| {
            rule.step(w, g, [s, none(), none()]);
        }),
        (None, ..) => share(pairs, 1, |(w, g)| rule.step(w, g, [none(), none(), none()])),
    }
    Ok(())
}

fn on_gpu(gpu: &Arc<Gpu>, w: &Tensor, g: &Tensor, state: &[Tensor], rule: UpdateRule) -> Result<()> {
    let flat = |tensor: &&Tensor| {
        let line = Layout { offset: tensor.layout().offset, ..Layout::contiguous(&[tensor.elem_count()]) };
        Ok(Part::of(&GpuIn::<Dense>::new(tensor)?.through(&line)))
    };
    let all = [g, w].into_iter().chain(state).collect::<Vec<_>>();
    let all: Vec<Part> = all.iter().map(flat).collect::<Result<_>>()?;
    for range in ranges(gpu, w.elem_count()) {
        let part = |x: &Part| x.narrow(0, range.start, range.len()).bound(gpu);
        let parts: Vec<Part> = all.iter().map(part).collect();
        let offset = |i: usize| parts.get(i).map_or(0, |part| part.layout.offset);
        let params = Params {
            count: range.len(),
            g_offset: offset(0),
            w_offset: offset(1),
            s_offset: offset(2),
            r_offset: offset(3),
            q_offset: offset(4),
            ..rule.params()
        };
        let kernel = Kernel::build(SHADER, rule.entry(), params).input(&parts[0].buffer);
        let kernel = parts[1..].iter().fold(kernel, |kernel, part| kernel.output(&part.buffer));
        gpu.run(kernel.each(params.count))?;
    }
    Ok(())
}
