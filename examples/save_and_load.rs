//! Saves a net that was trained on one device and loads it on every other one. The outputs are the same.
//!
//! `cargo run --release --example save_and_load [file]`: if a file is given, the net is kept there as a training
//! checkpoint with images and outputs, which `scripts/pytorch_checkpoints.py --check file` compares with PyTorch's.

use anygpu::checkpoint::TrainingState;
use anygpu::nn::models::lenet;
use anygpu::nn::{self, Module};
use anygpu::{DataParallel, Device, Result, Tensor, checkpoint, data, manual_seed, no_grad, optim, try_gpu};

/// Returns the largest difference between two tensors, which may be on different devices.
fn apart(a: &Tensor, b: &Tensor) -> Result<f32> {
    (a.cpu()? - b.cpu())?.abs()?.max_all()?.item()
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("anygpu-save-and-load-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the file");
    let path = folder.join("lenet.safetensors");

    // Train for some steps, and save.
    manual_seed(0);
    let (train, test) = data::mnist_5k()?.loaders(64, 0)?;
    let here = try_gpu(0);
    let net = DataParallel::new(lenet()?, std::slice::from_ref(&here))?;
    let mut sgd = optim::SGD::new(net.parameters(), 0.05).momentum(0.9);
    for batch in train.epoch(0).take(20) {
        let (images, labels) = batch?;
        net.train_batch(&images, &labels, nn::cross_entropy)?;
        sgd.step()?;
    }
    checkpoint::save(&net.state_dict(), &path)?;
    let (images, _) = test.epoch(0).next().expect("a batch")?;
    let expected = net.predict(&images)?;

    if let Some(file) = std::env::args().nth(1) {
        let test = [("images", &images), ("logits", &expected)];
        let test = test.into_iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect();
        TrainingState::new().module(&net).optimizer(&sgd)?.tensors("test", &test).save(file)?;
    }

    // Load on every device.
    for device in Device::all() {
        let other = lenet()?.to(&device)?;
        other.load_state_dict(&checkpoint::load(&path, &device)?, true)?;
        other.eval();
        let apart = apart(&no_grad(|| other.forward(&images.to(&device)?))?, &expected)?;
        println!("trained on {here}, loaded on {device}: outputs differ by {apart:.1e}");
        assert!(apart < 1e-4);
    }
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    Ok(())
}
