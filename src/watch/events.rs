//! TensorBoard's event files.
//!
//! ```text
//! file     records
//! record   u64 length, u32 masked CRC-32C of it, the event, u32 masked CRC-32C of the event      (TFRecord)
//! event    1: double wall_time, 2: int64 step, 3: string file_version | 5: summary              (protobuf)
//! summary  1: value { 1: string tag, 2: float simple_value }
//! ```
//!
//! tensorflow/core/util/event.proto and summary.proto. All numbers are little-endian.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::crc32c::masked;
use crate::error::{Error, Result};

/// Writes numbers for TensorBoard, as `torch.utils.tensorboard.SummaryWriter` does: `tensorboard --logdir runs` draws
/// them while training goes on.
///
/// Each writer creates a new file in its folder. Values are handed to the operating system by
/// [`flush`](SummaryWriter::flush), and when the writer is dropped.
///
/// ```
/// use anygpu::watch::SummaryWriter;
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let folder = folder.path();
/// let mut writer = SummaryWriter::new(folder.join("run-1"))?;
/// for (step, loss) in [2.3, 1.7, 1.1].into_iter().enumerate() {
///     writer.add_scalar("loss/train", loss, step as u64)?;
/// }
/// writer.flush()?;
/// assert!(writer.path().file_name().is_some_and(|name| name.to_string_lossy().starts_with("events.out.tfevents.")));
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct SummaryWriter {
    file: BufWriter<File>,
    path: PathBuf,
}

/// A counter that makes the names of files distinct within one process, second and folder.
static FILES: AtomicU64 = AtomicU64::new(0);

impl SummaryWriter {
    /// Creates the folder, if it does not exist, and a new file in it.
    ///
    /// # Errors
    /// [`Error::Data`] naming the folder or file that cannot be created.
    pub fn new(folder: impl AsRef<Path>) -> Result<SummaryWriter> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let seconds = now() as u64;
        let path = folder.join(format!("events.out.tfevents.{seconds:010}.{}.{number}.anygpu", std::process::id()));
        let file = File::create_new(&path).map_err(|error| failed(&path, &error))?;
        let mut writer = SummaryWriter { file: BufWriter::new(file), path };
        writer.write(&file_version(now()))?;
        writer.flush()?; // TensorBoard does not accept an empty file
        Ok(writer)
    }

    /// Writes one point of the curve `tag`, such as `loss/train`. The part before the slash groups curves.
    ///
    /// # Errors
    /// [`Error::Data`] if the file cannot be written, for instance because the disk is full.
    pub fn add_scalar(&mut self, tag: &str, value: f64, step: u64) -> Result<()> {
        self.write(&scalar(now(), step, tag, value as f32))
    }

    /// Writes several curves that belong together: `add_scalars("loss", &[("train", a), ("test", b)], step)` is
    /// `add_scalar` of `loss/train` and of `loss/test`.
    ///
    /// # Errors
    /// As [`add_scalar`](SummaryWriter::add_scalar).
    pub fn add_scalars(&mut self, group: &str, values: &[(&str, f64)], step: u64) -> Result<()> {
        values.iter().try_for_each(|(tag, value)| self.add_scalar(&format!("{group}/{tag}"), *value, step))
    }

    /// Hands all written values to the operating system.
    ///
    /// # Errors
    /// As [`add_scalar`](SummaryWriter::add_scalar).
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|error| failed(&self.path, &error))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, event: &[u8]) -> Result<()> {
        self.file.write_all(&record(event)).map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::Data { path: path.display().to_string(), detail: format!("cannot be written: {error}") }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn record(event: &[u8]) -> Vec<u8> {
    let len = (event.len() as u64).to_le_bytes();
    [&len[..], &masked(&len).to_le_bytes(), event, &masked(event).to_le_bytes()].concat()
}

/// The first event of a file.
fn file_version(wall_time: f64) -> Vec<u8> {
    let mut event = double(1, wall_time);
    event.extend(bytes(3, b"brain.Event:2"));
    event
}

fn scalar(wall_time: f64, step: u64, tag: &str, value: f32) -> Vec<u8> {
    let mut number = bytes(1, tag.as_bytes());
    number.extend(key(2, 5));
    number.extend(value.to_le_bytes());
    let summary = bytes(1, &number);
    let mut event = double(1, wall_time);
    event.extend(key(2, 0));
    event.extend(varint(step));
    event.extend(bytes(5, &summary));
    event
}

/// A field's number and wire type (0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes).
fn key(field: u64, wire: u64) -> Vec<u8> {
    varint(field << 3 | wire)
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn double(field: u64, value: f64) -> Vec<u8> {
    [key(field, 1), value.to_le_bytes().to_vec()].concat()
}

fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [key(field, 2), varint(value.len() as u64), value.to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/data/events.tfevents` holds these events; scripts/tensorboard_events.py reads it with TensorBoard's own
    /// package.
    #[test]
    fn a_file_is_the_one_that_tensorboard_reads() {
        let mut file = record(&file_version(1_700_000_000.0));
        for step in [0u64, 1, 300] {
            file.extend(record(&scalar(1_700_000_000.25 + step as f64, step, "loss/train", 2.5 / (step + 1) as f32)));
        }
        file.extend(record(&scalar(1_700_000_001.0, 7, "größe", -1e30)));
        assert_eq!(file, include_bytes!("../../tests/data/events.tfevents"));
    }

    #[test]
    fn writers_do_not_overwrite_each_other_and_failures_name_the_place() {
        let dir = tempfile::tempdir().unwrap();
        let mut all: Vec<_> = (0..3).map(|_| SummaryWriter::new(dir.path()).unwrap()).collect();
        for writer in &mut all {
            writer.add_scalars("loss", &[("train", 1.0), ("test", 2.0)], 3).unwrap();
        }
        drop(all);
        let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 3);
        assert_eq!(std::fs::read(&files[0]).unwrap().len(), std::fs::read(&files[1]).unwrap().len());
        let error = SummaryWriter::new(files[0].join("sub")).unwrap_err().to_string();
        assert!(error.contains("sub: cannot be written"), "{error}");
    }
}
