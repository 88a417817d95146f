use crate::error::{Error, Result};
use crate::nn::{flat_view, follows};
use crate::ops::optim::{SgdRule, sgd_step};
use crate::tensor::{Tensor, flatten_together};

/// Stochastic gradient descent with momentum, as in PyTorch. Each [`step`](Sgd::step), for each parameter p with
/// gradient g:
///
/// v ← μ v + (g + λ p),  p ← p − lr v        (v starts at 0; μ: momentum, λ: weight decay)
///
/// A parameter without a gradient is left alone, its v too. Parameters that lie in one flat buffer, as
/// [`Module::to`](crate::nn::Module::to) and [`DataParallel`](crate::DataParallel) arrange them, are updated by one
/// dispatch per device.
///
/// # Example
/// ```
/// use anygpu::{Tensor, optim::Sgd};
///
/// // The minimum of (p − 3)² is at 3.
/// let p = Tensor::zeros([1], None)?.requires_grad();
/// let mut sgd = Sgd::new(vec![p.clone()], 0.1).momentum(0.5);
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
pub struct Sgd {
    parameters: Vec<Tensor>,
    rule: SgdRule,
    /// Found at the first step.
    groups: Option<Vec<Group>>,
}

/// Parameters in successive slots of one buffer.
#[derive(Debug)]
struct Group {
    parameters: Vec<Tensor>,
    /// All of them as one 1-D tensor.
    flat: Tensor,
    /// v, laid out as `flat`; made when momentum is first used.
    velocity: Option<Tensor>,
}

impl Sgd {
    /// Plain gradient descent with learning rate `lr`. A parameter that is given twice is updated once.
    pub fn new(parameters: Vec<Tensor>, lr: f32) -> Sgd {
        let rule = SgdRule { rate: lr, momentum: 0.0, decay: 0.0 };
        Sgd { parameters, rule, groups: None }
    }

    /// Sets μ, 0 at first.
    pub fn momentum(mut self, momentum: f32) -> Sgd {
        self.rule.momentum = momentum;
        self
    }

    /// Sets λ, 0 at first.
    pub fn weight_decay(mut self, weight_decay: f32) -> Sgd {
        self.rule.decay = weight_decay;
        self
    }

    /// The learning rate.
    pub fn lr(&self) -> f32 {
        self.rule.rate
    }

    /// Changes the learning rate from the next step on.
    pub fn set_lr(&mut self, lr: f32) {
        self.rule.rate = lr;
    }

    /// Forgets all gradients; [`Tensor::backward`] adds to what is there.
    /// (Not needed with [`DataParallel::train_batch`](crate::DataParallel::train_batch), which starts afresh.)
    pub fn zero_grad(&self) {
        self.parameters.iter().for_each(|parameter| parameter.set_grad(None));
    }

    /// Moves every parameter that has a gradient. Nothing is read back and nothing waited for.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when a parameter is a view with gaps, which cannot be updated in place,
    /// [`Error::ShapeMismatch`] or [`Error::DeviceMismatch`] when a gradient does not fit its parameter, and those of
    /// the device.
    pub fn step(&mut self) -> Result<()> {
        if self.groups.is_none() {
            self.groups = Some(group(&self.parameters)?);
        }
        let rule = self.rule;
        self.groups.iter_mut().flatten().try_for_each(|group| group.step(rule))
    }
}

/// Runs of parameters that lie in successive slots.
fn group(parameters: &[Tensor]) -> Result<Vec<Group>> {
    let mut runs: Vec<Vec<Tensor>> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for parameter in parameters.iter().filter(|parameter| seen.insert(parameter.id())) {
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| follows(last, parameter)) => run.push(parameter.clone()),
            _ => runs.push(vec![parameter.clone()]),
        }
    }
    let group = |parameters: Vec<Tensor>| {
        let gaps = || Error::argument("Sgd", "a parameter is a view with gaps: give the tensor it is a view of");
        let flat = flat_view(&parameters).ok_or_else(gaps)?;
        Ok(Group { parameters, flat, velocity: None })
    };
    runs.into_iter().map(group).collect()
}

