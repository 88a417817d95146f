//! The IDX format of MNIST and Fashion-MNIST, plain or gzip.
//!
//! ```text
//! 0  u8 0, u8 0, u8 element type (8 = unsigned byte), u8 rank        the magic number
//! 4  rank × u32, big-endian                                          the dimensions, outermost first
//!    one byte per element, innermost dimension first                 the pixels, or the labels
//! ```
//!
//! Magic number, dimensions, length and labels of a file are all checked. Memory is allocated as data is read, up to
//! the [`Limits`], so neither a damaged header nor a small gzip file can take 70 GB.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::image_set::{CLASSES, ImageSet};
use super::limits::{Limits, damaged, open};
use crate::error::Result;

const IMAGES: u32 = 0x0000_0803;
const LABELS: u32 = 0x0000_0801;

impl ImageSet {
    /// Reads a set from the bytes of its two files, gzip or plain. The names are used in error messages only.
    ///
    /// # Errors
    /// [`Error::Data`](crate::Error::Data) that names the file if it is damaged, of another kind or empty, if there are
    /// not as many labels as images, if a label is not below [`CLASSES`], or if a file exceeds the default [`Limits`].
    ///
    /// # Example
    /// ```
    /// use anygpu::data::ImageSet;
    ///
    /// let images = [0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 10, 20, 30, 40]; // one image of 2 × 2
    /// let labels = [0, 0, 8, 1, 0, 0, 0, 1, 7];
    /// let set = ImageSet::parse(("images", &images), ("labels", &labels))?;
    /// assert_eq!((set.n, set.c, set.h, set.w, set.labels[0]), (1, 1, 2, 2, 7));
    ///
    /// let error = ImageSet::parse(("images", &images[..19]), ("labels", &labels)).unwrap_err();
    /// assert_eq!(error.to_string(), "images: the data ends after 3 of 4 bytes (dimensions [1, 2, 2])");
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn parse(images: (&str, &[u8]), labels: (&str, &[u8])) -> Result<ImageSet> {
        ImageSet::parse_within(images, labels, Limits::new())
    }

    /// Reads a set like [`parse`](ImageSet::parse), with other limits.
    ///
    /// # Errors
    /// The errors of [`parse`](ImageSet::parse).
    pub fn parse_within(images: (&str, &[u8]), labels: (&str, &[u8]), limits: Limits) -> Result<ImageSet> {
        let image = parse(images.0, images.1, IMAGES, limits)?;
        assembled((images.0, image), (labels.0, parse(labels.0, labels.1, LABELS, limits)?))
    }

    /// Reads a set from its two files, gzip or plain (recognised by their first bytes, not by their names).
    ///
    /// # Errors
    /// [`Error::Data`](crate::Error::Data) if a file cannot be read; the errors of [`parse`](ImageSet::parse).
    pub fn read(images: &Path, labels: &Path) -> Result<ImageSet> {
        ImageSet::read_within(images, labels, Limits::new())
    }

    /// Reads a set like [`read`](ImageSet::read), with other limits.
    ///
    /// # Errors
    /// The errors of [`read`](ImageSet::read).
    pub fn read_within(images: &Path, labels: &Path, limits: Limits) -> Result<ImageSet> {
        let read =
            |path: &Path, magic| parse(&path.display().to_string(), BufReader::new(open(path)?.0), magic, limits);
        let (image, label) = (read(images, IMAGES)?, read(labels, LABELS)?);
        assembled((&images.display().to_string(), image), (&labels.display().to_string(), label))
    }
}

/// The elements and the dimensions of a file.
type Elements = (Vec<u8>, Vec<usize>);

/// Makes a set from the elements of two files, which must fit each other.
fn assembled((image_name, image): (&str, Elements), (label_name, label): (&str, Elements)) -> Result<ImageSet> {
    let ((images, dims), (labels, count)) = (image, label);
    let (n, h, w) = (dims[0], dims[1], dims[2]);
    if count[0] != n {
        return Err(damaged(label_name, format!("{} labels for the {n} images of {image_name}", count[0])));
    }
    if let Some(i) = labels.iter().position(|&label| usize::from(label) >= CLASSES) {
        return Err(damaged(label_name, format!("label {i} is {}, not one of 0 to {}", labels[i], CLASSES - 1)));
    }
    Ok(ImageSet { images, labels, n, c: 1, h, w })
}

/// Returns the elements and the dimensions of one IDX file of unsigned bytes. Its magic number must be `magic`.
fn parse(name: &str, mut file: impl BufRead, magic: u32, limits: Limits) -> Result<Elements> {
    // A buffered reader's first buffer has more than two bytes, unless the file does not.
    let start = file.fill_buf().map_err(|error| damaged(name, error.to_string()))?;
    if start.starts_with(&[0x1f, 0x8b]) {
        parse_stream(name, flate2::bufread::MultiGzDecoder::new(file), magic, limits)
    } else {
        parse_stream(name, file, magic, limits)
    }
}

