// Functions of f32 with errors up to about 3 units in the last place, and PyTorch's infinities and NaNs. WGSL
// guarantees much less (sin to 2^-11 and only up to π, exp by its argument's size). This file precedes the shaders that
// call them. Polynomials: exp, log, sin, cos, tanh, atan from S. Moshier's Cephes library (single precision); erf from
// our own Chebyshev interpolation. Nothing relies on fused or unfused products, or on x ≠ x.

const LN2 = 0.69314718056;
const LN2_HIGH = 0.693359375; // few bits: its product with a small integer is exact
const LN2_LOW = -2.12194440e-4;
const SIGN = 0x80000000u;

/// Returns the float with these bits: infinity and NaN cannot be written in WGSL.
fn from_bits(bits: u32) -> f32 {
    return bitcast<f32>(bits);
}

fn copy_sign(x: f32, sign: f32) -> f32 {
    return from_bits((bitcast<u32>(x) & ~SIGN) | (bitcast<u32>(sign) & SIGN));
}

/// Returns y with the sign of x, or x if it is NaN: the result of an odd function. The sign comes last, since LLVM 15 (Mesa
/// 22.3) with AVX-512 miscompiles `select(copy_sign(y, x), x, …)` in some kernels: a masked VPTERNLOG has its operands swapped.
fn odd_function(y: f32, x: f32) -> f32 {
    return copy_sign(select(y, x, is_nan(x)), x);
}

/// Returns the bits of mantissa · 2^(exponent − 150), without float arithmetic: some adapters turn subnormal numbers
/// into 0.
fn assembled(mantissa: u32, exponent: u32) -> u32 {
    let shift = 23u - firstLeadingBit(mantissa | 1u); // a mantissa of 0 gives 0 below
    if mantissa > 0u && exponent > shift {
        return ((exponent - shift) << 23u) | ((mantissa << shift) & 0x7fffffu);
    }
    return mantissa << (exponent - 1u);
}

/// Returns 2^n · x for |n| < 250, also if the result is subnormal or infinite.
fn scaled(x: f32, n: i32) -> f32 {
    let half = n >> 1u;
    return x * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(n - half + 127) << 23u);
}

/// Returns e^r − 1 for |r| ≤ ½ ln 2.
fn exp_tail(r: f32) -> f32 {
    let p = ((((1.9875691500e-4 * r + 1.3981999507e-3) * r + 8.3334519073e-3) * r + 4.1665795894e-2) * r
        + 1.6666665459e-1) * r + 5.0000001201e-1;
    return p * r * r + r;
}

fn m_exp(x: f32) -> f32 {
    let v = clamp(select(x, 0.0, is_nan(x)), -104.0, 89.0);
    let n = floor(v * 1.44269504 + 0.5);
    let r = (v - n * LN2_HIGH) - n * LN2_LOW;
    return select(scaled(1.0 + exp_tail(r), i32(n)), x, is_nan(x));
}

fn m_exp2(x: f32) -> f32 {
    let v = clamp(select(x, 0.0, is_nan(x)), -151.0, 129.0);
    let n = floor(v + 0.5);
    return select(scaled(1.0 + exp_tail((v - n) * LN2), i32(n)), x, is_nan(x));
}

fn m_expm1(x: f32) -> f32 {
    if abs(x) < 0.34 {
        return copy_sign(exp_tail(x), x); // -0 + 0 would be 0; the same below
    }
    return m_exp(x) - 1.0;
}

/// Returns ln(1 + f) for √½ ≤ 1 + f ≤ √2.
fn log_tail(f: f32) -> f32 {
    let z = f * f;
    let p = (((((((7.0376836292e-2 * f - 1.1514610310e-1) * f + 1.1676998740e-1) * f - 1.2420140846e-1) * f
        + 1.4249322787e-1) * f - 1.6668057665e-1) * f + 2.0000714765e-1) * f - 2.4999993993e-1) * f + 3.3333331174e-1;
    return f + (f * z * p - 0.5 * z);
}

/// The parts of a positive x: x = 2^exponent · (1 + f) with √½ ≤ 1 + f < √2.
struct Parts { f: f32, exponent: f32 }
fn parts(x: f32) -> Parts {
    let small = x < 1.17549435e-38;
    let bits = bitcast<u32>(select(x, x * 8388608.0, small));
    let exponent = bitcast<i32>(bits - 0x3f3504f3u) >> 23u;
    let f = bitcast<f32>(bits - (bitcast<u32>(exponent) << 23u)) - 1.0;
    return Parts(f, f32(exponent) - select(0.0, 23.0, small));
}

/// Returns the result of a logarithm: y, but NaN if x is below 0, −∞ if it is 0, and x if it is +∞ or NaN.
fn log_edges(x: f32, y: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if x == 0.0 || (bits << 1u) == 0u {
        return from_bits(0xff800000u);
    }
    if bits >= 0x7f800000u {
        return from_bits(select(bits, 0x7fc00000u, bits >= SIGN));
    }
    return y;
}

fn m_log(x: f32) -> f32 {
    let p = parts(x);
    return log_edges(x, (log_tail(p.f) + p.exponent * LN2_LOW) + p.exponent * LN2_HIGH);
}

fn m_log2(x: f32) -> f32 {
    let p = parts(x);
    return log_edges(x, log_tail(p.f) * 1.44269504089 + p.exponent);
}

fn m_log1p(x: f32) -> f32 {
    if x > -0.29 && x < 0.41 {
        return copy_sign(log_tail(x), x);
    }
    return m_log(1.0 + x);
}

fn m_tanh(x: f32) -> f32 {
    if abs(x) < 0.625 {
        let z = x * x;
        let p = (((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z
            - 3.33332819422e-1;
        return copy_sign(p * z * x + x, x);
    }
    let y = 1.0 - 2.0 / (m_exp(2.0 * min(abs(x), 20.0)) + 1.0);
    return odd_function(y, x);
}

fn m_sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + m_exp(-x));
}

/// Returns ln(1 + e^x).
fn m_softplus(x: f32) -> f32 {
    return max(x, 0.0) + m_log1p(m_exp(-abs(x)));
}

/// Returns 1 − erf x for x ≥ 1: e^(−x²) · t · q(t) with t = 2 / (x + 2). x² is in two parts, because
/// its rounding error would become that of e^(−x²).
fn erfc_tail(x: f32) -> f32 {
    let t = 2.0 / (x + 2.0);
    let u = t - 0.42;
    let q = (((((((-0.042935846 * u + 0.091078863) * u + 0.053977551) * u - 0.14114875) * u - 0.12230143) * u
        + 0.19327268) * u + 0.51793866) * u + 0.60085778) * u + 0.45931442;
    let high = from_bits(bitcast<u32>(x) & 0xfffff000u);
    return m_exp(-high * high) * m_exp((high - x) * (high + x)) * t * q;
}

/// Returns erf x for |x| ≤ 1.
fn erf_centre(x: f32) -> f32 {
    let z = x * x;
    return x * ((((((7.8758750e-5 * z - 8.0168643e-4) * z + 5.1890874e-3) * z - 2.6854212e-2) * z + 0.11283595) * z
        - 0.37612627) * z + 1.1283792);
}
