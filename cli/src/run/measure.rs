//! Measures the time of a model, and where it goes.

use std::time::Instant;

use anygpu::Device;
use anygpu::onnx::Outputs;
use anygpu::profiler::Profiler;
use serde_json::json;

use super::Runs;
use crate::failure::Failure;
use crate::output;

/// Runs a model, and returns its outputs and the seconds until they are ready on the device.
///
/// # Errors
/// The errors of the model and of the device.
pub fn timed(runs: &Runs) -> Result<(Outputs, f64), Failure> {
    let start = Instant::now();
    let outputs = runs.run()?;
    runs.device.synchronize()?;
    Ok((outputs, start.elapsed().as_secs_f64()))
}

/// Returns the number below which a share of sorted numbers lies, between two neighbours in proportion.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// Measures `count` runs, at least one, and prints them with the seconds of the `first` run.
///
/// # Errors
/// As [`timed`].
pub fn bench(runs: &Runs, first: f64, count: usize, as_json: bool) -> Result<(), Failure> {
    let mut seconds = Vec::with_capacity(count);
    for _ in 0..count {
        seconds.push(timed(runs)?.1);
    }
    seconds.sort_by(f64::total_cmp);
    let [least, lower, median, upper] = [0.0, 0.25, 0.5, 0.75].map(|share| quantile(&seconds, share));
    let batch = runs.inputs.iter().find_map(|input| Some((input.batch?, *input.tensor.shape().first()?)));
    let rate = batch.map(|(unit, size)| (unit, size as f64 / median.max(1e-9)));
    if as_json {
        let rate = rate.map(|(unit, rate)| json!({ "unit": format!("{unit}/s"), "value": rate }));
        let device = runs.device.name();
        return output::json(&json!({ "bench": {
            "device": device, "runs": count, "first_seconds": first, "median_seconds": median, "least_seconds": least,
            "quartile_seconds": [lower, upper], "rate": rate,
        }}));
    }
    let ms = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
    let rate = rate.map_or(String::new(), |(unit, rate)| format!("; {rate:.1} {unit}/s"));
    output::line(format!(
        "{}: first run {}; of {count} runs: median {}, least {}, quartiles {} and {}{rate}",
        runs.device,
        ms(first),
        ms(median),
        ms(least),
        ms(lower),
        ms(upper),
    ))
}

/// Prints the time of each op and kernel in one run.
///
/// # Errors
/// As [`timed`], and the errors of the profiler.
pub fn profile(runs: &Runs, as_json: bool) -> Result<(), Failure> {
    profile_of(&runs.device, || timed(runs).map(|_| ()), as_json)
}

/// Prints the time of each op and kernel on a device while `run` runs.
///
/// # Errors
/// The errors of `run` and of the profiler.
pub fn profile_of(device: &Device, run: impl FnOnce() -> Result<(), Failure>, as_json: bool) -> Result<(), Failure> {
    let profiler = Profiler::start(std::slice::from_ref(device))?;
    run()?;
    let profile = profiler.stop();
    if !as_json {
        return output::line(format!("\n{profile}").trim_end());
    }
    let totals = profile.totals();
    let lines = totals.iter().map(|total| {
        let (seconds, bytes) = (total.duration.as_secs_f64(), total.bytes);
        json!({ "op": total.op, "kernel": total.kernel, "calls": total.calls, "seconds": seconds, "bytes": bytes })
    });
    output::json(&json!({ "profile": lines.collect::<Vec<_>>() }))
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let sorted = [1.0, 2.0, 4.0, 8.0];
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(|share| quantile(&sorted, share)), [1.0, 1.75, 3.0, 8.0]);
        assert_eq!(quantile(&[3.0], 0.75), 3.0);
    }
}
