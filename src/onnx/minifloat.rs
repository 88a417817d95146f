//! Floats of 8 and fewer bits: the formats of ONNX. Their values are kept as wider floats.

use super::element_type::ElementType;

/// The direction in which a value is rounded to a power of 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rounding {
    #[default]
    Up,
    Down,
    /// Up from the middle of two.
    Nearest,
}

/// How a wider float becomes a value of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conversion {
    /// Whether what is too large becomes the largest value; infinity or NaN otherwise. A format of 4 bits has neither.
    pub saturate: bool,
    /// For `float8e8m0`; other formats take the nearest value, the even one of two.
    pub rounding: Rounding,
}

impl Default for Conversion {
    fn default() -> Conversion {
        Conversion { saturate: true, rounding: Rounding::Up }
    }
}

/// A format with a sign: the bits of its exponent and fraction, the bias of its exponent, and what its largest exponent and −0
/// mean.
struct Format {
    exponent: i32,
    fraction: i32,
    bias: i32,
    largest: f64,
    special: Special,
}

/// The values of a format that are no numbers.
#[derive(PartialEq)]
enum Special {
    /// Infinity and NaN have the largest exponent, as in IEEE 754.
    Ieee,
    /// The largest bits are NaN.
    NanOnly,
    /// The bits of −0 are NaN, the only one.
    UnsignedZero,
    /// There are none.
    Nothing,
}

fn format(kind: ElementType) -> Option<Format> {
    let (exponent, fraction, bias, largest, special) = match kind {
        ElementType::Float8E4m3fn => (4, 3, 7, 448.0, Special::NanOnly),
        ElementType::Float8E4m3fnuz => (4, 3, 8, 240.0, Special::UnsignedZero),
        ElementType::Float8E5m2 => (5, 2, 15, 57344.0, Special::Ieee),
        ElementType::Float8E5m2fnuz => (5, 2, 16, 57344.0, Special::UnsignedZero),
        ElementType::Float4E2m1 => (2, 1, 1, 6.0, Special::Nothing),
        _ => return None,
    };
    Some(Format { exponent, fraction, bias, largest, special })
}

/// The exponents of `float8e8m0`, whose byte is the exponent with this bias, and 255 is NaN.
const POWERS: std::ops::RangeInclusive<i32> = -127..=127;

/// The value of the bits.
pub(super) fn decoded(kind: ElementType, bits: u8) -> f64 {
    if kind == ElementType::Float8E8m0 {
        return if bits == u8::MAX { f64::NAN } else { 2f64.powi(i32::from(bits) - 127) };
    }
    let Some(Format { exponent: width, fraction, bias, special, .. }) = format(kind) else { return f64::NAN };
    let sign = 1u8 << (width + fraction);
    let size = bits & (sign - 1);
    let (exponent, rest) = (i32::from(size) >> fraction, i32::from(size) & ((1 << fraction) - 1));
    let value = match special {
        Special::UnsignedZero if bits == sign => f64::NAN,
        Special::NanOnly if size == sign - 1 => f64::NAN,
        Special::Ieee if exponent == (1 << width) - 1 => match rest {
            0 => f64::INFINITY,
            _ => f64::NAN,
        },
        _ if exponent == 0 => f64::from(rest) * 2f64.powi(1 - bias - fraction),
        _ => f64::from(rest + (1 << fraction)) * 2f64.powi(exponent - bias - fraction),
    };
    if bits & sign != 0 { -value } else { value }
}

/// The exponent of the largest power of 2 that is not above a normal float.
fn exponent_of(size: f64) -> i32 {
    (size.to_bits() >> 52) as i32 - 1023
}

/// The power of 2 that stands for a value, NaN for one that has none.
fn power(value: f64, Conversion { saturate, rounding }: Conversion) -> f64 {
    if value.is_nan() || value < 0.0 {
        return f64::NAN;
    }
    let below = exponent_of(value);
    let excess = value / 2f64.powi(below.clamp(-1000, 1000));
    let up = match rounding {
        Rounding::Up => excess > 1.0,
        Rounding::Down => false,
        Rounding::Nearest => excess >= 1.5,
    };
    let exponent = below.saturating_add(up.into());
    match POWERS.contains(&exponent) || saturate {
        true => 2f64.powi(exponent.clamp(*POWERS.start(), *POWERS.end())),
        false => f64::NAN,
    }
}

