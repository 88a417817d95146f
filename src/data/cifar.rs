//! The binary version of CIFAR-10: 60 000 colour images of 32 × 32 in ten classes.
//!
//! ```text
//! data_batch_1.bin … data_batch_5.bin, test_batch.bin     10 000 records each
//! record   u8 label, 1024 red, 1024 green, 1024 blue bytes, row by row
//! ```
//!
//! CIFAR-10 is by A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.

use std::path::Path;

use super::idx::damaged;
use super::image_set::{CLASSES, ImageSet};
use super::splits::Splits;
use crate::error::Result;

const PIXELS: usize = 3 * 32 * 32;
const RECORD: usize = 1 + PIXELS;

/// The names of CIFAR-10's classes, by label.
pub const CIFAR10_CLASSES: [&str; CLASSES] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// Reads CIFAR-10 from a folder with the files of the binary version (`cifar-10-batches-bin`).
///
/// # Errors
/// [`Error::Data`](crate::Error::Data) naming the file that is missing or damaged and what is wrong with it.
///
/// ```
/// let error = anygpu::data::cifar10("/nowhere").unwrap_err().to_string();
/// assert!(error.starts_with("/nowhere/data_batch_1.bin: "), "{error}");
/// ```
pub fn cifar10(dir: impl AsRef<Path>) -> Result<Splits> {
    let dir = dir.as_ref();
    let mut train = empty();
    for part in 1..=5 {
        read(&dir.join(format!("data_batch_{part}.bin")), &mut train)?;
    }
    let mut test = empty();
    read(&dir.join("test_batch.bin"), &mut test)?;
    Splits::new(&dir.display().to_string(), train, test)
}

/// Whether a folder has a file of CIFAR-10.
pub(super) fn is_cifar10(dir: &Path) -> bool {
    dir.join("data_batch_1.bin").is_file() || dir.join("test_batch.bin").is_file()
}

fn empty() -> ImageSet {
    ImageSet { images: Vec::new(), labels: Vec::new(), n: 0, c: 3, h: 32, w: 32 }
}

/// Appends the records of one file.
fn read(path: &Path, set: &mut ImageSet) -> Result<()> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| damaged(&name, error.to_string()))?;
    if bytes.is_empty() || bytes.len() % RECORD != 0 {
        let detail = format!("{} bytes are not records of {RECORD} (a label and 3 × 32 × 32 pixels)", bytes.len());
        return Err(damaged(&name, detail));
    }
    for (i, record) in bytes.chunks_exact(RECORD).enumerate() {
        if usize::from(record[0]) >= CLASSES {
            return Err(damaged(&name, format!("label {i} is {}, not one of 0 to {}", record[0], CLASSES - 1)));
        }
        set.labels.push(record[0]);
        set.images.extend_from_slice(&record[1..]);
    }
    set.n = set.labels.len();
    Ok(())
}
