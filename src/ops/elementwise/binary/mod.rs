//! The table of functions of two elements: each formula in Rust and in WGSL, for each of the types that are computed with.
//!
//! The WGSL goes before `binary.wgsl` as a header; `m_…` are functions of `float_pairs.wgsl`, those of whole numbers of
//! `whole_pairs.wgsl`.

mod methods;
pub(in crate::ops) mod operand;
mod run;

use crate::device::gpu::Shader;
use crate::dtype::{DType, Word};
use crate::ops::elementwise::unary::{MATH_SHADERS, with_math};
use crate::ops::shader;

pub(in crate::ops) const SHADER: Shader = shader!("binary");
const FLOAT_PAIRS: Shader = shader!("float_pairs");
const WHOLE_PAIRS: Shader = shader!("whole_pairs");
/// The same with what rows of floats need, and with what rows of integers need.
const FLOATS: Shader = Shader {
    name: "binary_floats",
    source: concat!(
        with_math!("float_pairs"),
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/binary.wgsl"))
    ),
};
const WHOLE: Shader = Shader {
    name: "binary_whole",
    source: concat!(
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/whole_pairs.wgsl")),
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/binary.wgsl")),
    ),
};

/// Words of two operands, each with the step from one element to the next, and the words of the result.
pub(in crate::ops) type Each = fn(&[u32], usize, &[u32], usize, &mut [u32]);

/// A function for one type.
#[derive(Debug)]
pub(in crate::ops) struct Row {
    pub shader: Shader,
    pub header: &'static str,
    pub each: Each,
}

/// A function of two elements.
#[derive(Debug)]
pub(in crate::ops) struct Pair {
    pub name: &'static str,
    /// Whether the result is 0 or 1, of u32, to become booleans.
    pub truth: bool,
    f32: Option<Row>,
    i32: Option<Row>,
    u32: Option<Row>,
}

impl Pair {
    /// The function for a type that is computed with.
    pub fn row(&self, dtype: DType) -> Option<&Row> {
        match dtype {
            DType::F32 => self.f32.as_ref(),
            DType::I32 => self.i32.as_ref(),
            DType::U32 => self.u32.as_ref(),
            _ => None,
        }
    }
}

