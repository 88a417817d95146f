//! The limits of decoded files, and how files are opened.

use std::fs::File;
use std::path::Path;

use crate::error::{Error, Result};

/// The size limits for decoding an image or a file.
///
/// A compressed file of a few bytes can expand to gigabytes, so sizes are compared with these limits before memory is
/// allocated.
///
/// The defaults are 67 108 864 pixels for an image, such as 8192 × 8192, and 768 MiB for the elements of an IDX or
/// CIFAR-10 file. Decoding an image takes up to 20 bytes per pixel.
///
/// ```
/// use anygpu::data::{ImageSet, Limits};
///
/// let images = [0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 10, 20, 30, 40]; // one image of 2 × 2
/// let labels = [0, 0, 8, 1, 0, 0, 0, 1, 7];
/// let within = |limits| ImageSet::parse_within(("images", &images), ("labels", &labels), limits);
/// assert!(within(Limits::new()).is_ok());
/// let error = within(Limits::new().bytes(3)).unwrap_err().to_string();
/// assert!(error.starts_with("images: it decodes to 4 bytes, and the limit is 3"), "{error}");
/// assert!(within(Limits::new().pixels(3)).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pixels: usize,
    bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { pixels: 1 << 26, bytes: 768 << 20 }
    }
}

impl Limits {
    /// Returns the default limits.
    #[must_use]
    pub fn new() -> Limits {
        Limits::default()
    }

    /// Sets the largest number of pixels (height times width) of an image.
    #[must_use]
    pub fn pixels(mut self, pixels: usize) -> Limits {
        self.pixels = pixels;
        self
    }

    /// Sets the largest number of bytes that the elements of an IDX or CIFAR-10 file may take.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Limits {
        self.bytes = bytes;
        self
    }

    /// Returns an error that names the file if an image exceeds the limit.
    pub(super) fn check_pixels(&self, name: &str, h: usize, w: usize) -> Result<()> {
        if h.checked_mul(w).is_some_and(|pixels| pixels <= self.pixels) {
            return Ok(());
        }
        let detail = format!(
            "an image of {h} × {w} pixels, and the limit is {} pixels: raise it for files that you \
             trust (data::Limits::pixels, --max-pixels)",
            self.pixels
        );
        Err(damaged(name, detail))
    }

    /// Returns an error that names the file if its elements exceed the limit.
    pub(super) fn check_bytes(&self, name: &str, bytes: usize) -> Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let detail = format!(
            "it decodes to {bytes} bytes, and the limit is {}: raise it for files that you trust \
             (data::Limits::bytes, --max-bytes)",
            self.bytes
        );
        Err(damaged(name, detail))
    }

    /// Returns the size of the largest image file: its pixels uncompressed, and room for profiles and comments.
    #[cfg(feature = "image")]
    pub(super) fn image_bytes(&self) -> u64 {
        (self.pixels as u64).saturating_mul(8).saturating_add(64 << 20)
    }
}

pub(super) fn damaged(name: &str, detail: impl Into<String>) -> Error {
    Error::Data { path: name.to_string(), detail: detail.into() }
}

/// Opens a regular file and returns its length.
pub(super) fn open(path: &Path) -> Result<(File, u64)> {
    crate::util::regular_file::open(path).map_err(|error| damaged(&path.display().to_string(), error.to_string()))
}
