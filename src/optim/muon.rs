use super::Parameters;
use super::state::{OptimizerState, ParameterBucket, Rule};
use super::state_dict::{Settings, StateTensor, check};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::autocast;
use crate::ops::inplace::copy_;
use crate::ops::optim::{UpdateRule, optimiser_step};
use crate::tensor::Tensor;

const NAME: &str = "Muon";

/// Muon (Jordan et al., 2024), as in PyTorch: momentum with an orthogonalised direction, for the matrices of hidden
/// layers.
///
/// Each step, for each parameter `p: [A, B]` with gradient g:
///
/// m ← μ m + (1 − μ) g,  u ← μ m + (1 − μ) g with Nesterov's momentum, else m,  p ← p − lr λ p − lr · r · O(u)
///
/// (μ: momentum, λ: weight decay, r: see [`MuonRate`].) O(u) has approximately the singular vectors of u, and singular
/// values near 1. It is the result of five Newton–Schulz iterations `X ← a X + (b X Xᵀ + c (X Xᵀ)²) X` on u divided by
/// its norm, in bf16 as in PyTorch.
///
/// It takes matrices only. Give biases, norms, embeddings and the last layer to another optimiser, such as
/// [`AdamW`](super::AdamW), and step both. A parameter without a gradient is not changed, and neither is its m.
///
/// # Example
/// ```
/// use anygpu::Tensor;
/// use anygpu::nn::{Linear, Module};
/// use anygpu::optim::{AdamW, Muon};
///
/// let layer = Linear::new(4, 3)?;
/// let (matrices, others) = layer.parameters().into_iter().partition::<Vec<_>, _>(|p| p.rank() == 2);
/// let (mut muon, mut adamw) = (Muon::new(matrices, 0.02), AdamW::new(others, 0.001));
/// layer.forward(&Tensor::rand([5, 4], None)?)?.square()?.mean_all()?.backward()?;
/// muon.step()?;
/// adamw.step()?;
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct Muon {
    pub(super) state: OptimizerState,
    pub(super) rate: f32,
    options: Options,
}

/// What a step depends on beside its rate.
#[derive(Clone, Copy, Debug)]
struct Options {
    decay: f32,
    momentum: f32,
    nesterov: bool,
    coefficients: [f32; 3],
    eps: f32,
    iterations: usize,
    adjust: MuonRate,
}

/// How the learning rate of [`Muon`] depends on the shape `[A, B]` of a parameter: PyTorch's `adjust_lr_fn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MuonRate {
    /// The rate times √max(1, A / B): `"original"`, the default.
    #[default]
    Original,
    /// The rate times 0.2 √max(A, B), so that AdamW's learning rate and weight decay are suitable: `"match_rms_adamw"`.
    MatchRmsAdamW,
    /// The rate times √(A / B): `"spectral_unclamped"`.
    SpectralUnclamped,
}

impl MuonRate {
    const ALL: [MuonRate; 3] = [MuonRate::Original, MuonRate::MatchRmsAdamW, MuonRate::SpectralUnclamped];

    fn ratio(self, rows: usize, columns: usize) -> f32 {
        let (a, b) = (rows as f64, columns as f64);
        let ratio = match self {
            MuonRate::Original => (a / b).max(1.0).sqrt(),
            MuonRate::MatchRmsAdamW => 0.2 * a.max(b).sqrt(),
            MuonRate::SpectralUnclamped => (a / b).sqrt(),
        };
        ratio as f32
    }
}

impl Muon {
    /// Creates a Muon optimiser with learning rate `lr` (PyTorch's default is 0.001), a weight decay of 0.1, Nesterov's
    /// momentum of 0.95, and five iterations with the coefficients 3.4445, −4.775 and 2.0315.
    pub fn new(parameters: impl Into<Parameters>, lr: f32) -> Muon {
        let options = Options {
            decay: 0.1,
            momentum: 0.95,
            nesterov: true,
            coefficients: [3.4445, -4.775, 2.0315],
            eps: 1e-7,
            iterations: 5,
            adjust: MuonRate::default(),
        };
        Muon { state: OptimizerState::new(NAME, parameters), rate: lr, options }
    }

    /// Sets the weight decay λ.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f32) -> Muon {
        self.options.decay = weight_decay;
        self
    }

    /// Sets the momentum μ.
    #[must_use]
    pub fn momentum(mut self, momentum: f32) -> Muon {
        self.options.momentum = momentum;
        self
    }

    /// Sets whether Nesterov's momentum is used. The default is true.
    #[must_use]
    pub fn nesterov(mut self, nesterov: bool) -> Muon {
        self.options.nesterov = nesterov;
        self
    }

    /// Sets the coefficients a, b and c of the iterations.
    #[must_use]
    pub fn ns_coefficients(mut self, a: f32, b: f32, c: f32) -> Muon {
        self.options.coefficients = [a, b, c];
        self
    }

    /// Sets the smallest norm by which a direction is divided.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> Muon {
        self.options.eps = eps;
        self
    }

    /// Sets the number of iterations, less than 100. The default is 5.
    #[must_use]
    pub fn ns_steps(mut self, iterations: usize) -> Muon {
        self.options.iterations = iterations;
        self
    }

    /// Sets how the learning rate depends on the shape of a parameter.
    #[must_use]
    pub fn adjust_lr(mut self, rate: MuonRate) -> Muon {
        self.options.adjust = rate;
        self
    }

    /// Returns the rule of each step, or an error for settings and parameters that PyTorch refuses.
    pub(super) fn rule(&self) -> Result<Orthogonal> {
        check(NAME, self)?;
        if self.options.iterations >= 100 {
            return Err(Error::argument(
                NAME,
                format!("ns_steps is {}, and must be less than 100", self.options.iterations),
            ));
        }
        if let Some((i, parameter)) = self.state.parameters().iter().enumerate().find(|(_, p)| p.rank() != 2) {
            let detail = format!(
                "parameter {i} has the shape {:?}, and this optimiser takes matrices only: give it those of two dimensions, and the \
                 others to AdamW",
                parameter.shape()
            );
            return Err(Error::argument(NAME, detail));
        }
        Ok(Orthogonal { rate: self.rate, options: self.options })
    }
}

