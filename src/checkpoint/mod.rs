//! Saving and loading: safetensors files, written and read, and the files of PyTorch's `torch.save`, read.
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
//! other.load_state_dict(&checkpoint::load(&path, &Device::cpu())?, true)?;
//! assert_eq!(other.parameters()[0].to_vec::<f32>()?, layer.parameters()[0].to_vec::<f32>()?);
//! # Ok::<(), anygpu::Error>(())
//! ```

mod atomic;
mod safetensors;
mod wire;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::StateDict;
use crate::tensor::with_room;

/// Writes the tensors to a `.safetensors` file, which PyTorch reads with `safetensors.torch.load_file`.
///
/// All tensors cross to the host in one copy per device. The file is written beside its place and renamed into it: a crash, a kill or a
/// full disk at any moment leaves either the old file or the new one. It holds a CRC-32 of names, shapes and elements, which
/// [`load`] checks.
///
/// # Errors
/// [`Error::Data`] if the path does not end in `.safetensors` or cannot be written; what a device says.
pub fn save(state: &StateDict, path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    match extension(path).as_str() {
        "safetensors" => safetensors::write(state, Default::default(), path),
        "pt" | "pth" | "bin" => Err(damaged(
            path,
            "PyTorch's own format is read here, not written: save as .safetensors, which PyTorch reads with \
             safetensors.torch.load_file",
        )),
        other => Err(damaged(path, format!("files end in .safetensors, not {other:?}"))),
    }
}

/// Reads a `.safetensors` file, with all tensors on `device`, in one staged copy.
///
/// `f64` becomes `f32`, and integers of 64, 16 and 8 bits become such of 32 (`u8` stays). A file of any origin is safe to read:
/// it is data, nothing in it can run, and memory is bounded by the file's true size whatever it claims.
///
/// # Errors
/// [`Error::Data`] that says what is wrong with the file: missing, cut, damaged (a file written by [`save`] has a
/// checksum), of an element type that is not known here, with an integer that does not fit 32 bits. What the device says.
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<StateDict> {
    let path = path.as_ref();
    let state = match extension(path).as_str() {
        "safetensors" => safetensors::read(path)?.0,
        other => return Err(damaged(path, format!("files end in .safetensors, not {other:?}"))),
    };
    state.to(device)
}

/// As [`save`], with text by name in the file: what a model is and how its inputs are made, say.
///
/// # Errors
/// As [`save`].
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
/// let (state, read) = checkpoint::load_with_metadata(&path, &Device::cpu())?;
/// assert_eq!((state.len(), &read["classes"]), (2, &notes["classes"]));
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn save_with_metadata(
    state: &StateDict,
    metadata: &BTreeMap<String, String>,
    path: impl AsRef<Path>,
) -> Result<()> {
    let path = path.as_ref();
    match extension(path).as_str() {
        "safetensors" => safetensors::write(state, metadata.clone(), path),
        _ => save(state, path), // which says why not
    }
}

/// As [`load`], with the text by name that is in the file; PyTorch's own files have none.
///
/// # Errors
/// As [`load`].
pub fn load_with_metadata(path: impl AsRef<Path>, device: &Device) -> Result<(StateDict, BTreeMap<String, String>)> {
    let path = path.as_ref();
    match extension(path).as_str() {
        "safetensors" => {
            let (state, metadata) = safetensors::read(path)?;
            Ok((state.to(device)?, metadata))
        }
        _ => Ok((load(path, device)?, BTreeMap::new())),
    }
}

fn extension(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

fn damaged(path: &Path, detail: impl Into<String>) -> Error {
    Error::Data { path: path.display().to_string(), detail: detail.into() }
}

/// The bytes of a file: of as many as it has, not of a device or pipe without end.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| damaged(path, format!("cannot be read: {error}"));
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(damaged(path, "this is not a file"));
    }
    let size = usize::try_from(about.len()).map_err(|_| damaged(path, "larger than the memory of this machine"))?;
    let mut bytes = with_room(size)?;
    file.take(about.len()).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
