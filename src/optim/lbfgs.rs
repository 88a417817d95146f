use std::collections::{BTreeMap, HashSet, VecDeque};

use super::state::{OptimizerState, some_gradient};
use super::state_dict::{GROUP, Settings, StateTensor, check, refused, saved_settings};
use super::strong_wolfe::{Limits, Point, strong_wolfe};
use super::{Optimizer, Parameters};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{StateDict, moved};
use crate::ops::inplace::copy_;
use crate::ops::{cat, duplicate};
use crate::tensor::Tensor;

const NAME: &str = "LBFGS";

/// PyTorch's names in `state.0`, up to the first dot. `al` belongs to one iteration only.
const KNOWN: [&str; 11] =
    ["func_evals", "n_iter", "d", "t", "prev_flat_grad", "prev_loss", "H_diag", "al", "old_dirs", "old_stps", "ro"];

/// L-BFGS (Liu & Nocedal, 1989), as in PyTorch: a quasi-Newton method for losses without noise, such as the loss of all
/// samples.
///
/// A step makes up to `max_iter` iterations. Each iteration moves along the gradient times an approximation of the
/// inverse Hessian. The approximation comes from the changes of the gradient in the last `history_size` iterations. A
/// step computes the loss several times. It therefore takes a function that clears the gradients, computes the loss,
/// calls `backward` on it and returns it. With [`DataParallel`](crate::DataParallel),
/// [`train_batch`](crate::DataParallel::train_batch) does all of this. Without a line search, an iteration moves by the
/// learning rate; [`strong_wolfe`](LBFGS::strong_wolfe) searches for the step length.
///
/// The parameters are treated as one vector. [`ParamGroups`](super::ParamGroups) and [`GradScaler`](super::GradScaler)
/// do not take this optimiser. It computes on the device of the first parameter, and needs memory for at most
/// `2 history_size + 3` times the parameters. A parameter without a gradient counts as one with a gradient of zeros.
///
/// # Example
/// ```
/// use anygpu::Tensor;
/// use anygpu::optim::{LBFGS, Optimizer};
///
/// // Rosenbrock's valley, whose lowest point is (1, 1).
/// let p = Tensor::new([-1.0, 1.5], None)?.requires_grad();
/// let mut lbfgs = LBFGS::new(vec![p.clone()], 1.0).strong_wolfe();
/// for _ in 0..3 {
///     lbfgs.step(|| {
///         p.set_grad(None);
///         let (x, y) = (p.select(0, 0)?, p.select(0, 1)?);
///         let loss = y.sub(&x.square()?)?.square()?.mul(100.0)?.add(&x.neg()?.add(1.0)?.square()?)?;
///         loss.backward()?;
///         Ok(loss)
///     })?;
/// }
/// assert!(p.to_vec::<f32>()?.iter().all(|x| (x - 1.0).abs() < 1e-2));
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct LBFGS {
    pub(super) state: OptimizerState,
    pub(super) rate: f32,
    max_iter: usize,
    max_eval: Option<usize>,
    tolerance_grad: f32,
    tolerance_change: f32,
    history: usize,
    line_search: bool,
    memory: Memory,
}

/// The memory of earlier iterations.
#[derive(Clone, Debug, Default)]
struct Memory {
    iterations: u64,
    evaluations: u64,
    last: Option<Iteration>,
    /// The oldest first.
    changes: VecDeque<Change>,
    /// The scale of the first approximation.
    diagonal: f64,
}

/// The last iteration.
#[derive(Clone, Debug)]
struct Iteration {
    direction: Tensor,
    step: f64,
    /// The gradient and the loss before it.
    gradient: Tensor,
    loss: f64,
}

/// What an iteration changed.
#[derive(Clone, Debug)]
struct Change {
    gradient: Tensor,
    place: Tensor,
    /// One divided by the product of both.
    inverse: f64,
}

fn dot(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.mul(b)?.sum_all()
}

fn read(scalar: &Tensor) -> Result<f64> {
    Ok(f64::from(scalar.to_dtype(DType::F32)?.item::<f32>()?))
}

fn largest(x: &Tensor) -> Result<f64> {
    read(&x.abs()?.max_all()?)
}

