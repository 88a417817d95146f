//! How a batch is split among devices: as users choose it, and by what is known about the devices of a run.

use super::DataParallel;
use super::collectives::split_sizes;
use crate::error::{Error, Result};
use crate::util::sync::lock;

/// The weight of the newest measurement in the moving average. Shares converge in about ten steps, and a single outlier
/// changes them little.
const NEWEST: f64 = 0.3;
/// A device that ran out of memory is tried with twice as many samples after this many steps: it may have more free
/// memory by then.
const MORE_AGAIN: u32 = 500;
/// A device that does not pay computes one sample again once the steps since its last sample took this many times as
/// long as its copies and a sample.
const AGAIN: f64 = 20.0;

/// How [`DataParallel`](super::DataParallel) splits a batch.
///
/// The step is the same for every split, apart from rounding, because gradients are averaged by the number of samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Shares {
    /// Splits by measured times, so that all devices finish at the same time. Two times are measured for each device:
    /// the time per sample, and the time of the copies of parameters and gradients, which does not depend on the number
    /// of samples. A device gets no samples if its copies take longer than the other devices' samples. It is measured
    /// again from time to time. Measured times vary, so repeated runs may differ by rounding.
    #[default]
    Measured,
    /// Splits into equal shares. Repeated runs on the same devices give the same bits.
    Even,
    /// Splits in proportion to these positive numbers, one per device.
    Fixed(Vec<f64>),
}

/// The shares, and what is known about the devices.
#[derive(Clone, Debug)]
pub(super) struct Balance {
    shares: Shares,
    devices: Vec<Known>,
    /// The number of samples of the last step.
    samples: usize,
}

/// What is known about a device.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Whether the first step, in which a device compiles its kernels, is done.
    warm: bool,
    /// The times of a step; `None` before the first measurement.
    times: Option<Times>,
    /// The duration of the steps since then.
    since: f64,
    /// Whether it takes no part.
    out: bool,
    /// The most samples that fit into its memory, if it has run out of it.
    most: Option<usize>,
    /// The number of steps since then.
    steps_since: u32,
}

