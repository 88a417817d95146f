//! `anygpu bench`: the speed of devices in named workloads.

mod nets;
mod plot;
mod probes;
mod time;
mod transformer;
mod workloads;

use std::path::PathBuf;

use anygpu::Device;
use anygpu::profiler::Profile;
use serde::Serialize;

use crate::failure::Failure;
use crate::values::{at_least_one, whole};
use crate::{devices, output, progress};
use probes::{Limits, Probe, Probes};
use time::{Measured, Runs, Timed, timed};
use workloads::{Case, Sizes, Workload, cases};

/// Measures the speed of devices in named workloads.
///
/// Prints the median, minimum and maximum over the repeats, after a warm-up. Also prints the share of the device's
/// limit, the kernels of one run, and the most memory that tensors held on the device. The limit is the smaller of
/// two rates, which simple kernels measure in the same run: operations of floats in registers; and bytes copied,
/// times the operations for each byte that a workload must read or write. A workload can exceed the limit: tensors
/// may stay in a cache, and convolutions by Winograd's method do fewer operations than are counted.
#[derive(clap::Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// What to run; a list, or `all`
    #[arg(value_enum, default_value = "all", value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// The devices, each measured alone: auto, all, or a list such as gpu:0,cpu; may be given several times
    #[arg(long, alias = "device", default_value = "auto", value_name = "auto|all|LIST", value_delimiter = ',')]
    devices: Vec<String>,
    /// Shapes of matmul, which must be among the workloads: N for a product of N × N matrices, or MxKxN; a list, or
    /// given several times [default: 1024; with --plot, powers of 2 from 64 to 1024]
    #[arg(long, value_name = "N|MxKxN", value_delimiter = ',', value_parser = matmul_shape)]
    size: Vec<[usize; 3]>,
    /// Elements of the tensors of elementwise, which must be among the workloads: multiples of 1024; a list, or
    /// given several times [default: 16777216; with --plot, from 1024 to that in steps of 4]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = elements)]
    elements: Vec<usize>,
    /// Number of measured repeats
    #[arg(long, default_value_t = 10, value_parser = at_least_one)]
    repeats: usize,
    /// Number of repeats before them, which are not measured
    #[arg(long, default_value_t = 2, value_parser = whole)]
    warm_up: u64,
    /// Draw the throughput of matmul and elementwise against their size, as a PNG or SVG file
    #[arg(long, value_name = "out.png|out.svg")]
    plot: Option<PathBuf>,
    /// Profile one more run of each workload: print its kernels with their times (with --json, a line for each
    /// kernel after the workload's line), and write a trace for ui.perfetto.dev into this folder
    #[arg(long, value_name = "FOLDER")]
    profile: Option<PathBuf>,
}

fn matmul_shape(text: &str) -> Result<[usize; 3], String> {
    let sides: Result<Vec<usize>, _> = text.split(['x', '×']).map(str::parse).collect();
    let shape = match sides.as_deref() {
        Ok(&[n]) => [n, n, n],
        Ok(&[m, k, n]) => [m, k, n],
        _ => return Err("it must be N or MxKxN, for instance 1024 or 64x1024x128".to_string()),
    };
    if shape.contains(&0) {
        return Err("no side can be 0".to_string());
    }
    Ok(shape)
}

fn elements(text: &str) -> Result<usize, String> {
    let count = at_least_one(text)?;
    match count % workloads::COLUMNS {
        0 => Ok(count),
        _ => Err(format!("it must be a multiple of {}", workloads::COLUMNS)),
    }
}

/// One result, as `--json` prints it.
#[derive(Serialize)]
struct Measurement {
    workload: &'static str,
    shape: String,
    device: String,
    median: f64,
    min: f64,
    max: f64,
    unit: &'static str,
    /// The figure of a run at the limit of the device; none for probes and for workloads with another limit.
    limit: Option<f64>,
    /// The share of the limit that the median reaches.
    share: Option<f64>,
    /// The operations of a run, as they are counted for the limit: products of direct convolutions and of causal
    /// scores.
    flops: Option<f64>,
    /// The bytes that a run must read and write.
    bytes: Option<f64>,
    /// The elements of the largest tensor, of workloads whose sizes can be chosen.
    size: Option<f64>,
    /// The kernels that one run starts; none on `cpu` and for probes.
    dispatches: Option<u64>,
    /// The most bytes that tensors held at once on the device while this ran; none for probes.
    peak_memory: Option<u64>,
    #[serde(skip)]
    profile: Option<Profile>,
}

