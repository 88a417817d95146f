//! The loop of a training run.

use anygpu::data::{DataLoader, LoaderState};
use anygpu::metrics::{Accuracy, EarlyStopping, Mean, Throughput};
use anygpu::nn::Module;
use anygpu::optim::{GradScaler, LRScheduler, SGD, Scheduler};
use anygpu::watch::ProgressLine;
use anygpu::{DType, DataParallel, Device, Tensor, autocast, checkpoint, manual_seed, nn};

use super::live::Live;
use super::options::Half;
use super::ranks::Ranks;
use super::record::Record;
use super::resume::Checkpoint;
use super::source::Source;
use super::stop::Stop;
use super::{Args, Epoch};
use crate::failure::Failure;
use crate::progress::{self, EpochBar};

/// The number of steps between two losses that the bar shows, because reading a loss waits for the device.
const SHOW_EVERY: usize = 20;

/// The number of threads that decode images.
const DECODERS: usize = 4;

/// The state that a step changes: the net on its devices, the optimiser, and the losses.
pub struct Run {
    pub net: DataParallel,
    pub sgd: SGD,
    pub scheduler: Option<Scheduler>,
    /// The type of products.
    dtype: DType,
    /// The scale of the loss, with f16.
    pub scaler: Option<GradScaler>,
    pub record: Record,
    /// The figures of the epochs so far, including those before a resumption.
    pub epochs: Vec<Epoch>,
}

impl Run {
    /// Takes one step. Returns its loss, which is not read yet, and its learning rate.
    fn step(&mut self, images: &Tensor, labels: &Tensor) -> Result<(Tensor, f32), Failure> {
        let lr = self.sgd.lr();
        let loss = match &self.scaler {
            None => autocast(self.dtype, || self.net.train_batch(images, labels, nn::cross_entropy))?,
            Some(scaler) => {
                let scale = scaler.get_scale();
                let scaled = move |logits: &Tensor, labels: &Tensor| nn::cross_entropy(logits, labels)?.mul(scale);
                autocast(self.dtype, || self.net.train_batch(images, labels, scaled))?.mul(1.0 / scale)?
            }
        };
        match &mut self.scaler {
            None => self.sgd.step()?,
            Some(scaler) => {
                scaler.step(&mut self.sgd)?;
                scaler.update()?;
            }
        }
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
    /// The folder whose files are decoded while the net trains.
    folder: Option<String>,
    live: Option<Live>,
    early: Option<EarlyStopping>,
    stop: Stop,
    ranks: Ranks,
    batch_size: usize,
}

/// The end of a pass over the training images.
struct Pass {
    loss: Mean,
    /// The position in the data after the last step.
    at: LoaderState,
}

impl Trainer {
    /// Prepares a run.
    ///
    /// # Errors
    /// If a device has no memory; if `--weights` cannot be read, or does not fit the net.
    pub fn new(args: &Args, devices: Vec<Device>, source: &Source, stop: Stop, ranks: &Ranks) -> Result<Self, Failure> {
        manual_seed(args.seed);
        let card = &source.card;
        let net = card.model.build(card.channels, card.classes.len())?;
        // A checkpoint has its own weights, and other processes get the first one's weights.
        let continued = args.checkpoint.as_ref().is_some_and(|path| path.exists());
        if let Some(path) = args.weights.as_deref().filter(|_| ranks.is_first() && !continued) {
            let loaded = checkpoint::load(path, Device::cpu()).and_then(|state| net.load_state_dict(&state, true));
            loaded.map_err(|error| Failure::Run(format!("--weights {}: {error}", path.display())))?;
        }
        let net = DataParallel::new(net, &devices)?;
        let net = ranks.join(net)?;
        if args.trace.is_some() {
            net.start_trace();
        }
        let mut sgd = SGD::new(net.parameters(), args.lr()).momentum(card.model.recipe().momentum);
        // Batches are uploaded in advance to a single device. Several devices, or processes, split them in `DataParallel`.
        let place =
            if let ([only], false) = (&devices[..], ranks.are_several()) { only.clone() } else { Device::cpu() };
        let loader = |set| {
            let loader = DataLoader::new(set, args.batch_size())?.transform(card.transform()).prefetch(&place);
            Ok::<_, Failure>(if source.slow { loader.workers(DECODERS) } else { loader })
        };
        let mut train = loader(source.train.clone())?.shuffle(args.seed).shard(&net.shard());
        let test = loader(source.test.clone())?.shard(&ranks.shard()?);
        if card.model.has_batch_norm() && train.len() >= args.batch_size() {
            train = train.drop_last(); // the statistics of a few images would disturb the running ones
        }
        let steps = train.batches() as u64 * args.epochs() as u64;
        let scheduler = args.scheduler.start(steps, &mut sgd)?;
        let record = Record::new(args.log_dir.as_deref());
        let dtype = args.mixed_precision.map_or(DType::F32, Half::dtype);
        let scaler = (dtype == DType::F16).then(GradScaler::new);
        let run = Run { net, sgd, scheduler, dtype, scaler, record, epochs: Vec::new() };
        let checkpoint = Checkpoint::new(args, card, ranks);
        let early = args.early_stopping.map(|epochs| EarlyStopping::new(epochs as u64 - 1));
        let folder = source.slow.then(|| args.data.clone());
        let live = if args.live { Live::on_terminal(args.epochs()) } else { None };
        let (ranks, batch_size, begun) = (ranks.clone(), args.batch_size(), Mean::new());
        stop.saved(checkpoint.as_ref().map_or_else(|| "nothing is saved".to_string(), Checkpoint::holds));
        Ok(Trainer { devices, run, train, test, checkpoint, begun, folder, live, early, stop, ranks, batch_size })
    }

