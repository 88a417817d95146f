//! The types in which operands meet.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

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
