//! Saving and loading: safetensors files are written and read; files of PyTorch's `torch.save` are read.
//!
//! ```
//! use anygpu::nn::{Linear, Module};
//! use anygpu::{Device, checkpoint};
//!
//! # let folder = tempfile::tempdir().expect("a folder");
//! # let path = folder.path().join("layer.safetensors");
//! let layer = Linear::new(3, 2)?;
//! checkpoint::save(&layer.state_dict(), &path)?;
//!
//! let other = Linear::new(3, 2)?; // on any device
//! other.load_state_dict(&checkpoint::load(&path, Device::cpu())?, true)?;
//! assert_eq!(other.parameters()[0].to_vec::<f32>()?, layer.parameters()[0].to_vec::<f32>()?);
//! # Ok::<(), anygpu::Error>(())
//! ```
//!
//! # Safety
//!
//! Files of any origin are safe to read: nothing in them is executed. PyTorch's files hold a pickle, which in Python
//! may call any function. This crate accepts only the names of tensors, storages, element types, Python's collections
//! and NumPy's numbers; any other name is an error. Truncated, damaged and malicious files are errors. Reading a file
//! takes time and memory in proportion to its actual size, whatever sizes it claims. Files of [`save`] and PyTorch's
//! zip archives have checksums, which are verified; PyTorch's format before 1.6 has none.
//!
//! These files are refused: whole modules (`torch.save(model)`, TorchScript), files with objects of other libraries
//! (`argparse.Namespace`), big-endian files, strings with escapes of pickle protocol 0, and the tar archives of PyTorch
//! before 0.1.10. NumPy numbers are read, and NumPy arrays are skipped. Sparse, quantised, nested, complex and 8-bit
//! float tensors are skipped.
//! floats, are skipped.

mod file_dtype;
mod groups;
#[cfg(test)]
mod power_loss;
mod pytorch;
mod safetensors;
mod training;

use std::collections::BTreeMap;
use std::path::Path;

use crate::device::cpu::read_whole;
use crate::device::{Device, IntoDevice, rerun};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::StateDict;
use crate::tensor::Tensor;

pub use crate::util::atomic::{check_writable, write_atomically};
pub use pytorch::PickleValue;
pub use training::{Stateful, TrainingState};

/// The prefix of the metadata keys that this crate writes itself.
const RESERVED: &str = "anygpu.";
/// The only such key that programs may write: the description of a net by the command `anygpu`.
const CARD: &str = "anygpu.card";

fn is_reserved(key: &str) -> bool {
    key.starts_with(RESERVED) && key != CARD
}

/// Writes the tensors to a `.safetensors` file, which PyTorch reads with `safetensors.torch.load_file`.
///
/// All tensors are copied to the host in one copy per device. The file is replaced atomically ([`write_atomically`]): a
/// crash, a kill or a full disk at any moment leaves either the old file or the new one. It holds a CRC-32 of names,
/// shapes and elements, which [`load`] verifies. (A program that changes the tensors of a file must therefore not copy
/// its metadata.)
///
/// # Errors
/// [`Error::Data`] if the path does not end in `.safetensors` or cannot be written; the errors of the devices.
pub fn save(state: &StateDict, path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    match extension(path).as_str() {
        "safetensors" => safetensors::write(state, Default::default(), path),
        "pt" | "pth" | "bin" | "ckpt" => Err(damaged(
            path,
            "PyTorch's own format is read here, not written: save as .safetensors, which PyTorch reads with \
             safetensors.torch.load_file",
        )),
        other => Err(damaged(path, format!("files end in .safetensors, and this one in {}", text(other)))),
    }
}

/// Reads the tensors of a `.safetensors` file, or the state of a module in a file of `torch.save` (`.pt`, `.pth`,
/// `.bin`, `.ckpt`).
///
/// All tensors are moved to `device` in one staged copy. They may have been saved from any device. The kind of file is
/// recognised by its first bytes, so its name may have any extension.
///
/// In a PyTorch file, the state is the dict of tensors that `model.state_dict()` returned, or such a dict under
/// `state_dict`, `model_state_dict` or `model`. For other contents, use [`load_pickle`].
///
/// For the file of a [`TrainingState`], the tensors of the model are read.
///
/// # Element types
/// - All types that tensors have are kept, including `f64` and `i64`.
///   [`Module::load_state_dict`](crate::nn::Module::load_state_dict) converts to the types of a module's tensors, as
///   PyTorch does.
/// - Adapters do not support `f64`: read such a file to `cpu`, or within [`narrow_64_bits`](crate::narrow_64_bits),
///   which converts 64-bit numbers to 32 bits.
/// - `u16` becomes `u32`, `i16` and `i8` become `i32`, and `u64` becomes `u32`, or `i64` if a value needs it.
/// - A tensor with a value that does not fit, or of another type (for example complex), is skipped. So is a number
///   among the tensors of a PyTorch file. [`StateDict::skipped`] and [`PickleValue::skipped`] list what is skipped,
///   with the reasons, and a warning is logged.
///
/// # Errors
/// [`Error::Data`] if the file is missing, truncated or damaged, if it holds an object that is not data, if it has no
/// tensor that can be read, or if it has `f64` and the device is an adapter; the errors of the device.
pub fn load(path: impl AsRef<Path>, device: impl IntoDevice) -> Result<StateDict> {
    Ok(load_with_metadata(path, device)?.0)
}