impl LBFGS {
    /// Creates an L-BFGS optimiser with learning rate `lr` (PyTorch's default is 1) and PyTorch's other defaults.
    ///
    /// These are at most 20 iterations per step, a history of 100 iterations, a tolerance of 1e-7 for gradients and of
    /// 1e-9 for changes, and no line search.
    pub fn new(parameters: impl Into<Parameters>, lr: f32) -> LBFGS {
        LBFGS {
            state: OptimizerState::new(NAME, parameters),
            rate: lr,
            max_iter: 20,
            max_eval: None,
            tolerance_grad: 1e-7,
            tolerance_change: 1e-9,
            history: 100,
            line_search: false,
            memory: Memory::default(),
        }
    }

    /// Sets the maximum number of iterations of a step. The default is 20.
    #[must_use]
    pub fn max_iter(mut self, iterations: usize) -> LBFGS {
        self.max_iter = iterations;
        self
    }

    /// Sets the maximum number of evaluations of the loss in a step. The default is 1.25 ·
    /// [`max_iter`](LBFGS::max_iter).
    #[must_use]
    pub fn max_eval(mut self, evaluations: usize) -> LBFGS {
        self.max_eval = Some(evaluations);
        self
    }

    /// Sets the gradient tolerance: a step ends if the absolute value of every element of the gradient is at most this.
    /// The default is 1e-7.
    #[must_use]
    pub fn tolerance_grad(mut self, tolerance: f32) -> LBFGS {
        self.tolerance_grad = tolerance;
        self
    }

    /// Sets the change of the loss and of parameters below which a step ends. The default is 1e-9.
    #[must_use]
    pub fn tolerance_change(mut self, tolerance: f32) -> LBFGS {
        self.tolerance_change = tolerance;
        self
    }

    /// Sets the number of iterations from which the Hessian is approximated, at least 1. The default is 100.
    #[must_use]
    pub fn history_size(mut self, iterations: usize) -> LBFGS {
        self.history = iterations;
        self
    }

    /// Searches for a step length that meets the strong Wolfe conditions in each iteration: PyTorch's
    /// `line_search_fn="strong_wolfe"`. The search starts with the learning rate.
    #[must_use]
    pub fn strong_wolfe(mut self) -> LBFGS {
        self.line_search = true;
        self
    }

    /// Makes up to [`max_iter`](LBFGS::max_iter) iterations.
    ///
    /// Each call of `loss` must recompute the loss and the gradients, and return the loss. Returns the loss before the
    /// step.
    ///
    /// # Errors
    /// The errors of `loss`; [`Error::InvalidArgument`] if `loss` does not return a scalar, and for the settings and
    /// the parameters that [`SGD::step`](super::SGD::step) refuses; errors of the device. On error, parameters and
    /// state are as before the step.
    pub fn step(&mut self, mut loss: impl FnMut() -> Result<Tensor>) -> Result<Tensor> {
        check(NAME, self)?;
        if self.history == 0 {
            return Err(Error::argument(NAME, "history_size is 0, and must be at least 1"));
        }
        self.state.check_parameters()?;
        let before = loss()?;
        let (first, start, mut memory) = (value(&before)?, self.place()?, self.memory.clone());
        match self.iterate(first, &start, &mut memory, &mut || value(&loss()?)) {
            Ok(()) => self.memory = memory,
            Err(error) => {
                self.go_to(&start).ok(); // the first error is the cause
                return Err(error);
            }
        }
        Ok(before.detach())
    }

