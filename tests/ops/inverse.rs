//! Inverse trigonometric and hyperbolic functions far from where the op table checks them: to a few units in the last
//! place, and infinities and NaN as in C.

use anygpu::{Result, Tensor};

use crate::common::devices;

type Function = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64);

const FUNCTIONS: [Function; 8] = [
    ("asin", Tensor::asin, f64::asin),
    ("acos", Tensor::acos, f64::acos),
    ("atan", Tensor::atan, f64::atan),
    ("sinh", Tensor::sinh, f64::sinh),
    ("cosh", Tensor::cosh, f64::cosh),
    ("asinh", Tensor::asinh, f64::asinh),
    ("acosh", Tensor::acosh, f64::acosh),
    ("atanh", Tensor::atanh, f64::atanh),
];

#[test]
fn inverse_functions_are_right_everywhere() -> Result<()> {
    let mut points =
        vec![0.0f32, 0.5, 1.0, 1.0000001, 0.99999994, f32::INFINITY, f32::NAN, f32::MAX, 1e-30, 88.9, 89.4, 90.0];
    points.extend((1..2000).map(|i| i as f32 * 7.3e-4)); // to 1.46
    points.extend((-20..=30).map(|i| 2.7f32.powi(i)));
    points.extend(points.clone().iter().map(|v| -v));
    for device in devices() {
        let x = Tensor::from_slice(&points, points.len(), &device)?;
        for (name, op, f) in FUNCTIONS {
            for (&at, got) in points.iter().zip(op(&x)?.to_vec::<f32>()?) {
                let expected = f(f64::from(at)) as f32;
                let alike = got == expected || (got.is_nan() && expected.is_nan());
                let near = f64::from(got - expected).abs() <= 2e-6 * f64::from(expected).abs();
                assert!(alike || near, "{name}({at:e}) on {device}: {got:e}, not {expected:e}");
            }
        }
    }
    Ok(())
}
