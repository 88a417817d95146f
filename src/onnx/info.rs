//! The inputs and outputs of a model, as the file describes them.

use std::collections::HashMap;
use std::fmt;

use super::element_type::ElementType;
use super::node::Declared;
use super::proto::ValueInfoProto;
use super::{detail, fault};
use crate::error::Result;

/// The size of a dimension of an input or an output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dimension {
    /// Always this size.
    Size(usize),
    /// Any size; the same for all dimensions of this name.
    Symbol(String),
    /// Any size.
    Any,
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dimension::Size(size) => write!(f, "{size}"),
            Dimension::Symbol(name) => f.write_str(name),
            Dimension::Any => f.write_str("?"),
        }
    }
}

/// The name, element type and shape of an input or an output of a [`Model`](super::Model).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ValueInfo {
    /// Its name in the file.
    pub name: String,
    /// The type of its elements.
    pub element_type: ElementType,
    /// Its dimensions; `None` if the file does not say how many there are.
    pub shape: Option<Vec<Dimension>>,
}

/// The type of an output of a graph, and its sizes, with 0 for open sizes; `None` if the file does not say its
/// type.
pub(super) fn declared(proto: &ValueInfoProto) -> Declared {
    let info = ValueInfo::of(proto).ok()?;
    let size = |dimension: &Dimension| if let Dimension::Size(size) = dimension { *size } else { 0 };
    Some((info.element_type, info.shape.iter().flatten().map(size).collect()))
}

impl ValueInfo {
    pub(super) fn of(proto: &ValueInfoProto) -> Result<ValueInfo> {
        let tensor = proto.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
        let Some(tensor) = tensor else {
            return Err(fault(format!(
                "'{}' is not a tensor: sequences, maps and optionals are not supported",
                proto.name
            )));
        };
        let failed = |error| fault(format!("'{}': {}", proto.name, detail(&error)));
        let element_type = ElementType::of(tensor.elem_type).map_err(failed)?;
        let dimension = |dim: &super::proto::DimensionProto| match (dim.dim_value, &dim.dim_param) {
            (Some(size), _) if size > 0 => usize::try_from(size).map_or(Dimension::Any, Dimension::Size),
            (_, Some(name)) if !name.is_empty() && name != "?" => Dimension::Symbol(name.clone()),
            // Exporters write 0 and −1 for sizes that they do not know.
            _ => Dimension::Any,
        };
        let shape = tensor.shape.as_ref().map(|shape| shape.dim.iter().map(dimension).collect());
        Ok(ValueInfo { name: proto.name.clone(), element_type, shape })
    }

    /// Returns an error if a shape is not one of this value. `symbols` are the sizes of names that were seen before.
    pub(super) fn check<'a>(&'a self, shape: &[usize], symbols: &mut HashMap<&'a str, usize>) -> Result<()> {
        let Some(wanted) = &self.shape else { return Ok(()) };
        let mut fits = wanted.len() == shape.len();
        for (dimension, &size) in wanted.iter().zip(shape) {
            fits &= match dimension {
                Dimension::Size(expected) => *expected == size,
                Dimension::Symbol(name) => *symbols.entry(name).or_insert(size) == size,
                Dimension::Any => true,
            };
        }
        match fits {
            true => Ok(()),
            false => {
                let known = |dim: &Dimension| match dim {
                    Dimension::Symbol(name) => symbols.get(name.as_str()).map(|size| format!("{name} = {size}")),
                    _ => None,
                };
                let known: Vec<String> = wanted.iter().filter_map(known).collect();
                let known =
                    if known.is_empty() { String::new() } else { format!(" (from its inputs: {})", known.join(", ")) };
                Err(fault(format!("input {self} is given the shape {shape:?}{known}")))
            }
        }
    }
}

impl fmt::Display for ValueInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}': {}", self.name, self.element_type)?;
        match &self.shape {
            Some(shape) => {
                let shape: Vec<String> = shape.iter().map(Dimension::to_string).collect();
                write!(f, " [{}]", shape.join(", "))
            }
            None => f.write_str(" of any shape"),
        }
    }
}
