//! What a reduction computes, and of which elements.

use super::exchange::Reduction;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::combine::Combine;
use crate::tensor::Tensor;

/// How a reduction combines the elements at the same position of all tensors.
///
/// The tensors are combined in the order of the list, so repeated calls give the same bits.
///
/// 16-bit floats are widened to f32 on their devices, reduced in f32, and rounded once at the end. Integers wrap
/// around, and have no means.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum.
    #[default]
    Sum,
    /// The mean.
    Mean,
    /// The mean, weighted by one non-negative number for each tensor. With the numbers of samples that the devices have
    /// processed as weights, the mean of their gradients is the gradient of the whole batch.
    WeightedMean(Vec<f64>),
    /// The product.
    Product,
    /// The minimum, or NaN if an element is NaN.
    Min,
    /// The maximum, or NaN if an element is NaN.
    Max,
}

impl ReduceOp {
    /// Returns the reduction of these tensors for the function `op`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] or [`Error::DTypeMismatch`] if the tensors differ, [`Error::DTypeMismatch`] for a type that has no
    /// arithmetic, [`Error::InvalidArgument`] for means of whole numbers and wrong weights.
    pub(super) fn of(&self, op: &'static str, tensors: &[Tensor]) -> Result<Reduction> {
        let Some(first) = tensors.first() else { return Err(Error::argument(op, "there are no tensors")) };
        if let Some(other) = tensors.iter().find(|tensor| tensor.shape() != first.shape()) {
            return Err(Error::shapes(op, first.shape(), other.shape(), "all shapes must be equal"));
        }
        if let Some(other) = tensors.iter().find(|tensor| tensor.dtype() != first.dtype()) {
            let (expected, got) = (first.dtype().to_string(), other.dtype().to_string());
            return Err(Error::DTypeMismatch { op, expected, got });
        }
        let dtype = match first.dtype() {
            float if float.is_float() && !float.is_long() => DType::F32,
            whole @ (DType::I32 | DType::U32) => whole,
            other => {
                return Err(Error::DTypeMismatch {
                    op,
                    expected: "f32, f16, bf16, i32 or u32".into(),
                    got: other.to_string(),
                });
            }
        };
        let equal = |weight: f32| vec![weight; tensors.len()];
        let (how, weights) = match self {
            ReduceOp::Sum => (Combine::Add, equal(1.0)),
            ReduceOp::Product => (Combine::Multiply, equal(1.0)),
            ReduceOp::Min => (Combine::Min, equal(1.0)),
            ReduceOp::Max => (Combine::Max, equal(1.0)),
            ReduceOp::Mean => (Combine::Add, equal(1.0 / tensors.len() as f32)),
            ReduceOp::WeightedMean(weights) => (Combine::Add, normalised(op, weights, tensors.len())?),
        };
        if dtype != DType::F32 && matches!(self, ReduceOp::Mean | ReduceOp::WeightedMean(_)) {
            let detail = format!("the mean of {dtype} would not be an integer: convert to f32, or use ReduceOp::Sum");
            return Err(Error::argument(op, detail));
        }
        Ok(Reduction { dtype, how, weights })
    }
}

/// Returns the weights divided by their sum.
fn normalised(op: &'static str, weights: &[f64], tensors: usize) -> Result<Vec<f32>> {
    let total: f64 = weights.iter().sum();
    let valid = weights.len() == tensors && weights.iter().all(|w| *w >= 0.0) && total > 0.0 && total.is_finite();
    if !valid {
        let detail =
            format!("{tensors} tensors and weights {weights:?}: there must be one weight ≥ 0 per tensor, not all 0");
        return Err(Error::argument(op, detail));
    }
    Ok(weights.iter().map(|weight| (weight / total) as f32).collect())
}