/// Returns the bytes that [`save`] would write.
///
/// Use it in a program without files, such as a page in a browser.
///
/// # Errors
/// The errors of the devices. In a browser, [`Error::WouldBlock`] for tensors on an adapter: use [`to_bytes_async`].
///
/// ```
/// use anygpu::nn::{Linear, Module};
/// use anygpu::{Device, checkpoint};
///
/// let layer = Linear::new(3, 2)?;
/// let bytes = checkpoint::to_bytes(&layer.state_dict())?;
/// let state = checkpoint::from_bytes(&bytes, "layer.safetensors", Device::cpu())?;
/// Linear::new(3, 2)?.load_state_dict(&state, true)?;
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn to_bytes(state: &StateDict) -> Result<Vec<u8>> {
    let bytes = safetensors::bytes(state, Default::default());
    bytes.map_err(|error| error.instead("to_bytes", "to_bytes_async"))
}

/// Asynchronous form of [`to_bytes`].
///
/// Use it in a browser, where `to_bytes` would have to wait for adapters.
///
/// # Errors
/// The errors of the devices.
pub async fn to_bytes_async(state: &StateDict) -> Result<Vec<u8>> {
    rerun(&devices_of(state), || to_bytes(state)).await
}

/// Returns the devices of the tensors.
fn devices_of(state: &StateDict) -> Vec<Device> {
    state.iter().map(|(_, tensor)| tensor.device().clone()).collect()
}

/// Reads the bytes of a file like [`load`].
///
/// `origin` is the file's name in errors and warnings.
///
/// # Errors
/// The errors of [`load`].
pub fn from_bytes(bytes: &[u8], origin: impl AsRef<Path>, device: impl IntoDevice) -> Result<StateDict> {
    Ok(read_state(bytes, origin.as_ref(), &device.into_device()?)?.0)
}

/// Reads all values of a file of `torch.save`: dicts, lists, numbers, text and tensors.
///
/// The file may have any extension. Tensors are copied to `device`.
///
/// # Errors
/// The errors of [`load`].
pub fn load_pickle(path: impl AsRef<Path>, device: impl IntoDevice) -> Result<PickleValue> {
    let (path, device) = (path.as_ref(), device.into_device()?);
    pytorch::read(&read_file(path)?, path, &device)
}

/// Writes the tensors like [`save`], with metadata: named texts, such as a description of the model.
///
/// Keys that begin with `anygpu.` are reserved, except `anygpu.card`, with which `anygpu train` describes a net. Every
/// save writes the keys `anygpu` and `format`, with the values `1` and `pt`. You may pass them, so metadata that was
/// read can be written again.
///
/// # Errors
/// The errors of [`save`]; [`Error::InvalidArgument`] for a reserved key, and for the key `anygpu` with another value.
/// Nothing is written then.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use anygpu::nn::{Linear, Module};
/// use anygpu::{Device, checkpoint};
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let path = folder.path().join("layer.safetensors");
/// let notes = BTreeMap::from([("classes".to_string(), "cat, dog".to_string())]);
/// checkpoint::save_with_metadata(&Linear::new(3, 2)?.state_dict(), &notes, &path)?;
/// let (state, read) = checkpoint::load_with_metadata(&path, Device::cpu())?;
/// assert_eq!((state.len(), &read["classes"]), (2, &notes["classes"]));
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn save_with_metadata(
    state: &StateDict,
    metadata: &BTreeMap<String, String>,
    path: impl AsRef<Path>,
) -> Result<()> {
    let path = path.as_ref();
    let reserved = |(key, value): &(&String, &String)| is_reserved(key) || *key == safetensors::ORIGIN && *value != "1";
    if let Some((key, _)) = metadata.iter().find(reserved) {
        let detail = format!(
            "the key {key:?} of the metadata is reserved, as is every key that begins with {RESERVED:?}: use another"
        );
        return Err(Error::argument("save_with_metadata", detail));
    }
    match extension(path).as_str() {
        "safetensors" => safetensors::write(state, metadata.clone(), path),
        _ => save(state, path), // which returns the error
    }
}

