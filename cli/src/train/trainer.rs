//! The loop of a training run.

use anygpu::data::DataLoader;
use anygpu::metrics::{Accuracy, Mean, Throughput};
use anygpu::optim::{LRScheduler, SGD, Scheduler};
use anygpu::watch::ProgressLine;
use anygpu::{DataParallel, Device, Tensor, manual_seed, nn};

use super::record::Record;
use super::resume::Checkpoint;
use super::source::Source;
use super::{Args, Epoch};
use crate::failure::Failure;
use crate::progress::EpochBar;

/// The number of steps between two losses that the bar shows, because reading a loss waits for the device.
const SHOW_EVERY: usize = 20;

/// The number of threads that decode images.
const DECODERS: usize = 4;

/// The state that a step changes: the net on its devices, the optimiser, and the losses.
pub struct Run {
    pub net: DataParallel,
    pub sgd: SGD,
    pub scheduler: Option<Scheduler>,
    pub record: Record,
    /// The figures of the epochs so far, including those before a resumption.
    pub epochs: Vec<Epoch>,
}

impl Run {
    /// Takes one step. Returns its loss, which is not read yet, and its learning rate.
    fn step(&mut self, images: &Tensor, labels: &Tensor) -> Result<(Tensor, f32), Failure> {
        let lr = self.sgd.lr();
        let loss = self.net.train_batch(images, labels, nn::cross_entropy)?;
        self.sgd.step()?;
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.step(&mut self.sgd);
        }
        self.record.step(&loss, lr)?;
        Ok((loss, lr))
    }
}

/// A run with its devices and data.
pub struct Trainer {
    pub devices: Vec<Device>,
    pub run: Run,
    train: DataLoader,
    test: DataLoader,
    checkpoint: Option<Checkpoint>,
    /// The mean loss of the part of the epoch before a resumption.
    begun: Mean,
}

impl Trainer {
    /// Prepares a run.
    ///
    /// # Errors
    /// If a device has no memory.
    pub fn new(args: &Args, devices: Vec<Device>, source: &Source) -> Result<Self, Failure> {
        manual_seed(args.seed);
        let card = &source.card;
        let net = DataParallel::new(card.model.build(card.channels, card.classes.len())?, &devices)?;
        let mut sgd = SGD::new(net.parameters(), args.lr()).momentum(card.model.recipe().momentum);
        // Batches are uploaded in advance to a single device. Several devices split them in `DataParallel`.
        let place = if let [only] = &devices[..] { only.clone() } else { Device::cpu() };
        let loader = |set| {
            let loader = DataLoader::new(set, args.batch_size())?.transform(card.transform()).prefetch(&place);
            Ok::<_, Failure>(if source.slow { loader.workers(DECODERS) } else { loader })
        };
        let (mut train, test) = (loader(source.train.clone())?.shuffle(args.seed), loader(source.test.clone())?);
        if card.model.has_batch_norm() && train.len() >= args.batch_size() {
            train = train.drop_last(); // the statistics of a few images would disturb the running ones
        }
        let steps = train.batches() as u64 * args.epochs() as u64;
        let scheduler = args.scheduler.start(steps, &mut sgd)?;
        let record = Record::new(args.log_dir.as_deref());
        let (run, checkpoint) = (Run { net, sgd, scheduler, record, epochs: Vec::new() }, Checkpoint::new(args, card));
        Ok(Trainer { devices, run, train, test, checkpoint, begun: Mean::new() })
    }

    /// Restores `--checkpoint`, if the file exists. Returns the number of the next epoch, from 1.
    ///
    /// # Errors
    /// As [`Checkpoint::restore`].
    pub fn resume(&mut self) -> Result<usize, Failure> {
        let Some(checkpoint) = &self.checkpoint else { return Ok(1) };
        let Some((at, begun)) = checkpoint.restore(&mut self.run)? else { return Ok(1) };
        self.train.set_state(at);
        self.begun = begun;
        Ok(at.epoch as usize + 1)
    }

