//! Schedulers, which set an optimiser's learning rate between its steps.

use super::{Optimizer, Schedule};
use crate::error::{Error, Result};

/// The interface of all schedulers.
///
/// ```
/// use anygpu::Tensor;
/// use anygpu::optim::{LRScheduler, Optimizer, Schedule, SGD, StepLR};
///
/// let mut sgd = SGD::new(vec![Tensor::zeros([1], None)?.requires_grad()], 0.5);
/// let mut scheduler = StepLR::new(1, 0.1)?.start(&mut sgd);
/// scheduler.step(&mut sgd);
/// assert_eq!(sgd.lr(), 0.05);
///
/// // To resume a run, start the same scheduler and restore both states.
/// let state = scheduler.state();
/// let mut later = SGD::new(vec![Tensor::zeros([1], None)?.requires_grad()], 0.5);
/// let mut resumed = StepLR::new(1, 0.1)?.start(&mut later);
/// later.load_state_dict(&sgd.state_dict()?)?;
/// resumed.resume(&state, &mut later)?;
/// assert_eq!(later.lr(), 0.05);
/// resumed.step(&mut later);
/// assert_eq!(later.lr(), 0.005);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub trait LRScheduler {
    /// Sets the learning rate for the next step. Call it after the optimiser's step, or after an epoch of them.
    fn step(&mut self, optimizer: &mut dyn Optimizer);

    /// Returns the progress of the scheduler as named numbers. Its settings are not included.
    fn state(&self) -> Vec<(String, f64)>;

    /// Restores the state of a scheduler with the same settings.
    ///
    /// The optimiser's rate is not changed, since it is part of the optimiser's state. [`Schedule::start`] sets the
    /// rate, so either start the scheduler before restoring the optimiser, or call [`resume`](LRScheduler::resume), in
    /// any order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a number is missing or invalid. On error, the scheduler is unchanged.
    fn load_state(&mut self, state: &[(String, f64)]) -> Result<()>;

    /// Restores the state like [`load_state`](LRScheduler::load_state), and also sets the optimiser's rate to the rate
    /// of the restored schedule. (A [`ReduceLROnPlateau`](super::ReduceLROnPlateau) has no rate of its own and sets
    /// none.)
    ///
    /// # Errors
    /// Same as [`load_state`](LRScheduler::load_state). On error, neither the scheduler nor the optimiser is changed.
    fn resume(&mut self, state: &[(String, f64)], optimizer: &mut dyn Optimizer) -> Result<()>;
}

/// Returns the number called `name`.
pub(crate) fn named(state: &[(String, f64)], name: &str) -> Result<f64> {
    let found = state.iter().find(|(here, value)| here == name && !value.is_nan());
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = state.iter().map(|(name, _)| name.as_str()).collect();
        Error::argument("load_state", format!("there is no number '{name}' among [{}]", names.join(", ")))
    })
}

/// Returns the number called `name`, as a count.
pub(crate) fn named_count(state: &[(String, f64)], name: &str) -> Result<u64> {
    let value = named(state, name)?;
    if value < 0.0 || value.fract() != 0.0 || value > 2f64.powi(53) {
        return Err(Error::argument("load_state", format!("'{name}' is {value}, which is not a valid count")));
    }
    Ok(value as u64)
}

/// A running [`Schedule`]: [`Schedule::start`] creates it.
#[derive(Debug)]
pub struct Scheduler {
    schedule: Box<dyn Schedule>,
    base: f64,
    steps: u64,
}

impl Scheduler {
    pub(super) fn new(schedule: Box<dyn Schedule>, optimizer: &mut dyn Optimizer) -> Scheduler {
        let scheduler = Scheduler { schedule, base: f64::from(optimizer.lr()), steps: 0 };
        optimizer.set_lr(scheduler.lr());
        scheduler
    }

    /// Returns the learning rate for the next step.
    #[must_use]
    pub fn lr(&self) -> f32 {
        self.schedule.lr(self.base, self.steps) as f32
    }
}

impl LRScheduler for Scheduler {
    fn step(&mut self, optimizer: &mut dyn Optimizer) {
        self.steps += 1;
        optimizer.set_lr(self.lr());
    }

    fn state(&self) -> Vec<(String, f64)> {
        vec![("base_lr".into(), self.base), ("steps".into(), self.steps as f64)]
    }

    fn load_state(&mut self, state: &[(String, f64)]) -> Result<()> {
        (self.base, self.steps) = (named(state, "base_lr")?, named_count(state, "steps")?);
        Ok(())
    }

    fn resume(&mut self, state: &[(String, f64)], optimizer: &mut dyn Optimizer) -> Result<()> {
        self.load_state(state)?;
        optimizer.set_lr(self.lr());
        Ok(())
    }
}
