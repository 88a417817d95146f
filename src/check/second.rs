//! Gradients of gradients of the table's cases: each is that of central differences, or an error.

use super::FAMILIES;
use super::case::Case;
use super::load::QUICK;
use super::nd::{uniform, values};
use crate::autograd::{GradOptions, grad};
use crate::device::{Device, DeviceKind};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, manual_seed};

/// How many cases of an op a software adapter computes, and other devices: each may compile kernels.
const CASES: [usize; 2] = [1, 24];

/// A step along a direction, and the directions. A step may cross a corner of the function, so that some may differ.
const STEP: f32 = 1.0 / 256.0;
const DIRECTIONS: u64 = 4;

/// Returns `Σ v ∘ g`, for the gradient g of `Σ w ∘ y + y² / 8`, and `Σ |v ∘ g|`: the gradient of the result y depends on y.
fn contracted(case: &Case, inputs: &[Tensor], tracked: &[usize], options: &GradOptions) -> Result<[Tensor; 2]> {
    manual_seed(5);
    let y = case.run(inputs)?.to_dtype(DType::F32)?;
    let w = uniform(y.shape(), 0.5, 1.5, 99).tensor(DType::F32, y.device())?;
    let loss = y.mul(&w)?.add(&y.square()?.mul(0.125)?)?.sum_all()?;
    let wanted: Vec<&Tensor> = tracked.iter().map(|&i| &inputs[i]).collect();
    let gradients = grad(&loss, &wanted, options)?;
    let (mut sum, mut size) = (Tensor::zeros((), y.device())?, Tensor::zeros((), y.device())?);
    for (i, g) in gradients.iter().enumerate() {
        let part = g.mul(&uniform(g.shape(), 0.5, 1.5, 7 + i as u64).tensor(DType::F32, g.device())?)?;
        sum = sum.add(&part.sum_all()?)?;
        size = size.add(&part.detach().abs()?.sum_all()?)?;
    }
    Ok([sum, size])
}

/// The result of a case: whether the second gradient is right, or has no value at these operands.
#[derive(Debug, PartialEq)]
enum Found {
    Right,
    Refused(String),
    NoNumber,
    Wrong(String),
}

fn second(case: &Case, device: &Device) -> Result<Found> {
    let tracked: Vec<usize> = (0..case.inputs.len()).filter(|&i| case.inputs[i].dtype.is_float()).collect();
    let mut inputs = case.tensors(device)?;
    tracked.iter().for_each(|&i| inputs[i] = inputs[i].requires_grad());
    let leaves: Vec<Tensor> = tracked.iter().map(|&i| inputs[i].clone()).collect();
    let create = GradOptions::new().create_graph().allow_unused();
    let attempt = || -> Result<Vec<Tensor>> {
        let [sum, _] = contracted(case, &inputs, &tracked, &create)?;
        grad(&sum, &leaves.iter().collect::<Vec<_>>(), &GradOptions::new().allow_unused())
    };
    let got = match attempt() {
        Ok(got) => got,
        Err(Error::Autograd(why)) => return Ok(Found::Refused(why)),
        Err(other) => return Err(other),
    };
    let mut wrong = Vec::new();
    for direction in 0..DIRECTIONS {
        let seed = 31 * direction + 3;
        let along = |g: &Tensor| uniform(g.shape(), -1.0, 1.0, seed).tensor(DType::F32, device);
        let at = |step: f32| -> Result<[f32; 2]> {
            let mut moved = inputs.clone();
            for &i in &tracked {
                moved[i] = inputs[i].detach().add(&along(&inputs[i])?.mul(step)?)?.requires_grad();
            }
            let [sum, size] = contracted(case, &moved, &tracked, &GradOptions::new().allow_unused())?;
            Ok([sum.item()?, size.item()?])
        };
        let ([up, size], [down, _]) = (at(STEP)?, at(-STEP)?);
        let expected = (up - down) / (2.0 * STEP);
        let mut sum = 0.0;
        for g in &got {
            sum += values(&g.mul(&along(g)?)?)?.iter().sum::<f64>() as f32;
        }
        if !expected.is_finite() {
            return Ok(Found::NoNumber);
        }
        let allowed = 0.02 * expected.abs() + 1e-3 * size + 1e-3;
        if (sum - expected).abs().is_nan() || (sum - expected).abs() > allowed {
            wrong.push(format!("{sum}, not {expected} ± {allowed}"));
        }
    }
    Ok(if wrong.len() as u64 * 2 > DIRECTIONS { Found::Wrong(wrong.join("; ")) } else { Found::Right })
}

#[test]
fn second_gradients_are_those_of_differences_or_an_error() {
    let (mut wrong, mut right, mut refused) = (Vec::new(), 0, std::collections::BTreeMap::new());
    for device in Device::all() {
        let start = std::time::Instant::now();
        for (family, cases) in FAMILIES {
            let mut seen = std::collections::HashMap::<String, usize>::new();
            for case in cases() {
                let floats = case.inputs.iter().all(|input| !input.dtype.is_float() || input.dtype == DType::F32);
                let empty = case.inputs.iter().any(|input| input.value.data.is_empty());
                if case.gradient.is_none() || case.variant.is_some() || case.cost() > QUICK || !floats || empty {
                    continue;
                }
                let count = seen.entry(case.op_name().to_owned()).or_default();
                *count += 1;
                if *count > CASES[usize::from(device.info().kind != DeviceKind::Software)] {
                    continue;
                }
                match second(&case, &device) {
                    Ok(Found::Right) => right += 1,
                    Ok(Found::NoNumber) => {}
                    Ok(Found::Refused(why)) => {
                        refused.insert(format!("{family} {}", case.op_name()), why);
                    }
                    Ok(Found::Wrong(what)) => wrong.push(format!("{} on {device}: {what}", case.name)),
                    Err(error) => wrong.push(format!("{} on {device}: {error}", case.name)),
                }
            }
        }
        println!("{device}: {:?}", start.elapsed());
    }
    println!("{right} right; refused: {refused:#?}");
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    for op in ["attention", "cross_entropy", "nll_loss", "matmul", "softmax", "var", "conv2d", "gather"] {
        assert!(!refused.keys().any(|name| name.ends_with(&format!(" {op}"))), "{op}: {:?}", refused);
    }
}
