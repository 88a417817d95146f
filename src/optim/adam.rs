use super::Parameters;
use super::state::OptimizerState;
use super::state_dict::{Settings, StateTensor, check};
use crate::error::Result;
use crate::ops::optim::UpdateRule;

/// Defines Adam and AdamW, which differ in their defaults.
macro_rules! adam {
    ($(#[$doc:meta])* $name:ident, $(#[$new:meta])*, $decay:literal, $decoupled:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            pub(super) state: OptimizerState,
            pub(super) rate: f32,
            betas: [f32; 2],
            eps: f32,
            decay: f32,
            decoupled: bool,
            amsgrad: bool,
        }

        impl $name {
            $(#[$new])*
            pub fn new(parameters: impl Into<Parameters>, lr: f32) -> $name {
                let state = OptimizerState::new(stringify!($name), parameters);
                let (betas, eps, amsgrad) = ([0.9, 0.999], 1e-8, false);
                $name { state, rate: lr, betas, eps, decay: $decay, decoupled: $decoupled, amsgrad }
            }

            /// Sets β₁ and β₂.
            #[must_use]
            pub fn betas(mut self, beta1: f32, beta2: f32) -> $name {
                self.betas = [beta1, beta2];
                self
            }

            /// Sets ε.
            #[must_use]
            pub fn eps(mut self, eps: f32) -> $name {
                self.eps = eps;
                self
            }

            /// Sets the weight decay λ.
            #[must_use]
            pub fn weight_decay(mut self, weight_decay: f32) -> $name {
                self.decay = weight_decay;
                self
            }

            /// Divides by the square root of the largest v so far (AMSGrad; Reddi et al., "On the convergence of Adam
            /// and beyond", 2018): PyTorch's `amsgrad=True`. This needs memory for a third state tensor.
            #[must_use]
            pub fn amsgrad(mut self) -> $name {
                self.amsgrad = true;
                self
            }

            /// Returns the rule of each step, or an error for incompatible settings.
            pub(super) fn rule(&self) -> Result<impl Fn(i32) -> UpdateRule + use<>> {
                check(stringify!($name), self)?;
                let $name { rate, betas: [beta1, beta2], eps, decay, decoupled, amsgrad, .. } = *self;
                let (decay, shrink) = if decoupled { (0.0, rate * decay) } else { (decay, 0.0) };
                Ok(move |step| {
                    let left = |beta: f32| 1.0 - f64::from(beta).powi(step);
                    let rate = (f64::from(rate) / left(beta1)) as f32;
                    let spread = left(beta2).sqrt() as f32;
                    match amsgrad {
                        true => UpdateRule::AmsGrad { rate, decay, shrink, beta1, beta2, eps, spread },
                        false => UpdateRule::Adam { rate, decay, shrink, beta1, beta2, eps, spread },
                    }
                })
            }
        }

        impl Settings for $name {
            const STATE: &'static [StateTensor] = &[
                StateTensor { name: "exp_avg", always: true },
                StateTensor { name: "exp_avg_sq", always: true },
                StateTensor { name: "max_exp_avg_sq", always: false },
            ];

            fn settings(&self) -> Vec<(&'static str, Vec<f32>)> {
                vec![
                    ("lr", vec![self.rate]),
                    ("betas", self.betas.to_vec()),
                    ("eps", vec![self.eps]),
                    ("weight_decay", vec![self.decay]),
                    ("amsgrad", vec![f32::from(u8::from(self.amsgrad))]),
                    ("decoupled_weight_decay", vec![f32::from(u8::from(self.decoupled))]),
                ]
            }

            fn set(&mut self, name: &str, values: &[f32]) {
                match (name, values) {
                    ("lr", &[value]) => self.rate = value,
                    ("betas", &[beta1, beta2]) => self.betas = [beta1, beta2],
                    ("eps", &[value]) => self.eps = value,
                    ("weight_decay", &[value]) => self.decay = value,
                    ("amsgrad", &[value]) => self.amsgrad = value != 0.0,
                    ("decoupled_weight_decay", &[value]) => self.decoupled = value != 0.0,
                    _ => {}
                }
            }
        }
    };
}

adam! {
    /// Adam (Kingma & Ba, 2015), as in PyTorch. Step t, for each parameter p with gradient g:
    ///
    /// m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²,  p ← p − lr · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)
    ///
    /// Weight decay λ adds λ p to g; in [`AdamW`] it subtracts lr λ p from p instead. A parameter without a gradient is
    /// not changed, and neither are its m, v and t. Parameters in one flat buffer are updated by one dispatch per
    /// device.
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
    Adam,
    /// Creates an Adam optimiser with learning rate `lr` (PyTorch's default is 0.001), β = 0.9 and 0.999, ε = 1e-8, and
    /// no weight decay.
    , 0.0, false
}

adam! {
    /// AdamW (Loshchilov & Hutter, 2019): [`Adam`] with decoupled weight decay. The weight decay λ subtracts lr λ p
    /// from each parameter p, and does not change its gradient. As in PyTorch, λ is 0.01 by default.
    ///
    /// # Example
    /// ```
    /// use anygpu::{Tensor, optim::AdamW};
    ///
    /// let p = Tensor::ones([1], None)?.requires_grad();
    /// let mut adamw = AdamW::new(vec![p.clone()], 0.5).weight_decay(0.1);
    /// p.mul(0.0)?.sum_all()?.backward()?; // a gradient of 0: only the decay is left
    /// adamw.step()?;
    /// assert!((p.item::<f32>()? - 0.95).abs() < 1e-6);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    AdamW,
    /// Creates an AdamW optimiser with learning rate `lr` (PyTorch's default is 0.001), β = 0.9 and 0.999, ε = 1e-8,
    /// and a weight decay of 0.01.
    , 0.01, true
}
