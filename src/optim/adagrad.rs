use super::Parameters;
use super::state::OptimizerState;
use super::state_dict::{Settings, StateTensor, check};
use crate::error::Result;
use crate::ops::optim::UpdateRule;

/// Adagrad (Duchi et al., 2011), as in PyTorch.
///
/// Step t, for each parameter p with gradient g:
///
/// d ← g + λ p,  s ← s + d²,  p ← p − lr / (1 + (t − 1) η) · d / (√s + ε)        (λ: weight decay, η: decay of the rate)
///
/// A parameter without a gradient is not changed, and neither are its s and t. Parameters in one flat buffer are
/// updated by one dispatch per device.
///
/// # Example
/// ```
/// use anygpu::{Tensor, optim::Adagrad};
///
/// let p = Tensor::ones([1], None)?.requires_grad();
/// let mut adagrad = Adagrad::new(vec![p.clone()], 0.25);
/// p.square()?.sum_all()?.backward()?;
/// adagrad.step()?;
/// assert!((p.item::<f32>()? - 0.75).abs() < 1e-6); // 1 − 0.25 · 2 / √2²
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct Adagrad {
    pub(super) state: OptimizerState,
    pub(super) rate: f32,
    rate_decay: f32,
    decay: f32,
    eps: f32,
}

impl Adagrad {
    /// Creates an Adagrad optimiser with learning rate `lr` (PyTorch's default is 0.01), ε = 1e-10, no decay of the
    /// learning rate and no weight decay.
    pub fn new(parameters: impl Into<Parameters>, lr: f32) -> Adagrad {
        let state = OptimizerState::new("Adagrad", parameters);
        Adagrad { state, rate: lr, rate_decay: 0.0, decay: 0.0, eps: 1e-10 }
    }

    /// Sets the decay η of the learning rate.
    #[must_use]
    pub fn lr_decay(mut self, lr_decay: f32) -> Adagrad {
        self.rate_decay = lr_decay;
        self
    }

    /// Sets the weight decay λ.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f32) -> Adagrad {
        self.decay = weight_decay;
        self
    }

    /// Sets ε.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> Adagrad {
        self.eps = eps;
        self
    }

    /// Returns the rule of each step, or an error for incompatible settings.
    pub(super) fn rule(&self) -> Result<impl Fn(i32) -> UpdateRule + use<>> {
        check("Adagrad", self)?;
        let Adagrad { rate, rate_decay, decay, eps, .. } = *self;
        Ok(move |step: i32| {
            let slowed = 1.0 + f64::from(step - 1) * f64::from(rate_decay);
            UpdateRule::Adagrad { rate: (f64::from(rate) / slowed) as f32, decay, eps }
        })
    }
}

impl Settings for Adagrad {
    const STATE: &'static [StateTensor] = &[StateTensor { name: "sum", always: true }];

    fn settings(&self) -> Vec<(&'static str, Vec<f32>)> {
        vec![
            ("lr", vec![self.rate]),
            ("lr_decay", vec![self.rate_decay]),
            ("eps", vec![self.eps]),
            ("weight_decay", vec![self.decay]),
        ]
    }

    fn set(&mut self, name: &str, values: &[f32]) {
        match (name, values) {
            ("lr", &[value]) => self.rate = value,
            ("lr_decay", &[value]) => self.rate_decay = value,
            ("eps", &[value]) => self.eps = value,
            ("weight_decay", &[value]) => self.decay = value,
            _ => {}
        }
    }
}
