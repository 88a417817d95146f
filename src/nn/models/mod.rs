//! Complete nets.

mod resnet;

pub use resnet::{BasicBlock, resnet18};

use super::{AvgPool2d, Conv2d, Flatten, Linear, ReLU, Sequential};
use crate::error::{Error, Result};

/// Creates a LeNet that classifies grey images of 28 × 28 into ten classes.
///
/// `anygpu train` uses this net.
///
/// ```text
/// x        [N,  1, 28, 28]
/// conv1 →  [N, 20, 26, 26]  3 × 3, relu,  pool1 → [N, 20, 13, 13]
/// conv2 →  [N, 50,  9,  9]  5 × 5, relu,  pool2 → [N, 50,  4,  4]
/// flatten → [N, 800],  fc1 → [N, 128], relu,  fc2 → [N, 10]   the logits
/// ```
///
/// # Errors
/// [`Error::OutOfMemory`] only.
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{self, Module}};
///
/// let net = nn::models::lenet()?;
/// assert_eq!(net.num_parameters(), 129_068);
/// assert_eq!(net.forward(&Tensor::zeros([2, 1, 28, 28], None)?)?.shape(), [2, 10]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn lenet() -> Result<Sequential> {
    Ok(Sequential::new()
        .add("conv1", Conv2d::new(1, 20, 3)?)
        .add("relu1", ReLU)
        .add("pool1", AvgPool2d::new(2))
        .add("conv2", Conv2d::new(20, 50, 5)?)
        .add("relu2", ReLU)
        .add("pool2", AvgPool2d::new(2))
        .add("flatten", Flatten)
        .add("fc1", Linear::new(800, 128)?)
        .add("relu3", ReLU)
        .add("fc2", Linear::new(128, 10)?))
}

/// Creates a multilayer perceptron with these numbers of features: linear layers with ReLU between them.
///
/// Images are flattened.
///
/// ```text
/// x → flatten → fc1 → relu1 → fc2 → …    [N, sizes[0]] → [N, sizes[1]] → … → [N, the last of sizes]
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for fewer than two sizes, or a size of 0.
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{self, Module}};
///
/// let net = nn::models::mlp(&[784, 256, 10])?;
/// assert_eq!(net.num_parameters(), 784 * 256 + 256 + 256 * 10 + 10);
/// assert_eq!(net.forward(&Tensor::zeros([2, 1, 28, 28], None)?)?.shape(), [2, 10]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn mlp(sizes: &[usize]) -> Result<Sequential> {
    if sizes.len() < 2 {
        return Err(Error::argument(
            "mlp",
            format!("{sizes:?} must list at least two numbers of features, from input to output"),
        ));
    }
    let mut net = Sequential::new().add("flatten", Flatten);
    for (i, pair) in sizes.windows(2).enumerate() {
        if i > 0 {
            net.add_module(format!("relu{i}"), ReLU)?;
        }
        net.add_module(format!("fc{}", i + 1), Linear::new(pair[0], pair[1])?)?;
    }
    Ok(net)
}

/// Settings of a training run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// The number of images in a step, over all devices together.
    pub batch_size: usize,
    /// The learning rate.
    pub lr: f32,
    /// The momentum of [`SGD`](crate::optim::SGD).
    pub momentum: f32,
    /// The number of passes over the data.
    pub epochs: usize,
}

/// Settings that work well for [`lenet`]: the accuracy is at least 0.96 on the 1 000 held-out digits of
/// [`mnist_5k`](crate::data::mnist_5k), and at least 0.985 on full MNIST after 5 epochs.
pub const LENET_RECIPE: Recipe = Recipe { batch_size: 64, lr: 0.05, momentum: 0.9, epochs: 10 };
