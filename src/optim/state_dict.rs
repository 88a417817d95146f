//! An optimiser's state as named tensors, for saving and resuming.
//!
//! The names are PyTorch's, joined by dots: `state.3.exp_avg` belongs to the fourth parameter, `param_groups.0.lr` is a
//! setting, and `param_groups.0.params` holds the indices of all parameters.

use std::collections::BTreeMap;

use super::state::{OptimizerState, ParameterState};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{StateDict, moved};
use crate::tensor::Tensor;

/// The prefix of settings.
pub(super) const GROUP: &str = "param_groups.0.";

/// A state tensor that each parameter has.
pub(super) struct StateTensor {
    pub name: &'static str,
    /// Whether it exists after every step. Otherwise, a missing tensor means 0.
    pub always: bool,
}

/// The part of a state dict that depends on the optimiser.
pub(super) trait Settings {
    /// The tensors of a parameter's state, in the order of the update rule.
    const STATE: &'static [StateTensor];
    /// Whether a parameter without state restarts at step 1. With momentum, the first step has a different formula.
    const RESTARTS_WITHOUT_STATE: bool = false;

    /// Returns the settings under PyTorch's names.
    fn settings(&self) -> Vec<(&'static str, Vec<f32>)>;

    /// Sets one of the [`settings`](Settings::settings).
    fn set(&mut self, name: &str, values: &[f32]);
}

/// Returns an error for settings that PyTorch refuses when it creates the optimiser.
pub(super) fn check(optimizer: &'static str, settings: &impl Settings) -> Result<()> {
    let all = settings.settings();
    let value =
        |wanted: &str| all.iter().find(|(name, _)| *name == wanted).and_then(|(_, values)| values.first().copied());
    for (name, values) in &all {
        let (fits, rule): (fn(f32) -> bool, _) = match *name {
            "betas" => (|v| (0.0..1.0).contains(&v), "at least 0 and less than 1"),
            "rho" => (|v| (0.0..=1.0).contains(&v), "from 0 to 1"),
            "dampening" | "ns_coefficients" => (f32::is_finite, "finite"),
            _ => (|v| v.is_finite() && v >= 0.0, "finite and at least 0"),
        };
        if let Some(wrong) = values.iter().find(|&&v| !fits(v)) {
            return Err(Error::argument(optimizer, format!("{name} is {wrong}, and must be {rule}")));
        }
    }
    let nesterov = value("nesterov").is_some_and(|on| on != 0.0);
    // Muon, which has no dampening, takes any momentum.
    if let Some(dampening) = value("dampening").filter(|_| nesterov)
        && (value("momentum") == Some(0.0) || dampening != 0.0)
    {
        let detail = "nesterov needs a momentum above 0 and no dampening, for instance .momentum(0.9).nesterov()";
        return Err(Error::argument(optimizer, detail));
    }
    Ok(())
}

/// Returns the state dict of an optimiser; with several replicas, of the first one. The tensors share their elements
/// with the optimiser's tensors.
pub(super) fn save<S: Settings>(optimizer: &S, all: &OptimizerState) -> Result<StateDict> {
    let mut state = StateDict::new();
    for (i, step, tensors) in all.saved()? {
        state.insert(format!("state.{i}.step"), Tensor::scalar(step, None)?);
        for (known, tensor) in S::STATE.iter().zip(tensors) {
            state.insert(format!("state.{i}.{}", known.name), tensor);
        }
    }
    state.extend(saved_settings(optimizer, all.parameters().first_replica().len())?);
    Ok(state)
}

/// Returns the settings, and the indices of the parameters.
pub(super) fn saved_settings(optimizer: &impl Settings, parameters: usize) -> Result<StateDict> {
    let mut state = StateDict::new();
    for (name, values) in optimizer.settings() {
        let tensor = match values.as_slice() {
            [value] => Tensor::scalar(*value, None)?,
            several => Tensor::from_slice(several, several.len(), None)?,
        };
        state.insert(format!("{GROUP}{name}"), tensor);
    }
    state.insert(format!("{GROUP}params"), Tensor::iota(parameters, None)?);
    Ok(state)
}

/// Checks a state dict and then loads it into every replica.
pub(super) fn load<S: Settings>(
    optimizer: &mut S,
    state_of: fn(&mut S) -> &mut OptimizerState,
    state: &StateDict,
) -> Result<()> {
    let saved = Saved::read::<S>(state)?;
    saved.check_settings(&optimizer.settings())?;
    let all = state_of(optimizer);
    let parameters = all.parameters().first_replica();
    saved.check_count(parameters.len())?;
    let of = |(i, parameter): (usize, &Tensor)| saved.state_of::<S>(i, parameter);
    let states = parameters.iter().enumerate().map(of).collect::<Result<Vec<_>>>()?;
    // Tensors that no parameter has are left out; a rule that needs them later creates them.
    let has = |i: usize| states.iter().flatten().any(|state| state.tensors[i].is_some());
    let count = (0..S::STATE.len()).rev().find(|&i| has(i)).map_or(0, |last| last + 1);
    all.restore(count, &states)?;
    for (name, _) in optimizer.settings() {
        if let Some(values) = saved.settings.get(name) {
            optimizer.set(name, values);
        }
    }
    Ok(())
}

/// A parsed state dict.
struct Saved<'a> {
    settings: BTreeMap<&'a str, Vec<f32>>,
    /// The state tensors by parameter and name.
    tensors: BTreeMap<(usize, &'a str), &'a Tensor>,
    steps: BTreeMap<usize, i32>,
    /// The number of parameters, if the state lists them.
    listed: Option<usize>,
}

pub(super) fn refused(detail: String) -> Error {
    Error::argument("Optimizer::load_state_dict", format!("{detail}; the optimiser is unchanged"))
}

impl<'a> Saved<'a> {
    fn read<S: Settings>(state: &'a StateDict) -> Result<Saved<'a>> {
        let mut saved =
            Saved { settings: BTreeMap::new(), tensors: BTreeMap::new(), steps: BTreeMap::new(), listed: None };
        let (mut small, mut numbers): (Vec<(&str, &Tensor)>, Vec<&Tensor>) = Default::default();
        for (name, tensor) in state.iter() {
            let unknown = || {
                refused(format!(
                    "{name} is not part of this optimiser's state: the state may belong to another kind of optimiser"
                ))
            };
            if name.strip_prefix("param_groups.").is_some_and(|rest| !rest.starts_with("0.")) {
                let detail = format!("{name} belongs to a second parameter group, but this optimiser has one");
                return Err(refused(format!("{detail}: create one for each group, and ParamGroups of them")));
            }
            if name.starts_with(GROUP) || name.ends_with(".step") {
                small.push((name, tensor));
                numbers.push(tensor);
                continue;
            }
            let (i, tensor_name) =
                name.strip_prefix("state.").and_then(|rest| rest.split_once('.')).ok_or_else(unknown)?;
            if !S::STATE.iter().any(|known| known.name == tensor_name) {
                return Err(unknown());
            }
            saved.tensors.insert((i.parse().map_err(|_| unknown())?, tensor_name), tensor);
        }
        // Numbers are read back in one copy.
        for ((name, _), tensor) in small.iter().zip(moved(&numbers, &Device::cpu())?) {
            saved.number(name, &tensor)?;
        }
        Ok(saved)
    }

    fn number(&mut self, name: &'a str, tensor: &Tensor) -> Result<()> {
        let values = tensor.to_dtype(DType::F32)?.to_vec::<f32>()?;
        if let Some(setting) = name.strip_prefix(GROUP) {
            if setting == "params" {
                self.listed = Some(values.len());
            }
            self.settings.insert(setting, values);
            return Ok(());
        }
        let i = name.strip_prefix("state.").and_then(|rest| rest.strip_suffix(".step")?.parse().ok());
        let step = match tensor.dtype() {
            DType::I32 => tensor.to_vec::<i32>()?.first().copied(),
            DType::I64 => tensor.to_vec::<i64>()?.first().and_then(|&step| step.try_into().ok()),
            _ => values.first().map(|&step| step as i32),
        };
        match (i, step.filter(|&step| step >= 0)) {
            (Some(i), Some(step)) => self.steps.insert(i, step),
            _ => return Err(refused(format!("{name} is not a number of steps"))),
        };
        Ok(())
    }

    /// Returns an error if a setting is on that this optimiser does not have.
    fn check_settings(&self, known: &[(&str, Vec<f32>)]) -> Result<()> {
        let on = |name: &&str| self.settings.get(name).is_some_and(|values| values.iter().any(|&value| value != 0.0));
        match ["amsgrad", "maximize", "centered"]
            .iter()
            .filter(|name| on(name))
            .find(|name| known.iter().all(|(k, _)| k != *name))
        {
            Some(name) => Err(refused(format!("{GROUP}{name} is on, which this optimiser does not support"))),
            None => Ok(()),
        }
    }

    /// Checks that the state has as many parameters as a replica of this optimiser.
    fn check_count(&self, parameters: usize) -> Result<()> {
        let last = self.tensors.keys().map(|(i, _)| i).chain(self.steps.keys()).max().map_or(0, |last| last + 1);
        let Some(listed) = self.listed else {
            let detail = format!("{GROUP}params, the indices of the parameters, is missing");
            return Err(refused(format!("{detail}: this is not an optimiser's state, or only a part of one")));
        };
        let count = listed.max(last);
        if count != parameters {
            return Err(refused(format!("the state has {count} parameters, but this optimiser has {parameters}")));
        }
        Ok(())
    }

    /// Returns the state of parameter `i`, if there is any.
    fn state_of<S: Settings>(&self, i: usize, parameter: &Tensor) -> Result<Option<ParameterState>> {
        let mut tensors = Vec::new();
        for StateTensor { name, .. } in S::STATE {
            let tensor = self.tensors.get(&(i, *name)).copied();
            if let Some(tensor) = tensor.filter(|tensor| tensor.shape() != parameter.shape()) {
                let (shape, expected) = (tensor.shape(), parameter.shape());
                return Err(refused(format!("state.{i}.{name} is {shape:?}, but parameter {i} is {expected:?}")));
            }
            tensors.push(tensor.cloned());
        }
        let any = tensors.iter().any(Option::is_some);
        let step = self.steps.get(&i).copied().unwrap_or(i32::from(any));
        if step == 0 || S::RESTARTS_WITHOUT_STATE && !any {
            return Ok(None);
        }
        match S::STATE.iter().zip(&tensors).find(|(known, tensor)| known.always && tensor.is_none()) {
            Some((known, _)) => Err(refused(format!("state.{i}.{} is missing", known.name))),
            None => Ok(Some(ParameterState { step, tensors })),
        }
    }
}