fn parse_stream(name: &str, mut stream: impl Read, magic: u32, limits: Limits) -> Result<Elements> {
    let mut header = |what: &str| {
        let mut word = [0; 4];
        stream.read_exact(&mut word).map_err(|e| damaged(name, format!("no {what}: {e}")))?;
        Ok(u32::from_be_bytes(word))
    };
    let found = header("magic number")?;
    if found != magic {
        return Err(damaged(name, wrong_magic(found, magic)));
    }
    let dims = (0..magic & 0xff).map(|_| Ok(header("dimensions")? as usize)).collect::<Result<Vec<usize>>>()?;
    let len = dims.iter().try_fold(1usize, |product, &d| product.checked_mul(d));
    let len = len
        .filter(|&len| len < isize::MAX as usize)
        .ok_or_else(|| damaged(name, format!("dimensions {dims:?} are impossibly large")))?;
    if len == 0 {
        return Err(damaged(name, format!("the file is empty (dimensions {dims:?})")));
    }
    if let [_, h, w] = dims[..] {
        limits.check_pixels(name, h, w)?;
    }
    limits.check_bytes(name, len)?;
    let mut data = Vec::new();
    // One byte more than the header announces, to find trailing bytes.
    let read = read_at_most(stream, &mut data, len + 1);
    read.map_err(|e| damaged(name, format!("damaged after {} of {len} bytes: {e}", data.len())))?;
    match data.len() {
        read if read < len => {
            Err(damaged(name, format!("the data ends after {read} of {len} bytes (dimensions {dims:?})")))
        }
        read if read > len => Err(damaged(name, format!("bytes trail the {len} of the dimensions {dims:?}"))),
        _ => Ok((data, dims)),
    }
}

/// Appends `most` bytes, or all if there are fewer. The memory grows with the data that was read, and never beyond
/// `most` bytes.
fn read_at_most(mut stream: impl Read, data: &mut Vec<u8>, most: usize) -> std::io::Result<()> {
    while data.len() < most {
        if data.len() == data.capacity() {
            data.try_reserve_exact(data.len().max(1 << 16).min(most - data.len()))?;
        }
        let room = data.capacity().min(most) - data.len();
        if stream.by_ref().take(room as u64).read_to_end(data)? == 0 {
            break;
        }
    }
    Ok(())
}

fn wrong_magic(found: u32, expected: u32) -> String {
    let kind = |magic| match magic {
        IMAGES => "images",
        LABELS => "labels",
        _ => "something else than IDX images or labels of bytes",
    };
    format!(
        "the magic number is {found:#010x} ({}), not {expected:#010x} ({}): is it the right file?",
        kind(found),
        kind(expected)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Two images of 2 × 3 and their labels.
    fn good() -> (Vec<u8>, Vec<u8>) {
        let mut images = vec![0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3];
        images.extend(0..12);
        (images, vec![0, 0, 8, 1, 0, 0, 0, 2, 9, 0])
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(images: &[u8], labels: &[u8]) -> Result<ImageSet> {
        ImageSet::parse(("images", images), ("labels", labels))
    }

    #[test]
    fn plain_and_gzip_read_the_same() {
        let (images, labels) = good();
        let set = read(&images, &labels).unwrap();
        assert_eq!((set.n, set.h, set.w), (2, 2, 3));
        assert_eq!(set.images, (0..12).collect::<Vec<u8>>());
        assert_eq!(set.labels, [9, 0]);
        assert_eq!(read(&gzip(&images), &gzip(&labels)).unwrap(), set);
    }

    /// Each kind of damage, and a part of its message.
    #[test]
    fn damaged_files_are_named_and_described() {
        type Damage = fn(&mut Vec<u8>, &mut Vec<u8>);
        let cases: [(&str, Damage, &str); 13] = [
            ("empty file", |i, _| i.clear(), "images: no magic number"),
            ("header cut", |i, _| i.truncate(10), "images: no dimensions"),
            ("files exchanged", |i, l| std::mem::swap(i, l), "images: the magic number is 0x00000801 (labels)"),
            ("not IDX", |i, _| i[..4].copy_from_slice(b"<htm"), "something else than IDX"),
            ("pixels cut", |i, _| i.truncate(20), "images: the data ends after 4 of 12 bytes"),
            ("pixels trail", |i, _| i.push(1), "images: bytes trail the 12"),
            ("no images", |i, _| i[7] = 0, "images: the file is empty"),
            ("huge", |i, _| i[4..16].fill(0xff), "impossibly large"),
            ("large", |i, _| i[5] = 0x10, "the data ends after 12 of"),
            ("above the limit", |i, _| i[4] = 0x10, "and the limit is 805306368"),
            (
                "fewer labels",
                |_, l| {
                    l[7] = 1;
                    l.truncate(9)
                },
                "labels: 1 labels for the 2 images of images",
            ),
            ("bad label", |_, l| l[9] = 10, "labels: label 1 is 10, not one of 0 to 9"),
            ("label cut", |_, l| l.truncate(9), "labels: the data ends after 1 of 2 bytes"),
        ];
        for (case, damage, expected) in cases {
            let (mut images, mut labels) = good();
            damage(&mut images, &mut labels);
            for (i, l) in [(images.clone(), labels.clone()), (gzip(&images), gzip(&labels))] {
                let message = read(&i, &l).expect_err(case).to_string();
                assert!(message.contains(expected), "{case}: {message}");
            }
        }
    }

    #[test]
    fn damaged_gzip_is_an_error() {
        let (images, labels) = good();
        let whole = gzip(&images);
        for cut in 2..whole.len() {
            read(&whole[..cut], &labels).expect_err("a cut gzip file");
        }
        let mut bad_checksum = whole.clone();
        let crc = whole.len() - 8;
        bad_checksum[crc] ^= 1;
        read(&bad_checksum, &labels).expect_err("a wrong checksum");
        read(&[whole, vec![1, 2, 3]].concat(), &labels).expect_err("bytes after the gzip stream");
    }
}
