//! The table of the functions of one element. A row has all that the library knows of a function, and the method that
//! users call.

use std::f32::consts::{FRAC_2_SQRT_PI, LN_2};
use std::f64::consts;

use anygpu_host::vectorised;
use anygpu_host::vectors::Unfused;

use super::Bend::{By, Straight};
use super::Whole::{AsFloats, Own, Unchanged};
use super::doubles;
use super::special::{
    clamp, erf, exp, gelu_gradient, gelu_inner, gelu_slope, inside, normal, sigmoid, sign, softplus, tanh,
    tanh_softplus, wide,
};
use super::{
    FEW_CHUNKS, Formula, Function, Reads, Slope, each, each_slope, each_slope_of, each_slope_of_both, of_one, within,
};
use crate::error::Result;
use crate::ops::elementwise::onnx::Composition as Composed;
use crate::ops::elementwise::onnx::Onnx::{self, Operator};
use crate::ops::elementwise::onnx::Value::{Node, Number, X};
use crate::ops::elementwise::onnx::nodes;
use crate::tensor::Tensor;

/// Defines the functions: the enum, a row for each, and the methods of those that begin with documentation. The others come last,
/// and have methods of their own in `methods.rs`.
macro_rules! functions {
    (
        $(
            $(#[$doc:meta])+
            $method:ident($x:ident $(, $argument:ident: $t:ty)*) => $id:ident $([$a:expr, $b:expr])? { $($row:tt)* }
        )*
        $($other:literal => $other_id:ident { $($other_row:tt)* })*
    ) => {
        /// A function of one element.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum UnaryFn {
            $($id,)*
            $($other_id,)*
        }

        impl UnaryFn {
            pub const ALL: &[UnaryFn] = &[$(UnaryFn::$id,)* $(UnaryFn::$other_id,)*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(UnaryFn::$id => stringify!($method),)*
                    $(UnaryFn::$other_id => $other,)*
                }
            }

            pub(in crate::ops) fn row(self) -> &'static Function {
                match self {
                    $(UnaryFn::$id => {
                        static ROW: Function = Function { $($row)* };
                        &ROW
                    })*
                    $(UnaryFn::$other_id => {
                        static ROW: Function = Function { $($other_row)* };
                        &ROW
                    })*
                }
            }
        }

        impl Tensor {
            $(
                $(#[$doc])+
                ///
                /// The result has the same shape. Halves are computed as f32 and keep their type, and f64 is computed as f64.
                ///
                /// # Errors
                /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) if booleans are not allowed;
                /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if the device does not have enough memory for the
                /// result.
                pub fn $method(&self, $($argument: $t),*) -> Result<Tensor> {
                    of_one(UnaryFn::$id, self, functions!(@arguments $($a, $b)?))
                }
            )*
        }
    };
    (@arguments) => { [0.0; 2] };
    (@arguments $a:expr, $b:expr) => { [$a, $b] };
}

/// A formula of f32, in Rust and in WGSL, of x and of the arguments p. `vectorised` is for formulas whose arithmetic
/// takes longer than the access to memory or to a cache. With `<M>`, products and sums are rounded as M does.
macro_rules! f32 {
    (@row $chunks:expr, $wgsl:literal, $each:expr) => {
        Some(Formula {
            header: concat!("alias T = f32;\nalias R = f32;\nfn f(x: f32) -> f32 { return ", $wgsl, "; }\n"),
            each: $each,
            chunks: $chunks,
            truth: false,
        })
    };
    (vectorised<$m:ident>: $f:expr, $wgsl:literal) => {
        f32!(@row FEW_CHUNKS, $wgsl, |x, out, p| vectorised!(<$m> each::<f32, f32>(x, out, p, $f)))
    };
    (vectorised: $f:expr, $wgsl:literal) => {
        f32!(@row FEW_CHUNKS, $wgsl, |x, out, p| vectorised!(each::<f32, f32>(x, out, p, $f)))
    };
    ($f:expr, $wgsl:literal) => { f32!(@row 1, $wgsl, |x, out, p| each::<f32, f32>(x, out, p, $f)) };
}

/// A formula of another type, or one of any type whose result is 0 or 1.
macro_rules! words {
    (@row $t:ident => $r:ident, $truth:literal, $f:expr, $wgsl:literal) => {
        Some(Formula {
            header: concat!(
                "alias T = ", stringify!($t), ";\nalias R = ", stringify!($r), ";\nfn f(x: T) -> R { return ", $wgsl, "; }\n"
            ),
            each: |x, out, p| each::<$t, $r>(x, out, p, $f),
            chunks: 1,
            truth: $truth,
        })
    };
    ($t:ident => truth: $f:expr, $wgsl:literal) => { words!(@row $t => u32, true, $f, $wgsl) };
    ($t:ident: $f:expr, $wgsl:literal) => { words!(@row $t => $t, false, $f, $wgsl) };
}

