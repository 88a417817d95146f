//! Mixed precision: which ops round what they are given to halves, for a thread and a time.

use std::cell::Cell;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{Casting, Elements};
use crate::tensor::Tensor;

thread_local! {
    /// The type of products, if it is another than their operands'.
    static PRODUCTS: Cell<Option<DType>> = const { Cell::new(None) };
}

/// Another type of products until it is dropped, also on the way of a panic.
struct Within(Option<DType>);

impl Within {
    fn new(products: Option<DType>) -> Within {
        Within(PRODUCTS.replace(products))
    }
}

/// Until it is dropped, everything is as if there were no [`autocast`].
pub(crate) struct AsItIs {
    _within: Within,
}

impl AsItIs {
    pub(crate) fn new() -> AsItIs {
        AsItIs { _within: Within::new(None) }
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        PRODUCTS.set(self.0);
    }
}

/// Runs `f` with matrix products and convolutions on halves, as PyTorch's `autocast` does: f32 operands are rounded to
/// `dtype` (`F16` or `BF16`; `F32` switches it off within another), on this thread and in
/// what a [`DataParallel`](crate::DataParallel) does for it.
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
    let products = match dtype {
        DType::F16 | DType::BF16 => Some(dtype),
        DType::F32 => None,
        _ => return Err(Error::argument("autocast", format!("takes f16, bf16 or f32, not {dtype}"))),
    };
    Autocast(products).within(f)
}

/// What [`autocast`] is at on a thread, to go on with on another.
#[derive(Clone, Copy)]
pub(crate) struct Autocast(Option<DType>);

impl Autocast {
    pub(crate) fn of_this_thread() -> Autocast {
        Autocast(PRODUCTS.get())
    }

    pub(crate) fn within<T>(self, f: impl FnOnce() -> T) -> T {
        let _within = Within::new(self.0);
        f()
    }
}

/// The float type in which a product takes and gives elements of this one.
pub(crate) fn lowered(dtype: DType) -> DType {
    match PRODUCTS.get() {
        Some(half) if dtype.is_float() => half,
        _ => dtype,
    }
}

/// The type of a sum or a loss of elements of this type.
pub(crate) fn of_sums(dtype: DType) -> DType {
    match PRODUCTS.get() {
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
