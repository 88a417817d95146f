//! Draws one training run on one device and on several: both losses, which coincide, and the shares of the devices.
//!
//!     cargo run --release -p anygpu-plot --example mixed -- docs/gallery/mixed.svg cpu soft:0 soft:1
//!
//! The first device also trains alone. Without devices: all of this machine, and `cpu` alone.

use anygpu::nn::models::lenet;
use anygpu::{DataParallel, Device, Result, data, manual_seed, nn, optim};
use anygpu_plot::Animator;

const STEPS: usize = 60;
const BATCH: usize = 256;
/// With LeNet's usual rate, 0.05, training amplifies differences in the last bit: after 60 steps, losses on `cpu` and on `cpu` with `cpu/1`
/// differ by up to a per cent.
const RATE: f32 = 0.02;

/// Returns the loss and the shares of the devices after each step.
fn train(devices: &[Device]) -> Result<Vec<(f32, Vec<f64>)>> {
    manual_seed(0);
    let (train, _) = data::mnist_5k()?.loaders(BATCH, 0)?;
    let net = DataParallel::new(lenet()?, devices)?;
    let mut sgd = optim::SGD::new(net.parameters(), RATE).momentum(0.9);
    let mut steps = Vec::new();
    for batch in (0..).flat_map(|epoch| train.epoch(epoch)).take(STEPS) {
        let (images, labels) = batch?;
        let loss = net.train_batch(&images, &labels, nn::cross_entropy)?.item()?;
        sgd.step()?;
        steps.push((loss, net.shares()));
    }
    println!("{}", net.report());
    Ok(steps)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or("mixed.svg".into());
    let named = arguments.map(|name| Device::new(&name)).collect::<Result<Vec<_>>>()?;
    let devices = if named.is_empty() { Device::all().to_vec() } else { named };
    let first = devices.first().cloned().unwrap_or(Device::cpu());

    let (alone, together) = (train(std::slice::from_ref(&first))?, train(&devices)?);
    let names: Vec<&str> = devices.iter().map(Device::name).collect();
    let [one, all] = [format!("{first} alone"), names.join(" + ")];
    let mut picture = Animator::new("step")
        .title("LeNet, batches of 256: one device and several give the same losses")
        .panel("loss", &[&one, &all])
        .shares("share of the batch", &names);
    let mut furthest = 0f32;
    for (step, ((one, _), (all, shares))) in alone.iter().zip(&together).enumerate() {
        furthest = furthest.max((one - all).abs() / one.abs());
        let values: Vec<f64> = [f64::from(*one), f64::from(*all)].into_iter().chain(shares.iter().copied()).collect();
        picture.add(step as f64 + 1.0, &values)?;
    }
    println!("the losses differ by {furthest:.1e} at most, relative to their size");
    assert!(furthest < 1e-5, "a step on several devices equals the step of one");
    picture.save(&path)
}
