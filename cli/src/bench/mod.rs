//! `anygpu bench`: the speed of devices in named workloads.

mod time;
mod workloads;

use anygpu::Device;
use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;
use crate::values::{at_least_one, whole};
use crate::{devices, output, progress};
use time::{Measured, seconds};
use workloads::Case;

/// Measures the speed of devices in named workloads.
///
/// Prints median, minimum and maximum over the repeats, after a warm-up, and the most memory that tensors held on the
/// device.
#[derive(clap::Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// What to run; a list, or `all`
    #[arg(value_enum, default_value = "all", value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// The devices, each measured alone: auto, all, or a list such as gpu:0,cpu; may be given several times
    #[arg(long, alias = "device", default_value = "auto", value_name = "auto|all|LIST", value_delimiter = ',')]
    devices: Vec<String>,
    /// Shapes of matmul: N for N × N by N × N, or MxKxN; a list, or given several times
    #[arg(long, default_value = "1024", value_name = "N|MxKxN", value_delimiter = ',', value_parser = matmul_shape)]
    size: Vec<[usize; 3]>,
    /// Measured repeats
    #[arg(long, default_value_t = 10, value_parser = at_least_one)]
    repeats: usize,
    /// Repeats before them, which are not measured
    #[arg(long, default_value_t = 2, value_parser = whole)]
    warm_up: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Matrix product, f32
    Matmul,
    /// Four convolutions: two of LeNet at batch 256, and 3 × 3 ones of 64 channels
    Conv2d,
    /// Copy, relu, sums and the addition of two tensors of 16 M elements: what memory limits
    Elementwise,
    /// Softmax and layer norm of 4096 × 1000
    Softmax,
    /// Attention of 8 heads over 8 sequences of 256
    Attention,
    /// Additions of a small tensor, of which each depends on the one before: the time of one
    Chain,
    /// Training steps of LeNet at batch 256, and its predictions
    Lenet,
    /// Training steps of ResNet-18 on images of 3 × 96 × 96 at batch 32, and its predictions
    Resnet18,
    /// Copies of 64 MiB from the host's memory to the device and back
    Transfer,
    /// All of them
    All,
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
    /// The most bytes that tensors held at once on the device while this ran.
    peak_memory: u64,
}

/// Runs the command. `as_json`: one object per result, as it is measured, instead of a table at the end.
///
/// # Errors
/// [`Failure::Usage`] for an unknown device; [`Failure::Run`] when a workload fails, after the results before it.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let devices = devices::select(&args.devices.join(","))?;
    let mut table = output::table(&["workload", "shape", "device", "median", "min", "max", "unit", "peak MiB"]);
    let mut result = Ok(());
    'all: for device in &devices {
        for case in workloads::cases(&args.workloads, &args.size) {
            match measure(&case, args, device) {
                Ok(row) if as_json => output::json(&row)?,
                Ok(row) => drop(table.add_row(row.cells())),
                Err(failure) => {
                    result = Err(failure);
                    break 'all;
                }
            }
        }
    }
    if !as_json && !table.is_empty() {
        output::line(table)?;
    }
    result
}

impl Measurement {
    fn cells(&self) -> Vec<String> {
        let number = |v: f64| if v < 100.0 { format!("{v:.2}") } else { format!("{v:.0}") };
        let figures = [self.median, self.min, self.max].map(number);
        let mut cells = vec![self.workload.to_string(), self.shape.clone(), self.device.clone()];
        cells.extend(figures);
        cells.extend([self.unit.to_string(), number(self.peak_memory as f64 / f64::from(1 << 20))]);
        cells
    }
}

fn measure(case: &Case, args: &Args, device: &Device) -> Result<Measurement, Failure> {
    let (workload, shape) = (case.workload, case.shape.clone());
    let spinner = progress::spinner(format!("{workload} {shape} on {device}"));
    device.reset_peak_memory();
    let times = seconds(case, device, args.repeats, args.warm_up).map_err(|e| match Failure::from(e) {
        Failure::Run(message) => Failure::Run(format!("bench {workload} {shape} on {device}: {message}")),
        other => other,
    });
    spinner.finish_and_clear();
    let Measured { min, median, max } = Measured::of(times?.into_iter().map(|seconds| case.figure(seconds)).collect());
    let (device, peak_memory) = (device.to_string(), device.memory().peak);
    Ok(Measurement { workload, shape, device, median, min, max, unit: case.unit.name(), peak_memory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_and_refused() {
        assert_eq!(matmul_shape("512"), Ok([512, 512, 512]));
        assert_eq!(matmul_shape("64x1024x128"), Ok([64, 1024, 128]));
        for bad in ["", "0", "1x2", "1x2x3x4", "axb", "-4", "99999999999999999999999"] {
            matmul_shape(bad).expect_err(bad);
        }
    }
}
