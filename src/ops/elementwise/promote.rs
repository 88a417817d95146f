//! The common types of operands.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Converts integers and booleans to f32, for functions with fractional results. Floats keep their type.
pub(crate) fn to_float(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_float() { Ok(x.clone()) } else { x.to_dtype(DType::F32) }
}

/// Returns the type in which two operands are combined, by PyTorch's rule. If one of them has rank 0 and is not of a
/// higher kind than the other (bool < integer < float), it is the type of the other. Otherwise it is the promoted type
/// of both.
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
