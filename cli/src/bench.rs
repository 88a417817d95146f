//! `anygpu bench`: the speed of devices in named workloads.
//!
//! Each figure is a rate over one repeat; a repeat runs the workload often enough to take [`REPEAT`] and then waits for
//! the device, so that a fast device is not measured by the time of one submission.

use std::time::{Duration, Instant};

use anygpu::nn::models::{LENET_RECIPE, lenet, resnet18};
use anygpu::{Conv, DataParallel, Device, Tensor, data, manual_seed, nn, optim};
use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;
use crate::values::{at_least_one, whole};
use crate::{devices, output, progress};

/// The least time of one repeat.
const REPEAT: Duration = Duration::from_millis(50);

/// The most runs in one repeat, on a device of any speed.
const MOST_RUNS: usize = 512;

/// The batch size of the `lenet` workload.
const LENET_BATCH: usize = 256;

/// The batch size of the `resnet18` workload, and its images.
const RESNET_BATCH: usize = 32;
const RESNET_IMAGE: [usize; 3] = [3, 96, 96];

/// The size of the `transfer` workload in f32 elements: 64 MiB, half of the largest binding of the smallest adapters.
const TRANSFER_ELEMENTS: usize = 16 << 20;

/// The `conv2d` workload: images `[N, C, H, W]`, weights `[OC, C, K, K]`, padding 1. A middle layer of a ResNet.
const CONV_IMAGES: [usize; 4] = [8, 64, 56, 56];
const CONV_WEIGHTS: [usize; 4] = [64, 64, 3, 3];

