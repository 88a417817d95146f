//! Learning rates as functions of the step: PyTorch's schedulers in their closed forms.

use std::f64::consts::PI;
use std::fmt;

use super::{Optimizer, Scheduler};
use crate::error::{Error, Result};

/// A learning rate as a function of the number of completed steps.
///
/// The caller decides whether a step is an epoch or a batch.
///
/// Schedules are values: combine them ([`SequentialLR`], [`warmup`](Schedule::warmup)), then
/// [`start`](Schedule::start) one for an optimiser.
///
/// ```
/// use anygpu::Tensor;
/// use anygpu::optim::{CosineAnnealingLR, LRScheduler, Schedule, SGD};
///
/// let mut sgd = SGD::new(vec![Tensor::zeros([1], None)?.requires_grad()], 0.1);
/// let mut scheduler = CosineAnnealingLR::new(95)?.warmup(5, 0.1).start(&mut sgd);
/// assert_eq!(sgd.lr(), 0.01);
/// for _epoch in 0..5 {
///     // … the batches, with sgd.step() …
///     scheduler.step(&mut sgd);
/// }
/// assert_eq!(sgd.lr(), 0.1);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub trait Schedule: fmt::Debug + Send + Sync + 'static {
    /// Returns the rate after `steps` steps. `base` is the base rate: the optimiser's rate at the start.
    fn lr(&self, base: f64, steps: u64) -> f64;

    /// Returns this schedule after a warm-up of `steps` steps, in which the rate rises linearly from
    /// `start_factor · base`.
    ///
    /// This equals PyTorch's `SequentialLR([LinearLR(start_factor, 1, steps), …], [steps])`.
    fn warmup(self, steps: u64, start_factor: f64) -> SequentialLR
    where
        Self: Sized,
    {
        SequentialLR::new(LinearLR::new(start_factor, 1.0, steps)).then(steps, self)
    }

    /// Uses the optimiser's learning rate as the base, and sets the rate of the first step.
    fn start(self, optimizer: &mut dyn Optimizer) -> Scheduler
    where
        Self: Sized,
    {
        Scheduler::new(Box::new(self), optimizer)
    }
}

fn positive(schedule: &'static str, what: &str, size: u64) -> Result<u64> {
    if size == 0 { Err(Error::argument(schedule, format!("{what} must be at least 1"))) } else { Ok(size) }
}

/// The rate base · γ^⌊steps / size⌋: the rate falls every `step_size` steps.
///
/// ```
/// use anygpu::optim::{Schedule, StepLR};
///
/// let schedule = StepLR::new(30, 0.1)?;
/// assert_eq!([0, 29, 30].map(|step| schedule.lr(1.0, step)), [1.0, 1.0, 0.1]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StepLR {
    step_size: u64,
    gamma: f64,
}

impl StepLR {
    /// Creates a schedule that multiplies the rate by `gamma` (PyTorch's default is 0.1) every `step_size` steps.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a size of 0.
    pub fn new(step_size: u64, gamma: f64) -> Result<StepLR> {
        Ok(StepLR { step_size: positive("StepLR", "the step size", step_size)?, gamma })
    }
}

impl Schedule for StepLR {
    fn lr(&self, base: f64, steps: u64) -> f64 {
        base * self.gamma.powf((steps / self.step_size) as f64)
    }
}

/// The rate base · γ^k after k of the milestones: the rate falls at each milestone.
///
/// ```
/// use anygpu::optim::{MultiStepLR, Schedule};
///
/// let schedule = MultiStepLR::new(&[30, 80], 0.5);
/// assert_eq!([29, 30, 80].map(|step| schedule.lr(1.0, step)), [1.0, 0.5, 0.25]);
/// ```
#[derive(Clone, Debug)]
pub struct MultiStepLR {
    milestones: Vec<u64>,
    gamma: f64,
}

impl MultiStepLR {
    /// Creates a schedule that multiplies the rate by `gamma` (PyTorch's default is 0.1) at each of these steps.
    #[must_use]
    pub fn new(milestones: &[u64], gamma: f64) -> MultiStepLR {
        MultiStepLR { milestones: milestones.to_vec(), gamma }
    }
}

impl Schedule for MultiStepLR {
    fn lr(&self, base: f64, steps: u64) -> f64 {
        let passed = self.milestones.iter().filter(|&&milestone| milestone <= steps).count();
        base * self.gamma.powf(passed as f64)
    }
}

