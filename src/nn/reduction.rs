//! How the losses of single elements become one number.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{named, of_sums};
use crate::process_group::{mean, sum, weighted_mean};
use crate::tensor::Tensor;

/// How the losses of single elements are combined.
///
/// In a step on several devices ([`DataParallel`](crate::DataParallel), [`Pipeline`](crate::Pipeline), several
/// processes), a loss function sees one part of the batch. Losses that are combined by this type are then losses of the
/// whole batch: the mean is over all elements of all parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// The mean, a scalar.
    #[default]
    Mean,
    /// The sum, a scalar. In a step on several devices, this is an error unless the net was told that its losses are
    /// sums ([`DataParallel::with_summed_losses`](crate::DataParallel::with_summed_losses)). If you need a sum divided
    /// by the number of samples, add up the losses of [`Reduction::None`] and divide them by the part's number of
    /// samples.
    Sum,
    /// No reduction: one loss per element.
    None,
}

impl Reduction {
    /// Combines the losses of single elements, of any float type and shape. Use it for custom losses.
    ///
    /// Within a step on several devices, the result is this part's term of the mean over all parts.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for [`Reduction::Sum`] in a step whose losses are means; [`Error::DTypeMismatch`]
    /// unless the losses are floats.
    ///
    /// ```
    /// use anygpu::{Tensor, nn::Reduction};
    ///
    /// let (x, y) = (Tensor::new([1.0, 5.0], None)?, Tensor::new([0.0, 2.0], None)?);
    /// let log_cosh = (&x - &y)?.cosh()?.log()?;
    /// let loss = Reduction::Mean.reduce(&log_cosh)?;
    /// assert!((loss.item::<f32>()? - log_cosh.mean_all()?.item::<f32>()?).abs() < 1e-6);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn reduce(self, losses: &Tensor) -> Result<Tensor> {
        if self == Reduction::None {
            return Ok(losses.clone());
        }
        let wide = floats("reduce", losses)?;
        let reduced = if self == Reduction::Mean { mean(&wide) } else { sum(&wide) };
        reduced?.to_dtype(of_sums(losses.dtype()))
    }

    /// Combines the losses of single elements with weights, such as a mask of 0 and 1. The mean is `Σ wᵢ lᵢ / Σ wᵢ`,
    /// the sum `Σ wᵢ lᵢ`.
    ///
    /// Takes losses of any float type and shape, and weights of any type except 64-bit types. The weights must
    /// broadcast to the shape of the losses, and are moved to the losses' device. No gradient flows through the
    /// weights. If all weights are 0, the mean is NaN. A loss with weight 0 adds 0, even if it is NaN or infinite.
    ///
    /// Within a step on several devices, the result is this part's term of the mean over all parts: `Σ wᵢ` is the sum
    /// over the whole batch.
    ///
    /// # Errors
    /// The errors of [`reduce`](Reduction::reduce); [`Error::ShapeMismatch`] unless the weights broadcast to the shape
    /// of the losses.
    ///
    /// ```
    /// use anygpu::{Tensor, nn::Reduction};
    ///
    /// let losses = Tensor::new([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0]], None)?;
    /// let tokens = Tensor::new([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], None)?; // which positions are not padding
    /// assert_eq!(Reduction::Mean.reduce_weighted(&losses, &tokens)?.item::<f32>()?, 2.0);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn reduce_weighted(self, losses: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let wide = floats("reduce_weighted", losses)?;
        named("reduce_weighted", || {
            let weights = weights.detach().to(losses.device())?.to_dtype(DType::F32)?.broadcast_to(losses.shape())?;
            let counted = weights.ne(0.0)?.where_cond(&wide.mul(&weights)?, 0.0)?;
            let reduced = match self {
                Reduction::Mean => weighted_mean(&counted, &weights)?,
                Reduction::Sum => sum(&counted)?,
                Reduction::None => counted,
            };
            reduced.to_dtype(of_sums(losses.dtype()))
        })
    }
}

/// Returns losses as f32, the type in which they are added.
fn floats(op: &'static str, losses: &Tensor) -> Result<Tensor> {
    match losses.dtype() {
        DType::F32 | DType::F16 | DType::BF16 => losses.to_dtype(DType::F32),
        other => {
            Err(Error::DTypeMismatch { op, expected: "losses of f32, f16 or bf16".into(), got: other.to_string() })
        }
    }
}