    /// Restores `--checkpoint`, if the file exists. Returns the number of the next epoch, from 1.
    ///
    /// # Errors
    /// As [`Checkpoint::restore`].
    pub fn resume(&mut self) -> Result<usize, Failure> {
        let Some(checkpoint) = &mut self.checkpoint else { return Ok(1) };
        let Some((at, begun)) = checkpoint.restore(&mut self.run)? else { return Ok(1) };
        self.stop.saved(checkpoint.holds());
        self.train.set_state(at);
        self.begun = begun;
        for done in &self.run.epochs {
            if let Some(live) = &mut self.live {
                live.earlier(done);
            }
            if let Some(early) = &mut self.early {
                early.observe(done.test_loss);
            }
        }
        Ok(at.epoch as usize + 1)
    }

    /// Passes over the training images, then over the test images, and appends the figures to the `epochs` of the run.
    ///
    /// # Errors
    /// [`Failure::Run`] if the loss is not finite; [`Failure::Stopped`] after Ctrl-C; the errors of devices and data.
    pub fn epoch(&mut self, epoch: usize, epochs: usize) -> Result<(), Failure> {
        self.run.net.rejoin()?; // devices that failed in the last epoch get another chance
        let mut bar = EpochBar::new(epoch, epochs, self.train.len(), !self.ranks.is_first());
        let mut speed = Throughput::new();
        let pass = self.pass(epoch, &mut bar, &mut speed)?;
        let train_loss = converging(epoch, pass.loss.value()?)?;
        let (seconds, images_per_s) = (speed.seconds(), speed.per_second());
        let Some((test_loss, test_acc)) = self.evaluate()? else {
            return Err(self.stopped(epoch, pass.at, &pass.loss));
        };
        bar.finish(&format!(
            "epoch {epoch}/{epochs}  loss {train_loss:.4}  test loss {test_loss:.4}  test acc {test_acc:.4}  \
             {images_per_s:.0} images/s{}",
            self.shares()
        ));
        let done = Epoch { epoch, train_loss, test_loss, test_acc, seconds, images_per_s };
        if let Some(live) = &mut self.live {
            live.epoch(&done);
        }
        if let Some(early) = &mut self.early {
            early.observe(test_loss);
        }
        self.run.record.epoch(&done);
        self.run.epochs.push(done);
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.save(&mut self.run, self.train.state(), &Mean::new())?;
            self.stop.saved(checkpoint.holds());
        }
        Ok(())
    }

