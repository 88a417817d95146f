//! Losses for classification.

use super::Reduction;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::long::cast::labels_as_words;
use crate::ops::long::refuse;
use crate::ops::nll::Labelled;
use crate::ops::{named, of_sums};
use crate::process_group::weighted_mean;
use crate::tensor::Tensor;

/// Returns the mean cross-entropy of a batch, `−(1/N) Σₙ log softmax(logits)[n, labels[n]]`, as a scalar.
///
/// `logits: [N, classes, ..]` are floats *before* any softmax. `labels: [N, ..]` are u32, i32, u8 or i64, each below the
/// number of classes. [`CrossEntropyLoss`] has options.
///
/// In a step on several devices, a reduced loss is the loss of the whole batch: see [`Reduction`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] or [`Error::DeviceMismatch`] if the shapes, types or devices do
/// not fit.
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

/// The cross-entropy with options.
///
/// For the logits x of one position, its label y, the class weights w (1 by default), the smoothing ε (0 by default)
/// and C classes, the loss is:
///
/// `(1 − ε) · w[y] · (−log softmax(x)[y]) + ε/C · Σ_c w[c] · (−log softmax(x)[c])`
///
/// The mean divides the sum of these by `Σ w[y]` over the labels that are not ignored, as in PyTorch. In a step on
/// several devices, the labels of the whole batch count. If all labels are ignored, the mean is NaN.
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{CrossEntropyLoss, Reduction}};
///
/// let logits = Tensor::zeros([3, 10], None)?; // all ten classes equally likely
/// let labels = Tensor::from_slice(&[3, -1, 7], [3], None)?;
/// let loss = CrossEntropyLoss::new().ignore_index(-1).label_smoothing(0.1).forward(&logits, &labels)?;
/// assert!((loss.item::<f32>()? - 10f32.ln()).abs() < 1e-6);
/// let each = CrossEntropyLoss::new().ignore_index(-1).reduction(Reduction::None).forward(&logits, &labels)?;
/// assert_eq!(each.to_vec::<f32>()?[1], 0.0);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct CrossEntropyLoss {
    reduction: Reduction,
    ignored: Option<i64>,
    smoothing: f32,
    weight: Option<Tensor>,
}

impl CrossEntropyLoss {
    /// Creates the loss with its defaults: the mean over all labels, without smoothing.
    pub fn new() -> CrossEntropyLoss {
        CrossEntropyLoss::default()
    }

    /// Sets how the losses of the positions are combined.
    pub fn reduction(mut self, reduction: Reduction) -> CrossEntropyLoss {
        self.reduction = reduction;
        self
    }

    /// Ignores positions with this label. PyTorch ignores −100 by default; here no label is ignored by default.
    pub fn ignore_index(mut self, label: i64) -> CrossEntropyLoss {
        self.ignored = Some(label);
        self
    }

    /// Sets the label smoothing ε: the part of the target that is distributed over all classes, between 0 and 1.
    pub fn label_smoothing(mut self, smoothing: f32) -> CrossEntropyLoss {
        self.smoothing = smoothing;
        self
    }

    /// Sets the weights of the classes, `[C]`. They are moved to the device of the logits.
    pub fn weight(mut self, weight: Tensor) -> CrossEntropyLoss {
        self.weight = Some(weight);
        self
    }

    /// Returns the loss of `logits: [N, C, ..]` and `labels: [N, ..]`: a scalar, or `[N, ..]` without reduction.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] or [`Error::DeviceMismatch`] if the shapes, types or devices
    /// do not fit; [`Error::InvalidArgument`] for a smoothing outside 0 to 1 and for a label that is not a class. An
    /// adapter reports such a label at the next call that waits for it, and the loss is NaN.
    pub fn forward(&self, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
        named("cross_entropy", || match &self.weight {
            Some(weight) if weight.device() != logits.device() => {
                let weight = Some(weight.detach().to(logits.device())?);
                CrossEntropyLoss { weight, ..self.clone() }.of_logits(logits, labels)
            }
            _ => self.of_logits(logits, labels),
        })
    }

