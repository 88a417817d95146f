//! The functions of `nn::init` give the same distributions as PyTorch's: tests/data/modules.json, by
//! scripts/pytorch_modules.py.

use anygpu::nn::init::{self, Fan, Nonlinearity};
use anygpu::{Result, Tensor};
use serde_json::Value;

use crate::common::devices_in_turn;

fn reference() -> Value {
    serde_json::from_str(include_str!("../data/modules.json")).expect("JSON")
}

/// The largest absolute value and the standard deviation.
fn spread(tensor: &Tensor) -> Result<(f64, f64)> {
    let values: Vec<f64> = tensor.to_vec::<f32>()?.into_iter().map(f64::from).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64;
    Ok((values.iter().fold(0.0, |most: f64, v| most.max(v.abs())), variance.sqrt()))
}

#[test]
fn inits_spread_as_pytorchs() -> Result<()> {
    type Rule = fn(&Tensor) -> Result<()>;
    let rules: [(&str, Rule); 6] = [
        ("xavier_uniform", |t| init::xavier_uniform_(t, 2.0)),
        ("xavier_normal", |t| init::xavier_normal_(t, 2.0)),
        ("kaiming_uniform_in", |t| init::kaiming_uniform_(t, Fan::In, Nonlinearity::LeakyReLU(0.2))),
        ("kaiming_uniform_out", |t| init::kaiming_uniform_(t, Fan::Out, Nonlinearity::ReLU)),
        ("kaiming_normal_in", |t| init::kaiming_normal_(t, Fan::In, Nonlinearity::Tanh)),
        ("kaiming_normal_out", |t| init::kaiming_normal_(t, Fan::Out, Nonlinearity::ReLU)),
    ];
    let reference = &reference()["inits"];
    for device in devices_in_turn() {
        for (name, rule) in rules {
            let weight = Tensor::zeros([64, 32, 3, 3], &device)?.requires_grad();
            rule(&weight)?;
            let (most, std) = spread(&weight)?;
            let expected = |what: &str| reference["drawn"][name][what].as_f64().expect("a number");
            // 18 432 values: their deviation is known to half a percent; a uniform's bound is nearly reached.
            assert!((std / expected("std") - 1.0).abs() < 0.03, "{name} on {device}: deviation {std}");
            let within = if name.contains("uniform") { 0.003 } else { 0.25 };
            assert!((most / expected("most") - 1.0).abs() < within, "{name} on {device}: most {most}");
        }
    }
    let gain = |name: &str| reference["gains"][name].as_f64().expect("a gain") as f32;
    let gains = [
        ("linear", Nonlinearity::Linear),
        ("sigmoid", Nonlinearity::Sigmoid),
        ("tanh", Nonlinearity::Tanh),
        ("relu", Nonlinearity::ReLU),
        ("leaky_relu_0.2", Nonlinearity::LeakyReLU(0.2)),
        ("selu", Nonlinearity::SELU),
    ];
    for (name, nonlinearity) in gains {
        assert!((init::calculate_gain(nonlinearity) - gain(name)).abs() < 1e-6, "{name}");
    }
    Ok(())
}

#[test]
fn bounds_follow_the_fans() -> Result<()> {
    for case in reference()["inits"]["fans"].as_array().expect("cases") {
        let size = |v: &Value| v.as_f64().expect("a size");
        let shape: Vec<usize> = case["shape"].as_array().expect("a shape").iter().map(|v| size(v) as usize).collect();
        let (fan_in, fan_out) = (size(&case["fans"][0]), size(&case["fans"][1]));
        let weight = Tensor::zeros(shape.as_slice(), None)?;
        let check = |bound: f64| -> Result<()> {
            let (most, _) = spread(&weight)?;
            assert!(most <= bound * (1.0 + 1e-6) && most > 0.95 * bound, "{shape:?}: {most}, bound {bound}");
            Ok(())
        };
        init::kaiming_uniform_(&weight, Fan::In, Nonlinearity::ReLU)?;
        check((6.0 / fan_in).sqrt())?;
        init::kaiming_uniform_(&weight, Fan::Out, Nonlinearity::Linear)?;
        check((3.0 / fan_out).sqrt())?;
        init::xavier_uniform_(&weight, 1.0)?;
        check((6.0 / (fan_in + fan_out)).sqrt())?;
        init::uniform_(&weight, -0.5, 0.5)?;
        check(0.5)?;
    }
    assert!(init::kaiming_normal_(&Tensor::zeros([3], None)?, Fan::In, Nonlinearity::ReLU).is_err());
    assert!(init::xavier_uniform_(&Tensor::zeros([3, 0], None)?, 1.0).is_err());
    Ok(())
}