/// The calls of one kernel for one op in a profiled run, as `--json` prints them.
#[derive(Serialize)]
struct KernelLine<'a> {
    workload: &'a str,
    shape: &'a str,
    device: &'a str,
    op: &'a str,
    kernel: &'a str,
    calls: u64,
    /// Of all calls.
    micros: f64,
}

impl Args {
    /// The sizes of the workloads; with `--plot`, several.
    fn sizes(&self) -> Sizes {
        const LARGEST: usize = 16 << 20;
        let plot = self.plot.is_some();
        let powers = |first: u32, last: u32, step: usize| (first..=last).step_by(step).map(|power| 1 << power);
        let products = match (self.size.is_empty(), plot) {
            (false, _) => self.size.clone(),
            (true, true) => powers(6, 10, 1).map(|n| [n, n, n]).collect(),
            (true, false) => vec![[1024, 1024, 1024]],
        };
        let elements = match (self.elements.is_empty(), plot) {
            (false, _) => self.elements.clone(),
            (true, true) => powers(10, LARGEST.ilog2(), 2).collect(),
            (true, false) => vec![LARGEST],
        };
        Sizes { products, elements }
    }

    /// Checks that each option of sizes has a workload that takes it.
    fn check_sizes(&self) -> Result<(), Failure> {
        let options = [
            ("--size", self.size.is_empty(), Workload::Matmul, "matmul"),
            ("--elements", self.elements.is_empty(), Workload::Elementwise, "elementwise"),
        ];
        for (option, absent, workload, name) in options {
            if !absent && !self.workloads.iter().any(|&named| named == workload || named == Workload::All) {
                let message = format!("{option} is for the workload {name}: name {name} or all as a workload too");
                return Err(Failure::Usage(message));
            }
        }
        Ok(())
    }

    /// Checks `--plot` before anything is measured.
    fn check_plot(&self) -> Result<(), Failure> {
        let Some(path) = &self.plot else { return Ok(()) };
        let sized = [Workload::Matmul, Workload::Elementwise, Workload::All];
        if !self.workloads.iter().any(|workload| sized.contains(workload)) {
            let message = "--plot draws matmul and elementwise, whose sizes can be chosen: name one of them";
            return Err(Failure::Usage(message.to_string()));
        }
        output::writable("--plot", path, &["png", "svg"]).map(drop)
    }
}

/// Runs the command. `as_json`: one object per result, as it is measured, instead of a table at the end.
///
/// # Errors
/// [`Failure::Usage`] for an unknown device, or a size that no workload takes; [`Failure::Run`] when a workload
/// fails, after the results of the workloads before it.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    args.check_sizes()?;
    let devices = devices::select(&args.devices.join(","))?;
    args.check_plot()?;
    if let Some(folder) = &args.profile {
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::Usage(format!("--profile {}: {error}", folder.display())))?;
    }
    let mut rows = Vec::new();
    let mut result = Ok(());
    for device in &devices {
        result = measure_all(args, device, |row| {
            if as_json {
                output::json(&row)?;
                row.print_kernels()?;
            }
            rows.push(row);
            Ok(())
        });
        if result.is_err() {
            break;
        }
    }
    if !as_json && !rows.is_empty() {
        let header = ["workload", "shape", "device", "median", "min", "max", "unit", "of limit", "kernels", "peak MiB"];
        let mut table = output::table(&header);
        table.add_rows(rows.iter().map(Measurement::cells));
        output::line(table)?;
    }
    for (row, profile) in rows.iter().filter_map(|row| Some((row, row.profile.as_ref()?))) {
        row.show_profile(profile, args, as_json)?;
    }
    match &args.plot {
        Some(path) if result.is_ok() => plot::save(&rows, path),
        _ => result,
    }
}

/// Measures the limits of a device and the workloads on it.
fn measure_all(
    args: &Args,
    device: &Device,
    mut done: impl FnMut(Measurement) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let spinner = progress::spinner(format!("limits of {device}"));
    let probes = Probes::run(device);
    spinner.finish_and_clear();
    let limits = match probes {
        Ok(probes) => {
            done(Measurement::of_probe(device, &probes.flops, workloads::Unit::GFlops))?;
            done(Measurement::of_probe(device, &probes.bytes, workloads::Unit::GBytes))?;
            Some(probes.limits())
        }
        Err(error) if error.is_device_lost() => return Err(error.into()),
        Err(error) => {
            log::warn!("shares of the limits are not known: {error}");
            None
        }
    };
    cases(&args.workloads, &args.sizes()).iter().try_for_each(|case| done(measure(case, args, device, limits)?))
}

