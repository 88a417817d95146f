//! Copies the values of a [`StateDict`] into the tensors of a module.

use std::collections::{BTreeSet, HashSet};

use super::Module;
use super::state_dict::{REPLICATED, StateDict, moved};
use crate::error::{Error, Result};
use crate::ops::duplicate;
use crate::ops::inplace::copy_;
use crate::tensor::{Bucket, Tensor};

/// The part of a name that `torch.compile` adds for each module that it compiles.
const COMPILED: &str = "_orig_mod";

/// The most prefixes that are tried for an error.
const MOST_PREFIXES: usize = 64;

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
    load_into(&named(module), state, strict)
}

/// Copies the values into tensors by their names. It knows no type of a module, and so is compiled once.
fn load_into(targets: &[(String, Tensor)], state: &StateDict, strict: bool) -> Result<KeyReport> {
    let renamed = with_names_of(targets, state)?;
    let (pairs, report, wrong) = matched(targets, &renamed);
    // If nothing of a state is used, it belongs to another net, or has other names.
    let nothing = pairs.is_empty() && !targets.is_empty() && (!state.is_empty() || state.skipped().len() > 0);
    if !wrong.is_empty() || nothing || strict && report != KeyReport::default() {
        let mut detail = complaint(&report, &wrong, &renamed, strict || nothing);
        if let Some(remedy) = remedy(targets, state, strict) {
            detail.push_str(&format!(". {remedy}"));
        }
        return Err(Error::argument("load_state_dict", detail));
    }
    overwrite(&pairs)?;
    Ok(report)
}

/// Returns the state with the module's names, where PyTorch's wrappers and newer functions use other names.
fn with_names_of(targets: &[(String, Tensor)], state: &StateDict) -> Result<StateDict> {
    let known: HashSet<&str> = targets.iter().map(|(name, _)| name.as_str()).collect();
    let has = |name: &str| name.split('.').any(|part| part == COMPILED);
    let mut state = state.clone();
    if state.names().any(has) && !known.iter().any(|name| has(name)) {
        let plain = |name: &str| name.split('.').filter(|part| *part != COMPILED).collect::<Vec<_>>().join(".");
        state = state.renamed(plain).unwrap_or(state);
    }
    state = with_prefix_of(targets, &state)?;
    let normed = |name: &str| of_weight_norm(name).filter(|own| known.contains(own.as_str()) && !known.contains(name));
    if state.names().any(|name| normed(name).is_some()) {
        state = state.renamed(|name| normed(name).unwrap_or_else(|| name.to_owned())).unwrap_or(state);
    }
    Ok(state)
}

/// Translates the name of a parameter of PyTorch's newer weight norm to the name that its earlier function uses:
/// `fc.parametrizations.weight.original0` is `fc.weight_g`.
fn of_weight_norm(name: &str) -> Option<String> {
    let (rest, part) = name.rsplit_once('.')?;
    let letter = match part {
        "original0" => 'g',
        "original1" => 'v',
        _ => return None,
    };
    let (rest, parameter) = rest.rsplit_once('.')?;
    let layer = rest.strip_suffix("parametrizations").filter(|layer| layer.is_empty() || layer.ends_with('.'))?;
    Some(format!("{layer}{parameter}_{letter}"))
}

/// Returns what to load instead of a state, if one prefix makes its names fit the module's.
fn remedy(targets: &[(String, Tensor)], state: &StateDict, strict: bool) -> Option<String> {
    let fits = |state: &StateDict, whole: bool| {
        let Ok(state) = with_names_of(targets, state) else { return false };
        let (pairs, report, wrong) = matched(targets, &state);
        let (missing, unexpected) = (report.missing.is_empty(), report.unexpected.is_empty());
        wrong.is_empty() && !pairs.is_empty() && unexpected && (missing || !whole)
    };
    let only = |prefixes: BTreeSet<&str>, fits: &dyn Fn(&str) -> bool| {
        // A state or a module whose names are hostile may have very many.
        let mut fitting = prefixes.into_iter().take(MOST_PREFIXES).filter(|prefix| fits(prefix));
        fitting.next().filter(|_| fitting.next().is_none()).map(str::to_owned)
    };
    let theirs = state.names().take(1).flat_map(prefixes).chain(
        state.names().flat_map(|name| targets.iter().take(1).filter_map(move |(target, _)| before(name, target))),
    );
    if let Some(prefix) = only(theirs.collect(), &|prefix| fits(&state.under(prefix), strict)) {
        return Some(format!("Load state.under({prefix:?}): its names are the module's names"));
    }
    let ours = state
        .names()
        .filter(|name| !is_counter(name))
        .take(1)
        .flat_map(|name| targets.iter().filter_map(move |(target, _)| before(target, name)));
    let prefix = only(ours.collect(), &|prefix| fits(&state.add_prefix(prefix), false))?;
    Some(format!("Load state.add_prefix({prefix:?}): the module has all of its names"))
}

/// Returns the beginnings of a name that end with a dot.
fn prefixes(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.').map(|(at, _)| &name[..=at])
}

/// Returns the part of a name before `end`, with a dot at its end.
fn before<'a>(name: &'a str, end: &str) -> Option<&'a str> {
    name.strip_suffix(end).filter(|prefix| prefix.ends_with('.'))
}

/// Returns the state with the prefix `module.` added if all of the module's names have it and none of the state's names
/// do. Removes it in the opposite case.
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

/// Returns what is wrong, with the names that only one side has if `all`.
fn complaint(report: &KeyReport, wrong: &[String], state: &StateDict, all: bool) -> String {
    let mut parts = Vec::new();
    let mut list = |what: &str, names: &[String], separator: &str| {
        if !names.is_empty() {
            parts.push(format!("{what} ({}): {}", names.len(), names.join(separator)));
        }
    };
    list("of another shape", wrong, "; ");
    if all {
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
