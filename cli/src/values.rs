//! Values of options: parsers whose errors say what a value must be.

use std::str::FromStr;
use std::time::Duration;

/// Parses a whole number of at least 1.
///
/// # Errors
/// A sentence that says so.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("it must be a whole number of at least 1".to_string()),
        Ok(n) => Ok(n),
    }
}

/// Parses a whole number.
///
/// # Errors
/// As [`at_least_one`].
pub fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("it must be a whole number from 0 to {}", u64::MAX))
}

/// Parses a finite number above 0.
///
/// # Errors
/// As [`at_least_one`].
pub fn above_zero(text: &str) -> Result<f32, String> {
    finite(text).filter(|number| *number > 0.0).ok_or_else(|| "it must be a number above 0".to_string())
}

/// Parses a time in seconds, above 0 and at most a year.
///
/// # Errors
/// As [`at_least_one`].
pub fn seconds(text: &str) -> Result<Duration, String> {
    let most = 366.0 * 86_400.0;
    let seconds = text.parse().ok().filter(|seconds| (1e-3..=most).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("it must be a number of seconds from 0.001 to {most}"))
}

/// Parses a finite number.
///
/// # Errors
/// As [`at_least_one`].
pub fn number(text: &str) -> Result<f32, String> {
    finite(text).ok_or_else(|| "it must be a number, or a list of numbers such as 0.5,0.25,0.1".to_string())
}

fn finite(text: &str) -> Option<f32> {
    f32::from_str(text).ok().filter(|number| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_value_must_be_is_said() {
        assert_eq!((at_least_one("7"), whole("0")), (Ok(7), Ok(0)));
        assert_eq!((above_zero("1e-3"), number("-2")), (Ok(1e-3), Ok(-2.0)));
        for wrong in ["-1", "0", "1.5", "", "x", "99999999999999999999999"] {
            assert!(at_least_one(wrong).unwrap_err().contains("at least 1"), "{wrong}");
        }
        for wrong in ["-1", "1.5", "", "x"] {
            assert!(whole(wrong).unwrap_err().contains("from 0 to"), "{wrong}");
        }
        for wrong in ["-1", "0", "nan", "inf", "1e99", "", "x"] {
            assert!(above_zero(wrong).unwrap_err().contains("above 0"), "{wrong}");
        }
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["-1", "0", "nan", "inf", "1e99", "", "x"] {
            assert!(seconds(wrong).unwrap_err().contains("seconds"), "{wrong}");
        }
        for wrong in ["nan", "inf", "", "x"] {
            assert!(number(wrong).unwrap_err().contains("a number"), "{wrong}");
        }
    }
}
