//! The part of a batch that each device gets.

use super::collectives::split_sizes;
use crate::error::{Error, Result};

/// How [`DataParallel`](super::DataParallel) splits a batch. The step is the same for every split, apart from rounding:
/// gradients are averaged by the number of samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Shares {
    /// In proportion to each device's measured speed, so that all finish at the same time. Since measured times vary,
    /// repeated runs may differ by rounding.
    #[default]
    Measured,
    /// Equal shares. Repeated runs on the same devices give the same bits.
    Even,
    /// In proportion to these positive numbers, one per device.
    Fixed(Vec<f64>),
}

/// The weight of the newest measurement in the moving average. Shares converge in about ten steps, and a single outlier
/// changes them little.
const NEWEST: f64 = 0.3;

/// The shares and the speeds measured so far.
#[derive(Debug)]
pub(super) struct Balance {
    shares: Shares,
    speeds: Vec<Speed>,
}

#[derive(Clone, Debug, Default)]
struct Speed {
    /// Whether the first step, in which a device compiles its kernels, is done.
    warm: bool,
    /// A moving average; `None` before the first measurement.
    seconds_per_sample: Option<f64>,
}

impl Balance {
    pub(super) fn new(shares: Shares, devices: usize) -> Result<Balance> {
        if let Shares::Fixed(weights) = &shares {
            let positive = weights.iter().all(|w| w.is_finite() && *w > 0.0);
            if weights.len() != devices || !positive {
                let detail =
                    format!("shares {weights:?} for {devices} devices: there must be one positive number per device");
                return Err(Error::argument("with_shares", detail));
            }
        }
        Ok(Balance { shares, speeds: vec![Speed::default(); devices] })
    }

    /// Returns the weight of each device; they add up to 1.
    pub(super) fn weights(&self) -> Vec<f64> {
        let even = vec![1.0; self.speeds.len()];
        let raw = match &self.shares {
            Shares::Even => even,
            Shares::Fixed(weights) => weights.clone(),
            Shares::Measured => {
                let speeds = self.speeds.iter().map(|speed| speed.seconds_per_sample.map(|s| 1.0 / s));
                speeds.collect::<Option<Vec<f64>>>().unwrap_or(even)
            }
        };
        let total: f64 = raw.iter().sum();
        raw.into_iter().map(|w| w / total).collect()
    }

    /// Returns the number of samples for each device.
    pub(super) fn sizes(&self, samples: usize) -> Vec<usize> {
        split_sizes(samples, &self.weights())
    }

    /// Records that device `index` took `seconds` for `samples`.
    pub(super) fn record(&mut self, index: usize, samples: usize, seconds: f64) {
        let Some(speed) = self.speeds.get_mut(index).filter(|_| samples > 0) else { return };
        if !std::mem::replace(&mut speed.warm, true) {
            return;
        }
        let now = seconds.max(1e-9) / samples as f64;
        let before = speed.seconds_per_sample.unwrap_or(now);
        speed.seconds_per_sample = Some(before + NEWEST * (now - before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_settle_where_all_devices_take_the_same_time() {
        // Device 0: 1 ms a sample; device 1: 3 ms a sample and 5 ms of overhead a step.
        let seconds = |index: usize, n: usize| if index == 0 { 1e-3 * n as f64 } else { 3e-3 * n as f64 + 5e-3 };
        let mut balance = Balance::new(Shares::Measured, 2).unwrap();
        assert_eq!(balance.sizes(64), [32, 32]);
        balance.record(0, 32, 9.0); // compiling
        balance.record(1, 32, 1.0);
        assert_eq!(balance.sizes(64), [32, 32]);
        for _ in 0..30 {
            for (index, n) in balance.sizes(64).into_iter().enumerate() {
                balance.record(index, n, seconds(index, n));
            }
        }
        let sizes = balance.sizes(64);
        let (first, second) = (seconds(0, sizes[0]), seconds(1, sizes[1]));
        assert!((first - second).abs() < 6e-3, "{sizes:?}: {first} s and {second} s");
    }

    #[test]
    fn fixed_shares_are_kept_and_checked() {
        let mut balance = Balance::new(Shares::Fixed(vec![3.0, 1.0]), 2).unwrap();
        balance.record(0, 1, 1.0);
        balance.record(0, 1, 1.0);
        assert_eq!(balance.sizes(8), [6, 2]);
        for bad in [vec![1.0], vec![1.0, 0.0], vec![1.0, f64::NAN], vec![-1.0, 2.0]] {
            assert!(Balance::new(Shares::Fixed(bad), 2).is_err());
        }
    }

    #[test]
    fn a_slow_device_keeps_a_sample() {
        let mut balance = Balance::new(Shares::Measured, 2).unwrap();
        for _ in 0..5 {
            balance.record(0, 10, 1e-3);
            balance.record(1, 10, 1e3);
        }
        assert_eq!(balance.sizes(10), [9, 1]);
    }
}
