//! The public functions of two elements.

use super::operand::{Operand, Scalar};
use super::run::{binary, logical};
use crate::error::Result;
use crate::ops::elementwise::binary as pairs;
use crate::ops::named;
use crate::tensor::Tensor;

/// Defines methods with a tensor or a number as the other operand.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident => $pair:ident;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// As [`Tensor::add`].
                pub fn $name<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
                    binary(&pairs::$pair, self.into(), other.into())
                }
            )*
        }
    };
}

impl Tensor {
    /// Returns `a + b` of two tensors, broadcast by NumPy's rule, or of a tensor and a number.
    ///
    /// Tensors of two types are converted to one by PyTorch's rule ([`DType::promote`](crate::DType::promote)). A
    /// number changes the type only if it is of a higher kind ([`Scalar`]). Integers wrap around; booleans are added by
    /// `or`. The operators `+ - * / %` are the same functions, with an `f32` or `i32` on either side; for other
    /// numbers, call the methods, `x.add(v)`.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch), [`Error::ShapeMismatch`](crate::Error::ShapeMismatch)
    /// or [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) (i32 with u32, which have no common type) if the
    /// operands cannot be combined; [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a number outside the
    /// tensor's type.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let rows = Tensor::try_from([[1.0], [2.0]])?;
    /// let columns = Tensor::try_from([10.0, 20.0, 30.0])?;
    /// assert_eq!(rows.add(&columns)?.to_vec::<f32>()?, [11.0, 21.0, 31.0, 12.0, 22.0, 32.0]);
    /// assert_eq!((1.0 - &rows)?.to_vec::<f32>()?, [0.0, -1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn add<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
        binary(&pairs::ADD, self.into(), other.into())
    }

    /// Returns 1 where two f32 tensors are equal, else 0, as f32: a factor of gradients.
    pub(in crate::ops) fn same(&self, other: &Tensor) -> Result<Tensor> {
        binary(&pairs::SAME, self.into(), other.into())
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
                /// As [`Tensor::add`].
                pub fn $name(&self, $other: $t) -> Result<Tensor> {
                    let $x = self;
                    named(stringify!($name), || $result)
                }
            )*
        }
    };
}

typed_methods! {
    /// Returns true where neither is 0 (or false), as [`DType::Bool`](crate::DType::Bool), broadcast by NumPy's rule.
    logical_and(x, other: &Tensor) => logical(&pairs::AND, x, other);
    /// Returns true where any is not 0 (or false), as [`DType::Bool`](crate::DType::Bool), broadcast by NumPy's rule.
    logical_or(x, other: &Tensor) => logical(&pairs::OR, x, other);
    /// Returns true where only one is not 0 (or false), as [`DType::Bool`](crate::DType::Bool), broadcast by NumPy's
    /// rule.
    logical_xor(x, other: &Tensor) => logical(&pairs::XOR, x, other);
    /// Returns `x + value`: [`Tensor::add`] of a number.
    add_scalar(x, value: impl Into<Scalar>) => x.add(value.into());
    /// Returns `x − value`: [`Tensor::sub`] of a number.
    sub_scalar(x, value: impl Into<Scalar>) => x.sub(value.into());
    /// Returns `value · x`: [`Tensor::mul`] by a number.
    mul_scalar(x, value: impl Into<Scalar>) => x.mul(value.into());
    /// Returns `x / value`: [`Tensor::div`] by a number.
    div_scalar(x, value: impl Into<Scalar>) => x.div(value.into());
}

