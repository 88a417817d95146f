//! The table of functions of two elements: each formula in Rust and in WGSL, for each type that kernels compute with,
//! and the gradients of both operands.
//!
//! The WGSL formula is put before `binary.wgsl` as a header. It calls functions `m_…` of `float_pairs.wgsl`, or the
//! functions of whole numbers of `whole_pairs.wgsl`.

pub(in crate::ops) mod formula;
mod methods;
pub(in crate::ops) mod operand;
mod run;

use crate::device::gpu::{FOURS, Shader, shader, wgsl};
use crate::dtype::{DType, Word};
use crate::error::Result;
use crate::ops::elementwise::unary::{MATH, SPECIAL};
use crate::ops::inplace::filled;
use crate::ops::inputs::{STRIDED, StridedParams};
use crate::ops::no_gradient;
use crate::tensor::Tensor;
use operand::Operand;
use run::binary;

shader!(SHADER: StridedParams = "binary", after [STRIDED, FOURS], headers || headers("binary"));
// The same shader with the functions for rows of floats, and with those for rows of integers.
shader!(FLOATS: StridedParams = "binary" named "binary_floats", after [STRIDED, FOURS, MATH, SPECIAL, FLOAT_PAIRS], headers || headers("binary_floats"));
shader!(WHOLE: StridedParams = "binary" named "binary_whole", after [STRIDED, FOURS, wgsl!("whole_pairs")], headers || headers("binary_whole"));

pub(in crate::ops) const FLOAT_PAIRS: &str = wgsl!("float_pairs");

/// Words of two operands, each with the step from one element to the next, and the words of the result.
pub(in crate::ops) type Each = fn(&[u32], usize, &[u32], usize, &mut [u32]);

/// The gradient of one operand, computed with tensors.
type PairGradient = fn(&Chain) -> Result<Tensor>;

/// The inputs of the chain rule: the operands, the result and its gradient, outside the graph.
struct Chain<'a> {
    g: &'a Tensor,
    a: Operand<'a>,
    b: Operand<'a>,
    out: &'a Tensor,
}

impl Chain<'_> {
    fn unchanged(&self) -> Result<Tensor> {
        Ok(self.g.clone())
    }

    /// Returns zeros, in the graph if g is.
    fn zero(&self) -> Result<Tensor> {
        match self.g.is_tracked() {
            true => self.g.masked_fill(&Tensor::full(self.g.shape(), true, self.g.device())?, 0.0),
            false => filled(self.g.shape(), 0f32, self.g.device()),
        }
    }

    /// Returns g times a function of two operands.
    fn times(&self, pair: &'static Pair, x: Operand, y: Operand) -> Result<Tensor> {
        self.g.mul(&binary(pair, x, y)?)
    }

    /// Returns g times the derivative of y xʸ⁻¹ by x, which is y times this function of x and y − 1.
    fn of_power(&self) -> Result<Tensor> {
        let times = |y: Operand, less: Operand| self.g.mul(y)?.mul(&binary(&POW_BASE, self.a, less)?);
        match self.b {
            Operand::Tensor(y) => times(self.b, (&y.sub(1.0)?).into()),
            Operand::Scalar(y) => times(self.b, (y.as_f64() - 1.0).into()),
        }
    }
}

/// A function for one type.
#[derive(Debug)]
pub(in crate::ops) struct TypedFunction {
    shader: Shader<StridedParams>,
    header: &'static str,
    each: Each,
}

/// A function of two elements.
#[derive(Debug)]
pub(in crate::ops) struct Pair {
    pub name: &'static str,
    /// Whether the result is 0 or 1, which is converted to a boolean.
    pub truth: bool,
    /// The gradients of the first and the second operand; a function without them cannot be differentiated.
    gradient: Option<[PairGradient; 2]>,
    f32: Option<TypedFunction>,
    i32: Option<TypedFunction>,
    u32: Option<TypedFunction>,
}

impl Pair {
    /// Returns the text that precedes the shader for f32.
    pub fn float_header(&self) -> Option<&'static str> {
        self.f32.as_ref().map(|function| function.header)
    }

    /// Returns the function for a type that kernels compute with; `None` if there is none. Types of 64 bits have a function of their
    /// own (`ops/long/`) where the type of 32 bits has one.
    pub fn for_type(&self, dtype: DType) -> Option<&TypedFunction> {
        match dtype {
            DType::F32 | DType::F64 => self.f32.as_ref(),
            DType::I32 | DType::I64 => self.i32.as_ref(),
            DType::U32 => self.u32.as_ref(),
            _ => None,
        }
    }
}

