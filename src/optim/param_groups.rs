//! Several groups of parameters, each with its own settings.

use std::collections::{BTreeMap, HashSet};

use super::state::some_gradient;
use super::{Optimizer, Parameters};
use crate::error::{Error, Result};
use crate::nn::StateDict;
use crate::tensor::Tensor;

const NAME: &str = "ParamGroups";

/// An optimiser of several groups of parameters, each with its own settings: PyTorch's parameter groups.
///
/// Each group is an optimiser of its parameters. A schedule sets the learning rate of the first group, and the others keep
/// their ratios to it. The state has PyTorch's names: `param_groups.1.lr` is a setting of the second group, and
/// parameters are numbered through all groups.
///
/// ```
/// use anygpu::nn::{Linear, Module, ReLU, Sequential};
/// use anygpu::optim::{Optimizer, ParamGroups, SGD};
///
/// let net = Sequential::new().add("fc1", Linear::new(4, 8)?).add("relu", ReLU).add("fc2", Linear::new(8, 2)?);
/// // The last layer learns ten times as fast; biases do not decay.
/// let all = net.named_parameters();
/// let of = |keep: fn(&str) -> bool| -> Vec<_> {
///     all.iter().filter(|(name, _)| keep(name)).map(|(_, parameter)| parameter.clone()).collect()
/// };
/// let mut sgd = ParamGroups::new(vec![
///     SGD::new(of(|name| name == "fc1.weight"), 0.01).momentum(0.9).weight_decay(1e-4),
///     SGD::new(of(|name| name == "fc2.weight"), 0.1).momentum(0.9).weight_decay(1e-4),
///     SGD::new(of(|name| name.ends_with("bias")), 0.01).momentum(0.9),
/// ])?;
/// sgd.set_lr(0.005);
/// assert!((sgd.groups()[1].lr() - 0.05).abs() < 1e-6);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct ParamGroups<O> {
    groups: Vec<O>,
    parameters: Parameters,
    /// The rates of the groups divided by the rate of the first.
    ratios: Vec<f32>,
    /// The rates that this type has set. Other rates were set by a caller, and change the ratios.
    set: Vec<f32>,
}

impl<O: Optimizer> ParamGroups<O> {
    /// Creates the optimiser of these groups.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no groups, if a parameter is in two of them, or if they have different
    /// numbers of replicas.
    pub fn new(groups: Vec<O>) -> Result<ParamGroups<O>> {
        let Some(first) = groups.first() else { return Err(Error::argument(NAME, "needs at least one group")) };
        let replicas = first.parameters().num_replicas();
        let mut seen = HashSet::new();
        for (i, group) in groups.iter().enumerate() {
            let parameters = group.parameters();
            if parameters.num_replicas() != replicas {
                let (own, first) = (parameters.num_replicas(), replicas);
                return Err(Error::argument(NAME, format!("group {i} has {own} replicas, and the first {first}")));
            }
            let own: HashSet<u64> = parameters.iter().map(Tensor::id).collect();
            if !seen.is_disjoint(&own) {
                return Err(Error::argument(NAME, format!("a parameter of group {i} is in another group too")));
            }
            seen.extend(own);
        }
        let parameters = joined(&groups);
        let mut all = ParamGroups { ratios: vec![1.0; groups.len()], set: Vec::new(), groups, parameters };
        all.find_ratios();
        Ok(all)
    }

    /// Returns the optimisers of the groups, in order.
    #[must_use]
    pub fn groups(&self) -> &[O] {
        &self.groups
    }

    /// Returns the optimisers of the groups, to change their settings. Do not call a group's own `step`: call the step
    /// of all groups.
    pub fn groups_mut(&mut self) -> &mut [O] {
        &mut self.groups
    }

    /// Computes the ratios from rates that a caller has set. A first rate of 0, with which schedules end, has no
    /// ratios.
    fn find_ratios(&mut self) {
        let rates: Vec<f32> = self.groups.iter().map(Optimizer::lr).collect();
        if rates[0] > 0.0 && rates != self.set {
            self.ratios = rates.iter().map(|rate| rate / rates[0]).collect();
            self.set = rates;
        }
    }