/// The gradient. First what its formula reads besides g and the arguments p (`none`, `x`, the result `y` or `both`),
/// and whether it is `vectorised`. Then the formula in Rust, which gets exactly those values, and in WGSL. Then the
/// derivative of the factor of g: with tensors, so that there are further derivatives, or `Straight` if it is 0 except
/// at jumps.
macro_rules! slope {
    ($reads:ident $($level:ident $(<$m:ident>)?)?: $d:expr, $wgsl:literal $(; $bend:expr)?) => {
        Some(Slope {
            header: concat!("fn d(g: f32, x: f32, y: f32) -> f32 { return ", $wgsl, "; }\n"),
            each: |inputs, out, p| slope!(@run $($level $(<$m>)?)? slope!(@each $reads inputs, out, p, $d)),
            reads: slope!(@reads $reads $($bend)?),
        })
    };
    (@run vectorised<$m:ident> $loop:expr) => { vectorised!(<$m> $loop) };
    (@run vectorised $loop:expr) => { vectorised!($loop) };
    (@run $loop:expr) => { $loop };
    (@each none $inputs:ident, $out:ident, $p:ident, $d:expr) => { each_slope($inputs[0], $out, $p, $d) };
    (@each x $inputs:ident, $out:ident, $p:ident, $d:expr) => { each_slope_of([$inputs[0], $inputs[1]], $out, $p, $d) };
    (@each y $inputs:ident, $out:ident, $p:ident, $d:expr) => { each_slope_of([$inputs[0], $inputs[2]], $out, $p, $d) };
    (@each both $inputs:ident, $out:ident, $p:ident, $d:expr) => { each_slope_of_both($inputs, $out, $p, $d) };
    (@reads none) => { Reads::Nothing };
    (@reads x $bend:expr) => { Reads::X($bend) };
    (@reads y $bend:expr) => { Reads::Y($bend) };
    (@reads both $bend:expr) => { Reads::Both($bend) };
}

/// 1 − x²
fn rest(x: &Tensor) -> Result<Tensor> {
    x.square()?.neg()?.add(1.0)
}

/// σ (1 − σ), for σ of the sigmoid.
fn sigmoid_slope(gate: &Tensor) -> Result<Tensor> {
    gate.mul(&gate.neg()?.add(1.0)?)
}

