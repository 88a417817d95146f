use super::Parameters;
use super::state::OptimizerState;
use super::state_dict::{Settings, StateTensor, check};
use crate::error::Result;
use crate::ops::optim::UpdateRule;

/// Stochastic gradient descent with momentum, as in PyTorch.
///
/// Each [`step`](SGD::step), for each parameter p with gradient g:
///
/// d ← g + λ p,  v ← μ v + (1 − τ) d,  p ← p − lr v        (μ: momentum, λ: weight decay, τ: dampening)
///
/// The initial v is the first d. With Nesterov's momentum, p ← p − lr (d + μ v). A parameter without a gradient is not
/// changed, and neither is its v. Parameters in one flat buffer, as [`Module::to`](crate::nn::Module::to) and
/// [`DataParallel`](crate::DataParallel) arrange them, are updated by one dispatch per device.
///
/// # Example
/// ```
/// use anygpu::{Tensor, optim::SGD};
///
/// // The minimum of (p − 3)² is at 3.
/// let p = Tensor::zeros([1], None)?.requires_grad();
/// let mut sgd = SGD::new(vec![p.clone()], 0.1).momentum(0.5);
/// for _ in 0..50 {
///     sgd.zero_grad();
///     let distance = p.add_scalar(-3.0)?;
///     (&distance * &distance)?.sum_all()?.backward()?;
///     sgd.step()?;
/// }
/// assert!((p.to_vec::<f32>()?[0] - 3.0).abs() < 1e-3);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct SGD {
    pub(super) state: OptimizerState,
    pub(super) rate: f32,
    momentum: f32,
    dampening: f32,
    decay: f32,
    nesterov: bool,
}

impl SGD {
    /// Creates an SGD optimiser with learning rate `lr`, without momentum and weight decay. A parameter that occurs
    /// twice is updated once.
    pub fn new(parameters: impl Into<Parameters>, lr: f32) -> SGD {
        let state = OptimizerState::new("SGD", parameters);
        SGD { state, rate: lr, momentum: 0.0, dampening: 0.0, decay: 0.0, nesterov: false }
    }

    /// Sets the momentum μ; the default is 0.
    #[must_use]
    pub fn momentum(mut self, momentum: f32) -> SGD {
        self.momentum = momentum;
        self
    }

    /// Sets the weight decay λ; the default is 0.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f32) -> SGD {
        self.decay = weight_decay;
        self
    }

    /// Sets the dampening τ: the fraction of a gradient that does not enter the velocity. The default is 0.
    #[must_use]
    pub fn dampening(mut self, dampening: f32) -> SGD {
        self.dampening = dampening;
        self
    }

    /// Uses Nesterov's momentum (Sutskever et al., 2013).
    #[must_use]
    pub fn nesterov(mut self) -> SGD {
        self.nesterov = true;
        self
    }

    /// Returns the rule of each step, or an error for incompatible settings.
    pub(super) fn rule(&self) -> Result<impl Fn(i32) -> UpdateRule + use<>> {
        check("SGD", self)?;
        let SGD { rate, momentum, dampening, decay, nesterov, .. } = *self;
        Ok(move |step| match momentum {
            0.0 => UpdateRule::Plain { rate, decay },
            _ => {
                let fresh = if step == 1 { 1.0 } else { 1.0 - dampening };
                UpdateRule::Momentum { rate, decay, momentum, fresh, nesterov }
            }
        })
    }
}

impl Settings for SGD {
    const STATE: &'static [StateTensor] = &[StateTensor { name: "momentum_buffer", always: false }];
    const RESTARTS_WITHOUT_STATE: bool = true;

    fn settings(&self) -> Vec<(&'static str, Vec<f32>)> {
        vec![
            ("lr", vec![self.rate]),
            ("momentum", vec![self.momentum]),
            ("dampening", vec![self.dampening]),
            ("weight_decay", vec![self.decay]),
            ("nesterov", vec![f32::from(u8::from(self.nesterov))]),
        ]
    }

    fn set(&mut self, name: &str, values: &[f32]) {
        match (name, values) {
            ("lr", &[value]) => self.rate = value,
            ("momentum", &[value]) => self.momentum = value,
            ("dampening", &[value]) => self.dampening = value,
            ("weight_decay", &[value]) => self.decay = value,
            ("nesterov", &[value]) => self.nesterov = value != 0.0,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::parameters_onto;
    use crate::{Device, Error, Tensor};

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec().unwrap()
    }

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, values.len(), None).unwrap()
    }

    /// Three parameters, apart or in one flat buffer, and their gradients over three steps (`None`: no part in it).
    fn run(flat: bool, sgd: impl Fn(Vec<Tensor>) -> SGD, skip: Option<usize>) -> Vec<f32> {
        let mut parameters =
            [&[1.0f32, 2.0][..], &[3.0; 70], &[-4.0]].map(|values| tensor(values).requires_grad()).to_vec();
        if flat {
            parameters = parameters_onto(&parameters, &Device::cpu()).unwrap();
        }
        let mut sgd = sgd(parameters.clone());
        for step in 0..3 {
            for (i, parameter) in parameters.iter().enumerate().filter(|(i, _)| skip != Some(*i)) {
                let grad = Tensor::full(parameter.shape(), 0.5 + step as f32 - i as f32, None).unwrap();
                parameter.set_grad(Some(grad));
            }
            sgd.step().unwrap();
            sgd.zero_grad();
        }
        parameters.iter().flat_map(values).collect()
    }

    #[test]
    fn steps_follow_the_formula() {
        // lr 0.1, μ 0.9, λ 0.01, p = 1, g = 0.5, 1.5, 2.5:
        // v = 0.51, p = 0.949; v = 1.96849, p = 0.752151; v = 4.27916251, p = 0.324234749
        let full = run(false, |p| SGD::new(p, 0.1).momentum(0.9).weight_decay(0.01), None);
        assert!((full[0] - 0.324_234_75).abs() < 1e-5, "{}", full[0]);
        // Without momentum and decay: p = 1 − 0.1 · (0.5 + 1.5 + 2.5)
        let plain = run(false, |p| SGD::new(p, 0.1), None);
        assert!((plain[0] - 0.55).abs() < 1e-6, "{}", plain[0]);
    }

    #[test]
    fn flat_parameters_move_as_separate_ones_do() {
        for skip in [None, Some(0), Some(1), Some(2)] {
            let sgd = |p| SGD::new(p, 0.1).momentum(0.9).weight_decay(0.01);
            assert_eq!(run(true, sgd, skip), run(false, sgd, skip), "without a gradient: {skip:?}");
        }
    }

    #[test]
    fn a_parameter_without_gradient_stays_even_under_decay() {
        assert_eq!(run(true, |p| SGD::new(p, 0.1).weight_decay(0.5), Some(0))[..2], [1.0, 2.0]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let matrix = Tensor::zeros([2, 3], None).unwrap();
        let gaps = SGD::new(vec![matrix.t().unwrap().requires_grad()], 0.1).step().unwrap_err().to_string();
        assert!(gaps.contains("view with gaps"), "{gaps}");
        let parameter = matrix.requires_grad();
        parameter.set_grad(Some(tensor(&[1.0; 6])));
        let shapes = SGD::new(vec![parameter], 0.1).step().unwrap_err();
        assert!(matches!(shapes, Error::ShapeMismatch { .. }), "{shapes}");
    }
}
