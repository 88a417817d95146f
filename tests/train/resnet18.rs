//! The first losses of ResNet-18 equal PyTorch's for the same weights and images: tests/data/resnet18_losses.json, by
//! scripts/pytorch_resnet18.py, which explains how both are made.
//!
//! `cpu` takes the larger batch, the first software adapter the smaller one, and both together the larger one. Batch
//! norms use the whole batch, so the losses stay the same. All three take about twenty seconds in a release build on
//! two cores.

use anygpu::nn::{self, Module};
use anygpu::{DataParallel, Device, Interpolation, Result, Tensor, data, optim};
use serde_json::Value;

use crate::common::{alone, device};

/// Of the images, and of the last batch norm's weights in each block.
const NOISE: f32 = 1.0;
const SEED: u32 = 99;
const LAST: f32 = 0.02;

/// Numbers in [−1, 1), exact in f32, from the position.
fn hashed(count: usize, seed: u32, factor: f32) -> Vec<f32> {
    let mixed = |mut h: u32| {
        for (shift, factor) in [(16, 0x05eb_ca6b), (13, 0x42b2_ae35), (16, 1)] {
            h = (h ^ (h >> shift)).wrapping_mul(factor);
        }
        h
    };
    let first = seed.wrapping_mul(0x9e37_79b9);
    let number = |i: u32| ((mixed(first.wrapping_add(i)) >> 8) as f32 - 8_388_608.0) / 8_388_608.0;
    (0..count as u32).map(|i| number(i) * factor).collect()
}

/// ResNet-18 for grey images with the script's weights.
fn net() -> Result<nn::Sequential> {
    let mut net = nn::models::resnet18(1, 10)?;
    let (mut place, mut result) = (0, Ok(()));
    net.visit_mut(&mut |name, parameter| {
        let shape = parameter.shape().to_vec();
        let values = match shape[..] {
            [outputs, _, height, width] => {
                let bound = (6.0 / (outputs * height * width) as f64).sqrt();
                Some(hashed(parameter.elem_count(), place, bound as f32))
            }
            _ if name.starts_with("fc.") => Some(hashed(parameter.elem_count(), place, (1.0 / 512f64.sqrt()) as f32)),
            _ if name.ends_with("bn2.weight") => Some(vec![LAST; parameter.elem_count()]),
            _ => None,
        };
        match values.map(|values| Tensor::from_vec(values, shape, None)).transpose() {
            Ok(Some(made)) => *parameter = made.requires_grad(),
            Ok(None) => {}
            Err(error) => result = Err(error),
        }
        place += 1;
    });
    result.map(|()| net)
}

/// The first test digits, `[count, 1, 96, 96]`, and their labels.
fn digits(count: usize) -> Result<(Tensor, Tensor)> {
    let test = data::mnist_5k()?.test;
    let pixels = test.images[..count * 784].iter().map(|&v| (f32::from(v) / 255.0 - 0.5) / 0.5).collect();
    let small = Tensor::from_vec(pixels, [count, 1, 28, 28], None)?;
    let large = small.interpolate([96, 96], Interpolation::Linear { align_corners: false })?;
    let noise = Tensor::from_vec(hashed(large.elem_count(), SEED, NOISE), large.shape(), None)?;
    let labels = test.labels[..count].iter().map(|&l| u32::from(l)).collect();
    Ok((large.add(&noise)?, Tensor::from_vec(labels, count, None)?))
}

fn check(devices: &[Device], batch: usize) -> Result<()> {
    let expected: Value = serde_json::from_str(include_str!("../data/resnet18_losses.json")).expect("JSON");
    let runs = expected["runs"].as_array().expect("runs");
    let run = runs.iter().find(|run| run["batch"].as_u64() == Some(batch as u64)).expect("a run of this batch");
    let setting = |name: &str| expected[name].as_f64().expect("a number") as f32;
    let losses: Vec<f64> = run["losses"].as_array().expect("losses").iter().filter_map(Value::as_f64).collect();
    assert_eq!(losses.len(), 5);

    let net = DataParallel::new(net()?, devices)?;
    let mut sgd = optim::SGD::new(net.parameters(), setting("lr")).momentum(setting("momentum"));
    let (images, labels) = digits(batch * losses.len())?;
    let mut found = Vec::new();
    for step in 0..losses.len() {
        let part = |t: &Tensor| t.narrow(0, step * batch, batch)?.contiguous();
        let loss = net.train_batch(&part(&images)?, &part(&labels)?, nn::cross_entropy)?;
        sgd.step()?;
        found.push(f64::from(loss.item::<f32>()?));
    }
    let worst = found.iter().zip(&losses).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    eprintln!("{devices:?}, batch {batch}: the losses are at most {worst:.1e} from PyTorch's");
    assert!(worst < 1e-3, "{devices:?}: {found:?}, PyTorch has {losses:?}");
    Ok(())
}

#[test]
fn the_first_losses_are_those_of_pytorch_on_the_host() -> Result<()> {
    let _alone = alone();
    check(&[Device::cpu()], 8)
}

#[test]
fn the_first_losses_are_those_of_pytorch_on_an_adapter() -> Result<()> {
    let _alone = alone();
    device("soft:0").map_or(Ok(()), |adapter| check(&[adapter], 4))
}

#[test]
fn the_first_losses_are_those_of_pytorch_on_both() -> Result<()> {
    let _alone = alone();
    device("soft:0").map_or(Ok(()), |adapter| check(&[Device::cpu(), adapter], 8))
}