    fn iterate(
        &self,
        mut loss: f64,
        start: &Tensor,
        memory: &mut Memory,
        evaluate: &mut dyn FnMut() -> Result<f64>,
    ) -> Result<()> {
        let (rate, change) = (f64::from(self.rate), f64::from(self.tolerance_change));
        let most = self.most_evaluations();
        let optimal = |gradient: &Tensor| Ok::<_, Error>(largest(gradient)? <= f64::from(self.tolerance_grad));
        let (mut place, mut gradient, mut spent) = (start.clone(), self.gradient()?, 1);
        memory.evaluations += 1;
        if optimal(&gradient)? {
            return Ok(());
        }
        for iteration in 1..=self.max_iter {
            memory.iterations += 1;
            let direction = memory.direction(&gradient, self.history)?;
            let mut step = rate;
            if memory.iterations == 1 {
                step *= (1.0 / read(&gradient.abs()?.sum_all()?)?).min(1.0);
            }
            let before = loss;
            let slope = read(&dot(&gradient, &direction)?)?;
            let last = Iteration { direction: direction.clone(), step, gradient: gradient.clone(), loss };
            let last = memory.last.insert(last);
            if slope > -change {
                break;
            }
            let mut is_optimal = false;
            let mut evaluations = 0;
            if self.line_search {
                let point = Point { step: 0.0, loss, gradient, slope };
                let longest = largest(&direction)?;
                let limits = Limits { evaluations: most.saturating_sub(spent), change, longest };
                let mut at = |step: f64| {
                    self.go_to(&place.add(&direction.mul(step as f32)?)?)?;
                    let (loss, gradient) = (evaluate()?, self.gradient()?);
                    let slope = read(&dot(&gradient, &direction)?)?;
                    Ok(Point { step, loss, gradient, slope })
                };
                let found;
                (found, evaluations) = strong_wolfe(&point, step, &limits, &mut at)?;
                Point { step, loss, gradient, .. } = found;
                is_optimal = optimal(&gradient)?;
            }
            last.step = step;
            let moved = direction.mul(step as f32)?;
            place = place.add(&moved)?;
            self.go_to(&place)?;
            if !self.line_search && iteration != self.max_iter {
                loss = evaluate()?;
                gradient = self.gradient()?;
                is_optimal = optimal(&gradient)?;
                evaluations = 1;
            }
            spent += evaluations;
            memory.evaluations += evaluations as u64;
            let ends = iteration == self.max_iter || spent >= most || is_optimal;
            if ends || largest(&moved)? <= change || (loss - before).abs() < change {
                break;
            }
        }
        Ok(())
    }

    fn most_evaluations(&self) -> usize {
        self.max_eval.unwrap_or(self.max_iter.saturating_mul(5) / 4)
    }

    /// Returns the positions of the parameters in a replica; one that occurs twice is updated once.
    fn positions(&self) -> Vec<usize> {
        let mut seen = HashSet::new();
        let all = self.state.parameters().first_replica().iter().enumerate();
        all.filter(|(_, parameter)| seen.insert(parameter.id())).map(|(i, _)| i).collect()
    }

    /// Returns what each parameter of the first replica has, as one vector on the device of the first.
    fn joined(&self, of: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let parameters = self.state.parameters().first_replica();
        let all = self.positions().into_iter().map(|i| of(&parameters[i])).collect::<Result<Vec<_>>>()?;
        let all = moved(&all.iter().collect::<Vec<_>>(), &self.device())?;
        let flat = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.reshape(tensor.elem_count());
        match &all.iter().map(flat).collect::<Result<Vec<_>>>()?[..] {
            [only] => duplicate(only), // which may be the parameter's own elements
            several => cat(&several.iter().collect::<Vec<_>>(), 0),
        }
    }

    fn device(&self) -> Device {
        self.state.parameters().first().map_or_else(Device::cpu, |parameter| parameter.device().clone())
    }

    /// Returns a copy of the parameters.
    fn place(&self) -> Result<Tensor> {
        self.joined(|parameter| Ok(parameter.detach()))
    }

    fn gradient(&self) -> Result<Tensor> {
        some_gradient(NAME, self.state.parameters())?;
        self.joined(|parameter| match parameter.grad() {
            Some(grad) if grad.shape() != parameter.shape() => {
                let rule = "a gradient must have the shape of its parameter";
                Err(Error::shapes(NAME, parameter.shape(), grad.shape(), rule))
            }
            Some(grad) => Ok(grad.detach()),
            None => Tensor::zeros(parameter.shape(), parameter.device()),
        })
    }

    /// Writes the parameters of every replica.
    fn go_to(&self, place: &Tensor) -> Result<()> {
        let positions = self.positions();
        for replica in self.state.parameters().replicas() {
            let mut start = 0;
            for parameter in positions.iter().map(|&i| &replica[i]) {
                let part = place.narrow(0, start, parameter.elem_count())?.reshape(parameter.shape())?;
                copy_(&parameter.detach(), &part.to(parameter.device())?.to_dtype(parameter.dtype())?)?;
                start += parameter.elem_count();
            }
        }
        Ok(())
    }
}

