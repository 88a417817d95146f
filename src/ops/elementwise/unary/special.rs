//! Functions of f32 that the host computes with its own formulas, as `shaders/common/special.wgsl` does.

use anygpu_host::vectors::{EXPONENTIAL, MulAdd};

/// Computes e^x with an error of at most one unit in the last place, without a branch. The compiler can vectorise loops
/// over it, but not loops over `f32::exp`.
#[inline(always)]
pub(in crate::ops) fn exp<M: MulAdd>(x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    exp_of_difference::<M>(if x < -104.0 { -104.0 } else { x }, 0.0) // NaN stays NaN
}

/// Computes e^(x − less) of a difference with more digits than an f32 has; `less` is small beside x. x is in −110 … 89, or NaN.
#[inline(always)]
fn exp_of_difference<M: MulAdd>(x: f32, less: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4; // few bits: its product with a small whole number is exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // 1.5 · 2^23, and two biases of an exponent: a number added to it is rounded to a whole number in the last bits.
    const WHOLE: f32 = 12_582_912.0 + 254.0;
    let shifted = M::mul_add(x, std::f32::consts::LOG2_E, WHOLE);
    let n = shifted - WHOLE;
    let r = M::mul_add(n, -LN2_LOW, M::mul_add(n, -LN2_HIGH, x)) - less;
    let p = polynomial::<M>(r, &EXPONENTIAL);
    let y = M::mul_add(p, r * r, r) + 1.0;
    // 2^n in two factors: the result may be subnormal. The last bits are n + 254, whose halves are the two exponents with
    // their biases; the other bits are shifted out.
    let both = shifted.to_bits();
    let half = both >> 1;
    y * f32::from_bits(half << 23) * f32::from_bits(both.wrapping_sub(half) << 23)
}

/// Computes a polynomial from its coefficients, highest power first.
#[inline(always)]
fn polynomial<M: MulAdd>(x: f32, coefficients: &[f32]) -> f32 {
    let mut sum = coefficients[0];
    for c in &coefficients[1..] {
        sum = M::mul_add(sum, x, *c);
    }
    sum
}

/// Computes a function in f64.
pub(in crate::ops) fn wide(x: f32, f: impl Fn(f64) -> f64) -> f32 {
    f(f64::from(x)) as f32
}

/// Returns 1 or −1 by the sign, 0 for 0 and NaN.
pub(in crate::ops) fn sign(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        0.0
    }
}

/// Limits x to `low..=high`. NaN stays NaN. If `low` is above `high`, returns `high`.
#[inline(always)]
pub(in crate::ops) fn clamp<T: PartialOrd + Copy>(x: T, [low, high]: [T; 2]) -> T {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// Returns whether `clamp` has the gradient 1 at x: between the bounds. An infinite bound stands for none.
#[inline(always)]
pub(in crate::ops) fn inside(x: f32, [low, high]: [f32; 2]) -> bool {
    let unbounded = |bound: f32, none: f32| bound == none && x == none;
    (x > low || unbounded(low, f32::NEG_INFINITY)) && (x < high || unbounded(high, f32::INFINITY))
}

#[inline(always)]
pub(in crate::ops) fn sigmoid<M: MulAdd>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<M>(-x))
}

/// Computes tanh x, as `m_tanh` of `shaders/common/math.wgsl` does: both formulas, of which one is selected without a branch.
#[inline(always)]
pub(in crate::ops) fn tanh<M: MulAdd>(x: f32) -> f32 {
    const NEAR: [f32; 5] = [-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];
    let z = x * x;
    let near = M::mul_add(polynomial::<M>(z, &NEAR) * z, x, x);
    let size = x.abs();
    let far = 1.0 - 2.0 / (exp::<M>(2.0 * if size > 20.0 { 20.0 } else { size }) + 1.0);
    (if size < 0.625 { near } else { far }).copysign(x) // also of −0
}

/// Computes `ln(1 + eˣ)`.
pub(in crate::ops) fn softplus(x: f32) -> f32 {
    (if x <= 0.0 { 0.0 } else { x }) + (-x.abs()).exp().ln_1p()
}

/// Computes `tanh(ln(1 + eˣ)) = n / (n + 2)` with `n = eˣ (eˣ + 2)`.
#[inline(always)]
pub(in crate::ops) fn tanh_softplus<M: MulAdd>(x: f32) -> f32 {
    let e = exp::<M>(if x > 20.0 { 20.0 } else { x });
    e * (e + 2.0) / (e * (e + 2.0) + 2.0)
}

/// Computes a polynomial of f64 from its coefficients, highest power first.
fn wide_polynomial(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().fold(0.0, |sum, c| sum * x + c)
}

