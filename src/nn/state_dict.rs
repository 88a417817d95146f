//! The values of a module by name.

use std::collections::HashMap;

use crate::device::{Device, IntoDevice};
use crate::error::{Error, Result};
use crate::ops::duplicate;
use crate::tensor::{Tensor, to_together};

/// The prefix that PyTorch's `DataParallel` and `DistributedDataParallel` add to every name.
pub(super) const REPLICATED: &str = "module.";

/// Tensors by dotted name, in insertion order: the parameters and buffers of a module.
///
/// [`Module::state_dict`](super::Module::state_dict) creates one, [`checkpoint`](crate::checkpoint) writes and reads
/// it, and [`Module::load_state_dict`](super::Module::load_state_dict) copies its values into a module.
///
/// ```
/// use anygpu::nn::{Linear, Module, StateDict};
/// use anygpu::Tensor;
///
/// let layer = Linear::new(3, 2)?;
/// let mut state = layer.state_dict();
/// assert_eq!(state.names().collect::<Vec<_>>(), ["weight", "bias"]);
///
/// state.insert("bias", Tensor::zeros([2], None)?);
/// layer.load_state_dict(&state, true)?;
/// assert_eq!(layer.state_dict().get("bias").map(|bias| bias.to_vec::<f32>()), Some(Ok(vec![0.0; 2])));
///
/// let pair = StateDict::from([("x", Tensor::ones(2, None)?), ("y", Tensor::zeros(3, None)?)]);
/// assert_eq!(pair.len(), 2);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StateDict {
    entries: Vec<(String, Tensor)>,
    places: HashMap<String, usize>,
    /// What a reader could not put into the state, by name, with the reason.
    skipped: Vec<(String, String)>,
}

impl StateDict {
    /// Creates an empty state.
    #[must_use]
    pub fn new() -> StateDict {
        StateDict::default()
    }

    /// Inserts a tensor under a name. If the name exists, its tensor is replaced in place and returned; otherwise the
    /// new one is appended.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) -> Option<Tensor> {
        let name = name.into();
        if let Some(&place) = self.places.get(&name) {
            return Some(std::mem::replace(&mut self.entries[place].1, tensor));
        }
        self.places.insert(name.clone(), self.entries.len());
        self.entries.push((name, tensor));
        None
    }

    /// Returns the tensor with this name, if there is one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.places.get(name).map(|&place| &self.entries[place].1)
    }

    /// Removes the tensor with this name, and returns it if there was one. The others keep their order.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        let place = self.places.remove(name)?;
        self.places.values_mut().filter(|other| **other > place).for_each(|other| *other -= 1);
        Some(self.entries.remove(place).1)
    }

    /// Returns the tensors with their names, in order.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Returns the names, in order.
    #[must_use]
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the names of the entries of the file that were not read, each with the reason.
    ///
    /// A reason is, for example, that the numbers are complex.
    ///
    /// ```
    /// # use anygpu::nn::StateDict;
    /// # let state = StateDict::new(); // of checkpoint::load
    /// for (name, reason) in state.skipped() {
    ///     println!("{name} was not read: {reason}");
    /// }
    /// ```
    #[must_use]
    pub fn skipped(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.skipped.iter().map(|(name, reason)| (name.as_str(), reason.as_str()))
    }

    /// Notes an entry that is not in the state.
    pub(crate) fn skip(&mut self, name: &str, reason: impl Into<String>) {
        self.skipped.push((name.to_owned(), reason.into()));
    }

    /// Takes over the skipped entries of another state, under other names; `None` leaves one out.
    fn skipping(mut self, other: &StateDict, name: impl Fn(&str) -> Option<String>) -> StateDict {
        self.skipped = other.skipped.iter().filter_map(|(old, why)| Some((name(old)?, why.clone()))).collect();
        self
    }

    /// Returns the number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the same tensors with `prefix` removed from the names that start with it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if two tensors would get the same name.
    ///
    /// ```
    /// use anygpu::{Tensor, nn::StateDict};
    ///
    /// let state: StateDict = [("module.fc.bias".to_string(), Tensor::zeros([2], None)?)].into_iter().collect();
    /// let state = state.strip_prefix("module.")?.add_prefix("net.");
    /// assert_eq!(state.names().collect::<Vec<_>>(), ["net.fc.bias"]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn strip_prefix(&self, prefix: &str) -> Result<StateDict> {
        let mut renamed = StateDict::new();
        for (name, tensor) in self.iter() {
            let name = name.strip_prefix(prefix).unwrap_or(name);
            if renamed.insert(name, tensor.clone()).is_some() {
                let detail = format!("without the prefix {prefix:?}, two tensors have the name {name:?}");
                return Err(Error::argument("strip_prefix", detail));
            }
        }
        Ok(renamed.skipping(self, |name| Some(name.strip_prefix(prefix).unwrap_or(name).to_owned())))
    }

    /// Returns the same tensors under other names, unless two of them get the same one.
    pub(super) fn renamed(&self, new_name: impl Fn(&str) -> String) -> Option<StateDict> {
        let renamed: StateDict = self.iter().map(|(name, tensor)| (new_name(name), tensor.clone())).collect();
        (renamed.len() == self.len()).then(|| renamed.skipping(self, |name| Some(new_name(name))))
    }

    /// Returns the same tensors with `prefix` added to every name.
    #[must_use]
    pub fn add_prefix(&self, prefix: &str) -> StateDict {
        let renamed: StateDict =
            self.iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor.clone())).collect();
        renamed.skipping(self, |name| Some(format!("{prefix}{name}")))
    }

    /// Returns the tensors whose names start with `prefix`, with the prefix removed: for example the state of one
    /// layer.
    ///
    /// ```
    /// use anygpu::nn::{Linear, Module, Sequential};
    ///
    /// let net = Sequential::new().add("fc1", Linear::new(4, 8)?).add("fc2", Linear::new(8, 2)?);
    /// Linear::new(8, 2)?.load_state_dict(&net.state_dict().under("fc2."), true)?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn under(&self, prefix: &str) -> StateDict {
        let inner = |(name, tensor): (&str, &Tensor)| Some((name.strip_prefix(prefix)?.to_string(), tensor.clone()));
        let state: StateDict = self.iter().filter_map(inner).collect();
        state.skipping(self, |name| Some(name.strip_prefix(prefix)?.to_owned()))
    }

    /// Returns the tensors on `device`. All tensors that are on the same other device are moved in one staged copy.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::DeviceLost`] of either device.
    pub fn to(&self, device: impl IntoDevice) -> Result<StateDict> {
        let device = device.into_device()?;
        let tensors: Vec<&Tensor> = self.entries.iter().map(|(_, tensor)| tensor).collect();
        let state: StateDict = self.names().map(str::to_string).zip(moved(&tensors, &device)?).collect();
        Ok(state.skipping(self, |name| Some(name.to_owned())))
    }

    /// Returns copies of the tensors, which later optimiser steps do not change. Use it to keep the best state so far,
    /// for example.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if a device does not have enough memory for them.
    pub fn copied(&self) -> Result<StateDict> {
        let copies = self.iter().map(|(name, tensor)| Ok((name.to_string(), duplicate(&tensor.detach())?)));
        Ok(copies.collect::<Result<StateDict>>()?.skipping(self, |name| Some(name.to_owned())))
    }
}

