//! The values of a module by name.

use std::collections::HashMap;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::duplicate;
use crate::tensor::{Tensor, to_together};

/// What `DataParallel` and `DistributedDataParallel` of PyTorch put before every name.
pub(super) const REPLICATED: &str = "module.";

/// Tensors by dotted name, in the order in which they were inserted: what a module is without its code.
///
/// [`Module::state_dict`](super::Module::state_dict) makes one, [`checkpoint`](crate::checkpoint) writes and reads it,
/// [`Module::load_state_dict`](super::Module::load_state_dict) copies its values back into a module.
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
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StateDict {
    entries: Vec<(String, Tensor)>,
    places: HashMap<String, usize>,
}

impl StateDict {
    /// Without a tensor.
    pub fn new() -> StateDict {
        StateDict::default()
    }

    /// Puts a tensor under a name: in the place of the one that had it, which is given back, or at the end.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) -> Option<Tensor> {
        let name = name.into();
        if let Some(&place) = self.places.get(&name) {
            return Some(std::mem::replace(&mut self.entries[place].1, tensor));
        }
        self.places.insert(name.clone(), self.entries.len());
        self.entries.push((name, tensor));
        None
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.places.get(name).map(|&place| &self.entries[place].1)
    }

    /// Takes a tensor out, as for a head that is to be replaced. The others keep their order.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        let place = self.places.remove(name)?;
        self.places.values_mut().filter(|other| **other > place).for_each(|other| *other -= 1);
        Some(self.entries.remove(place).1)
    }

    /// The tensors with their names, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The names, in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The same tensors without `prefix` before their names, those that do not have it unchanged: `strip_prefix("module.")`
    /// makes the state of a `DataParallel` of PyTorch that of its net. ([`load_state_dict`] does this one by itself.)
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if two tensors would get one name.
    ///
    /// [`load_state_dict`]: super::Module::load_state_dict
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
                let detail = format!("without {prefix:?}, two tensors have the name {name:?}");
                return Err(Error::argument("strip_prefix", detail));
            }
        }
        Ok(renamed)
    }

    /// The same tensors with `prefix` before every name.
    pub fn add_prefix(&self, prefix: &str) -> StateDict {
        self.iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor.clone())).collect()
    }

    /// The tensors whose names begin with `prefix`, without it: the state of one layer.
    ///
    /// ```
    /// use anygpu::nn::{Linear, Module, Sequential};
    ///
    /// let net = Sequential::new().add("fc1", Linear::new(4, 8)?).add("fc2", Linear::new(8, 2)?);
    /// Linear::new(8, 2)?.load_state_dict(&net.state_dict().under("fc2."), true)?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn under(&self, prefix: &str) -> StateDict {
        let inner = |(name, tensor): (&str, &Tensor)| Some((name.strip_prefix(prefix)?.to_string(), tensor.clone()));
        self.iter().filter_map(inner).collect()
    }

    /// The tensors on `device`: one staged copy for all that are together on another one.
    ///
    /// # Errors
    /// What the devices say: out of memory, lost.
    pub fn to(&self, device: &Device) -> Result<StateDict> {
        let tensors: Vec<&Tensor> = self.entries.iter().map(|(_, tensor)| tensor).collect();
        Ok(self.names().map(str::to_string).zip(moved(&tensors, device)?).collect())
    }

    /// Copies of the tensors, which later steps of an optimiser do not change: the best state so far, say.
    ///
    /// # Errors
    /// If a device has no room for them.
    pub fn copied(&self) -> Result<StateDict> {
        self.iter().map(|(name, tensor)| Ok((name.to_string(), duplicate(&tensor.detach())?))).collect()
    }
}

/// The tensors on `device`, outside the graph: one staged copy from each other device.
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

/// A later tensor takes the place of an earlier one of the same name.
impl FromIterator<(String, Tensor)> for StateDict {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(tensors: I) -> StateDict {
        let mut state = StateDict::new();
        state.extend(tensors);
        state
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
