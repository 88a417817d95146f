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

/// The shares, and what is known about the devices.
#[derive(Clone, Debug)]
pub(super) struct Balance {
    shares: Shares,
    devices: Vec<Known>,
}

/// What is known about a device.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Whether the first step, in which a device compiles its kernels, is done.
    warm: bool,
    /// A moving average; `None` before the first measurement.
    seconds_per_sample: Option<f64>,
    /// Whether it takes no part.
    out: bool,
    /// The most samples that fit into its memory, if it has run out of it.
    most: Option<usize>,
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
        Ok(Balance { shares, devices: vec![Known::default(); devices] })
    }

    /// Returns the weight of each device; they add up to 1. A device that takes no part has 0. One that was not measured yet has
    /// the mean of the others.
    pub(super) fn weights(&self) -> Vec<f64> {
        let raw = match &self.shares {
            Shares::Even => vec![1.0; self.devices.len()],
            Shares::Fixed(weights) => weights.clone(),
            Shares::Measured => {
                let speed = |known: &Known| known.seconds_per_sample.map(f64::recip);
                let measured: Vec<f64> = self.devices.iter().filter(|known| !known.out).filter_map(speed).collect();
                let mean = if measured.is_empty() { 1.0 } else { measured.iter().sum::<f64>() / measured.len() as f64 };
                self.devices.iter().map(|known| speed(known).unwrap_or(mean)).collect()
            }
        };
        let raw: Vec<f64> =
            raw.into_iter().zip(&self.devices).map(|(w, known)| if known.out { 0.0 } else { w }).collect();
        let total: f64 = raw.iter().sum();
        raw.into_iter().map(|w| if total > 0.0 { w / total } else { 0.0 }).collect()
    }

    /// Returns the number of samples for each device, or `None` if the devices that take part cannot have all of them.
    pub(super) fn sizes(&self, samples: usize) -> Option<Vec<usize>> {
        let mut sizes = vec![0; self.devices.len()];
        let (mut left, weights) = (samples, self.weights());
        let mut open: Vec<usize> = (0..sizes.len()).filter(|&i| !self.devices[i].out).collect();
        // Each round gives what is left to the devices that can have more. It ends in a round without one that is full.
        loop {
            if open.is_empty() {
                return (left == 0).then_some(sizes);
            }
            let parts = split_sizes(left, &open.iter().map(|&i| weights[i]).collect::<Vec<_>>());
            let room = |i: usize| self.devices[i].most.unwrap_or(usize::MAX);
            let full: Vec<usize> = open.iter().zip(&parts).filter(|&(&i, &n)| n > room(i)).map(|(&i, _)| i).collect();
            if full.is_empty() {
                open.iter().zip(parts).for_each(|(&i, n)| sizes[i] = n);
                return Some(sizes);
            }
            for i in full {
                sizes[i] = room(i);
                left -= sizes[i];
                open.retain(|&other| other != i);
            }
        }
    }

    /// Returns whether the shares follow the speeds.
    #[cfg(feature = "mpi")]
    pub(super) fn is_measured(&self) -> bool {
        self.shares == Shares::Measured
    }

    /// Sets whether a device takes part.
    pub(super) fn set_part(&mut self, index: usize, takes_part: bool) {
        self.devices[index].out = !takes_part;
    }

    /// Returns whether a device takes part.
    pub(super) fn takes_part(&self, index: usize) -> bool {
        !self.devices[index].out
    }

    /// Lets a device take part that was opened again: it compiles its kernels anew, and may have other memory.
    pub(super) fn take_in(&mut self, index: usize) {
        let known = &mut self.devices[index];
        (known.out, known.warm, known.most) = (false, false, None);
    }

    /// Sets the most samples that a device gets.
    pub(super) fn set_most(&mut self, index: usize, most: usize) {
        self.devices[index].most = Some(most);
    }

    /// Records that device `index` took `seconds` for `samples`.
    pub(super) fn record(&mut self, index: usize, samples: usize, seconds: f64) {
        let Some(speed) = self.devices.get_mut(index).filter(|_| samples > 0) else { return };
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
        assert_eq!(balance.sizes(64), Some(vec![32, 32]));
        balance.record(0, 32, 9.0); // compiling
        balance.record(1, 32, 1.0);
        assert_eq!(balance.sizes(64), Some(vec![32, 32]));
        for _ in 0..30 {
            for (index, n) in balance.sizes(64).unwrap().into_iter().enumerate() {
                balance.record(index, n, seconds(index, n));
            }
        }
        let sizes = balance.sizes(64).unwrap();
        let (first, second) = (seconds(0, sizes[0]), seconds(1, sizes[1]));
        assert!((first - second).abs() < 6e-3, "{sizes:?}: {first} s and {second} s");
    }

    #[test]
    fn fixed_shares_are_kept_and_checked() {
        let mut balance = Balance::new(Shares::Fixed(vec![3.0, 1.0]), 2).unwrap();
        balance.record(0, 1, 1.0);
        balance.record(0, 1, 1.0);
        assert_eq!(balance.sizes(8), Some(vec![6, 2]));
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
        assert_eq!(balance.sizes(10), Some(vec![9, 1]));
    }

    #[test]
    fn full_devices_and_those_left_out_leave_their_samples_to_others() {
        let mut balance = Balance::new(Shares::Fixed(vec![6.0, 3.0, 1.0]), 3).unwrap();
        assert_eq!(balance.sizes(20), Some(vec![12, 6, 2]));
        balance.set_most(0, 4);
        assert_eq!(balance.sizes(20), Some(vec![4, 12, 4]));
        balance.set_most(1, 5);
        assert_eq!(balance.sizes(20), Some(vec![4, 5, 11]));
        balance.set_part(2, false);
        assert_eq!(balance.sizes(20), None);
        assert_eq!((balance.sizes(9), balance.sizes(0)), (Some(vec![4, 5, 0]), Some(vec![0; 3])));
        balance.set_part(0, false);
        balance.set_part(1, false);
        assert_eq!((balance.sizes(1), balance.weights()), (None, vec![0.0; 3]));
        balance.take_in(0);
        assert_eq!(balance.sizes(20), Some(vec![20, 0, 0]));
    }

    #[test]
    fn a_device_that_was_not_measured_gets_the_mean() {
        let mut balance = Balance::new(Shares::Measured, 3).unwrap();
        for _ in 0..2 {
            balance.record(0, 1, 1.0);
            balance.record(1, 1, 0.5);
        }
        assert_eq!(balance.sizes(90), Some(vec![20, 40, 30]));
    }
}
