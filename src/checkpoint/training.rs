//! Training checkpoints: one file, replaced atomically, with everything that a training run needs to continue.

use std::path::Path;

use super::safetensors::{self, Metadata};
use super::{RESERVED, damaged, devices_of, extension, groups, is_reserved, read_file};
use crate::data::LoaderState;
use crate::device::rerun;
use crate::error::{Error, Result};
use crate::nn::{KeyReport, Module, StateDict};
use crate::ops::KEEP_LONGS;
use crate::optim::Optimizer;
use crate::parallel::DataParallel;
use crate::tensor::{RandomState, random_state, set_random_state};

const MODEL: &str = "model.";
const OPTIMIZER: &str = "optimizer.";
const RANDOM: &str = "anygpu.random_state";
const TRAINING: &str = "anygpu.training";
const NUMBER: &str = "number.";
const TEXT: &str = "text.";
/// The name of the text that holds the position of the loader.
const LOADER: &str = "anygpu.loader";

/// An object with named values: a [`Module`] or a [`DataParallel`].
pub trait Stateful {
    /// Returns its values by name.
    fn values(&self) -> StateDict;

    /// Copies values into it. All names are required.
    ///
    /// # Errors
    /// The errors of [`Module::load_state_dict`].
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

/// The state of a training run: the model, the optimiser, the state of the random generator, and named numbers and
/// texts (for example the epoch, or the state of a scheduler).
///
/// A run that was killed continues from its last file with the same losses as without the interruption: bit for bit on
/// the same device, within rounding on another device, or on several devices instead of one.
///
/// The file is a `.safetensors`. PyTorch reads the tensors of the model under `model.`, and
/// [`checkpoint::load`](super::load) returns only the tensors of the model.
///
/// The state holds the tensors of the model and the optimiser, not copies. Later steps change them, just as they change
/// a `state_dict()` of PyTorch, but they do not change the numbers. Save the state immediately, or keep a
/// [`copied`](TrainingState::copied) one (for instance the best so far).
///
/// A scheduler continues with [`LRScheduler::resume`](crate::optim::LRScheduler::resume), after
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
    /// Why the state cannot be saved: the first part that would replace another part.
    fault: Option<Error>,
    /// The file that it was read from, for errors.
    origin: String,
}

/// Collecting and saving a state.
impl TrainingState {
    /// Creates a state with the current state of the random generator.
    #[must_use]
    pub fn new() -> TrainingState {
        TrainingState { random: Some(random_state()), origin: "TrainingState".into(), ..TrainingState::default() }
    }

    /// Adds the model: a [`Module`], or a [`DataParallel`], from which the first replica whose device is not lost is
    /// taken.
    ///
    /// Add a second model with [`tensors`](TrainingState::tensors): [`save`](TrainingState::save) refuses a second
    /// model that is added here.
    #[must_use]
    pub fn module(mut self, net: &(impl Stateful + ?Sized)) -> TrainingState {
        if self.has(MODEL) {
            return self.with_fault(second("module", "net.state_dict()"));
        }
        self.tensors.extend(net.values().add_prefix(MODEL));
        self
    }

    /// Adds the optimiser's state, from one replica.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a second optimiser, which must be added with [`tensors`](TrainingState::tensors);
    /// [`Error::OutOfMemory`] if there is no memory for its numbers.
    pub fn optimizer(mut self, optimizer: &(impl Optimizer + ?Sized)) -> Result<TrainingState> {
        if self.has(OPTIMIZER) {
            return Err(refused(second("optimizer", "optimizer.state_dict()?")));
        }
        self.tensors.extend(optimizer.state_dict()?.add_prefix(OPTIMIZER));
        Ok(self)
    }

    /// Adds other tensors as the group `name`, for example the `state_dict()` of a second model or optimiser, or a
    /// moving average of the weights.
    ///
    /// [`save`](TrainingState::save) refuses a second group with the same name. It also refuses two groups such as
    /// `ema` and `ema.x` if the first has a tensor `x.w`.
    #[must_use]
    pub fn tensors(mut self, name: &str, tensors: &StateDict) -> TrainingState {
        match groups::add(&mut self.tensors, &mut self.metadata, name, tensors) {
            Ok(()) => self,
            Err(detail) => self.with_fault(detail),
        }
    }

    /// Adds a number, such as an epoch or the best accuracy.
    ///
    /// It is restored exactly. It replaces an earlier number with the same name.
    #[must_use]
    pub fn number(mut self, name: &str, value: f64) -> TrainingState {
        self.metadata.insert(format!("{NUMBER}{name}"), format!("{value:?}"));
        self
    }

