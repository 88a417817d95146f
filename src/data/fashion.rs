//! Fashion-MNIST: 70 000 grey images of clothes of 28 × 28 in ten classes, in the format of MNIST.
//!
//! Fashion-MNIST is by H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine
//! learning algorithms", 2017.

use std::path::Path;

use super::Limits;
use super::image_set::CLASSES;
use super::splits::{Splits, from_idx};
use crate::error::{Error, Result};

/// Where the files are.
pub(super) const SOURCE: &str = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com";

/// The names of Fashion-MNIST's classes, by label.
pub const FASHION_MNIST_CLASSES: [&str; CLASSES] =
    ["t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"];

/// Reads Fashion-MNIST from a folder with its four files, as [`from_dir`](super::from_dir) does.
///
/// With the feature `download`, `download_fashion_mnist` fetches the files and returns their folder.
///
/// # Errors
/// [`Error::Data`] that names the file that is missing, damaged or larger than the default [`Limits`], and what is
/// wrong with it.
///
/// ```
/// let error = anygpu::data::fashion_mnist("/nowhere").unwrap_err().to_string();
/// assert!(error.starts_with("/nowhere: there is neither train-images-idx3-ubyte.gz nor"), "{error}");
/// ```
pub fn fashion_mnist(dir: impl AsRef<Path>) -> Result<Splits> {
    let dir = dir.as_ref();
    from_idx(dir, Limits::new()).map_err(|error| match error {
        Error::Data { path, detail } if path == dir.display().to_string() => {
            let remedy = format!(
                "the four files of Fashion-MNIST are at {SOURCE}, and data::download_fashion_mnist fetches them \
                 (feature `download`)"
            );
            Error::Data { path, detail: format!("{detail}; {remedy}") }
        }
        other => other,
    })
}