/// The value of the format for a float. A value of another type is returned as it is.
pub(super) fn rounded(kind: ElementType, value: f64, conversion: Conversion) -> f64 {
    if kind == ElementType::Float8E8m0 {
        return power(value, conversion);
    }
    let Some(Format { fraction, bias, largest, special, .. }) = format(kind) else { return value };
    if value.is_nan() {
        return if special == Special::Nothing { largest } else { value };
    }
    let size = value.abs();
    // The format's subnormals share the least exponent.
    let step = 2f64.powi(exponent_of(size).max(1 - bias) - fraction);
    let near = if size.is_finite() { (size / step).round_ties_even() * step } else { size };
    let size = match near > largest {
        true if conversion.saturate || special == Special::Nothing => largest,
        true if special == Special::Ieee => f64::INFINITY,
        true => return f64::NAN,
        false => near,
    };
    match value.is_sign_negative() {
        true if special == Special::UnsignedZero && size == 0.0 => 0.0,
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
        use ElementType::{Float4E2m1, Float8E4m3fn, Float8E4m3fnuz, Float8E5m2, Float8E5m2fnuz, Float8E8m0};
        let saturate = Conversion::default();
        let infinite = Conversion { saturate: false, ..saturate };
        for kind in [Float8E4m3fn, Float8E4m3fnuz, Float8E5m2, Float8E5m2fnuz, Float4E2m1] {
            for byte in 0..if kind == Float4E2m1 { 7 } else { 126u8 } {
                let (low, high) = (decoded(kind, byte), decoded(kind, byte + 1));
                if !low.is_finite() {
                    continue;
                }
                assert_eq!(rounded(kind, low, saturate), low, "{kind} {byte}");
                if high.is_finite() {
                    let even = if byte % 2 == 0 { low } else { high };
                    assert_eq!(rounded(kind, (low + high) / 2.0, saturate), even, "{kind} {byte}");
                    assert_eq!(rounded(kind, -(low * 0.4 + high * 0.6), saturate), -high, "{kind} {byte}");
                }
            }
        }
        assert_eq!(decoded(Float8E4m3fn, 0x7e), 448.0);
        assert_eq!((rounded(Float8E5m2, 1e9, infinite), rounded(Float8E5m2, 1e9, saturate)), (f64::INFINITY, 57344.0));
        assert!(rounded(Float8E4m3fn, f64::INFINITY, infinite).is_nan());
        assert!(rounded(Float8E4m3fnuz, -0.0, saturate).is_sign_positive());
        let four: Vec<f64> = (0..8).map(|bits| decoded(Float4E2m1, bits)).collect();
        assert_eq!(four, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!((rounded(Float4E2m1, 1e9, infinite), decoded(Float4E2m1, 15)), (6.0, -6.0));
        let scales = [Rounding::Up, Rounding::Down, Rounding::Nearest].map(|rounding| {
            [1.0, 1.1, 1.5, 1e-50, 0.0, 1e50].map(|v| rounded(Float8E8m0, v, Conversion { rounding, ..saturate }))
        });
        let (least, most) = (2f64.powi(-127), 2f64.powi(127));
        assert_eq!(scales[0], [1.0, 2.0, 2.0, least, least, most]);
        assert_eq!(scales[1], [1.0, 1.0, 1.0, least, least, most]);
        assert_eq!(scales[2], [1.0, 1.0, 2.0, least, least, most]);
        assert!([-1.0, 0.0, 1e50].iter().all(|&v| rounded(Float8E8m0, v, infinite).is_nan()));
        assert_eq!((decoded(Float8E8m0, 0), decoded(Float8E8m0, 254)), (least, most));
    }
}
