//! Training checkpoints: one file, replaced atomically, with everything that a training run needs to continue.

use std::path::Path;

use super::safetensors::{self, Metadata};
use super::{damaged, extension};
use crate::data::LoaderState;
use crate::error::{Error, Result};
use crate::nn::{KeyReport, Module, StateDict};
use crate::optim::Optimizer;
use crate::parallel::DataParallel;
use crate::tensor::{RandomState, random_state, set_random_state};

const MODEL: &str = "model.";
const OPTIMIZER: &str = "optimizer.";
const RANDOM: &str = "anygpu.random_state";
const TRAINING: &str = "anygpu.training";
const NUMBER: &str = "number.";
const TEXT: &str = "text.";
/// The prefix of the names that tensors were added under.
const EXTRA: &str = "extra.";

/// Something with named values: a [`Module`] or a [`DataParallel`].
pub trait Stateful {
    /// Returns its values by name.
    fn values(&self) -> StateDict;

    /// Copies values into it. All names are required.
    ///
    /// # Errors
    /// As [`Module::load_state_dict`].
    fn set_values(&self, state: &StateDict) -> Result<KeyReport>;
}

impl<M: Module + ?Sized> Stateful for M {
    fn values(&self) -> StateDict {
        self.state_dict()
    }

    fn set_values(&self, state: &StateDict) -> Result<KeyReport> {
        self.load_state_dict(state, true)
    }
}

impl Stateful for DataParallel {
    fn values(&self) -> StateDict {
        self.state_dict()
    }

    fn set_values(&self, state: &StateDict) -> Result<KeyReport> {
        self.load_state_dict(state, true)
    }
}

/// A training run at one moment: the model, the optimiser, the state of the random generator, and named numbers and
/// texts (the epoch, the position in it, the numbers of a scheduler).
///
/// A run that was killed continues from its last file with the same losses as without the kill: bit for bit on the same
/// device, within rounding on another one, or on several instead of one.
///
/// The file is a `.safetensors`: PyTorch reads the tensors of the model under `model.`, and
/// [`checkpoint::load`](super::load) returns the tensors of the model only.
///
/// Its tensors are those of the model and the optimiser, not copies: later steps change them, as they change a
/// `state_dict()` of PyTorch, while its numbers do not change. Save it at once, or keep a
/// [`copied`](TrainingState::copied) one (for instance the best so far).
///
/// A scheduler continues by [`LRScheduler::resume`](crate::optim::LRScheduler::resume), after
/// [`restore_optimizer`](TrainingState::restore_optimizer).
///
/// # Example
/// ```
/// use anygpu::checkpoint::TrainingState;
/// use anygpu::nn::{self, Linear};
/// use anygpu::optim::Adam;
/// use anygpu::{DataParallel, Device, Tensor};
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let path = folder.path().join("run.safetensors");
/// let net = DataParallel::new(Linear::new(4, 3)?, &[Device::cpu()])?;
/// let mut adam = Adam::new(net.parameters(), 0.01);
/// let (x, y) = (Tensor::rand([6, 4], None)?, Tensor::from_slice(&[0u32, 1, 2, 0, 1, 2], 6, None)?);
///
/// let mut start = 0;
/// if path.exists() {
///     let run = TrainingState::load(&path)?;
///     run.restore_module(&net)?.restore_optimizer(&mut adam)?.restore_random_state();
///     start = run.get("step")? as usize;
/// }
/// for step in start..3 {
///     net.train_batch(&x, &y, nn::cross_entropy)?;
///     adam.step()?;
///     TrainingState::new().module(&net).optimizer(&adam)?.number("step", step as f64 + 1.0).save(&path)?;
/// }
/// # assert_eq!(TrainingState::load(&path)?.get("step")?, 3.0);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TrainingState {
    tensors: StateDict,
    metadata: Metadata,
    random: Option<RandomState>,
    /// Whether a second model replaced the first.
    overwritten: bool,
    /// The file that it was read from, for errors.
    origin: String,
}

/// Collecting and saving a state.
impl TrainingState {
    /// Creates a state with the current state of the random generator.
    pub fn new() -> TrainingState {
        TrainingState { random: Some(random_state()), origin: "TrainingState".into(), ..TrainingState::default() }
    }

