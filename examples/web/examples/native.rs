//! Makes on this machine the files that the page compares with and begins with:
//! `cargo run --release -p anygpu-web --example native -- [FOLDER]`.
//!
//! - `site/native.json`: the losses of the page's training run, on `cpu` in native code.
//! - With a folder of the whole MNIST, also `site/lenet.safetensors`, the weights of a LeNet trained on it, as f16,
//!   and `site/digits.onnx`, a small net as a file to try.

#[path = "../src/recipe.rs"]
#[allow(dead_code, reason = "the page uses the rest")]
mod recipe;

use std::path::Path;
use std::sync::Arc;

use anygpu::data::ImageSet;
use anygpu::nn::{
    Module, Sequential, StateDict,
    models::{lenet, mlp},
};
use anygpu::optim::{Adam, CosineAnnealingLR, LRScheduler, Schedule};
use anygpu::{DType, Device, Result, Tensor, checkpoint, data, manual_seed, nn, onnx};

/// The passes over the whole MNIST.
const EPOCHS: u64 = 4;

fn main() -> Result<()> {
    let site = Path::new(env!("CARGO_MANIFEST_DIR")).join("site");
    let digits = data::mnist_5k()?;
    let (mean, deviation) = digits.train.mean_std();
    for (found, written) in [mean[0], deviation[0]].into_iter().zip(recipe::MEAN_AND_DEVIATION) {
        assert!((found - written).abs() < 1e-4, "MEAN_AND_DEVIATION: {written}, but the digits have {found}");
    }
    write(&site.join("native.json"), &losses(digits.train)?);
    if let Some(folder) = std::env::args().nth(1) {
        let mnist = data::from_dir(folder)?;
        let net = trained(lenet, &mnist)?;
        let mut halves = StateDict::new();
        for (name, tensor) in net.state_dict().iter() {
            halves.insert(name, tensor.detach().to_dtype(DType::F16)?);
        }
        checkpoint::save(&halves, site.join("lenet.safetensors"))?;
        let small = trained(|| mlp(&[784, 32, 10]), &mnist)?;
        onnx::export(&small, &Tensor::zeros([1, 1, 28, 28], None)?, site.join("digits.onnx"))?;
    }
    Ok(())
}

/// Trains as the page does, and returns the losses as JSON, one a step.
fn losses(digits: Arc<ImageSet>) -> Result<String> {
    let mut trainer = recipe::Trainer::new(&Device::cpu())?;
    let loader = recipe::loader(digits, recipe::BATCH, true)?;
    let mut losses = Vec::new();
    for epoch in 0..recipe::EPOCHS {
        for batch in loader.epoch(epoch) {
            let (images, labels) = batch?;
            losses.push(trainer.step(&images, &labels)?.item::<f32>()?);
        }
    }
    println!("{} steps: the loss fell from {} to {}", losses.len(), losses[0], losses[losses.len() - 1]);
    // The shortest digits of f32, in brackets.
    Ok(format!("{{\"device\": \"cpu\", \"losses\": {losses:?}}}\n"))
}

/// Trains a net on the whole MNIST, and prints its accuracy.
fn trained(net: impl Fn() -> Result<Sequential>, mnist: &data::Splits) -> Result<Sequential> {
    manual_seed(0);
    let net = net()?;
    let loader = recipe::loader(mnist.train.clone(), 128, true)?;
    let mut adam = Adam::new(net.parameters(), 2e-3);
    let mut schedule = CosineAnnealingLR::new(EPOCHS * loader.batches() as u64)?.start(&mut adam);
    for epoch in 0..EPOCHS {
        for batch in loader.epoch(epoch) {
            let (images, labels) = batch?;
            adam.zero_grad();
            nn::cross_entropy(&net.forward(&images)?, &labels)?.backward()?;
            adam.step()?;
            schedule.step(&mut adam);
        }
    }
    let mut right = 0.0;
    for batch in &recipe::loader(mnist.test.clone(), 500, false)? {
        let (images, labels) = batch?;
        right += recipe::correct(&net, &Device::cpu(), &images, &labels)?.item::<f32>()?;
    }
    println!("{} parameters: {right} of {} test images", net.num_parameters(), mnist.test.n);
    Ok(net)
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