/// Moving averages of what a device takes, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    /// For each sample.
    sample: f64,
    /// For the copies of parameters and gradients that are not hidden by computation.
    copies: f64,
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
        Ok(Balance { shares, devices: vec![Known::default(); devices], samples: 0 })
    }

    /// Returns the fraction of a batch that each device gets; they add up to 1. A device that takes no part has 0.
    pub(super) fn weights(&self) -> Vec<f64> {
        let raw = self.wanted(self.samples);
        let total: f64 = raw.iter().sum();
        raw.into_iter().map(|w| if total > 0.0 { w / total } else { 0.0 }).collect()
    }

    /// Returns numbers in proportion to which the devices should get samples.
    fn wanted(&self, samples: usize) -> Vec<f64> {
        let raw = match &self.shares {
            Shares::Even => vec![1.0; self.devices.len()],
            Shares::Fixed(weights) => weights.clone(),
            Shares::Measured => {
                let open: Vec<usize> = (0..self.devices.len()).filter(|&i| !self.devices[i].out).collect();
                let parts = even_ends(&open.iter().map(|&i| self.times_of(i)).collect::<Vec<_>>(), samples as f64);
                let mut wanted = vec![0.0; self.devices.len()];
                open.into_iter().zip(parts).for_each(|(i, part)| wanted[i] = part);
                wanted
            }
        };
        raw.into_iter().zip(&self.devices).map(|(w, known)| if known.out { 0.0 } else { w }).collect()
    }

    /// Returns the times of a device. A device that was not measured yet has the mean speed of the others.
    fn times_of(&self, index: usize) -> Times {
        self.devices[index].times.unwrap_or_else(|| {
            let speeds: Vec<f64> = self
                .devices
                .iter()
                .filter(|known| !known.out)
                .filter_map(|known| Some(1.0 / known.times?.sample))
                .collect();
            let mean = speeds.iter().sum::<f64>() / speeds.len() as f64;
            Times { sample: if speeds.is_empty() { 1.0 } else { 1.0 / mean }, copies: 0.0 }
        })
    }

    /// Returns the number of samples for each device, or `None` if the devices that take part cannot have all of them.
    pub(super) fn sizes(&self, samples: usize) -> Option<Vec<usize>> {
        let mut sizes = vec![0; self.devices.len()];
        let (mut left, weights) = (samples, self.wanted(samples));
        let mut open: Vec<usize> = (0..sizes.len()).filter(|&i| weights[i] > 0.0).collect();
        // Each round gives what is left to the devices that can have more. It ends in a round without one that is full.
        while !open.is_empty() {
            let parts = split_sizes(left, &open.iter().map(|&i| weights[i]).collect::<Vec<_>>());
            let full: Vec<usize> =
                open.iter().zip(&parts).filter(|&(&i, &n)| n > self.room(i)).map(|(&i, _)| i).collect();
            if full.is_empty() {
                open.iter().zip(parts).for_each(|(&i, n)| sizes[i] = n);
                left = 0;
                break;
            }
            for i in full {
                sizes[i] = self.room(i);
                left -= sizes[i];
                open.retain(|&other| other != i);
            }
        }
        // Devices that do not pay take what the others have no memory for.
        for i in (0..sizes.len()).filter(|&i| !self.devices[i].out) {
            let more = left.min(self.room(i) - sizes[i]);
            sizes[i] += more;
            left -= more;
        }
        if left > 0 {
            return None;
        }
        self.measure_again(&mut sizes);
        Some(sizes)
    }

    /// Moves one sample to each device that has none and was not measured for long, from the device with the most
    /// samples.
    fn measure_again(&self, sizes: &mut [usize]) {
        for i in (0..sizes.len()).filter(|&i| self.does_not_pay(i)) {
            let Known { since, times: Some(times), .. } = &self.devices[i] else { continue };
            let Some(most) = (0..sizes.len()).max_by_key(|&i| sizes[i]).filter(|&most| sizes[most] > 1) else { return };
            if sizes[i] == 0 && *since > AGAIN * (times.copies + times.sample) {
                sizes[most] -= 1;
                sizes[i] += 1;
            }
        }
    }

    /// Returns whether a device takes part and gets no samples, because its copies take longer than the steps of the others.
    pub(super) fn does_not_pay(&self, index: usize) -> bool {
        let known = &self.devices[index];
        !known.out && known.times.is_some() && self.wanted(self.samples)[index] == 0.0
    }

    /// Returns what a device takes, as text.
    pub(super) fn cost(&self, index: usize) -> String {
        let Times { sample, copies } = self.times_of(index);
        format!("its copies take {:.1} ms and a sample {:.1} ms", 1e3 * copies, 1e3 * sample)
    }

    /// Returns the most samples of a device.
    fn room(&self, index: usize) -> usize {
        self.devices[index].most.unwrap_or(usize::MAX)
    }

    /// Returns into how many micro-batches a batch must be cut so that the devices have memory for each.
    pub(super) fn micro_batches(&self, samples: usize) -> usize {
        let open = (0..self.devices.len()).filter(|&i| !self.devices[i].out);
        let room = open.fold(0, |sum: usize, i| sum.saturating_add(self.room(i)));
        samples.div_ceil(room.max(1)).max(1)
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

    /// Lets a device that was opened again take part: it compiles its kernels anew, and may have another amount of
    /// memory.
    pub(super) fn take_in(&mut self, index: usize) {
        let known = &mut self.devices[index];
        (known.out, known.warm, known.most) = (false, false, None);
    }

    /// Sets the most samples that a device gets.
    pub(super) fn set_most(&mut self, index: usize, most: usize) {
        (self.devices[index].most, self.devices[index].steps_since) = (Some(most), 0);
    }

    /// Records that a step of so many samples took `seconds`.
    pub(super) fn record_step(&mut self, samples: usize, seconds: f64) {
        self.samples = samples;
        for known in &mut self.devices {
            known.since += seconds;
            known.steps_since += 1;
            if known.steps_since.is_multiple_of(MORE_AGAIN) {
                known.most = known.most.map(|most| most.saturating_mul(2));
            }
        }
    }

    /// Records that device `index` took `compute` seconds for `samples`, and `copies` for copies that were not hidden.
    pub(super) fn record(&mut self, index: usize, samples: usize, compute: f64, copies: f64) {
        let Some(known) = self.devices.get_mut(index).filter(|_| samples > 0) else { return };
        known.since = 0.0;
        if !std::mem::replace(&mut known.warm, true) {
            return;
        }
        let now = Times { sample: compute.max(1e-9) / samples as f64, copies: copies.max(1e-9) };
        let before = known.times.unwrap_or(now);
        // A kernel that is compiled in a late step takes a hundred times as long, once.
        let mean = |before: f64, now: f64| before + NEWEST * (now.min(2.0 * before) - before);
        known.times = Some(Times { sample: mean(before.sample, now.sample), copies: mean(before.copies, now.copies) });
    }

    /// Returns what is known, for a checkpoint, by the names of the devices.
    pub(super) fn state(&self, names: &[String]) -> Vec<(String, f64)> {
        let mut state = vec![("samples".to_string(), self.samples as f64)];
        for (known, name) in self.devices.iter().zip(names) {
            if let Some(Times { sample, copies }) = known.times {
                state.push((format!("{name}.seconds_per_sample"), sample));
                state.push((format!("{name}.seconds_of_copies"), copies));
            }
            if let Some(most) = known.most {
                state.push((format!("{name}.most_samples"), most as f64));
            }
        }
        state
    }

    /// Takes over what [`state`](Balance::state) returned. Values of other devices are ignored.
    pub(super) fn load_state(&mut self, names: &[String], state: &[(String, f64)]) {
        let get = |name: &str| state.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
        let count = |name: &str| get(name).filter(|n| *n >= 1.0).map(|n| n as usize);
        self.samples = count("samples").unwrap_or(self.samples);
        for (known, name) in self.devices.iter_mut().zip(names) {
            let positive = |key: &str| get(&format!("{name}.{key}")).filter(|value| value.is_finite() && *value >= 0.0);
            if let Some((sample, copies)) = positive("seconds_per_sample").zip(positive("seconds_of_copies")) {
                known.times = Some(Times { sample: sample.max(1e-12), copies });
            }
            known.most = count(&format!("{name}.most_samples")).or(known.most);
        }
    }
}

