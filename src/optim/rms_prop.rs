use super::Parameters;
use super::state::OptimizerState;
use super::state_dict::{Settings, StateTensor, check};
use crate::error::Result;
use crate::ops::optim::UpdateRule;

/// RMSprop (Hinton's lectures, 2012), as in PyTorch.
///
/// Each step, for each parameter p with gradient g:
///
/// d ← g + λ p,  v ← α v + (1 − α) d²,  b ← μ b + d / (√v + ε),  p ← p − lr b        (μ: momentum, λ: weight decay)
///
/// A parameter without a gradient is not changed. Parameters in one flat buffer are updated by one dispatch per device.
///
/// # Example
/// ```
/// use anygpu::{Tensor, optim::RMSprop};
///
/// let p = Tensor::ones([1], None)?.requires_grad();
/// let mut optimiser = RMSprop::new(vec![p.clone()], 0.1);
/// p.square()?.sum_all()?.backward()?;
/// optimiser.step()?;
/// assert!((p.item::<f32>()? - 0.0).abs() < 1e-5); // 1 − 0.1 · 2 / √(0.01 · 2²)
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct RMSprop {
    pub(super) state: OptimizerState,
    pub(super) rate: f32,
    alpha: f32,
    eps: f32,
    decay: f32,
    momentum: f32,
}

impl RMSprop {
    /// Creates an RMSprop optimiser with learning rate `lr` (PyTorch's default is 0.01), α = 0.99, ε = 1e-8, no
    /// momentum and no weight decay.
    pub fn new(parameters: impl Into<Parameters>, lr: f32) -> RMSprop {
        let state = OptimizerState::new("RMSprop", parameters);
        RMSprop { state, rate: lr, alpha: 0.99, eps: 1e-8, decay: 0.0, momentum: 0.0 }
    }

    /// Sets α.
    #[must_use]
    pub fn alpha(mut self, alpha: f32) -> RMSprop {
        self.alpha = alpha;
        self
    }

    /// Sets ε.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> RMSprop {
        self.eps = eps;
        self
    }

    /// Sets the momentum μ.
    #[must_use]
    pub fn momentum(mut self, momentum: f32) -> RMSprop {
        self.momentum = momentum;
        self
    }

    /// Sets the weight decay λ.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f32) -> RMSprop {
        self.decay = weight_decay;
        self
    }

    /// Returns the rule of each step, or an error for incompatible settings.
    pub(super) fn rule(&self) -> Result<impl Fn(i32) -> UpdateRule + use<>> {
        check("RMSprop", self)?;
        let RMSprop { rate, alpha, eps, decay, momentum, .. } = *self;
        Ok(move |_| UpdateRule::RMSprop { rate, decay, alpha, eps, momentum })
    }
}

impl Settings for RMSprop {
    const STATE: &'static [StateTensor] =
        &[StateTensor { name: "momentum_buffer", always: false }, StateTensor { name: "square_avg", always: true }];

    fn settings(&self) -> Vec<(&'static str, Vec<f32>)> {
        vec![
            ("lr", vec![self.rate]),
            ("alpha", vec![self.alpha]),
            ("eps", vec![self.eps]),
            ("weight_decay", vec![self.decay]),
            ("momentum", vec![self.momentum]),
        ]
    }

    fn set(&mut self, name: &str, values: &[f32]) {
        match (name, values) {
            ("lr", &[value]) => self.rate = value,
            ("alpha", &[value]) => self.alpha = value,
            ("eps", &[value]) => self.eps = value,
            ("weight_decay", &[value]) => self.decay = value,
            ("momentum", &[value]) => self.momentum = value,
            _ => {}
        }
    }
}
