//! Runs whose numbers must be the same in a browser and elsewhere.

use anygpu::nn::{self, BatchNorm2d, Conv2d, CrossEntropyLoss, Dropout, Flatten, Linear, Module, ReLU, Sequential};
use anygpu::optim::SGD;
use anygpu::parallel::Shares;
use anygpu::{DataParallel, Device, Result, Tensor, data, manual_seed};

/// The runs of [`losses`].
pub const RUNS: [&str; 3] = ["lenet", "batch norm and dropout", "weighted"];

/// The losses of a run on devices, which share each batch unequally if they are several.
///
/// # Errors
/// Those of the devices.
pub async fn losses(run: &str, devices: &[Device]) -> Result<Vec<f32>> {
    match run {
        "lenet" => lenet(devices).await,
        "batch norm and dropout" => norms(devices).await,
        _ => weighted(devices).await,
    }
}

fn shares(net: DataParallel, devices: &[Device]) -> Result<DataParallel> {
    net.with_shares(Shares::Fixed((0..devices.len()).map(|i| 1.0 + 1.7 * i as f64).collect()))
}

/// 20 steps of LeNet on digits, with momentum.
async fn lenet(devices: &[Device]) -> Result<Vec<f32>> {
    manual_seed(0);
    let (train, _) = data::mnist_5k()?.loaders(20, 0)?;
    let net = shares(DataParallel::new(nn::models::lenet()?, devices)?, devices)?;
    let mut sgd = SGD::new(net.parameters(), 0.02).momentum(0.9);
    let mut losses = Vec::new();
    for batch in train.epoch(0).take(20) {
        let (images, labels) = batch?;
        let loss = net.train_batch_async(&images, &labels, nn::cross_entropy).await?;
        sgd.step()?;
        losses.push(loss.item_async::<f32>().await?);
    }
    Ok(losses)
}

/// Layers that take statistics and random numbers over the whole batch.
async fn norms(devices: &[Device]) -> Result<Vec<f32>> {
    manual_seed(3);
    let net = Sequential::new()
        .push(Conv2d::new(1, 6, 3)?.padding(1))
        .push(BatchNorm2d::new(6)?.momentum(0.3))
        .push(ReLU)
        .push(Conv2d::new(6, 4, 3)?.without_bias())
        .push(BatchNorm2d::new(4)?)
        .push(ReLU)
        .push(Flatten)
        .push(Dropout::new(0.3)?)
        .push(Linear::new(4 * 5 * 5, 3)?);
    let net = shares(DataParallel::new(net, devices)?, devices)?;
    let mut sgd = SGD::new(net.parameters(), 0.05).momentum(0.9);
    let mut losses = Vec::new();
    for _ in 0..4 {
        let x = Tensor::rand([13, 1, 7, 7], None)?;
        let labels = Tensor::from_vec((0..13u32).map(|i| i % 3).collect(), 13, None)?;
        losses.push(net.train_batch_async(&x, &labels, nn::cross_entropy).await?.item_async::<f32>().await?);
        sgd.step()?;
    }
    // What the running statistics have become.
    let outputs = net.predict_async(&Tensor::rand([5, 1, 7, 7], None)?).await?;
    losses.extend(outputs.to_vec_async::<f32>().await?);
    Ok(losses)
}

/// Weights of classes, and labels that are left out: the mean is not over samples.
async fn weighted(devices: &[Device]) -> Result<Vec<f32>> {
    manual_seed(5);
    let net = Sequential::new().push(Linear::new(6, 20)?).push(ReLU).push(Linear::new(20, 4)?);
    let net = shares(DataParallel::new(net, devices)?, devices)?;
    let mut sgd = SGD::new(net.parameters(), 0.1);
    let mut losses = Vec::new();
    for step in 0..5u32 {
        let x = Tensor::rand([11, 6], None)?;
        let labels = Tensor::from_vec((0..11u32).map(|i| (i * i + step) % 5).collect(), 11, None)?;
        let loss = |logits: &Tensor, labels: &Tensor| {
            let weights = Tensor::new([0.1f32, 4.0, 1.0, 2.5], logits.device())?;
            CrossEntropyLoss::new().weight(weights).ignore_index(4).forward(logits, labels)
        };
        losses.push(net.train_batch_async(&x, &labels, loss).await?.item_async::<f32>().await?);
        sgd.step()?;
    }
    Ok(losses)
}

/// The input of the ONNX model.
///
/// # Errors
/// Those of the device.
pub fn onnx_input(device: &Device) -> Result<Tensor> {
    Tensor::from_vec((0..2 * 28 * 28).map(|i| (i % 97) as f32 / 97.0).collect(), [2, 1, 28, 28], device)
}

/// The model that is exported, in evaluation mode.
///
/// # Errors
/// None that are expected.
pub fn onnx_net() -> Result<Sequential> {
    manual_seed(11);
    let net = nn::models::lenet()?;
    net.eval();
    Ok(net)
}
