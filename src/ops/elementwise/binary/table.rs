//! The table of the functions of two elements. A row has all that the library knows of a function, and the method that
//! users call.

use super::operand::Operand;
use super::run::binary;
use super::{A, B, Calls, LongFunction, Number, OUT, Pair, TypedFunction, Types, each, jumps, smooth};
use crate::error::Result;
use crate::ops::elementwise::onnx::Onnx::{Composed, Nothing, Operator};
use crate::ops::elementwise::onnx::PairComposition;
use crate::ops::long::pair::{truths, values};
use crate::ops::no_gradient;
use crate::tensor::Tensor;

/// Defines the functions: the enum, a row for each, and the methods of those that begin with documentation. The others
/// have methods of their own in `methods.rs`. Factors are parts of gradients, and have the name of the function that
/// the gradient belongs to.
macro_rules! functions {
    (
        $($(#[$doc:meta])+ $method:ident => $id:ident { $($row:tt)* })*
        $($other:literal => $other_id:ident { $($other_row:tt)* })*
        $(factor $of:literal => $factor:ident { $($factor_row:tt)* })*
    ) => {
        /// A function of two elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum BinaryFn {
            $($id,)*
            $($other_id,)*
            $($factor,)*
        }

        impl BinaryFn {
            pub const ALL: &[BinaryFn] =
                &[$(BinaryFn::$id,)* $(BinaryFn::$other_id,)* $(BinaryFn::$factor,)*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(BinaryFn::$id => stringify!($method),)*
                    $(BinaryFn::$other_id => $other,)*
                    $(BinaryFn::$factor => $of,)*
                }
            }

            /// Returns whether this is part of a gradient.
            pub(super) const fn is_factor(self) -> bool {
                matches!(self, $(BinaryFn::$factor)|*)
            }

            pub(in crate::ops) fn row(self) -> &'static Pair {
                match self {
                    $(BinaryFn::$id => {
                        static ROW: Pair = Pair { $($row)* };
                        &ROW
                    })*
                    $(BinaryFn::$other_id => {
                        static ROW: Pair = Pair { $($other_row)* };
                        &ROW
                    })*
                    $(BinaryFn::$factor => {
                        static ROW: Pair = Pair { $($factor_row)* };
                        &ROW
                    })*
                }
            }
        }

        impl Tensor {
            $(
                $(#[$doc])+
                ///
                /// # Errors
                /// Same as [`Tensor::add`].
                pub fn $method<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
                    binary(BinaryFn::$id, self.into(), other.into())
                }
            )*
        }
    };
}

macro_rules! typed {
    ($t:ident => $r:ident, $calls:ident, $signed:literal, $wgsl:literal, $f:expr) => {
        Some(TypedFunction {
            calls: Calls::$calls,
            header: concat!(
                "alias T = ",
                stringify!($t),
                ";\nalias R = ",
                stringify!($r),
                ";\nconst SIGNED = ",
                $signed,
                ";\nfn f(x: T, y: T) -> R { return ",
                $wgsl,
                "; }\n"
            ),
            each: |x, sx, y, sy, out| each::<$t, $r>(x, sx, y, sy, out, $f),
        })
    };
}

/// A function of 64-bit elements.
macro_rules! long {
    ($t:ident: $f:expr) => {
        Some(LongFunction::Values(|words, at, steps, out| values::<$t>(words, at, steps, out, $f)))
    };
    ($t:ident => truth: $f:expr) => {
        Some(LongFunction::Truths(|words, at, steps, out| truths::<$t>(words, at, steps, out, $f)))
    };
}