/// Computes erf x for |x| ≤ 1 by Chebyshev interpolation of erf(√z) / √z, accurate to 4e-11.
fn erf_centre(x: f64) -> f64 {
    const C: [f64; 8] = [
        -9.667044866227166e-6,
        1.1265959131269469e-4,
        -8.484080420415411e-4,
        5.22103180889278e-3,
        -2.686543072803715e-2,
        0.11283782495243076,
        -0.37612638468029147,
        1.1283791670615437,
    ];
    x * wide_polynomial(x * x, &C)
}

/// Computes 1 − erf x for x ≥ 1 as `e^(−x²) · t · q(t)` with `t = 2 / (x + 2)` and q by Chebyshev interpolation,
/// accurate to 3e-10 up to x = 10.
fn erfc_tail(x: f64) -> f64 {
    const C: [f64; 10] = [
        -0.06990966577234013,
        -0.04496208189036459,
        0.10100815449450036,
        0.054186912424515,
        -0.14161967497366454,
        -0.12230784980645096,
        0.1932809687037065,
        0.5179387150191574,
        0.6008577449631393,
        0.4593144228232181,
    ];
    let t = 2.0 / (x + 2.0);
    (-x * x).exp() * t * wide_polynomial(t - 0.42, &C)
}

/// Computes the error function.
pub(in crate::ops) fn erf(x: f32) -> f32 {
    let x = f64::from(x);
    if x.abs() < 1.0 { erf_centre(x) as f32 } else { (1.0 - erfc_tail(x.abs())).copysign(x) as f32 }
}

/// Computes the normal distribution: the share below x, `½ erfc(−x / √2)`, with a relative error of at most 5e-7 on both
/// sides, and the density. There is no branch, so that the compiler can vectorise loops over it.
///
/// Beyond y = |x|, there is e^(−y²/2) · t · q(t) with t = 1 / (1 + 0.27 y), where q has minimax coefficients up to y = 14.7,
/// with a relative error of 4e-8: from there on, the share is 0.
#[inline(always)]
pub(in crate::ops) fn normal<M: MulAdd>(x: f32) -> (f32, f32) {
    const Q: [f32; 9] = [
        0.028_976_148,
        -0.010_656_873,
        -0.070_184_01,
        -0.021_173_801,
        0.144_825_55,
        0.313_133_42,
        0.373_948_7,
        0.315_485_72,
        0.202_305_08,
    ];
    let y = if x.abs() > 14.7 { 14.7 } else { x.abs() }; // NaN stays NaN
    let t = 1.0 / M::mul_add(0.27, y, 1.0);
    // The square in two parts: the rounding error of one would be multiplied by y.
    let [square, rest] = M::half_square(y);
    let bell = exp_of_difference::<M>(-square, rest);
    let beyond = bell * (t * polynomial::<M>(t - 0.5, &Q));
    (if x < 0.0 { beyond } else { 1.0 - beyond }, 0.398_942_3 * bell)
}

/// Computes the derivative of GELU.
#[inline(always)]
pub(in crate::ops) fn gelu_slope<M: MulAdd>(x: f32) -> f32 {
    let (below, density) = normal::<M>(x);
    M::mul_add(x, density, below)
}

/// Computes the argument of σ in GELU's approximation `x · σ(gelu_inner(x))`. The factor σ(…) equals `½ (1 + tanh(…))`,
/// which loses digits by cancellation.
#[inline(always)]
pub(in crate::ops) fn gelu_inner(x: f32) -> f32 {
    1.595_769_2 * (x + 0.044715 * x * x * x)
}

