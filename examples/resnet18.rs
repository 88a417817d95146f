//! ResNet-18 on several devices: "Concise implementation for multiple GPUs" of *Dive into Deep Learning* (d2l.ai,
//! 13.6), on a few digits enlarged to 96 × 96, for a few steps.
//!
//! `cargo run --release --example resnet18 [device ...]`: all GPUs by default, or the CPU if there is none; for example
//! `soft:0 cpu`.

use anygpu::data::{DataLoader, Subset, mnist_5k, transforms::Resize};
use anygpu::metrics::Throughput;
use anygpu::nn::models::resnet18;
use anygpu::{DataParallel, Device, Result, manual_seed, nn, optim, try_all_gpus};

fn main() -> Result<()> {
    let named = std::env::args().skip(1).map(|name| Device::new(&name)).collect::<Result<Vec<_>>>()?;
    let devices = if named.is_empty() { try_all_gpus() } else { named };
    manual_seed(0);
    let digits = mnist_5k()?;
    let (few, normalize) = (Subset::first(digits.train.clone(), 16), digits.normalize());
    let loader = DataLoader::new(few, 8)?.transform(Resize::new([96, 96])).transform(normalize).shuffle(0);
    let net = DataParallel::new(resnet18(1, 10)?, &devices)?;
    let mut trainer = optim::SGD::new(net.parameters(), 0.02).momentum(0.9);

    let (mut losses, mut speed) = (Vec::new(), Throughput::new());
    for _epoch in 0..3 {
        for batch in &loader {
            let (images, labels) = batch?;
            losses.push(net.train_batch(&images, &labels, nn::cross_entropy)?);
            trainer.step()?;
            speed.add(labels.elem_count());
        }
    }
    let losses = losses.iter().map(|loss| loss.item::<f32>()).collect::<Result<Vec<f32>>>()?;
    let names: Vec<&str> = devices.iter().map(Device::name).collect();
    println!("losses {losses:.3?}, {:.1} images/s on {}", speed.per_second(), names.join(", "));
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    assert!(mean(&losses[4..]) < 0.7 * mean(&losses[..2]), "the loss falls: {losses:?}");
    Ok(())
}
