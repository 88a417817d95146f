//! The values of a PyTorch file.

use crate::checkpoint::text;
use crate::error::{Error, Result};
use crate::nn::StateDict;
use crate::tensor::Tensor;

/// A value of a PyTorch file: a Python object as plain data.
///
/// ```no_run
/// use anygpu::{Device, checkpoint};
///
/// // In Python: torch.save({"net": net.state_dict(), "epoch": 3, "best": 0.93}, "run.pt")
/// let file = checkpoint::load_pickle("run.pt", Device::cpu())?;
/// println!("epoch {:?}, accuracy {:?}", file.get("epoch").and_then(|e| e.as_i64()), file.get("best"));
/// let state = file.get("net").expect("weights").state_dict()?;
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PickleValue {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An `int` of up to 64 bits.
    Int(i64),
    /// A `float`.
    Float(f64),
    /// A `str`, and also a `torch.device` or an element type, such as `"torch.float32"`.
    Text(String),
    /// `bytes` or a `bytearray`.
    Bytes(Vec<u8>),
    /// A `list` or a `set`.
    List(Vec<PickleValue>),
    /// A `tuple` or a `torch.Size`.
    Tuple(Vec<PickleValue>),
    /// A `dict`, `OrderedDict`, `defaultdict` or `Counter`, in order.
    Dict(Vec<(PickleValue, PickleValue)>),
    /// A tensor or a parameter.
    Tensor(Tensor),
    /// A value that this crate has no type for, with the reason: a complex or 8-bit float tensor, a sparse or quantised
    /// tensor, an integer beyond 64 bits, a NumPy array.
    Skipped(String),
}

