//! TensorBoard's event files.
//!
//! ```text
//! file     records
//! record   u64 length, u32 masked CRC-32C of it, the event, u32 masked CRC-32C of the event      (TFRecord)
//! event    1: double wall_time, 2: int64 step, 3: string file_version | 5: summary              (protobuf)
//! summary  1: value { 1: string tag, 2: float simple_value | 4: image | 5: histogram }
//! image      1: height, 2: width, 3: channels, 4: bytes of a PNG
//! histogram  doubles 1: min, 2: max, 3: number, 4: sum, 5: sum of squares, packed 6: upper limits, 7: counts
//! ```
//!
//! tensorflow/core/util/event.proto and summary.proto. All numbers are little-endian.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use web_time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::util::crc32c::masked;

/// Writes numbers for TensorBoard, as `torch.utils.tensorboard.SummaryWriter` does.
///
/// `tensorboard --logdir runs` draws them while training goes on.
///
/// Each writer creates a new file in its folder. [`flush`](SummaryWriter::flush) hands the values to the operating
/// system, and so does dropping the writer.
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
    /// Creates a writer with a new file in the folder. Creates the folder if it does not exist.
    ///
    /// # Errors
    /// [`Error::Data`] if the folder or the file cannot be created. It names the one that failed.
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

    /// Writes several curves that belong together. `add_scalars("loss", &[("train", a), ("test", b)], step)` does
    /// the same as `add_scalar` for `loss/train` and for `loss/test`.
    ///
    /// # Errors
    /// Same as [`add_scalar`](SummaryWriter::add_scalar).
    pub fn add_scalars(&mut self, group: &str, values: &[(&str, f64)], step: u64) -> Result<()> {
        values.iter().try_for_each(|(tag, value)| self.add_scalar(&format!("{group}/{tag}"), *value, step))
    }

    /// Writes the distribution of a tensor's elements, like PyTorch's `add_histogram` with its default bins.
    ///
    /// The absolute values of the limits of the bins grow by the factor 1.1. Waits for the device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tensor has no elements, or an element that is NaN or infinite; otherwise
    /// as [`add_scalar`](SummaryWriter::add_scalar).
    ///
    /// ```
    /// use anygpu::Tensor;
    /// use anygpu::watch::SummaryWriter;
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// let mut writer = SummaryWriter::new(folder.path())?;
    /// writer.add_histogram("weights", &Tensor::randn(1000, None)?, 0)?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn add_histogram(&mut self, tag: &str, values: &Tensor, step: u64) -> Result<()> {
        let values = values.to_vec_f64()?;
        if let Some(wrong) = values.iter().find(|value| !value.is_finite()) {
            return Err(Error::argument("add_histogram", format!("{tag} has an element that is {wrong}")));
        }
        if values.is_empty() {
            return Err(Error::argument("add_histogram", format!("{tag} has no elements")));
        }
        self.write(&summary(now(), step, tag, &bytes(5, &histogram(&values))))
    }

    /// Writes an image.
    ///
    /// Shapes and types are the same as for [`Tensor::to_image`]: `[C, H, W]` with 1, 3 or 4 channels, or `[H, W]`, of
    /// floats from 0 to 1 or of u8. Waits for the device. Needs the feature `image`.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_image`]; otherwise as [`add_scalar`](SummaryWriter::add_scalar).
    #[cfg(feature = "image")]
    pub fn add_image(&mut self, tag: &str, image: &Tensor, step: u64) -> Result<()> {
        let image = image.to_image()?;
        let mut png = std::io::Cursor::new(Vec::new());
        image
            .write_to(&mut png, image::ImageFormat::Png)
            .map_err(|error| Error::argument("add_image", format!("{tag} cannot be written as PNG: {error}")))?;
        let sizes = [image.height().into(), image.width().into(), image.color().channel_count().into()];
        let mut fields: Vec<u8> = (1..).zip(sizes).flat_map(|(field, size): (u64, u64)| number(field, size)).collect();
        fields.extend(bytes(4, png.get_ref()));
        self.write(&summary(now(), step, tag, &bytes(4, &fields)))
    }

    /// Hands all written values to the operating system.
    ///
    /// # Errors
    /// Same as [`add_scalar`](SummaryWriter::add_scalar).
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
    summary(wall_time, step, tag, &[&key(2, 5)[..], &value.to_le_bytes()].concat())
}

/// An event of one value, whose field is given.
fn summary(wall_time: f64, step: u64, tag: &str, field: &[u8]) -> Vec<u8> {
    let value = [&bytes(1, tag.as_bytes())[..], field].concat();
    let mut event = double(1, wall_time);
    event.extend(number(2, step));
    event.extend(bytes(5, &bytes(1, &value)));
    event
}

