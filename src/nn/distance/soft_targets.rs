//! The cross-entropy of targets that are probabilities.

use crate::error::{Error, Result};
use crate::nn::Reduction;
use crate::nn::loss::f32s;
use crate::ops::{named, of_sums};
use crate::tensor::Tensor;

/// Returns the cross-entropy of logits and class probabilities, reduced.
///
/// The loss of each position is `−Σ_c probabilities[c] · log softmax(logits)[c]`. Use it for targets that are mixtures,
/// as with mixup, or outputs of another net. [`cross_entropy`] takes labels.
///
/// Both inputs are floats `[N, C, ..]`. Returns a scalar (the mean is over all positions, as in PyTorch), or `[N, ..]`
/// with [`Reduction::None`]. The probabilities of a position need not add up to 1. Both inputs get a gradient.
///
/// [`cross_entropy`]: crate::nn::cross_entropy
///
/// # Errors
/// [`Error::ShapeMismatch`] unless both have the same shape with at least two dimensions; [`Error::DTypeMismatch`] or
/// [`Error::DeviceMismatch`] if the types or devices do not fit.
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{self, Reduction}};
///
/// let logits = Tensor::zeros([1, 4], None)?; // all four classes equally likely
/// let mixed = Tensor::new([[0.5, 0.5, 0.0, 0.0]], None)?;
/// let loss = nn::soft_cross_entropy(&logits, &mixed, Reduction::Mean)?.item::<f32>()?;
/// assert!((loss - 4f32.ln()).abs() < 1e-6);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn soft_cross_entropy(logits: &Tensor, probabilities: &Tensor, reduction: Reduction) -> Result<Tensor> {
    const NAME: &str = "soft_cross_entropy";
    if logits.rank() < 2 || logits.shape() != probabilities.shape() {
        let rule = "logits and probabilities are both [N, C, ..]";
        return Err(Error::shapes(NAME, logits.shape(), probabilities.shape(), rule));
    }
    named(NAME, || {
        let (x, p) = (f32s(NAME, logits)?, f32s(NAME, probabilities)?);
        let losses = x.log_softmax(1)?.mul(&p)?.sum(1, false)?.neg()?;
        reduction.reduce(&losses)?.to_dtype(of_sums(logits.dtype()))
    })
}