functions! {
    /// Returns `−x`. Integers keep their type and wrap around; booleans are an error (see [`Tensor::logical_not`]).
    neg(x) => Neg {
        f32: f32!(|x, _| -x, "-x"),
        gradient: slope!(none: |g, _| -g, "-g"),
        f64: Some(|x, _| -x),
        whole: Own {
            i32: words!(i32: |x, _| x.wrapping_neg(), "0i - x"),
            u32: words!(u32: |x, _| x.wrapping_neg(), "0u - x"),
            i64: Some(i64::wrapping_neg),
            booleans: false,
        },
        onnx: Operator("Neg"),
    }
    /// Returns `|x|` in the same type; the gradient at 0 is 0.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([-1.5, 2.0], None)?.abs()?.to_vec::<f32>()?, [1.5, 2.0]);
    /// assert_eq!(Tensor::new([-3, 2], None)?.abs()?.to_vec::<i32>()?, [3, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    abs(x) => Abs {
        f32: f32!(|x, _| x.abs(), "abs(x)"),
        gradient: slope!(x: |g, x, _| g * sign(x), "g * select(sign(x), 0.0, is_nan(x))"; Straight),
        f64: Some(|x, _| x.abs()),
        whole: Own {
            i32: words!(i32: |x, _| x.wrapping_abs(), "abs(x)"),
            u32: None,
            i64: Some(i64::wrapping_abs),
            booleans: false,
        },
        onnx: Operator("Abs"),
    }
    /// Returns −1, 0 or 1 by the sign, in the same type; 0 for NaN. The gradient is 0.
    sign(x) => Sign {
        f32: f32!(|x, _| sign(x), "select(sign(x), 0.0, is_nan(x))"),
        gradient: slope!(none: |_, _| 0.0, "0.0"),
        f64: Some(|x, _| doubles::sign(x)),
        whole: Own {
            i32: words!(i32: |x, _| x.signum(), "sign(x)"),
            u32: words!(u32: |x, _| x.min(1), "min(x, 1u)"),
            i64: Some(i64::signum),
            booleans: true,
        },
        onnx: Operator("Sign"),
    }
    /// Returns `x²`. Integers keep their type and wrap around; booleans are an error.
    square(x) => Square {
        f32: f32!(|x, _| x * x, "x * x"),
        gradient: slope!(x: |g, x, _| 2.0 * g * x, "2.0 * g * x"; By(|x, _| x.ones_like()?.mul(2.0))),
        f64: Some(|x, _| x * x),
        whole: Own {
            i32: words!(i32: |x, _| x.wrapping_mul(x), "x * x"),
            u32: words!(u32: |x, _| x.wrapping_mul(x), "x * x"),
            i64: Some(|x| x.wrapping_mul(x)),
            booleans: false,
        },
        onnx: nodes(&[("Mul", &[X, X])]),
    }
    /// Returns the largest whole number that is not above x. Integers do not change. The gradient is 0.
    floor(x) => Floor {
        f32: f32!(|x, _| x.floor(), "floor(x)"),
        gradient: slope!(none: |_, _| 0.0, "0.0"),
        f64: Some(|x, _| x.floor()),
        whole: Unchanged,
        onnx: Operator("Floor"),
    }
    /// Returns the smallest whole number that is not below x. Integers do not change. The gradient is 0.
    ceil(x) => Ceil {
        f32: f32!(|x, _| x.ceil(), "ceil(x)"),
        gradient: slope!(none: |_, _| 0.0, "0.0"),
        f64: Some(|x, _| x.ceil()),
        whole: Unchanged,
        onnx: Operator("Ceil"),
    }
    /// Returns the nearest whole number; ties go to the even one. Integers do not change. The gradient is 0.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([0.5, 1.5, 2.5, -1.2], None)?;
    /// assert_eq!(x.round()?.to_vec::<f32>()?, [0.0, 2.0, 2.0, -1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    round(x) => Round {
        f32: f32!(|x, _| x.round_ties_even(), "round(x)"),
        gradient: slope!(none: |_, _| 0.0, "0.0"),
        f64: Some(|x, _| x.round_ties_even()),
        whole: Unchanged,
        onnx: Operator("Round"),
    }
    /// Returns x without its fraction. Integers do not change. The gradient is 0.
    trunc(x) => Trunc {
        f32: f32!(|x, _| x.trunc(), "trunc(x)"),
        gradient: slope!(none: |_, _| 0.0, "0.0"),
        f64: Some(|x, _| x.trunc()),
        whole: Unchanged,
        onnx: Onnx::Composed(Composed::Trunc),
    }
    /// Returns `1 / x`; ±∞ at 0. Integers become f32.
    recip(x) => Recip {
        f32: f32!(|x, _| 1.0 / x, "1.0 / x"),
        gradient: slope!(y: |g, y, _| -g * y * y, "-g * y * y"; By(|y, _| y.mul(-2.0))),
        f64: Some(|x, _| 1.0 / x),
        whole: AsFloats,
        onnx: Operator("Reciprocal"),
    }
    /// Returns `eˣ`. Integers become f32.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([0.0, f32::NEG_INFINITY], None)?.exp()?.to_vec::<f32>()?, [1.0, 0.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    exp(x) => Exp {
        f32: f32!(vectorised<M>: |x, _| exp::<M>(x), "m_exp(x)"),
        gradient: slope!(y vectorised: |g, y, _| g * y, "g * y"; By(|y, _| y.ones_like())),
        f64: Some(|x, _| x.exp()),
        whole: AsFloats,
        onnx: Operator("Exp"),
    }
    /// Returns `2ˣ`. Integers become f32.
    exp2(x) => Exp2 {
        f32: f32!(|x, _| x.exp2(), "m_exp2(x)"),
        gradient: slope!(y: |g, y, _| g * y * LN_2, "g * y * LN2"; By(|y, _| y.ones_like()?.mul(consts::LN_2))),
        f64: Some(|x, _| x.exp2()),
        whole: AsFloats,
        onnx: nodes(&[("Pow", &[Number(2.0), X])]),
    }
    /// Returns `eˣ − 1`, precise near 0. Integers become f32.
    expm1(x) => Expm1 {
        f32: f32!(|x, _| x.exp_m1(), "m_expm1(x)"),
        gradient: slope!(y: |g, y, _| g * (y + 1.0), "g * (y + 1.0)"; By(|y, _| y.ones_like())),
        f64: Some(|x, _| x.exp_m1()),
        whole: AsFloats,
        onnx: Onnx::Composed(Composed::Expm1),
    }
    /// Returns the natural logarithm: −∞ at 0, NaN below 0. Integers become f32.
    log(x) => Log {
        f32: f32!(|x, _| x.ln(), "m_log(x)"),
        gradient: slope!(x: |g, x, _| g / x, "g / x"; By(|x, _| x.square()?.recip()?.neg())),
        f64: Some(|x, _| x.ln()),
        whole: AsFloats,
        onnx: Operator("Log"),
    }
    /// Returns the logarithm to base 2, exact for powers of 2: −∞ at 0, NaN below 0. Integers become f32.
    log2(x) => Log2 {
        f32: f32!(|x, _| x.log2(), "m_log2(x)"),
        gradient: slope!(x: |g, x, _| g / (x * LN_2), "g / (x * LN2)";
            By(|x, _| x.square()?.recip()?.mul(-1.0 / consts::LN_2))),
        f64: Some(|x, _| x.log2()),
        whole: AsFloats,
        onnx: nodes(&[("Log", &[X]), ("Div", &[Node(0), Number(consts::LN_2)])]),
    }
    /// Returns `ln(1 + x)`, precise near 0: −∞ at −1, NaN below −1. Integers become f32.
    log1p(x) => Log1p {
        f32: f32!(|x, _| x.ln_1p(), "m_log1p(x)"),
        gradient: slope!(x: |g, x, _| g / (x + 1.0), "g / (x + 1.0)";
            By(|x, _| x.add(1.0)?.square()?.recip()?.neg())),
        f64: Some(|x, _| x.ln_1p()),
        whole: AsFloats,
        onnx: Onnx::Composed(Composed::Log1p),
    }
    /// Returns the square root: NaN below 0. Integers become f32.
    sqrt(x) => Sqrt {
        f32: f32!(|x, _| x.sqrt(), "sqrt(x)"),
        gradient: slope!(y: |g, y, _| g / (2.0 * y), "g / (2.0 * y)"; By(|y, _| y.square()?.recip()?.mul(-0.5))),
        f64: Some(|x, _| x.sqrt()),
        whole: AsFloats,
        onnx: Operator("Sqrt"),
    }
    /// Returns `1 / √x`: ∞ at 0, NaN below 0. Integers become f32.
    rsqrt(x) => Rsqrt {
        f32: f32!(|x, _| 1.0 / x.sqrt(), "1.0 / sqrt(x)"),
        gradient: slope!(y: |g, y, _| -0.5 * g * y * y * y, "-0.5 * g * y * y * y"; By(|y, _| y.square()?.mul(-1.5))),
        f64: Some(|x, _| 1.0 / x.sqrt()),
        whole: AsFloats,
        onnx: nodes(&[("Sqrt", &[X]), ("Reciprocal", &[Node(0)])]),
    }
    /// Returns the sine of x in radians, however large x is; NaN for ±∞. Integers become f32.
    sin(x) => Sin {
        f32: f32!(|x, _| x.sin(), "m_sin(x)"),
        gradient: slope!(x: |g, x, _| g * x.cos(), "g * m_cos(x)"; By(|x, _| x.sin()?.neg())),
        f64: Some(|x, _| x.sin()),
        whole: AsFloats,
        onnx: Operator("Sin"),
    }
    /// Returns the cosine of x in radians, however large x is; NaN for ±∞. Integers become f32.
    cos(x) => Cos {
        f32: f32!(|x, _| x.cos(), "m_cos(x)"),
        gradient: slope!(x: |g, x, _| -g * x.sin(), "-g * m_sin(x)"; By(|x, _| x.cos()?.neg())),
        f64: Some(|x, _| x.cos()),
        whole: AsFloats,
        onnx: Operator("Cos"),
    }
    /// Returns the tangent of x in radians, however large x is; NaN for ±∞. Integers become f32.
    tan(x) => Tan {
        f32: f32!(|x, _| x.tan(), "m_tan(x)"),
        gradient: slope!(y: |g, y, _| g * (1.0 + y * y), "g * (1.0 + y * y)"; By(|y, _| y.mul(2.0))),
        f64: Some(|x, _| x.tan()),
        whole: AsFloats,
        onnx: Operator("Tan"),
    }
    /// Returns the angle in radians, from −π/2 to π/2, whose sine is x: NaN beyond ±1. Integers become f32.
    asin(x) => Asin {
        f32: f32!(|x, _| x.asin(), "m_asin(x)"),
        gradient: slope!(x: |g, x, _| g / ((1.0 - x) * (1.0 + x)).sqrt(), "g / sqrt((1.0 - x) * (1.0 + x))";
            By(|x, _| rest(x)?.pow(-1.5)?.mul(x))),
        f64: Some(|x, _| x.asin()),
        whole: AsFloats,
        onnx: Operator("Asin"),
    }
    /// Returns the angle in radians, from 0 to π, whose cosine is x: NaN beyond ±1. Integers become f32.
    acos(x) => Acos {
        f32: f32!(|x, _| x.acos(), "m_acos(x)"),
        gradient: slope!(x: |g, x, _| -g / ((1.0 - x) * (1.0 + x)).sqrt(), "-g / sqrt((1.0 - x) * (1.0 + x))";
            By(|x, _| rest(x)?.pow(-1.5)?.mul(x)?.neg())),
        f64: Some(|x, _| x.acos()),
        whole: AsFloats,
        onnx: Operator("Acos"),
    }
    /// Returns the angle in radians, from −π/2 to π/2, whose tangent is x. Integers become f32. See also
    /// [`Tensor::atan2`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([0.0, f32::INFINITY], None)?;
    /// assert_eq!(x.atan()?.to_vec::<f32>()?, [0.0, std::f32::consts::FRAC_PI_2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    atan(x) => Atan {
        f32: f32!(|x, _| x.atan(), "m_atan(x)"),
        gradient: slope!(x: |g, x, _| g / (1.0 + x * x), "g / (1.0 + x * x)";
            By(|x, _| x.square()?.add(1.0)?.square()?.recip()?.mul(x)?.mul(-2.0))),
        f64: Some(|x, _| x.atan()),
        whole: AsFloats,
        onnx: Operator("Atan"),
    }
    /// Returns the hyperbolic sine. Integers become f32.
    sinh(x) => Sinh {
        f32: f32!(|x, _| x.sinh(), "m_sinh(x)"),
        gradient: slope!(x: |g, x, _| g * x.cosh(), "g * m_cosh(x)"; By(|x, _| x.sinh())),
        f64: Some(|x, _| x.sinh()),
        whole: AsFloats,
        onnx: Operator("Sinh"),
    }
    /// Returns the hyperbolic cosine. Integers become f32.
    cosh(x) => Cosh {
        f32: f32!(|x, _| x.cosh(), "m_cosh(x)"),
        gradient: slope!(x: |g, x, _| g * x.sinh(), "g * m_sinh(x)"; By(|x, _| x.cosh())),
        f64: Some(|x, _| x.cosh()),
        whole: AsFloats,
        onnx: Operator("Cosh"),
    }
    /// Returns the number whose hyperbolic sine is x. Integers become f32.
    asinh(x) => Asinh {
        f32: f32!(|x, _| wide(x, f64::asinh), "m_asinh(x)"),
        gradient: slope!(x: |g, x, _| g / (x * x + 1.0).sqrt(), "g / sqrt(x * x + 1.0)";
            By(|x, _| x.square()?.add(1.0)?.pow(-1.5)?.mul(x)?.neg())),
        f64: Some(|x, _| x.asinh()),
        whole: AsFloats,
        onnx: Operator("Asinh"),
    }
    /// Returns the number, at least 0, whose hyperbolic cosine is x: NaN below 1. Integers become f32.
    acosh(x) => Acosh {
        f32: f32!(|x, _| wide(x, f64::acosh), "m_acosh(x)"),
        gradient: slope!(x: |g, x, _| g / ((x - 1.0) * (x + 1.0)).sqrt(), "g / sqrt((x - 1.0) * (x + 1.0))";
            By(|x, _| x.square()?.sub(1.0)?.pow(-1.5)?.mul(x)?.neg())),
        f64: Some(|x, _| x.acosh()),
        whole: AsFloats,
        onnx: Operator("Acosh"),
    }
    /// Returns the number whose hyperbolic tangent is x: ±∞ at ±1, NaN beyond. Integers become f32.
    atanh(x) => Atanh {
        f32: f32!(|x, _| wide(x, f64::atanh), "m_atanh(x)"),
        gradient: slope!(x: |g, x, _| g / ((1.0 - x) * (1.0 + x)), "g / ((1.0 - x) * (1.0 + x))";
            By(|x, _| rest(x)?.square()?.recip()?.mul(x)?.mul(2.0))),
        f64: Some(|x, _| x.atanh()),
        whole: AsFloats,
        onnx: Operator("Atanh"),
    }
    /// Returns the hyperbolic tangent. Integers become f32.
    tanh(x) => Tanh {
        f32: f32!(vectorised<M>: |x, _| tanh::<M>(x), "m_tanh(x)"),
        gradient: slope!(y vectorised: |g, y, _| g * (1.0 - y * y), "g * (1.0 - y * y)"; By(|y, _| y.mul(-2.0))),
        f64: Some(|x, _| x.tanh()),
        whole: AsFloats,
        onnx: Operator("Tanh"),
    }
    /// Returns `1 / (1 + e⁻ˣ)`. Integers become f32.
    sigmoid(x) => Sigmoid {
        f32: f32!(vectorised<M>: |x, _| sigmoid::<M>(x), "m_sigmoid(x)"),
        gradient: slope!(y vectorised: |g, y, _| g * y * (1.0 - y), "g * y * (1.0 - y)";
            By(|y, _| y.mul(-2.0)?.add(1.0))),
        f64: Some(|x, _| doubles::sigmoid(x)),
        whole: AsFloats,
        onnx: Operator("Sigmoid"),
    }
    /// Returns the error function, `2/√π · ∫₀ˣ e^(−t²) dt`. Integers become f32.
    erf(x) => Erf {
        f32: f32!(|x, _| erf(x), "m_erf(x)"),
        gradient: slope!(x: |g, x, _| g * FRAC_2_SQRT_PI * exp::<Unfused>(-x * x), "g * 1.1283792 * m_exp(-x * x)";
            By(|x, _| x.square()?.neg()?.exp()?.mul(x)?.mul(-2.0 * consts::FRAC_2_SQRT_PI))),
        f64: Some(|x, _| doubles::erf(x)),
        whole: AsFloats,
        onnx: Operator("Erf"),
    }
    /// Returns the Gaussian error linear unit, `x · Φ(x)` with the normal distribution function Φ: PyTorch's default
    /// form. At ∞ it is ∞; PyTorch 2.15 returns NaN there.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let y = Tensor::new([-1.0, 0.0, 1.0], None)?.gelu()?.to_vec::<f32>()?;
    /// assert!((y[0] + 0.158_655_25).abs() < 1e-6 && y[1] == 0.0 && (y[2] - 0.841_344_75).abs() < 1e-6);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    gelu(x) => Gelu {
        f32: f32!(vectorised<M>: |x, _| x * normal::<M>(x).0, "x * normal_cdf(x)"),
        gradient: slope!(x vectorised<M>: |g, x, _| g * gelu_slope::<M>(x), "g * (normal_cdf(x) + x * normal_density(x))";
            // φ(x) (2 − x²), for the density φ of the normal distribution
            By(|x, _| {
                let density = x.square()?.mul(-0.5)?.exp()?.mul((2.0 * consts::PI).sqrt().recip())?;
                density.mul(&x.square()?.neg()?.add(2.0)?)
            })),
        f64: Some(|x, _| x * 0.5 * doubles::erfc(-x * consts::FRAC_1_SQRT_2)),
        whole: AsFloats,
        onnx: nodes(&[
            ("Mul", &[X, Number(consts::FRAC_1_SQRT_2)]),
            ("Erf", &[Node(0)]),
            ("Add", &[Node(1), Number(1.0)]),
            ("Mul", &[X, Node(2)]),
            ("Mul", &[Node(3), Number(0.5)]),
        ]),
    }
    /// Returns GELU's approximation, `½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))`: PyTorch's `approximate='tanh'`.
    gelu_tanh(x) => GeluTanh {
        f32: f32!(vectorised<M>: |x, _| x * sigmoid::<M>(gelu_inner(x)), "x * m_sigmoid(gelu_inner(x))"),
        gradient: slope!(x vectorised<M>: |g, x, _| g * gelu_gradient(x, sigmoid::<M>(gelu_inner(x))),
            "g * gelu_gradient(x, m_sigmoid(gelu_inner(x)))";
            // Of x σ(u), with u = 2 √(2/π) (x + 0.044715 x³): 2 σ′ u′ + x (σ″ u′² + σ′ u″), where σ″ = σ′ (1 − 2 σ)
            By(|x, _| {
                let (scale, cubic) = ((8.0 / consts::PI).sqrt(), 0.044715);
                let square = x.square()?;
                let gate = square.mul(cubic)?.add(1.0)?.mul(x)?.mul(scale)?.sigmoid()?;
                let first = square.mul(3.0 * cubic)?.add(1.0)?.mul(scale)?;
                let second = x.mul(6.0 * cubic * scale)?;
                let bend = gate.mul(-2.0)?.add(1.0)?.mul(&first.square()?)?.add(&second)?;
                first.mul(2.0)?.add(&x.mul(&bend)?)?.mul(&sigmoid_slope(&gate)?)
            })),
        f64: Some(|x, _| 0.5 * x * (1.0 + ((2.0 / consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())),
        whole: AsFloats,
        // x · sigmoid(√(8/π) (x + 0.044715 x³)), which is x (1 + tanh(…)) / 2
        onnx: nodes(&[
            ("Mul", &[X, X]),
            ("Mul", &[Node(0), Number(0.044715)]),
            ("Add", &[Node(1), Number(1.0)]),
            ("Mul", &[X, Node(2)]),
            ("Mul", &[Node(3), Number(1.595_769_121_605_730_8)]),
            ("Sigmoid", &[Node(4)]),
            ("Mul", &[X, Node(5)]),
        ]),
    }
    /// Returns the sigmoid linear unit or swish, `x / (1 + e⁻ˣ)`.
    silu(x) => Silu {
        f32: f32!(vectorised<M>: |x, _| x * sigmoid::<M>(x), "x * m_sigmoid(x)"),
        gradient: slope!(x vectorised<M>: |g, x, _| g * sigmoid::<M>(x) * (1.0 + x * sigmoid::<M>(-x)),
            "g * m_sigmoid(x) * (1.0 + x * m_sigmoid(-x))";
            // σ′ (2 + x (1 − 2 σ))
            By(|x, _| {
                let gate = x.sigmoid()?;
                gate.mul(-2.0)?.add(1.0)?.mul(x)?.add(2.0)?.mul(&sigmoid_slope(&gate)?)
            })),
        f64: Some(|x, _| x * doubles::sigmoid(x)),
        whole: AsFloats,
        onnx: nodes(&[("Sigmoid", &[X]), ("Mul", &[X, Node(0)])]),
    }
    /// Returns `ln(1 / (1 + e⁻ˣ))`, without overflow.
    log_sigmoid(x) => LogSigmoid {
        f32: f32!(|x, _| -softplus(-x), "-m_softplus(-x)"),
        gradient: slope!(x: |g, x, _| g * sigmoid::<Unfused>(-x), "g * m_sigmoid(-x)";
            By(|x, _| x.sigmoid()?.mul(&x.neg()?.sigmoid()?)?.neg())),
        f64: Some(|x, _| -doubles::softplus(-x)),
        whole: AsFloats,
        onnx: nodes(&[("Neg", &[X]), ("Softplus", &[Node(0)]), ("Neg", &[Node(1)])]),
    }
    /// Returns `x · tanh(ln(1 + eˣ))`.
    mish(x) => Mish {
        f32: f32!(vectorised<M>: |x, _| x * tanh_softplus::<M>(x), "x * tanh_softplus(x)"),
        gradient: slope!(x vectorised<M>:
            |g, x, _| g * (tanh_softplus::<M>(x) + x * (1.0 - tanh_softplus::<M>(x).powi(2)) * sigmoid::<M>(x)),
            "g * (tanh_softplus(x) + x * (1.0 - tanh_softplus(x) * tanh_softplus(x)) * m_sigmoid(x))";
            // (1 − t²) σ (2 + x (1 − σ (1 + 2 t))), with t = tanh(ln(1 + eˣ))
            By(|x, _| {
                let (gate, t) = (x.sigmoid()?, x.softplus(1.0, 20.0)?.tanh()?);
                let turn = t.mul(-2.0)?.sub(1.0)?.mul(&gate)?.add(1.0)?;
                x.mul(&turn)?.add(2.0)?.mul(&gate)?.mul(&rest(&t)?)
            })),
        f64: Some(|x, _| x * doubles::softplus(x).tanh()),
        whole: AsFloats,
        onnx: Operator("Mish"),
    }
    /// Returns `x · min(max(x + 3, 0), 6) / 6`.
    hardswish(x) => Hardswish {
        f32: f32!(vectorised: |x, _| x * clamp(x + 3.0, [0.0, 6.0]) / 6.0, "x * clamp(x + 3.0, 0.0, 6.0) / 6.0"),
        gradient: slope!(x vectorised: |g, x, _| if x <= -3.0 { 0.0 } else if x >= 3.0 { g } else { g * (x / 3.0 + 0.5) },
            "g * select(select(x / 3.0 + 0.5, 1.0, x >= 3.0), 0.0, x <= -3.0)";
            By(|x, _| within(&x.abs()?.lt(3.0)?)?.mul(1.0 / 3.0))),
        f64: Some(|x, _| x * doubles::limited(x + 3.0, [0.0, 6.0]) / 6.0),
        whole: AsFloats,
        onnx: Operator("HardSwish"),
    }
    /// Returns `min(max(x + 3, 0), 6) / 6`.
    hardsigmoid(x) => Hardsigmoid {
        f32: f32!(vectorised: |x, _| clamp(x + 3.0, [0.0, 6.0]) / 6.0,
            "select(clamp(x + 3.0, 0.0, 6.0) / 6.0, x, is_nan(x))"),
        gradient: slope!(x vectorised: |g, x, _| if x > -3.0 && x < 3.0 { g / 6.0 } else { 0.0 },
            "select(0.0, g / 6.0, x > -3.0 && x < 3.0)"; Straight),
        f64: Some(|x, _| doubles::limited(x + 3.0, [0.0, 6.0]) / 6.0),
        whole: AsFloats,
        onnx: Onnx::Composed(Composed::HardSigmoid),
    }
    /// Returns `x / (1 + |x|)`.
    softsign(x) => Softsign {
        f32: f32!(|x, _| x / (1.0 + x.abs()), "x / (1.0 + abs(x))"),
        gradient: slope!(x: |g, x, _| if x.is_finite() { g / (1.0 + x.abs()) / (1.0 + x.abs()) } else { f32::NAN },
            "finite_only(x, g / (1.0 + abs(x)) / (1.0 + abs(x)))";
            By(|x, _| x.abs()?.add(1.0)?.pow(-3.0)?.mul(&x.sign()?)?.mul(-2.0))),
        f64: Some(|x, _| x / (1.0 + x.abs())),
        whole: AsFloats,
        onnx: Operator("Softsign"),
    }
    /// Returns `x` if it is above 0, else `negative_slope · x` (PyTorch's default slope is 0.01). Integers become f32.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([-2.0, 3.0], None)?.leaky_relu(0.5)?.to_vec::<f32>()?, [-1.0, 3.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    leaky_relu(x, negative_slope: f32) => LeakyRelu [negative_slope, 0.0] {
        f32: f32!(|x, p| if x > 0.0 { x } else { p[0] * x }, "select(p.a * x, x, x > 0.0)"),
        gradient: slope!(x: |g, x, p| if x > 0.0 { g } else { p[0] * g }, "select(p.a * g, g, x > 0.0)"; Straight),
        f64: Some(|x, p| if x > 0.0 { x } else { p[0] * x }),
        whole: AsFloats,
        onnx: Onnx::Composed(Composed::LeakyRelu),
    }
    /// Returns `x` if it is above 0, else `alpha · (eˣ − 1)` (PyTorch's default alpha is 1). Integers become f32.
    elu(x, alpha: f32) => Elu [alpha, 0.0] {
        f32: f32!(|x, p| if x > 0.0 { x } else { p[0] * x.exp_m1() }, "select(p.a * m_expm1(x), x, x > 0.0)"),
        gradient: slope!(both: |g, x, y, p| if x > 0.0 { g } else { g * (y + p[0]) },
            "select(g * (y + p.a), g, x > 0.0)"; |x, _, _| Ok([None, Some(within(&x.le(0.0)?)?)])),
        f64: Some(|x, p| if x > 0.0 { x } else { p[0] * x.exp_m1() }),
        whole: AsFloats,
        onnx: Onnx::Composed(Composed::Elu),
    }
    /// Returns `ln(1 + e^(beta · x)) / beta`, or `x` where `beta · x` is above `threshold` (PyTorch's defaults: 1 and
    /// 20). Integers become f32.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let y = Tensor::new([0.0, 100.0], None)?.softplus(1.0, 20.0)?.to_vec::<f32>()?;
    /// assert!((y[0] - 2f32.ln()).abs() < 1e-6 && y[1] == 100.0);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    softplus(x, beta: f32, threshold: f32) => Softplus [beta, threshold] {
        f32: f32!(|x, p| if x * p[0] > p[1] { x } else { softplus(x * p[0]) / p[0] },
            "select(m_softplus(x * p.a) / p.a, x, x * p.a > p.b)"),
        gradient: slope!(x: |g, x, p| if x * p[0] > p[1] { g } else { g * sigmoid::<Unfused>(x * p[0]) },
            "select(g * m_sigmoid(x * p.a), g, x * p.a > p.b)";
            By(|x, [a, b]| {
                let gate = x.mul(a)?.sigmoid()?;
                let below = within(&x.mul(a)?.le(b)?)?;
                sigmoid_slope(&gate)?.mul(a)?.mul(&below)
            })),
        f64: Some(|x, p| if x * p[0] > p[1] { x } else { doubles::softplus(x * p[0]) / p[0] }),
        whole: AsFloats,
        onnx: Onnx::Composed(Composed::Softplus),
    }
    /// Returns whether each element is NaN, as [`DType::Bool`](crate::DType::Bool) of the same shape.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1.0, f32::NAN, f32::INFINITY], None)?;
    /// assert_eq!(x.isnan()?.to_vec::<bool>()?, [false, true, false]);
    /// assert_eq!(x.isfinite()?.to_vec::<bool>()?, [true, false, false]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    isnan(x) => IsNan {
        f32: words!(f32 => truth: |x, _| u32::from(x.is_nan()), "select(0u, 1u, is_nan(x))"),
        gradient: None,
        f64: Some(|x, _| f64::from(u8::from(x.is_nan()))),
        whole: AsFloats,
        onnx: Operator("IsNaN"),
    }
    /// Returns whether each element is ∞ or −∞, as [`DType::Bool`](crate::DType::Bool) of the same shape.
    isinf(x) => IsInf {
        f32: words!(f32 => truth: |x, _| u32::from(x.is_infinite()),
            "select(0u, 1u, (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u)"),
        gradient: None,
        f64: Some(|x, _| f64::from(u8::from(x.is_infinite()))),
        whole: AsFloats,
        onnx: Operator("IsInf"),
    }
    /// Returns whether each element is neither infinite nor NaN, as [`DType::Bool`](crate::DType::Bool) of the same shape.
    isfinite(x) => IsFinite {
        f32: words!(f32 => truth: |x, _| u32::from(x.is_finite()),
            "select(0u, 1u, (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u)"),
        gradient: None,
        f64: Some(|x, _| f64::from(u8::from(x.is_finite()))),
        whole: AsFloats,
        onnx: Onnx::Composed(Composed::IsFinite),
    }
    /// Returns whether each element is 0 or false, as [`DType::Bool`](crate::DType::Bool).
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([0, 2], None)?.logical_not()?.to_vec::<bool>()?, [true, false]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    logical_not(x) => Not {
        f32: words!(f32 => truth: |x, _| u32::from(x == 0.0), "select(0u, 1u, x == 0.0 && !is_nan(x))"),
        gradient: None,
        f64: Some(|x, _| f64::from(u8::from(x == 0.0))),
        whole: Own {
            i32: words!(i32 => truth: |x, _| u32::from(x == 0), "select(0u, 1u, x == 0i)"),
            u32: words!(u32 => truth: |x, _| u32::from(x == 0), "select(0u, 1u, x == 0u)"),
            i64: Some(|x| i64::from(x == 0)),
            booleans: true,
        },
        onnx: Operator("Not"),
    }

    "relu" => Relu {
        // Tests the bits for a number that is not above 0. A compiler may replace a comparison by max, which drops NaN.
        f32: f32!(vectorised: |x, _| if x <= 0.0 { 0.0 } else { x },
            "select(x, 0.0, bitcast<u32>(x) - 0x80000000u <= 0x7f800000u)"),
        // NaN keeps the gradient, as in PyTorch.
        gradient: slope!(y vectorised: |g, y, _| if y == 0.0 { 0.0 } else { g }, "select(g, 0.0, bitcast<u32>(y) == 0u)";
            Straight),
        f64: Some(|x, _| if x <= 0.0 { 0.0 } else { x }),
        whole: AsFloats,
        onnx: Operator("Relu"),
    }
    "clamp" => Clamp {
        f32: f32!(vectorised: clamp, "select(min(max(x, p.a), p.b), x, is_nan(x))"),
        gradient: slope!(x vectorised: |g, x, p| if inside(x, p) { g } else { 0.0 },
            "select(0.0, g, (x > p.a || (bitcast<u32>(x) == 0xff800000u && bitcast<u32>(p.a) == 0xff800000u)) \
                && (x < p.b || (bitcast<u32>(x) == 0x7f800000u && bitcast<u32>(p.b) == 0x7f800000u)))"; Straight),
        f64: Some(doubles::limited),
        whole: Own {
            i32: words!(i32: clamp, "min(max(x, p.a), p.b)"),
            u32: words!(u32: clamp, "min(max(x, p.a), p.b)"),
            i64: None,
            booleans: false,
        },
        onnx: Onnx::Composed(Composed::Clip),
    }
    "hardtanh" => Hardtanh {
        f32: f32!(clamp, "select(min(max(x, p.a), p.b), x, is_nan(x))"),
        gradient: slope!(x: |g, x, p| if x > p[0] && x < p[1] { g } else { 0.0 }, "select(0.0, g, x > p.a && x < p.b)";
            Straight),
        f64: Some(doubles::limited),
        whole: AsFloats,
        onnx: Onnx::Composed(Composed::Clip),
    }
    "bitwise_not" => BitwiseNot {
        f32: None,
        gradient: None,
        f64: None,
        whole: Own {
            i32: words!(i32: |x, _| !x, "~x"),
            u32: words!(u32: |x, _| !x, "~x"),
            i64: Some(|x| !x),
            booleans: false,
        },
        onnx: Operator("BitwiseNot"),
    }
}
