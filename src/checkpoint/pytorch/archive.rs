//! The zip archives of `torch.save`: `name/data.pkl`, `name/byteorder`, and the storages `name/data/0`, `name/data/1`,
//! …

use std::collections::HashMap;
use std::io::{self, Cursor};
use std::ops::Range;

use zip::{CompressionMethod, ZipArchive};

use super::Contents;
use super::pickle::Machine;
use crate::checkpoint::Fault;

/// Checks every entry, and runs the pickle.
pub(super) fn contents(file: &[u8]) -> Result<Contents<'_>, Fault> {
    let entries = entries(file)?;
    let mut pickles = entries.keys().filter_map(|name| name.strip_suffix("data.pkl"));
    let (Some(folder), None) = (pickles.next(), pickles.next()) else {
        return Err("not a file of torch.save: it is a zip archive without one data.pkl".into());
    };
    match entries.get(&format!("{folder}byteorder")).copied() {
        Some(b"little") | None => {}
        Some(b"big") => return Err("its numbers are big-endian, which is not read".into()),
        Some(_) => return Err("damaged: its byte order is neither little nor big".into()),
    }
    let mut machine = Machine::new(entries.get(&format!("{folder}data.pkl")).copied().unwrap_or_default());
    let root = machine.pickle()?;
    let storages = format!("{folder}data/");
    let storage = |(name, data): (String, _)| Some((name.strip_prefix(&storages)?.to_string(), data));
    Ok(Contents { objects: machine.objects, root, storages: entries.into_iter().filter_map(storage).collect() })
}

/// The entries by name, as slices of the file. They must be stored uncompressed, match their CRC-32, have distinct
/// names and not overlap.
fn entries(file: &[u8]) -> Result<HashMap<String, &[u8]>, Fault> {
    let failed = |error: zip::result::ZipError| format!("not a whole zip archive: {error}");
    let mut archive = ZipArchive::new(Cursor::new(file)).map_err(failed)?;
    let is_code = |name: &str| name.ends_with("/constants.pkl") || name.contains("/code/");
    if archive.file_names().flatten().any(|name| is_code(&name)) {
        return Err("it is a TorchScript file (of torch.jit.save), which holds code: in Python, load it with \
                    torch.jit.load and write its weights with torch.save(model.state_dict(), \"weights.pt\")"
            .into());
    }
    if archive.has_duplicate_names() || archive.has_overlapping_files().map_err(failed)? {
        return Err("damaged: entries of its zip archive have one name or one place".into());
    }
    let mut entries = HashMap::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(failed)?;
        let name = entry.name().map_err(failed)?.into_owned();
        if entry.compression() != CompressionMethod::Stored || entry.size() != entry.compressed_size() {
            return Err(format!("{name} is compressed, which torch.save never does").into());
        }
        let part = entry.data_start().and_then(|start| place(start, entry.size())).and_then(|place| file.get(place));
        let part = part.ok_or_else(|| format!("damaged: {name} lies outside of the file"))?;
        // Reading an entry to its end compares the checksum.
        io::copy(&mut entry, &mut io::sink()).map_err(|error| format!("damaged: {name}: {error}"))?;
        drop(entry);
        entries.insert(name, part);
    }
    Ok(entries)
}

fn place(start: u64, size: u64) -> Option<Range<usize>> {
    Some(usize::try_from(start).ok()?..usize::try_from(start.checked_add(size)?).ok()?)
}