    /// Returns the number of the step that the checkpoint holds; 0 without one.
    pub fn saved(&self) -> u64 {
        self.checkpoint.as_ref().and_then(Checkpoint::steps).unwrap_or(0)
    }

    /// Returns whether `--early-stopping` ends the run.
    pub fn stops_early(&self) -> bool {
        self.early.as_ref().is_some_and(EarlyStopping::should_stop)
    }

    /// Leaves the curves of `--live` on the terminal, and says why a run has fewer epochs than it could have.
    pub fn finish(&self) {
        if let Some(live) = &self.live {
            progress::say(&live.draw());
        }
        if let Some(early) = self.early.as_ref().filter(|early| early.should_stop() && self.ranks.is_first()) {
            let (epochs, lowest) = (early.since_best(), early.best().unwrap_or(f64::NAN));
            progress::say(&format!("--early-stopping: {epochs} epochs without a test loss below {lowest:.4}"));
        }
    }

    /// The current shares of the devices, or of several processes; empty for one device.
    fn shares(&self) -> String {
        if self.ranks.are_several() {
            let weights = self.run.net.shard().weights();
            let named = weights.iter().zip(0..).map(|(share, rank)| format!("rank {rank} {:.0} %", 100.0 * share));
            return format!("  ({})", named.collect::<Vec<_>>().join(", "));
        }
        let shares = self.run.net.shares();
        let named = self.devices.iter().zip(&shares).map(|(device, share)| format!("{device} {:.0} %", 100.0 * share));
        if shares.len() < 2 { String::new() } else { format!("  ({})", named.collect::<Vec<_>>().join(", ")) }
    }

    /// Takes the training steps of the next epoch, and waits for the devices.
    fn pass(&mut self, epoch: usize, bar: &mut EpochBar, speed: &mut Throughput) -> Result<Pass, Failure> {
        let mut pass = Pass { loss: std::mem::take(&mut self.begun), at: self.train.state() };
        for (step, batch) in (&self.train).into_iter().enumerate() {
            let (images, labels) = batch.map_err(|error| self.unreadable(error))?;
            let (loss, lr) = self.run.step(&images, &labels)?;
            pass.at = self.train.state();
            let images = self.images(pass.at);
            pass.loss.add(&loss, images)?;
            speed.add(images);
            bar.advance(images);
            let free = loss.device().is_cpu(); // as with several devices, whose losses the host adds up
            if bar.is_visible() && (free || step % SHOW_EVERY == 0) {
                let memory = ProgressLine::memory_of(&self.devices);
                let loss = f64::from(loss.item::<f32>()?);
                let part = pass.at.batches as f64 / self.train.batches().max(1) as f64;
                let curves = self.live.as_mut().map(|live| {
                    live.step((epoch - 1) as f64 + part, loss);
                    live.draw()
                });
                let figures = ProgressLine { images_per_s: speed.per_second(), loss: Some(loss), lr, memory };
                bar.show(&figures, &curves.unwrap_or_default());
            }
            if self.stop.requested().is_some() {
                return Err(self.stopped(epoch, pass.at, &pass.loss));
            }
            if let Some(checkpoint) = self.checkpoint.as_mut().filter(|checkpoint| checkpoint.is_due(pass.at.batches)) {
                converging(epoch, pass.loss.value()?)?; // keeps the last good checkpoint
                checkpoint.save(&mut self.run, pass.at, &pass.loss)?;
                self.stop.saved(checkpoint.holds());
            }
        }
        self.run.record.read()?;
        // With several devices, a step ends when the host has the gradients, and one that is lost may be among them.
        if let [only] = &self.devices[..] {
            only.synchronize()?;
        }
        Ok(pass)
    }

    /// The number of images in the batch before a position, over all processes.
    fn images(&self, at: LoaderState) -> usize {
        let before = at.batches.saturating_sub(1) * self.batch_size;
        self.train.len().saturating_sub(before).min(self.batch_size)
    }

