//! Copies the values of a [`StateDict`] into the tensors of a module.

use std::collections::HashSet;

use super::Module;
use super::state_dict::{REPLICATED, StateDict, moved};
use crate::error::{Error, Result};
use crate::ops::duplicate;
use crate::ops::inplace::copy_;
use crate::tensor::{Bucket, Tensor};

/// The names that only one side had in [`Module::load_state_dict`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyReport {
    /// Names of the module that the state does not have. These tensors kept their values.
    pub missing: Vec<String>,
    /// Names of the state that the module does not have.
    pub unexpected: Vec<String>,
}

/// A tensor of the module and its new value.
type Pair = (Tensor, Tensor);

pub(super) fn state_dict(module: &(impl Module + ?Sized)) -> StateDict {
    named(module).into_iter().map(|(name, tensor)| (name, tensor.detach())).collect()
}

/// Returns parameters and buffers under all of their names.
fn named(module: &(impl Module + ?Sized)) -> Vec<(String, Tensor)> {
    let mut all = Vec::new();
    module.visit(&mut |name, parameter| all.push((name.to_string(), parameter.clone())));
    module.visit_buffers(&mut |name, buffer| all.push((name.to_string(), buffer.clone())));
    all
}

pub(super) fn load(module: &(impl Module + ?Sized), state: &StateDict, strict: bool) -> Result<KeyReport> {
    let targets = named(module);
    let state = with_prefix_of(&targets, state)?;
    let (pairs, report, wrong) = matched(&targets, &state);
    if !wrong.is_empty() || strict && report != KeyReport::default() {
        return Err(Error::argument("load_state_dict", complaint(&report, &wrong, &state, strict)));
    }
    overwrite(&pairs)?;
    Ok(report)
}

/// Returns the state with the prefix `module.` added if all of the module's names have it and none of the state's, or
/// removed in the opposite case.
fn with_prefix_of(targets: &[(String, Tensor)], state: &StateDict) -> Result<StateDict> {
    let ours = !targets.is_empty() && targets.iter().all(|(name, _)| name.starts_with(REPLICATED));
    let theirs = !state.is_empty() && state.names().all(|name| name.starts_with(REPLICATED));
    match (ours, theirs) {
        (true, false) if state.names().all(|name| !name.starts_with(REPLICATED)) => Ok(state.add_prefix(REPLICATED)),
        (false, true) if targets.iter().all(|(name, _)| !name.starts_with(REPLICATED)) => {
            state.strip_prefix(REPLICATED)
        }
        _ => Ok(state.clone()),
    }
}

/// Returns each tensor of the module with its new value, the names that only one side has, and the shape mismatches.
fn matched(targets: &[(String, Tensor)], state: &StateDict) -> (Vec<Pair>, KeyReport, Vec<String>) {
    let (mut pairs, mut report, mut wrong): (Vec<Pair>, _, _) = (Vec::new(), KeyReport::default(), Vec::new());
    let mut found = HashSet::new();
    for (name, target) in targets {
        match state.get(name) {
            Some(value) if value.shape() != target.shape() => {
                wrong.push(format!("{name}: {:?} in the module, {:?} in the state", target.shape(), value.shape()));
                found.insert(target.id());
            }
            // A tensor with several names (tied weights) gets the value of the last one, as in PyTorch.
            Some(value) if !found.insert(target.id()) => {
                pairs.iter_mut().filter(|(known, _)| known.id() == target.id()).for_each(|pair| pair.1 = value.clone());
            }
            Some(value) => pairs.push((target.clone(), value.clone())),
            None => {}
        }
    }
    let missing = targets.iter().filter(|(_, target)| !found.contains(&target.id()));
    report.missing = missing.map(|(name, _)| name.clone()).collect();
    let known: HashSet<&str> = targets.iter().map(|(name, _)| name.as_str()).collect();
    let unexpected = state.names().filter(|name| !known.contains(name) && !is_counter(name));
    report.unexpected = unexpected.map(str::to_string).collect();
    (pairs, report, wrong)
}

/// PyTorch's batch norm stores a count of its batches, which this crate does not use.
fn is_counter(name: &str) -> bool {
    name.rsplit('.').next() == Some("num_batches_tracked")
}

fn complaint(report: &KeyReport, wrong: &[String], state: &StateDict, strict: bool) -> String {
    let mut parts = Vec::new();
    let mut list = |what: &str, names: &[String], separator: &str| {
        if !names.is_empty() {
            parts.push(format!("{what} ({}): {}", names.len(), names.join(separator)));
        }
    };
    list("of another shape", wrong, "; ");
    if strict {
        let why = |name: &String| match state.skipped().find(|(skipped, _)| skipped == name) {
            Some((_, reason)) => format!("{name} (skipped when the file was read: {reason})"),
            None => name.clone(),
        };
        list("missing in the state", &report.missing.iter().map(why).collect::<Vec<_>>(), ", ");
        list("unexpected in the state", &report.unexpected, ", ");
    }
    format!("the state does not fit the module, which is unchanged. {}", parts.join(". "))
}

/// Converts and moves all values first, with one transfer per pair of devices, and then writes them. An error therefore
/// leaves the module unchanged.
fn overwrite(pairs: &[Pair]) -> Result<()> {
    let mut ready = Vec::with_capacity(pairs.len());
    let mut rest: Vec<&Pair> = pairs.iter().collect();
    while let Some(device) = rest.first().map(|(target, _)| target.device().clone()) {
        let (here, elsewhere): (Vec<&Pair>, Vec<&Pair>) =
            rest.into_iter().partition(|(target, _)| target.device() == &device);
        rest = elsewhere;
        let targets: Vec<Tensor> = here.iter().map(|(target, _)| target.detach()).collect();
        let alike = |(target, value): &&Pair| value.detach().to_dtype(target.dtype());
        let values = here.iter().map(alike).collect::<Result<Vec<_>>>()?;
        let values = moved(&values.iter().collect::<Vec<_>>(), &device)?;
        runs(&targets, &values, &mut ready)?;
    }
    ready.iter().try_for_each(|(target, value)| copy_(target, value))
}

/// Adds the copies to `ready`: one for each run of targets that is a bucket, and one for each other target.
fn runs(targets: &[Tensor], values: &[Tensor], ready: &mut Vec<Pair>) -> Result<()> {
    let mut start = 0;
    for run in Bucket::runs(targets) {
        let values = &values[start..start + run.len()];
        start += run.len();
        match Bucket::recognise(run).filter(|_| run.len() > 1) {
            Some(bucket) => ready.push((bucket.flat().clone(), Bucket::gather(values)?.flat().clone())),
            None => {
                for (target, value) in run.iter().zip(values) {
                    // The state may contain a view of a tensor that is written.
                    let shared = targets.iter().any(|t| t.storage().id() == value.storage().id());
                    ready.push((target.clone(), if shared { duplicate(value)? } else { value.clone() }));
                }
            }
        }
    }
    Ok(())
}
