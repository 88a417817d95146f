//! Every optimiser makes the same steps as PyTorch's: tests/data/optimisers.json, by scripts/pytorch_optimisers.py.

use anygpu::optim::{Adadelta, Adagrad, Adam, AdamW, Optimizer, RMSprop, SGD};
use anygpu::{Device, Result, Tensor};
use serde_json::Value;

use crate::common::devices_in_turn;

fn optimiser(run: &Value, parameters: Vec<Tensor>) -> Box<dyn Optimizer> {
    let args = &run["args"];
    let set = |name: &str, default: f64| args[name].as_f64().unwrap_or(default) as f32;
    let beta = |i: usize, default: f64| args["betas"][i].as_f64().unwrap_or(default) as f32;
    let on = |name: &str| args[name].as_bool() == Some(true);
    let (decay, betas, eps) = (set("weight_decay", 0.0), [beta(0, 0.9), beta(1, 0.999)], set("eps", 1e-8));
    match run["optimiser"].as_str() {
        Some("adam") => {
            let adam = Adam::new(parameters, 0.05).betas(betas[0], betas[1]).eps(eps).weight_decay(decay);
            Box::new(if on("amsgrad") { adam.amsgrad() } else { adam })
        }
        Some("adamw") => {
            let decay = set("weight_decay", 0.01);
            let adam = AdamW::new(parameters, 0.05).betas(betas[0], betas[1]).eps(eps).weight_decay(decay);
            Box::new(if on("amsgrad") { adam.amsgrad() } else { adam })
        }
        Some("rmsprop") => {
            let rms_prop = RMSprop::new(parameters, 0.05).alpha(set("alpha", 0.99)).momentum(set("momentum", 0.0));
            Box::new(rms_prop.weight_decay(decay))
        }
        Some("adagrad") => {
            let adagrad = Adagrad::new(parameters, 0.05).lr_decay(set("lr_decay", 0.0)).weight_decay(decay);
            Box::new(adagrad.eps(set("eps", 1e-10)))
        }
        Some("adadelta") => {
            let adadelta = Adadelta::new(parameters, 0.05).rho(set("rho", 0.9)).weight_decay(decay);
            Box::new(adadelta.eps(set("eps", 1e-6)))
        }
        _ => {
            let sgd = SGD::new(parameters, 0.05).momentum(set("momentum", 0.0)).dampening(set("dampening", 0.0));
            let sgd = sgd.weight_decay(decay);
            Box::new(if on("nesterov") { sgd.nesterov() } else { sgd })
        }
    }
}

/// p and q after each of twenty steps; `flat` lays them in one buffer, as a module's parameters lie.
fn walk(run: &Value, flat: bool, device: &Device) -> Result<Vec<Vec<f32>>> {
    let (p, q) = if flat {
        let block = Tensor::zeros([65], device)?; // a slot of 64 elements each
        let (p, q) = (block.narrow(0, 0, 3)?, block.narrow(0, 64, 1)?);
        p.copy_(&Tensor::from_slice(&[1.0, -2.0, 0.5f32], 3, device)?)?;
        q.fill_(2.0)?;
        (p.requires_grad(), q.requires_grad())
    } else {
        let p = Tensor::from_slice(&[1.0, -2.0, 0.5f32], 3, device)?.requires_grad();
        (p, Tensor::full([1], 2.0f32, device)?.requires_grad())
    };
    let slopes = Tensor::from_slice(&[1.0, 0.5, 3.0f32], 3, device)?;
    let mut optimiser = optimiser(run, vec![p.clone(), q.clone()]);
    let mut path = Vec::new();
    for step in 0..20 {
        optimiser.zero_grad();
        let mut loss = p.sub(0.25)?.square()?.mul(&slopes)?.sum_all()?;
        if step % 2 == 0 {
            loss = (&loss + &q.square()?.sum_all()?)?;
        }
        loss.backward()?;
        optimiser.step()?;
        path.push([p.to_vec::<f32>()?, q.to_vec::<f32>()?].concat());
    }
    Ok(path)
}

#[test]
fn twenty_steps_are_pytorchs() -> Result<()> {
    let reference: Value = serde_json::from_str(include_str!("../data/optimisers.json")).expect("JSON");
    let runs = reference["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 19);
    for device in devices_in_turn() {
        for run in runs {
            for flat in [false, true] {
                let got = walk(run, flat, &device)?;
                for (step, (got, expected)) in got.iter().zip(run["path"].as_array().expect("a path")).enumerate() {
                    for (got, expected) in got.iter().zip(expected.as_array().expect("a point")) {
                        let away = (f64::from(*got) - expected.as_f64().expect("a number")).abs();
                        assert!(
                            away < 1e-5,
                            "{} {} on {device}, step {step}: {got}, not {expected}",
                            run["optimiser"],
                            run["args"]
                        );
                    }
                }
            }
        }
    }
    Ok(())
}