/// Reads a file like [`load`], and also returns its named texts; PyTorch's own files have none.
///
/// For a [`TrainingState`], returns the model's tensors and the texts that were added with [`TrainingState::text`].
///
/// # Errors
/// The errors of [`load`].
pub fn load_with_metadata(
    path: impl AsRef<Path>,
    device: impl IntoDevice,
) -> Result<(StateDict, BTreeMap<String, String>)> {
    read_state(&read_file(path.as_ref())?, path.as_ref(), &device.into_device()?)
}

/// Reads a file of any kind that [`load`] accepts.
fn read_state(file: &[u8], path: &Path, device: &Device) -> Result<(StateDict, BTreeMap<String, String>)> {
    if is_safetensors(file, path)? {
        let (state, metadata) = safetensors::read_bytes(file, path)?;
        let (state, metadata) = training::model_of(state, metadata);
        check_held(state.iter().map(|(_, tensor)| tensor), device).map_err(|fault| fault.of(path))?;
        Ok((state.to(device)?, metadata))
    } else {
        // Entries beside the state are optional.
        let value = pytorch::read(file, path, &Device::cpu())?;
        let state = value.find_state_dict().map_err(|detail| damaged(path, detail))?;
        check_held(state.iter().map(|(_, tensor)| tensor), device).map_err(|fault| fault.of(path))?;
        Ok((state.to(device)?, BTreeMap::new()))
    }
}

/// Returns whether a file is a safetensors file, by its first bytes: the length of a header and a brace. A file of
/// `torch.save` is a zip archive, or a pickle of protocol 2 or later. A damaged file is classified by its name.
fn is_safetensors(file: &[u8], path: &Path) -> Result<bool> {
    let begins = file.first_chunk::<8>().zip(file.get(8)).is_some_and(|(length, first)| {
        *first == b'{' && usize::try_from(u64::from_le_bytes(*length)).is_ok_and(|length| length <= file.len() - 8)
    });
    let torch = file.starts_with(b"PK\x03\x04") || matches!(file, [0x80, 2..=5, ..]);
    match (begins, torch, extension(path).as_str()) {
        (true, ..) => Ok(true),
        (false, true, _) => Ok(false),
        (false, false, "safetensors") => Ok(true),
        (false, false, "pt" | "pth" | "bin" | "ckpt") => Ok(false),
        _ => Err(damaged(
            path,
            "it is no file of tensors: it begins neither as a safetensors file nor as a file of torch.save",
        )),
    }
}

/// Returns an error for elements that a device does not hold.
fn check_held<'a>(mut tensors: impl Iterator<Item = &'a Tensor>, device: &Device) -> Result<(), Fault> {
    match tensors.find(|tensor| tensor.dtype() == DType::F64).filter(|_| !device.is_cpu()) {
        None => Ok(()),
        Some(tensor) => Err(format!(
            "it has a tensor of f64, of shape {:?}, and {device} holds no f64: read it to cpu, or to f32 within \
             anygpu::narrow_64_bits(|| …)",
            tensor.shape()
        )
        .into()),
    }
}

/// Returns a text of a file for a message: shortened, and without control characters of a terminal.
fn text(text: &str) -> String {
    const MOST: usize = 100;
    let plain = |c: char| match c.escape_debug().len() {
        1 => c,
        _ if matches!(c, '\'' | '"' | '\\') => c,
        _ => '?',
    };
    let shown: String = text.chars().take(MOST).map(plain).collect();
    let rest = if text.chars().nth(MOST).is_some() { "…" } else { "" };
    format!("'{shown}{rest}'")
}

fn extension(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

fn damaged(path: &Path, detail: impl Into<String>) -> Error {
    Error::Data { path: path.display().to_string(), detail: detail.into() }
}

/// Returns the bytes of a regular file. A device or pipe, which may be endless, is an error.
#[doc(hidden)]
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    read_whole(path, |error| damaged(path, format!("cannot be read: {error}")))
}

/// An error while a file is read: of the file, or of a device.
enum Fault {
    /// The file is damaged, hostile or of another kind.
    File(String),
    /// A value that a tensor of this crate cannot hold. Other values of the file can be read.
    Unsupported(String),
    /// An error of a device.
    Device(Error),
}

impl Fault {
    /// Returns the error, with the name of the file.
    fn of(self, path: &Path) -> Error {
        match self {
            Fault::File(detail) | Fault::Unsupported(detail) => damaged(path, detail),
            Fault::Device(error) => error,
        }
    }

    /// Returns the same error, with the name of a part of the file.
    fn within(self, part: &str) -> Fault {
        match self {
            Fault::File(detail) => Fault::File(format!("{part}: {detail}")),
            Fault::Unsupported(detail) => Fault::Unsupported(format!("{part}: {detail}")),
            device => device,
        }
    }
}

impl From<String> for Fault {
    fn from(detail: String) -> Fault {
        Fault::File(detail)
    }
}

impl From<&str> for Fault {
    fn from(detail: &str) -> Fault {
        Fault::File(detail.to_string())
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Device(error)
    }
}
