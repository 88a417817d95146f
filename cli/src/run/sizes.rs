//! Sizes of open dimensions: from `--size`, and from given inputs.

use std::collections::HashMap;

use anygpu::onnx::{Dimension, ValueInfo};

use crate::failure::Failure;
use crate::values::at_least_one;

/// Parses `NAME=N`.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn size(text: &str) -> Result<(String, usize), String> {
    let (name, size) = text.split_once('=').ok_or("write NAME=N")?;
    Ok((name.to_owned(), at_least_one(size)?))
}

/// Sizes by the names of dimensions.
pub struct Sizes {
    known: HashMap<String, usize>,
}

/// The name of an open dimension: the model's, or the input's with the number of the dimension.
fn name(info: &ValueInfo, at: usize, dimension: &Dimension) -> Option<String> {
    match dimension {
        Dimension::Size(_) => None,
        Dimension::Symbol(name) => Some(name.clone()),
        _ => Some(format!("{}.{at}", info.name)),
    }
}

impl Sizes {
    /// Takes the sizes of `--size`. `others`: names that are not in the model.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a name that is not known, and for one with two sizes.
    pub fn new(given: &[(String, usize)], inputs: &[ValueInfo], others: &[&str]) -> Result<Sizes, Failure> {
        let mut names: Vec<String> = others.iter().map(|name| (*name).to_owned()).collect();
        for info in inputs {
            let shape = info.shape.iter().flatten().enumerate();
            names.extend(shape.filter_map(|(at, dimension)| name(info, at, dimension)));
        }
        let mut known = HashMap::new();
        for (name, size) in given {
            if !names.contains(name) {
                names.sort();
                names.dedup();
                let list = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                return Err(Failure::Usage(format!(
                    "--size {name}: no open dimension has this name; the open dimensions are: {list}"
                )));
            }
            if known.insert(name.clone(), *size).is_some() {
                return Err(Failure::Usage(format!("--size {name}: it is given twice")));
            }
        }
        Ok(Sizes { known })
    }

    /// Returns the size of this name.
    pub fn get(&self, name: &str) -> Option<usize> {
        self.known.get(name).copied()
    }

    /// Returns the size of a dimension of an input, if it is known.
    pub fn of(&self, info: &ValueInfo, at: usize) -> Option<usize> {
        match info.shape.as_ref()?.get(at)? {
            Dimension::Size(size) => Some(*size),
            open => self.get(&name(info, at, open)?),
        }
    }

    /// Returns the shape of an input, if the model says how many dimensions it has. Unknown sizes are 1.
    pub fn shape(&self, info: &ValueInfo) -> Option<Vec<usize>> {
        let rank = info.shape.as_ref()?.len();
        Some((0..rank).map(|at| self.of(info, at).unwrap_or(1)).collect())
    }

    /// Takes the sizes of an input that is given.
    ///
    /// # Errors
    /// [`Failure::Usage`] if it does not have the declared shape, or if a dimension has another size already.
    pub fn bind(&mut self, info: &ValueInfo, shape: &[usize]) -> Result<(), Failure> {
        let Some(declared) = &info.shape else { return Ok(()) };
        if declared.len() != shape.len() {
            return Err(Failure::Usage(format!("input {info} is given the shape {shape:?}")));
        }
        for (at, (dimension, &size)) in declared.iter().zip(shape).enumerate() {
            let name = name(info, at, dimension);
            match self.of(info, at) {
                Some(known) if known != size => {
                    let why = name.map_or(String::new(), |name| format!(", but {name} is {known}"));
                    return Err(Failure::Usage(format!("input {info} is given the shape {shape:?}{why}")));
                }
                _ => name.and_then(|name| self.known.insert(name, size)),
            };
        }
        Ok(())
    }
}
