//! The limits of a device: how many operations of floats and how many bytes it can do in a second.
//!
//! Each is the best of several shapes of a kernel that does nothing else. An adapter runs it as a user's kernel,
//! with the checks of users' kernels; `cpu` runs it as vectorised Rust on all threads.

mod adapter;
mod host;

use std::time::Instant;

use anygpu::{Device, Result};
use serde::Serialize;

/// Measured runs of each shape.
const RUNS: usize = 5;

/// The least time of a measured run, in seconds.
const LEAST: f64 = 0.05;

/// What a device can do at most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Operations of floats in a second; a multiplication and an addition are two.
    pub flops: f64,
    /// Bytes that are read and written in a second.
    pub bytes: f64,
}

/// What a run computes and moves at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub flops: f64,
    pub bytes: f64,
}

impl Limits {
    /// The least time of a run, in seconds: of the operations or of the bytes, whichever take longer. The rate is then
    /// the smaller of the limit on operations and the bandwidth × operations per byte, the roofline.
    pub fn seconds(self, cost: Cost) -> f64 {
        (cost.flops / self.flops).max(cost.bytes / self.bytes)
    }
}

/// The rates of the best shape of a probe, one of each run.
pub struct Probe {
    /// What the shape did.
    pub shape: String,
    pub rates: Vec<f64>,
}

impl Probe {
    fn best(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }
}

/// The two probes of a device.
pub struct Probes {
    pub flops: Probe,
    pub bytes: Probe,
}

impl Probes {
    /// Runs the probes.
    ///
    /// # Errors
    /// The errors of the device; no memory for a probe; a probe whose results are wrong.
    pub fn run(device: &Device) -> Result<Probes> {
        match device.is_cpu() {
            true => Ok(Probes { flops: host::flops()?, bytes: host::bytes()? }),
            false => Ok(Probes { flops: adapter::flops(device)?, bytes: adapter::bytes(device)? }),
        }
    }

    pub fn limits(&self) -> Limits {
        Limits { flops: self.flops.best(), bytes: self.bytes.best() }
    }
}

/// Runs `work` with more and more rounds until it takes [`LEAST`] or there are `most` rounds, and then measures it.
/// Returns the rates and the number of rounds. `work_of` is the work of a number of rounds.
fn rates(most: u32, work_of: impl Fn(u32) -> f64, mut work: impl FnMut(u32) -> Result<()>) -> Result<(Vec<f64>, u32)> {
    let mut timed = |rounds: u32| -> Result<f64> {
        let start = Instant::now();
        work(rounds)?;
        Ok(start.elapsed().as_secs_f64().max(1e-9))
    };
    timed(1)?; // compiles the kernel, touches the memory
    let mut rounds = 1;
    loop {
        let seconds = timed(rounds)?;
        if seconds >= LEAST || rounds >= most {
            break;
        }
        let factor = (1.2 * LEAST / seconds).ceil().clamp(2.0, 16.0) as u32;
        rounds = rounds.saturating_mul(factor).min(most);
    }
    let rates = (0..RUNS).map(|_| Ok(work_of(rounds) / timed(rounds)?)).collect::<Result<_>>()?;
    Ok((rates, rounds))
}

/// The probe with the highest rate.
fn best(probes: impl IntoIterator<Item = Probe>) -> Option<Probe> {
    probes.into_iter().max_by(|a, b| a.best().total_cmp(&b.best()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_operations_and_bytes_is_the_limit() {
        let limits = Limits { flops: 100.0, bytes: 10.0 };
        assert_eq!(limits.seconds(Cost { flops: 400.0, bytes: 10.0 }), 4.0);
        assert_eq!(limits.seconds(Cost { flops: 400.0, bytes: 80.0 }), 8.0);
    }

    #[test]
    fn rounds_grow_until_a_run_is_long_enough() -> Result<()> {
        let (rates, rounds) = rates(1 << 20, f64::from, |rounds| {
            std::thread::sleep(std::time::Duration::from_micros(500) * rounds);
            Ok(())
        })?;
        assert!((10..=1000).contains(&rounds) && rates.len() == RUNS, "{rounds}");
        assert!(rates.iter().all(|rate| *rate > 0.0 && *rate <= 2000.0), "{rates:?}");
        Ok(())
    }
}