    /// Returns the part of a state that belongs to each group, as the state of an optimiser of one group.
    fn parts(&self, state: &StateDict) -> Result<Vec<StateDict>> {
        let refused = |detail: String| Error::argument("Optimizer::load_state_dict", detail);
        let sizes: Vec<usize> = self.groups.iter().map(|group| group.parameters().first_replica().len()).collect();
        let mut parts: Vec<StateDict> = sizes.iter().map(|_| StateDict::new()).collect();
        // Which parameter of which group has a number.
        let places = sizes.iter().enumerate().flat_map(|(group, &size)| (0..size).map(move |i| (group, i)));
        let places: BTreeMap<usize, (usize, usize)> = places.enumerate().collect();
        for (name, tensor) in state.iter() {
            let unknown = || refused(format!("{name} is not part of the state of {} groups", sizes.len()));
            if let Some((group, setting)) = numbered(name, "param_groups.") {
                let part = parts.get_mut(group).ok_or_else(unknown)?;
                let tensor = match setting {
                    // Within a group, its parameters are numbered from 0.
                    "params" if tensor.elem_count() == sizes[group] => Tensor::iota(sizes[group], None)?,
                    "params" => {
                        let (saved, own) = (tensor.elem_count(), sizes[group]);
                        let detail = format!("group {group} of the state has {saved} parameters, but this one {own}");
                        return Err(refused(format!("{detail}; the optimiser is unchanged")));
                    }
                    _ => tensor.clone(),
                };
                part.insert(format!("param_groups.0.{setting}"), tensor);
            } else {
                let (number, rest) = numbered(name, "state.").ok_or_else(unknown)?;
                let &(group, i) = places.get(&number).ok_or_else(unknown)?;
                parts[group].insert(format!("state.{i}.{rest}"), tensor.clone());
            }
        }
        Ok(parts)
    }
}

/// Returns the parameters of all groups, one replica after another. All groups have as many replicas.
fn joined<O: Optimizer>(groups: &[O]) -> Parameters {
    let replicas = groups.first().map_or(1, |group| group.parameters().num_replicas());
    let of_replica = |replica: usize| -> Vec<Tensor> {
        let parts = groups.iter().filter_map(|group| group.parameters().replicas().nth(replica));
        parts.flatten().cloned().collect()
    };
    let all: Vec<Vec<Tensor>> = (0..replicas).map(of_replica).collect();
    Parameters::of_replicas(all.iter().map(Vec::as_slice))
}

/// Returns the number that follows a prefix of a name, and what comes after its dot.
fn numbered<'a>(name: &'a str, prefix: &str) -> Option<(usize, &'a str)> {
    let (number, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

impl<O: Optimizer> Optimizer for ParamGroups<O> {
    /// Updates every parameter that has a gradient. Everything that can fail is tried in all groups before the first is
    /// updated. Some groups may be without gradients, but not all of them.
    fn step(&mut self) -> Result<()> {
        self.check_step()?;
        some_gradient(NAME, &self.parameters)?;
        let has_gradient = |group: &&mut O| group.parameters().iter().any(|parameter| parameter.grad().is_some());
        self.groups.iter_mut().filter(has_gradient).try_for_each(Optimizer::step)
    }

    fn check_step(&mut self) -> Result<()> {
        // A group checks whether other owners have its parameters.
        self.parameters = Vec::new().into();
        let checked = self.groups.iter_mut().try_for_each(Optimizer::check_step);
        self.parameters = joined(&self.groups);
        checked
    }

    fn zero_grad(&self) {
        self.parameters.zero_grad();
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns the learning rate of the first group.
    fn lr(&self) -> f32 {
        self.groups[0].lr()
    }

    /// Changes the learning rate of the first group. The others keep their ratios to it.
    fn set_lr(&mut self, lr: f32) {
        self.find_ratios();
        for (group, ratio) in self.groups.iter_mut().zip(&self.ratios) {
            group.set_lr(lr * ratio);
        }
        self.set = self.groups.iter().map(Optimizer::lr).collect();
    }

    fn state_dict(&self) -> Result<StateDict> {
        let mut all = StateDict::new();
        let mut first = 0;
        for (k, group) in self.groups.iter().enumerate() {
            let count = group.parameters().first_replica().len();
            for (name, tensor) in group.state_dict()?.iter() {
                if name == "param_groups.0.params" {
                    let numbers: Vec<u32> = (first..first + count).map(|i| i as u32).collect();
                    all.insert(format!("param_groups.{k}.params"), Tensor::from_vec(numbers, count, None)?);
                } else if let Some(setting) = name.strip_prefix("param_groups.0.") {
                    all.insert(format!("param_groups.{k}.{setting}"), tensor.clone());
                } else {
                    let Some((i, rest)) = numbered(name, "state.") else {
                        return Err(Error::internal(format!("{name} is not PyTorch's name of an optimiser's state")));
                    };
                    all.insert(format!("state.{}.{rest}", first + i), tensor.clone());
                }
            }
            first += count;
        }
        Ok(all)
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let parts = self.parts(state)?;
        let before = self.groups.iter().map(Optimizer::state_dict).collect::<Result<Vec<_>>>()?;
        for (k, part) in parts.iter().enumerate() {
            if let Err(error) = self.groups[k].load_state_dict(part) {
                // A loaded state has its own tensors, so the earlier tensors still have their elements.
                self.groups.iter_mut().zip(&before).take(k).try_for_each(|(group, own)| group.load_state_dict(own))?;
                return Err(error);
            }
        }
        self.find_ratios();
        Ok(())
    }
}
