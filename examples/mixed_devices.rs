//! One training run on every device of the machine. Its losses are compared with the losses of one device.
//!
//! `cargo run --release --example mixed_devices [device ...]`: all devices by default. Two logical devices of one
//! adapter also work, for example `soft:0/0 soft:0/1 cpu`.

use anygpu::nn::models::{LENET_RECIPE, lenet};
use anygpu::{DataParallel, Device, Result, data, manual_seed, nn, optim};

/// Returns the losses of the first ten steps with one seed.
fn first_losses(devices: &[Device]) -> Result<Vec<f32>> {
    manual_seed(0);
    let (train, _) = data::mnist_5k()?.loaders(LENET_RECIPE.batch_size, 0)?;
    let net = DataParallel::new(lenet()?, devices)?;
    let mut sgd = optim::SGD::new(net.parameters(), LENET_RECIPE.lr).momentum(LENET_RECIPE.momentum);
    let mut losses = Vec::new();
    for batch in train.epoch(0).take(10) {
        let (images, labels) = batch?;
        losses.push(net.train_batch(&images, &labels, nn::cross_entropy)?.item()?);
        sgd.step()?;
    }
    let shares =
        net.devices().iter().zip(net.shares()).map(|(d, s)| format!("{d} {:.0} %", 100.0 * s)).collect::<Vec<_>>();
    println!("shares after ten steps: {}", shares.join(", "));
    Ok(losses)
}

fn main() -> Result<()> {
    let named = std::env::args().skip(1).map(|name| Device::new(&name)).collect::<Result<Vec<_>>>()?;
    let devices = if named.is_empty() { Device::all().to_vec() } else { named };

    let names = devices.iter().map(Device::name).collect::<Vec<_>>().join(", ");

    let alone = first_losses(&[Device::cpu()])?;
    let mixed = first_losses(&devices)?;
    for (step, (one, many)) in alone.iter().zip(&mixed).enumerate() {
        println!("step {step}: loss {one:.6} on cpu, {many:.6} on [{names}]");
        assert!((one - many).abs() <= 1e-3 * one.abs(), "step {step}: {one} on cpu, {many} on [{names}]");
    }
    Ok(())
}
