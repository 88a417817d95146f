use super::Parameters;
use super::state::OptimizerState;
use super::state_dict::{Settings, StateTensor, check};
use crate::error::Result;
use crate::ops::optim::UpdateRule;

/// Adadelta (Zeiler, 2012), as in PyTorch.
///
/// Each step, for each parameter p with gradient g:
///
/// d ← g + λ p,  v ← ρ v + (1 − ρ) d²,  δ ← √(u + ε) / √(v + ε) · d,  u ← ρ u + (1 − ρ) δ²,  p ← p − lr δ        (λ: weight decay)
///
/// A parameter without a gradient is not changed, and neither are its v and u. Parameters in one flat buffer are
/// updated by one dispatch per device.
///
/// # Example
/// ```
/// use anygpu::{Tensor, optim::Adadelta};
///
/// let p = Tensor::ones([1], None)?.requires_grad();
/// let mut adadelta = Adadelta::new(vec![p.clone()], 1.0);
/// p.square()?.sum_all()?.backward()?;
/// adadelta.step()?;
/// assert!((p.item::<f32>()? - (1.0 - 1e-3 / 0.1f32.sqrt())).abs() < 1e-5); // √ε / √(0.1 · 2²) · 2
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct Adadelta {
    pub(super) state: OptimizerState,
    pub(super) rate: f32,
    rho: f32,
    decay: f32,
    eps: f32,
}

impl Adadelta {
    /// Creates an Adadelta optimiser with learning rate `lr` (PyTorch's default is 1), ρ = 0.9, ε = 1e-6 and no weight
    /// decay.
    pub fn new(parameters: impl Into<Parameters>, lr: f32) -> Adadelta {
        let state = OptimizerState::new("Adadelta", parameters);
        Adadelta { state, rate: lr, rho: 0.9, decay: 0.0, eps: 1e-6 }
    }

    /// Sets ρ, the share of the earlier averages.
    #[must_use]
    pub fn rho(mut self, rho: f32) -> Adadelta {
        self.rho = rho;
        self
    }

    /// Sets the weight decay λ.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f32) -> Adadelta {
        self.decay = weight_decay;
        self
    }

    /// Sets ε.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> Adadelta {
        self.eps = eps;
        self
    }

    /// Returns the rule of each step, or an error for incompatible settings.
    pub(super) fn rule(&self) -> Result<impl Fn(i32) -> UpdateRule + use<>> {
        check("Adadelta", self)?;
        let Adadelta { rate, rho, decay, eps, .. } = *self;
        Ok(move |_| UpdateRule::Adadelta { rate, decay, alpha: rho, eps })
    }
}

impl Settings for Adadelta {
    const STATE: &'static [StateTensor] =
        &[StateTensor { name: "square_avg", always: true }, StateTensor { name: "acc_delta", always: true }];

    fn settings(&self) -> Vec<(&'static str, Vec<f32>)> {
        vec![
            ("lr", vec![self.rate]),
            ("rho", vec![self.rho]),
            ("eps", vec![self.eps]),
            ("weight_decay", vec![self.decay]),
        ]
    }

    fn set(&mut self, name: &str, values: &[f32]) {
        match (name, values) {
            ("lr", &[value]) => self.rate = value,
            ("rho", &[value]) => self.rho = value,
            ("eps", &[value]) => self.eps = value,
            ("weight_decay", &[value]) => self.decay = value,
            _ => {}
        }
    }
}
