//! Repeats of a workload and their times.
//!
//! A repeat runs the workload often enough to take [`REPEAT`] and then waits for the device, so that a fast device is not
//! measured by the time of one submission.

use std::time::{Duration, Instant};

use anygpu::profiler::{Profile, Profiler};
use anygpu::{Device, manual_seed};

use super::workloads::Case;

/// The least time of one repeat.
const REPEAT: Duration = Duration::from_millis(50);

/// The median of the figures of all repeats, the smallest and the largest.
#[derive(Debug, PartialEq)]
pub struct Measured {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Measured {
    pub fn of(mut figures: Vec<f64>) -> Measured {
        figures.sort_by(f64::total_cmp);
        let middle = figures.len() / 2;
        let median = match figures.len() {
            0 => return Measured { min: 0.0, median: 0.0, max: 0.0 },
            n if n % 2 == 1 => figures[middle],
            _ => (figures[middle - 1] + figures[middle]) / 2.0,
        };
        Measured { min: figures[0], median, max: figures[figures.len() - 1] }
    }
}

/// The times of a workload, and what one run of it starts.
pub struct Timed {
    /// The time of one run, in seconds, in each repeat.
    pub seconds: Vec<f64>,
    /// The kernels of one run, in the last repeat; 0 on `cpu`.
    pub dispatches: u64,
    /// What one more run did, if it was asked for.
    pub profile: Option<Profile>,
}

/// How often a workload runs.
pub struct Runs {
    pub repeats: usize,
    pub warm_up: u64,
    /// Whether one more run is profiled.
    pub profiled: bool,
}

/// Times a workload. A repeat takes at least [`REPEAT`], or the most runs of the case.
pub fn timed(case: &Case, device: &Device, runs: Runs) -> anygpu::Result<Timed> {
    let Runs { repeats, warm_up, profiled } = runs;
    manual_seed(0);
    let mut run = (case.prepare)(device)?;
    let mut repeat = |runs: usize| -> anygpu::Result<f64> {
        let start = Instant::now();
        for _ in 0..runs {
            run()?;
        }
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64().max(1e-9) / runs as f64)
    };
    repeat(1)?; // compiles kernels
    let first = repeat(1)?;
    let runs = ((REPEAT.as_secs_f64() / first).ceil() as usize).clamp(1, case.most_runs);
    for _ in 0..warm_up {
        repeat(runs)?;
    }
    let mut dispatches = 0;
    let mut measured = || {
        let before = device.dispatches();
        let seconds = repeat(runs)?;
        // In the first runs of all, elementwise kernels are not fused yet.
        dispatches = (device.dispatches() - before) / runs as u64;
        Ok(seconds)
    };
    let seconds = (0..repeats).map(|_| measured()).collect::<anygpu::Result<_>>()?;
    let mut profile = None;
    if profiled {
        let profiler = Profiler::start(std::slice::from_ref(device))?;
        repeat(1)?;
        profile = Some(profiler.stop());
    }
    Ok(Timed { seconds, dispatches, profile })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_no_figures() {
        let of = |figures: &[f64]| {
            let Measured { min, median, max } = Measured::of(figures.to_vec());
            [min, median, max]
        };
        assert_eq!(of(&[3.0, 1.0, 2.0]), [1.0, 2.0, 3.0]);
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), [1.0, 2.5, 4.0]);
        assert_eq!(of(&[]), [0.0; 3]);
    }
}
