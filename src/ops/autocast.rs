//! Mixed precision: which ops round what they are given to halves, for a thread and a time.

use crate::context::{self, Restore};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{Casting, Elements};
use crate::tensor::Tensor;

/// Sets the type of products on this thread until the guard is dropped; `None` is that of their operands.
pub(crate) fn products(dtype: Option<DType>) -> Restore<Option<DType>> {
    context::set(|context| &mut context.autocast, dtype)
}

/// The type of products on this thread, if it is another than their operands'.
fn set_products() -> Option<DType> {
    context::read(|context| context.autocast)
}

/// Runs `f` with matrix products and convolutions on halves, as PyTorch's `autocast` does: f32 operands are rounded to
/// `dtype` (`F16` or `BF16`; `F32` switches it off within another), on this thread and on the threads that work for it:
/// those of a [`DataParallel`](crate::DataParallel) and of a [`DataLoader`](crate::data::DataLoader).
///
/// Parameters stay f32, and their gradients are f32. Softmax, sums, means and losses take halves as f32 and give f32; all
/// else computes in the type of what it gets, and where halves meet f32, in f32. Put the forward pass and the loss into
/// `f`, and call [`backward`](Tensor::backward) after it. With `F16`, small gradients vanish: see
/// [`GradScaler`](crate::optim::GradScaler). Halves are storage, and sums are f32 sums on every device: this saves memory for
/// what the backward pass keeps, not arithmetic.
///
/// # Errors
/// [`Error::InvalidArgument`] for any other type; those of `f`.
///
/// ```
/// use anygpu::nn::{self, Linear, Module};
/// use anygpu::{DType, Tensor, autocast};
///
/// let layer = Linear::new(4, 2)?;
/// let (x, labels) = (Tensor::rand([3, 4], None)?, Tensor::try_from([0u32, 1, 1])?);
/// let loss = autocast(DType::BF16, || {
///     let logits = layer.forward(&x)?;
///     assert_eq!(logits.dtype(), DType::BF16);
///     nn::cross_entropy(&logits, &labels)
/// })?;
/// loss.backward()?;
/// assert_eq!(loss.dtype(), DType::F32);
/// assert_eq!(layer.weight().grad().map(|grad| grad.dtype()), Some(DType::F32));
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn autocast<T>(dtype: DType, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let dtype = match dtype {
        DType::F16 | DType::BF16 => Some(dtype),
        DType::F32 => None,
        _ => return Err(Error::argument("autocast", format!("takes f16, bf16 or f32, not {dtype}"))),
    };
    let _products = products(dtype);
    f()
}

/// The float type in which a product takes and gives elements of this one.
pub(crate) fn lowered(dtype: DType) -> DType {
    match set_products() {
        Some(half) if dtype.is_float() => half,
        _ => dtype,
    }
}

/// The type of a sum or a loss of elements of this type.
pub(crate) fn of_sums(dtype: DType) -> DType {
    match set_products() {
        Some(_) if dtype.is_float() => DType::F32,
        _ => dtype,
    }
}

/// The inputs of an op in the types in which it takes them within [`autocast`]; `None` if they stay as they are.
pub(super) fn cast(elements: Elements, inputs: &[&Tensor]) -> Result<Option<Vec<Tensor>>> {
    let taken = |x: &Tensor| match elements {
        Elements::Floats(Casting::Lower) => lowered(x.dtype()),
        Elements::Floats(Casting::Raise) => of_sums(x.dtype()),
        _ => x.dtype(),
    };
    if inputs.iter().all(|x| taken(x) == x.dtype()) {
        return Ok(None);
    }
    inputs.iter().map(|x| x.to_dtype(taken(x))).collect::<Result<_>>().map(Some)
}