/// A formula for every type, by a function of [`Number`]; the second one is for whole numbers in WGSL, if that differs.
macro_rules! numbers {
    ($f:ident, $wgsl:literal) => { numbers!(@ Nothing, Nothing, $f, $wgsl, $wgsl) };
    ($f:ident, $float:literal, $whole:literal) => { numbers!(@ OfFloats, OfWhole, $f, $float, $whole) };
    (@ $floats:ident, $wholes:ident, $f:ident, $float:literal, $whole:literal) => { Types {
        truth: false,
        f32: typed!(f32 => f32, $floats, false, $float, Number::$f),
        i32: typed!(i32 => i32, $wholes, true, $whole, Number::$f),
        u32: typed!(u32 => u32, $wholes, false, $whole, Number::$f),
        f64: long!(f64: Number::$f),
        i64: long!(i64: Number::$f),
    } };
}

/// A comparison for every type, with the result 0 or 1.
macro_rules! comparison {
    ($f:expr, $wgsl:literal) => { Types {
        truth: true,
        f32: typed!(f32 => u32, Nothing, false, $wgsl, |x, y| u32::from($f(&x, &y))),
        i32: typed!(i32 => u32, Nothing, true, $wgsl, |x, y| u32::from($f(&x, &y))),
        u32: typed!(u32 => u32, Nothing, false, $wgsl, |x, y| u32::from($f(&x, &y))),
        f64: long!(f64 => truth: |x, y| $f(&x, &y)),
        i64: long!(i64 => truth: |x, y| $f(&x, &y)),
    } };
}

/// Formulas for f32, in Rust and in WGSL, and for f64.
macro_rules! floats {
    ($f:expr, $wgsl:literal, $double:expr) => {
        Types { f64: long!(f64: $double), ..floats!($f, $wgsl) }
    };
    ($f:expr, $wgsl:literal) => { Types { f32: typed!(f32 => f32, OfFloats, false, $wgsl, $f), ..NO_TYPES } };
}

/// Formulas for integers, in Rust and in WGSL, and for i64.
macro_rules! whole {
    ($f:expr, $wgsl:literal, $long:expr) => { Types {
        i32: typed!(i32 => i32, Nothing, true, $wgsl, $f),
        u32: typed!(u32 => u32, Nothing, false, $wgsl, $f),
        i64: long!(i64: $long),
        ..NO_TYPES
    } };
}

/// A formula for booleans, as words.
macro_rules! bits {
    ($truth:literal, $f:expr, $wgsl:literal) => {
        Types { truth: $truth, u32: typed!(u32 => u32, Nothing, false, $wgsl, $f), ..NO_TYPES }
    };
}

const NO_TYPES: Types = Types { truth: false, f32: None, i32: None, u32: None, f64: None, i64: None };

/// Returns whether a shift by this number of places stays within the 64 bits of an i64.
fn within(places: i64) -> bool {
    (0..64).contains(&places)
}

