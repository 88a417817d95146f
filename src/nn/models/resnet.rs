use crate::error::Result;
use crate::nn::init::{Fan, Nonlinearity, kaiming_normal_};
use crate::nn::{AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential};
use crate::tensor::Tensor;

/// Creates a ResNet-18 (He et al., "Deep residual learning for image recognition", 2016) that classifies images of
/// `channels` channels into `classes` classes.
///
/// The layers and names are the same as in torchvision, so its weight files can be loaded:
///
/// ```text
/// x        [N, channels, H, W]                       for 96 × 96:
/// conv1 →  7 × 7, stride 2, bn1, relu, maxpool 3/2   [N,  64, 24, 24]
/// layer1 → two blocks                                [N,  64, 24, 24]
/// layer2 → two blocks, the first with stride 2       [N, 128, 12, 12]
/// layer3 → likewise                                  [N, 256,  6,  6]
/// layer4 → likewise                                  [N, 512,  3,  3]
/// avgpool, flatten → [N, 512],  fc → [N, classes]    the logits
/// ```
///
/// Convolution weights are initialised as in torchvision: normal with standard deviation √(2 / (OC · KH · KW)).
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `channels` or `classes` is 0.
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::{self, Module}};
///
/// let net = nn::models::resnet18(3, 1000)?;
/// assert_eq!(net.num_parameters(), 11_689_512);
/// let grey = nn::models::resnet18(1, 10)?;
/// assert_eq!(grey.forward(&Tensor::zeros([2, 1, 96, 96], None)?)?.shape(), [2, 10]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn resnet18(channels: usize, classes: usize) -> Result<Sequential> {
    let stage = |inputs: usize, outputs: usize, stride: usize| -> Result<Sequential> {
        Ok(Sequential::new()
            .add("0", BasicBlock::new(inputs, outputs, stride)?)
            .add("1", BasicBlock::new(outputs, outputs, 1)?))
    };
    Ok(Sequential::new()
        .add("conv1", convolution(channels, 64, 7, 2)?)
        .add("bn1", BatchNorm2d::new(64)?)
        .add("relu", ReLU)
        .add("maxpool", MaxPool2d::new(3).stride(2).padding(1))
        .add("layer1", stage(64, 64, 1)?)
        .add("layer2", stage(64, 128, 2)?)
        .add("layer3", stage(128, 256, 2)?)
        .add("layer4", stage(256, 512, 2)?)
        .add("avgpool", AdaptiveAvgPool2d::new(1))
        .add("flatten", Flatten)
        .add("fc", Linear::new(512, classes)?))
}

/// Returns a convolution without bias whose padding keeps the image's size, apart from the stride.
fn convolution(inputs: usize, outputs: usize, kernel: usize, stride: usize) -> Result<Conv2d> {
    let conv = Conv2d::new(inputs, outputs, kernel)?.stride(stride).padding(kernel / 2).without_bias();
    kaiming_normal_(conv.weight(), Fan::Out, Nonlinearity::ReLU)?;
    Ok(conv)
}

/// A residual block of two 3 × 3 convolutions, the basic block of ResNet-18 and 34: y = relu(f(x) + shortcut(x)) with
/// f = bn2(conv2(relu(bn1(conv1(x))))).
///
/// `x: [N, inputs, H, W]` → `y: [N, outputs, H / stride, W / stride]` (rounded up). If the shapes differ, the shortcut
/// (`downsample`) is a 1 × 1 convolution with the stride, followed by a batch norm; otherwise it is x.
#[derive(Clone, Debug)]
pub struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    downsample: Option<Sequential>,
}

impl BasicBlock {
    /// Creates a block. `stride` is the stride of the first convolution.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a number of channels is 0.
    pub fn new(inputs: usize, outputs: usize, stride: usize) -> Result<BasicBlock> {
        let shortcut = || -> Result<Sequential> {
            let conv = convolution(inputs, outputs, 1, stride)?;
            Ok(Sequential::new().add("0", conv).add("1", BatchNorm2d::new(outputs)?))
        };
        Ok(BasicBlock {
            conv1: convolution(inputs, outputs, 3, stride)?,
            bn1: BatchNorm2d::new(outputs)?,
            conv2: convolution(outputs, outputs, 3, 1)?,
            bn2: BatchNorm2d::new(outputs)?,
            downsample: (stride != 1 || inputs != outputs).then(shortcut).transpose()?,
        })
    }
}

impl Module for BasicBlock {
    crate::children!(conv1, bn1, conv2, bn2, downsample);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.bn1.forward_relu(&self.conv1.forward(x)?)?;
        let y = self.conv2.forward(&y)?;
        match &self.downsample {
            Some(downsample) => self.bn2.forward_add_relu(&y, &downsample.forward(x)?),
            None => self.bn2.forward_add_relu(&y, x),
        }
    }
}