impl Group {
    fn step(&mut self, rule: SgdRule) -> Result<()> {
        let grads: Vec<Option<Tensor>> = self.parameters.iter().map(Tensor::grad).collect();
        for (parameter, grad) in self.parameters.iter().zip(&grads) {
            if let Some(grad) = grad.as_ref().filter(|grad| grad.shape() != parameter.shape()) {
                let rule = "a gradient has the shape of its parameter";
                return Err(Error::shapes("Sgd", parameter.shape(), grad.shape(), rule));
            }
        }
        if rule.momentum != 0.0 && self.velocity.is_none() {
            self.velocity = Some(Tensor::zeros(self.flat.shape(), self.flat.device())?);
        }
        let all: Option<Vec<Tensor>> = grads.iter().cloned().collect();
        match all {
            Some(grads) => self.update(0, &self.flat_grad(&grads)?, rule),
            None => self.step_each(&grads, rule),
        }
    }

    /// All gradients, laid out as `flat`. After `DataParallel` they lie so already.
    fn flat_grad(&self, grads: &[Tensor]) -> Result<Tensor> {
        match flat_view(grads) {
            Some(flat) => Ok(flat),
            None => flatten_together(grads)?.narrow(0, 0, self.flat.elem_count()),
        }
    }

    /// The way when some parameters took no part in the loss: those that did, one by one.
    fn step_each(&self, grads: &[Option<Tensor>], rule: SgdRule) -> Result<()> {
        let origin = self.flat.layout().offset;
        for (parameter, grad) in self.parameters.iter().zip(grads) {
            if let Some(grad) = grad {
                let grad = grad.detach().contiguous()?.reshape(grad.elem_count())?;
                self.update(parameter.layout().offset - origin, &grad, rule)?;
            }
        }
        Ok(())
    }

    /// Updates the elements of `flat` from `start` on by the 1-D `grad`.
    fn update(&self, start: usize, grad: &Tensor, rule: SgdRule) -> Result<()> {
        let part = |flat: &Tensor| flat.narrow(0, start, grad.elem_count());
        let velocity = self.velocity.as_ref().map(part).transpose()?;
        sgd_step(&part(&self.flat)?, grad, velocity.as_ref(), rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::nn::flatten_onto;

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec().unwrap()
    }

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, values.len(), None).unwrap()
    }

    /// Three parameters, apart or in one flat buffer, and their gradients over three steps (`None`: no part in it).
    fn run(flat: bool, sgd: impl Fn(Vec<Tensor>) -> Sgd, skip: Option<usize>) -> Vec<f32> {
        let mut parameters =
            [&[1.0f32, 2.0][..], &[3.0; 70], &[-4.0]].map(|values| tensor(values).requires_grad()).to_vec();
        if flat {
            parameters = flatten_onto(&parameters, &Device::cpu()).unwrap();
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
        let full = run(false, |p| Sgd::new(p, 0.1).momentum(0.9).weight_decay(0.01), None);
        assert!((full[0] - 0.324_234_75).abs() < 1e-5, "{}", full[0]);
        // Without momentum and decay: p = 1 − 0.1 · (0.5 + 1.5 + 2.5)
        let plain = run(false, |p| Sgd::new(p, 0.1), None);
        assert!((plain[0] - 0.55).abs() < 1e-6, "{}", plain[0]);
    }

    #[test]
    fn flat_parameters_move_as_separate_ones_do() {
        for skip in [None, Some(0), Some(1), Some(2)] {
            let sgd = |p| Sgd::new(p, 0.1).momentum(0.9).weight_decay(0.01);
            assert_eq!(run(true, sgd, skip), run(false, sgd, skip), "without a gradient: {skip:?}");
        }
    }

    #[test]
    fn a_parameter_without_gradient_stays_even_under_decay() {
        assert_eq!(run(true, |p| Sgd::new(p, 0.1).weight_decay(0.5), Some(0))[..2], [1.0, 2.0]);
    }

    #[test]
    fn flat_parameters_are_one_group_and_duplicates_count_once() {
        let parameters = flatten_onto(&[tensor(&[1.0]), tensor(&[2.0; 65])], &Device::cpu()).unwrap();
        let twice = [parameters.clone(), parameters].concat();
        assert_eq!(group(&twice).unwrap().len(), 1);
        assert_eq!(group(&[tensor(&[1.0]), tensor(&[2.0])]).unwrap().len(), 2);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let matrix = Tensor::zeros([2, 3], None).unwrap();
        let gaps = Sgd::new(vec![matrix.t().unwrap().requires_grad()], 0.1).step().unwrap_err().to_string();
        assert!(gaps.contains("view with gaps"), "{gaps}");
        let parameter = matrix.requires_grad();
        parameter.set_grad(Some(tensor(&[1.0; 6])));
        let shapes = Sgd::new(vec![parameter], 0.1).step().unwrap_err();
        assert!(matches!(shapes, Error::ShapeMismatch { .. }), "{shapes}");
    }
}
