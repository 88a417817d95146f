//! Copies the values of a [`StateDict`] into the tensors that a module has.

use std::collections::HashSet;

use super::Module;
use super::state_dict::{REPLICATED, StateDict, moved};
use crate::error::{Error, Result};
use crate::ops::duplicate;
use crate::ops::inplace::copy_;
use crate::tensor::{Bucket, Tensor};

/// Which names did not meet in [`Module::load_state_dict`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyReport {
    /// Names of the module that the state does not have: these kept their values.
    pub missing: Vec<String>,
    /// Names of the state that the module does not have.
    pub unexpected: Vec<String>,
}

/// A tensor of the module, and the value that it is to get.
type Pair = (Tensor, Tensor);

pub(super) fn state_dict(module: &(impl Module + ?Sized)) -> StateDict {
    named(module).into_iter().map(|(name, tensor)| (name, tensor.detach())).collect()
}

/// Parameters and buffers under every name that they have.
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
        return Err(Error::argument("load_state_dict", complaint(&report, &wrong, strict)));
    }
    overwrite(&pairs)?;
    Ok(report)
}

/// The state with `module.` before its names where all of the module's have it, and without it where none has.
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

/// Each tensor of the module with its value; the names that do not meet; what is wrong with the shapes.
fn matched(targets: &[(String, Tensor)], state: &StateDict) -> (Vec<Pair>, KeyReport, Vec<String>) {
    let (mut pairs, mut report, mut wrong): (Vec<Pair>, _, _) = (Vec::new(), KeyReport::default(), Vec::new());
    let mut found = HashSet::new();
    for (name, target) in targets {
        match state.get(name) {
            Some(value) if value.shape() != target.shape() => {
                wrong.push(format!("{name}: {:?} in the module, {:?} in the state", target.shape(), value.shape()));
                found.insert(target.id());
            }
            // A tensor with several names (tied weights) gets the last one's value, as in PyTorch.
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

/// PyTorch's batch norm counts its batches; ours has no use for the number.
fn is_counter(name: &str) -> bool {
    name.rsplit('.').next() == Some("num_batches_tracked")
}

fn complaint(report: &KeyReport, wrong: &[String], strict: bool) -> String {
    let mut parts = Vec::new();
    let mut list = |what: &str, names: &[String], separator: &str| {
        if !names.is_empty() {
            parts.push(format!("{what} ({}): {}", names.len(), names.join(separator)));
        }
    };
    list("of another shape", wrong, "; ");
    if strict {
        list("missing in the state", &report.missing, ", ");
        list("unexpected in the state", &report.unexpected, ", ");
    }
    format!("the state does not fit the module, which is unchanged. {}", parts.join(". "))
}

/// Converts and moves all values first, one crossing per pair of devices, and then writes: what fails, fails before.
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

/// A run of targets that are a bucket is one copy; the others are one each.
fn runs(targets: &[Tensor], values: &[Tensor], ready: &mut Vec<Pair>) -> Result<()> {
    let mut start = 0;
    for run in Bucket::runs(targets) {
        let values = &values[start..start + run.len()];
        start += run.len();
        match Bucket::recognise(run).filter(|_| run.len() > 1) {
            Some(bucket) => ready.push((bucket.flat().clone(), Bucket::gather(values)?.flat().clone())),
            None => {
                for (target, value) in run.iter().zip(values) {
                    // The state may hold a view of the very tensor that is written.
                    let shared = targets.iter().any(|t| t.storage().id() == value.storage().id());
                    ready.push((target.clone(), if shared { duplicate(value)? } else { value.clone() }));
                }
            }
        }
    }
    Ok(())
}
