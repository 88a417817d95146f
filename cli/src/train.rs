//! `anygpu train`: LeNet on images, on any mix of devices.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anygpu::data::{self, DataLoader, Splits};
use anygpu::nn::models::{LENET_RECIPE, lenet};
use anygpu::{DataParallel, Device, Tensor, manual_seed, nn, optim};
use serde::Serialize;

use crate::failure::Failure;
use crate::progress::EpochBar;
use crate::{devices, download, output, plot};

/// How many steps' losses the summary holds: enough to compare two devices before rounding makes them part.
const STEP_LOSSES: usize = 10;

/// The bar reads the loss every so many steps, because each reading waits for the device.
const SHOW_EVERY: usize = 20;

/// Trains LeNet on images, on any mix of devices.
///
/// With no option: LeNet on 5,000 handwritten digits that are built in (4,000 to train, 1,000 to test).
#[derive(clap::Args, Debug)]
pub struct Args {
    /// auto: all hardware GPUs, else the CPU. all: also software adapters and the CPU. Or a list: gpu:0,soft:1,cpu
    #[arg(long, default_value = "auto", value_name = "auto|all|LIST")]
    devices: String,
    /// mnist-5k (built in), fashion-mnist (downloaded once), or a folder with the four IDX files of MNIST
    #[arg(long, default_value = "mnist-5k", value_name = "mnist-5k|fashion-mnist|DIR")]
    data: String,
    /// How often each training image is seen
    #[arg(long, default_value_t = LENET_RECIPE.epochs, value_parser = at_least_one)]
    epochs: usize,
    /// Images in one step, over all devices together
    #[arg(long, default_value_t = LENET_RECIPE.batch_size, value_parser = at_least_one)]
    batch_size: usize,
    /// Learning rate of SGD with momentum
    #[arg(long, default_value_t = LENET_RECIPE.lr, value_parser = learning_rate)]
    lr: f32,
    /// Decides the first weights and the order of the images
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Write a picture of loss and accuracy by epoch
    #[arg(long, value_name = "out.png")]
    plot: Option<PathBuf>,
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

/// The last line of `--json`.
#[derive(Serialize)]
struct Summary {
    model: &'static str,
    data: String,
    devices: Vec<String>,
    test_acc: f64,
    sec_per_epoch: f64,
    images_per_s: f64,
    /// The part of a batch that each device got in the end.
    shares: Vec<f64>,
    step_losses: Vec<f32>,
}

/// Runs the command. `as_json`: one object per epoch and last the summary, instead of one line for people.
///
/// # Errors
/// [`Failure::Usage`] for options that do not go together with this machine, [`Failure::Run`] when training fails.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let devices = devices::select(&args.devices)?;
    check(args, &devices)?;
    let data = load(&args.data)?;
    let mut trainer = Trainer::new(args, devices, &data)?;
    let mut epochs: Vec<Epoch> = Vec::new();
    for epoch in 1..=args.epochs {
        let done = trainer.epoch(epoch, args.epochs)?;
        if as_json {
            output::json(&done)?;
        }
        epochs.push(done);
    }
    if let Some(path) = &args.plot {
        let title = format!("LeNet on {}, {}", args.data, devices::names(&trainer.devices));
        plot::write(path, &title, &epochs.iter().map(point).collect::<Vec<_>>())?;
    }
    report(args, &trainer, &epochs, as_json)
}

/// What can be known to be wrong before the first epoch, and must not be found out after the last.
fn check(args: &Args, devices: &[Device]) -> Result<(), Failure> {
    if args.batch_size < devices.len() {
        return Err(Failure::Usage(format!(
            "--batch-size {} is too small for {} devices: each needs at least one image per step",
            args.batch_size,
            devices.len()
        )));
    }
    let Some(path) = &args.plot else { return Ok(()) };
    if !path.extension().is_some_and(|e| e.eq_ignore_ascii_case("png")) {
        return Err(Failure::Usage(format!(
            "--plot {}: it writes PNG, so name a file that ends in .png",
            path.display()
        )));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Failure::Run(format!("--plot {}: there is no folder {}", path.display(), folder.display())));
    }
    Ok(())
}

fn load(name: &str) -> Result<Splits, Failure> {
    let data = match name {
        "mnist-5k" => data::mnist_5k()?,
        "fashion-mnist" => data::from_dir(download::fashion_mnist()?)?,
        dir if Path::new(dir).is_dir() => data::from_dir(dir)?,
        other => {
            return Err(Failure::Usage(format!(
                "--data {other}: no such folder; write mnist-5k, fashion-mnist, or a folder with the four IDX files"
            )));
        }
    };
    let (h, w) = (data.train.h, data.train.w);
    if (h, w) != (28, 28) {
        return Err(Failure::Run(format!("--data {name}: LeNet takes images of 28 × 28, these are {h} × {w}")));
    }
    Ok(data)
}

fn point(epoch: &Epoch) -> plot::Point {
    let Epoch { epoch, train_loss, test_loss, test_acc, .. } = *epoch;
    plot::Point { epoch, train_loss, test_loss, test_acc }
}

