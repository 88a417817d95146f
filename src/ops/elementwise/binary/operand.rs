//! The other operand of an op: a tensor or a number; and the operators `+ - * / %` of Rust.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::binary::BinaryFn;
use crate::ops::elementwise::binary::run::binary;
use crate::ops::elementwise::cast::narrowed;
use crate::ops::elementwise::promote::result_type;
use crate::ops::inplace::filled_words;
use crate::ops::long::scalar;
use crate::ops::same_device;
use crate::tensor::Tensor;

/// A number as an operand, of one of Python's three kinds (bool < integer < float).
///
/// It never changes the type of a tensor of its own kind or of a higher one.
///
/// ```
/// # use anygpu::{DType, Tensor};
/// let x = Tensor::new([1, 2], None)?;
/// assert_eq!(x.add(1)?.dtype(), DType::I32);
/// assert_eq!(x.add(0.5)?.to_vec::<f32>()?, [1.5, 2.5]);
/// assert_eq!(Tensor::new([1.0], None)?.to_dtype(DType::F16)?.add(1)?.dtype(), DType::F16);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
}

impl Scalar {
    /// Returns the type in which an op of this number and a tensor of type `dtype` computes.
    fn meets(self, dtype: DType) -> DType {
        match self {
            Scalar::Int(_) if dtype == DType::Bool => DType::I32,
            Scalar::Float(_) if !dtype.is_float() => DType::F32,
            _ => dtype,
        }
    }

    /// Returns the word of this number in the type in which `dtype` is computed. If `wraps`, negative numbers wrap
    /// around to unsigned ones.
    pub(in crate::ops) fn word(self, op: &'static str, dtype: DType, wraps: bool) -> Result<u32> {
        let whole = match self {
            _ if dtype.is_float() => return Ok((self.as_f64() as f32).to_bits()),
            Scalar::Bool(value) => i64::from(value),
            Scalar::Int(value) => value,
            Scalar::Float(value) => return Err(Error::argument(op, format!("{value} is not a {dtype}"))),
        };
        let [low, high] = match dtype {
            DType::I32 => [i64::from(i32::MIN), i64::from(i32::MAX)],
            DType::U32 => [0, i64::from(u32::MAX)],
            DType::U8 => [0, i64::from(u8::MAX)],
            _ => [0, 1],
        };
        let low = if wraps { low.min(-high) } else { low };
        if whole < low || whole > high {
            return Err(Error::argument(op, format!("{whole} does not fit {dtype}")));
        }
        Ok(whole as u32)
    }

    /// Returns the bits of this number in a type of 64 bits.
    fn bits(self, op: &'static str, dtype: DType) -> Result<u64> {
        match self {
            _ if dtype.is_float() => Ok(self.as_f64().to_bits()),
            Scalar::Bool(value) => Ok(value.into()),
            Scalar::Int(value) => Ok(value.cast_unsigned()),
            Scalar::Float(value) => Err(Error::argument(op, format!("{value} is not a {dtype}"))),
        }
    }

    /// Returns this number as a tensor of rank 0.
    pub(in crate::ops) fn tensor(self, op: &'static str, dtype: DType, device: &Device) -> Result<Tensor> {
        if dtype.is_long() {
            return scalar(self.bits(op, dtype)?, dtype, device);
        }
        let wide = filled_words(&[], self.word(op, dtype, false)?, dtype.wide(), device)?;
        narrowed(&wide, dtype)
    }

    pub(in crate::ops) fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(value) => f64::from(u8::from(value)),
            Scalar::Int(value) => value as f64,
            Scalar::Float(value) => value,
        }
    }
}

/// The other operand of an op: `&tensor` or a number.
#[derive(Clone, Copy)]
pub enum Operand<'a> {
    /// A tensor, broadcast against the first operand.
    Tensor(&'a Tensor),
    /// A number, the same for every element.
    Scalar(Scalar),
}

