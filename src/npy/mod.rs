//! NumPy's files: `.npy`, one array, and `.npz`, arrays by name.
//!
//! [`Tensor::from_npy`] and [`Tensor::save_npy`] read and write one tensor. [`load_npz`] and [`save_npz`] read and
//! write several. The memory that a file takes is in proportion to its size, whatever its header says. Files with
//! Python objects are refused. Nothing in a file is executed.
//!
//! ```
//! use anygpu::{Tensor, npy};
//!
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("arrays.npz");
//! let (x, y) = (Tensor::new([[1.0, 2.0]], None)?, Tensor::new([3u8], None)?);
//! npy::save_npz(&path, &[("x", &x), ("y", &y)])?; // numpy.load("arrays.npz")["x"]
//! let arrays = npy::load_npz(&path, None)?;
//! assert_eq!(arrays[0].0, "x");
//! assert_eq!(arrays[1].1.to_vec::<u8>()?, [3]);
//! # Ok::<(), anygpu::Error>(())
//! ```

mod header;
mod numbers;

use std::collections::BTreeSet;
use std::io::{Cursor, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::device::cpu::{read_whole, with_room};
use crate::device::{Device, IntoDevice};
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::util::atomic::write_atomically;
use crate::util::stored_zip::StoredZip;
use header::Header;

/// What is wrong with a file, or an error of a device.
enum Fault {
    File(String),
    Other(Error),
}

impl From<String> for Fault {
    fn from(detail: String) -> Fault {
        Fault::File(detail)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Other(error)
    }
}

/// Returns the error of a file.
fn error(path: &Path, fault: impl Into<Fault>) -> Error {
    match fault.into() {
        Fault::File(detail) => Error::Data { path: path.display().to_string(), detail },
        Fault::Other(error) => error,
    }
}

/// Reads a regular file.
fn read(path: &Path) -> Result<Vec<u8>, Fault> {
    read_whole(path, |error| Fault::File(error.to_string()))
}

/// Returns the tensor of the bytes of a `.npy` file.
fn tensor(bytes: &[u8], device: &Device) -> Result<Tensor, Fault> {
    let (header, data) = Header::parse(bytes)?;
    numbers::check_held(&header.kind, device)?;
    if !header.fortran_order || header.shape.len() < 2 {
        return numbers::tensor(&header.kind, data, &header.shape, device);
    }
    let reversed: Vec<usize> = header.shape.iter().rev().copied().collect();
    let columns = numbers::tensor(&header.kind, data, &reversed, &Device::cpu())?;
    let order: Vec<usize> = (0..reversed.len()).rev().collect();
    Ok(columns.permute(&order[..])?.contiguous()?.to(device)?)
}

/// Returns the bytes of a `.npy` file of a tensor.
fn bytes(op: &'static str, tensor: &Tensor) -> Result<Vec<u8>> {
    if tensor.rank() > header::DIMENSIONS {
        let detail = format!(
            "a tensor of rank {} is not a NumPy array: it has at most {} dimensions",
            tensor.rank(),
            header::DIMENSIONS
        );
        return Err(Error::argument(op, detail));
    }
    let (name, data) = numbers::bytes(tensor)?;
    let header = header::text(name, tensor.shape());
    let mut all = with_room(header.len() + data.len())?;
    all.extend(header);
    all.extend(data);
    Ok(all)
}

/// Reads all arrays of a `.npz` file that `numpy.savez` wrote, with their names, in the file's order.
///
/// The element types are as in [`Tensor::from_npy`].
///
/// # Errors
/// [`Error::Data`] if the file cannot be read, is damaged, is compressed (by `numpy.savez_compressed`), or has an array
/// that [`Tensor::from_npy`] refuses; [`Error::OutOfMemory`] if there is not enough memory.
pub fn load_npz(path: impl AsRef<Path>, device: impl IntoDevice) -> Result<Vec<(String, Tensor)>> {
    let (path, device) = (path.as_ref(), device.into_device()?);
    let arrays = || -> Result<Vec<(String, Tensor)>, Fault> {
        let file = read(path)?;
        let entries = StoredZip::open(&file)?.entries(": save with numpy.savez, not numpy.savez_compressed")?;
        let mut arrays = Vec::new();
        for (name, part) in entries {
            let short =
                name.strip_suffix(".npy").ok_or_else(|| format!("{name} is not an array: its name lacks .npy"))?;
            let tensor = tensor(part, &device).map_err(|fault| match fault {
                Fault::File(detail) => Fault::File(format!("{name}: {detail}")),
                other => other,
            })?;
            arrays.push((short.to_owned(), tensor));
        }
        Ok(arrays)
    };
    arrays().map_err(|fault| error(path, fault))
}

/// Writes tensors with their names to a `.npz` file.
///
/// The file is written completely or not at all. NumPy reads it with `numpy.load`.
///
/// The element types are as in [`Tensor::save_npy`].
///
/// # Errors
/// [`Error::InvalidArgument`] if a name is empty or occurs twice, or a tensor has more than 64 dimensions;
/// [`Error::Data`] if the file cannot be written; errors of earlier work on the devices.
pub fn save_npz(path: impl AsRef<Path>, tensors: &[(&str, &Tensor)]) -> Result<()> {
    let path = path.as_ref();
    let mut names = BTreeSet::new();
    if let Some((name, _)) = tensors.iter().find(|(name, _)| name.is_empty() || !names.insert(*name)) {
        return Err(Error::argument("save_npz", format!("the name '{name}' is empty or occurs twice")));
    }
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, tensor) in tensors {
        let data = bytes("save_npz", tensor)?;
        let large = data.len() >= u32::MAX as usize;
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(large);
        let started = archive.start_file(format!("{name}.npy"), options).map_err(|error| error.to_string());
        let written = started.and_then(|()| archive.write_all(&data).map_err(|error| error.to_string()));
        written.map_err(|detail| error(path, detail))?;
    }
    let whole = archive.finish().map_err(|fault| error(path, fault.to_string()))?.into_inner();
    write_atomically(path, |file| file.write_all(&whole)).map_err(|fault| error(path, fault.to_string()))
}

