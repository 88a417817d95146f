//! Formulas of tensors as they are written on paper: the macro `t!`.

use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use crate::error::{Error, Result};
use crate::ops::elementwise::binary::BinaryFn;
use crate::ops::elementwise::binary::run::binary;
use crate::ops::{Operand, Scalar};
use crate::tensor::Tensor;

/// A part of a formula: a number, or a tensor, or the error of a computation.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum Formula {
    Number(Scalar),
    Value(Result<Tensor>),
}

/// A value that can stand in a formula: a tensor, a `Result` of a tensor, or a number.
#[doc(hidden)]
pub trait Term {
    fn term(&self) -> Formula;
}

impl Term for Tensor {
    fn term(&self) -> Formula {
        Formula::Value(Ok(self.clone()))
    }
}

impl Term for Result<Tensor> {
    fn term(&self) -> Formula {
        Formula::Value(self.clone())
    }
}

impl<T: Term + ?Sized> Term for &T {
    fn term(&self) -> Formula {
        (**self).term()
    }
}

macro_rules! numbers {
    ($($t:ty)*) => {$(
        impl Term for $t {
            fn term(&self) -> Formula {
                Formula::Number((*self).into())
            }
        }
    )*};
}
numbers! { i32 u32 i64 u8 f32 f64 Scalar }

impl Formula {
    /// Returns the result of a formula.
    ///
    /// # Errors
    /// The first error of its parts; [`Error::InvalidArgument`] for a formula of numbers alone.
    pub fn value(self) -> Result<Tensor> {
        match self {
            Formula::Value(value) => value,
            Formula::Number(number) => {
                Err(Error::argument("t!", format!("the formula has no tensor, and is the number {number:?}")))
            }
        }
    }

    fn with(self, other: Formula, function: BinaryFn, numbers: impl FnOnce(f64, f64) -> f64) -> Formula {
        if let (Formula::Number(a), Formula::Number(b)) = (&self, &other) {
            return match (a, b, numbers(a.as_f64(), b.as_f64())) {
                (Scalar::Int(_), Scalar::Int(_), whole) if whole.fract() == 0.0 => {
                    Formula::Number(Scalar::Int(whole as i64))
                }
                (_, _, number) => Formula::Number(Scalar::Float(number)),
            };
        }
        Formula::Value(self.operand().and_then(|a| binary(function, a, other.operand()?)))
    }

    fn operand(&self) -> Result<Operand<'_>> {
        match self {
            Formula::Number(number) => Ok((*number).into()),
            Formula::Value(value) => value.as_ref().map(Operand::from).map_err(Error::clone),
        }
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:tt;)*) => {$(
        impl $trait for Formula {
            type Output = Formula;

            fn $method(self, other: Formula) -> Formula {
                self.with(other, BinaryFn::$trait, |a, b| a $op b)
            }
        }
    )*};
}
operators! { Add add +; Sub sub -; Mul mul *; Div div /; Rem rem %; }

impl Neg for Formula {
    type Output = Formula;

    fn neg(self) -> Formula {
        match self {
            Formula::Number(Scalar::Int(number)) => Formula::Number(Scalar::Int(number.wrapping_neg())),
            Formula::Number(number) => Formula::Number(Scalar::Float(-number.as_f64())),
            Formula::Value(value) => Formula::Value(value.and_then(|value| value.neg())),
        }
    }
}

/// Computes a formula of tensors and numbers with `+ - * / %`, without a `?` for each step.
///
/// Returns a `Result<Tensor>`: the value, or the first error.
///
/// Each operand is a tensor, a reference to a tensor, a number, or a call that returns a tensor or a `Result<Tensor>`.
/// Tensors are not moved. The operators broadcast and choose types like the operators of [`Tensor`](crate::Tensor),
/// with Rust's precedence. A method may follow parentheses: `(a + b).sqrt()`. Such parentheses contain a `?`, so the
/// function around them has to return a `Result`.
///
/// The loss of a variational autoencoder (Kingma and Welling, 2014), and the loss of a diffusion model (Ho et al.,
/// 2020):
///
/// ```
/// use anygpu::{Tensor, t};
///
/// let [mu, logvar] = [[0.5, -0.5], [0.0, 0.1]].map(Tensor::try_from);
/// let (mu, logvar) = (mu?, logvar?);
/// // Σ −½ (1 + log σ² − μ² − σ²)
/// let divergence = t!(-0.5 * (1 + logvar - mu.square() - logvar.exp()))?.sum_all()?;
/// assert!((divergence.item::<f32>()? - 0.252_585).abs() < 1e-5);
///
/// let (x, noise, alpha) = (Tensor::ones([4, 2], None)?, Tensor::full([4, 2], 0.5, None)?, Tensor::full([4, 1], 0.64, None)?);
/// let predicted = |noisy: &Tensor| noisy.mul(0.5);
/// // √ᾱ x + √(1 − ᾱ) ε
/// let noisy = t!(alpha.sqrt() * x + (1 - alpha).sqrt() * noise)?;
/// let loss = t!((predicted(&noisy) - noise).square())?.mean_all()?;
/// assert!((loss.item::<f32>()? - 0.0025).abs() < 1e-5);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[macro_export]
macro_rules! t {
    ($($formula:tt)+) => { $crate::Formula::value($crate::__formula!([] [] $($formula)+)) };
}

