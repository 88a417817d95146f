// Inverse trigonometric functions and hyperbolic functions, after math.wgsl and special.wgsl and with their accuracy.
// Polynomials from S. Moshier's Cephes library (single precision).

fn m_atan(x: f32) -> f32 {
    let a = abs(x);
    let angle = select(angle_of(a), 1.57079632679 - angle_of(1.0 / max(a, 1.0)), a > 1.0);
    return odd_function(angle, x);
}

/// Returns asin x for 0 ≤ x ≤ ½.
fn asin_near(x: f32) -> f32 {
    let z = x * x;
    let p = (((4.2163199048e-2 * z + 2.4181311049e-2) * z + 4.5470025998e-2) * z + 7.4953002686e-2) * z + 1.6666752422e-1;
    return p * z * x + x;
}

/// Returns y, but NaN if x is NaN or |x| is above 1.
fn of_sine(x: f32, y: f32) -> f32 {
    return select(y, from_bits(0x7fc00000u), is_nan(x) || abs(x) > 1.0);
}

fn m_asin(x: f32) -> f32 {
    let a = abs(x);
    if a <= 0.5 {
        return copy_sign(asin_near(a), x);
    }
    let angle = 1.57079632679 - 2.0 * asin_near(sqrt(0.5 * max(1.0 - a, 0.0)));
    return of_sine(x, copy_sign(angle, x));
}

fn m_acos(x: f32) -> f32 {
    let a = abs(x);
    if a <= 0.5 {
        return 1.57079632679 - copy_sign(asin_near(a), x);
    }
    let angle = 2.0 * asin_near(sqrt(0.5 * max(1.0 - a, 0.0)));
    return of_sine(x, select(angle, 3.14159265359 - angle, x < 0.0));
}

fn m_sinh(x: f32) -> f32 {
    let a = abs(x);
    if a < 1.0 {
        let z = x * x;
        return copy_sign(((2.03721912945e-4 * z + 8.33028376239e-3) * z + 1.66667160211e-1) * z * x + x, x);
    }
    // The square of a root, which is not infinite before the result is.
    let root = m_exp(0.5 * a);
    return odd_function(0.5 * root * root - 0.5 / root / root, x);
}

fn m_cosh(x: f32) -> f32 {
    let root = m_exp(0.5 * abs(x));
    return 0.5 * root * root + 0.5 / root / root;
}

fn m_asinh(x: f32) -> f32 {
    let a = abs(x);
    var y = m_log(a) + LN2;
    if a < 1e4 {
        y = m_log1p(a + a * a / (1.0 + sqrt(a * a + 1.0)));
    }
    return odd_function(y, x);
}

fn m_acosh(x: f32) -> f32 {
    var y = m_log(x) + LN2;
    if x < 1e4 {
        let t = max(x - 1.0, 0.0);
        y = m_log1p(t + sqrt(t * (t + 2.0)));
    }
    return select(y, from_bits(0x7fc00000u), is_nan(x) || x < 1.0);
}

fn m_atanh(x: f32) -> f32 {
    let a = abs(x);
    if a >= 1.0 {
        return select(from_bits(0x7fc00000u), copy_sign(from_bits(0x7f800000u), x), a == 1.0);
    }
    return odd_function(0.5 * m_log1p(2.0 * a / (1.0 - a)), x);
}
