//! `anygpu train`: trains a net on images, on any mix of devices.
//!
//! `source` has the images, `trainer` the loop, `record` the losses, and `resume` the checkpoints.

mod record;
mod resume;
mod source;
mod trainer;

use std::path::{Path, PathBuf};

use anygpu::data::Limits;
use anygpu::optim::{CosineAnnealingLR, OneCycleLR, SGD, Schedule, Scheduler, StepLR};
use anygpu::watch::Animator;
use anygpu::{Device, checkpoint};
use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;
use crate::net::{Card, Model};
use crate::{devices, output};
use trainer::Trainer;

/// Trains a net on images, on any mix of devices.
///
/// With no option: LeNet on 5,000 handwritten digits that are built in (4,000 to train, 1,000 to test).
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The net
    #[arg(value_enum, default_value = "lenet")]
    model: Model,
    /// auto: all hardware GPUs, else the CPU. all: also software adapters and the CPU. Or a list: gpu:0,soft:1,cpu
    #[arg(long, default_value = "auto", value_name = "auto|all|LIST")]
    devices: String,
    /// mnist-5k (built in), fashion-mnist (downloaded once), or a folder: with the four IDX files of MNIST, the binary
    /// files of CIFAR-10, or PNG and JPEG images in a folder for each class (in train/ and test/, or a fifth is held
    /// out)
    #[arg(long, default_value = "mnist-5k", value_name = "mnist-5k|fashion-mnist|DIR")]
    data: String,
    /// The largest image that is decoded, in pixels [default: 67108864]
    #[arg(long, value_name = "PIXELS")]
    max_pixels: Option<usize>,
    /// The most bytes that the elements of an IDX or CIFAR-10 file may take [default: 805306368]
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<usize>,
    /// Use at most this many images to train, and as many to test
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
    /// Height and width that images are resized to [default: 28 for lenet, 96 for resnet18]
    #[arg(long, value_name = "PIXELS", value_parser = at_least_one)]
    resize: Option<usize>,
    /// Number of passes over the training images [default: 10]
    #[arg(long, value_parser = at_least_one)]
    epochs: Option<usize>,
    /// Images in one step, over all devices together [default: 64 for lenet; 32 for resnet18, which omits the
    /// images of an epoch that do not fill a batch]
    #[arg(long, value_parser = at_least_one)]
    batch_size: Option<usize>,
    /// Learning rate of SGD with momentum [default: 0.05 for lenet, 0.01 for resnet18]
    #[arg(long, value_parser = learning_rate)]
    lr: Option<f32>,
    /// How the learning rate changes from there, step by step
    #[arg(long, value_enum, default_value = "constant")]
    scheduler: Rate,
    /// Seed of the initial weights and the order of the images
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write the trained net, for `anygpu predict` and for PyTorch
    #[arg(long, value_name = "out.safetensors")]
    save: Option<PathBuf>,
    /// Write all that the run needs to continue to this file after each epoch, atomically
    #[arg(long, value_name = "run.safetensors")]
    checkpoint: Option<PathBuf>,
    /// Write --checkpoint also after every so many steps of an epoch
    #[arg(long, value_name = "STEPS", value_parser = at_least_one, requires = "checkpoint")]
    checkpoint_steps: Option<usize>,
    /// Continue from --checkpoint, on any devices; start a new run if there is no such file yet
    #[arg(long, requires = "checkpoint")]
    resume: bool,
    /// Write the losses for TensorBoard into this folder. If that fails, training goes on with a warning
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Write a picture of loss and accuracy by epoch, PNG or SVG, after each one
    #[arg(long, value_name = "out.png|out.svg")]
    plot: Option<PathBuf>,
}

/// The values of `--scheduler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rate {
    /// The same in all steps
    Constant,
    /// Divided by ten after each third of the run
    Step,
    /// Down to 0 along half a cosine
    Cosine,
    /// Up from 1/25 of --lr to it, and down again
    Onecycle,
}

impl Rate {
    /// Starts the schedule of a run of so many steps.
    fn start(self, steps: u64, sgd: &mut SGD) -> anygpu::Result<Option<Scheduler>> {
        Ok(match self {
            Rate::Constant => None,
            Rate::Step => Some(StepLR::new(steps.div_ceil(3), 0.1)?.start(sgd)),
            Rate::Cosine => Some(CosineAnnealingLR::new(steps)?.start(sgd)),
            Rate::Onecycle => Some(OneCycleLR::new(f64::from(sgd.lr()), steps)?.start(sgd)),
        })
    }
}

impl Args {
    fn batch_size(&self) -> usize {
        self.batch_size.unwrap_or(self.model.recipe().batch_size)
    }

    fn lr(&self) -> f32 {
        self.lr.unwrap_or(self.model.recipe().lr)
    }

    /// Height and width of the images.
    fn side(&self) -> usize {
        self.resize.unwrap_or(self.model.side())
    }

    /// What the files of `--data` may decode to.
    fn limits(&self) -> Limits {
        let limits = self.max_pixels.map_or(Limits::new(), |pixels| Limits::new().pixels(pixels));
        self.max_bytes.map_or(limits, |bytes| limits.bytes(bytes))
    }