/// `[what is done] [the operand that is being read] the rest`.
#[doc(hidden)]
#[macro_export]
macro_rules! __formula {
    (@operand ($($inner:tt)+)) => { ($crate::__formula!([] [] $($inner)+)) };
    (@operand ($($inner:tt)+) $($method:tt)+) => { $crate::Term::term(&($crate::t!($($inner)+)? $($method)+)) };
    (@operand $($operand:tt)+) => { $crate::Term::term(&($($operand)+)) };
    ([$($done:tt)*] [$($operand:tt)+]) => { $($done)* $crate::__formula!(@operand $($operand)+) };
    ([$($done:tt)*] [$($operand:tt)+] + $($rest:tt)+) => {
        $crate::__formula!([$($done)* $crate::__formula!(@operand $($operand)+) +] [] $($rest)+)
    };
    ([$($done:tt)*] [$($operand:tt)+] - $($rest:tt)+) => {
        $crate::__formula!([$($done)* $crate::__formula!(@operand $($operand)+) -] [] $($rest)+)
    };
    ([$($done:tt)*] [$($operand:tt)+] * $($rest:tt)+) => {
        $crate::__formula!([$($done)* $crate::__formula!(@operand $($operand)+) *] [] $($rest)+)
    };
    ([$($done:tt)*] [$($operand:tt)+] / $($rest:tt)+) => {
        $crate::__formula!([$($done)* $crate::__formula!(@operand $($operand)+) /] [] $($rest)+)
    };
    ([$($done:tt)*] [$($operand:tt)+] % $($rest:tt)+) => {
        $crate::__formula!([$($done)* $crate::__formula!(@operand $($operand)+) %] [] $($rest)+)
    };
    ([$($done:tt)*] [] - $($rest:tt)+) => { $crate::__formula!([$($done)* -] [] $($rest)+) };
    // Several tokens at once, so that long formulas stay within Rust's limit of recursion.
    ([$($done:tt)*] [] $x:ident . $method:ident ($($args:tt)*) $($rest:tt)*) => {
        $crate::__formula!([$($done)*] [$x . $method ($($args)*)] $($rest)*)
    };
    ([$($done:tt)*] [$($operand:tt)*] $next:tt $($rest:tt)*) => {
        $crate::__formula!([$($done)*] [$($operand)* $next] $($rest)*)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_are_those_of_rust() -> Result<()> {
        let (a, b) = (Tensor::try_from([1.5, -2.0, 8.0])?, Tensor::try_from([4.0, 0.5, 3.0])?);
        let n = 3;
        let got = [
            t!(a + b * 2.0 - a / b)?,
            t!((a + b) * (2 - a) / -b)?,
            t!(-a % 3 + n as f32 * 2.0 / 4 * b)?,
            t!(1 - (a - (b - 1)) * &a)?,
            t!((a * a + b.square()).sqrt() - b.neg() * -1)?,
            t!(a)?,
        ];
        let each = |f: &dyn Fn(f32, f32) -> f32| [(1.5, 4.0), (-2.0, 0.5), (8.0, 3.0)].map(|(a, b)| f(a, b));
        let expected = [
            each(&|a, b| a + b * 2.0 - a / b),
            each(&|a, b| (a + b) * (2.0 - a) / -b),
            each(&|a, b| (-a) - 3.0 * (-a / 3.0).floor() + 1.5 * b),
            each(&|a, b| 1.0 - (a - (b - 1.0)) * a),
            each(&|a, b| (a * a + b * b).sqrt() - b),
            each(&|a, _| a),
        ];
        for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
            let got = got.to_vec::<f32>()?;
            assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{i}: {got:?}, {expected:?}");
        }
        Ok(())
    }

    #[test]
    fn the_first_error_is_the_result() -> Result<()> {
        let (a, long) = (Tensor::ones([2], None)?, Tensor::ones([3], None)?);
        let error = t!(a * 2 + a.reshape([5]) - long).unwrap_err().to_string();
        assert!(error.contains("reshape"), "{error}");
        assert!(t!(a + long).unwrap_err().to_string().contains("add"));
        assert!(t!(1 + 2.5).unwrap_err().to_string().contains("3.5"));
        let integers = t!(Tensor::try_from([1, 2]) * 2 - 1)?;
        assert_eq!(integers.to_vec::<i32>()?, [1, 3]);
        Ok(())
    }
}
