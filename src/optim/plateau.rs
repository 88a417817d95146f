use super::scheduler::{named, named_count};
use super::{LRScheduler, Optimizer};
use crate::error::Result;

/// Lowers the learning rate when a metric stops improving, like PyTorch's `ReduceLROnPlateau`.
///
/// After more than `patience` steps without an improvement, the rate is multiplied by `factor`.
///
/// ```
/// use anygpu::Tensor;
/// use anygpu::optim::{LRScheduler, ReduceLROnPlateau, SGD};
///
/// let mut sgd = SGD::new(vec![Tensor::zeros([1], None)?.requires_grad()], 0.1);
/// let mut scheduler = ReduceLROnPlateau::new().factor(0.5).patience(1);
/// for loss in [1.0, 0.9, 0.9, 0.9] {
///     scheduler.observe(loss).step(&mut sgd);
/// }
/// assert_eq!(sgd.lr(), 0.05);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReduceLROnPlateau {
    greater: bool,
    factor: f64,
    patience: u64,
    threshold: f64,
    relative: bool,
    cooldown: u64,
    min_lr: f64,
    best: f64,
    bad: u64,
    cooling: u64,
    /// The metric for the next step.
    observed: Option<f64>,
}

impl ReduceLROnPlateau {
    /// Creates a scheduler for a metric where lower is better, such as a loss. Defaults: factor 0.1, patience 10, a
    /// relative threshold of 1e-4, no cooldown, minimum rate 0.
    #[expect(
        clippy::new_without_default,
        reason = "the settings are PyTorch's defaults, and are named in the docs of new"
    )]
    #[must_use]
    pub fn new() -> ReduceLROnPlateau {
        ReduceLROnPlateau {
            greater: false,
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            relative: true,
            cooldown: 0,
            min_lr: 0.0,
            best: f64::INFINITY,
            bad: 0,
            cooling: 0,
            observed: None,
        }
    }

    /// Sets that a greater metric is better, as for an accuracy: PyTorch's `mode='max'`.
    #[must_use]
    pub fn greater_is_better(mut self) -> ReduceLROnPlateau {
        (self.greater, self.best) = (true, f64::NEG_INFINITY);
        self
    }

    /// Sets the factor by which the rate is lowered.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> ReduceLROnPlateau {
        self.factor = factor;
        self
    }

    /// Sets the number of steps in a row without an improvement that do not lower the rate.
    #[must_use]
    pub fn patience(mut self, patience: u64) -> ReduceLROnPlateau {
        self.patience = patience;
        self
    }

    /// Sets the relative improvement over the best metric that counts as an improvement.
    #[must_use]
    pub fn threshold(mut self, threshold: f64) -> ReduceLROnPlateau {
        (self.threshold, self.relative) = (threshold, true);
        self
    }

    /// Sets the absolute improvement that counts as an improvement: PyTorch's `threshold_mode='abs'`.
    #[must_use]
    pub fn absolute_threshold(mut self, threshold: f64) -> ReduceLROnPlateau {
        (self.threshold, self.relative) = (threshold, false);
        self
    }

    /// Sets the number of steps after a reduction during which steps without an improvement are not counted.
    #[must_use]
    pub fn cooldown(mut self, cooldown: u64) -> ReduceLROnPlateau {
        self.cooldown = cooldown;
        self
    }

    /// Sets the minimum rate.
    #[must_use]
    pub fn min_lr(mut self, min_lr: f64) -> ReduceLROnPlateau {
        self.min_lr = min_lr;
        self
    }

    /// Sets the metric for the next [`step`](LRScheduler::step). A step without a metric does nothing.
    pub fn observe(&mut self, metric: f64) -> &mut ReduceLROnPlateau {
        self.observed = Some(metric);
        self
    }

    fn is_better(&self, metric: f64) -> bool {
        match (self.greater, self.relative) {
            (false, true) => metric < self.best * (1.0 - self.threshold),
            (false, false) => metric < self.best - self.threshold,
            (true, true) => metric > self.best * (1.0 + self.threshold),
            (true, false) => metric > self.best + self.threshold,
        }
    }
}

impl LRScheduler for ReduceLROnPlateau {
    fn step(&mut self, optimizer: &mut dyn Optimizer) {
        let Some(metric) = self.observed.take() else { return };
        if self.is_better(metric) {
            (self.best, self.bad) = (metric, 0);
        } else {
            self.bad += 1;
        }
        if self.cooling > 0 {
            (self.cooling, self.bad) = (self.cooling - 1, 0);
        }
        if self.bad > self.patience {
            let old = f64::from(optimizer.lr());
            let new = (old * self.factor).max(self.min_lr);
            if old - new > 1e-8 {
                optimizer.set_lr(new as f32);
            }
            (self.cooling, self.bad) = (self.cooldown, 0);
        }
    }

    fn state(&self) -> Vec<(String, f64)> {
        let counts =
            [("bad", self.bad), ("cooling", self.cooling)].map(|(name, count)| (name.to_string(), count as f64));
        let best = self.best.is_finite().then(|| ("best".to_string(), self.best)); // files do not store infinities
        best.into_iter().chain(counts).collect()
    }

    fn load_state(&mut self, state: &[(String, f64)]) -> Result<()> {
        let (bad, cooling) = (named_count(state, "bad")?, named_count(state, "cooling")?);
        let nothing = if self.greater { f64::NEG_INFINITY } else { f64::INFINITY };
        (self.best, self.bad, self.cooling) = (named(state, "best").unwrap_or(nothing), bad, cooling);
        Ok(())
    }

    fn resume(&mut self, state: &[(String, f64)], _optimizer: &mut dyn Optimizer) -> Result<()> {
        self.load_state(state)
    }
}
