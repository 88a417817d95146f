//! LeNet from plain tensors on several devices: "Training on multiple GPUs" of *Dive into Deep Learning* (d2l.ai,
//! 13.5), with its functions and names. It uses no layers, no optimisers and no `DataParallel`.
//!
//! `cargo run --release --example lenet_from_scratch [device ...]`: all GPUs by default, or the CPU if there is none;
//! for example `soft:0 cpu`, or two logical devices on one adapter: `soft:0/0 soft:0/1`.

use anygpu::data::{DataLoader, mnist_5k};
use anygpu::metrics::Accuracy;
use anygpu::parallel::split_batch;
use anygpu::{Conv, Device, Pool, Result, Tensor, manual_seed, nn, no_grad, try_all_gpus};

/// Returns a net's initial weights and biases, on the CPU. Weights are normal with standard deviation √(2 / inputs) (He
/// et al., 2015).
fn initial_params() -> Result<Vec<Tensor>> {
    let weight = |shape: &[usize]| {
        let inputs: usize = if shape.len() == 4 { shape[1..].iter().product() } else { shape[0] };
        Tensor::randn(shape, None)?.mul_scalar((2.0 / inputs as f32).sqrt())
    };
    let zeros = |n: usize| Tensor::zeros([n], None);
    Ok(vec![
        weight(&[20, 1, 3, 3])?,
        zeros(20)?,
        weight(&[50, 20, 5, 5])?,
        zeros(50)?,
        weight(&[800, 128])?,
        zeros(128)?,
        weight(&[128, 10])?,
        zeros(10)?,
    ])
}

fn lenet(x: &Tensor, params: &[Tensor]) -> Result<Tensor> {
    let [w1, b1, w2, b2, w3, b3, w4, b4] = params else { unreachable!("eight parameters") };
    let h1 = x.conv2d(w1, Some(b1), Conv::new())?.relu()?.avg_pool2d(Pool::new(2))?;
    let h2 = h1.conv2d(w2, Some(b2), Conv::new())?.relu()?.avg_pool2d(Pool::new(2))?;
    let h2 = h2.reshape([-1, 800])?;
    let h3 = (h2.matmul(w3)? + b3)?.relu()?;
    h3.matmul(w4)? + b4
}

/// Returns copies of the parameters on a device, with gradients.
fn get_params(params: &[Tensor], device: &Device) -> Result<Vec<Tensor>> {
    params.iter().map(|p| Ok(p.to(device)?.detach().requires_grad())).collect()
}

/// Sums all tensors on the first one's device, in place, and copies the sum to the others.
fn allreduce(data: &[Tensor]) -> Result<()> {
    for part in &data[1..] {
        data[0].add_(&part.to(data[0].device())?)?;
    }
    for part in &data[1..] {
        part.copy_(&data[0].to(part.device())?)?;
    }
    Ok(())
}

/// Makes one step of gradient descent. The gradients are sums over the batch.
fn sgd(params: &[Tensor], lr: f32, batch_size: usize) -> Result<()> {
    for param in params {
        if let Some(grad) = param.grad() {
            no_grad(|| param.sub_(&grad.mul_scalar(lr / batch_size as f32)?))?;
        }
        param.set_grad(None);
    }
    Ok(())
}

fn train_batch(x: &Tensor, y: &Tensor, device_params: &[Vec<Tensor>], devices: &[Device], lr: f32) -> Result<()> {
    let (x_shards, y_shards) = split_batch(x, y, devices)?;
    let loss = nn::CrossEntropyLoss::new().reduction(nn::Reduction::Sum);
    // Compute the loss on each device.
    for ((x, y), params) in x_shards.iter().zip(&y_shards).zip(device_params) {
        loss.forward(&lenet(x, params)?, y)?.backward()?;
    }
    // Sum the gradients over all devices.
    for i in 0..device_params[0].len() {
        let grads: Vec<Tensor> = device_params.iter().filter_map(|params| params[i].grad()).collect();
        allreduce(&grads)?;
    }
    // Update each device's copy, with the size of the whole batch.
    device_params.iter().try_for_each(|params| sgd(params, lr, x.shape()[0]))
}

fn evaluate_accuracy(params: &[Tensor], data: &DataLoader) -> Result<f64> {
    let mut accuracy = Accuracy::new();
    for batch in data.epoch(0) {
        let (x, y) = batch?;
        no_grad(|| accuracy.add(&lenet(&x.to(params[0].device())?, params)?, &y))?;
    }
    accuracy.value()
}

fn train(devices: &[Device], batch_size: usize, lr: f32, epochs: usize) -> Result<f64> {
    let (train_iter, test_iter) = mnist_5k()?.loaders(batch_size, 0)?;
    let params = initial_params()?;
    let device_params = devices.iter().map(|device| get_params(&params, device)).collect::<Result<Vec<_>>>()?;
    let mut accuracy = 0.0;
    for epoch in 1..=epochs {
        for batch in &train_iter {
            let (x, y) = batch?;
            train_batch(&x, &y, &device_params, devices, lr)?;
        }
        devices.iter().try_for_each(Device::synchronize)?;
        accuracy = evaluate_accuracy(&device_params[0], &test_iter)?;
        println!("epoch {epoch}: test acc {accuracy:.3}");
    }
    Ok(accuracy)
}

fn main() -> Result<()> {
    let named = std::env::args().skip(1).map(|name| Device::new(&name)).collect::<Result<Vec<_>>>()?;
    let devices = if named.is_empty() { try_all_gpus() } else { named };
    manual_seed(0);
    let accuracy = train(&devices, 64, 0.2, 2)?;
    let names: Vec<&str> = devices.iter().map(Device::name).collect();
    println!("test acc {accuracy:.3} after 2 epochs on {}", names.join(", "));
    assert!(accuracy > 0.9, "two epochs are enough for 0.9, got {accuracy}");
    Ok(())
}