/// The rate base · γ^steps.
///
/// ```
/// use anygpu::optim::{ExponentialLR, Schedule};
///
/// assert_eq!(ExponentialLR::new(0.5).lr(1.0, 3), 0.125);
/// ```
#[derive(Clone, Debug)]
pub struct ExponentialLR {
    gamma: f64,
}

impl ExponentialLR {
    /// Creates a schedule that multiplies the rate by `gamma` at every step.
    #[must_use]
    pub fn new(gamma: f64) -> ExponentialLR {
        ExponentialLR { gamma }
    }
}

impl Schedule for ExponentialLR {
    fn lr(&self, base: f64, steps: u64) -> f64 {
        base * self.gamma.powf(steps as f64)
    }
}

/// Half a cosine from the base to a minimum rate.
///
/// The rate is min + (base − min) · (1 + cos(π · steps / t_max)) / 2 (Loshchilov & Hutter, "SGDR", 2017, without
/// restarts). After `t_max` steps, it rises again, as in PyTorch.
///
/// ```
/// use anygpu::optim::{CosineAnnealingLR, Schedule};
///
/// let schedule = CosineAnnealingLR::new(100)?.eta_min(0.1);
/// assert_eq!([0, 100].map(|step| schedule.lr(1.0, step)), [1.0, 0.1]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CosineAnnealingLR {
    t_max: u64,
    eta_min: f64,
}

impl CosineAnnealingLR {
    /// Creates a schedule that falls to 0 in `t_max` steps.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for 0 steps.
    pub fn new(t_max: u64) -> Result<CosineAnnealingLR> {
        Ok(CosineAnnealingLR { t_max: positive("CosineAnnealingLR", "t_max", t_max)?, eta_min: 0.0 })
    }

    /// Sets the minimum rate.
    #[must_use]
    pub fn eta_min(mut self, eta_min: f64) -> CosineAnnealingLR {
        self.eta_min = eta_min;
        self
    }
}

impl Schedule for CosineAnnealingLR {
    fn lr(&self, base: f64, steps: u64) -> f64 {
        self.eta_min + (base - self.eta_min) * (1.0 + (PI * steps as f64 / self.t_max as f64).cos()) / 2.0
    }
}

/// The base times a factor that changes linearly from one value to another and then stays constant.
///
/// ```
/// use anygpu::optim::{LinearLR, Schedule};
///
/// let schedule = LinearLR::new(0.0, 1.0, 4);
/// assert_eq!([0, 1, 4, 9].map(|step| schedule.lr(0.5, step)), [0.0, 0.125, 0.5, 0.5]);
/// ```
#[derive(Clone, Debug)]
pub struct LinearLR {
    start_factor: f64,
    end_factor: f64,
    total_iters: u64,
}

impl LinearLR {
    /// Creates a schedule from `start_factor` to `end_factor` in `total_iters` steps (PyTorch's defaults: 1/3, 1 and
    /// 5).
    #[must_use]
    pub fn new(start_factor: f64, end_factor: f64, total_iters: u64) -> LinearLR {
        LinearLR { start_factor, end_factor, total_iters }
    }
}

impl Schedule for LinearLR {
    fn lr(&self, base: f64, steps: u64) -> f64 {
        if steps >= self.total_iters {
            return base * self.end_factor;
        }
        base * (self.start_factor + (self.end_factor - self.start_factor) * steps as f64 / self.total_iters as f64)
    }
}

/// The rate base · f(steps).
///
/// ```
/// use anygpu::optim::{LambdaLR, Schedule};
///
/// assert_eq!(LambdaLR::new(|steps| 1.0 / (1 + steps) as f64).lr(1.0, 3), 0.25);
/// ```
pub struct LambdaLR(Box<dyn Fn(u64) -> f64 + Send + Sync>);

impl LambdaLR {
    /// Creates a schedule with this factor as a function of the step.
    pub fn new(factor: impl Fn(u64) -> f64 + Send + Sync + 'static) -> LambdaLR {
        LambdaLR(Box::new(factor))
    }
}

impl fmt::Debug for LambdaLR {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LambdaLR").finish_non_exhaustive()
    }
}

impl Schedule for LambdaLR {
    fn lr(&self, base: f64, steps: u64) -> f64 {
        base * (self.0)(steps)
    }
}

