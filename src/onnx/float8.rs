//! Floats of 8 bits: the four formats of ONNX. Their values are kept as wider floats.

use super::element_type::ElementType;

/// A format: the bits of its fraction, the bias of its exponent, and what its largest exponent and −0 mean.
struct Format {
    fraction: i32,
    bias: i32,
    largest: f64,
    /// Whether there is an infinity, as in IEEE 754.
    infinite: bool,
    /// Whether the bits of −0 are NaN, the only one.
    unsigned_zero: bool,
}

fn format(kind: ElementType) -> Option<Format> {
    let (fraction, bias, largest, infinite, unsigned_zero) = match kind {
        ElementType::Float8E4m3fn => (3, 7, 448.0, false, false),
        ElementType::Float8E4m3fnuz => (3, 8, 240.0, false, true),
        ElementType::Float8E5m2 => (2, 15, 57344.0, true, false),
        ElementType::Float8E5m2fnuz => (2, 16, 57344.0, false, true),
        _ => return None,
    };
    Some(Format { fraction, bias, largest, infinite, unsigned_zero })
}

/// The value of a byte.
pub(super) fn decoded(kind: ElementType, byte: u8) -> f64 {
    let Some(Format { fraction, bias, infinite, unsigned_zero, .. }) = format(kind) else { return f64::NAN };
    let (exponent, rest) = (i32::from(byte & 127) >> fraction, i32::from(byte) & ((1 << fraction) - 1));
    let top = (1 << (7 - fraction)) - 1;
    let size = match exponent {
        _ if unsigned_zero && byte == 128 => f64::NAN,
        e if infinite && e == top => {
            if rest == 0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        }
        _ if !infinite && !unsigned_zero && byte & 127 == 127 => f64::NAN,
        0 => f64::from(rest) * 2f64.powi(1 - bias - fraction),
        e => f64::from(rest + (1 << fraction)) * 2f64.powi(e - bias - fraction),
    };
    if byte > 127 { -size } else { size }
}

/// The nearest value of the format, the even one of two. What is too large becomes the largest value if `saturate`, else infinity
/// or NaN. A value of another type is returned as it is.
pub(super) fn rounded(kind: ElementType, value: f64, saturate: bool) -> f64 {
    let Some(Format { fraction, bias, largest, infinite, unsigned_zero }) = format(kind) else { return value };
    if value.is_nan() {
        return value;
    }
    let size = value.abs();
    // The exponent of a normal f64; the format's subnormals share the least exponent.
    let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    let step = 2f64.powi(exponent - fraction);
    let near = if size.is_finite() { (size / step).round_ties_even() * step } else { size };
    let size = match near > largest {
        true if saturate => largest,
        true if infinite => f64::INFINITY,
        true => return f64::NAN,
        false => near,
    };
    match value.is_sign_negative() {
        true if unsigned_zero && size == 0.0 => 0.0,
        true => -size,
        false => size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every value of each format is its own nearest value, and the middle of two neighbours goes to the even one.
    #[test]
    fn values_are_rounded_to_the_nearest() {
        use ElementType::{Float8E4m3fn, Float8E4m3fnuz, Float8E5m2, Float8E5m2fnuz};
        for kind in [Float8E4m3fn, Float8E4m3fnuz, Float8E5m2, Float8E5m2fnuz] {
            for byte in 0..126u8 {
                let (low, high) = (decoded(kind, byte), decoded(kind, byte + 1));
                if !low.is_finite() {
                    continue;
                }
                assert_eq!(rounded(kind, low, true), low, "{kind} {byte}");
                if high.is_finite() {
                    let even = if byte % 2 == 0 { low } else { high };
                    assert_eq!(rounded(kind, (low + high) / 2.0, true), even, "{kind} {byte}");
                    assert_eq!(rounded(kind, -(low * 0.4 + high * 0.6), true), -high, "{kind} {byte}");
                }
            }
        }
        assert_eq!(decoded(Float8E4m3fn, 0x7e), 448.0);
        assert_eq!((rounded(Float8E5m2, 1e9, false), rounded(Float8E5m2, 1e9, true)), (f64::INFINITY, 57344.0));
        assert!(rounded(Float8E4m3fn, f64::INFINITY, false).is_nan());
        assert!(rounded(Float8E4m3fnuz, -0.0, true).is_sign_positive());
    }
}