/// Measures the speed of devices in named workloads.
///
/// Prints median, minimum and maximum over the repeats, after a warm-up, and the most memory that tensors held on the
/// device.
#[derive(clap::Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// What to run
    #[arg(value_enum, default_value = "all")]
    workload: Workload,
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
    /// 3 × 3 convolution of 8 images of 64 × 56 × 56 into 64 channels
    Conv2d,
    /// Training steps of LeNet at batch 256
    Lenet,
    /// Training steps of ResNet-18 on images of 3 × 96 × 96 at batch 32
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
        for case in cases(args) {
            match case.measure(args, device) {
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

/// One workload to measure.
#[derive(Clone, Copy)]
enum Case {
    Matmul([usize; 3]),
    Conv2d,
    Lenet,
    Resnet18,
    ToDevice,
    FromDevice,
}

fn cases(args: &Args) -> Vec<Case> {
    let matmul = args.size.iter().map(|&shape| Case::Matmul(shape));
    let transfer = [Case::ToDevice, Case::FromDevice];
    match args.workload {
        Workload::Matmul => matmul.collect(),
        Workload::Conv2d => vec![Case::Conv2d],
        Workload::Lenet => vec![Case::Lenet],
        Workload::Resnet18 => vec![Case::Resnet18],
        Workload::Transfer => transfer.to_vec(),
        Workload::All => matmul.chain([Case::Conv2d, Case::Lenet, Case::Resnet18]).chain(transfer).collect(),
    }
}

impl Case {
    /// Workload, shape and unit, as they are printed.
    fn label(self) -> (&'static str, String, &'static str) {
        let times = |sides: &[usize]| sides.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
        match self {
            Case::Matmul(shape) => ("matmul", times(&shape), "GFLOP/s"),
            Case::Conv2d => ("conv2d", format!("{} * {}", times(&CONV_IMAGES), times(&CONV_WEIGHTS)), "GFLOP/s"),
            Case::Lenet => ("lenet", format!("batch {LENET_BATCH}"), "images/s"),
            Case::Resnet18 => ("resnet18", format!("batch {RESNET_BATCH} of {}", times(&RESNET_IMAGE)), "images/s"),
            Case::ToDevice => ("transfer", "64 MiB to device".to_string(), "GB/s"),
            Case::FromDevice => ("transfer", "64 MiB from device".to_string(), "GB/s"),
        }
    }

    fn measure(self, args: &Args, device: &Device) -> Result<Measurement, Failure> {
        let (workload, shape, unit) = self.label();
        let spinner = progress::spinner(format!("{workload} {shape} on {device}"));
        device.reset_peak_memory();
        let rates = self.rates(args, device).map_err(|e| match Failure::from(e) {
            Failure::Run(message) => Failure::Run(format!("bench {workload} {shape} on {device}: {message}")),
            other => other,
        });
        spinner.finish_and_clear();
        let (min, median, max) = spread(rates?);
        let peak_memory = device.memory().peak;
        Ok(Measurement { workload, shape, device: device.to_string(), median, min, max, unit, peak_memory })
    }

    fn rates(self, args: &Args, device: &Device) -> anygpu::Result<Vec<f64>> {
        manual_seed(0);
        match self {
            Case::Matmul([m, k, n]) => {
                let (a, b) = (Tensor::rand([m, k], device)?, Tensor::rand([k, n], device)?);
                let work = 2e-9 * m as f64 * k as f64 * n as f64;
                time(args, device, work, MOST_RUNS, || a.matmul(&b).map(drop))
            }
            Case::Conv2d => {
                let (x, w) = (Tensor::rand(CONV_IMAGES, device)?, Tensor::rand(CONV_WEIGHTS, device)?);
                let [n, c, h, w_] = CONV_IMAGES.map(|v| v as f64);
                let [oc, _, kh, kw] = CONV_WEIGHTS.map(|v| v as f64);
                let work = 2e-9 * n * oc * h * w_ * c * kh * kw;
                time(args, device, work, MOST_RUNS, || x.conv2d(&w, None, Conv::new().padding(1)).map(drop))
            }
            Case::Lenet => {
                let (train, _) = data::mnist_5k()?.loaders(LENET_BATCH, 0)?;
                let whole = train.len() / LENET_BATCH; // without the last batch, which is shorter
                let batches = train.epoch(0).take(whole).collect::<Result<Vec<_>, _>>()?;
                training(args, device, lenet()?, &batches)
            }
            Case::Resnet18 => {
                let [channels, height, width] = RESNET_IMAGE;
                let images = Tensor::rand([RESNET_BATCH, channels, height, width], None)?;
                let labels = Tensor::from_vec((0..RESNET_BATCH as u32).map(|i| i % 10).collect(), RESNET_BATCH, None)?;
                training(args, device, resnet18(channels, 10)?, &[(images, labels)])
            }
            Case::ToDevice => {
                let host = vec![1.5f32; TRANSFER_ELEMENTS];
                let work = 4e-9 * host.len() as f64;
                // One copy at a time: several would fill the memory.
                time(args, device, work, 1, || Tensor::from_slice(&host, [host.len()], device).map(drop))
            }
            Case::FromDevice => {
                let x = Tensor::ones([TRANSFER_ELEMENTS], device)?;
                time(args, device, 4e-9 * x.elem_count() as f64, 1, || x.to_vec::<f32>().map(drop))
            }
        }
    }
}

/// Whole training steps, as `anygpu train` takes them: forward, cross entropy, backward, SGD with momentum. The batch
/// comes from the host each time.
fn training(
    args: &Args,
    device: &Device,
    net: nn::Sequential,
    batches: &[(Tensor, Tensor)],
) -> anygpu::Result<Vec<f64>> {
    let net = DataParallel::new(net, std::slice::from_ref(device))?;
    let mut sgd = optim::SGD::new(net.parameters(), LENET_RECIPE.lr).momentum(LENET_RECIPE.momentum);
    let images = batches.first().map_or(0, |(images, _)| images.shape()[0]);
    let mut next = batches.iter().cycle();
    time(args, device, images as f64, MOST_RUNS, || {
        let Some((images, labels)) = next.next() else { return Ok(()) };
        net.train_batch(images, labels, nn::cross_entropy)?;
        sgd.step()
    })
}

/// The rate of each repeat: `work` per run, in units per second. A repeat takes at least [`REPEAT`] or `most` runs.
fn time(
    args: &Args,
    device: &Device,
    work: f64,
    most: usize,
    mut run: impl FnMut() -> anygpu::Result<()>,
) -> anygpu::Result<Vec<f64>> {
    let mut repeat = |runs: usize| -> anygpu::Result<Duration> {
        let start = Instant::now();
        for _ in 0..runs {
            run()?;
        }
        device.synchronize()?;
        Ok(start.elapsed())
    };
    repeat(1)?; // compiles kernels
    let one = repeat(1)?.as_secs_f64().max(1e-9);
    let runs = ((REPEAT.as_secs_f64() / one).ceil() as usize).clamp(1, most);
    for _ in 0..args.warm_up {
        repeat(runs)?;
    }
    (0..args.repeats).map(|_| Ok(work * runs as f64 / repeat(runs)?.as_secs_f64().max(1e-9))).collect()
}

/// Minimum, median and maximum.
fn spread(mut rates: Vec<f64>) -> (f64, f64, f64) {
    rates.sort_by(f64::total_cmp);
    let middle = rates.len() / 2;
    let median = match rates.len() {
        0 => return (0.0, 0.0, 0.0),
        n if n % 2 == 1 => rates[middle],
        _ => (rates[middle - 1] + rates[middle]) / 2.0,
    };
    (rates[0], median, rates[rates.len() - 1])
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

    #[test]
    fn spread_of_odd_even_and_no_repeats() {
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), (1.0, 2.0, 3.0));
        assert_eq!(spread(vec![4.0, 1.0, 2.0, 3.0]), (1.0, 2.5, 4.0));
        assert_eq!(spread(vec![]), (0.0, 0.0, 0.0));
    }
}
