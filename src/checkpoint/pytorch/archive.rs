//! The zip archives of `torch.save`: `name/data.pkl`, `name/byteorder`, and the storages `name/data/0`, `name/data/1`,
//! …

use std::collections::HashMap;

use super::Contents;
use super::pickle::Machine;
use crate::checkpoint::Fault;
use crate::util::stored_zip::StoredZip;

/// Checks every entry, and runs the pickle.
pub(super) fn contents(file: &[u8]) -> Result<Contents<'_>, Fault> {
    let entries = entries(file)?;
    let mut pickles = entries.keys().filter_map(|name| name.strip_suffix("data.pkl"));
    let (Some(folder), None) = (pickles.next(), pickles.next()) else {
        return Err("not a file of torch.save: it is a zip archive without one data.pkl".into());
    };
    match entries.get(&format!("{folder}byteorder")).copied() {
        Some(b"little") | None => {}
        Some(b"big") => return Err(super::BIG_ENDIAN.into()),
        Some(_) => return Err("damaged: its byte order is neither little nor big".into()),
    }
    let mut machine = Machine::new(entries.get(&format!("{folder}data.pkl")).copied().unwrap_or_default());
    let root = machine.pickle()?;
    let storages = format!("{folder}data/");
    let storage = |(name, data): (String, _)| Some((name.strip_prefix(&storages)?.to_string(), data));
    Ok(Contents { objects: machine.objects, root, storages: entries.into_iter().filter_map(storage).collect() })
}

/// The entries by name, as slices of the file.
fn entries(file: &[u8]) -> Result<HashMap<String, &[u8]>, Fault> {
    let archive = StoredZip::open(file)?;
    let is_code = |name: &str| name.ends_with("/constants.pkl") || name.contains("/code/");
    if archive.names().any(|name| is_code(&name)) {
        return Err("it is a TorchScript file (of torch.jit.save), which holds code: in Python, load it with \
                    torch.jit.load and write its weights with torch.save(model.state_dict(), \"weights.pt\")"
            .into());
    }
    Ok(archive.entries(", which torch.save never does")?.into_iter().collect())
}