macro_rules! typed {
    ($t:ident => $r:ident, $shader:ident, $signed:literal, $wgsl:literal, $f:expr) => {
        Some(TypedFunction {
            shader: $shader,
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

/// Defines the rows: `all` for any type; `truth` for any type, with the result 0 or 1; `split` with a formula for
/// floats and one for integers; `floats` and `bits` for one type. The gradients of the two operands follow the formula,
/// if it has any.
macro_rules! pairs {
    ($($pair:ident = $kind:ident $name:literal ($($formula:tt)*) $([$da:expr, $db:expr])?;)*) => {
        $(pub(in crate::ops) static $pair: Pair = Pair {
            name: $name,
            gradient: pairs!(@ gradient $([$da, $db])?),
            ..pairs!(@ $kind $($formula)*)
        };)*
        static ALL: &[&Pair] = &[$(&$pair),*];
    };
    (@ gradient) => { None };
    (@ gradient [$da:expr, $db:expr]) => { Some([$da, $db]) };
    (@ all $f:ident, $wgsl:literal) => { Pair {
        f32: typed!(f32 => f32, SHADER, false, $wgsl, Number::$f),
        i32: typed!(i32 => i32, SHADER, true, $wgsl, Number::$f),
        u32: typed!(u32 => u32, SHADER, false, $wgsl, Number::$f),
        ..NONE
    } };
    (@ truth $f:expr, $wgsl:literal) => { Pair {
        truth: true,
        f32: typed!(f32 => u32, SHADER, false, $wgsl, |x, y| u32::from($f(&x, &y))),
        i32: typed!(i32 => u32, SHADER, true, $wgsl, |x, y| u32::from($f(&x, &y))),
        u32: typed!(u32 => u32, SHADER, false, $wgsl, |x, y| u32::from($f(&x, &y))),
        ..NONE
    } };
    (@ split $f:ident, $float:literal, $whole:literal) => { Pair {
        f32: typed!(f32 => f32, FLOATS, false, $float, Number::$f),
        i32: typed!(i32 => i32, WHOLE, true, $whole, Number::$f),
        u32: typed!(u32 => u32, WHOLE, false, $whole, Number::$f),
        ..NONE
    } };
    (@ whole $f:expr, $wgsl:literal) => { Pair {
        i32: typed!(i32 => i32, SHADER, true, $wgsl, $f),
        u32: typed!(u32 => u32, SHADER, false, $wgsl, $f),
        ..NONE
    } };
    (@ floats $f:expr, $wgsl:literal) => { Pair { f32: typed!(f32 => f32, FLOATS, false, $wgsl, $f), ..NONE } };
    (@ bits_of $f:expr, $wgsl:literal) => { Pair { u32: typed!(u32 => u32, SHADER, false, $wgsl, $f), ..NONE } };
    (@ bits $f:expr, $wgsl:literal) => { Pair { truth: true, ..pairs!(@ bits_of $f, $wgsl) } };
}

/// A function without formulas; each row replaces some of its fields.
const NONE: Pair = Pair { name: "", truth: false, gradient: None, f32: None, i32: None, u32: None };

pairs! {
    ADD = all "add" (plus, "x + y") [|d| d.unchanged(), |d| d.unchanged()];
    SUB = all "sub" (minus, "x - y") [|d| d.unchanged(), |d| d.g.neg()];
    MUL = all "mul" (times, "x * y") [|d| d.g.mul(d.b), |d| d.g.mul(d.a)];
    // d(a / b) / db = −a / b² = −out / b
    DIV = floats "div" (|x, y| x / y, "x / y") [|d| d.g.div(d.b), |d| d.g.mul(d.out)?.div(d.b)?.neg()];
    DIV_TRUNC = split "div_trunc" (div_trunc, "m_div_trunc(x, y)", "quotient(x, y)") [|d| d.zero(), |d| d.zero()];
    DIV_FLOOR = split "div_floor" (div_floor, "m_div_floor(x, y)", "div_floor(x, y)") [|d| d.zero(), |d| d.zero()];
    FMOD = split "fmod" (fmod, "m_fmod(x, y)", "fmod(x, y)")
        [|d| d.unchanged(), |d| d.times(&DIV_TRUNC, d.a, d.b)?.neg()];
    REM = split "rem" (rem, "m_rem(x, y)", "rem(x, y)") [|d| d.unchanged(), |d| d.times(&DIV_FLOOR, d.a, d.b)?.neg()];
    POW = split "pow" (power, "m_pow(x, y)", "whole_power(x, y)")
        [|d| d.times(&POW_BASE, d.a, d.b), |d| d.times(&POW_EXPONENT, d.a, d.b)];
    MAXIMUM = split "maximum" (larger, "m_max(x, y)", "max(x, y)")
        [|d| d.times(&SHARE, d.a, d.b), |d| d.times(&SHARE, d.b, d.a)];
    MINIMUM = split "minimum" (smaller, "m_min(x, y)", "min(x, y)")
        [|d| d.times(&SHARE, d.b, d.a), |d| d.times(&SHARE, d.a, d.b)];
    // d atan2(a, b) = (b da − a db) / (a² + b²)
    ATAN2 = floats "atan2" (f32::atan2, "m_atan2(x, y)")
        [|d| d.times(&ANGLE_GRADIENT, d.a, d.b), |d| d.times(&ANGLE_GRADIENT, d.b, d.a)?.neg()];
    EQ = truth "eq" (PartialEq::eq, "select(0u, 1u, x == y)");
    NE = truth "ne" (PartialEq::ne, "select(1u, 0u, x == y)"); // SPIR-V's ≠ is false for NaN
    LT = truth "lt" (PartialOrd::lt, "select(0u, 1u, x < y)");
    LE = truth "le" (PartialOrd::le, "select(0u, 1u, x <= y)");
    GT = truth "gt" (PartialOrd::gt, "select(0u, 1u, x > y)");
    GE = truth "ge" (PartialOrd::ge, "select(0u, 1u, x >= y)");
    AND = bits "logical_and" (|x, y| x & y, "x & y");
    OR = bits "logical_or" (|x, y| x | y, "x | y");
    XOR = bits "logical_xor" (|x, y| x ^ y, "x ^ y");
    BITWISE_AND = whole "bitwise_and" (|x, y| x & y, "x & y");
    BITWISE_OR = whole "bitwise_or" (|x, y| x | y, "x | y");
    BITWISE_XOR = whole "bitwise_xor" (|x, y| x ^ y, "x ^ y");
    LEFT_SHIFT = whole "bitwise_left_shift" (|x, y| if (0..32).contains(&y) { x << y } else { 0 },
        "select(x << (u32(y) & 31u), T(0), u32(y) > 31u)");
    // A shift by more leaves the sign.
    RIGHT_SHIFT = whole "bitwise_right_shift" (|x, y| if (0..32).contains(&y) { x >> y } else { x >> 31 >> 1 },
        "(x >> min(u32(y) / 2u, 16u)) >> min(u32(y) - u32(y) / 2u, 16u)");
    OR_ADD = bits_of "add" (|x, y| x | y, "x | y"); // of booleans
    // Factors of gradients: 1 where equal; the share of the larger element; the gradients of powers and angles.
    SAME = floats "eq" (|x, y| f32::from(u8::from(x == y)), "select(0.0, 1.0, x == y)") [|d| d.zero(), |d| d.zero()];
    SHARE = floats "maximum" (|x, y| if x < y { 0.0 } else if x == y { 0.5 } else { 1.0 },
        "select(select(1.0, 0.5, x == y), 0.0, x < y)") [|d| d.zero(), |d| d.zero()];
    POW_BASE = floats "pow" (|x, y| if y == 0.0 { 0.0 } else { y * x.powf(y - 1.0) }, "power_by_base(x, y)")
        [|d| d.of_power(), |_| Err(no_gradient("the gradient of pow"))];
    POW_EXPONENT = floats "pow" (|x, y| if x == 0.0 && y >= 0.0 { 0.0 } else { x.powf(y) * x.ln() },
        "power_by_exponent(x, y)");
    ANGLE_GRADIENT = floats "atan2" (|x, y| if x == 0.0 && y == 0.0 { 0.0 } else { y / (x * x + y * y) },
        "select(y / (x * x + y * y), 0.0, x == 0.0 && y == 0.0)");
}

/// Returns the headers of a shader, one for each row that uses it.
fn headers(shader: &str) -> Vec<&'static str> {
    let rows = ALL.iter().flat_map(|pair| [&pair.f32, &pair.i32, &pair.u32]).flatten();
    rows.filter(|row| row.shader.text.name == shader).map(|row| row.header).collect()
}

fn each<T: Word, R: Word>(x: &[u32], sx: usize, y: &[u32], sy: usize, out: &mut [u32], f: impl Fn(T, T) -> R) {
    let (x, y): (&[T], &[T]) = (bytemuck::cast_slice(x), bytemuck::cast_slice(y));
    let out: &mut [R] = bytemuck::cast_slice_mut(out);
    match (sx, sy) {
        (1, 1) => out.iter_mut().zip(x).zip(y).for_each(|((out, &x), &y)| *out = f(x, y)),
        (1, 0) => out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(x, y[0])),
        (0, 1) => out.iter_mut().zip(y).for_each(|(out, &y)| *out = f(x[0], y)),
        _ => out.iter_mut().enumerate().for_each(|(i, out)| *out = f(x[i * sx], y[i * sy])),
    }
}

/// The functions of a type that the formulas of the table and reductions call.
pub(in crate::ops) trait Number: Copy {
    fn plus(self, y: Self) -> Self;
    fn minus(self, y: Self) -> Self;
    fn times(self, y: Self) -> Self;
    fn div_trunc(self, y: Self) -> Self;
    fn div_floor(self, y: Self) -> Self;
    fn fmod(self, y: Self) -> Self;
    fn rem(self, y: Self) -> Self;
    fn power(self, y: Self) -> Self;
    fn larger(self, y: Self) -> Self;
    fn smaller(self, y: Self) -> Self;
}

/// Implements [`Number`] for a type.
macro_rules! number {
    ($t:ty { $($name:ident = |$x:ident, $y:ident| $f:expr;)* }) => {
        #[allow(unused_comparisons, reason = "u32 is never below 0")]
        impl Number for $t {
            $(fn $name(self, $y: $t) -> $t {
                let $x = self;
                $f
            })*
        }
    };
}

/// Implements [`Number`] for floats.
macro_rules! floats {
    ($($t:ident)*) => {$(
        number! {
            $t {
                plus = |x, y| x + y;
                minus = |x, y| x - y;
                times = |x, y| x * y;
                div_trunc = |x, y| (x / y).trunc();
                div_floor = |x, y| {
                    let rest = x % y;
                    if y == 0.0 || rest.is_nan() {
                        return if y == 0.0 { x / y } else { rest };
                    }
                    let below = if rest != 0.0 && (rest < 0.0) != (y < 0.0) { 1.0 } else { 0.0 };
                    let quotient = ((x - rest) / y).round_ties_even() - below;
                    if quotient == 0.0 { (0.0 as $t).copysign(x / y) } else { quotient }
                };
                fmod = |x, y| x % y;
                rem = |x, y| {
                    let rest = x % y;
                    if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
                };
                power = |x, y| x.powf(y);
                larger = |x, y| if x > y || x.is_nan() { x } else { y };
                smaller = |x, y| if x < y || x.is_nan() { x } else { y };
            }
        }
    )*};
}
floats! { f32 f64 }

/// Implements [`Number`] for integers. They wrap around; x / 0 is x, and its remainder is 0, as in WGSL.
macro_rules! whole {
    ($($t:ident)*) => {$(
        number! {
            $t {
                plus = |x, y| x.wrapping_add(y);
                minus = |x, y| x.wrapping_sub(y);
                times = |x, y| x.wrapping_mul(y);
                div_trunc = |x, y| if y == 0 { x } else { x.wrapping_div(y) };
                div_floor = |x, y| {
                    let rest = Number::fmod(x, y);
                    x.div_trunc(y).wrapping_sub($t::from(rest != 0 && (rest < 0) != (y < 0)))
                };
                fmod = |x, y| if y == 0 { 0 } else { x.wrapping_rem(y) };
                rem = |x, y| {
                    let rest = Number::fmod(x, y);
                    if rest != 0 && (rest < 0) != (y < 0) { rest.wrapping_add(y) } else { rest }
                };
                power = |x, y| {
                    if y < 0 {
                        let inverse = if x == 1 || x == (0 as $t).wrapping_sub(1) { x } else { 0 };
                        return if y & 1 == 0 { inverse.wrapping_mul(inverse) } else { inverse };
                    }
                    let low = x.wrapping_pow(y as u32);
                    match (y >> 16 >> 16) as u32 {
                        0 => low,
                        high => x.wrapping_pow(1 << 31).wrapping_pow(2).wrapping_pow(high).wrapping_mul(low),
                    }
                };
                larger = |x, y| x.max(y);
                smaller = |x, y| x.min(y);
            }
        }
    )*};
}
whole! { i32 u32 i64 }