impl DataParallel {
    /// Returns the measurements of [`Shares::Measured`](super::Shares::Measured), for a checkpoint.
    ///
    /// Give them to [`load_balance_state`](DataParallel::load_balance_state) when a run is resumed: batches are then
    /// split as before.
    #[must_use]
    pub fn balance_state(&self) -> Vec<(String, f64)> {
        let roster = lock(&self.roster);
        roster.balance.state(&roster.names())
    }

    /// Restores the measurements that [`balance_state`](DataParallel::balance_state) returned, for the devices of the
    /// same names. Entries for other devices are ignored.
    ///
    /// ```
    /// # use anygpu::{DataParallel, Device, nn::Linear};
    /// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    /// let (net, again) = (DataParallel::new(Linear::new(4, 3)?, &devices)?, DataParallel::new(Linear::new(4, 3)?, &devices)?);
    /// again.load_balance_state(&net.balance_state());
    /// assert_eq!(again.shares(), net.shares());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn load_balance_state(&self, state: &[(String, f64)]) {
        let roster = &mut *lock(&self.roster);
        roster.balance.load_state(&roster.names(), state);
    }
}

/// Returns how many of `samples` each device should get so that all end at the same time T: nᵢ = (T − copiesᵢ) / sampleᵢ with
/// Σ nᵢ = samples. Devices that would get less than half a sample get none, while others are left.
fn even_ends(times: &[Times], samples: f64) -> Vec<f64> {
    let samples = if samples > 0.0 { samples } else { f64::MAX.sqrt() }; // a batch so large that copies do not matter
    let mut open: Vec<usize> = (0..times.len()).collect();
    loop {
        let speed: f64 = open.iter().map(|&i| 1.0 / times[i].sample).sum();
        let copied: f64 = open.iter().map(|&i| times[i].copies / times[i].sample).sum();
        let end = (samples + copied) / speed;
        let part = |i: usize| (end - times[i].copies) / times[i].sample;
        match open.iter().copied().min_by(|&a, &b| part(a).total_cmp(&part(b))) {
            Some(least) if part(least) < 0.5 && open.len() > 1 => open.retain(|&i| i != least),
            _ => {
                let mut parts = vec![0.0; times.len()];
                open.iter().for_each(|&i| parts[i] = part(i));
                return parts;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_settle_where_all_devices_take_the_same_time() {
        // Device 0: 1 ms a sample; device 1: 3 ms a sample and 20 ms of copies a step.
        let mut balance = Balance::new(Shares::Measured, 2).unwrap();
        assert_eq!(balance.sizes(64), Some(vec![32, 32]));
        balance.record(0, 32, 9.0, 0.0); // compiling
        balance.record(1, 32, 1.0, 0.0);
        assert_eq!(balance.sizes(64), Some(vec![32, 32]));
        for _ in 0..30 {
            let sizes = balance.sizes(64).unwrap();
            balance.record(0, sizes[0], 1e-3 * sizes[0] as f64, 0.0);
            balance.record(1, sizes[1], 3e-3 * sizes[1] as f64, 20e-3);
            balance.record_step(64, 0.1);
        }
        // n₀ + n₁ = 64 and n₀ = 3 n₁ + 20.
        assert_eq!(balance.sizes(64), Some(vec![53, 11]));
        assert!((balance.weights()[1] - 11.0 / 64.0).abs() < 1e-6);
    }

    #[test]
    fn fixed_shares_are_kept_and_checked() {
        let mut balance = Balance::new(Shares::Fixed(vec![3.0, 1.0]), 2).unwrap();
        balance.record(0, 1, 1.0, 0.0);
        balance.record(0, 1, 1.0, 0.0);
        assert_eq!((balance.sizes(8), balance.weights()), (Some(vec![6, 2]), vec![0.75, 0.25]));
        for bad in [vec![1.0], vec![1.0, 0.0], vec![1.0, f64::NAN], vec![-1.0, 2.0]] {
            assert!(Balance::new(Shares::Fixed(bad), 2).is_err());
        }
    }

    #[test]
    fn a_device_that_does_not_pay_gets_nothing_until_it_is_measured_again() {
        let mut balance = Balance::new(Shares::Measured, 2).unwrap();
        for _ in 0..2 {
            balance.record(0, 10, 0.1, 0.0);
            balance.record(1, 10, 0.1, 3.0); // its copies take as long as 300 samples
        }
        balance.record_step(100, 1.0);
        assert_eq!((balance.sizes(100), balance.does_not_pay(1)), (Some(vec![100, 0]), true));
        assert_eq!(balance.weights(), [1.0, 0.0]);
        assert_eq!(balance.sizes(1000), Some(vec![650, 350]), "it pays for a batch of ten seconds");
        (0..60).for_each(|_| balance.record_step(100, 1.0));
        assert_eq!(balance.sizes(100), Some(vec![99, 1]), "61 s are more than 20 times 3.01 s");
        balance.record(1, 1, 0.01, 0.0);
        balance.record(0, 99, 0.99, 0.0);
        assert_eq!(balance.sizes(100), Some(vec![100, 0]), "one measurement counts for 0.3");
        for _ in 0..10 {
            balance.record(1, 1, 0.01, 0.0);
        }
        assert_eq!((balance.sizes(100).unwrap()[1] > 40, balance.does_not_pay(1)), (true, false));
    }

    #[test]
    fn full_devices_and_those_left_out_leave_their_samples_to_others() {
        let mut balance = Balance::new(Shares::Fixed(vec![6.0, 3.0, 1.0]), 3).unwrap();
        assert_eq!(balance.sizes(20), Some(vec![12, 6, 2]));
        balance.set_most(0, 4);
        assert_eq!(balance.sizes(20), Some(vec![4, 12, 4]));
        balance.set_most(1, 5);
        assert_eq!((balance.sizes(20), balance.micro_batches(20)), (Some(vec![4, 5, 11]), 1));
        balance.set_part(2, false);
        assert_eq!((balance.sizes(20), balance.micro_batches(20)), (None, 3));
        assert_eq!((balance.sizes(9), balance.sizes(0)), (Some(vec![4, 5, 0]), Some(vec![0; 3])));
        (0..MORE_AGAIN).for_each(|_| balance.record_step(9, 1.0));
        assert_eq!(balance.sizes(18), Some(vec![8, 10, 0]));
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
            balance.record(0, 1, 1.0, 0.0);
            balance.record(1, 1, 0.5, 0.0);
        }
        assert_eq!(balance.sizes(90), Some(vec![20, 40, 30]));
        // Fewer samples than devices.
        assert_eq!(balance.sizes(1).unwrap().iter().sum::<usize>(), 1);
    }

    #[test]
    fn a_checkpoint_has_the_measurements() {
        let names = ["gpu:0", "cpu"].map(String::from);
        let mut balance = Balance::new(Shares::Measured, 2).unwrap();
        for _ in 0..2 {
            balance.record(0, 10, 0.1, 0.01);
            balance.record(1, 10, 0.4, 0.0);
        }
        balance.set_most(0, 60);
        balance.record_step(100, 1.0);
        let mut other = Balance::new(Shares::Measured, 2).unwrap();
        other.load_state(&names, &balance.state(&names));
        assert_eq!((other.sizes(100), other.weights()), (balance.sizes(100), balance.weights()));
        assert_eq!(other.sizes(100), Some(vec![60, 40]));
        let mut swapped = Balance::new(Shares::Measured, 2).unwrap();
        swapped.load_state(&["cpu", "soft:9"].map(String::from), &balance.state(&names));
        assert_eq!(swapped.sizes(100), Some(vec![50, 50]), "one is not known");
        swapped.load_state(&names, &[("cpu.seconds_per_sample".into(), f64::NAN)]);
    }
}