/// A rise to a maximum rate and a fall to nearly 0, both along half a cosine, in one run of known length (Smith &
/// Topin, "Super-convergence", 2019).
///
/// A step is a batch, not an epoch. The momentum is not changed, as in PyTorch's `OneCycleLR` with
/// `cycle_momentum=False`. After the last step, the rate stays constant.
///
/// ```
/// use anygpu::optim::{OneCycleLR, Schedule};
///
/// let schedule = OneCycleLR::new(1.0, 100)?;
/// let rates = [0, 29, 99].map(|step| schedule.lr(0.1, step)); // the base is not used
/// assert!(rates.iter().zip([1.0 / 25.0, 1.0, 1.0 / 25.0 / 1e4]).all(|(rate, expected)| (rate - expected).abs() < 1e-12));
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OneCycleLR {
    max_lr: f64,
    total_steps: u64,
    pct_start: f64,
    div_factor: f64,
    final_div_factor: f64,
}

impl OneCycleLR {
    /// Creates a schedule that rises from `max_lr / 25` to `max_lr` in 30 % of the steps and then falls to
    /// `max_lr / 25 / 10 000`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for 0 steps.
    pub fn new(max_lr: f64, total_steps: u64) -> Result<OneCycleLR> {
        let total_steps = positive("OneCycleLR", "the number of steps", total_steps)?;
        Ok(OneCycleLR { max_lr, total_steps, pct_start: 0.3, div_factor: 25.0, final_div_factor: 1e4 })
    }

    /// Sets the fraction of the steps in which the rate rises, 0 to 1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for any other value.
    pub fn pct_start(mut self, pct_start: f64) -> Result<OneCycleLR> {
        if !(0.0..=1.0).contains(&pct_start) {
            let detail = format!("pct_start must be between 0 and 1, not {pct_start}");
            return Err(Error::argument("OneCycleLR", detail));
        }
        self.pct_start = pct_start;
        Ok(self)
    }

    /// Sets the ratio of the maximum rate to the first rate.
    #[must_use]
    pub fn div_factor(mut self, div_factor: f64) -> OneCycleLR {
        self.div_factor = div_factor;
        self
    }

    /// Sets the ratio of the first rate to the last rate.
    #[must_use]
    pub fn final_div_factor(mut self, final_div_factor: f64) -> OneCycleLR {
        self.final_div_factor = final_div_factor;
        self
    }
}

impl Schedule for OneCycleLR {
    fn lr(&self, _base: f64, steps: u64) -> f64 {
        let first = self.max_lr / self.div_factor;
        let (top, end) = (self.pct_start * self.total_steps as f64 - 1.0, self.total_steps as f64 - 1.0);
        let along = |from: f64, to: f64, part: f64| to + (from - to) / 2.0 * (1.0 + (PI * part).cos());
        let steps = steps as f64;
        if steps <= top && top > 0.0 {
            return along(first, self.max_lr, steps / top);
        }
        let part = if end > top { ((steps - top) / (end - top)).min(1.0) } else { 1.0 };
        along(self.max_lr, first / self.final_div_factor, part)
    }
}

/// Several schedules one after another.
///
/// Each counts its steps from its own start.
///
/// ```
/// use anygpu::optim::{ExponentialLR, LinearLR, Schedule, SequentialLR};
///
/// let schedule = SequentialLR::new(LinearLR::new(0.1, 1.0, 5)).then(5, ExponentialLR::new(0.5));
/// assert_eq!([0, 5, 6].map(|step| schedule.lr(1.0, step)), [0.1, 1.0, 0.5]);
/// ```
#[derive(Debug)]
pub struct SequentialLR {
    first: Box<dyn Schedule>,
    /// The schedules with the steps at which they begin.
    rest: Vec<(u64, Box<dyn Schedule>)>,
}

impl SequentialLR {
    /// Creates a sequence that begins with this schedule.
    pub fn new(first: impl Schedule) -> SequentialLR {
        SequentialLR { first: Box::new(first), rest: Vec::new() }
    }

    /// Continues with another schedule from the step `milestone`.
    #[must_use]
    pub fn then(mut self, milestone: u64, schedule: impl Schedule) -> SequentialLR {
        let place = self.rest.partition_point(|(start, _)| *start <= milestone);
        self.rest.insert(place, (milestone, Box::new(schedule)));
        self
    }
}

impl Schedule for SequentialLR {
    fn lr(&self, base: f64, steps: u64) -> f64 {
        match self.rest.iter().rev().find(|(start, _)| *start <= steps) {
            Some((start, schedule)) => schedule.lr(base, steps - start),
            None => self.first.lr(base, steps),
        }
    }
}
