//! The arithmetic of the types that the formulas of the table and reductions call.

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