    /// Adds several numbers as `name.key`, for instance the numbers of a scheduler. [`save`](TrainingState::save)
    /// refuses a second number with the same name.
    #[must_use]
    pub fn numbers<K: AsRef<str>>(self, name: &str, numbers: impl IntoIterator<Item = (K, f64)>) -> TrainingState {
        numbers.into_iter().fold(self, |all, (key, value)| {
            let number = format!("{name}.{}", key.as_ref());
            match all.metadata.contains_key(&format!("{NUMBER}{number}")) {
                true => all.with_fault(format!("a second number {number:?}, in .numbers({name:?}, …)")),
                false => all.number(&number, value),
            }
        })
    }

    /// Adds a text.
    ///
    /// It replaces an earlier text with the same name. [`save`](TrainingState::save) refuses names that begin with
    /// `anygpu.`, which are reserved.
    #[must_use]
    pub fn text(mut self, name: &str, text: impl Into<String>) -> TrainingState {
        if is_reserved(name) {
            return self.with_fault(format!(".text({name:?}, …): names that begin with {RESERVED:?} are reserved"));
        }
        self.metadata.insert(format!("{TEXT}{name}"), text.into());
        self
    }

    /// Adds the position of the loader ([`DataLoader::state`](crate::data::DataLoader::state)).
    #[must_use]
    pub fn loader(mut self, at: LoaderState) -> TrainingState {
        // As text, which represents every u64 exactly.
        self.metadata.insert(format!("{TEXT}{LOADER}"), format!("{} {}", at.epoch, at.batches));
        self
    }

    /// Writes the state to a `.safetensors` file, which is replaced atomically like a file of [`save`](super::save).
    ///
    /// # Errors
    /// The errors of [`save`](super::save); [`Error::InvalidArgument`] if a part was added that would replace another
    /// part, such as a second [`module`](TrainingState::module).
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if extension(path) != "safetensors" {
            return Err(damaged(path, "a training checkpoint is a .safetensors file"));
        }
        self.checked()?;
        safetensors::write(&self.tensors, self.with_marks(), path)
    }

    /// Returns the bytes that [`save`](TrainingState::save) would write.
    ///
    /// Use it in a program without files, such as a page in a browser. [`from_bytes`](TrainingState::from_bytes) reads
    /// them.
    ///
    /// # Errors
    /// The errors of [`save`](TrainingState::save). In a browser, [`Error::WouldBlock`] for tensors on an adapter: use
    /// [`to_bytes_async`](TrainingState::to_bytes_async).
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.checked()?;
        let bytes = safetensors::bytes(&self.tensors, self.with_marks());
        bytes.map_err(|error| error.instead("TrainingState::to_bytes", "TrainingState::to_bytes_async"))
    }

    /// Asynchronous form of [`to_bytes`](TrainingState::to_bytes). Use it in a browser, where `to_bytes` would have to
    /// wait for adapters.
    ///
    /// # Errors
    /// The errors of [`save`](TrainingState::save).
    pub async fn to_bytes_async(&self) -> Result<Vec<u8>> {
        rerun(&devices_of(&self.tensors), || self.to_bytes()).await
    }

    /// Returns the metadata of a file.
    fn with_marks(&self) -> Metadata {
        let mut metadata = self.metadata.clone();
        metadata.insert(TRAINING.into(), "1".into());
        if let Some(RandomState { seed, drawn }) = self.random {
            metadata.insert(RANDOM.into(), format!("{seed} {drawn}"));
        }
        metadata
    }

    /// Returns the same state with copies of all tensors, each on its device. Later steps do not change it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory for the copies; [`Error::InvalidArgument`] as for
    /// [`save`](TrainingState::save).
    pub fn copied(&self) -> Result<TrainingState> {
        self.checked()?;
        Ok(TrainingState { tensors: self.tensors.copied()?, ..self.clone() })
    }

    fn has(&self, prefix: &str) -> bool {
        self.tensors.names().any(|name| name.starts_with(prefix))
    }

    fn with_fault(mut self, detail: String) -> TrainingState {
        self.fault.get_or_insert_with(|| refused(detail));
        self
    }

    /// Returns an error if a part was refused.
    fn checked(&self) -> Result<()> {
        self.fault.clone().map_or(Ok(()), Err)
    }
}

/// Loading and restoring a state.
impl TrainingState {
    /// Reads a file of [`save`](TrainingState::save) to the host. Each restored object is copied to its device in one
    /// copy.
    ///
    /// # Errors
    /// The errors of [`load`](super::load); [`Error::Data`] if the file is not a training checkpoint.
    pub fn load(path: impl AsRef<Path>) -> Result<TrainingState> {
        let path = path.as_ref();
        TrainingState::from_bytes(&read_file(path)?, path)
    }