    /// Passes over the training images, then over the test images, and appends the figures to the `epochs` of the run.
    ///
    /// # Errors
    /// [`Failure::Run`] if the loss is not finite; the errors of devices and data.
    pub fn epoch(&mut self, epoch: usize, epochs: usize) -> Result<(), Failure> {
        let mut bar = EpochBar::new(epoch, epochs, self.train.len());
        let mut speed = Throughput::new();
        let train_loss = self.pass(epoch, &mut bar, &mut speed)?;
        let (seconds, images_per_s) = (speed.seconds(), speed.per_second());
        let (test_loss, test_acc) = self.evaluate()?;
        bar.finish(&format!(
            "epoch {epoch}/{epochs}  loss {train_loss:.4}  test loss {test_loss:.4}  test acc {test_acc:.4}  \
             {images_per_s:.0} images/s{}",
            self.shares()
        ));
        let done = Epoch { epoch, train_loss, test_loss, test_acc, seconds, images_per_s };
        self.run.record.epoch(&done);
        self.run.epochs.push(done);
        if let Some(checkpoint) = &self.checkpoint {
            checkpoint.save(&mut self.run, self.train.state(), &Mean::new())?;
        }
        Ok(())
    }

    /// The current shares of the devices; empty for one device.
    fn shares(&self) -> String {
        let shares = self.run.net.shares();
        let named = self.devices.iter().zip(&shares).map(|(device, share)| format!("{device} {:.0} %", 100.0 * share));
        if shares.len() < 2 { String::new() } else { format!("  ({})", named.collect::<Vec<_>>().join(", ")) }
    }

    /// Takes the training steps of the next epoch, waits for the devices, and returns the mean loss over its images.
    fn pass(&mut self, epoch: usize, bar: &mut EpochBar, speed: &mut Throughput) -> Result<f64, Failure> {
        let mut mean = std::mem::take(&mut self.begun);
        for (step, batch) in (&self.train).into_iter().enumerate() {
            let (images, labels) = batch?;
            let (loss, lr) = self.run.step(&images, &labels)?;
            mean.add(&loss, labels.elem_count())?;
            speed.add(labels.elem_count());
            bar.advance(labels.elem_count());
            let free = loss.device().is_cpu(); // as with several devices, whose losses the host adds up
            if bar.is_visible() && (free || step % SHOW_EVERY == 0) {
                let memory = ProgressLine::memory_of(&self.devices);
                let loss = Some(f64::from(loss.item::<f32>()?));
                bar.show(&ProgressLine { images_per_s: speed.per_second(), loss, lr, memory });
            }
            let at = self.train.state();
            if let Some(checkpoint) = self.checkpoint.as_ref().filter(|checkpoint| checkpoint.is_due(at.batches)) {
                converging(epoch, mean.value()?)?; // keeps the last good checkpoint
                checkpoint.save(&mut self.run, at, &mean)?;
            }
        }
        self.run.record.read()?;
        for device in &self.devices {
            device.synchronize()?;
        }
        converging(epoch, mean.value()?)
    }

    /// Returns the mean loss and the accuracy on the test images.
    ///
    /// # Errors
    /// The errors of the devices and of reading the images.
    pub fn evaluate(&self) -> Result<(f64, f64), Failure> {
        let (mut loss, mut accuracy) = (Mean::new(), Accuracy::new());
        for batch in self.test.epoch(0) {
            let (images, labels) = batch?;
            let logits = self.run.net.predict(&images)?;
            let labels = labels.to(logits.device())?;
            loss.add(&nn::cross_entropy(&logits, &labels)?, labels.elem_count())?;
            accuracy.add(&logits, &labels)?;
        }
        Ok((loss.value()?, accuracy.value()?))
    }
}

/// Returns the mean loss of an epoch so far, or an error if it is not finite.
fn converging(epoch: usize, loss: f64) -> Result<f64, Failure> {
    if loss.is_finite() {
        return Ok(loss);
    }
    Err(Failure::Run(format!("training diverged: the mean loss of epoch {epoch} is {loss}: try a smaller --lr")))
}
