//! Mixed precision: rounds the inputs of some ops to halves, on one thread while a closure runs.

use crate::context::{Restore, slot};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::Casting;
use crate::tensor::Tensor;

slot! {
    /// The type of products under [`autocast`], if it is on.
    PRODUCTS: Option<DType> = None
}

/// Sets the type of products on this thread until the guard is dropped; `None` is the type of the operands.
pub(crate) fn products(dtype: Option<DType>) -> Restore<Option<DType>> {
    PRODUCTS.set(dtype)
}

/// Returns the type of products on this thread; `None` if it is the type of the operands.
fn set_products() -> Option<DType> {
    PRODUCTS.get()
}

/// Runs `f` with matrix products and convolutions in 16-bit floats, like PyTorch's `autocast`.
///
/// The f32 operands of these ops are rounded to `dtype`: `F16` or `BF16`. `F32` turns off an outer `autocast`. This
/// applies to the calling thread and to the threads that work for it: the threads of a
/// [`DataParallel`](crate::DataParallel) and of a [`DataLoader`](crate::data::DataLoader).
///
/// Parameters stay f32, and their gradients are f32. Softmax, sums, means and losses convert halves to f32 and return
/// f32. All other ops compute in the type of their inputs, or in f32 if halves and f32 are combined. Run the forward
/// pass and the loss in `f`, and call [`backward`](Tensor::backward) after it. With `F16`, small gradients become 0:
/// see [`GradScaler`](crate::optim::GradScaler).
///
/// Only the stored elements are halves; sums are f32 sums on every device. This reduces the memory of the values that
/// the backward pass needs, and the data that products load. It makes the arithmetic cheaper only for `F16` products on
/// adapters with cooperative matrices (`"cooperative-matrix"` in
/// [`DeviceInfo::features`](crate::DeviceInfo::features)).
///
/// # Errors
/// [`Error::InvalidArgument`] for any other type; also the errors of `f`.
///
/// ```
/// use anygpu::nn::{self, Linear, Module};
/// use anygpu::{DType, Tensor, autocast};
///
/// let layer = Linear::new(4, 2)?;
/// let (x, labels) = (Tensor::rand([3, 4], None)?, Tensor::new([0u32, 1, 1], None)?);
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

/// Returns the float type of the operands and the result of a product of elements of this type.
pub(crate) fn lowered(dtype: DType) -> DType {
    match set_products() {
        Some(half) if dtype.is_float() && !dtype.is_long() => half,
        _ => dtype,
    }
}

/// Returns the type of a sum or a loss of elements of this type.
pub(crate) fn of_sums(dtype: DType) -> DType {
    match set_products() {
        Some(_) if dtype.is_float() && !dtype.is_long() => DType::F32,
        _ => dtype,
    }
}

/// Converts the inputs of an op to the types that it uses within [`autocast`]. Returns `None` if no type changes.
pub(super) fn cast(casting: Casting, inputs: &[&Tensor]) -> Result<Option<Vec<Tensor>>> {
    let taken = |x: &Tensor| match casting {
        Casting::Lower => lowered(x.dtype()),
        Casting::Raise => of_sums(x.dtype()),
        Casting::Keep => x.dtype(),
    };
    if inputs.iter().all(|x| taken(x) == x.dtype()) {
        return Ok(None);
    }
    inputs.iter().map(|x| x.to_dtype(taken(x))).collect::<Result<_>>().map(Some)
}