impl Measurement {
    /// Prints one run's kernels, unless the output is for programs, and writes their trace.
    fn show_profile(&self, profile: &Profile, args: &Args, as_json: bool) -> Result<(), Failure> {
        let Some(folder) = &args.profile else { return Ok(()) };
        let title = format!("{} {} {}", self.workload, self.shape, self.device);
        let words = title.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        let name = words.collect::<Vec<_>>().join("-");
        profile.save_chrome_trace(folder.join(format!("{name}.json")))?;
        if as_json { Ok(()) } else { output::line(format!("\n{title}\n{profile}")) }
    }

    /// Prints the kernels of the profiled run as JSON, those with the most time first.
    fn print_kernels(&self) -> Result<(), Failure> {
        let totals = self.profile.as_ref().map(Profile::totals).unwrap_or_default();
        totals.iter().try_for_each(|total| {
            output::json(&KernelLine {
                workload: self.workload,
                shape: &self.shape,
                device: &self.device,
                op: &total.op,
                kernel: &total.kernel,
                calls: total.calls,
                micros: total.duration.as_secs_f64() * 1e6,
            })
        })
    }

    fn of_probe(device: &Device, probe: &Probe, unit: workloads::Unit) -> Measurement {
        let Measured { min, median, max } = Measured::of(probe.rates.iter().map(|rate| rate * 1e-9).collect());
        let (shape, device, unit) = (probe.shape.clone(), device.to_string(), unit.name());
        let (limit, share, flops, bytes, size) = (None, None, None, None, None);
        let (workload, dispatches, peak_memory, profile) = ("probe", None, None, None);
        Measurement {
            workload,
            shape,
            device,
            median,
            min,
            max,
            unit,
            limit,
            share,
            flops,
            bytes,
            size,
            dispatches,
            peak_memory,
            profile,
        }
    }

    fn cells(&self) -> Vec<String> {
        let number = |v: f64| if v < 100.0 { format!("{v:.2}") } else { format!("{v:.0}") };
        let none = || "–".to_string();
        let figures = [self.median, self.min, self.max].map(number);
        let mut cells = vec![self.workload.to_string(), self.shape.clone(), self.device.clone()];
        cells.extend(figures);
        cells.extend([
            self.unit.to_string(),
            self.share.map_or_else(none, |share| format!("{:.1} %", 100.0 * share)),
            self.dispatches.map_or_else(none, |count| count.to_string()),
            self.peak_memory.map_or_else(none, |bytes| number(bytes as f64 / f64::from(1 << 20))),
        ]);
        cells
    }
}

fn measure(case: &Case, args: &Args, device: &Device, limits: Option<Limits>) -> Result<Measurement, Failure> {
    let (workload, shape) = (case.workload, case.shape.clone());
    let spinner = progress::spinner(format!("{workload} {shape} on {device}"));
    device.reset_peak_memory();
    let runs = Runs { repeats: args.repeats, warm_up: args.warm_up, profiled: args.profile.is_some() };
    let times = timed(case, device, runs).and_then(|times| Ok((times, (case.cost)()?)));
    spinner.finish_and_clear();
    let (Timed { seconds, dispatches, profile }, cost) = times.map_err(|e| match Failure::from(e) {
        Failure::Run(message) => Failure::Run(format!("bench {workload} {shape} on {device}: {message}")),
        other => other,
    })?;
    let peak_memory = Some(device.memory().peak);
    let least = limits.zip(cost).map(|(limits, cost)| limits.seconds(cost));
    let middle = Measured::of(seconds.clone()).median;
    let Measured { min, median, max } = Measured::of(seconds.into_iter().map(|time| case.figure(time)).collect());
    Ok(Measurement {
        workload,
        shape,
        device: device.to_string(),
        median,
        min,
        max,
        unit: case.unit.name(),
        limit: least.map(|least| case.figure(least)),
        share: least.map(|least| least / middle),
        flops: cost.map(|cost| cost.flops),
        bytes: cost.map(|cost| cost.bytes),
        size: case.size,
        dispatches: (!device.is_cpu()).then_some(dispatches),
        peak_memory,
        profile,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_whole_rows() {
        assert_eq!(elements("2048"), Ok(2048));
        for bad in ["", "0", "1000", "-1024", "1e6"] {
            elements(bad).expect_err(bad);
        }
    }

    #[test]
    fn shapes_are_read_and_refused() {
        assert_eq!(matmul_shape("512"), Ok([512, 512, 512]));
        assert_eq!(matmul_shape("64x1024x128"), Ok([64, 1024, 128]));
        for bad in ["", "0", "1x2", "1x2x3x4", "axb", "-4", "99999999999999999999999"] {
            matmul_shape(bad).expect_err(bad);
        }
    }
}
