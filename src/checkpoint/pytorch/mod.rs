//! Files of `torch.save`: a zip archive with a pickle and an entry per storage, or (before PyTorch 1.6, and in many
//! published files) several pickles and then the storages.
//!
//! A pickle is a program that may call any function of Python. Here it is run by a machine that can build plain data
//! and nothing else: [`pickle`] runs the opcodes, [`calls`] is the closed list of names.

mod archive;
mod calls;
mod legacy;
mod numpy;
mod pickle;
mod rebuild;
mod tensors;
mod value;

use std::collections::HashMap;
use std::path::Path;

pub use value::PickleValue;

use self::pickle::{Object, Ref};
use self::tensors::Tensors;
use super::{Fault, check_held, text};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::moved;
use crate::tensor::Tensor;

/// The error for a file of a big-endian machine.
const BIG_ENDIAN: &str = "its numbers are big-endian, which is not read: load it with PyTorch on a machine that is not, and save it \
    again (torch.save(torch.load(path), path))";

/// The greatest depth of nested collections.
const DEPTH: usize = 64;

/// The objects of a file, its root object, and the storages.
struct Contents<'a> {
    objects: Vec<Object>,
    root: Ref,
    storages: HashMap<String, &'a [u8]>,
}

/// The most skipped values that the log names.
const NAMED: usize = 20;

/// Reads everything in a file, with all tensors on `device`. Logs what is skipped. `path` is the file's name in errors and warnings.
pub(super) fn read(file: &[u8], path: &Path, device: &Device) -> Result<PickleValue> {
    let value = || {
        let contents = match file.get(..4) {
            Some(b"PK\x03\x04") => archive::contents(file)?,
            Some([0x80, ..]) => legacy::contents(file)?,
            _ => return Err("not a file of torch.save: it begins neither as a zip archive nor as a pickle".into()),
        };
        value(contents, file.len(), device)
    };
    let value: PickleValue = value().map_err(|fault: Fault| fault.of(path))?;
    let skipped = value.skipped();
    for (name, reason) in skipped.iter().take(NAMED) {
        log::warn!("{}: {} is skipped: {reason}", path.display(), text(name));
    }
    if skipped.len() > NAMED {
        log::warn!("{}: {} more values are skipped", path.display(), skipped.len() - NAMED);
    }
    Ok(value)
}

fn value(contents: Contents, file: usize, device: &Device) -> Result<PickleValue, Fault> {
    let Contents { objects, root, storages } = contents;
    let mut tensors = Tensors::new(storages, file);
    let (mut places, mut made, mut skipped): (HashMap<Ref, usize>, Vec<Tensor>, HashMap<Ref, String>) =
        Default::default();
    for (at, object) in objects.iter().enumerate() {
        let Object::Tensor(view) = object else { continue };
        match tensors.make(view) {
            Ok(tensor) => {
                places.insert(at, made.len());
                made.push(tensor);
            }
            Err(Fault::Unsupported(reason)) => drop(skipped.insert(at, reason)),
            Err(fault) => return Err(fault),
        }
    }
    check_held(made.iter(), device)?;
    let made = moved(&made.iter().collect::<Vec<_>>(), device)?;
    let tensors = places.into_iter().map(|(at, place)| (at, made[place].clone())).collect();
    // A reference takes at least one byte of the file, and mostly two, such as a reference to a text in Python's memo.
    // So labels of up to 32 characters may be repeated any number of times. The constants are for small files.
    let (nodes, text) = (file.saturating_add(1 << 16), file.saturating_mul(16).saturating_add(1 << 20));
    Tree { objects: &objects, tensors, skipped, nodes, text }.value(root, 0)
}

/// Turns references into values. An object that contains itself is refused for its depth. An object that repeats
/// another many times is refused for its size.
struct Tree<'a> {
    objects: &'a [Object],
    tensors: HashMap<Ref, Tensor>,
    /// Tensors that are skipped, with the reasons.
    skipped: HashMap<Ref, String>,
    /// The number of values that may still be made.
    nodes: usize,
    /// The bytes of text that may still be made.
    text: usize,
}

impl Tree<'_> {
    fn value(&mut self, at: Ref, depth: usize) -> Result<PickleValue, Fault> {
        if depth > DEPTH {
            return Err(format!("its collections lie more than {DEPTH} deep in each other, or in themselves").into());
        }
        let objects = self.objects;
        self.spend(&objects[at])?;
        Ok(match &objects[at] {
            Object::None => PickleValue::None,
            Object::Bool(value) => PickleValue::Bool(*value),
            Object::Int(value) => PickleValue::Int(*value),
            Object::Large(value) => self.skip(format!("the number {value} does not fit 64 bits"))?,
            Object::Unsupported(what) => self.skip(what.to_string())?,
            Object::Float(value) => PickleValue::Float(*value),
            Object::Text(text) => PickleValue::Text(text.clone()),
            Object::Bytes(bytes) => PickleValue::Bytes(bytes.clone()),
            Object::List(items) => PickleValue::List(self.values(items, depth)?),
            Object::Tuple(items) => PickleValue::Tuple(self.values(items, depth)?),
            Object::Dict(entries) => {
                let mut all = Vec::with_capacity(entries.len());
                for &(key, value) in entries {
                    all.push((self.value(key, depth + 1)?, self.value(value, depth + 1)?));
                }
                PickleValue::Dict(all)
            }
            Object::Tensor(_) => match (self.tensors.get(&at), self.skipped.get(&at).cloned()) {
                (Some(tensor), _) => PickleValue::Tensor(tensor.clone()),
                (None, Some(reason)) => self.skip(reason)?,
                (None, None) => return Err(Error::internal("a tensor of a pickle was not made").into()),
            },
            Object::Known(calls::Known::DType(_, name)) => PickleValue::Text(name.to_string()),
            Object::Known(_) | Object::Storage(_) | Object::NumpyType(_) => {
                return Err("it has a function, a type or a bare storage as a value".into());
            }
        })
    }

    /// Subtracts the size of a value from the limits, before the value is made.
    fn spend(&mut self, object: &Object) -> Result<(), Fault> {
        let (nodes, text) = match object {
            Object::Text(text) => (0, text.len()),
            Object::Bytes(bytes) => (0, bytes.len()),
            Object::List(items) | Object::Tuple(items) => (items.len(), 0),
            Object::Dict(entries) => (2 * entries.len(), 0),
            _ => (0, 0),
        };
        let over = "it repeats the same objects too often";
        self.nodes = self.nodes.checked_sub(nodes).ok_or(over)?;
        self.text = self.text.checked_sub(text).ok_or(over)?;
        Ok(())
    }

    /// Returns a skipped value. Its reason counts as text.
    fn skip(&mut self, reason: String) -> Result<PickleValue, Fault> {
        self.text = self.text.checked_sub(reason.len()).ok_or("it repeats the same objects too often")?;
        Ok(PickleValue::Skipped(reason))
    }

    fn values(&mut self, items: &[Ref], depth: usize) -> Result<Vec<PickleValue>, Fault> {
        let mut all = Vec::with_capacity(items.len());
        for &item in items {
            all.push(self.value(item, depth + 1)?);
        }
        Ok(all)
    }
}