methods! {
    /// Returns `a − b`; see [`Tensor::add`] for broadcasting and types. Booleans are an error.
    sub => SUB;
    /// Returns `a · b`, element by element; see [`Tensor::add`] for broadcasting and types.
    mul => MUL;
    /// Returns `a / b`; see [`Tensor::add`] for broadcasting. The quotient of integers is in f32; for whole quotients,
    /// use [`Tensor::div_trunc`] and [`Tensor::div_floor`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([-7, 7])?;
    /// assert_eq!(x.div(2)?.to_vec::<f32>()?, [-3.5, 3.5]);
    /// assert_eq!(x.div_trunc(2)?.to_vec::<i32>()?, [-3, 3]);
    /// assert_eq!(x.div_floor(2)?.to_vec::<i32>()?, [-4, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    div => DIV;
    /// Returns `a / b` rounded towards 0, PyTorch's `rounding_mode='trunc'`. An integer divided by 0 does not change;
    /// PyTorch fails in this case. The gradient is 0.
    div_trunc => DIV_TRUNC;
    /// Returns `a / b` rounded down, Python's `//` and PyTorch's `rounding_mode='floor'`. An integer divided by 0 does
    /// not change; PyTorch fails in this case. The gradient is 0.
    div_floor => DIV_FLOOR;
    /// Returns the remainder of `a / b` with the sign of b, Python's `%` and `torch.remainder`. It is exact: no
    /// quotient is rounded. The remainder of a division by 0 is NaN, and 0 for integers (PyTorch fails in this case).
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([-7, 7])?;
    /// assert_eq!(x.rem(3)?.to_vec::<i32>()?, [2, 1]);
    /// assert_eq!(x.fmod(3)?.to_vec::<i32>()?, [-1, 1]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    rem => REM;
    /// Returns the remainder of `a / b` with the sign of a, C's `fmod`. It is exact. The remainder of a division by 0
    /// is NaN, and 0 for integers (PyTorch fails in this case).
    fmod => FMOD;
    /// Returns `aᵇ`; see [`Tensor::add`] for broadcasting and types. As in C's `pow`, it is NaN for negative a unless b
    /// is whole, and 1 for b = 0. Integers wrap around; their negative powers are 0, except those of ±1.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([1.0, -2.0, 3.0])?;
    /// assert_eq!(x.pow(2)?.to_vec::<f32>()?, [1.0, 4.0, 9.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pow => POW;
    /// Returns the larger of two elements; NaN if one is NaN. The gradient goes to the larger, half to each if equal.
    maximum => MAXIMUM;
    /// Returns the smaller of two elements; NaN if one is NaN. The gradient goes to the smaller, half to each if equal.
    minimum => MINIMUM;
    /// Returns the angle of the point (other, self) in radians, from −π to π: the arc tangent of `a / b` in the correct
    /// quadrant. Integers become f32.
    atan2 => ATAN2;
    /// Returns the bits that both integers have; of booleans, whether both are true. See [`Tensor::add`] for broadcasting
    /// and types; floats are an error.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([6, -1])?;
    /// assert_eq!(x.bitwise_and(3)?.to_vec::<i32>()?, [2, 3]);
    /// assert_eq!(x.bitwise_xor(3)?.to_vec::<i32>()?, [5, -4]);
    /// assert_eq!(x.bitwise_left_shift(4)?.to_vec::<i32>()?, [96, -16]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    bitwise_and => BITWISE_AND;
    /// Returns the bits that any of two integers has; of booleans, whether any is true. Floats are an error.
    bitwise_or => BITWISE_OR;
    /// Returns the bits that only one of two integers has; of booleans, whether only one is true. Floats are an error.
    bitwise_xor => BITWISE_XOR;
    /// Returns the integers a with their bits shifted b places to the left. All bits are lost if b is negative or not
    /// below 32 (64 for i64). Floats and booleans are an error.
    bitwise_left_shift => LEFT_SHIFT;
    /// Returns the integers a with their bits shifted b places to the right; the signs of i32 and i64 are kept. Nothing else is
    /// left if b is negative or not below 32 (64 for i64). Floats and booleans are an error.
    bitwise_right_shift => RIGHT_SHIFT;
    /// Returns whether a = b, as [`DType::Bool`](crate::DType::Bool); see [`Tensor::add`] for broadcasting and types.
    /// NaN is not equal to any number, nor to NaN. The result has no gradient.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([1, 2, 3])?;
    /// assert_eq!(x.eq(2)?.to_vec::<bool>()?, [false, true, false]);
    /// assert_eq!(x.lt(2.5)?.to_vec::<bool>()?, [true, true, false]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    eq => EQ;
    /// Returns whether a ≠ b, as [`DType::Bool`](crate::DType::Bool); true for NaN.
    ne => NE;
    /// Returns whether a < b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    lt => LT;
    /// Returns whether a ≤ b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    le => LE;
    /// Returns whether a > b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    gt => GT;
    /// Returns whether a ≥ b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    ge => GE;
}
