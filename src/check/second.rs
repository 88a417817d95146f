//! Gradients of gradients of the table's cases: each must agree with central differences, or be an error.

use std::collections::{BTreeMap, HashMap};
use std::thread;

use super::FAMILIES;
use super::case::Case;
use super::load::QUICK;
use super::nd::{uniform, values};
use crate::autograd::{GradOptions, grad};
use crate::device::{Device, DeviceKind};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, manual_seed};

/// How many cases of an op a device computes; a software adapter computes one, since each may compile kernels.
const CASES: usize = 24;

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
        let ([nearer_up, _], [nearer_down, _]) = (at(STEP / 2.0)?, at(-STEP / 2.0)?);
        let (expected, nearer) = ((up - down) / (2.0 * STEP), (nearer_up - nearer_down) / STEP);
        let mut sum = 0.0;
        for g in &got {
            sum += values(&g.mul(&along(g)?)?)?.iter().sum::<f64>() as f32;
        }
        if !expected.is_finite() {
            return Ok(Found::NoNumber);
        }
        // A jump of the first gradient between the two points gives another quotient for a shorter step.
        if (expected - nearer).abs() > 0.1 * expected.abs().max(nearer.abs()) + 1e-3 * size {
            continue;
        }
        let allowed = 0.02 * expected.abs() + 1e-3 * size + 1e-3;
        if (sum - expected).abs().is_nan() || (sum - expected).abs() > allowed {
            wrong.push(format!("{sum}, not {expected} ± {allowed}"));
        }
    }
    Ok(if wrong.len() > 1 { Found::Wrong(wrong.join("; ")) } else { Found::Right })
}

/// What a device found: the number of cases that are right, ops that are refused, and cases that are wrong.
#[derive(Default)]
struct All {
    right: usize,
    refused: BTreeMap<String, String>,
    wrong: Vec<String>,
}

/// Returns whether a case has a second gradient that a difference of f32 can tell, and is small.
fn is_suitable(case: &Case) -> bool {
    let floats = case.inputs.iter().all(|input| !input.dtype.is_float() || input.dtype == DType::F32);
    let empty = case.inputs.iter().any(|input| input.value.data.is_empty());
    case.gradient.is_some() && case.variant.is_none() && case.cost() <= QUICK && floats && !empty
}

/// Takes the second gradients of the ops that a device has: each k-th op, from one on.
fn all_on(device: &Device, cases: &[Case], (first, k): (usize, usize)) -> All {
    let (mut all, mut ops) = (All::default(), HashMap::<String, (usize, usize)>::new());
    let most = if device.info().kind == DeviceKind::Software { 1 } else { CASES };
    for case in cases {
        let number = ops.len();
        let (number, count) = ops.entry(case.op_name().to_owned()).or_insert((number, 0));
        *count += 1;
        if *number % k != first || *count > most {
            continue;
        }
        match second(case, device) {
            Ok(Found::Right) => all.right += 1,
            Ok(Found::NoNumber) => {}
            Ok(Found::Refused(why)) => {
                all.refused.insert(case.op_name().to_owned(), why);
            }
            Ok(Found::Wrong(what)) => all.wrong.push(format!("{} on {device}: {what}", case.name)),
            Err(error) => all.wrong.push(format!("{} on {device}: {error}", case.name)),
        }
    }
    all
}

/// The ops of the table whose gradients have no gradient. They are the same on every device.
const REFUSED: &[&str] = &[
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "atan2",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "batch_norm_add_relu",
    "batch_norm_relu",
    "cumprod", // where an element is 0
    "det",     // where a matrix is singular
    "group_norm",
    "index_reduce", // a product, where an element is 0
    "interpolate",
    "layer_norm",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "pad",
    "pow",
    "prod", // where an element is 0
    "prod_all",
    "rms_norm",
    "scatter_reduce", // a product, where an element is 0
];

#[test]
fn second_gradients_are_those_of_differences_or_an_error() {
    let devices = Device::all();
    let is_software = |device: &Device| device.info().kind == DeviceKind::Software;
    let adapters = devices.iter().filter(|device| is_software(device)).count();
    // Software adapters take long to compile kernels: each has some of the ops.
    let places = devices.iter().scan(0, |next, device| {
        let place = if is_software(device) { (*next, adapters) } else { (0, 1) };
        *next += usize::from(is_software(device));
        Some((device, place))
    });
    let cases: &[Case] = &FAMILIES.iter().flat_map(|(_, cases)| cases()).filter(is_suitable).collect::<Vec<_>>();
    let found: Vec<All> = thread::scope(|scope| {
        let threads: Vec<_> = places.map(|(device, place)| scope.spawn(move || all_on(device, cases, place))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for (device, all) in devices.iter().zip(&found) {
        println!("{device}: {} right, {} wrong, refused: {:?}", all.right, all.wrong.len(), all.refused);
    }
    let wrong: Vec<&str> = found.iter().flat_map(|all| &all.wrong).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    for (device, all) in devices.iter().zip(&found) {
        let more: Vec<_> = all.refused.iter().filter(|(op, _)| !REFUSED.contains(&op.as_str())).collect();
        assert!(more.is_empty(), "{device}: {more:?}");
        assert!(all.right > 10, "{device}");
    }
}
