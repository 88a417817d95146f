// Functions of two f32, after math.wgsl: remainders, powers, angles, extremes.

/// Returns the larger number, or NaN if either is NaN, which is found by its bits.
fn m_max(x: f32, y: f32) -> f32 {
    return select(select(y, x, x > y || is_nan(x)), y, is_nan(y));
}

fn m_min(x: f32, y: f32) -> f32 {
    return select(select(y, x, x < y || is_nan(x)), y, is_nan(y));
}

/// Returns x − y · trunc(x / y) without any rounding, by long division of the mantissas: WGSL's % rounds the quotient.
fn m_fmod(x: f32, y: f32) -> f32 {
    let a = bitcast<u32>(x) & ~SIGN;
    let b = bitcast<u32>(y) & ~SIGN;
    if b == 0u || a >= 0x7f800000u || b > 0x7f800000u {
        return from_bits(a | b | 0x7fc00000u);
    }
    if a < b {
        return x;
    }
    let divisor = (b & 0x7fffffu) | select(0u, 0x800000u, b >= 0x800000u);
    var rest = ((a & 0x7fffffu) | select(0u, 0x800000u, a >= 0x800000u)) % divisor;
    let exponent = max(b >> 23u, 1u);
    var steps = max(a >> 23u, 1u) - exponent;
    while steps > 0u {
        let bits = min(steps, 8u);
        rest = (rest << bits) % divisor;
        steps -= bits;
    }
    return from_bits(assembled(rest, exponent) | (bitcast<u32>(x) & SIGN));
}

/// Returns the remainder with the divisor's sign, as in Python.
fn m_rem(x: f32, y: f32) -> f32 {
    let rest = m_fmod(x, y);
    return select(rest, rest + y, is_across(rest, y));
}

/// Returns whether a remainder is not 0 and has the other sign than the divisor: by bits, as adapters may read
/// subnormals as 0.
fn is_across(rest: f32, y: f32) -> bool {
    let bits = bitcast<u32>(rest);
    return (bits & ~SIGN) != 0u && ((bits ^ bitcast<u32>(y)) & SIGN) != 0u && !is_nan(rest);
}

/// Returns ⌊x / y⌋, computed from the exact remainder, so that an inexact division cannot give a neighbouring integer.
fn m_div_floor(x: f32, y: f32) -> f32 {
    if y == 0.0 {
        return x / y;
    }
    let rest = m_fmod(x, y);
    let quotient = round((x - rest) / y) - select(0.0, 1.0, is_across(rest, y));
    let zero = from_bits((bitcast<u32>(x) ^ bitcast<u32>(y)) & SIGN);
    return select(select(quotient, zero, quotient == 0.0), rest, is_nan(rest));
}

/// Returns x / y without its fraction. A quotient that is an integer is exact, whatever the adapter's division returns.
fn m_div_trunc(x: f32, y: f32) -> f32 {
    let quotient = x / y;
    let whole = round(quotient);
    return select(trunc(quotient), whole, whole * y == x);
}

/// Returns x^y for positive finite x ≠ 1 and finite y. Computes y · log2 x in two parts, because its
/// rounding error would become that of the power.
fn power(x: f32, y: f32) -> f32 {
    let p = parts(x);
    // ln(1 + f) = 2 (s + s³/3 + s⁵/5 …), s = f / (2 + f) with eleven bits in `high`.
    let d = 2.0 + p.f;
    let s = p.f / d;
    let high = from_bits(bitcast<u32>(s) & 0xffffe000u);
    let d_high = from_bits(bitcast<u32>(d) & 0xfffff000u);
    let d_low = (1.0 + p.f) - (d_high - 1.0);
    let low = ((p.f - high * d_high) - high * d_low) / d;
    let z = s * s;
    let series = z * (0.33333333 + z * (0.2 + z * (0.14285714 + z * (0.11111111 + z * 0.09090909))));
    // Times 2 / ln 2 = 2.884765625 + 0.000624456778
    let t = high * 2.884765625;
    let t_low = high * 6.24456778e-4 + (low + s * series) * 2.88539008;
    let log_high = from_bits(bitcast<u32>(p.exponent + t) & 0xfffff000u);
    let log_low = ((p.exponent - log_high) + t) + t_low;
    let y_high = from_bits(bitcast<u32>(y) & 0xfffff000u);
    let product = y_high * log_high;
    if product > 140.0 {
        return from_bits(0x7f800000u);
    }
    if product < -160.0 {
        return 0.0;
    }
    let rest = y_high * log_low + (y - y_high) * (log_high + log_low);
    let n = floor(product + rest + 0.5);
    return scaled(1.0 + exp_tail(((product - n) + rest) * LN2), i32(n));
}

/// Returns C's pow: 1 for x = 1 or y = 0, NaN for negative x unless y is an integer.
fn m_pow(x: f32, y: f32) -> f32 {
    let a = bitcast<u32>(x) & ~SIGN;
    let b = bitcast<u32>(y) & ~SIGN;
    if b == 0u || bitcast<u32>(x) == 0x3f800000u {
        return 1.0;
    }
    if a > 0x7f800000u || b > 0x7f800000u {
        return from_bits(0x7fc00000u);
    }
    let whole = b >= 0x4b800000u || floor(y) == y; // 2^24 and more, and infinity: even integers
    let odd = b < 0x4b800000u && whole && (u32(abs(y)) & 1u) == 1u;
    var magnitude: f32;
    if a == 0u || a == 0x7f800000u || b == 0x7f800000u {
        let grows = select((a > 0x3f800000u) == (y > 0.0), false, a == 0x3f800000u);
        magnitude = from_bits(select(select(0u, 0x3f800000u, a == 0x3f800000u), 0x7f800000u, grows));
    } else if a == 0x3f800000u {
        magnitude = select(from_bits(0x7fc00000u), 1.0, whole);
    } else {
        magnitude = power(abs(x), y);
        magnitude = select(magnitude, from_bits(0x7fc00000u), x < 0.0 && !whole);
    }
    return select(magnitude, -magnitude, odd && bitcast<u32>(x) >= SIGN);
}

fn power_by_base(x: f32, y: f32) -> f32 {
    return select(y * m_pow(x, y - 1.0), 0.0, y == 0.0);
}

fn power_by_exponent(x: f32, y: f32) -> f32 {
    return select(m_pow(x, y) * m_log(x), 0.0, x == 0.0 && y >= 0.0);
}

/// Returns the angle of the point (x, y). The first parameter is y.
fn m_atan2(y: f32, x: f32) -> f32 {
    let a = abs(y);
    let b = abs(x);
    let small = min(a, b);
    let large = max(a, b);
    var q = select(small / large, 1.0, small == large); // also for two infinities
    q = select(q, 0.0, large == 0.0);
    var angle = angle_of(q);
    angle = select(angle, 1.57079632679 - angle, a > b);
    angle = select(angle, 3.14159265359 - angle, bitcast<u32>(x) >= SIGN);
    return select(copy_sign(angle, y), x + y, is_nan(x) || is_nan(y));
}
