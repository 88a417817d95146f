//! `anygpu train`: trains a net on images, on any mix of devices.
//!
//! `options` has the command line, `outputs` the checks before training, `source` the images, `trainer` the loop,
//! `record` the losses, `ranks` the processes that `mpirun` started, `resume` the checkpoints, `device_loss` what
//! follows the loss of a device, `stop` the handling of Ctrl-C, `kernels` the kernels that are compiled ahead, and
//! `live` the curves in the terminal.

mod device_loss;
mod kernels;
mod live;
mod options;
mod outputs;
mod ranks;
mod record;
mod resume;
mod source;
mod stop;
mod trainer;

use std::path::{Path, PathBuf};

use anygpu::nn::Module;
use anygpu::parallel::{DeviceReport, ParallelReport};
use anygpu::{Tensor, checkpoint, onnx};
use anygpu_plot::Animator;
use serde::Serialize;

use crate::failure::Failure;
use crate::net::Card;
use crate::{devices, output};
use device_loss::DeviceLosses;
pub use options::Args;
use ranks::{Rank, Ranks};
use resume::Checkpoint;
use stop::Stop;
use trainer::Trainer;

/// One epoch, as `--json` prints it.
#[derive(Serialize)]
struct Epoch {
    epoch: usize,
    train_loss: f64,
    test_loss: f64,
    test_acc: f64,
    seconds: f64,
    images_per_s: f64,
}

impl Epoch {
    /// The values that `--plot` shows.
    fn curves(&self) -> [f64; 3] {
        [self.train_loss, self.test_loss, self.test_acc]
    }

    /// All figures but the number, by name.
    fn figures(&self) -> [(&'static str, f64); 5] {
        let Epoch { train_loss, test_loss, test_acc, seconds, images_per_s, .. } = *self;
        [
            ("train_loss", train_loss),
            ("test_loss", test_loss),
            ("test_acc", test_acc),
            ("seconds", seconds),
            ("images_per_s", images_per_s),
        ]
    }

    /// The reverse of [`figures`](Epoch::figures); NaN for missing figures.
    fn from_figures(epoch: usize, figures: &[(String, f64)]) -> Epoch {
        let get = |name| figures.iter().find(|(key, _)| key == name).map_or(f64::NAN, |(_, value)| *value);
        Epoch {
            epoch,
            train_loss: get("train_loss"),
            test_loss: get("test_loss"),
            test_acc: get("test_acc"),
            seconds: get("seconds"),
            images_per_s: get("images_per_s"),
        }
    }
}

/// The last line of `--json`.
#[derive(Serialize)]
struct Summary {
    model: &'static str,
    data: String,
    devices: Vec<String>,
    test_acc: f64,
    sec_per_epoch: f64,
    images_per_s: f64,
    /// The final share of each device in a batch.
    shares: Vec<f64>,
    step_losses: Vec<f32>,
    /// The most bytes that tensors held on each device.
    memory_peak: Vec<u64>,
    /// What each device did, with `--report`.
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<Report>,
    /// All processes of the run, if there are several. The devices above are the devices of rank 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<Rank>,
}

/// The report of `--report`, in JSON. Times are in seconds.
#[derive(Serialize)]
struct Report {
    steps: u64,
    samples: u64,
    seconds: f64,
    speed_up: Option<f64>,
    hidden_copies: Option<f64>,
    devices: Vec<DeviceTimes>,
}

/// What one device did.
#[derive(Serialize)]
struct DeviceTimes {
    device: String,
    samples: u64,
    compute: f64,
    copies: f64,
    idle: f64,
    takes_part: bool,
    failed: bool,
}

impl From<ParallelReport> for Report {
    fn from(report: ParallelReport) -> Report {
        let (speed_up, hidden_copies) = (report.speed_up(), report.hidden());
        let times = |device: DeviceReport| {
            let DeviceReport { device, samples, compute, copies, idle, takes_part, failed, .. } = device;
            DeviceTimes { device, samples, compute, copies, idle, takes_part, failed }
        };
        let ParallelReport { steps, samples, seconds, devices, .. } = report;
        Report { steps, samples, seconds, speed_up, hidden_copies, devices: devices.into_iter().map(times).collect() }
    }
}

/// Runs the command. `as_json`: one object per epoch and last the summary, instead of one line for people.
///
/// # Errors
/// [`Failure::Usage`] for options that do not fit this machine, [`Failure::Run`] when training fails.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let ranks = Ranks::start()?;
    let result = match ranks.is_first() {
        true => train(args, as_json, &ranks),
        false => train(&args.without_outputs(), as_json, &ranks),
    };
    ranks.end(result)
}