    fn of_logits(&self, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&self.smoothing) {
            let detail = format!("label smoothing {} is not between 0 and 1", self.smoothing);
            return Err(Error::argument("cross_entropy", detail));
        }
        if logits.rank() < 2 {
            let detail = "logits must be [N, C, ..] and labels [N, ..]";
            return Err(Error::shapes("cross_entropy", logits.shape(), labels.shape(), detail));
        }
        let wide = f32s("cross_entropy", logits)?;
        let loss = if self.smoothing > 0.0 {
            self.of(&wide.log_softmax(1)?, labels)?
        } else {
            let labelled = Labelled::new(&wide, labels, self.weight.as_ref(), self.ignored)?;
            self.reduced(&labelled.cross_entropy(&wide)?, &labelled)?
        };
        loss.to_dtype(of_sums(logits.dtype()))
    }

    /// Returns the loss for f32 log-probabilities.
    fn of(&self, x: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let labelled = Labelled::new(x, labels, self.weight.as_ref(), self.ignored)?;
        let mut losses = labelled.losses(x)?;
        if self.smoothing > 0.0 {
            losses = losses.mul_scalar(1.0 - self.smoothing)?.add(&self.spread(x, &labelled)?)?;
        }
        self.reduced(&losses, &labelled)
    }

    /// Combines the losses of the positions.
    fn reduced(&self, losses: &Tensor, labelled: &Labelled) -> Result<Tensor> {
        let alike = self.weight.is_none() && self.ignored.is_none();
        if alike || self.reduction != Reduction::Mean {
            return self.reduction.reduce(losses);
        }
        weighted_mean(losses, &labelled.weights(false)?)
    }

    /// Returns `ε/C · Σ_c w[c] · (−x[c])`, or 0 where the label is ignored.
    fn spread(&self, x: &Tensor, labelled: &Labelled) -> Result<Tensor> {
        let classes = x.shape()[1];
        let weighted = match &self.weight {
            Some(weight) => {
                let mut shape = vec![1; x.rank()];
                shape[1] = classes;
                x.mul(&weight.detach().to_dtype(DType::F32)?.reshape(shape)?)?
            }
            None => x.clone(),
        };
        let spread = weighted.sum([1], false)?.mul_scalar(-self.smoothing / classes as f32)?;
        if self.ignored.is_some() { labelled.weights(true)?.where_cond(&spread, 0.0) } else { Ok(spread) }
    }
}

/// Returns the negative log-likelihood `−log_probs[n, labels[n]]`.
///
/// The input is the result of a log-softmax.
///
/// `log_probs: [N, C, ..]`, `labels: [N, ..]` → a scalar, or `[N, ..]` without reduction.
///
/// In a step on several devices, a reduced loss is the loss of the whole batch: see [`Reduction`].
///
/// # Errors
/// Same as [`CrossEntropyLoss::forward`].
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{self, Reduction}};
///
/// let log_probs = Tensor::new([[-0.5, -1.0], [-2.0, -0.25]], None)?;
/// let loss = nn::nll_loss(&log_probs, &Tensor::new([0u32, 1], None)?, Reduction::Sum)?;
/// assert_eq!(loss.item::<f32>()?, 0.75);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn nll_loss(log_probs: &Tensor, labels: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let x = f32s("nll_loss", log_probs)?;
    let loss = CrossEntropyLoss::new().reduction(reduction);
    named("nll_loss", || loss.of(&x, labels)?.to_dtype(of_sums(log_probs.dtype())))
}

/// Returns floats as f32, the type in which losses are computed.
pub(super) fn f32s(op: &'static str, x: &Tensor) -> Result<Tensor> {
    refuse(op, [x])?;
    if x.dtype().is_float() {
        return x.to_dtype(DType::F32);
    }
    Err(Error::DTypeMismatch { op, expected: "a float type".into(), got: x.dtype().to_string() })
}

/// Returns the number of rows of `logits: [N, classes]` whose greatest value is at their label in `labels: [N]` (u32).
///
/// Reads back N numbers. The two tensors may be on different devices.
///
/// # Errors
/// [`Error::ShapeMismatch`] if there is not one label per row.
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
        let rule = "there must be one label per row of logits: [N, classes] and [N]";
        return Err(Error::shapes("correct", logits.shape(), labels.shape(), rule));
    }
    let predicted = named("correct", || logits.detach().argmax(1))?.to_vec::<u32>()?;
    Ok(predicted
        .iter()
        .zip(labels_as_words("correct", labels)?.to_vec::<u32>()?)
        .filter(|(p, label)| **p == *label)
        .count())
}
