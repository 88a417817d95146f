//! What a net is trained and measured by.

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The cross-entropy of a batch, averaged: `−(1/N) Σₙ log softmax(logits)[n, labels[n]]`. A scalar.
///
/// `logits: [N, classes]` f32, *not* yet through a softmax; `labels: [N]` u32, each below the number of classes.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] or [`Error::DeviceMismatch`] when the two do not fit.
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn};
///
/// let logits = Tensor::zeros([2, 10], None)?; // all ten classes equally likely
/// let labels = Tensor::from_slice(&[3u32, 7], [2], None)?;
/// let loss = nn::cross_entropy(&logits, &labels)?.item::<f32>()?;
/// assert!((loss - 10f32.ln()).abs() < 1e-6);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    logits.cross_entropy(labels)
}

/// How many rows of `logits: [N, classes]` have their greatest value at their label, `labels: [N]` u32.
/// Reads back N numbers; the two may be on different devices.
///
/// # Errors
/// [`Error::ShapeMismatch`] when there is not one label per row.
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn};
///
/// let logits = Tensor::from_slice(&[0.1f32, 0.9, 0.8, 0.2], [2, 2], None)?;
/// let labels = Tensor::from_slice(&[1u32, 1], [2], None)?;
/// assert_eq!(nn::correct(&logits, &labels)?, 1);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn correct(logits: &Tensor, labels: &Tensor) -> Result<usize> {
    if logits.rank() != 2 || labels.shape() != &logits.shape()[..1] {
        let rule = "one label per row of logits: [N, classes] and [N]";
        return Err(Error::shapes("correct", logits.shape(), labels.shape(), rule));
    }
    let predicted = logits.detach().argmax(1)?.to_vec::<u32>()?;
    Ok(predicted.iter().zip(labels.to_vec::<u32>()?).filter(|(p, label)| **p == *label).count())
}
