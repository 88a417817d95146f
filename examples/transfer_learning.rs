//! Transfer learning from a PyTorch file: a LeNet that PyTorch trained on digits (`tests/data/lenet.pt`, written by
//! `torch.save`) gets a new last layer that separates odd from even digits.
//!
//! `cargo run --release --example transfer_learning [device]`

use anygpu::data::DataLoader;
use anygpu::metrics::Accuracy;
use anygpu::nn::{self, Linear, Module, Sequential, models::lenet};
use anygpu::{Device, Result, Tensor, checkpoint, data, manual_seed, no_grad, optim, try_gpu};

/// Returns 1 for odd digits, 0 for even ones.
fn odd(labels: &Tensor, device: &Device) -> Result<Tensor> {
    let odd: Vec<u32> = labels.to_vec::<u32>()?.into_iter().map(|label| label % 2).collect();
    Tensor::from_vec(odd, labels.shape(), device)
}

fn accuracy(net: &Sequential, test: &DataLoader, device: &Device) -> Result<f64> {
    net.eval();
    let mut accuracy = Accuracy::new();
    for batch in test.epoch(0) {
        let (images, labels) = batch?;
        accuracy.add(&no_grad(|| net.forward(&images.to(device)?))?, &odd(&labels, device)?)?;
    }
    accuracy.value()
}

/// Trains the parameters that are not frozen for some steps.
fn train(net: &Sequential, lr: f32, loader: &DataLoader, device: &Device) -> Result<()> {
    let mut sgd = optim::SGD::new(net.parameters(), lr).momentum(0.9);
    net.train();
    for batch in loader.epoch(0).take(20) {
        let (images, labels) = batch?;
        sgd.zero_grad();
        nn::cross_entropy(&net.forward(&images.to(device)?)?, &odd(&labels, device)?)?.backward()?;
        sgd.step()?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let device = match std::env::args().nth(1) {
        Some(name) => Device::new(&name)?,
        None => try_gpu(0),
    };
    manual_seed(0);
    let (loader, test) = data::mnist_5k()?.loaders(64, 0)?;

    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/lenet.pt");
    let mut net = lenet()?;
    net.load_state_dict(&checkpoint::load(file, Device::cpu())?, true)?;
    net.requires_grad_(false); // keep PyTorch's parameters unchanged …
    net.set("fc2", Linear::new(128, 2)?)?; // … except the new last layer
    let mut net = net.to(&device)?;

    let before = accuracy(&net, &test, &device)?;
    let body = net.state_dict().copied()?;
    train(&net, 0.05, &loader, &device)?;
    let head = accuracy(&net, &test, &device)?;
    for (name, old) in body.iter() {
        let stays = net.get(name).map(|new| new.to_vec::<f32>()).transpose()? == Some(old.to_vec::<f32>()?);
        assert_eq!(stays, !name.starts_with("fc2"), "{name}");
    }

    net.requires_grad_(true); // then train everything, with a smaller learning rate
    train(&net, 0.01, &loader, &device)?;
    let all = accuracy(&net, &test, &device)?;

    println!(
        "accuracy on {device}: {before:.3} with a new head, {head:.3} with a trained one, {all:.3} with all trained"
    );
    assert!(head > before + 0.2 && head > 0.93 && all > 0.95, "{before} {head} {all}");
    Ok(())
}
