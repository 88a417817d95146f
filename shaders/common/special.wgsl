// More functions of f32: those of erf and of angles. This file and math.wgsl precede the shaders that call them.

fn m_erf(x: f32) -> f32 {
    let y = abs(x);
    if y < 1.0 {
        return copy_sign(erf_centre(x), x);
    }
    return odd_function(1.0 - erfc_tail(min(y, 11.0)), x);
}

/// Returns the normal distribution function: ½ erfc(−x / √2), which does not cancel for x < 0 as ½ (1 + erf) does.
fn normal_cdf(x: f32) -> f32 {
    let z = abs(x) * 0.70710678;
    if z < 1.0 {
        return 0.5 + 0.5 * erf_centre(x * 0.70710678);
    }
    let tail = 0.5 * erfc_tail(min(z, 11.0));
    return select(1.0 - tail, tail, x < 0.0);
}

/// Returns the normal distribution's density.
fn normal_density(x: f32) -> f32 {
    return 0.39894228 * m_exp(-0.5 * x * x);
}

/// Returns 32 bits of 1/2π: from bit 32·(i − 1) after the binary point on.
fn turns_per_radian(i: u32) -> u32 {
    switch i {
        case 1u: { return 0x28be60dbu; }
        case 2u: { return 0x9391054au; }
        case 3u: { return 0x7f09d5f4u; }
        case 4u: { return 0x7d4d3770u; }
        case 5u: { return 0x36d8a566u; }
        case 6u: { return 0x4f10e410u; }
        case 7u: { return 0x7f9458eau; }
        default: { return 0u; }
    }
}

/// An angle: |x| = quadrant · π/2 + r with |r| ≤ π/4.
struct Angle { r: f32, quadrant: u32 }

/// Returns x as an angle by Payne and Hanek's reduction: the integer product of the mantissa with the bits of 1/2π that
/// matter. This is exact for every x, and a compiler that reorders floats cannot change it.
fn reduced(x: f32) -> Angle {
    let bits = bitcast<u32>(x) & 0x7fffffffu;
    if bits <= 0x3f490fdbu {
        return Angle(from_bits(bits), 0u);
    }
    let mantissa = (bits << 8u) | SIGN;
    let exponent = (bits >> 23u) - 126u;
    let word = exponent >> 5u;
    let shift = exponent & 31u;
    var high = turns_per_radian(word);
    var mid = turns_per_radian(word + 1u);
    var low = turns_per_radian(word + 2u);
    if shift > 0u {
        high = (high << shift) | (mid >> (32u - shift));
        mid = (mid << shift) | (low >> (32u - shift));
        low = (low << shift) | (turns_per_radian(word + 3u) >> (32u - shift));
    }
    // mantissa · (high, mid, low) / 2^32, modulo 2^64: two words of a turn, whose first two bits are the quadrant.
    let carried = mul_high(mantissa, low);
    var tail = mantissa * mid + carried;
    var head = mantissa * high + mul_high(mantissa, mid) + select(0u, 1u, tail < carried);
    var quadrant = head >> 30u;
    head &= 0x3fffffffu;
    let above = head >= 0x20000000u;
    if above {
        quadrant += 1u;
        head = 0x3fffffffu - head + select(0u, 1u, tail == 0u);
        tail = 0u - tail;
    }
    let r = (f32(head) * 9.3132257e-10 + f32(tail) * 2.1684043e-19) * 1.57079632679;
    return Angle(select(r, -r, above), quadrant);
}

fn sin_near(r: f32) -> f32 {
    let z = r * r;
    return ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r;
}

fn cos_near(r: f32) -> f32 {
    let z = r * r;
    return ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - 0.5 * z + 1.0;
}

/// Returns the sine of an angle plus `turns` quadrants.
fn sin_from(a: Angle, turns: u32) -> f32 {
    let quadrant = a.quadrant + turns;
    let y = select(sin_near(a.r), cos_near(a.r), (quadrant & 1u) == 1u);
    return select(y, -y, (quadrant & 2u) == 2u);
}

/// Returns y, or NaN if x is infinite or NaN.
fn finite_only(x: f32, y: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return from_bits(select(bitcast<u32>(y), bits | 0x7fc00000u, (bits & 0x7f800000u) == 0x7f800000u));
}

fn m_sin(x: f32) -> f32 {
    let y = sin_from(reduced(x), 0u);
    return finite_only(x, from_bits(bitcast<u32>(y) ^ (bitcast<u32>(x) & SIGN)));
}

fn m_cos(x: f32) -> f32 {
    return finite_only(x, sin_from(reduced(x), 1u));
}

fn m_tan(x: f32) -> f32 {
    let a = reduced(x);
    let y = sin_from(a, 0u) / sin_from(a, 1u);
    return finite_only(x, from_bits(bitcast<u32>(y) ^ (bitcast<u32>(x) & SIGN)));
}

/// Returns the inner function of gelu's approximation, x · σ(gelu_inner(x)). This is ½ x (1 + tanh(…)) without
/// cancellation.
fn gelu_inner(x: f32) -> f32 {
    return 1.5957692 * (x + 0.044715 * x * x * x);
}

/// Returns the derivative of that approximation, from s = σ(gelu_inner(x)).
fn gelu_gradient(x: f32, s: f32) -> f32 {
    return s + x * s * (1.0 - s) * 1.5957692 * (1.0 + 0.134145 * x * x);
}

/// Returns tanh(ln(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2).
fn tanh_softplus(x: f32) -> f32 {
    let e = m_exp(min(x, 20.0));
    return e * (e + 2.0) / (e * (e + 2.0) + 2.0);
}

/// Returns the arc tangent of q for 0 ≤ q ≤ 1.
fn angle_of(q: f32) -> f32 {
    // tan(π/8) divides the octant.
    let upper = q > 0.41421356;
    let u = select(q, (q - 1.0) / (q + 1.0), upper);
    let z = u * u;
    let poly = (((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1) * z * u + u;
    return select(poly, poly + 0.78539816, upper);
}