    /// Adds the model: a [`Module`], or a [`DataParallel`], whose first replica is taken. Add a second model with
    /// [`tensors`](TrainingState::tensors): [`save`](TrainingState::save) refuses a second one here.
    pub fn module(mut self, net: &(impl Stateful + ?Sized)) -> TrainingState {
        self.overwritten |= self.has(MODEL);
        self.tensors.extend(net.values().add_prefix(MODEL));
        self
    }

    /// Adds the optimiser's state, of one replica.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a second optimiser, which belongs to [`tensors`](TrainingState::tensors); an
    /// error if there is no memory for its numbers.
    pub fn optimizer(mut self, optimizer: &(impl Optimizer + ?Sized)) -> Result<TrainingState> {
        if self.has(OPTIMIZER) {
            return Err(second("optimizer", "optimizer.state_dict()?"));
        }
        self.tensors.extend(optimizer.state_dict()?.add_prefix(OPTIMIZER));
        Ok(self)
    }

    /// Adds other tensors under `name.`: the `state_dict()` of a second model or optimiser, a moving average of the
    /// weights.
    pub fn tensors(mut self, name: &str, tensors: &StateDict) -> TrainingState {
        self.metadata.insert(format!("{EXTRA}{name}"), tensors.len().to_string()); // marks the group, also if it is empty
        self.tensors.extend(tensors.add_prefix(&format!("{EXTRA}{name}.")));
        self
    }

    /// Adds a number, such as an epoch or the best accuracy. It is restored exactly.
    pub fn number(mut self, name: &str, value: f64) -> TrainingState {
        self.metadata.insert(format!("{NUMBER}{name}"), format!("{value:?}"));
        self
    }

    /// Adds several numbers as `name.key`, for instance those of a scheduler.
    pub fn numbers<K: AsRef<str>>(self, name: &str, numbers: impl IntoIterator<Item = (K, f64)>) -> TrainingState {
        numbers.into_iter().fold(self, |all, (key, value)| all.number(&format!("{name}.{}", key.as_ref()), value))
    }

    /// Adds a text.
    pub fn text(mut self, name: &str, text: impl Into<String>) -> TrainingState {
        self.metadata.insert(format!("{TEXT}{name}"), text.into());
        self
    }

    /// Adds the position of the loader ([`DataLoader::state`](crate::data::DataLoader::state)).
    pub fn loader(self, at: LoaderState) -> TrainingState {
        // As text, which represents every u64 exactly.
        self.text("anygpu.loader", format!("{} {}", at.epoch, at.batches))
    }

    /// Writes the state to a `.safetensors` file, which is replaced atomically as by [`save`](super::save).
    ///
    /// # Errors
    /// As [`save`](super::save); [`Error::InvalidArgument`] if a second [`module`](TrainingState::module) was added.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if extension(path) != "safetensors" {
            return Err(damaged(path, "a training checkpoint is a .safetensors file"));
        }
        if self.overwritten {
            return Err(second("module", "net.state_dict()"));
        }
        let mut metadata = self.metadata.clone();
        metadata.insert(TRAINING.into(), "1".into());
        if let Some(RandomState { seed, drawn }) = self.random {
            metadata.insert(RANDOM.into(), format!("{seed} {drawn}"));
        }
        safetensors::write(&self.tensors, metadata, path)
    }

    /// Returns the same state with copies of all tensors, each on its device. Later steps do not change it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory for them.
    pub fn copied(&self) -> Result<TrainingState> {
        Ok(TrainingState { tensors: self.tensors.copied()?, ..self.clone() })
    }

    fn has(&self, prefix: &str) -> bool {
        self.tensors.names().any(|name| name.starts_with(prefix))
    }
}

/// Loading and restoring a state.
impl TrainingState {
    /// Reads a file of [`save`](TrainingState::save) to the host. Each restored object is copied to its device at once.
    ///
    /// # Errors
    /// As [`load`](super::load); [`Error::Data`] if it is not a training checkpoint.
    pub fn load(path: impl AsRef<Path>) -> Result<TrainingState> {
        let path = path.as_ref();
        let (tensors, mut metadata) = safetensors::read(path)?;
        if metadata.remove(TRAINING).is_none() {
            return Err(damaged(path, "this is no training checkpoint: read it with checkpoint::load"));
        }
        let random = match metadata.remove(RANDOM) {
            Some(text) => {
                let (seed, drawn) = two(&text).ok_or_else(|| damaged(path, "damaged: the random state is no state"))?;
                Some(RandomState { seed, drawn })
            }
            None => None,
        };
        Ok(TrainingState { tensors, metadata, random, origin: path.display().to_string(), ..TrainingState::default() })
    }

