//! `--checkpoint` and `--resume`: a run that was killed continues with the same losses as without the kill.

use std::path::PathBuf;

use anygpu::checkpoint::TrainingState;
use anygpu::data::LoaderState;
use anygpu::metrics::Mean;
use anygpu::optim::LRScheduler;
use anygpu::{Device, Tensor};

use super::trainer::Run;
use super::{Args, Epoch};
use crate::failure::Failure;
use crate::net::Card;

/// The file of a run, from which it can continue.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    /// Steps between two checkpoints within an epoch; 0 for none.
    every: usize,
    /// The options that the run's numbers depend on.
    settings: String,
    /// How the net is used, for `anygpu predict`.
    card: Card,
}

impl Checkpoint {
    /// Returns the checkpoint that the options name, of a net with this card.
    pub fn new(args: &Args, card: &Card) -> Option<Checkpoint> {
        let Args { model, data, limit, seed, scheduler, .. } = args;
        let (side, lr) = (args.side(), args.lr());
        let epochs = if *scheduler == super::Rate::Constant { None } else { Some(args.epochs()) };
        let batch = args.batch_size();
        let settings = format!(
            "{model:?} data={data} limit={limit:?} resize={side} batch={batch} lr={lr} seed={seed} \
             scheduler={scheduler:?} epochs={epochs:?}"
        );
        let (path, every) = (args.checkpoint.clone()?, args.checkpoint_steps.unwrap_or(0));
        Some(Checkpoint { path, every, settings, card: card.clone() })
    }

    /// Returns whether a checkpoint is due within an epoch.
    pub fn is_due(&self, batches: usize) -> bool {
        self.every > 0 && batches.is_multiple_of(self.every)
    }

    /// Writes the run, atomically.
    ///
    /// # Errors
    /// The errors of the devices and of writing the file.
    pub fn save(&self, run: &mut Run, at: LoaderState, mean: &Mean) -> Result<(), Failure> {
        run.record.read()?;
        run.record.flush();
        let first = run.record.step_losses.iter().enumerate();
        let losses: Vec<(String, f64)> = first.map(|(i, loss)| (i.to_string(), f64::from(*loss))).collect();
        let mut state = TrainingState::new()
            .module(&run.net)
            .optimizer(&run.sgd)?
            .loader(at)
            .text("settings", self.settings.as_str())
            .number("steps", run.record.steps as f64)
            .numbers("step_losses", losses);
        for (name, text) in self.card.to_metadata() {
            state = state.text(&name, text);
        }
        for done in &run.epochs {
            state = state.numbers(&format!("epoch_{}", done.epoch), done.figures());
        }
        if mean.count() > 0 {
            state = state.number("mean", mean.value()?).number("count", mean.count() as f64);
        }
        if let Some(scheduler) = &run.scheduler {
            state = state.numbers("scheduler", scheduler.state());
        }
        Ok(state.save(&self.path)?)
    }

    /// Restores the run from the file, if it exists. Returns the position in the data to continue at, and the mean loss
    /// of the part of the epoch before it.
    ///
    /// # Errors
    /// [`Failure::Run`] for a damaged file, and one of a run with other settings.
    pub fn restore(&self, run: &mut Run) -> Result<Option<(LoaderState, Mean)>, Failure> {
        if !self.path.exists() {
            return Ok(None);
        }
        let state = TrainingState::load(&self.path)?;
        let theirs = state.get_text("settings")?;
        if theirs != self.settings {
            return Err(Failure::Run(format!(
                "--resume: {} is of another run:\n  {theirs}\nand this one is\n  {}",
                self.path.display(),
                self.settings
            )));
        }
        state.restore_module(&run.net)?.restore_optimizer(&mut run.sgd)?.restore_random_state();
        let at = state.loader_state()?;
        if let Some(scheduler) = &mut run.scheduler {
            scheduler.load_state(&state.get_numbers("scheduler"))?;
        }
        let losses = state.get_numbers("step_losses");
        run.record.step_losses = losses.into_iter().map(|(_, loss)| loss as f32).collect();
        run.record.steps = state.get("steps")? as u64;
        run.epochs = (1..=at.epoch as usize)
            .map(|epoch| (epoch, state.get_numbers(&format!("epoch_{epoch}"))))
            .take_while(|(_, figures)| !figures.is_empty())
            .map(|(epoch, figures)| Epoch::from_figures(epoch, &figures))
            .collect();
        let mut begun = Mean::new();
        if at.batches > 0 {
            let mean = Tensor::scalar(state.get("mean")? as f32, &Device::cpu())?;
            begun.add(&mean, state.get("count")? as usize)?;
        }
        Ok(Some((at, begun)))
    }
}