/// The rule of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orthogonal {
    rate: f32,
    options: Options,
}

/// What a step writes: the number of the parameter in its bucket, its new m, and the direction.
pub(super) struct Turn {
    parameter: usize,
    momentum: Tensor,
    direction: Tensor,
}

impl Rule for Orthogonal {
    type Update = Turn;

    fn state_tensors(&self) -> usize {
        1
    }

    fn updates(&self, bucket: &ParameterBucket) -> Result<Vec<Turn>> {
        let views = bucket.state_views()?;
        let turn = |(parameter, p): (usize, &Tensor)| {
            let grad = p.grad()?;
            Some(self.turn(parameter, &grad, &views[0][parameter]))
        };
        bucket.parameters.iter().enumerate().filter_map(turn).collect()
    }

    fn write(&self, bucket: &mut ParameterBucket, updates: Vec<Turn>) -> Result<()> {
        let views = bucket.state_views()?;
        for Turn { parameter, momentum, direction } in updates {
            copy_(&views[0][parameter], &momentum)?;
            let rule = UpdateRule::Plain { rate: self.rate, decay: self.options.decay };
            optimiser_step(&bucket.parameters[parameter].detach(), &direction, &[], rule)?;
            bucket.steps[parameter] += 1;
        }
        Ok(())
    }
}

impl Orthogonal {
    fn turn(&self, parameter: usize, grad: &Tensor, momentum: &Tensor) -> Result<Turn> {
        let grad = grad.detach().to_dtype(DType::F32)?;
        let momentum = between(momentum, &grad, 1.0 - self.options.momentum)?;
        let update =
            if self.options.nesterov { between(&grad, &momentum, self.options.momentum)? } else { momentum.clone() };
        let ratio = self.options.adjust.ratio(grad.shape()[0], grad.shape()[1]);
        // Products are bf16 as they are written here, also within a user's autocast.
        let direction = autocast(DType::F32, || self.orthogonal(&update))?;
        Ok(Turn { parameter, momentum, direction: direction.to_dtype(DType::F32)?.mul(ratio)?.contiguous()? })
    }

    /// Returns the Newton–Schulz iterations of a matrix, rounded to bf16 where PyTorch rounds.
    fn orthogonal(&self, update: &Tensor) -> Result<Tensor> {
        let [a, b, c] = self.options.coefficients;
        let rounded = |x: Tensor| x.to_dtype(DType::BF16);
        let wide = |x: &Tensor| x.to_dtype(DType::F32);
        let tall = update.shape()[0] > update.shape()[1];
        let x = if tall { update.t()?.contiguous()? } else { update.clone() };
        let x = wide(&rounded(x)?)?;
        let norm = wide(&rounded(x.norm_all(2.0)?)?)?.clamp(Some(self.options.eps), None)?;
        let mut x = rounded(x.div(&norm)?)?;
        for _ in 0..self.options.iterations {
            let gram = rounded(x.matmul_f32(&x.t()?)?)?;
            let square = gram.matmul_f32(&gram)?;
            let factor = rounded(wide(&gram)?.mul(b)?.add(&square.mul(c)?)?)?;
            x = rounded(wide(&x)?.mul(a)?.add(&factor.matmul_f32(&x)?)?)?;
        }
        if tall { x.t() } else { Ok(x) }
    }
}

/// Returns `a + weight (b − a)`, rounded as PyTorch's `lerp`.
fn between(a: &Tensor, b: &Tensor, weight: f32) -> Result<Tensor> {
    let apart = b.sub(a)?;
    if weight < 0.5 { a.add(&apart.mul(weight)?) } else { b.sub(&apart.mul(1.0 - weight)?) }
}

impl Settings for Muon {
    const STATE: &'static [StateTensor] = &[StateTensor { name: "momentum_buffer", always: true }];

    fn settings(&self) -> Vec<(&'static str, Vec<f32>)> {
        let adjust = MuonRate::ALL.iter().position(|rate| *rate == self.options.adjust).unwrap_or(0);
        vec![
            ("lr", vec![self.rate]),
            ("weight_decay", vec![self.options.decay]),
            ("momentum", vec![self.options.momentum]),
            ("nesterov", vec![f32::from(u8::from(self.options.nesterov))]),
            ("ns_coefficients", self.options.coefficients.to_vec()),
            ("eps", vec![self.options.eps]),
            ("ns_steps", vec![self.options.iterations as f32]),
            ("adjust_lr_fn", vec![adjust as f32]),
        ]
    }

    fn set(&mut self, name: &str, values: &[f32]) {
        match (name, values) {
            ("lr", &[value]) => self.rate = value,
            ("weight_decay", &[value]) => self.options.decay = value,
            ("momentum", &[value]) => self.options.momentum = value,
            ("nesterov", &[value]) => self.options.nesterov = value != 0.0,
            ("ns_coefficients", &[a, b, c]) => self.options.coefficients = [a, b, c],
            ("eps", &[value]) => self.options.eps = value,
            ("ns_steps", &[value]) => self.options.iterations = value as usize,
            ("adjust_lr_fn", &[value]) => {
                self.options.adjust = MuonRate::ALL.get(value as usize).copied().unwrap_or_default()
            }
            _ => {}
        }
    }
}