impl PickleValue {
    /// Returns the value of a dict under a string key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&PickleValue> {
        let PickleValue::Dict(entries) = self else { return None };
        // The last one, as in Python, if a key is there twice.
        entries.iter().rev().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }

    /// Returns the items, if it is a list or a tuple.
    #[must_use]
    pub fn items(&self) -> Option<&[PickleValue]> {
        match self {
            PickleValue::List(items) | PickleValue::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the value, if it is an integer.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            PickleValue::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the value, if it is a number.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            PickleValue::Float(value) => Some(*value),
            PickleValue::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// Returns the value, if it is a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            PickleValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value, if it is a tensor.
    #[must_use]
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            PickleValue::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Returns the values that were skipped, each with its dotted name (`optimizer.state.0.scale`) and the reason.
    #[must_use]
    pub fn skipped(&self) -> Vec<(String, &str)> {
        let mut found = Vec::new();
        self.find_skipped(&mut Vec::new(), &mut found);
        found
    }

    fn find_skipped<'a>(&'a self, path: &mut Vec<String>, found: &mut Vec<(String, &'a str)>) {
        let mut visit = |key: String, value: &'a PickleValue| {
            path.push(key);
            value.find_skipped(path, found);
            path.pop();
        };
        match self {
            PickleValue::List(items) | PickleValue::Tuple(items) => {
                for (i, item) in items.iter().enumerate().filter(|(_, item)| item.may_skip()) {
                    visit(i.to_string(), item);
                }
            }
            PickleValue::Dict(entries) => {
                for (key, value) in entries.iter().filter(|(_, value)| value.may_skip()) {
                    visit(key.as_key(), value);
                }
            }
            PickleValue::Skipped(reason) => found.push((path.join("."), reason)),
            _ => {}
        }
    }

    /// Whether it is a skipped value, or can contain one.
    fn may_skip(&self) -> bool {
        use PickleValue::{Dict, List, Skipped, Tuple};
        matches!(self, Dict(_) | List(_) | Skipped(_) | Tuple(_))
    }

    /// The key of a dict, as a part of a name.
    fn as_key(&self) -> String {
        match self {
            PickleValue::Text(key) => key.clone(),
            PickleValue::Int(key) => key.to_string(),
            other => format!("({})", other.kind()),
        }
    }

    /// Returns the tensors of a dict of names and tensors, such as `model.state_dict()` returns.
    ///
    /// Numbers and skipped values are left out: [`StateDict::skipped`] lists them, and a warning is logged.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming any other value, and for a dict with values but without a tensor.
    pub fn state_dict(&self) -> Result<StateDict> {
        let refused = |detail: String| Err(Error::argument("state_dict", detail));
        let PickleValue::Dict(entries) = self else {
            return refused(format!("this is a {}, not a dict of tensors", self.kind()));
        };
        let mut state = StateDict::new();
        for (name, value) in entries {
            match (name, value) {
                (PickleValue::Text(name), PickleValue::Tensor(tensor)) => {
                    state.insert(name.clone(), tensor.clone());
                }
                (PickleValue::Text(name), PickleValue::Skipped(reason)) => state.skip(name, reason),
                (PickleValue::Text(name), value) if value.number().is_some() => {
                    state.skip(name, format!("a {}, not a tensor", value.kind()));
                }
                (PickleValue::Text(name), other) => {
                    return refused(format!("{} is a {}, not a tensor", text(name), other.kind()));
                }
                (other, _) => return refused(format!("a name is a {}, not a string", other.kind())),
            }
        }
        let count = state.skipped().len();
        let others = state.skipped().take(5).map(|(name, reason)| format!("{}: {reason}", text(name)));
        match (count, others.collect::<Vec<_>>().join(", ")) {
            (0, _) => {}
            (_, others) if state.is_empty() => return refused(format!("it has no tensor that can be read: {others}")),
            (_, others) => log::warn!("{count} values of a state are omitted: {others}"),
        }
        Ok(state)
    }

    /// Returns all tensors and numbers under dotted names.
    ///
    /// A number becomes a tensor, and so does a list of numbers. The result for PyTorch's `optimizer.state_dict()` can
    /// be given to [`Optimizer::load_state_dict`](crate::optim::Optimizer::load_state_dict). Text, bytes and `None` are
    /// omitted. [`StateDict::skipped`] lists the skipped values.
    ///
    /// ```no_run
    /// use anygpu::optim::{Adam, Optimizer};
    /// use anygpu::{Device, checkpoint};
    /// # let mut adam = Adam::new(Vec::new(), 0.1);
    ///
    /// let file = checkpoint::load_pickle("run.pt", Device::cpu())?;
    /// adam.load_state_dict(&file.get("optimizer").expect("an optimiser").flatten()?)?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory for the numbers.
    pub fn flatten(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        self.flatten_into("", &mut state)?;
        Ok(state)
    }

    fn flatten_into(&self, name: &str, state: &mut StateDict) -> Result<()> {
        let inner = |key: &str| if name.is_empty() { key.to_string() } else { format!("{name}.{key}") };
        match self {
            PickleValue::Tensor(tensor) => {
                state.insert(name, tensor.clone());
            }
            PickleValue::Dict(entries) => {
                for (key, value) in entries {
                    match key {
                        PickleValue::Text(key) => value.flatten_into(&inner(key), state)?,
                        PickleValue::Int(key) => value.flatten_into(&inner(&key.to_string()), state)?,
                        _ => {}
                    }
                }
            }
            PickleValue::List(items) | PickleValue::Tuple(items) => {
                match items.iter().map(PickleValue::number).collect::<Option<Vec<f32>>>() {
                    Some(numbers) => {
                        state.insert(name, Tensor::from_slice(&numbers, numbers.len(), None)?);
                    }
                    None => {
                        for (i, item) in items.iter().enumerate() {
                            item.flatten_into(&inner(&i.to_string()), state)?;
                        }
                    }
                }
            }
            PickleValue::Skipped(reason) => state.skip(name, reason),
            // Beyond this, f32 does not hold every whole number.
            PickleValue::Int(number) if number.unsigned_abs() > 1 << 24 => {
                state.insert(name, Tensor::scalar(*number, None)?);
            }
            other => {
                if let Some(number) = other.number() {
                    state.insert(name, Tensor::scalar(number, None)?);
                }
            }
        }
        Ok(())
    }

    fn number(&self) -> Option<f32> {
        match self {
            PickleValue::Bool(value) => Some(f32::from(u8::from(*value))),
            other => other.as_f64().map(|value| value as f32),
        }
    }

    /// Returns the state of a model: the value itself, or the value under `state_dict`, `model_state_dict` or `model`.
    pub(in crate::checkpoint) fn find_state_dict(&self) -> Result<StateDict, String> {
        let known = ["state_dict", "model_state_dict", "model"];
        if let Some(inner) =
            known.iter().find_map(|key| self.get(key)).filter(|inner| matches!(inner, PickleValue::Dict(_)))
        {
            return inner.state_dict().map_err(|error| error.to_string());
        }
        let PickleValue::Dict(entries) = self else {
            return Err(format!("it holds a {}, not the state of a module: read it with load_pickle", self.kind()));
        };
        self.state_dict().map_err(|error| {
            if entries.iter().any(|(_, value)| matches!(value, PickleValue::Skipped(_))) {
                return error.to_string();
            }
            let name = |(name, value): &(PickleValue, PickleValue)| match name {
                PickleValue::Text(name) => format!("{} (a {})", text(name), value.kind()),
                other => format!("{} (a {})", other.as_key(), value.kind()),
            };
            let names: Vec<String> = entries.iter().take(20).map(name).collect();
            format!(
                "it is not the state of a module, and has no such state under {}. It has {}: take one with load_pickle(…)?.get(…)",
                known.join(", "),
                names.join(", ")
            )
        })
    }

    fn kind(&self) -> &'static str {
        match self {
            PickleValue::None => "None",
            PickleValue::Bool(_) => "bool",
            PickleValue::Int(_) => "int",
            PickleValue::Float(_) => "float",
            PickleValue::Text(_) => "str",
            PickleValue::Bytes(_) => "bytes",
            PickleValue::List(_) => "list",
            PickleValue::Tuple(_) => "tuple",
            PickleValue::Dict(_) => "dict",
            PickleValue::Tensor(_) => "tensor",
            PickleValue::Skipped(_) => "skipped value",
        }
    }
}
