//! Element-wise losses between two tensors of the same shape.

mod ctc;
mod soft_targets;

pub use ctc::{CTCLoss, ctc_loss};
pub use soft_targets::soft_cross_entropy;

use super::Reduction;
use super::loss::f32s;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{named, of_sums};
use crate::tensor::Tensor;

/// Returns the loss of each pair of elements, computed in f32, reduced, and converted to the type of `input`.
fn between(
    op: &'static str,
    input: &Tensor,
    target: &Tensor,
    reduction: Reduction,
    loss: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if input.shape() != target.shape() {
        return Err(Error::shapes(op, input.shape(), target.shape(), "input and target must have the same shape"));
    }
    named(op, || reduction.reduce(&loss(&f32s(op, input)?, &f32s(op, target)?)?)?.to_dtype(of_sums(input.dtype())))
}

/// Returns the squared error `(input − target)²` of each pair of elements, reduced.
///
/// Takes two float tensors of the same shape. Returns a scalar, or that shape with [`Reduction::None`].
///
/// In a step on several devices, a reduced loss is the loss of the whole batch: see [`Reduction`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] or [`Error::DeviceMismatch`] if the shapes, types or devices do
/// not fit.
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{self, Reduction}};
///
/// let (x, y) = (Tensor::new([1.0, 5.0], None)?, Tensor::new([0.0, 2.0], None)?);
/// assert_eq!(nn::mse_loss(&x, &y, Reduction::Mean)?.item::<f32>()?, 5.0);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn mse_loss(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    between("mse_loss", input, target, reduction, |x, y| x.sub(y)?.square())
}

/// Returns the absolute error `|input − target|` of each pair of elements, reduced.
///
/// Its gradient is 0 where they are equal.
///
/// Takes two float tensors of the same shape. Returns a scalar, or that shape with [`Reduction::None`].
///
/// In a step on several devices, a reduced loss is the loss of the whole batch: see [`Reduction`].
///
/// # Errors
/// Same as [`mse_loss`].
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{self, Reduction}};
///
/// let (x, y) = (Tensor::new([1.0, 5.0], None)?, Tensor::new([2.0, 2.0], None)?);
/// assert_eq!(nn::l1_loss(&x, &y, Reduction::None)?.to_vec::<f32>()?, [1.0, 3.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn l1_loss(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    between("l1_loss", input, target, reduction, |x, y| x.sub(y)?.abs())
}

/// Returns the smooth L1 loss.
///
/// With the absolute error d, it is `d² / (2 beta)` where d is below `beta`, else `d − beta / 2`. PyTorch's default
/// beta is 1. With a beta of 0 it is [`l1_loss`].
///
/// Takes two float tensors of the same shape. Returns a scalar, or that shape with [`Reduction::None`].
///
/// In a step on several devices, a reduced loss is the loss of the whole batch: see [`Reduction`].
///
/// # Errors
/// [`Error::InvalidArgument`] if beta is negative; otherwise the errors of [`mse_loss`].
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{self, Reduction}};
///
/// let (x, y) = (Tensor::new([0.5, 5.0], None)?, Tensor::new([0.0, 2.0], None)?);
/// assert_eq!(nn::smooth_l1_loss(&x, &y, 1.0, Reduction::None)?.to_vec::<f32>()?, [0.125, 2.5]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn smooth_l1_loss(input: &Tensor, target: &Tensor, beta: f32, reduction: Reduction) -> Result<Tensor> {
    if beta == 0.0 {
        return named("smooth_l1_loss", || l1_loss(input, target, reduction));
    }
    smooth("smooth_l1_loss", input, target, [beta, 1.0 / beta], reduction)
}