    /// Returns the failure of a run that was asked to end after the last step: which step it is, and which file holds it.
    fn stopped(&mut self, epoch: usize, at: LoaderState, loss: &Mean) -> Failure {
        let status = self.stop.requested().unwrap_or_default();
        let here = format!("interrupted in epoch {epoch}, after step {}", self.run.record.steps);
        let Some(checkpoint) = &mut self.checkpoint else {
            let _ = self.run.record.read(); // the run ends, and so does its log
            self.run.record.flush();
            let advice = "nothing is saved: a run with --checkpoint can be continued";
            return Failure::Stopped(format!("{here}: {advice}"), status);
        };
        let saved = loss.value().map_err(Failure::from).and_then(|mean| {
            converging(epoch, mean)?;
            checkpoint.save(&mut self.run, at, loss)
        });
        let failed = match saved {
            Ok(()) => String::new(),
            Err(Failure::Run(reason)) => format!("its checkpoint could not be written: {reason}; "),
            Err(_) => "its checkpoint could not be written; ".to_string(),
        };
        Failure::Stopped(format!("{here}: {failed}{}", checkpoint.holds()), status)
    }

    /// Adds to the error of a file in a folder of images what can be done.
    fn unreadable(&self, error: anygpu::Error) -> Failure {
        match (&self.folder, error) {
            (Some(folder), error @ anygpu::Error::Data { .. }) => super::source::unreadable(folder, &error),
            (_, error) => error.into(),
        }
    }

    /// Returns the accuracy on the test images.
    ///
    /// # Errors
    /// As [`epoch`](Trainer::epoch).
    pub fn measure(&self) -> Result<f64, Failure> {
        let stopped = || Failure::Stopped("interrupted".to_string(), self.stop.requested().unwrap_or_default());
        self.evaluate()?.map(|(_, accuracy)| accuracy).ok_or_else(stopped)
    }

    /// Returns the mean loss and the accuracy on the test images, unless the run is to end.
    fn evaluate(&self) -> Result<Option<(f64, f64)>, Failure> {
        let (mut loss, mut accuracy) = (Mean::new(), Accuracy::new());
        for batch in self.test.epoch(0) {
            if self.stop.requested().is_some() {
                return Ok(None);
            }
            let (images, labels) = batch.map_err(|error| self.unreadable(error))?;
            if labels.elem_count() == 0 {
                continue; // there are more processes than images in this batch
            }
            let logits = self.logits(&images)?;
            let labels = labels.to(logits.device())?;
            loss.add(&nn::cross_entropy(&logits, &labels)?, labels.elem_count())?;
            accuracy.add(&logits, &labels)?;
        }
        let count = loss.count() as f64;
        let of = |mean: f64| if count > 0.0 { mean * count } else { 0.0 };
        let [loss, right, count] = self.ranks.sum([of(loss.value()?), of(accuracy.value()?), count]);
        Ok(Some((loss / count, right / count)))
    }

    /// Returns the net's output for images. With several devices, it is on the host, so that a device which is lost
    /// later does not take sums over earlier images with it.
    fn logits(&self, images: &Tensor) -> anygpu::Result<Tensor> {
        if self.devices.len() == 1 {
            return self.run.net.predict(images);
        }
        let mut others = self.devices.len() - 1;
        loop {
            match self.run.net.predict(images).and_then(|logits| logits.to(Device::cpu())) {
                // Lost between its part of the output and the copy: the next call leaves it out.
                Err(error) if error.is_device_lost() && others > 0 => others -= 1,
                done => return done,
            }
        }
    }
}

/// Returns the mean loss of an epoch so far, or an error if it is not finite.
fn converging(epoch: usize, loss: f64) -> Result<f64, Failure> {
    if loss.is_finite() {
        return Ok(loss);
    }
    Err(Failure::Run(format!("training diverged: the mean loss of epoch {epoch} is {loss}: try a smaller --lr")))
}