functions! {
    /// Returns `a − b`; see [`Tensor::add`] for broadcasting and types. Booleans are an error.
    sub => Sub {
        types: numbers!(minus, "x - y"),
        gradient: Some([smooth(0, |d| d.unchanged()), smooth(0, |d| d.g.neg())]),
        onnx: Operator("Sub"),
    }
    /// Returns `a · b`, element by element; see [`Tensor::add`] for broadcasting and types.
    mul => Mul {
        types: numbers!(times, "x * y"),
        gradient: Some([smooth(B, |d| d.g.mul(d.b)), smooth(A, |d| d.g.mul(d.a))]),
        onnx: Operator("Mul"),
    }
    /// Returns `a / b`; see [`Tensor::add`] for broadcasting. The quotient of integers is in f32; for whole quotients,
    /// use [`Tensor::div_trunc`] and [`Tensor::div_floor`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([-7, 7], None)?;
    /// assert_eq!(x.div(2)?.to_vec::<f32>()?, [-3.5, 3.5]);
    /// assert_eq!(x.div_trunc(2)?.to_vec::<i32>()?, [-3, 3]);
    /// assert_eq!(x.div_floor(2)?.to_vec::<i32>()?, [-4, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    div => Div {
        types: floats!(|x, y| x / y, "x / y", |x, y| x / y),
        // d(a / b) / db = −a / b² = −out / b
        gradient: Some([smooth(B, |d| d.g.div(d.b)), smooth(B | OUT, |d| d.g.mul(d.out)?.div(d.b)?.neg())]),
        onnx: Operator("Div"),
    }
    /// Returns `a / b` rounded towards 0, PyTorch's `rounding_mode='trunc'`. An integer divided by 0 does not change;
    /// PyTorch fails in this case. The gradient is 0.
    div_trunc => DivTrunc {
        types: numbers!(div_trunc, "m_div_trunc(x, y)", "quotient(x, y)"),
        gradient: Some([jumps(0, |d| d.zero()), jumps(0, |d| d.zero())]),
        onnx: Composed(PairComposition::DivTrunc),
    }
    /// Returns `a / b` rounded down, Python's `//` and PyTorch's `rounding_mode='floor'`. An integer divided by 0 does
    /// not change; PyTorch fails in this case. The gradient is 0.
    div_floor => DivFloor {
        types: numbers!(div_floor, "m_div_floor(x, y)", "div_floor(x, y)"),
        gradient: Some([jumps(0, |d| d.zero()), jumps(0, |d| d.zero())]),
        onnx: Composed(PairComposition::DivFloor),
    }
    /// Returns the remainder of `a / b` with the sign of b, Python's `%` and `torch.remainder`. It is exact: no
    /// quotient is rounded. The remainder of a division by 0 is NaN, and 0 for integers (PyTorch fails in this case).
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([-7, 7], None)?;
    /// assert_eq!(x.rem(3)?.to_vec::<i32>()?, [2, 1]);
    /// assert_eq!(x.fmod(3)?.to_vec::<i32>()?, [-1, 1]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    rem => Rem {
        types: numbers!(rem, "m_rem(x, y)", "rem(x, y)"),
        gradient: Some([jumps(0, |d| d.unchanged()), jumps(A | B, |d| d.times(BinaryFn::DivFloor, d.a, d.b)?.neg())]),
        onnx: Composed(PairComposition::Rem),
    }
    /// Returns the remainder of `a / b` with the sign of a, C's `fmod`. It is exact. The remainder of a division by 0
    /// is NaN, and 0 for integers (PyTorch fails in this case).
    fmod => Fmod {
        types: numbers!(fmod, "m_fmod(x, y)", "fmod(x, y)"),
        gradient: Some([jumps(0, |d| d.unchanged()), jumps(A | B, |d| d.times(BinaryFn::DivTrunc, d.a, d.b)?.neg())]),
        onnx: Composed(PairComposition::Fmod),
    }
    /// Returns `aᵇ`; see [`Tensor::add`] for broadcasting and types. As in C's `pow`, the result is NaN for negative a
    /// unless b is whole, and 1 for b = 0. Integers wrap around. Negative powers of integers are 0, except the powers
    /// of ±1.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1.0, -2.0, 3.0], None)?;
    /// assert_eq!(x.pow(2)?.to_vec::<f32>()?, [1.0, 4.0, 9.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pow => Pow {
        types: numbers!(power, "m_pow(x, y)", "whole_power(x, y)"),
        gradient: Some([
            smooth(A | B, |d| d.times(BinaryFn::PowBase, d.a, d.b)),
            smooth(A | B, |d| d.times(BinaryFn::PowExponent, d.a, d.b)),
        ]),
        onnx: Operator("Pow"),
    }
    /// Returns the larger of two elements; NaN if one is NaN. The gradient goes to the larger element; equal elements
    /// get half each.
    maximum => Maximum {
        types: numbers!(larger, "m_max(x, y)", "max(x, y)"),
        gradient: Some([
            jumps(A | B, |d| d.times(BinaryFn::Share, d.a, d.b)),
            jumps(A | B, |d| d.times(BinaryFn::Share, d.b, d.a)),
        ]),
        onnx: Operator("Max"),
    }
    /// Returns the smaller of two elements; NaN if one is NaN. The gradient goes to the smaller element; equal elements
    /// get half each.
    minimum => Minimum {
        types: numbers!(smaller, "m_min(x, y)", "min(x, y)"),
        gradient: Some([
            jumps(A | B, |d| d.times(BinaryFn::Share, d.b, d.a)),
            jumps(A | B, |d| d.times(BinaryFn::Share, d.a, d.b)),
        ]),
        onnx: Operator("Min"),
    }
    /// Returns the angle of the point (other, self) in radians, from −π to π: the arc tangent of `a / b` in the correct
    /// quadrant. Integers become f32.
    atan2 => Atan2 {
        types: floats!(f32::atan2, "m_atan2(x, y)", f64::atan2),
        // d atan2(a, b) = (b da − a db) / (a² + b²)
        gradient: Some([
            smooth(A | B, |d| d.times(BinaryFn::AngleGradient, d.a, d.b)),
            smooth(A | B, |d| d.times(BinaryFn::AngleGradient, d.b, d.a)?.neg()),
        ]),
        onnx: Nothing,
    }
    /// Returns the bitwise AND of two integers: the bits that are set in both. For booleans, returns whether both are
    /// true. See [`Tensor::add`] for broadcasting and types; floats are an error.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([6, -1], None)?;
    /// assert_eq!(x.bitwise_and(3)?.to_vec::<i32>()?, [2, 3]);
    /// assert_eq!(x.bitwise_xor(3)?.to_vec::<i32>()?, [5, -4]);
    /// assert_eq!(x.bitwise_left_shift(4)?.to_vec::<i32>()?, [96, -16]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    bitwise_and => BitwiseAnd {
        types: whole!(|x, y| x & y, "x & y", |x, y| x & y),
        gradient: None,
        onnx: Operator("BitwiseAnd"),
    }
    /// Returns the bitwise OR of two integers: the bits that are set in at least one of them. For booleans, returns
    /// whether at least one is true. Floats are an error.
    bitwise_or => BitwiseOr {
        types: whole!(|x, y| x | y, "x | y", |x, y| x | y),
        gradient: None,
        onnx: Operator("BitwiseOr"),
    }
    /// Returns the bitwise XOR of two integers: the bits that are set in exactly one of them. For booleans, returns
    /// whether exactly one is true. Floats are an error.
    bitwise_xor => BitwiseXor {
        types: whole!(|x, y| x ^ y, "x ^ y", |x, y| x ^ y),
        gradient: None,
        onnx: Operator("BitwiseXor"),
    }
    /// Returns the integers a shifted left by b bits. The result is 0 if b is negative or not below 32 (64 for i64).
    /// Floats and booleans are an error.
    bitwise_left_shift => LeftShift {
        types: whole!(
            |x, y| if (0..32).contains(&y) { x << y } else { 0 },
            "select(x << (u32(y) & 31u), T(0), u32(y) > 31u)",
            |x, y| if within(y) { x << y } else { 0 }
        ),
        gradient: None,
        onnx: Nothing,
    }
    /// Returns the integers a shifted right by b bits; i32 and i64 keep their sign. If b is negative or not below 32
    /// (64 for i64), the result is 0, or −1 for a negative a. Floats and booleans are an error.
    bitwise_right_shift => RightShift {
        // A shift by more leaves the sign.
        types: whole!(
            |x, y| if (0..32).contains(&y) { x >> y } else { x >> 31 >> 1 },
            "(x >> min(u32(y) / 2u, 16u)) >> min(u32(y) - u32(y) / 2u, 16u)",
            |x, y| if within(y) { x >> y } else { x >> 63 }
        ),
        gradient: None,
        onnx: Nothing,
    }
    /// Returns whether a = b, as [`DType::Bool`](crate::DType::Bool); see [`Tensor::add`] for broadcasting and types.
    /// NaN is not equal to any number, nor to NaN. The result has no gradient.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1, 2, 3], None)?;
    /// assert_eq!(x.eq(2)?.to_vec::<bool>()?, [false, true, false]);
    /// assert_eq!(x.lt(2.5)?.to_vec::<bool>()?, [true, true, false]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    eq => Eq {
        types: comparison!(PartialEq::eq, "select(0u, 1u, x == y)"),
        gradient: None,
        onnx: Operator("Equal"),
    }
    /// Returns whether a ≠ b, as [`DType::Bool`](crate::DType::Bool); true for NaN.
    ne => Ne {
        types: comparison!(PartialEq::ne, "select(1u, 0u, x == y)"), // SPIR-V's ≠ is false for NaN
        gradient: None,
        onnx: Composed(PairComposition::NotEqual),
    }
    /// Returns whether a < b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    lt => Lt {
        types: comparison!(PartialOrd::lt, "select(0u, 1u, x < y)"),
        gradient: None,
        onnx: Operator("Less"),
    }
    /// Returns whether a ≤ b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    le => Le {
        types: comparison!(PartialOrd::le, "select(0u, 1u, x <= y)"),
        gradient: None,
        onnx: Operator("LessOrEqual"),
    }
    /// Returns whether a > b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    gt => Gt {
        types: comparison!(PartialOrd::gt, "select(0u, 1u, x > y)"),
        gradient: None,
        onnx: Operator("Greater"),
    }
    /// Returns whether a ≥ b, as [`DType::Bool`](crate::DType::Bool); false for NaN.
    ge => Ge {
        types: comparison!(PartialOrd::ge, "select(0u, 1u, x >= y)"),
        gradient: None,
        onnx: Operator("GreaterOrEqual"),
    }

    "add" => Add {
        types: numbers!(plus, "x + y"),
        gradient: Some([smooth(0, |d| d.unchanged()), smooth(0, |d| d.unchanged())]),
        onnx: Operator("Add"),
    }
    // Of booleans.
    "add" => OrAdd {
        types: bits!(false, |x, y| x | y, "x | y"),
        gradient: None,
        onnx: Operator("Add"),
    }
    "logical_and" => And {
        types: bits!(true, |x, y| x & y, "x & y"),
        gradient: None,
        onnx: Operator("And"),
    }
    "logical_or" => Or {
        types: bits!(true, |x, y| x | y, "x | y"),
        gradient: None,
        onnx: Operator("Or"),
    }
    "logical_xor" => Xor {
        types: bits!(true, |x, y| x ^ y, "x ^ y"),
        gradient: None,
        onnx: Operator("Xor"),
    }

    // 1 where equal.
    factor "eq" => Same {
        types: floats!(|x, y| f32::from(u8::from(x == y)), "select(0.0, 1.0, x == y)"),
        gradient: Some([jumps(0, |d| d.zero()), jumps(0, |d| d.zero())]),
        onnx: Nothing,
    }
    // The share of the larger element.
    factor "maximum" => Share {
        types: floats!(|x, y| if x < y { 0.0 } else if x == y { 0.5 } else { 1.0 },
            "select(select(1.0, 0.5, x == y), 0.0, x < y)"),
        gradient: Some([jumps(0, |d| d.zero()), jumps(0, |d| d.zero())]),
        onnx: Nothing,
    }
    factor "pow" => PowBase {
        types: floats!(|x, y| if y == 0.0 { 0.0 } else { y * x.powf(y - 1.0) }, "power_by_base(x, y)"),
        gradient: Some([smooth(A | B, |d| d.of_power()), smooth(0, |_| Err(no_gradient("the gradient of pow")))]),
        onnx: Nothing,
    }
    factor "pow" => PowExponent {
        types: floats!(|x, y| if x == 0.0 && y >= 0.0 { 0.0 } else { x.powf(y) * x.ln() }, "power_by_exponent(x, y)"),
        gradient: None,
        onnx: Nothing,
    }
    factor "atan2" => AngleGradient {
        types: floats!(|x, y| if x == 0.0 && y == 0.0 { 0.0 } else { y / (x * x + y * y) },
            "select(y / (x * x + y * y), 0.0, x == 0.0 && y == 0.0)"),
        gradient: None,
        onnx: Nothing,
    }
}
