//! `--checkpoint` and `--resume`: a run that was killed continues with the same losses as without the kill.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anygpu::checkpoint::{self, TrainingState};
use anygpu::data::LoaderState;
use anygpu::metrics::Mean;
use anygpu::optim::LRScheduler;
use anygpu::{Device, Tensor};

use super::Epoch;
use super::options::{Args, Rate};
use super::ranks::Ranks;
use super::trainer::Run;
use crate::failure::Failure;
use crate::net::Card;

/// The file of a run, from which it can continue.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    /// Steps between two checkpoints within an epoch; 0 for none.
    every: usize,
    /// The options that the run's numbers depend on, as on the command line.
    options: Options,
    /// How the net is used, for `anygpu predict`.
    card: Card,
    /// The number of steps of the run in the file, if the file is there.
    saved: Option<u64>,
    /// The processes of the run. The first one reads and writes the file.
    ranks: Ranks,
}

/// Options with their values; `None` for an option without one.
type Options = BTreeMap<String, Option<String>>;

/// The name of the net among the options.
const MODEL: &str = "[MODEL]";

impl Checkpoint {
    /// Returns the checkpoint that the options name, of a net with this card.
    pub fn new(args: &Args, card: &Card, ranks: &Ranks) -> Option<Checkpoint> {
        let (path, every) = (args.checkpoint.clone()?, args.checkpoint_steps.unwrap_or(0));
        let (options, card) = (Self::options(args), card.clone());
        Some(Checkpoint { path, every, options, card, saved: None, ranks: ranks.clone() })
    }

    /// Returns an error unless all processes of a run have the same options.
    pub fn compare_ranks(args: &Args, ranks: &Ranks) -> Result<(), Failure> {
        let mut options = Self::options(args);
        options.insert("--epochs".into(), Some(args.epochs().to_string()));
        options.insert("--early-stopping".into(), args.early_stopping.map(|epochs| epochs.to_string()));
        options.insert("--resume".into(), Some(args.resume.to_string()));
        options.insert("--checkpoint-steps".into(), args.checkpoint_steps.map(|steps| steps.to_string()));
        ranks.compare(&serde_json::to_string(&options).unwrap_or_default()) // cannot fail: it is all text
    }

    /// Returns the options that the run's numbers depend on.
    fn options(args: &Args) -> Options {
        let given = |value: &dyn std::fmt::Display| Some(value.to_string());
        let options = [
            (MODEL, given(&args.model.name())),
            ("--data", given(&args.data)),
            ("--limit", args.limit.map(|limit| limit.to_string())),
            ("--resize", given(&args.side())),
            ("--batch-size", given(&args.batch_size())),
            ("--lr", given(&args.lr())),
            ("--seed", given(&args.seed)),
            ("--weights", args.weights.as_ref().map(|path| path.display().to_string())),
            ("--mixed-precision", args.mixed_precision.map(|half| half.name().to_string())),
            ("--scheduler", given(&args.scheduler.name())),
            // Without a schedule, a run can be continued for more epochs.
            ("--epochs", (args.scheduler != Rate::Constant).then(|| args.epochs().to_string())),
        ];
        options.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }

    /// Returns whether a checkpoint is due within an epoch.
    pub fn is_due(&self, batches: usize) -> bool {
        self.every > 0 && batches.is_multiple_of(self.every)
    }

    /// Writes the run, atomically.
    ///
    /// # Errors
    /// The errors of the devices and of writing the file.
    pub fn save(&mut self, run: &mut Run, at: LoaderState, mean: &Mean) -> Result<(), Failure> {
        run.record.read()?;
        run.record.flush();
        if !self.ranks.is_first() {
            self.saved = Some(run.record.steps);
            return Ok(());
        }
        let first = run.record.step_losses.iter().enumerate();
        let losses: Vec<(String, f64)> = first.map(|(i, loss)| (i.to_string(), f64::from(*loss))).collect();
        let mut state = TrainingState::new()
            .module(&run.net)
            .optimizer(&run.sgd)?
            .loader(at)
            .text("options", serde_json::to_string(&self.options).unwrap_or_default()) // cannot fail: it is all text
            .number("steps", run.record.steps as f64)
            .numbers("step_losses", losses)
            .numbers("balance", run.net.balance_state());
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
        if let Some(scaler) = &run.scaler {
            state = state.numbers("scaler", scaler.state());
        }
        state.save(&self.path)?;
        self.saved = Some(run.record.steps);
        Ok(())
    }