    fn epochs(&self) -> usize {
        self.epochs.unwrap_or(self.model.recipe().epochs)
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("it must be a whole number of at least 1".to_string()),
        Ok(n) => Ok(n),
    }
}

fn learning_rate(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(lr) if lr.is_finite() && lr > 0.0 => Ok(lr),
        _ => Err("it must be a number above 0".to_string()),
    }
}

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
}

/// Runs the command. `as_json`: one object per epoch and last the summary, instead of one line for people.
///
/// # Errors
/// [`Failure::Usage`] for options that do not fit this machine, [`Failure::Run`] when training fails.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let devices = devices::select(&args.devices)?;
    check(args, &devices)?;
    let source = source::load(args)?;
    let mut trainer = Trainer::new(args, devices, &source)?;
    let title = format!("{} on {}, {}", args.model.name(), args.data, devices::names(&trainer.devices));
    let mut curves =
        Animator::new("epoch").title(&title).panel("loss", &["training", "test"]).shares("accuracy", &["test"]);
    let first = if args.resume { trainer.resume()? } else { 1 };
    let before = trainer.run.epochs.len();
    for done in &trainer.run.epochs {
        curves.add(done.epoch as f64, &done.curves())?;
    }
    for epoch in first..=args.epochs() {
        trainer.epoch(epoch, args.epochs())?;
        let Some(done) = trainer.run.epochs.last() else { continue };
        if as_json {
            output::json(done)?;
        }
        curves.add(epoch as f64, &done.curves())?;
        if let Some(path) = &args.plot {
            curves.save(path)?;
        }
    }
    // A run that already has all its epochs is only measured and written.
    let finished = first > args.epochs();
    if let Some(path) = args.plot.as_ref().filter(|_| finished) {
        curves.save(path)?;
    }
    let epochs = &trainer.run.epochs;
    let test_acc = if finished { trainer.evaluate()?.1 } else { epochs.last().map_or(f64::NAN, |e| e.test_acc) };
    if let Some(path) = &args.save {
        save(path, &trainer, &source.card)?;
    }
    report(args, &trainer, &epochs[if finished { 0 } else { before }..], test_acc, as_json)
}

/// Checks the options before the first epoch, so that a run does not fail after the last one.
fn check(args: &Args, devices: &[Device]) -> Result<(), Failure> {
    if args.batch_size() < devices.len() {
        return Err(Failure::Usage(format!(
            "--batch-size {} is too small for {} devices: each needs at least one image per step",
            args.batch_size(),
            devices.len()
        )));
    }
    if let Some(path) = args.checkpoint.as_deref().filter(|path| path.exists() && !args.resume) {
        let path = path.display();
        return Err(Failure::Usage(format!(
            "--checkpoint {path}: the file exists: continue it with --resume, or remove it"
        )));
    }
    let outputs = [
        ("--save", &args.save, &["safetensors"][..]),
        ("--checkpoint", &args.checkpoint, &["safetensors"]),
        ("--plot", &args.plot, &["png", "svg"]),
    ];
    let mut files: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path, kinds) in outputs {
        let Some(path) = path else { continue };
        let file = writable(option, path, kinds)?;
        if let Some((other, _)) = files.iter().find(|(_, other)| is_same(other, &file)) {
            return Err(Failure::Usage(format!("{other} and {option} name the same file: each needs its own")));
        }
        files.push((option, file));
    }
    Ok(())
}

/// Tries to write a file, which needs one of these extensions. Returns its absolute path, without links.
fn writable(option: &str, path: &Path, kinds: &[&str]) -> Result<PathBuf, Failure> {
    if !path.extension().is_some_and(|end| kinds.iter().any(|kind| end.eq_ignore_ascii_case(kind))) {
        let ends = kinds.iter().map(|kind| format!(".{kind}")).collect::<Vec<_>>().join(" or ");
        return Err(Failure::Usage(format!("{option} {}: name a file that ends in {ends}", path.display())));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Failure::Run(format!("{option} {}: there is no folder {}", path.display(), folder.display())));
    }
    checkpoint::check_writable(path)
        .map_err(|error| Failure::Run(format!("{option} {}: it cannot be written: {error}", path.display())))
}

/// Returns whether two paths of [`writable`] name one file. On macOS and Windows, names usually have no case.
fn is_same(a: &Path, b: &Path) -> bool {
    let lower = |path: &Path| path.to_string_lossy().to_lowercase();
    a == b || cfg!(any(windows, target_os = "macos")) && lower(a) == lower(b)
}

/// Writes the net and its card.
fn save(path: &Path, trainer: &Trainer, card: &Card) -> Result<(), Failure> {
    let state = trainer.run.net.state_dict();
    Ok(checkpoint::save_with_metadata(&state, &card.to_metadata(), path)?)
}

/// Prints the summary of the epochs since this start, or of all epochs of a finished run.
fn report(args: &Args, trainer: &Trainer, epochs: &[Epoch], test_acc: f64, as_json: bool) -> Result<(), Failure> {
    let seconds: f64 = epochs.iter().map(|e| e.seconds).sum();
    let sec_per_epoch = seconds / epochs.len().max(1) as f64;
    if !as_json {
        let names = devices::names(&trainer.devices);
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
    })
}