/// Returns the tensors on `device`, outside the graph, with one staged copy from each other device.
pub(crate) fn moved(tensors: &[&Tensor], device: &Device) -> Result<Vec<Tensor>> {
    let mut all: Vec<Option<Tensor>> = vec![None; tensors.len()];
    while let Some(next) = all.iter().position(Option::is_none) {
        let from = tensors[next].device();
        let here: Vec<usize> = (next..tensors.len()).filter(|&i| tensors[i].device() == from).collect();
        let together = to_together(&here.iter().map(|&i| tensors[i]).collect::<Vec<_>>(), device)?;
        here.into_iter().zip(together).for_each(|(i, tensor)| all[i] = Some(tensor));
    }
    Ok(all.into_iter().flatten().collect())
}

/// If a name occurs twice, the later tensor replaces the earlier one.
impl FromIterator<(String, Tensor)> for StateDict {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(tensors: I) -> StateDict {
        let mut state = StateDict::new();
        state.extend(tensors);
        state
    }
}

impl<S: Into<String>, const N: usize> From<[(S, Tensor); N]> for StateDict {
    fn from(tensors: [(S, Tensor); N]) -> StateDict {
        tensors.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect()
    }
}

impl Extend<(String, Tensor)> for StateDict {
    fn extend<I: IntoIterator<Item = (String, Tensor)>>(&mut self, tensors: I) {
        for (name, tensor) in tensors {
            self.insert(name, tensor);
        }
    }
}

impl IntoIterator for StateDict {
    type Item = (String, Tensor);
    type IntoIter = std::vec::IntoIter<(String, Tensor)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_places_survive_a_removal() {
        let tensor = |value: f32| Tensor::scalar(value, None).unwrap();
        let mut state = StateDict::new();
        for (i, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            assert!(state.insert(name, tensor(i as f32)).is_none());
        }
        assert_eq!(state.remove("b").unwrap().item::<f32>(), Ok(1.0));
        assert!(state.remove("b").is_none());
        assert_eq!(state.insert("c", tensor(9.0)).unwrap().item::<f32>(), Ok(2.0));
        state.insert("b", tensor(4.0));
        let all: Vec<_> = state.iter().map(|(name, value)| (name, value.item::<f32>().unwrap())).collect();
        assert_eq!(all, [("a", 0.0), ("c", 9.0), ("d", 3.0), ("b", 4.0)]);
        assert_eq!(state.get("d").unwrap().item::<f32>(), Ok(3.0));
    }

    #[test]
    fn names_that_would_meet_are_refused() {
        let zero = || Tensor::scalar(0f32, None).unwrap();
        let state: StateDict = [("m.a".to_string(), zero()), ("a".to_string(), zero())].into_iter().collect();
        assert!(state.strip_prefix("m.").unwrap_err().to_string().contains("\"a\""));
        assert_eq!(state.under("m.").names().collect::<Vec<_>>(), ["a"]);
    }
}
