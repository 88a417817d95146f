//! The binary version of CIFAR-10: 60 000 colour images of 32 × 32 in ten classes.
//!
//! ```text
//! data_batch_1.bin … data_batch_5.bin, test_batch.bin     10 000 records each
//! record   u8 label, 1024 red, 1024 green, 1024 blue bytes, row by row
//! ```
//!
//! CIFAR-10 is by A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::image_set::{CLASSES, ImageSet};
use super::limits::{Limits, damaged, open};
use super::splits::Splits;
use crate::device::cpu::with_room;
use crate::error::Result;

const PIXELS: usize = 3 * 32 * 32;
const RECORD: usize = 1 + PIXELS;

/// The names of CIFAR-10's classes, by label.
pub const CIFAR10_CLASSES: [&str; CLASSES] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// Reads CIFAR-10 from a folder with the files of the binary version (`cifar-10-batches-bin`).
///
/// # Errors
/// [`Error::Data`](crate::Error::Data) that names the file that is missing, damaged or larger than the default
/// [`Limits`], and what is wrong with it.
///
/// ```
/// let error = anygpu::data::cifar10("/nowhere").unwrap_err().to_string();
/// assert!(error.starts_with("/nowhere/data_batch_1.bin: "), "{error}");
/// ```
pub fn cifar10(dir: impl AsRef<Path>) -> Result<Splits> {
    cifar10_within(dir.as_ref(), Limits::new())
}

/// [`cifar10`] with other limits.
pub(super) fn cifar10_within(dir: &Path, limits: Limits) -> Result<Splits> {
    let train: Vec<_> = (1..=5).map(|part| dir.join(format!("data_batch_{part}.bin"))).collect();
    let train = read(&train, limits)?;
    let test = read(&[dir.join("test_batch.bin")], limits)?;
    Splits::new(&dir.display().to_string(), train, test)
}

/// Whether a folder has a file of CIFAR-10.
pub(super) fn is_cifar10(dir: &Path) -> bool {
    dir.join("data_batch_1.bin").is_file() || dir.join("test_batch.bin").is_file()
}

/// Reads the records of these files.
fn read(paths: &[PathBuf], limits: Limits) -> Result<ImageSet> {
    let mut files = Vec::new();
    let mut n = 0usize;
    for path in paths {
        let name = path.display().to_string();
        let (file, len) = open(path)?;
        if len == 0 || len % RECORD as u64 != 0 {
            let detail = format!("{len} bytes are not records of {RECORD} (a label and 3 × 32 × 32 pixels)");
            return Err(damaged(&name, detail));
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        limits.check_pixels(&name, 32, 32)?;
        limits.check_bytes(&name, len)?;
        n += len / RECORD;
        files.push((name, file, len));
    }
    let mut set =
        ImageSet { images: with_room(n.saturating_mul(PIXELS))?, labels: with_room(n)?, n, c: 3, h: 32, w: 32 };
    for (name, file, len) in files {
        append(&name, BufReader::new(file), len / RECORD, &mut set)?;
    }
    Ok(set)
}

/// Appends `records` records of a file.
fn append(name: &str, mut file: impl Read, records: usize, set: &mut ImageSet) -> Result<()> {
    let mut record = [0; RECORD];
    for i in 0..records {
        file.read_exact(&mut record).map_err(|error| damaged(name, format!("record {i}: {error}")))?;
        if usize::from(record[0]) >= CLASSES {
            return Err(damaged(name, format!("label {i} is {}, not one of 0 to {}", record[0], CLASSES - 1)));
        }
        set.labels.push(record[0]);
        set.images.extend_from_slice(&record[1..]);
    }
    Ok(())
}