fn train(args: &Args, as_json: bool, ranks: &Ranks) -> Result<(), Failure> {
    let devices = devices::select(&args.devices)?;
    outputs::check(args, &devices, ranks)?;
    let ahead = kernels::compile_ahead(args, &devices)?;
    let source = source::load(args)?;
    let stop = Stop::listen(ranks);
    Checkpoint::compare_ranks(args, ranks)?;
    let mut trainer = Trainer::new(args, devices, &source, stop.clone(), ranks)?;
    let first = if args.resume { trainer.resume()? } else { 1 };
    let before = trainer.run.epochs.len();
    let (mut curves, mut printed) = (Curves::new(args, &trainer)?, before);
    let (mut epoch, mut losses) = (first, DeviceLosses::new(args, &source, &stop));
    // A run that already has all its epochs is only measured and written.
    let finished = first > args.epochs() || trainer.stops_early();
    while epoch <= args.epochs() && !trainer.stops_early() {
        match trainer.epoch(epoch, args.epochs()) {
            Ok(()) => epoch += 1,
            Err(Failure::DeviceLost(lost)) if !ranks.are_several() => {
                (trainer, epoch) = losses.recover(&trainer, lost)?;
                curves = Curves::new(args, &trainer)?; // those of the epochs that are kept
                continue;
            }
            Err(failure) => return Err(failure),
        }
        let Some(done) = trainer.run.epochs.last() else { continue };
        // Without a checkpoint, a loss repeats epochs.
        if as_json && ranks.is_first() && done.epoch > printed {
            output::json(done)?;
            printed = done.epoch;
        }
        curves.add(done)?;
    }
    trainer.finish();
    if finished {
        curves.save();
    }
    let epochs = &trainer.run.epochs;
    let test_acc = if finished { trainer.measure()? } else { epochs.last().map_or(f64::NAN, |e| e.test_acc) };
    if let Some(path) = &args.save {
        save(path, &trainer, &source.card)?;
    }
    if let Some(path) = &args.export {
        export(path, &trainer, &source.card)?;
    }
    if let Some(path) = &args.trace {
        trainer.run.net.save_trace(path)?;
    }
    ahead.save(&trainer.devices)?;
    let names = trainer.devices.iter().map(ToString::to_string).collect();
    let table = ranks.table(names, &trainer.run.net.shard().weights());
    match ranks.is_first() {
        true => report(args, &trainer, &epochs[if finished { 0 } else { before }..], test_acc, as_json, table),
        false => Ok(()),
    }
}

/// The picture of `--plot`.
struct Curves {
    picture: Animator,
    path: Option<PathBuf>,
    /// Whether the last picture could not be written.
    failed: bool,
}

impl Curves {
    /// Creates the curves of a run, with the epochs that it already has.
    fn new(args: &Args, trainer: &Trainer) -> Result<Curves, Failure> {
        let title = format!("{} on {}, {}", args.model.name(), args.data, devices::names(&trainer.devices));
        let picture = Animator::new("epoch").title(&title);
        let mut picture = picture.panel("loss", &["training", "test"]).shares("accuracy", &["test"]);
        for done in &trainer.run.epochs {
            picture.add(done.epoch as f64, &done.curves())?;
        }
        Ok(Curves { picture, path: args.plot.clone(), failed: false })
    }

    /// Adds an epoch and writes the picture.
    fn add(&mut self, done: &Epoch) -> Result<(), Failure> {
        self.picture.add(done.epoch as f64, &done.curves())?;
        self.save();
        Ok(())
    }

    /// Writes the picture. If that fails, a warning is logged: once, until it succeeds again.
    fn save(&mut self) {
        let Some(path) = &self.path else { return };
        let written = self.picture.save(path);
        if let Err(error) = written.as_ref().map_err(|error| error.to_string())
            && !self.failed
        {
            log::warn!("--plot: {error}: training goes on without the picture");
        }
        self.failed = written.is_err();
    }
}

/// Writes the net and its card.
fn save(path: &Path, trainer: &Trainer, card: &Card) -> Result<(), Failure> {
    let state = trainer.run.net.state_dict();
    Ok(checkpoint::save_with_metadata(&state, &card.to_metadata(), path)?)
}

/// Writes the net for other runtimes, with the scaling of the images, so that they need not know it.
fn export(path: &Path, trainer: &Trainer, card: &Card) -> Result<(), Failure> {
    let net = trainer.run.net.module().clone_box();
    let device = trainer.run.net.parameters()[0].device().clone(); // the host, if there are several devices
    let example = Tensor::zeros([1, card.channels, card.side, card.side], &device)?;
    let by_channel = |values: &[f32]| Tensor::from_slice(values, [card.channels, 1, 1], &device);
    let (mean, std) = (by_channel(&card.mean)?, by_channel(&card.std)?);
    let exporter = onnx::Exporter::new().inputs(&["image"]).outputs(&["scores"]);
    exporter.export_with(&net, &[&example], path, |net, inputs| {
        Ok(vec![net.forward(&inputs[0].sub(&mean)?.div(&std)?)?])
    })?;
    Ok(())
}

/// Prints the summary of the epochs since this start, or of all epochs of a finished run.
fn report(
    args: &Args,
    trainer: &Trainer,
    epochs: &[Epoch],
    test_acc: f64,
    as_json: bool,
    ranks: Vec<Rank>,
) -> Result<(), Failure> {
    let seconds: f64 = epochs.iter().map(|e| e.seconds).sum();
    let sec_per_epoch = seconds / epochs.len().max(1) as f64;
    if !as_json {
        let names = match ranks.len() {
            0 => devices::names(&trainer.devices),
            _ => ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        };
        if args.report {
            output::line(trainer.run.net.report().to_string().trim_end())?;
        }
        return output::line(format!("test acc {test_acc:.2}, {sec_per_epoch:.1} s/epoch on {names}"));
    }
    output::json(&Summary {
        model: args.model.name(),
        data: args.data.clone(),
        devices: trainer.devices.iter().map(ToString::to_string).collect(),
        test_acc,
        sec_per_epoch,
        images_per_s: epochs.iter().map(|e| e.images_per_s * e.seconds).sum::<f64>() / seconds,
        shares: trainer.run.net.shares(),
        step_losses: trainer.run.record.step_losses.clone(),
        memory_peak: trainer.devices.iter().map(|device| device.memory().peak).collect(),
        report: args.report.then(|| Report::from(trainer.run.net.report())),
        ranks,
    })
}