    /// Returns the number of steps of the run in the file, if this run wrote or read it.
    pub fn steps(&self) -> Option<u64> {
        self.saved
    }

    /// Returns which step the file holds, for people.
    pub fn holds(&self) -> String {
        let path = self.path.display();
        match self.saved {
            Some(step) => format!("{path} holds step {step}: --resume continues there"),
            None => format!("there is no checkpoint {path} yet"),
        }
    }

    /// Restores the run from the file, if it exists. Returns the position in the data to continue at, and the mean loss
    /// of the part of the epoch before it.
    ///
    /// # Errors
    /// [`Failure::Run`] for a damaged file, [`Failure::Usage`] for the file of a run with other options.
    pub fn restore(&mut self, run: &mut Run) -> Result<Option<(LoaderState, Mean)>, Failure> {
        let state = match self.ranks.are_several() {
            true => self.of_first()?,
            false => self.path.exists().then(|| TrainingState::load(&self.path)).transpose()?,
        };
        let Some(state) = state else { return Ok(None) };
        self.compare(&state)?;
        state.restore_module(&run.net)?.restore_optimizer(&mut run.sgd)?.restore_random_state();
        let at = state.loader_state()?;
        if let Some(scheduler) = &mut run.scheduler {
            scheduler.load_state(&state.get_numbers("scheduler"))?;
        }
        if let Some(scaler) = &mut run.scaler {
            scaler.load_state(&state.get_numbers("scaler"))?;
        }
        if self.ranks.is_first() {
            run.net.load_balance_state(&state.get_numbers("balance")); // other processes' state is not in the file
        }
        let losses = state.get_numbers("step_losses");
        run.record.step_losses = losses.into_iter().map(|(_, loss)| loss as f32).collect();
        run.record.steps = state.get("steps")? as u64;
        self.saved = Some(run.record.steps);
        run.epochs = (1..=at.epoch as usize)
            .map(|epoch| (epoch, state.get_numbers(&format!("epoch_{epoch}"))))
            .take_while(|(_, figures)| !figures.is_empty())
            .map(|(epoch, figures)| Epoch::from_figures(epoch, &figures))
            .collect();
        let mut begun = Mean::new();
        if at.batches > 0 {
            let mean = Tensor::scalar(state.get("mean")? as f32, Device::cpu())?;
            begun.add(&mean, state.get("count")? as usize)?;
        }
        Ok(Some((at, begun)))
    }

    /// Returns the state in the file of rank 0, if it exists: the machines of several processes need not share a file system.
    fn of_first(&self) -> Result<Option<TrainingState>, Failure> {
        let file = match self.ranks.is_first() && self.path.exists() {
            true => checkpoint::read_file(&self.path)?,
            false => Vec::new(),
        };
        let file = self.ranks.broadcast(file)?;
        let nothing = file.is_empty() && !(self.ranks.is_first() && self.path.exists());
        Ok(if nothing { None } else { Some(TrainingState::from_bytes(&file, &self.path)?) })
    }

    /// Returns an error that names the options in which the file's run and this one differ.
    fn compare(&self, state: &TrainingState) -> Result<(), Failure> {
        let path = self.path.display();
        let Some(theirs) = state.get_text("options").ok().and_then(|text| serde_json::from_str::<Options>(text).ok())
        else {
            let why = "this version of anygpu train did not write it";
            return Err(Failure::Run(format!("--resume: {path} does not have the options of its run: {why}")));
        };
        // An option that the file's version did not know had no value.
        let differs = |name: &&String| theirs.get(*name).unwrap_or(&None) != self.options.get(*name).unwrap_or(&None);
        let names: Vec<&String> = self.options.keys().filter(differs).collect();
        if names.is_empty() {
            return Ok(());
        }
        // The defaults of another net differ too, which says nothing new.
        let model = names.iter().any(|name| *name == MODEL);
        let lines = names.into_iter().filter(|name| !model || *name == MODEL);
        let lines: String =
            lines.map(|name| format!("\n  {}, but here {}", said(&theirs, name), said(&self.options, name))).collect();
        let advice = "repeat the options of that run, or name another file for a new one";
        Err(Failure::Usage(format!("--resume: {path} is of a run with other options:{lines}\n{advice}")))
    }
}

/// An option as one writes it.
fn said(options: &Options, name: &str) -> String {
    match options.get(name).and_then(Option::as_ref) {
        Some(value) if name == MODEL => format!("train {value}"),
        Some(value) => format!("{name} {value}"),
        None => format!("no {name}"),
    }
}