/// Returns the type in which two operands are combined. Checks the devices first, because that error is more helpful.
pub(in crate::ops) fn common_type(op: &'static str, a: Operand, b: Operand) -> Result<DType> {
    match (a, b) {
        (Operand::Tensor(a), Operand::Tensor(b)) => {
            same_device(op, &[a, b])?;
            result_type(op, a, b)
        }
        (Operand::Tensor(x), Operand::Scalar(s)) | (Operand::Scalar(s), Operand::Tensor(x)) => Ok(s.meets(x.dtype())),
        (Operand::Scalar(a), Operand::Scalar(b)) => Ok(b.meets(a.meets(DType::Bool))),
    }
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Operand::Tensor(tensor)
    }
}

impl<'a> From<&&'a Tensor> for Operand<'a> {
    fn from(tensor: &&'a Tensor) -> Self {
        Operand::Tensor(tensor)
    }
}

impl From<Scalar> for Operand<'_> {
    fn from(scalar: Scalar) -> Self {
        Operand::Scalar(scalar)
    }
}

macro_rules! numbers {
    ($($t:ident => $kind:ident;)*) => {$(
        impl From<$t> for Scalar {
            fn from(value: $t) -> Self {
                Scalar::$kind(value.into())
            }
        }
        impl From<$t> for Operand<'_> {
            fn from(value: $t) -> Self {
                Operand::Scalar(value.into())
            }
        }
    )*};
}
numbers! { bool => Bool; i32 => Int; u32 => Int; i64 => Int; u8 => Int; f32 => Float; f64 => Float; }

/// For sizes and counts.
impl From<usize> for Operand<'_> {
    fn from(value: usize) -> Self {
        Operand::Scalar(Scalar::Int(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl std::fmt::Debug for Operand<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Operand::Tensor(tensor) => write!(f, "{} {:?}", tensor.dtype(), tensor.shape()),
            Operand::Scalar(scalar) => scalar.fmt(f),
        }
    }
}

/// Implements the operators for tensors, by reference or by value, and for numbers, on either side. There is one float
/// type and one integer type: with two, the type of the number in `(&x * 0.5)?` would be ambiguous. The right operand
/// may be a `Result`. The left one may not, nor the right one of a number: by Rust's orphan rule, the first of the two
/// types that is not a parameter must belong to this crate.
macro_rules! operators {
    ($($trait:ident $method:ident;)*) => {$(
        operators! { @ $trait $method [&Tensor, &Tensor] [&Tensor, Tensor] [Tensor, &Tensor] [Tensor, Tensor]
            => |a, b| Tensor::$method(&a, &b) }
        operators! { @ $trait $method [&Tensor, Result<Tensor, Error>] [Tensor, Result<Tensor, Error>]
            => |a, b| Tensor::$method(&a, &b?) }
        operators! { @ $trait $method [&Tensor, f32] [&Tensor, i32] [Tensor, f32] [Tensor, i32]
            => |a, b| Tensor::$method(&a, b) }
        operators! { @ $trait $method [f32, &Tensor] [i32, &Tensor] [f32, Tensor] [i32, Tensor]
            => |a, b| binary(BinaryFn::$trait, a.into(), (&b).into()) }
    )*};
    (@ $trait:ident $method:ident $([$left:ty, $right:ty])* => |$a:ident, $b:ident| $result:expr) => {$(
        impl std::ops::$trait<$right> for $left {
            type Output = Result<Tensor, Error>;
            fn $method(self, $b: $right) -> Self::Output {
                let $a = self;
                $result
            }
        }
    )*};
}
operators! { Add add; Sub sub; Mul mul; Div div; Rem rem; }

impl std::ops::Neg for &Tensor {
    type Output = Result<Tensor, Error>;
    fn neg(self) -> Self::Output {
        Tensor::neg(self)
    }
}

impl std::ops::Neg for Tensor {
    type Output = Result<Tensor, Error>;
    fn neg(self) -> Self::Output {
        Tensor::neg(&self)
    }
}
