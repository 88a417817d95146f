//! Functions of f32 that the host computes by formulas of its own, as `shaders/special.wgsl` does.

/// 1 or −1 by the sign, 0 for 0 and NaN.
pub(in crate::ops) fn sign(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        0.0
    }
}

/// x within `low..=high`; NaN stays NaN, and `high` wins where the bounds cross.
pub(in crate::ops) fn clamp<T: PartialOrd + Copy>(x: T, [low, high]: [T; 2]) -> T {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

pub(in crate::ops) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + eˣ)`.
pub(in crate::ops) fn softplus(x: f32) -> f32 {
    (if x <= 0.0 { 0.0 } else { x }) + (-x.abs()).exp().ln_1p()
}

/// `tanh(ln(1 + eˣ)) = n / (n + 2)` with `n = eˣ (eˣ + 2)`.
pub(in crate::ops) fn tanh_softplus(x: f32) -> f32 {
    let e = (if x > 20.0 { 20.0 } else { x }).exp();
    e * (e + 2.0) / (e * (e + 2.0) + 2.0)
}

/// A polynomial by its coefficients, highest power first.
fn polynomial(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().fold(0.0, |sum, c| sum * x + c)
}

/// erf x for |x| ≤ 1 by Chebyshev interpolation of erf(√z) / √z, to 4e-11.
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
    x * polynomial(x * x, &C)
}

/// 1 − erf x for x ≥ 1: `e^(−x²) · t · q(t)` with `t = 2 / (x + 2)`, q by Chebyshev interpolation, to 3e-10 up to x = 10.
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
    (-x * x).exp() * t * polynomial(t - 0.42, &C)
}

/// The error function.
pub(in crate::ops) fn erf(x: f32) -> f32 {
    let x = f64::from(x);
    if x.abs() < 1.0 { erf_centre(x) as f32 } else { (1.0 - erfc_tail(x.abs())).copysign(x) as f32 }
}

/// The share of the normal distribution below x: `½ erfc(−x / √2)`.
pub(in crate::ops) fn normal_below(x: f32) -> f32 {
    let z = f64::from(x) * std::f64::consts::FRAC_1_SQRT_2;
    let below = if z.abs() < 1.0 {
        0.5 + 0.5 * erf_centre(z)
    } else if z < 0.0 {
        0.5 * erfc_tail(-z)
    } else {
        1.0 - 0.5 * erfc_tail(z)
    };
    below as f32
}

/// The normal distribution's density.
pub(in crate::ops) fn normal_density(x: f32) -> f32 {
    0.398_942_3 * (-0.5 * x * x).exp()
}

/// gelu's approximation is `x · σ(gelu_inner(x))`, which is `½ (1 + tanh(…))` without its cancellation.
pub(in crate::ops) fn gelu_inner(x: f32) -> f32 {
    1.595_769_2 * (x + 0.044715 * x * x * x)
}

/// Its derivative, from `s = σ(gelu_inner(x))`.
pub(in crate::ops) fn gelu_slope(x: f32, s: f32) -> f32 {
    s + x * s * (1.0 - s) * 1.595_769_2 * (1.0 + 0.134145 * x * x)
}
