//! The format before PyTorch 1.6: pickles of a magic number, a version, the types of the machine, the value and the
//! names of the storages; then each storage as its number of elements (eight bytes) and the elements. It has no
//! checksum.

use std::collections::HashMap;

use super::Contents;
use super::pickle::{Machine, Object, Ref};
use crate::checkpoint::file_dtype::FileDType;
use crate::checkpoint::{Fault, text};

const MAGIC: i128 = 0x1950_a86a_20f9_469c_fc6c;
const VERSION: i64 = 1001;

pub(super) fn contents(file: &[u8]) -> Result<Contents<'_>, Fault> {
    let mut machine = Machine::new(file);
    let magic = machine.pickle()?;
    if !matches!(&machine.objects[magic], Object::Large(magic) if **magic == MAGIC) {
        return Err("it is a pickle, but not one of torch.save".into());
    }
    let version = machine.pickle()?;
    if !matches!(machine.objects[version], Object::Int(VERSION)) {
        return Err("it is of an unknown version of the old format of torch.save".into());
    }
    let system = machine.pickle()?;
    check_byte_order(&machine, system)?;
    let root = machine.pickle()?;
    let names = machine.pickle()?;
    let storages = storages(&machine, names)?;
    Ok(Contents { objects: machine.objects, root, storages })
}

fn check_byte_order(machine: &Machine, system: Ref) -> Result<(), Fault> {
    let Object::Dict(entries) = &machine.objects[system] else {
        return Err("damaged: it does not describe its machine".into());
    };
    let is = |at: Ref, name: &str| matches!(&machine.objects[at], Object::Text(text) if text == name);
    match entries.iter().find(|(key, _)| is(*key, "little_endian")).map(|(_, value)| &machine.objects[*value]) {
        Some(Object::Bool(true)) => Ok(()),
        Some(Object::Bool(false)) => Err(super::BIG_ENDIAN.into()),
        _ => Err("damaged: it does not say whether its numbers are little-endian".into()),
    }
}

fn storages<'a>(machine: &Machine<'a>, names: Ref) -> Result<HashMap<String, &'a [u8]>, Fault> {
    let Object::List(names) = &machine.objects[names] else {
        return Err("damaged: the names of its storages are not a list".into());
    };
    let mut sizes: HashMap<&str, usize> = HashMap::new();
    for object in &machine.objects {
        if let Object::Storage(storage) = object {
            // A storage without an element type is a storage of bytes.
            sizes.insert(&storage.key, storage.file_dtype.map_or(1, FileDType::size));
        }
    }
    let (mut rest, mut storages) = (machine.rest(), HashMap::new());
    for &name in names {
        let Object::Text(name) = &machine.objects[name] else {
            return Err("damaged: the name of a storage is not a string".into());
        };
        let cut = || format!("damaged: the file ends within the storage {}", text(name));
        let (count, data) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
        let size =
            sizes.get(name.as_str()).ok_or_else(|| format!("damaged: nothing uses the storage {}", text(name)))?;
        let bytes = usize::try_from(i64::from_le_bytes(*count)).ok().and_then(|count| count.checked_mul(*size));
        let bytes = bytes.filter(|&bytes| bytes <= data.len()).ok_or_else(cut)?;
        let (data, after) = data.split_at(bytes);
        if storages.insert(name.clone(), data).is_some() {
            return Err(format!("damaged: the storage {} is there twice", text(name)).into());
        }
        rest = after;
    }
    if rest.is_empty() { Ok(storages) } else { Err(format!("damaged: {} bytes trail its storages", rest.len()).into()) }
}
