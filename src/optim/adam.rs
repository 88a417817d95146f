use super::Parameters;
use super::state::OptimizerState;
use super::state_dict::{Settings, StateTensor, check};
use crate::error::Result;
use crate::ops::optim::UpdateRule;

/// Adam (Kingma & Ba, 2015) and AdamW, which decouples the weight decay from the gradient (Loshchilov & Hutter, 2019),
/// as in PyTorch. Step t, for each parameter p with gradient g:
///
/// m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²,  p ← p − lr · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)
///
/// Weight decay λ adds λ p to g; in AdamW it subtracts lr λ p from p instead. A parameter without a gradient is not
/// changed, nor are its m, v and t. Parameters in one flat buffer are updated by one dispatch per device.
///
/// # Example
/// ```
/// use anygpu::{Tensor, optim::Adam};
///
/// // The minimum of (p − 3)² is at 3.
/// let p = Tensor::zeros([1], None)?.requires_grad();
/// let mut adam = Adam::new(vec![p.clone()], 0.5);
/// for _ in 0..100 {
///     adam.zero_grad();
///     p.sub(3.0)?.square()?.sum_all()?.backward()?;
///     adam.step()?;
/// }
/// assert!((p.item::<f32>()? - 3.0).abs() < 0.05);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct Adam {
    pub(super) state: OptimizerState,
    pub(super) rate: f32,
    betas: [f32; 2],
    eps: f32,
    decay: f32,
    decoupled: bool,
}

impl Adam {
    /// Creates Adam with learning rate `lr` (PyTorch's default is 0.001), β = 0.9 and 0.999, ε = 1e-8, and no weight
    /// decay.
    pub fn new(parameters: impl Into<Parameters>, lr: f32) -> Adam {
        let state = OptimizerState::new("Adam", parameters);
        Adam { state, rate: lr, betas: [0.9, 0.999], eps: 1e-8, decay: 0.0, decoupled: false }
    }

    /// Creates AdamW: like [`Adam::new`], with a decoupled weight decay of 0.01.
    pub fn decoupled(parameters: impl Into<Parameters>, lr: f32) -> Adam {
        Adam { decay: 0.01, decoupled: true, ..Adam::new(parameters, lr) }
    }

    /// Sets β₁ and β₂.
    #[must_use]
    pub fn betas(mut self, beta1: f32, beta2: f32) -> Adam {
        self.betas = [beta1, beta2];
        self
    }

    /// Sets ε.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> Adam {
        self.eps = eps;
        self
    }

    /// Sets the weight decay λ.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f32) -> Adam {
        self.decay = weight_decay;
        self
    }

    /// Returns the rule of each step, or an error for settings that do not go together.
    pub(super) fn rule(&self) -> Result<impl Fn(i32) -> UpdateRule + use<>> {
        check("Adam", self)?;
        let Adam { rate, betas: [beta1, beta2], eps, decay, decoupled, .. } = *self;
        let (decay, shrink) = if decoupled { (0.0, rate * decay) } else { (decay, 0.0) };
        Ok(move |step| {
            let left = |beta: f32| 1.0 - f64::from(beta).powi(step);
            let rate = (f64::from(rate) / left(beta1)) as f32;
            UpdateRule::Adam { rate, decay, shrink, beta1, beta2, eps, spread: left(beta2).sqrt() as f32 }
        })
    }
}

impl Settings for Adam {
    const STATE: &'static [StateTensor] =
        &[StateTensor { name: "exp_avg", always: true }, StateTensor { name: "exp_avg_sq", always: true }];

    fn settings(&self) -> Vec<(&'static str, Vec<f32>)> {
        vec![
            ("lr", vec![self.rate]),
            ("betas", self.betas.to_vec()),
            ("eps", vec![self.eps]),
            ("weight_decay", vec![self.decay]),
            ("decoupled_weight_decay", vec![f32::from(u8::from(self.decoupled))]),
        ]
    }

    fn set(&mut self, name: &str, values: &[f32]) {
        match (name, values) {
            ("lr", &[value]) => self.rate = value,
            ("betas", &[beta1, beta2]) => self.betas = [beta1, beta2],
            ("eps", &[value]) => self.eps = value,
            ("weight_decay", &[value]) => self.decay = value,
            ("decoupled_weight_decay", &[value]) => self.decoupled = value != 0.0,
            _ => {}
        }
    }
}