/// Returns the Huber loss.
///
/// With the absolute error d, it is `d² / 2` where d is below `delta`, else `delta · (d − delta / 2)`. PyTorch's
/// default delta is 1.
///
/// Takes two float tensors of the same shape. Returns a scalar, or that shape with [`Reduction::None`].
///
/// In a step on several devices, a reduced loss is the loss of the whole batch: see [`Reduction`].
///
/// # Errors
/// [`Error::InvalidArgument`] unless delta is positive; otherwise the errors of [`mse_loss`].
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{self, Reduction}};
///
/// let (x, y) = (Tensor::new([1.0, 5.0], None)?, Tensor::new([0.0, 1.0], None)?);
/// assert_eq!(nn::huber_loss(&x, &y, 2.0, Reduction::None)?.to_vec::<f32>()?, [0.5, 6.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn huber_loss(input: &Tensor, target: &Tensor, delta: f32, reduction: Reduction) -> Result<Tensor> {
    smooth("huber_loss", input, target, [delta, 1.0], reduction)
}

/// Returns `m · (d − m / 2) · scale` with m = min(d, bound).
fn smooth(
    op: &'static str,
    input: &Tensor,
    target: &Tensor,
    [bound, scale]: [f32; 2],
    reduction: Reduction,
) -> Result<Tensor> {
    if bound.is_nan() || bound <= 0.0 {
        return Err(Error::argument(op, format!("the error's bound {bound} is not positive")));
    }
    between(op, input, target, reduction, |x, y| {
        let d = x.sub(y)?.abs()?;
        let m = d.clamp(None, Some(bound))?;
        m.mul(&d.sub(&m.mul_scalar(0.5)?)?)?.mul_scalar(scale)
    })
}

/// Returns the binary cross-entropy of logits x and targets y between 0 and 1, without overflow:
/// `−y · log σ(x) − (1 − y) · log σ(−x)`.
///
/// Takes two float tensors of the same shape. Returns a scalar, or that shape with [`Reduction::None`]. If given,
/// `pos_weight` multiplies the first term. It is moved to the device of the input and broadcast to that shape.
///
/// In a step on several devices, a reduced loss is the loss of the whole batch: see [`Reduction`].
///
/// # Errors
/// Same as [`mse_loss`].
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{self, Reduction}};
///
/// let (x, y) = (Tensor::new([0.0, -200.0], None)?, Tensor::new([1.0, 1.0], None)?);
/// let loss = nn::bce_with_logits(&x, &y, None, Reduction::None)?.to_vec::<f32>()?;
/// assert!((loss[0] - 2f32.ln()).abs() < 1e-6 && loss[1] == 200.0);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn bce_with_logits(
    input: &Tensor,
    target: &Tensor,
    pos_weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    between("bce_with_logits", input, target, reduction, |x, y| {
        // (1 − y) · x − (1 + (weight − 1) · y) · log σ(x), since log σ(−x) = log σ(x) − x.
        let mut likelihood = x.log_sigmoid()?;
        if let Some(weight) = pos_weight {
            let more = f32s("bce_with_logits", &weight.to(x.device())?)?.add_scalar(-1.0)?;
            likelihood = likelihood.mul(&y.mul(&more)?.add_scalar(1.0)?)?;
        }
        x.sub(&x.mul(y)?)?.sub(&likelihood)
    })
}

/// Returns the Kullback–Leibler divergence of log-probabilities `input` from probabilities `target`:
/// `target · (log target − input)`, or 0 where the target is 0.
///
/// Takes two float tensors of the same shape. Returns a scalar, or that shape with [`Reduction::None`]. The mean is
/// over all elements, as in PyTorch. For the divergence averaged over a batch (PyTorch's `batchmean`), divide the sum
/// by N. In a step on several devices, add up the losses of [`Reduction::None`] and divide by the part's N.
///
/// In a step on several devices, a reduced loss is the loss of the whole batch: see [`Reduction`].
///
/// # Errors
/// Same as [`mse_loss`].
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{self, Reduction}};
///
/// let p = Tensor::new([0.5, 0.5, 0.0], None)?;
/// let q = Tensor::new([0.25, 0.25, 0.5], None)?;
/// let divergence = nn::kl_div(&q.log()?, &p, Reduction::Sum)?.item::<f32>()?;
/// assert!((divergence - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn kl_div(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    between("kl_div", input, target, reduction, |x, y| {
        let zero = y.detach().eq(&Tensor::zeros((), y.device())?)?.to_dtype(DType::F32)?;
        y.mul(&y.add(&zero)?.log()?.sub(x)?)
    })
}