    /// Reads the bytes of a file like [`load`](TrainingState::load), for example if another process has read the file.
    /// `origin` is the file's name in errors.
    ///
    /// # Errors
    /// The errors of [`load`](TrainingState::load).
    pub fn from_bytes(bytes: &[u8], origin: impl AsRef<Path>) -> Result<TrainingState> {
        let path = origin.as_ref();
        // A run continues with the same element types.
        let keep = KEEP_LONGS.set(true);
        let (tensors, mut metadata) = safetensors::read_bytes(bytes, path)?;
        drop(keep);
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
    /// The errors of [`Module::load_state_dict`].
    pub fn restore_module(&self, net: &(impl Stateful + ?Sized)) -> Result<&TrainingState> {
        net.set_values(&self.tensors.under(MODEL))?;
        Ok(self)
    }

    /// Restores the state and settings of the optimiser, including the learning rate. Every replica of its parameters
    /// gets the same state.
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

    /// Returns the tensors of the group that was added as `name`.
    ///
    /// # Errors
    /// [`Error::Data`] if there is no such group, or if an earlier version wrote the file with groups that overlap;
    /// [`Error::InvalidArgument`] as for [`save`](TrainingState::save).
    pub fn get_tensors(&self, name: &str) -> Result<StateDict> {
        self.checked()?;
        let damaged = |detail| Error::Data { path: self.origin.clone(), detail };
        let found = groups::get(&self.tensors, &self.metadata, name).map_err(damaged)?;
        found.ok_or_else(|| self.lacks(&format!("group of tensors {name:?}")))
    }

    /// Returns a number.
    ///
    /// # Errors
    /// [`Error::Data`] if there is no number with this name.
    pub fn get(&self, name: &str) -> Result<f64> {
        let number = self.metadata.get(&format!("{NUMBER}{name}")).and_then(|text| text.parse().ok());
        number.ok_or_else(|| self.lacks(&format!("number {name:?}")))
    }

    /// Returns the numbers `name.key`, with their keys.
    #[must_use]
    pub fn get_numbers(&self, name: &str) -> Vec<(String, f64)> {
        let prefix = format!("{NUMBER}{name}.");
        let of = |(key, text): (&String, &String)| Some((key.strip_prefix(&prefix)?.to_string(), text.parse().ok()?));
        self.metadata.iter().filter_map(of).collect()
    }

    /// Returns a text.
    ///
    /// # Errors
    /// [`Error::Data`] if there is no text with this name.
    pub fn get_text(&self, name: &str) -> Result<&str> {
        let text = self.metadata.get(&format!("{TEXT}{name}")).map(String::as_str);
        text.ok_or_else(|| self.lacks(&format!("text {name:?}")))
    }

    /// Returns the position of the loader, for [`DataLoader::set_state`](crate::data::DataLoader::set_state).
    ///
    /// # Errors
    /// [`Error::Data`] if it was not saved.
    pub fn loader_state(&self) -> Result<LoaderState> {
        let at = self.metadata.get(&format!("{TEXT}{LOADER}")).and_then(|text| two(text));
        let (epoch, batches) = at.ok_or_else(|| self.lacks("state of a loader"))?;
        Ok(LoaderState { epoch, batches: batches as usize })
    }

    fn lacks(&self, what: &str) -> Error {
        Error::Data { path: self.origin.clone(), detail: format!("there is no {what} in this training checkpoint") }
    }
}

/// Returns the model's tensors and the texts of a training checkpoint, under the names with which they were added.
/// Returns the contents of any other file unchanged.
pub(super) fn model_of(state: StateDict, metadata: Metadata) -> (StateDict, Metadata) {
    if !metadata.contains_key(TRAINING) {
        return (state, metadata);
    }
    let name = |key: &str| key.strip_prefix(TEXT).filter(|name| !is_reserved(name)).map(str::to_string);
    let text = |(key, text): (String, String)| Some((name(&key)?, text));
    (state.under(MODEL), metadata.into_iter().filter_map(text).collect())
}

/// Returns why a second model or optimiser is refused.
fn second(what: &str, state: &str) -> String {
    format!("a second .{what}(…) would take the place of the first: add it by .tensors(\"a name\", &{state})")
}

fn refused(detail: String) -> Error {
    Error::argument("TrainingState", detail)
}

fn two(text: &str) -> Option<(u64, u64)> {
    let (a, b) = text.split_once(' ')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}
