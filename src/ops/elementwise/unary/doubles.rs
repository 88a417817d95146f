//! Functions of f64 that rows of the table call.

use std::f64::consts::FRAC_2_SQRT_PI;

/// Returns 1 or −1 by the sign, 0 for 0 and NaN.
pub(super) fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        0.0
    }
}

/// Limits x to `low..=high`. Not `clamp`, which panics if the bounds are exchanged.
pub(super) fn limited(x: f64, [low, high]: [f64; 2]) -> f64 {
    if x.is_nan() { x } else { x.max(low).min(high) }
}

pub(super) fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

pub(super) fn softplus(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }
}

/// Up to here erf is a sum of powers, and beyond it erfc is a continued fraction.
const CENTRE: f64 = 2.0;

/// Returns `erf x` for `|x| ≤ CENTRE` as `2/√π · e^(−x²) · Σ 2ⁿ x²ⁿ⁺¹ / (1 · 3 · … · (2n + 1))`, all of one sign.
fn erf_sum(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-17 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// Returns `erfc x` for `x ≥ CENTRE` as `e^(−x²) / √π · 1 / (x + ½ / (x + 1 / (x + 3/2 / (x + …))))`.
fn erfc_fraction(x: f64) -> f64 {
    let fraction = (1..=80).rev().fold(x, |rest, n| x + 0.5 * f64::from(n) / rest);
    0.5 * FRAC_2_SQRT_PI * (-x * x).exp() / fraction
}

pub(super) fn erf(x: f64) -> f64 {
    match x.abs() {
        size if size <= CENTRE => erf_sum(x),
        size if size < 6.0 => (1.0 - erfc_fraction(size)).copysign(x),
        _ if x.is_nan() => x,
        _ => 1f64.copysign(x),
    }
}

pub(super) fn erfc(x: f64) -> f64 {
    match x {
        _ if x.is_nan() => x,
        x if x >= 28.0 => 0.0,
        x if x >= CENTRE => erfc_fraction(x),
        x => 1.0 - erf(x),
    }
}
