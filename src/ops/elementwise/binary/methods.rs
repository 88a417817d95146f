//! Public functions of two elements that the table does not write: the sum, whose documentation the others refer to,
//! and functions of operands of one type.

use super::BinaryFn;
use super::operand::{Operand, Scalar};
use super::run::{binary, logical};
use crate::error::Result;
use crate::ops::named;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns `a + b` of two tensors, or of a tensor and a number. Shapes are broadcast by NumPy's rule.
    ///
    /// Tensors of two types are converted to one type by PyTorch's rule ([`DType::promote`](crate::DType::promote)). A
    /// number changes the type only if it is of a higher kind ([`Scalar`]). Integers wrap around. Booleans are added by
    /// `or`. The operators `+ - * / %` call these methods, with an `f32` or `i32` on either side. For numbers of other
    /// types, call the method: `x.add(v)`.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch), [`Error::ShapeMismatch`](crate::Error::ShapeMismatch)
    /// or [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) (i32 with u32, which have no common type) if the
    /// operands cannot be combined; [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a number outside the
    /// tensor's type.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let rows = Tensor::new([[1.0], [2.0]], None)?;
    /// let columns = Tensor::new([10.0, 20.0, 30.0], None)?;
    /// assert_eq!(rows.add(&columns)?.to_vec::<f32>()?, [11.0, 21.0, 31.0, 12.0, 22.0, 32.0]);
    /// assert_eq!((1.0 - &rows)?.to_vec::<f32>()?, [0.0, -1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn add<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
        binary(BinaryFn::Add, self.into(), other.into())
    }

    /// Returns 1 where two f32 tensors are equal, else 0, as f32: a factor of gradients.
    pub(in crate::ops) fn same(&self, other: &Tensor) -> Result<Tensor> {
        binary(BinaryFn::Same, self.into(), other.into())
    }
}

/// Defines methods with another operand of one type.
macro_rules! typed_methods {
    ($($(#[$doc:meta])* $name:ident($x:ident, $other:ident: $t:ty) => $result:expr;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// Same as [`Tensor::add`].
                pub fn $name(&self, $other: $t) -> Result<Tensor> {
                    let $x = self;
                    named(stringify!($name), || $result)
                }
            )*
        }
    };
}

typed_methods! {
    /// Returns true where both elements are not 0 (or are true), as [`DType::Bool`](crate::DType::Bool). Shapes are
    /// broadcast by NumPy's rule.
    logical_and(x, other: &Tensor) => logical(BinaryFn::And, x, other);
    /// Returns true where at least one element is not 0 (or is true), as [`DType::Bool`](crate::DType::Bool). Shapes
    /// are broadcast by NumPy's rule.
    logical_or(x, other: &Tensor) => logical(BinaryFn::Or, x, other);
    /// Returns true where exactly one element is not 0 (or is true), as [`DType::Bool`](crate::DType::Bool). Shapes are
    /// broadcast by NumPy's rule.
    logical_xor(x, other: &Tensor) => logical(BinaryFn::Xor, x, other);
    /// Returns `x + value`: [`Tensor::add`] of a number.
    add_scalar(x, value: impl Into<Scalar>) => x.add(value.into());
    /// Returns `x − value`: [`Tensor::sub`] of a number.
    sub_scalar(x, value: impl Into<Scalar>) => x.sub(value.into());
    /// Returns `value · x`: [`Tensor::mul`] by a number.
    mul_scalar(x, value: impl Into<Scalar>) => x.mul(value.into());
    /// Returns `x / value`: [`Tensor::div`] by a number.
    div_scalar(x, value: impl Into<Scalar>) => x.div(value.into());
}