/// Returns a loss as a number.
fn value(loss: &Tensor) -> Result<f64> {
    if loss.elem_count() != 1 {
        let detail = format!("the loss has the shape {:?}: return a scalar, such as its mean", loss.shape());
        return Err(Error::argument(NAME, detail));
    }
    read(&loss.detach().reshape(())?)
}

impl Memory {
    /// Returns the direction from a gradient, after taking in what the last iteration changed.
    fn direction(&mut self, gradient: &Tensor, history: usize) -> Result<Tensor> {
        let Some(last) = &self.last else {
            self.diagonal = 1.0;
            return gradient.neg();
        };
        let (change, place) = (gradient.sub(&last.gradient)?, last.direction.mul(last.step as f32)?);
        let curvature = read(&dot(&change, &place)?)?;
        if curvature > 1e-10 {
            while self.changes.len() >= history {
                self.changes.pop_front();
            }
            self.diagonal = curvature / read(&dot(&change, &change)?)?;
            self.changes.push_back(Change { gradient: change, place, inverse: 1.0 / curvature });
        }
        let mut direction = gradient.neg()?;
        let mut parts = Vec::new();
        for change in self.changes.iter().rev() {
            let part = dot(&change.place, &direction)?.mul(change.inverse as f32)?;
            direction = direction.sub(&change.gradient.mul(&part)?)?;
            parts.push(part);
        }
        direction = direction.mul(self.diagonal as f32)?;
        for (change, part) in self.changes.iter().zip(parts.iter().rev()) {
            let other = dot(&change.gradient, &direction)?.mul(change.inverse as f32)?;
            direction = direction.add(&change.place.mul(&part.sub(&other)?)?)?;
        }
        Ok(direction)
    }
}

impl Settings for LBFGS {
    const STATE: &'static [StateTensor] = &[];

    fn settings(&self) -> Vec<(&'static str, Vec<f32>)> {
        vec![
            ("lr", vec![self.rate]),
            ("max_iter", vec![self.max_iter as f32]),
            ("max_eval", vec![self.most_evaluations() as f32]),
            ("tolerance_grad", vec![self.tolerance_grad]),
            ("tolerance_change", vec![self.tolerance_change]),
            ("history_size", vec![self.history as f32]),
            ("line_search_fn", vec![f32::from(u8::from(self.line_search))]),
        ]
    }

    fn set(&mut self, name: &str, values: &[f32]) {
        match (name, values) {
            ("lr", &[value]) => self.rate = value,
            ("max_iter", &[value]) => self.max_iter = value as usize,
            ("max_eval", &[value]) => self.max_eval = Some(value as usize),
            ("tolerance_grad", &[value]) => self.tolerance_grad = value,
            ("tolerance_change", &[value]) => self.tolerance_change = value,
            ("history_size", &[value]) => self.history = value as usize,
            ("line_search_fn", &[value]) => self.line_search = value != 0.0,
            _ => {}
        }
    }
}

/// The numbers of a state, after `state.0.`.
fn number(value: f64) -> Result<Tensor> {
    Tensor::from_f64(&[value], (), Device::cpu())
}

impl Memory {
    fn saved(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        let Some(last) = &self.last else { return Ok(state) };
        state.insert("func_evals", number(self.evaluations as f64)?);
        state.insert("n_iter", number(self.iterations as f64)?);
        state.insert("d", last.direction.clone());
        state.insert("t", number(last.step)?);
        state.insert("prev_flat_grad", last.gradient.clone());
        state.insert("prev_loss", number(last.loss)?);
        state.insert("H_diag", number(self.diagonal)?);
        for (i, change) in self.changes.iter().enumerate() {
            state.insert(format!("old_dirs.{i}"), change.gradient.clone());
            state.insert(format!("old_stps.{i}"), change.place.clone());
            state.insert(format!("ro.{i}"), number(change.inverse)?);
        }
        Ok(state)
    }

