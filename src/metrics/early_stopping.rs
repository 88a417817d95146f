//! The end of training when a metric stops improving.

use crate::error::Result;
use crate::optim::{named, named_count};

/// Tells when a metric has not improved for some time, so that training can end.
///
/// A lower metric is better, as for a loss, unless [`greater_is_better`](EarlyStopping::greater_is_better) is called.
/// NaN is not an improvement. To have the best weights at the end, write a checkpoint whenever
/// [`observe`](EarlyStopping::observe) returns true.
///
/// ```
/// use anygpu::metrics::EarlyStopping;
///
/// let mut stopping = EarlyStopping::new(2).min_delta(0.01);
/// let mut epochs = 0;
/// for loss in [1.0, 0.5, 0.495, 0.6, 0.7] {
///     epochs += 1;
///     let improved = stopping.observe(loss);
///     assert_eq!(improved, epochs <= 2);
///     if stopping.should_stop() {
///         break;
///     }
/// }
/// assert_eq!((epochs, stopping.best()), (5, Some(0.5)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStopping {
    patience: u64,
    min_delta: f64,
    greater: bool,
    best: Option<f64>,
    since: u64,
}

impl EarlyStopping {
    /// Creates an instance that stops after more than `patience` observations in a row without an improvement.
    #[must_use]
    pub fn new(patience: u64) -> EarlyStopping {
        EarlyStopping { patience, min_delta: 0.0, greater: false, best: None, since: 0 }
    }

    /// Sets how much better than the best a metric must be to count as an improvement. The default is 0: any better
    /// metric counts.
    #[must_use]
    pub fn min_delta(mut self, min_delta: f64) -> EarlyStopping {
        self.min_delta = min_delta.abs();
        self
    }

    /// Sets that a greater metric is better, as for an accuracy.
    #[must_use]
    pub fn greater_is_better(mut self) -> EarlyStopping {
        self.greater = true;
        self
    }

    /// Takes the metric of one epoch, and returns whether it is the best so far.
    pub fn observe(&mut self, metric: f64) -> bool {
        let better = match self.best {
            _ if metric.is_nan() => false,
            None => true,
            Some(best) if self.greater => metric > best + self.min_delta,
            Some(best) => metric < best - self.min_delta,
        };
        if better {
            (self.best, self.since) = (Some(metric), 0);
        } else {
            self.since = self.since.saturating_add(1);
        }
        better
    }

    /// Returns whether more than `patience` observations in a row were without an improvement.
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.since > self.patience
    }

    /// Returns the best metric so far, if there is one.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        self.best
    }

    /// Returns the number of observations since the best.
    #[must_use]
    pub fn since_best(&self) -> u64 {
        self.since
    }

    /// Returns the best metric, if there is one, and the number of observations since then.
    ///
    /// [`load_state`](EarlyStopping::load_state) continues from them. The settings are not included.
    ///
    /// ```
    /// use anygpu::checkpoint::TrainingState;
    /// use anygpu::metrics::EarlyStopping;
    ///
    /// let mut stopping = EarlyStopping::new(1);
    /// stopping.observe(0.5);
    /// stopping.observe(0.6);
    /// let saved = TrainingState::new().numbers("early_stopping", stopping.state()); // with the net and its optimiser
    ///
    /// let mut resumed = EarlyStopping::new(1);
    /// resumed.load_state(&saved.get_numbers("early_stopping"))?;
    /// resumed.observe(0.7);
    /// assert!(resumed.should_stop());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn state(&self) -> Vec<(String, f64)> {
        let best = self.best.map(|best| ("best".into(), best));
        best.into_iter().chain([("since_best".into(), self.since as f64)]).collect()
    }

    /// Restores the state of an instance with the same settings.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a number is missing or invalid. On error, nothing is changed.
    pub fn load_state(&mut self, state: &[(String, f64)]) -> Result<()> {
        let since = named_count(state, "since_best")?;
        let best = state.iter().any(|(name, _)| name == "best").then(|| named(state, "best")).transpose()?;
        (self.best, self.since) = (best, since);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops_after(mut stopping: EarlyStopping, metrics: &[f64]) -> Option<usize> {
        metrics.iter().position(|&metric| {
            stopping.observe(metric);
            stopping.should_stop()
        })
    }

    #[test]
    fn the_patience_counts_from_the_best() {
        assert_eq!(stops_after(EarlyStopping::new(1), &[3.0, 2.0, 2.0, 1.0, 1.5, 1.5]), Some(5));
        assert_eq!(stops_after(EarlyStopping::new(0), &[3.0, 3.0]), Some(1));
        assert_eq!(stops_after(EarlyStopping::new(1).greater_is_better(), &[0.1, 0.2, 0.3, 0.2]), None);
        assert_eq!(stops_after(EarlyStopping::new(0).greater_is_better().min_delta(0.2), &[0.1, 0.2]), Some(1));
    }

    #[test]
    fn it_goes_on_from_its_state_at_any_moment() {
        let metrics = [f64::NAN, 0.5, f64::NAN, 0.6, f64::INFINITY, 0.4, 0.4];
        for saved in 0..metrics.len() {
            let (mut whole, mut resumed) = (EarlyStopping::new(2), EarlyStopping::new(2));
            for &metric in &metrics[..saved] {
                whole.observe(metric);
            }
            resumed.load_state(&whole.state()).expect("a state");
            assert_eq!(resumed, whole);
            for &metric in &metrics[saved..] {
                assert_eq!(resumed.observe(metric), whole.observe(metric));
            }
            assert_eq!(resumed, whole);
        }
        let mut stopping = EarlyStopping::new(2);
        stopping.observe(1.0);
        let before = stopping.clone();
        let number = |name: &str, value: f64| (name.to_string(), value);
        for wrong in [
            vec![],
            vec![number("best", 1.0)],
            vec![number("best", f64::NAN), number("since_best", 1.0)],
            vec![number("best", 1.0), number("since_best", -1.0)],
        ] {
            assert!(stopping.load_state(&wrong).is_err(), "{wrong:?}");
            assert_eq!(stopping, before);
        }
    }

    #[test]
    fn nan_and_infinities() {
        assert_eq!(stops_after(EarlyStopping::new(1), &[f64::NAN, f64::NAN]), Some(1));
        let mut stopping = EarlyStopping::new(0);
        assert!(stopping.observe(f64::INFINITY) && stopping.observe(1.0) && !stopping.observe(f64::INFINITY));
        assert_eq!((stopping.best(), stopping.since_best()), (Some(1.0), 1));
    }
}
