//! The loop of a training run.

use anygpu::data::DataLoader;
use anygpu::metrics::{Accuracy, Mean, Throughput};
use anygpu::optim::{LrScheduler, Scheduler, Sgd};
use anygpu::watch::ProgressLine;
use anygpu::{DataParallel, Device, Tensor, manual_seed, nn};

use super::record::Record;
use super::resume::Checkpoint;
use super::source::Source;
use super::{Args, Epoch};
use crate::failure::Failure;
use crate::progress::EpochBar;

/// The bar reads the loss every so many steps, because each reading waits for the device.
const SHOW_EVERY: usize = 20;

/// Threads that decode images.
const DECODERS: usize = 4;

/// What a step changes: the network on its devices, the optimiser, and what is kept of the losses.
pub struct Run {
    pub net: DataParallel,
    pub sgd: Sgd,
    pub scheduler: Option<Scheduler>,
    pub record: Record,
    /// The figures of the epochs so far, those before a resumption too.
    pub epochs: Vec<Epoch>,
}

impl Run {
    /// One step: its loss, not read yet, and its learning rate.
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
    /// The mean loss of the part of the epoch that a resumed run had before.
    begun: Mean,
}

impl Trainer {
    /// Everything in its place, before the first step.
    ///
    /// # Errors
    /// When a device has no room, or the log's folder cannot be made.
    pub fn new(args: &Args, devices: Vec<Device>, source: &Source) -> Result<Self, Failure> {
        manual_seed(args.seed);
        let card = &source.card;
        let net = DataParallel::new(card.model.build(card.channels, card.classes.len())?, &devices)?;
        let mut sgd = Sgd::new(net.parameters(), args.lr()).momentum(card.model.recipe().momentum);
        // One device gets its batches from another thread; several cut them up themselves.
        let place = if let [only] = &devices[..] { only.clone() } else { Device::cpu() };
        let loader = |set| {
            let loader = DataLoader::new(set, args.batch_size())?.transform(card.transform()).prefetch(&place);
            Ok::<_, Failure>(if source.slow { loader.workers(DECODERS) } else { loader })
        };
        let (mut train, test) = (loader(source.train.clone())?.shuffle(args.seed), loader(source.test.clone())?);
        if card.model.has_batch_norm() && train.len() >= args.batch_size() {
            train = train.drop_last(); // one image's statistics, say, would upset the running ones
        }
        let steps = train.batches() as u64 * args.epochs() as u64;
        let scheduler = args.scheduler.start(steps, &mut sgd)?;
        let record = Record::new(args.log_dir.as_deref())?;
        let (run, checkpoint) = (Run { net, sgd, scheduler, record, epochs: Vec::new() }, Checkpoint::new(args, card));
        Ok(Trainer { devices, run, train, test, checkpoint, begun: Mean::new() })
    }

    /// Goes on where `--checkpoint` left off, if it is there: the number of the epoch to go on with, from 1.
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

    /// One pass over the training images, then one over the test images; its figures are the last of the run's `epochs`.
    ///
    /// # Errors
    /// [`Failure::Run`] when the loss is no number any more, and whatever fails on the way.
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
        self.run.record.epoch(&done)?;
        self.run.epochs.push(done);
        if let Some(checkpoint) = &self.checkpoint {
            checkpoint.save(&mut self.run, self.train.state(), &Mean::new())?;
        }
        Ok(())
    }

    /// How the work is shared out now; nothing where one device does it all.
    fn shares(&self) -> String {
        let shares = self.run.net.shares();
        let named = self.devices.iter().zip(&shares).map(|(device, share)| format!("{device} {:.0} %", 100.0 * share));
        if shares.len() < 2 { String::new() } else { format!("  ({})", named.collect::<Vec<_>>().join(", ")) }
    }

    /// The training steps of the next epoch; the mean loss over its images. Returns when every device is done.
    fn pass(&mut self, epoch: usize, bar: &mut EpochBar, speed: &mut Throughput) -> Result<f64, Failure> {
        let mut mean = std::mem::take(&mut self.begun);
        for (step, batch) in (&self.train).into_iter().enumerate() {
            let (images, labels) = batch?;
            let (loss, lr) = self.run.step(&images, &labels)?;
            mean.add(&loss, labels.elem_count())?;
            speed.add(labels.elem_count());
            bar.advance(labels.elem_count());
            let free = loss.device().is_cpu(); // as it is with several devices, where the host has summed it
            if bar.is_visible() && (free || step % SHOW_EVERY == 0) {
                let memory = ProgressLine::memory_of(&self.devices);
                let loss = Some(f64::from(loss.item::<f32>()?));
                bar.show(&ProgressLine { images_per_s: speed.per_second(), loss, lr, memory });
            }
            let at = self.train.state();
            if let Some(checkpoint) = self.checkpoint.as_ref().filter(|checkpoint| checkpoint.is_due(at.batches)) {
                converging(epoch, mean.value()?)?; // the last good checkpoint stays
                checkpoint.save(&mut self.run, at, &mean)?;
            }
        }
        self.run.record.read()?;
        for device in &self.devices {
            device.synchronize()?;
        }
        converging(epoch, mean.value()?)
    }

    /// Mean loss and accuracy on the test images.
    ///
    /// # Errors
    /// Those of the devices and of reading the images.
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

/// The mean loss so far of an epoch, as long as it is a number.
fn converging(epoch: usize, loss: f64) -> Result<f64, Failure> {
    if loss.is_finite() {
        return Ok(loss);
    }
    Err(Failure::Run(format!("training diverged: the mean loss of epoch {epoch} is {loss}: try a smaller --lr")))
}