macro_rules! row {
    ($t:ident => $r:ident, $shader:expr, $signed:literal, $wgsl:literal, $f:expr) => {
        Some(Row {
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

/// The rows: `all` of any type, `truth` of any type to 0 or 1, `split` with a formula for floats and one for integers,
/// `floats` and `bits` of one type.
macro_rules! pairs {
    ($($pair:ident = $kind:ident $name:literal ($($formula:tt)*);)*) => {
        $(pub(in crate::ops) static $pair: Pair = pairs!(@ $kind $name $($formula)*);)*
        static ALL: &[&Pair] = &[$(&$pair),*];
    };
    (@ all $name:literal $f:ident, $wgsl:literal) => { Pair {
        name: $name,
        truth: false,
        f32: row!(f32 => f32, SHADER, false, $wgsl, Number::$f),
        i32: row!(i32 => i32, SHADER, true, $wgsl, Number::$f),
        u32: row!(u32 => u32, SHADER, false, $wgsl, Number::$f),
    } };
    (@ truth $name:literal $f:expr, $wgsl:literal) => { Pair {
        name: $name,
        truth: true,
        f32: row!(f32 => u32, SHADER, false, $wgsl, |x, y| u32::from($f(&x, &y))),
        i32: row!(i32 => u32, SHADER, true, $wgsl, |x, y| u32::from($f(&x, &y))),
        u32: row!(u32 => u32, SHADER, false, $wgsl, |x, y| u32::from($f(&x, &y))),
    } };
    (@ split $name:literal $f:ident, $float:literal, $whole:literal) => { Pair {
        name: $name,
        truth: false,
        f32: row!(f32 => f32, FLOATS, false, $float, Number::$f),
        i32: row!(i32 => i32, WHOLE, true, $whole, Number::$f),
        u32: row!(u32 => u32, WHOLE, false, $whole, Number::$f),
    } };
    (@ floats $name:literal $f:expr, $wgsl:literal) => { Pair {
        name: $name, truth: false, f32: row!(f32 => f32, FLOATS, false, $wgsl, $f), i32: None, u32: None,
    } };
    (@ bits_of $name:literal $f:expr, $wgsl:literal) => { Pair {
        name: $name, truth: false, f32: None, i32: None, u32: row!(u32 => u32, SHADER, false, $wgsl, $f),
    } };
    (@ bits $name:literal $f:expr, $wgsl:literal) => { Pair {
        name: $name, truth: true, f32: None, i32: None, u32: row!(u32 => u32, SHADER, false, $wgsl, $f),
    } };
}

pairs! {
    ADD = all "add" (plus, "x + y");
    SUB = all "sub" (minus, "x - y");
    MUL = all "mul" (times, "x * y");
    DIV = floats "div" (|x, y| x / y, "x / y");
    DIV_TRUNC = split "div_trunc" (div_trunc, "m_div_trunc(x, y)", "quotient(x, y)");
    DIV_FLOOR = split "div_floor" (div_floor, "m_div_floor(x, y)", "div_floor(x, y)");
    FMOD = split "fmod" (fmod, "m_fmod(x, y)", "fmod(x, y)");
    REM = split "rem" (rem, "m_rem(x, y)", "rem(x, y)");
    POW = split "pow" (power, "m_pow(x, y)", "whole_power(x, y)");
    MAXIMUM = split "maximum" (larger, "m_max(x, y)", "max(x, y)");
    MINIMUM = split "minimum" (smaller, "m_min(x, y)", "min(x, y)");
    ATAN2 = floats "atan2" (f32::atan2, "m_atan2(x, y)");
    EQ = truth "eq" (PartialEq::eq, "select(0u, 1u, x == y)");
    NE = truth "ne" (PartialEq::ne, "select(1u, 0u, x == y)"); // SPIR-V's ≠ is false for NaN
    LT = truth "lt" (PartialOrd::lt, "select(0u, 1u, x < y)");
    LE = truth "le" (PartialOrd::le, "select(0u, 1u, x <= y)");
    GT = truth "gt" (PartialOrd::gt, "select(0u, 1u, x > y)");
    GE = truth "ge" (PartialOrd::ge, "select(0u, 1u, x >= y)");
    AND = bits "logical_and" (|x, y| x & y, "x & y");
    OR = bits "logical_or" (|x, y| x | y, "x | y");
    XOR = bits "logical_xor" (|x, y| x ^ y, "x ^ y");
    OR_ADD = bits_of "add" (|x, y| x | y, "x | y"); // of booleans
    // Parts of gradients: 1 where equal; the share of the larger; slopes of powers and angles.
    SAME = floats "eq" (|x, y| f32::from(u8::from(x == y)), "select(0.0, 1.0, x == y)");
    SHARE = floats "maximum" (|x, y| if x < y { 0.0 } else if x == y { 0.5 } else { 1.0 },
        "select(select(1.0, 0.5, x == y), 0.0, x < y)");
    POW_BASE = floats "pow" (|x, y| if y == 0.0 { 0.0 } else { y * x.powf(y - 1.0) }, "power_by_base(x, y)");
    POW_EXPONENT = floats "pow" (|x, y| if x == 0.0 && y >= 0.0 { 0.0 } else { x.powf(y) * x.ln() },
        "power_by_exponent(x, y)");
    ANGLE_SLOPE = floats "atan2" (|x, y| if x == 0.0 && y == 0.0 { 0.0 } else { y / (x * x + y * y) },
        "select(y / (x * x + y * y), 0.0, x == 0.0 && y == 0.0)");
}

/// Every shader of the table with the headers that it is compiled with.
pub(in crate::ops) fn catalogue() -> Vec<(Shader, Vec<&'static str>)> {
    let rows = || ALL.iter().flat_map(|pair| [&pair.f32, &pair.i32, &pair.u32]).flatten();
    let headers = |name| rows().filter(|row| row.shader.name == name).map(|row| row.header).collect();
    let mut all: Vec<_> = [SHADER, FLOATS, WHOLE].map(|shader| (shader, headers(shader.name))).into();
    all.push((
        FLOAT_PAIRS,
        vec![concat!(
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/math.wgsl")),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/special.wgsl")),
        )],
    ));
    all.push((WHOLE_PAIRS, vec!["alias T = i32;\nconst SIGNED = true;\n", "alias T = u32;\nconst SIGNED = false;\n"]));
    all.push((MATH_SHADERS[0], vec![""]));
    all.push((MATH_SHADERS[1], vec![MATH_SHADERS[0].source]));
    all
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

/// What the table's formulas need of a type.
trait Number: Word {
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

impl Number for f32 {
    fn plus(self, y: f32) -> f32 {
        self + y
    }
    fn minus(self, y: f32) -> f32 {
        self - y
    }
    fn times(self, y: f32) -> f32 {
        self * y
    }
    fn div_trunc(self, y: f32) -> f32 {
        (self / y).trunc()
    }
    fn div_floor(self, y: f32) -> f32 {
        let rest = self % y;
        if y == 0.0 || rest.is_nan() {
            return if y == 0.0 { self / y } else { rest };
        }
        let below = if rest != 0.0 && (rest < 0.0) != (y < 0.0) { 1.0 } else { 0.0 };
        let quotient = ((self - rest) / y).round_ties_even() - below;
        if quotient == 0.0 { 0f32.copysign(self / y) } else { quotient }
    }
    fn fmod(self, y: f32) -> f32 {
        self % y
    }
    fn rem(self, y: f32) -> f32 {
        let rest = self % y;
        if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
    }
    fn power(self, y: f32) -> f32 {
        self.powf(y)
    }
    fn larger(self, y: f32) -> f32 {
        if self > y || self.is_nan() { self } else { y }
    }
    fn smaller(self, y: f32) -> f32 {
        if self < y || self.is_nan() { self } else { y }
    }
}

/// Whole numbers wrap around; x / 0 is x, and the remainder of it 0, as WGSL defines them.
macro_rules! whole {
    ($($t:ident)*) => {$(
        #[allow(unused_comparisons, reason = "u32 is never below 0")]
        impl Number for $t {
            fn plus(self, y: $t) -> $t {
                self.wrapping_add(y)
            }
            fn minus(self, y: $t) -> $t {
                self.wrapping_sub(y)
            }
            fn times(self, y: $t) -> $t {
                self.wrapping_mul(y)
            }
            fn div_trunc(self, y: $t) -> $t {
                if y == 0 { self } else { self.wrapping_div(y) }
            }
            fn div_floor(self, y: $t) -> $t {
                let rest = Number::fmod(self, y);
                self.div_trunc(y).wrapping_sub($t::from(rest != 0 && (rest < 0) != (y < 0)))
            }
            fn fmod(self, y: $t) -> $t {
                if y == 0 { 0 } else { self.wrapping_rem(y) }
            }
            fn rem(self, y: $t) -> $t {
                let rest = Number::fmod(self, y);
                if rest != 0 && (rest < 0) != (y < 0) { rest.wrapping_add(y) } else { rest }
            }
            fn power(self, y: $t) -> $t {
                if y < 0 {
                    let inverse = if self == 1 || self == (0 as $t).wrapping_sub(1) { self } else { 0 };
                    return if y & 1 == 0 { inverse.wrapping_mul(inverse) } else { inverse };
                }
                self.wrapping_pow(y as u32)
            }
            fn larger(self, y: $t) -> $t {
                self.max(y)
            }
            fn smaller(self, y: $t) -> $t {
                self.min(y)
            }
        }
    )*};
}
whole! { i32 u32 }
