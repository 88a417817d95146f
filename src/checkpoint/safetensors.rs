//! The safetensors format: eight bytes with the length of the header, the header (JSON: type, shape and position of
//! each tensor, and named texts under `__metadata__`), and the elements.
//!
//! The header is written here, in the order of the state and always with the same bytes. It is read by the
//! `safetensors` crate, which checks that the positions cover the file without overlaps.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use super::file_dtype::{FileDType, safetensors_name, with_bytes};
use super::{Fault, damaged, text};
use crate::device::Device;
use crate::error::Result;
use crate::nn::{StateDict, moved};
use crate::ops::KEEP_LONGS;
use crate::tensor::Tensor;
use crate::util::atomic::write_atomically;
use crate::util::json::quoted;

/// Named texts.
pub(super) type Metadata = BTreeMap<String, String>;

/// The key that marks a file of this crate, which must have a checksum. Its value is the version of the metadata.
pub(super) const ORIGIN: &str = "anygpu";
const CHECKSUM: &str = "anygpu.crc32";
const METADATA: &str = "__metadata__";

/// The largest number in a header: positions are byte offsets in a file, and sums of them must not overflow.
const LARGEST_NUMBER: u64 = 1 << 53;

/// Writes the tensors and `metadata`, in one download per device.
pub(super) fn write(state: &StateDict, metadata: Metadata, path: &Path) -> Result<()> {
    encode(state, metadata, path, |put| write_atomically(path, |file| put(file)))
}

/// Returns the bytes that [`write`] writes.
pub(super) fn bytes(state: &StateDict, metadata: Metadata) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    encode(state, metadata, Path::new("the bytes"), |put| put(&mut bytes))?;
    Ok(bytes)
}

/// Calls `write` with a function that writes a file of the tensors and `metadata`. `path` is the file's name in errors.
fn encode(
    state: &StateDict,
    metadata: Metadata,
    path: &Path,
    write: impl FnOnce(&mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()>,
) -> Result<()> {
    let failed = |detail: String| damaged(path, detail);
    if state.get(METADATA).is_some() {
        return Err(failed(format!("no tensor can have the name {METADATA}: the format reserves it")));
    }
    let tensors = moved(&state.iter().map(|(_, tensor)| tensor).collect::<Vec<_>>(), &Device::cpu())?;
    let mut entries: Vec<(&str, &Tensor)> = state.names().zip(&tensors).collect();
    // Wide types first, so that every tensor begins at a multiple of its element size. Readers that map files require
    // that.
    entries.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype().size()));
    let mut metadata = metadata;
    metadata.insert("format".into(), "pt".into());
    metadata.insert(ORIGIN.into(), "1".into());
    metadata.insert(CHECKSUM.into(), checksum(&entries, &metadata)?);
    let header = header(&entries, &metadata);
    let mut device_error = None;
    let written = write(&mut |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        entries.iter().try_for_each(|(_, tensor)| {
            with_bytes(tensor, |bytes| file.write_all(bytes)).unwrap_or_else(|error| {
                device_error = Some(error);
                Err(io::Error::other("a tensor cannot be read"))
            })
        })
    });
    match (written, device_error) {
        (Err(_), Some(error)) => Err(error),
        (written, _) => written.map_err(|error| failed(format!("cannot be written: {error}"))),
    }
}

/// Reads the bytes of a file: the tensors, on `cpu`, and the metadata. Logs which tensors are skipped. `path` is the
/// file's name in errors and warnings.
pub(super) fn read_bytes(bytes: &[u8], path: &Path) -> Result<(StateDict, Metadata)> {
    let (state, metadata) = parse(bytes).map_err(|fault| fault.of(path))?;
    for (name, reason) in state.skipped() {
        log::warn!("{}: {} is skipped: {reason}", path.display(), text(name));
    }
    Ok((state, metadata))
}

/// Returns the tensors, with the names of the tensors that this crate has no type for, and the metadata.
fn parse(bytes: &[u8]) -> Result<(StateDict, Metadata), Fault> {
    numbers_are_sane(bytes)?;
    let (len, header) =
        SafeTensors::read_metadata(bytes).map_err(|error| format!("not a whole safetensors file: {error}"))?;
    let mut metadata: Metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    let mut state = StateDict::new();
    let tensor = |name: &str| {
        let Some(info) = header.info(name) else { return Err(Fault::from("it has no place in the file")) };
        let (start, end) = info.data_offsets;
        let data = bytes.get(8 + len + start..8 + len + end).unwrap_or_default();
        match file_dtype(info.dtype) {
            Some(file_dtype) => file_dtype.tensor(&info.shape, data.chunks_exact(file_dtype.size())),
            None => Err(Fault::Unsupported(format!("elements of {}, for which there is no element type", info.dtype))),
        }
    };
    let is_own = metadata.contains_key(ORIGIN);
    // The checksum is over the elements as they were written.
    let keep = is_own.then(|| KEEP_LONGS.set(true));
    for name in header.offset_keys() {
        match tensor(&name) {
            Ok(tensor) => drop(state.insert(name, tensor)),
            // A file of this crate has no such tensor, unless it is damaged.
            Err(Fault::Unsupported(reason)) if !is_own => state.skip(&name, reason),
            Err(fault) => return Err(fault.within(&text(&name))),
        };
    }
    verify(&state, &mut metadata)?;
    drop(keep);
    if !KEEP_LONGS.get() {
        let wide: Vec<String> =
            state.iter().filter(|(_, x)| x.dtype().is_long()).map(|(name, _)| name.into()).collect();
        for name in wide {
            match tensor(&name) {
                Ok(tensor) => drop(state.insert(name, tensor)),
                Err(Fault::Unsupported(reason)) => {
                    state.remove(&name);
                    state.skip(&name, reason);
                }
                Err(fault) => return Err(fault.within(&text(&name))),
            }
        }
    }
    if state.is_empty() && state.skipped().len() > 0 {
        let skipped = state.skipped().take(5).map(|(name, reason)| format!("{}: {reason}", text(name)));
        return Err(format!("it has no tensor that can be read: {}", skipped.collect::<Vec<_>>().join(", ")).into());
    }
    Ok((state, metadata))
}

