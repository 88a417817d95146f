use super::parts::{Parted, compute, devices, joined, placed, range_of, ranges, sizes};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::{Conv2d, Module};
use crate::tensor::Tensor;

/// A [`Conv2d`] whose output channels are split among devices.
///
/// Each device has some of the kernels and some of the bias, and computes its channels of the output.
///
/// Takes `x: [N, C, H, W]` on any device and returns `y: [N, OC, OH, OW]` on the device of `x`. The parts compute at
/// the same time, forward and backward. Copies between devices go through the host. A convolution with groups is split
/// between groups, and each device gets only the input channels of its groups. The parameters are
/// `parts.0.weight: [OC₀, C / groups, KH, KW]`, `parts.0.bias: [OC₀]`, `parts.1.weight` and so on, each on its device.
/// An optimiser takes them as they are.
///
/// Create it from a layer that already has its values, for example from a checkpoint. For saving,
/// [`to_conv2d`](ChannelParallelConv2d::to_conv2d) returns the plain layer. [`Module::to`] moves all parts to one
/// device and so undoes the split, with the same results: move a net before its layers are split.
///
/// # Example
/// ```
/// use anygpu::nn::{Conv2d, Module};
/// use anygpu::parallel::ChannelParallelConv2d;
/// use anygpu::{Device, Tensor};
///
/// let conv = Conv2d::new(3, 16, 5)?.stride(2).padding(2);
/// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
/// let parallel = ChannelParallelConv2d::new(&conv, &devices, &[1.0, 3.0])?; // 4 channels and 12 channels
/// let x = Tensor::rand([2, 3, 32, 32], None)?;
/// assert!(parallel.forward(&x)?.allclose(&conv.forward(&x)?, 1e-5, 1e-6)?);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChannelParallelConv2d {
    parts: Vec<Conv2d>,
    /// The groups of the whole convolution.
    groups: usize,
}

impl ChannelParallelConv2d {
    /// Splits the output channels of a layer among devices in proportion to `weights`, one positive number for each
    /// device.
    ///
    /// Every device gets at least one channel, or one group. A frozen parameter stays frozen.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no devices, more devices than output channels or groups, or weights that
    /// do not fit; the errors of opening the devices.
    pub fn new(conv: &Conv2d, devices: &[Device], weights: &[f64]) -> Result<ChannelParallelConv2d> {
        let [inputs, outputs] = conv.channels();
        let groups = inputs / conv.weight().shape()[1].max(1);
        // What is split: channels, or groups of channels.
        let (units, channels) = if groups == 1 { (outputs, 1) } else { (groups, outputs / groups) };
        let sizes = sizes("ChannelParallelConv2d", units, devices, weights)?;
        let part = |((start, len), device): ((usize, usize), &Device)| {
            let range = (start * channels, len * channels);
            let bias = conv.bias().map(|bias| range_of(bias, 0, range)).transpose()?;
            let (weight, bias) = placed(range_of(conv.weight(), 0, range)?, bias, device)?;
            Ok(Conv2d::of_parts(conv, weight, bias, if groups == 1 { 1 } else { len }))
        };
        let parts = ranges(&sizes).zip(devices).map(part).collect::<Result<_>>()?;
        Ok(ChannelParallelConv2d { parts, groups })
    }

    /// Returns the devices of the parts, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        devices(&self.parts)
    }

    /// Returns the plain layer on `cpu`, with copies of the values.
    ///
    /// # Errors
    /// The errors of the devices.
    ///
    /// ```
    /// use anygpu::nn::Conv2d;
    /// use anygpu::{Device, parallel::ChannelParallelConv2d};
    ///
    /// let conv = Conv2d::new(3, 7, 3)?;
    /// let parallel = ChannelParallelConv2d::new(&conv, &[Device::cpu(), Device::new("cpu/1")?], &[1.0, 1.0])?;
    /// assert_eq!(parallel.to_conv2d()?.weight().to_vec::<f32>()?, conv.weight().to_vec::<f32>()?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn to_conv2d(&self) -> Result<Conv2d> {
        let biased = self.parts.iter().all(|part| part.bias().is_some());
        let bias = biased.then(|| joined(self.parts.iter().filter_map(Conv2d::bias), 0)).transpose()?;
        let weight = joined(self.parts.iter().map(Conv2d::weight), 0)?;
        Ok(Conv2d::of_parts(&self.parts[0], weight, bias, self.groups))
    }
}

impl Module for ChannelParallelConv2d {
    crate::children!(parts);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let of = |channel: usize| self.parts.iter().map(|part| part.channels()[channel]).collect::<Vec<_>>();
        let (inputs, outputs) = (of(0), of(1));
        let taken = if self.groups == 1 { Parted::Whole } else { Parted::Along(1, inputs.clone()) };
        let expected = if self.groups == 1 { inputs[0] } else { inputs.iter().sum() };
        if input.rank() != 4 || input.shape()[1] != expected {
            let whole =
                [&[outputs.iter().sum(), expected / self.groups][..], &self.parts[0].weight().shape()[2..]].concat();
            let detail = format!("the input must be [N, {expected}, H, W]");
            return Err(Error::shapes("ChannelParallelConv2d", input.shape(), &whole, detail));
        }
        compute("ChannelParallelConv2d", &self.parts, input, taken, Parted::Along(1, outputs))
    }
}
