use super::Parameters;
use super::state::OptimizerState;
use super::state_dict::{Settings, StateTensor, check};
use crate::error::Result;
use crate::ops::optim::UpdateRule;

/// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023).
///
/// Each step, for each parameter p with gradient g:
///
/// p ← p − lr λ p,  p ← p − lr · sign(β₁ m + (1 − β₁) g),  m ← β₂ m + (1 − β₂) g        (λ: weight decay)
///
/// Every element of a parameter moves by the learning rate, so the rate is usually three to ten times smaller than with
/// AdamW. A parameter without a gradient is not changed, and neither is its m. Parameters in one flat buffer are
/// updated by one dispatch per device.
///
/// # Example
/// ```
/// use anygpu::{Tensor, optim::Lion};
///
/// let p = Tensor::new([1.0, -3.0], None)?.requires_grad();
/// let mut lion = Lion::new(vec![p.clone()], 0.25);
/// p.square()?.sum_all()?.backward()?;
/// lion.step()?;
/// assert_eq!(p.to_vec::<f32>()?, [0.75, -2.75]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct Lion {
    pub(super) state: OptimizerState,
    pub(super) rate: f32,
    betas: [f32; 2],
    decay: f32,
}

impl Lion {
    /// Creates a Lion optimiser with learning rate `lr` (the paper's default is 0.0001), β = 0.9 and 0.99, and no
    /// weight decay.
    pub fn new(parameters: impl Into<Parameters>, lr: f32) -> Lion {
        let state = OptimizerState::new("Lion", parameters);
        Lion { state, rate: lr, betas: [0.9, 0.99], decay: 0.0 }
    }

    /// Sets β₁ and β₂.
    #[must_use]
    pub fn betas(mut self, beta1: f32, beta2: f32) -> Lion {
        self.betas = [beta1, beta2];
        self
    }

    /// Sets the weight decay λ.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f32) -> Lion {
        self.decay = weight_decay;
        self
    }

    /// Returns the rule of each step, or an error for incompatible settings.
    pub(super) fn rule(&self) -> Result<impl Fn(i32) -> UpdateRule + use<>> {
        check("Lion", self)?;
        let Lion { rate, betas: [beta1, beta2], decay, .. } = *self;
        Ok(move |_| UpdateRule::Lion { rate, shrink: rate * decay, beta1, beta2 })
    }
}

impl Settings for Lion {
    const STATE: &'static [StateTensor] = &[StateTensor { name: "exp_avg", always: true }];

    fn settings(&self) -> Vec<(&'static str, Vec<f32>)> {
        vec![("lr", vec![self.rate]), ("betas", self.betas.to_vec()), ("weight_decay", vec![self.decay])]
    }

    fn set(&mut self, name: &str, values: &[f32]) {
        match (name, values) {
            ("lr", &[value]) => self.rate = value,
            ("betas", &[beta1, beta2]) => self.betas = [beta1, beta2],
            ("weight_decay", &[value]) => self.decay = value,
            _ => {}
        }
    }
}
