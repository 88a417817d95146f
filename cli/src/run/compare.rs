//! A model's outputs on a device, compared with its outputs on `cpu`.

use anygpu::nn::Module;
use anygpu::{Device, Tensor};
use serde_json::json;

use super::Runs;
use super::inputs::{Input, numbers};
use super::outputs::shown;
use crate::failure::Failure;
use crate::output;

/// How far an output is from the output on `cpu`.
#[derive(Debug, PartialEq)]
struct Difference {
    /// The largest difference of two elements.
    absolute: f64,
    /// The absolute difference as a share of the largest element, by size.
    relative: f64,
}

impl Difference {
    /// Equal infinite numbers and two NaN do not differ; a NaN or an infinite number differs from others without limit.
    fn of(got: &[f64], expected: &[f64]) -> Difference {
        let apart = |(a, b): (&f64, &f64)| match (a - b).abs() {
            _ if a == b || (a.is_nan() && b.is_nan()) => 0.0,
            difference if difference.is_finite() => difference,
            _ => f64::INFINITY,
        };
        let absolute = got.iter().zip(expected).map(apart).fold(0.0, f64::max);
        let largest = expected.iter().filter(|b| b.is_finite()).fold(0.0, |largest: f64, b| largest.max(b.abs()));
        Difference { absolute, relative: if absolute == 0.0 { 0.0 } else { absolute / largest } }
    }
}

/// Runs the model on the device and on `cpu`, and prints how far each output is from the output on `cpu`.
///
/// # Errors
/// [`Failure::Run`] if one is further away than the tolerance or has another shape; the errors of the model.
pub fn with_cpu(runs: &Runs, tolerance: f32, as_json: bool) -> Result<(), Failure> {
    let cpu = Device::cpu();
    let moved = |input: &Input| -> anygpu::Result<Input> {
        let (name, tensor) = (input.name.clone(), input.tensor.to(&cpu)?);
        Ok(Input { name, tensor, batch: input.batch })
    };
    let inputs = runs.inputs.iter().map(moved).collect::<anygpu::Result<_>>()?;
    let host = Runs { model: runs.model.clone().to(&cpu)?, inputs, device: cpu, seed: runs.seed };
    let (got, expected) = (runs.run()?, host.run()?);
    let mut table = output::table(&["output", "absolute difference", "relative difference"]);
    let mut beyond = Vec::new();
    for ((name, got), (_, expected)) in got.iter().zip(expected.iter()) {
        let Difference { absolute, relative } = difference(name, got, expected)?;
        if relative > f64::from(tolerance) {
            beyond.push(format!("'{name}' by {}", shown(relative)));
        }
        if as_json {
            output::json(&json!({ "compare": name, "absolute": absolute, "relative": relative }))?;
        } else {
            table.add_row([name.to_owned(), shown(absolute), shown(relative)]);
        }
    }
    if !as_json {
        output::line(table)?;
    }
    match beyond.is_empty() {
        true => Ok(()),
        false => {
            let outputs = beyond.join(", ");
            let device = &runs.device;
            Err(Failure::Run(format!("on {device}, outputs differ from cpu by more than {tolerance}: {outputs}")))
        }
    }
}

fn difference(name: &str, got: &Tensor, expected: &Tensor) -> Result<Difference, Failure> {
    if got.shape() != expected.shape() {
        let (got, expected) = (got.shape(), expected.shape());
        return Err(Failure::Run(format!("output '{name}' has the shape {got:?}, and {expected:?} on cpu")));
    }
    Ok(Difference::of(&numbers(got)?, &numbers(expected)?))
}

#[cfg(test)]
mod tests {
    use super::Difference;

    #[test]
    fn differences_are_those_of_the_largest_element() {
        let of = |got: &[f64], expected: &[f64]| {
            let Difference { absolute, relative } = Difference::of(got, expected);
            (absolute, relative)
        };
        assert_eq!(of(&[1.0, -4.5], &[1.0, -4.0]), (0.5, 0.125));
        assert_eq!(of(&[f64::NAN, f64::INFINITY], &[f64::NAN, f64::INFINITY]), (0.0, 0.0));
        assert_eq!(of(&[f64::NAN, 1.0], &[2.0, 1.0]), (f64::INFINITY, f64::INFINITY));
        assert_eq!(of(&[f64::INFINITY], &[f64::NEG_INFINITY]).0, f64::INFINITY);
        assert_eq!(of(&[1.0], &[0.0]), (1.0, f64::INFINITY));
        assert_eq!(of(&[], &[]), (0.0, 0.0));
    }
}