/// Computes the derivative of GELU's approximation from `s = σ(gelu_inner(x))`.
#[inline(always)]
pub(in crate::ops) fn gelu_gradient(x: f32, s: f32) -> f32 {
    s + x * s * (1.0 - s) * 1.595_769_2 * (1.0 + 0.134145 * x * x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anygpu_host::vectorised;
    use anygpu_host::vectors::{Fused, Unfused, fuses};

    /// The level of vector instructions must not change results, except by the way in which products and sums are
    /// rounded.
    #[test]
    fn vectorised_loops_have_the_bits_of_plain_ones() {
        let values: Vec<f32> = (0..=u32::MAX).step_by(99_991).map(f32::from_bits).collect();
        let mut out = vec![0f32; values.len()];
        let same = |(out, plain): (&f32, f32)| out.to_bits() == plain.to_bits() || (out.is_nan() && plain.is_nan());
        macro_rules! check {
            ($f:ident::<$($m:ident),*>) => {$(
                vectorised!(for (out, &x) in out.iter_mut().zip(&values) { *out = $f::<$m>(x) });
                assert!(out.iter().zip(values.iter().map(|&x| $f::<$m>(x))).all(same));
            )*};
        }
        check!(exp::<Fused, Unfused>);
        check!(tanh::<Fused, Unfused>);
        check!(gelu_slope::<Fused, Unfused>);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(fuses(), pulp::x86::V3::try_new().is_some());
        vectorised!(<M> for (out, &x) in out.iter_mut().zip(&values) { *out = exp::<M>(x) });
        let plain = if fuses() { exp::<Fused> } else { exp::<Unfused> };
        assert!(out.iter().zip(values.iter().map(|&x| plain(x))).all(same));
    }

    fn check_normal<M: MulAdd>() {
        let exact = |z: f64| match z {
            _ if z.abs() < 1.0 => 0.5 + 0.5 * erf_centre(z),
            _ if z < 0.0 => 0.5 * erfc_tail(-z),
            _ => 1.0 - 0.5 * erfc_tail(z),
        };
        for x in (0..=u32::MAX).step_by(997).map(f32::from_bits).filter(|x| !x.is_nan()) {
            let ((below, density), wide) = (normal::<M>(x), f64::from(x));
            let (expected, bell) =
                (exact(wide * std::f64::consts::FRAC_1_SQRT_2), 0.398_942_280_4 * (-0.5 * wide * wide).exp());
            let off = (f64::from(below) - expected).abs();
            assert!(off <= 5e-7 * expected + 3e-45, "{below} below {x}, not {expected}");
            assert!((f64::from(density) - bell).abs() <= 3e-7 * bell + 3e-45, "density {density} at {x}, not {bell}");
        }
        assert_eq!(
            [normal::<M>(0.0), normal::<M>(f32::INFINITY), normal::<M>(f32::NEG_INFINITY)].map(|v| v.0),
            [0.5, 1.0, 0.0]
        );
        assert!(normal::<M>(f32::NAN).0.is_nan() && gelu_slope::<M>(f32::NAN).is_nan());
    }

    #[test]
    fn the_normal_distribution_is_right_to_its_tails() {
        check_normal::<Fused>();
        check_normal::<Unfused>();
    }

    fn check_tanh<M: MulAdd>() {
        for x in (0..=u32::MAX).step_by(997).map(f32::from_bits).filter(|x| !x.is_nan()) {
            let (got, expected) = (tanh::<M>(x), f64::from(x).tanh());
            let off = (f64::from(got) - expected).abs();
            assert!(off <= 2.4e-7 * expected.abs(), "tanh({x}) = {got}, not {expected}");
        }
        assert_eq!([tanh::<M>(-0.0), tanh::<M>(0.0)].map(f32::to_bits), [-0.0f32, 0.0].map(f32::to_bits));
        assert_eq!([tanh::<M>(f32::INFINITY), tanh::<M>(f32::NEG_INFINITY)], [1.0, -1.0]);
        assert!(tanh::<M>(f32::NAN).is_nan());
    }

    #[test]
    fn hyperbolic_tangents_are_right_to_two_units() {
        check_tanh::<Fused>();
        check_tanh::<Unfused>();
    }

    /// Compares the result for every 97th f32 with the f64 result, in units of the last place of the result.
    fn check_exp<M: MulAdd>() {
        let mut worst = (0.0, 0.0);
        for bits in (0..=u32::MAX).step_by(97) {
            let x = f32::from_bits(bits);
            let (got, expected) = (exp::<M>(x), f64::from(x).exp());
            if x.is_nan() {
                assert!(got.is_nan());
                continue;
            }
            let near = expected as f32;
            if got == near {
                continue;
            }
            assert!(near.is_finite() && got.is_finite(), "exp({x}) = {got}, not {near}");
            let unit = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
            let off = (f64::from(got) - expected).abs() / unit;
            worst = if off > worst.0 { (off, x) } else { worst };
        }
        assert!(worst.0 <= 1.0, "{worst:?}");
        assert_eq!([exp::<M>(f32::INFINITY), exp::<M>(f32::NEG_INFINITY), exp::<M>(0.0)], [f32::INFINITY, 0.0, 1.0]);
        let far = [89.0, 1e30, -104.0, -1e30].map(exp::<M>);
        assert_eq!(far, [f32::INFINITY, f32::INFINITY, 0.0, 0.0]);
        assert!(exp::<M>(f32::NAN).is_nan() && exp::<M>(-f32::NAN).is_nan());
    }

    #[test]
    fn exponentials_are_right_to_one_unit() {
        check_exp::<Fused>();
        check_exp::<Unfused>();
    }
}
