//! The losses of a run: the first ones for the summary, all of them for TensorBoard.
//!
//! A log that cannot be written, for instance because the disk is full, is a warning: training goes on without it.

use std::path::Path;

use anygpu::Tensor;
use anygpu::watch::SummaryWriter;

use super::Epoch;
use crate::failure::Failure;

/// The number of losses in the summary: enough to compare two devices before their rounding errors grow.
const STEP_LOSSES: usize = 10;

/// The number of losses that are kept on their device before they are read at once.
const READ_EVERY: usize = 100;

/// The losses of a run.
pub struct Record {
    /// The losses of the first steps.
    pub step_losses: Vec<f32>,
    log: Option<SummaryWriter>,
    /// Losses that are not read yet, with the numbers and learning rates of their steps.
    waiting: Vec<(Tensor, u64, f32)>,
    /// The number of steps so far.
    pub steps: u64,
}

impl Record {
    /// Creates the record of a run, which is logged if there is a folder.
    pub fn new(log_dir: Option<&Path>) -> Record {
        let log = log_dir.and_then(|folder| SummaryWriter::new(folder).map_err(|error| warn(&error)).ok());
        Record { step_losses: Vec::new(), log, waiting: Vec::new(), steps: 0 }
    }

    /// Adds the loss of a step without reading it, or reads all unread losses if there are many.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn step(&mut self, loss: &Tensor, lr: f32) -> Result<(), Failure> {
        if self.log.is_some() || self.step_losses.len() + self.waiting.len() < STEP_LOSSES {
            self.waiting.push((loss.detach(), self.steps, lr));
        }
        self.steps += 1;
        if self.waiting.len() >= READ_EVERY { self.read() } else { Ok(()) }
    }

    /// Reads the unread losses, in one download.
    ///
    /// # Errors
    /// As [`step`](Record::step).
    pub fn read(&mut self) -> Result<(), Failure> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let losses = Tensor::stack(&self.waiting.iter().map(|(loss, ..)| loss).collect::<Vec<_>>(), 0)?;
        for (loss, (_, step, lr)) in losses.to_vec::<f32>()?.into_iter().zip(std::mem::take(&mut self.waiting)) {
            if self.step_losses.len() < STEP_LOSSES {
                self.step_losses.push(loss);
            }
            self.log(|log| {
                log.add_scalar("step/loss", f64::from(loss), step)?;
                log.add_scalar("step/lr", f64::from(lr), step)
            });
        }
        Ok(())
    }

    /// Flushes the log, so that it has no gap if the run is killed and resumed.
    pub fn flush(&mut self) {
        self.log(SummaryWriter::flush);
    }

    /// Logs the figures of an epoch.
    pub fn epoch(&mut self, done: &Epoch) {
        let step = done.epoch as u64;
        self.log(|log| {
            log.add_scalars("loss", &[("train", done.train_loss), ("test", done.test_loss)], step)?;
            log.add_scalar("accuracy/test", done.test_acc, step)?;
            log.add_scalar("images_per_s", done.images_per_s, step)?;
            log.flush()
        });
    }

    /// Writes to the log, if there is one. An error ends the log.
    fn log(&mut self, write: impl FnOnce(&mut SummaryWriter) -> anygpu::Result<()>) {
        if let Some(log) = &mut self.log
            && let Err(error) = write(log)
        {
            warn(&error);
            self.log = None;
        }
    }
}

fn warn(error: &anygpu::Error) {
    log::warn!("--log-dir: {error}: training goes on without a log");
}
