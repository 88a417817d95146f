//! The public functions of two elements.

use super as pairs;
use super::operand::{Operand, Scalar};
use super::run::{binary, logical};
use crate::error::Result;
use crate::tensor::Tensor;

/// Methods with a tensor or a number as the other operand.
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
    /// `a + b` of two tensors, broadcast by NumPy's rule, or of a tensor and a number.
    ///
    /// Tensors of two types meet by PyTorch's rule ([`DType::promote`](crate::DType::promote)); a number changes the type
    /// only where it is of a higher kind ([`Scalar`]). Integers wrap around; booleans add as `or`. The operators `+ - * / %`
    /// are the same functions, with an `f32` or `i32` on either side; other numbers go through the methods, `x.add(v)`.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch), [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) or
    /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) (i32 with u32, which have no common type) if the operands do
    /// not go together; [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a number that the tensor's type
    /// does not hold.
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

    /// True where neither is 0 (or false), as [`DType::Bool`](crate::DType::Bool), broadcast by NumPy's rule.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn logical_and(&self, other: &Tensor) -> Result<Tensor> {
        logical(&pairs::AND, self, other)
    }

    /// True where one or both are not 0 (or false), as [`DType::Bool`](crate::DType::Bool), broadcast by NumPy's rule.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn logical_or(&self, other: &Tensor) -> Result<Tensor> {
        logical(&pairs::OR, self, other)
    }

    /// True where just one is not 0 (or false), as [`DType::Bool`](crate::DType::Bool), broadcast by NumPy's rule.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn logical_xor(&self, other: &Tensor) -> Result<Tensor> {
        logical(&pairs::XOR, self, other)
    }

    /// `x + value`: [`Tensor::add`] of a number.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn add_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.add(value.into())
    }

    /// `x − value`: [`Tensor::sub`] of a number.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn sub_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.sub(value.into())
    }

    /// `value · x`: [`Tensor::mul`] by a number.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn mul_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.mul(value.into())
    }

    /// `x / value`: [`Tensor::div`] by a number.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn div_scalar(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        self.div(value.into())
    }

    /// 1 where equal, else 0, of f32 as the operands are: what gradients multiply with.
    pub(in crate::ops) fn same(&self, other: &Tensor) -> Result<Tensor> {
        binary(&pairs::SAME, self.into(), other.into())
    }
}

methods! {
    /// `a − b`; see [`Tensor::add`] for broadcasting and types. Booleans are refused.
    sub => SUB;
    /// `a · b`, element by element; see [`Tensor::add`] for broadcasting and types.
    mul => MUL;
    /// `a / b`; see [`Tensor::add`] for broadcasting. Of integers too it is the true quotient, in f32: for whole ones there
    /// are [`Tensor::div_trunc`] and [`Tensor::div_floor`].
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
    /// `a / b` rounded towards 0: PyTorch's `rounding_mode='trunc'`. An integer over 0 stays as it is, where PyTorch
    /// fails. The gradient is 0.
    div_trunc => DIV_TRUNC;
    /// `a / b` rounded down, Python's `//` and PyTorch's `rounding_mode='floor'`. An integer over 0 stays as it is, where
    /// PyTorch fails. The gradient is 0.
    div_floor => DIV_FLOOR;
    /// The remainder of `a / b` with the sign of b, Python's `%` and `torch.remainder`. It is exact: no quotient is rounded.
    /// By 0: NaN, and 0 for integers (where PyTorch fails).
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([-7, 7])?;
    /// assert_eq!(x.rem(3)?.to_vec::<i32>()?, [2, 1]);
    /// assert_eq!(x.fmod(3)?.to_vec::<i32>()?, [-1, 1]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    rem => REM;
    /// The remainder of `a / b` with the sign of a, C's `fmod`. It is exact. By 0: NaN, and 0 for integers (where PyTorch
    /// fails).
    fmod => FMOD;
    /// `aᵇ`; see [`Tensor::add`] for broadcasting and types. As C's `pow`: NaN for negative a unless b is whole, 1 for b = 0.
    /// Integers wrap around; their negative powers are 0 but for those of ±1.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([1.0, -2.0, 3.0])?;
    /// assert_eq!(x.pow(2)?.to_vec::<f32>()?, [1.0, 4.0, 9.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pow => POW;
    /// The larger of two elements; NaN if either is. The gradient goes to the larger, half to each where they are equal.
    maximum => MAXIMUM;
    /// The smaller of two elements; NaN if either is. The gradient goes to the smaller, half to each where they are equal.
    minimum => MINIMUM;
    /// The angle of the point (other, self) in radians, from −π to π: the arc tangent of `a / b` in the right quadrant.
    /// Integers become f32.
    atan2 => ATAN2;
    /// Where a = b, as [`DType::Bool`](crate::DType::Bool); see [`Tensor::add`] for broadcasting and types. NaN equals
    /// nothing. No gradient flows.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([1, 2, 3])?;
    /// assert_eq!(x.eq(2)?.to_vec::<bool>()?, [false, true, false]);
    /// assert_eq!(x.lt(2.5)?.to_vec::<bool>()?, [true, true, false]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    eq => EQ;
    /// Where a ≠ b, as [`DType::Bool`](crate::DType::Bool); true for NaN.
    ne => NE;
    /// Where a < b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    lt => LT;
    /// Where a ≤ b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    le => LE;
    /// Where a > b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    gt => GT;
    /// Where a ≥ b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    ge => GE;
}