/// Compares the checksum, if the file has one. A file of this crate must have one.
fn verify(state: &StateDict, metadata: &mut Metadata) -> Result<(), Fault> {
    let expected = match (metadata.remove(CHECKSUM), metadata.contains_key(ORIGIN)) {
        (Some(expected), _) => expected,
        (None, true) => return Err(format!("damaged: {CHECKSUM} is missing from its metadata").into()),
        (None, false) => return Ok(()),
    };
    match checksum(&state.iter().collect::<Vec<_>>(), metadata)? {
        found if found == expected => Ok(()),
        found => Err(format!("damaged: its CRC-32 is {found}, and it was written with {expected}").into()),
    }
}

/// Returns the CRC-32 of all names, types, shapes, elements and metadata, in the order of the names. It is the same if
/// another program writes the same tensors in another order.
fn checksum(entries: &[(&str, &Tensor)], metadata: &Metadata) -> Result<String> {
    let mut crc = crc32fast::Hasher::new();
    for (key, value) in metadata {
        crc.update(format!("{}:{key}{}:{value}", key.len(), value.len()).as_bytes());
    }
    let mut sorted = entries.to_vec();
    sorted.sort_by_key(|(name, _)| *name);
    for (name, tensor) in sorted {
        let kind = safetensors_name(tensor.dtype());
        crc.update(format!("{}:{name}{kind}{:?}", name.len(), tensor.shape()).as_bytes());
        with_bytes(tensor, |bytes| crc.update(bytes))?;
    }
    Ok(format!("{:08x}", crc.finalize()))
}

fn header(entries: &[(&str, &Tensor)], metadata: &Metadata) -> String {
    let mut json = format!("{{\"{METADATA}\":{{");
    for (i, (key, value)) in metadata.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(json, "{comma}{}:{}", quoted(key), quoted(value));
    }
    json.push('}');
    let mut start = 0;
    for (name, tensor) in entries {
        let end = start + tensor.elem_count() * tensor.dtype().size();
        let shape: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
        let (name, dtype, shape) = (quoted(name), safetensors_name(tensor.dtype()), shape.join(","));
        let _ = write!(json, ",{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{start},{end}]}}");
        start = end;
    }
    json.push('}');
    // The elements begin at a multiple of eight bytes.
    let gap = json.len().next_multiple_of(8) - json.len();
    json.extend(std::iter::repeat_n(' ', gap));
    json
}

/// Returns an error for a header with a number above [`LARGEST_NUMBER`], before such numbers are added.
fn numbers_are_sane(file: &[u8]) -> Result<(), String> {
    let Some(length) = file.first_chunk::<8>() else {
        return Err(format!("not a safetensors file: {} bytes are too few", file.len()));
    };
    let length = u64::from_le_bytes(*length);
    let header = usize::try_from(length).ok().and_then(|length| file.get(8..)?.get(..length)).ok_or_else(|| {
        format!("not a whole safetensors file: a header of {length} bytes in a file of {}", file.len())
    })?;
    let (mut in_text, mut escaped, mut number) = (false, false, 0u64);
    for &byte in header {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'0'..=b'9' if !in_text => {
                number = number.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
                if number > LARGEST_NUMBER {
                    return Err("damaged: its header has a number that is impossibly large".into());
                }
                continue;
            }
            _ => {}
        }
        number = 0;
    }
    Ok(())
}

fn file_dtype(dtype: Dtype) -> Option<FileDType> {
    Some(match dtype {
        Dtype::F64 => FileDType::F64,
        Dtype::F32 => FileDType::F32,
        Dtype::F16 => FileDType::F16,
        Dtype::BF16 => FileDType::BF16,
        Dtype::I64 => FileDType::I64,
        Dtype::I32 => FileDType::I32,
        Dtype::I16 => FileDType::I16,
        Dtype::I8 => FileDType::I8,
        Dtype::U64 => FileDType::U64,
        Dtype::U32 => FileDType::U32,
        Dtype::U16 => FileDType::U16,
        Dtype::U8 => FileDType::U8,
        Dtype::BOOL => FileDType::Bool,
        _ => return None,
    })
}