    /// Copies the values of the model into `net`. Every name is required.
    ///
    /// # Errors
    /// As [`Module::load_state_dict`].
    pub fn restore_module(&self, net: &(impl Stateful + ?Sized)) -> Result<&TrainingState> {
        net.set_values(&self.tensors.under(MODEL))?;
        Ok(self)
    }

    /// Restores the state and settings of the optimiser, including the learning rate. Every replica of its parameters gets the
    /// same state.
    ///
    /// # Errors
    /// [`Error::Data`] if no optimiser was saved; the errors of [`Optimizer::load_state_dict`].
    pub fn restore_optimizer(&self, optimizer: &mut (impl Optimizer + ?Sized)) -> Result<&TrainingState> {
        if !self.has(OPTIMIZER) {
            return Err(self.lacks("optimiser (of .optimizer(…))"));
        }
        optimizer.load_state_dict(&self.tensors.under(OPTIMIZER))?;
        Ok(self)
    }

    /// Restores the random generator of the process.
    pub fn restore_random_state(&self) -> &TrainingState {
        if let Some(random) = self.random {
            set_random_state(random);
        }
        self
    }

    /// Returns the tensors that were added under `name`.
    ///
    /// # Errors
    /// [`Error::Data`] if there are none.
    pub fn get_tensors(&self, name: &str) -> Result<StateDict> {
        let found = self.tensors.under(&format!("{EXTRA}{name}."));
        if found.is_empty() && !self.metadata.contains_key(&format!("{EXTRA}{name}")) {
            return Err(self.lacks(&format!("group of tensors {name:?}")));
        }
        Ok(found)
    }

    /// Returns a number.
    ///
    /// # Errors
    /// [`Error::Data`] if there is none of that name.
    pub fn get(&self, name: &str) -> Result<f64> {
        let number = self.metadata.get(&format!("{NUMBER}{name}")).and_then(|text| text.parse().ok());
        number.ok_or_else(|| self.lacks(&format!("number {name:?}")))
    }

    /// Returns the numbers `name.key`, by key.
    pub fn get_numbers(&self, name: &str) -> Vec<(String, f64)> {
        let prefix = format!("{NUMBER}{name}.");
        let of = |(key, text): (&String, &String)| Some((key.strip_prefix(&prefix)?.to_string(), text.parse().ok()?));
        self.metadata.iter().filter_map(of).collect()
    }

    /// Returns a text.
    ///
    /// # Errors
    /// [`Error::Data`] if there is none of that name.
    pub fn get_text(&self, name: &str) -> Result<&str> {
        let text = self.metadata.get(&format!("{TEXT}{name}")).map(String::as_str);
        text.ok_or_else(|| self.lacks(&format!("text {name:?}")))
    }

    /// Returns the position of the loader, for [`DataLoader::set_state`](crate::data::DataLoader::set_state).
    ///
    /// # Errors
    /// [`Error::Data`] if it was not saved.
    pub fn loader_state(&self) -> Result<LoaderState> {
        let at = self.metadata.get(&format!("{TEXT}anygpu.loader")).and_then(|text| two(text));
        let (epoch, batches) = at.ok_or_else(|| self.lacks("state of a loader"))?;
        Ok(LoaderState { epoch, batches: batches as usize })
    }

    fn lacks(&self, what: &str) -> Error {
        Error::Data { path: self.origin.clone(), detail: format!("there is no {what} in this training checkpoint") }
    }
}

/// The model's tensors and the texts of a training checkpoint, under the names that they were added by. The contents
/// of any other file are returned unchanged.
pub(super) fn model_of(state: StateDict, metadata: Metadata) -> (StateDict, Metadata) {
    if !metadata.contains_key(TRAINING) {
        return (state, metadata);
    }
    let text = |(key, text): (String, String)| Some((key.strip_prefix(TEXT)?.to_string(), text));
    (state.under(MODEL), metadata.into_iter().filter_map(text).collect())
}

/// The error for a second model or optimiser.
fn second(what: &str, state: &str) -> Error {
    let detail =
        format!("a second .{what}(…) would take the place of the first: add it by .tensors(\"a name\", &{state})");
    Error::argument("TrainingState", detail)
}

fn two(text: &str) -> Option<(u64, u64)> {
    let (a, b) = text.split_once(' ')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}
