//! What an optimiser remembers, as tensors by name, so that a run can go on later and elsewhere.
//!
//! The names are PyTorch's, with dots: `state.3.exp_avg` is of the fourth parameter, `param_groups.0.lr` a setting, and
//! `param_groups.0.params` has the numbers of all parameters.

use std::collections::BTreeMap;

use super::group::{Memories, Parameters};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{StateDict, moved};
use crate::tensor::Tensor;

const GROUP: &str = "param_groups.0.";

/// Something that is remembered of each parameter.
pub(super) struct Memory {
    pub name: &'static str,
    /// Whether it is always there after a step; else it starts at 0 where it is not.
    pub always: bool,
}

/// The part of an optimiser's state that is its own.
pub(super) trait Settings {
    /// In the order in which its rule has them.
    const MEMORIES: &'static [Memory];
    /// Whether a parameter without memories starts anew, as under momentum its first step is another one.
    const FRESH_WITHOUT_MEMORY: bool = false;

    /// The numbers that it was made with, by PyTorch's names.
    fn settings(&self) -> Vec<(&'static str, Vec<f32>)>;

    /// Takes over a number of [`settings`](Settings::settings).
    fn set(&mut self, name: &str, values: &[f32]);
}

/// All of it; the memories share their elements with the optimiser's.
pub(super) fn save<S: Settings>(optimiser: &S, parameters: &Parameters) -> Result<StateDict> {
    let mut state = StateDict::new();
    for (i, step, memories) in parameters.remembered()? {
        state.insert(format!("state.{i}.step"), Tensor::scalar(step, None)?);
        for (memory, tensor) in S::MEMORIES.iter().zip(memories) {
            state.insert(format!("state.{i}.{}", memory.name), tensor);
        }
    }
    for (name, values) in optimiser.settings() {
        let tensor = match values.as_slice() {
            [value] => Tensor::scalar(*value, None)?,
            several => Tensor::from_slice(several, several.len(), None)?,
        };
        state.insert(format!("{GROUP}{name}"), tensor);
    }
    state.insert(format!("{GROUP}params"), Tensor::iota(parameters.all().len(), None)?);
    Ok(state)
}

/// Checks all of it, and then takes it over.
pub(super) fn load<S: Settings>(
    optimiser: &mut S,
    parameters: fn(&mut S) -> &mut Parameters,
    state: &StateDict,
) -> Result<()> {
    let saved = Saved::read::<S>(state)?;
    let parameters = parameters(optimiser);
    let all: Vec<Tensor> = parameters.all().to_vec();
    let count = saved.count(&all)?;
    let memories = (0..all.len()).map(|i| saved.memories::<S>(&all, i, count)).collect::<Result<Vec<_>>>()?;
    // Without what no parameter has: a rule that needs it later makes it.
    let has = |i: usize| memories.iter().flatten().any(|memories| memories.tensors[i].is_some());
    let memory_count = (0..S::MEMORIES.len()).rev().find(|&i| has(i)).map_or(0, |last| last + 1);
    parameters.remember(memory_count, &memories)?;
    for (name, _) in optimiser.settings() {
        if let Some(values) = saved.settings.get(name) {
            optimiser.set(name, values);
        }
    }
    Ok(())
}

/// The state of the first `count` parameters: of one replica out of several.
pub(crate) fn one_replica(state: &StateDict, count: usize) -> Result<StateDict> {
    let number = |name: &str| name.strip_prefix("state.")?.split_once('.')?.0.parse::<usize>().ok();
    let first = state.iter().filter(|(name, _)| number(name).is_none_or(|i| i < count));
    let mut first: StateDict = first.map(|(name, tensor)| (name.to_string(), tensor.clone())).collect();
    first.insert(format!("{GROUP}params"), Tensor::iota(count, None)?);
    Ok(first)
}

/// A state, taken apart.
struct Saved<'a> {
    settings: BTreeMap<&'a str, Vec<f32>>,
    /// By parameter and name.
    tensors: BTreeMap<(usize, &'a str), &'a Tensor>,
    steps: BTreeMap<usize, i32>,
    /// The number of parameters, where it says so.
    listed: Option<usize>,
}

fn refused(detail: String) -> Error {
    Error::argument("Optimizer::load_state_dict", format!("{detail}; the optimiser is unchanged"))
}

impl<'a> Saved<'a> {
    fn read<S: Settings>(state: &'a StateDict) -> Result<Saved<'a>> {
        let mut saved =
            Saved { settings: BTreeMap::new(), tensors: BTreeMap::new(), steps: BTreeMap::new(), listed: None };
        let (mut small, mut numbers): (Vec<(&str, &Tensor)>, Vec<&Tensor>) = Default::default();
        for (name, tensor) in state.iter() {
            let unknown =
                || refused(format!("{name} is nothing that this optimiser remembers: is the state another's?"));
            if name.strip_prefix("param_groups.").is_some_and(|rest| !rest.starts_with("0.")) {
                let detail = format!("{name} is of a second group of parameters, and optimisers here have one group");
                return Err(refused(format!("{detail}: make one optimiser for each group")));
            }
            if name.starts_with(GROUP) || name.ends_with(".step") {
                small.push((name, tensor));
                numbers.push(tensor);
                continue;
            }
            let (i, memory) = name.strip_prefix("state.").and_then(|rest| rest.split_once('.')).ok_or_else(unknown)?;
            if !S::MEMORIES.iter().any(|known| known.name == memory) {
                return Err(unknown());
            }
            saved.tensors.insert((i.parse().map_err(|_| unknown())?, memory), tensor);
        }
        // Numbers are read in one copy, wherever they are.
        for ((name, _), tensor) in small.iter().zip(moved(&numbers, &Device::cpu())?) {
            saved.number(name, &tensor)?;
        }
        Ok(saved)
    }

    fn number(&mut self, name: &'a str, tensor: &Tensor) -> Result<()> {
        let values = tensor.to_dtype(DType::F32)?.to_vec::<f32>()?;
        if let Some(setting) = name.strip_prefix(GROUP) {
            if ["amsgrad", "maximize", "centered"].contains(&setting) && values.iter().any(|&value| value != 0.0) {
                return Err(refused(format!("{name} is on, which no optimiser here does")));
            }
            if setting == "params" {
                self.listed = Some(values.len());
            }
            self.settings.insert(setting, values);
            return Ok(());
        }
        let i = name.strip_prefix("state.").and_then(|rest| rest.strip_suffix(".step")?.parse().ok());
        let step = match tensor.dtype() {
            DType::I32 => tensor.to_vec::<i32>()?.first().copied(),
            _ => values.first().map(|&step| step as i32),
        };
        match (i, step.filter(|&step| step >= 0)) {
            (Some(i), Some(step)) => self.steps.insert(i, step),
            _ => return Err(refused(format!("{name} is no number of steps"))),
        };
        Ok(())
    }

    /// How many parameters the state is of: as many as there are here, or those of one replica, or of several.
    fn count(&self, all: &[Tensor]) -> Result<usize> {
        let last = self.tensors.keys().map(|(i, _)| i).chain(self.steps.keys()).max().map_or(0, |last| last + 1);
        let Some(listed) = self.listed else {
            let detail = format!("{GROUP}params, the numbers of its parameters, is missing");
            return Err(refused(format!("{detail}: this is no optimiser's state, or a part of one")));
        };
        let count = listed.max(last);
        let multiple = count > 0 && all.len().max(count).is_multiple_of(all.len().min(count).max(1));
        let alike = |(&(i, _), tensor): (&(usize, &str), &&Tensor)| {
            all.len() >= count || all.get(i % all.len().max(1)).is_some_and(|here| here.shape() == tensor.shape())
        };
        let multiple = multiple && self.tensors.iter().all(alike);
        if count == all.len() || multiple {
            return Ok(count.max(1));
        }
        Err(refused(format!("the state is of {count} parameters, and this optimiser has {}", all.len())))
    }

    /// What is remembered of a parameter. In a state of fewer parameters it is that of the first replica; further
    /// replicas of the state are not asked for.
    fn memories<S: Settings>(&self, all: &[Tensor], i: usize, count: usize) -> Result<Option<Memories>> {
        let source = i % count;
        let mut tensors = Vec::new();
        for memory in S::MEMORIES {
            let tensor = self.tensors.get(&(source, memory.name)).copied();
            if let Some(tensor) = tensor.filter(|tensor| tensor.shape() != all[i].shape()) {
                let (shape, parameter) = (tensor.shape(), all[i].shape());
                let name = memory.name;
                return Err(refused(format!("state.{source}.{name} is {shape:?}, and parameter {i} is {parameter:?}")));
            }
            tensors.push(tensor.cloned());
        }
        let any = tensors.iter().any(Option::is_some);
        let step = self.steps.get(&source).copied().unwrap_or(i32::from(any));
        if step == 0 || S::FRESH_WITHOUT_MEMORY && !any {
            return Ok(None);
        }
        match S::MEMORIES.iter().zip(&tensors).find(|(memory, tensor)| memory.always && tensor.is_none()) {
            Some((memory, _)) => Err(refused(format!("state.{source}.{} is missing", memory.name))),
            None => Ok(Some(Memories { step, tensors })),
        }
    }
}