/// The fields of a histogram of finite numbers.
fn histogram(values: &[f64]) -> Vec<u8> {
    let positive = std::iter::successors(Some(1e-12f64), |limit| Some(limit * 1.1)).take_while(|limit| *limit < 1e20);
    let positive: Vec<f64> = positive.collect();
    let mut limits: Vec<f64> = positive.iter().rev().map(|limit| -limit).collect();
    limits.push(0.0);
    limits.extend(positive);
    limits.push(f64::MAX);
    // A bucket has the numbers from the limit before on, and below its own.
    let mut counts = vec![0.0f64; limits.len()];
    for value in values {
        counts[limits.partition_point(|limit| limit <= value).min(limits.len() - 1)] += 1.0;
    }
    let first = counts.iter().position(|&count| count > 0.0).unwrap_or(0);
    let last = counts.iter().rposition(|&count| count > 0.0).unwrap_or(0);
    // An empty bucket before the first one says where that begins.
    let kept = first.saturating_sub(1)..=last;
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(least, most), &v| (least.min(v), most.max(v)));
    let sums = [least, most, values.len() as f64, values.iter().sum(), values.iter().map(|value| value * value).sum()];
    let mut fields: Vec<u8> = (1..).zip(sums).flat_map(|(field, value)| double(field, value)).collect();
    let packed = |values: &[f64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    fields.extend(bytes(6, &packed(&limits[kept.clone()])));
    fields.extend(bytes(7, &packed(&counts[kept])));
    fields
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

fn number(field: u64, value: u64) -> Vec<u8> {
    [key(field, 0), varint(value)].concat()
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

    /// The fields of a message: numbers, and the bytes of the others.
    fn fields(mut message: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        let varint = |message: &mut &[u8]| {
            let (mut value, mut shift) = (0u64, 0);
            loop {
                let byte = message[0];
                *message = &message[1..];
                value |= u64::from(byte & 0x7F) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        };
        let mut all = Vec::new();
        while !message.is_empty() {
            let key = varint(&mut message);
            let (value, len) = match key & 7 {
                0 => (varint(&mut message), 0),
                1 => (0, 8),
                2 => (0, varint(&mut message) as usize),
                _ => (0, 4),
            };
            all.push((key >> 3, value, message[..len].to_vec()));
            message = &message[len..];
        }
        all
    }

    fn doubles(bytes: &[u8]) -> Vec<f64> {
        bytes.chunks(8).map(|eight| f64::from_le_bytes(eight.try_into().unwrap())).collect()
    }

    #[test]
    fn a_histogram_counts_every_element() {
        let values = [-3.0, 0.0, 0.5, 0.5, 0.51, 1e-13, 1e25, -1e25];
        let all = fields(&histogram(&values));
        let number = |field: u64| doubles(&all.iter().find(|(number, ..)| *number == field).unwrap().2);
        assert_eq!([1, 2, 3].map(|field| number(field)[0]), [-1e25, 1e25, 8.0]);
        assert_eq!(number(4)[0], values.iter().sum::<f64>());
        let (limits, counts) = (number(6), number(7));
        assert_eq!((limits.len(), counts.iter().sum::<f64>()), (counts.len(), 8.0));
        assert!(limits.is_sorted());
        let within = |low: f64, high: f64| values.iter().filter(|&&value| value >= low && value < high).count() as f64;
        for i in 1..limits.len() {
            assert_eq!(counts[i], within(limits[i - 1], limits[i]), "from {} to {}", limits[i - 1], limits[i]);
        }
        let one = fields(&histogram(&[1.0]));
        assert_eq!(doubles(&one[6].2), [0.0, 1.0]);
        assert!(doubles(&one[5].2)[0] <= 1.0 && doubles(&one[5].2)[1] > 1.0);
    }

    #[test]
    fn what_is_no_number_is_refused() -> Result<()> {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = SummaryWriter::new(dir.path())?;
        writer.add_histogram("weights", &Tensor::try_from([1.0, 2.0])?, 3)?;
        for (values, what) in [(vec![1.0, f32::NAN], "NaN"), (vec![], "no elements")] {
            let values = Tensor::from_slice(&values, values.len(), None)?;
            let error = writer.add_histogram("weights", &values, 3).unwrap_err().to_string();
            assert!(error.contains("weights") && error.contains(what), "{error}");
        }
        Ok(())
    }

    #[cfg(feature = "image")]
    #[test]
    fn an_image_is_a_png() -> Result<()> {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = SummaryWriter::new(dir.path())?;
        let before = std::fs::metadata(writer.path()).unwrap().len() as usize;
        let pixels = Tensor::new([[[0.0, 0.5, 1.0]]], None)?;
        writer.add_image("digit", &pixels, 2)?;
        writer.flush()?;
        let file = std::fs::read(writer.path()).unwrap();
        let event = fields(&file[before + 12..file.len() - 4]);
        let value = fields(&fields(&event.iter().find(|(number, ..)| *number == 5).unwrap().2)[0].2);
        assert_eq!(value[0].2, b"digit");
        let image = fields(&value[1].2);
        assert_eq!([0, 1, 2].map(|i| image[i].1), [1, 3, 1]);
        let read = image::load_from_memory(&image[3].2).unwrap();
        assert_eq!(read.to_luma8().into_raw(), [0, 128, 255]);
        assert!(writer.add_image("digit", &Tensor::zeros([2, 3, 3], None)?, 0).is_err());
        Ok(())
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
