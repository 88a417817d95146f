//! Ops on all element types by way of the four-byte ones: inputs are widened and results narrowed, as ops of the graph.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::cast::{narrowed, widened};
use crate::ops::{Op, apply, autocast};
use crate::tensor::Tensor;

/// Applies an op of f32 to tensors of any one float type; the result is of that type, each sum having been an f32 sum.
///
/// Integer inputs that are not the first (labels, indices) go to the op as words. As in PyTorch, floats of two types do
/// not mix here, and integers do not become floats. Within [`autocast`](autocast::autocast), some ops take another type.
pub(crate) fn apply_float<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    let cast = autocast::cast(op.name(), inputs)?;
    let cast: Option<Vec<&Tensor>> = cast.as_ref().map(|cast| cast.iter().collect());
    let inputs = cast.as_deref().unwrap_or(inputs);
    let dtype = inputs.first().map_or(DType::F32, |x| x.dtype());
    if let Some(other) = inputs.iter().find(|x| !dtype.is_float() || (x.dtype().is_float() && x.dtype() != dtype)) {
        let expected = if dtype.is_float() { dtype.to_string() } else { "a float type".into() };
        return Err(Error::DTypeMismatch { op: op.name(), expected, got: other.dtype().to_string() });
    }
    apply_narrowing(op, inputs, dtype)
}

/// Applies an op that is the same for elements of every type (moves, mostly). A result of the type in which the first
/// input is computed becomes one of the first input's type.
pub(crate) fn apply_wide<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    let dtype = inputs.first().map_or(DType::F32, |x| x.dtype());
    apply_narrowing(op, inputs, dtype)
}

fn apply_narrowing<O: Op>(op: O, inputs: &[&Tensor], dtype: DType) -> Result<Tensor> {
    if !inputs.iter().any(|x| x.dtype().is_packed()) {
        return apply(op, inputs);
    }
    let wide = inputs.iter().map(|x| if x.dtype().is_packed() { widened(x) } else { Ok((*x).clone()) });
    let wide: Vec<Tensor> = wide.collect::<Result<_>>()?;
    let out = apply(op, &wide.iter().collect::<Vec<_>>())?;
    if out.dtype() == dtype.wide() { narrowed(&out, dtype) } else { Ok(out) }
}

/// Integers and booleans as f32, floats as they are: the operand of a function that has fractions.
pub(crate) fn to_float(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_float() { Ok(x.clone()) } else { x.to_dtype(DType::F32) }
}

/// The type in which two operands meet, by PyTorch's rule: of their types where both or neither are single values (rank
/// 0); else that of the one with dimensions, unless the single value is of a higher kind (bool < integer < float).
pub(crate) fn result_type(op: &'static str, a: &Tensor, b: &Tensor) -> Result<DType> {
    let kind = |dtype: DType| match dtype {
        DType::Bool => 0,
        _ if dtype.is_float() => 2,
        _ => 1,
    };
    let meet = || {
        a.dtype().promote(b.dtype()).map_err(|error| match error {
            Error::DTypeMismatch { expected, got, .. } => Error::DTypeMismatch { op, expected, got },
            other => other,
        })
    };
    match (a.rank(), b.rank()) {
        (0, 0) => meet(),
        (_, 0) if kind(a.dtype()) >= kind(b.dtype()) => Ok(a.dtype()),
        (0, _) if kind(b.dtype()) >= kind(a.dtype()) => Ok(b.dtype()),
        _ => meet(),
    }
}