impl Tensor {
    /// Reads an array from a `.npy` file that `numpy.save` wrote. The elements may be in rows or in columns, and of
    /// either byte order.
    ///
    /// | NumPy | here |
    /// |---|---|
    /// | `float32`, `float16` | f32, f16 |
    /// | `float64` | f64 on `cpu`; an error on adapters, which have no f64 |
    /// | `int32`, `int16`, `int8`, `uint16` | i32 |
    /// | `int64` | i64 |
    /// | `uint32` | u32 |
    /// | `uint64` | u32, or i64 if a number needs it; an error if a number fits neither |
    /// | `uint8`, `bool` | u8, bool |
    ///
    /// NumPy's default type is `float64`. Within [`narrow_64_bits`](crate::narrow_64_bits), `float64` becomes f32,
    /// rounded to the nearest, and `int64` becomes i32; a number that does not fit is an error.
    /// `x.astype("float32")` before `numpy.save` does the same.
    ///
    /// # Errors
    /// [`Error::Data`] if the file cannot be read, is damaged, or has elements of another type; [`Error::OutOfMemory`]
    /// if there is not enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let folder = tempfile::tempdir().unwrap();
    /// let path = folder.path().join("x.npy");
    /// Tensor::new([[1.5, 2.5]], None)?.save_npy(&path)?;
    /// assert_eq!(Tensor::from_npy(&path, None)?.to_vec2::<f32>()?, [[1.5, 2.5]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn from_npy(path: impl AsRef<Path>, device: impl IntoDevice) -> Result<Tensor> {
        let (path, device) = (path.as_ref(), device.into_device()?);
        read(path).and_then(|bytes| tensor(&bytes, &device)).map_err(|fault| error(path, fault))
    }

    /// Writes this tensor to a `.npy` file.
    ///
    /// The file is written completely or not at all. NumPy reads it with `numpy.load`.
    ///
    /// Elements keep their type. The exception is bf16, which NumPy does not have: it becomes `float32`, without
    /// rounding.
    ///
    /// # Errors
    /// [`Error::Data`] if the file cannot be written; [`Error::InvalidArgument`] for more than 64 dimensions; errors of
    /// earlier work on the device.
    pub fn save_npy(&self, path: impl AsRef<Path>) -> Result<()> {
        let (path, data) = (path.as_ref(), bytes("save_npy", self)?);
        write_atomically(path, |file| file.write_all(&data)).map_err(|fault| error(path, fault.to_string()))
    }
}
