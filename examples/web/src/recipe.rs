//! The training run that the page and `examples/native.rs` share: the same seed, the same batches, the same steps.

use std::sync::Arc;

use anygpu::data::transforms::Normalize;
use anygpu::data::{DataLoader, ImageSet};
use anygpu::nn::models::{LENET_RECIPE, lenet};
use anygpu::nn::{Module, Sequential};
use anygpu::optim::SGD;
use anygpu::{Device, Result, Tensor, manual_seed, nn};

/// The number of images of a step.
pub const BATCH: usize = LENET_RECIPE.batch_size;

/// The number of passes over the images.
pub const EPOCHS: u64 = 10;

/// The mean and the deviation of the pixels of the built-in digits, on the scale 0 to 1. Nets of the page take
/// pixels that are standardised with them.
pub const MEAN_AND_DEVIATION: [f32; 2] = [0.131_362, 0.308_609];

/// Returns a loader over these digits: shuffled if it is for training.
pub fn loader(digits: Arc<ImageSet>, batch: usize, shuffled: bool) -> Result<DataLoader> {
    let [mean, deviation] = MEAN_AND_DEVIATION;
    let loader = DataLoader::new(digits, batch)?.transform(Normalize::new([mean], [deviation]));
    Ok(if shuffled { loader.shuffle(0) } else { loader })
}

/// A LeNet that is trained on one device.
pub struct Trainer {
    /// The net, on the device.
    pub net: Sequential,
    device: Device,
    sgd: SGD,
}

impl Trainer {
    /// Returns the net with the first weights of seed 0.
    pub fn new(device: &Device) -> Result<Trainer> {
        manual_seed(0);
        let net = lenet()?.to(device)?;
        let sgd = SGD::new(net.parameters(), LENET_RECIPE.lr).momentum(LENET_RECIPE.momentum);
        Ok(Trainer { net, device: device.clone(), sgd })
    }

    /// Takes a step, and returns its loss, which stays on the device.
    pub fn step(&mut self, images: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let (images, labels) = (images.to(&self.device)?, labels.to(&self.device)?);
        self.sgd.zero_grad();
        let loss = nn::cross_entropy(&self.net.forward(&images)?, &labels)?;
        loss.backward()?;
        self.sgd.step()?;
        Ok(loss.detach())
    }
}

/// Returns the number of images that the net classifies as their labels say, as a tensor on its device.
pub fn correct(net: &Sequential, device: &Device, images: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let classes = anygpu::no_grad(|| net.forward(&images.to(device)?))?.argmax(1)?;
    classes.eq(&labels.to(device)?)?.to_dtype(anygpu::DType::F32)?.sum_all()
}