    /// The inverse of [`saved`](Memory::saved), with vectors of `count` elements on a device.
    fn restored(state: &BTreeMap<String, &Tensor>, count: usize, device: &Device) -> Result<Memory> {
        let find = |name: &str| {
            let found = state.get(name).copied();
            found.ok_or_else(|| refused(format!("state.0.{name} is missing")))
        };
        let number = |name: &str| {
            let values = find(name)?.to_vec_f64()?;
            match values[..] {
                [value] => Ok(value),
                _ => Err(refused(format!("state.0.{name} is not a number"))),
            }
        };
        let vector = |name: &str| {
            let tensor = find(name)?;
            if tensor.shape() != [count] {
                let shape = tensor.shape();
                return Err(refused(format!("state.0.{name} is {shape:?}, but the parameters have {count} elements")));
            }
            tensor.to_dtype(DType::F32)?.to(device)
        };
        let (iterations, evaluations) = (number("n_iter")? as u64, number("func_evals")? as u64);
        if iterations == 0 {
            return Ok(Memory { evaluations, ..Memory::default() });
        }
        let last = Iteration {
            direction: vector("d")?,
            step: number("t")?,
            gradient: vector("prev_flat_grad")?,
            loss: number("prev_loss")?,
        };
        let kept = (0..).take_while(|i| state.contains_key(&format!("old_dirs.{i}")));
        let change = |i: usize| {
            let [gradient, place] = [vector(&format!("old_dirs.{i}"))?, vector(&format!("old_stps.{i}"))?];
            Ok(Change { gradient, place, inverse: number(&format!("ro.{i}"))? })
        };
        let changes = kept.map(change).collect::<Result<_>>()?;
        Ok(Memory { iterations, evaluations, last: Some(last), changes, diagonal: number("H_diag")? })
    }
}

impl Optimizer for LBFGS {
    /// Returns an error: a step needs the loss as a function. Call [`LBFGS::step`].
    fn step(&mut self) -> Result<()> {
        let detail = "a step computes the loss several times: call LBFGS::step with a function that clears the gradients, computes \
                      the loss, calls backward() and returns it";
        Err(Error::argument(NAME, detail))
    }

    fn zero_grad(&self) {
        LBFGS::zero_grad(self);
    }

    fn parameters(&self) -> &Parameters {
        self.state.parameters()
    }

    fn lr(&self) -> f32 {
        self.rate
    }

    fn set_lr(&mut self, lr: f32) {
        self.rate = lr;
    }

    fn state_dict(&self) -> Result<StateDict> {
        let mut state = self.memory.saved()?.add_prefix("state.0.");
        state.extend(saved_settings(self, self.state.parameters().first_replica().len())?);
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let parameters = self.state.parameters().first_replica().len();
        let (mut settings, mut rest, mut listed) = (Vec::new(), BTreeMap::new(), None);
        for (name, tensor) in state.iter() {
            if let Some(setting) = name.strip_prefix(GROUP) {
                match setting {
                    "params" => listed = Some(tensor.elem_count()),
                    "maximize" if tensor.to_vec_f64()?.iter().any(|&on| on != 0.0) => {
                        return Err(refused(format!("{name} is on, which this optimiser does not support")));
                    }
                    _ => settings.push((setting, tensor.to_dtype(DType::F32)?.to_vec::<f32>()?)),
                }
                continue;
            }
            let known =
                name.strip_prefix("state.0.").filter(|inner| KNOWN.contains(&inner.split('.').next().unwrap_or(inner)));
            let Some(inner) = known else {
                let why = "the state may belong to another kind of optimiser";
                return Err(refused(format!("{name} is not part of this optimiser's state: {why}")));
            };
            rest.insert(inner.to_string(), tensor);
        }
        match listed {
            Some(count) if count == parameters => {}
            Some(count) => {
                let detail = format!("the state has {count} parameters, but this optimiser has {parameters}");
                return Err(refused(detail));
            }
            None => {
                let detail = format!("{GROUP}params, the indices of the parameters, is missing");
                return Err(refused(format!("{detail}: this is not an optimiser's state, or only a part of one")));
            }
        }
        let trained = self.state.parameters().first_replica();
        let count = self.positions().into_iter().map(|i| trained[i].elem_count()).sum();
        self.memory = match rest.is_empty() {
            true => Memory::default(),
            false => Memory::restored(&rest, count, &self.device())?,
        };
        settings.iter().for_each(|(name, values)| self.set(name, values));
        Ok(())
    }
}