fn report(args: &Args, trainer: &Trainer, epochs: &[Epoch], as_json: bool) -> Result<(), Failure> {
    let seconds: f64 = epochs.iter().map(|e| e.seconds).sum();
    let test_acc = epochs.last().map_or(0.0, |e| e.test_acc);
    let sec_per_epoch = seconds / epochs.len().max(1) as f64;
    if !as_json {
        let names = devices::names(&trainer.devices);
        return output::line(format!("test acc {test_acc:.2}, {sec_per_epoch:.1} s/epoch on {names}"));
    }
    output::json(&Summary {
        model: "lenet",
        data: args.data.clone(),
        devices: trainer.devices.iter().map(ToString::to_string).collect(),
        test_acc,
        sec_per_epoch,
        images_per_s: trainer.train.len() as f64 / sec_per_epoch,
        shares: trainer.net.shares(),
        step_losses: trainer.step_losses.clone(),
    })
}

/// The network on its devices, the optimiser and the data.
struct Trainer {
    devices: Vec<Device>,
    net: DataParallel,
    sgd: optim::Sgd,
    train: DataLoader,
    test: DataLoader,
    step_losses: Vec<f32>,
}

impl Trainer {
    fn new(args: &Args, devices: Vec<Device>, data: &Splits) -> Result<Self, Failure> {
        manual_seed(args.seed);
        let net = DataParallel::new(lenet()?, &devices)?;
        let sgd = optim::Sgd::new(net.parameters(), args.lr).momentum(LENET_RECIPE.momentum);
        let (train, test) = data.loaders(args.batch_size, args.seed)?;
        Ok(Trainer { devices, net, sgd, train, test, step_losses: Vec::new() })
    }

    /// One pass over the training images, then one over the test images.
    fn epoch(&mut self, epoch: usize, epochs: usize) -> Result<Epoch, Failure> {
        let mut bar = EpochBar::new(epoch, epochs, self.train.len());
        let start = Instant::now();
        let train_loss = self.pass(epoch, &mut bar)?;
        let seconds = start.elapsed().as_secs_f64();
        if !train_loss.is_finite() {
            return Err(Failure::Run(format!(
                "training diverged: the mean loss of epoch {epoch} is {train_loss}: try a smaller --lr"
            )));
        }
        let (test_loss, test_acc) = self.evaluate()?;
        let images_per_s = self.train.len() as f64 / seconds.max(1e-9);
        bar.finish(&format!(
            "epoch {epoch}/{epochs}  loss {train_loss:.4}  test loss {test_loss:.4}  test acc {test_acc:.4}  \
             {images_per_s:.0} images/s{}",
            self.shares()
        ));
        Ok(Epoch { epoch, train_loss, test_loss, test_acc, seconds, images_per_s })
    }

    /// How the work is shared out now; nothing where one device does it all.
    fn shares(&self) -> String {
        let shares = self.net.shares();
        let named = self.devices.iter().zip(&shares).map(|(device, share)| format!("{device} {:.0} %", 100.0 * share));
        if shares.len() < 2 { String::new() } else { format!("  ({})", named.collect::<Vec<_>>().join(", ")) }
    }

    /// The training steps of one epoch; the mean loss over its images. Returns when every device is done.
    fn pass(&mut self, epoch: usize, bar: &mut EpochBar) -> Result<f64, Failure> {
        let mut mean = Mean::default();
        let mut first = Vec::new();
        for (step, batch) in self.train.epoch(epoch as u64 - 1).enumerate() {
            let (images, labels) = batch?;
            let loss = self.net.train_batch(&images, &labels, nn::cross_entropy)?;
            self.sgd.step()?;
            mean.add(&loss, labels.elem_count())?;
            if self.step_losses.len() + first.len() < STEP_LOSSES {
                first.push(loss.clone());
            }
            bar.advance(labels.elem_count());
            let free = loss.device().is_cpu(); // as it is with several devices, where the host has summed it
            if bar.is_visible() && (free || step % SHOW_EVERY == 0) {
                bar.show(f64::from(loss.item::<f32>()?));
            }
        }
        for loss in first {
            self.step_losses.push(loss.item()?);
        }
        for device in &self.devices {
            device.synchronize()?;
        }
        mean.value()
    }

    /// Mean loss and accuracy on the test images.
    fn evaluate(&self) -> Result<(f64, f64), Failure> {
        let (mut loss, mut right) = (Mean::default(), 0);
        for batch in self.test.epoch(0) {
            let (images, labels) = batch?;
            let logits = self.net.predict(&images)?;
            let labels = labels.to(logits.device())?;
            loss.add(&nn::cross_entropy(&logits, &labels)?, labels.elem_count())?;
            right += nn::correct(&logits, &labels)?;
        }
        Ok((loss.value()?, right as f64 / self.test.len().max(1) as f64))
    }
}

/// A mean over images that stays on its device until it is asked for.
#[derive(Default)]
struct Mean {
    sum: Option<Tensor>,
    count: usize,
}

impl Mean {
    /// Counts the mean `value` of `count` images.
    fn add(&mut self, value: &Tensor, count: usize) -> Result<(), Failure> {
        let value = value.detach().mul_scalar(count as f32)?;
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum.add(&value)?,
            None => value,
        });
        self.count += count;
        Ok(())
    }

    fn value(&self) -> Result<f64, Failure> {
        let sum = self.sum.as_ref().map_or(Ok(0.0), Tensor::item::<f32>)?;
        Ok(f64::from(sum) / self.count.max(1) as f64)
    }
}
