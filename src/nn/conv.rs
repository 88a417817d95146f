use super::{Module, init};
use crate::error::{Error, Result};
use crate::ops::{Conv, Sizes};
use crate::tensor::Tensor;

/// A 2-D convolution (cross-correlation, as in PyTorch):
/// `y[n, o, i, j] = b[o] + Σ over c, p, q of w[o, c, p, q] · x[n, c, i·stride + p·dilation − padding, j·stride + …]`,
/// where x is 0 outside of its bounds.
///
/// `x: [N, C, H, W]` → `y: [N, OC, OH, OW]` with OH = (H + 2·padding − dilation·(KH − 1) − 1) / stride + 1 (rounded
/// down), OW likewise; `weight: [OC, C / groups, KH, KW]` and `bias: [OC]`, both uniform on ±1/√(C / groups · KH·KW) at
/// the start. Sizes are one number or `[vertical, horizontal]`.
///
/// # Example
/// ```
/// use anygpu::nn::{Conv2d, Module};
/// use anygpu::Tensor;
///
/// let x = Tensor::ones([8, 3, 32, 32], None)?;
/// assert_eq!(Conv2d::new(3, 16, 5)?.forward(&x)?.shape(), [8, 16, 28, 28]);
/// assert_eq!(Conv2d::new(3, 16, 5)?.stride(2).padding(2).forward(&x)?.shape(), [8, 16, 16, 16]);
/// assert_eq!(Conv2d::new(3, 6, [1, 3])?.dilation(2).groups(3)?.forward(&x)?.shape(), [8, 6, 32, 28]);
///
/// assert!(Conv2d::new(4, 16, 5)?.forward(&x).is_err()); // 4 channels wanted, 3 given
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Conv2d {
    weight: Tensor,
    bias: Option<Tensor>,
    conv: Conv<2>,
}

/// A weight `[outputs, inputs, KH, KW]` and a bias `[outputs]`.
fn drawn(inputs: usize, outputs: usize, [h, w]: [usize; 2]) -> Result<[Tensor; 2]> {
    let fan_in = inputs * h * w;
    Ok([init::uniform(&[outputs, inputs, h, w], fan_in)?, init::uniform(&[outputs], fan_in)?])
}

impl Conv2d {
    /// A convolution from `inputs` to `outputs` channels with stride 1, no padding, no dilation, one group.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when one of the sizes is 0.
    pub fn new(inputs: usize, outputs: usize, kernel: impl Sizes<2>) -> Result<Conv2d> {
        let kernel = kernel.sizes();
        if inputs == 0 || outputs == 0 || kernel.contains(&0) {
            let given = format!("{inputs} inputs, {outputs} outputs and kernel {kernel:?}");
            return Err(Error::argument("Conv2d", format!("{given}: all must be at least 1")));
        }
        let [weight, bias] = drawn(inputs, outputs, kernel)?;
        Ok(Conv2d { weight, bias: Some(bias), conv: Conv::new() })
    }

    /// The step of the kernel; 0 is refused by [`forward`](Module::forward).
    pub fn stride(mut self, stride: impl Sizes<2>) -> Conv2d {
        self.conv = self.conv.stride(stride);
        self
    }

    /// The rows and columns of zeros around the image.
    pub fn padding(mut self, padding: impl Sizes<2>) -> Conv2d {
        self.conv = self.conv.padding(padding);
        self
    }

    /// The distance between the pixels that neighbouring kernel elements meet; 0 is refused by
    /// [`forward`](Module::forward).
    pub fn dilation(mut self, dilation: impl Sizes<2>) -> Conv2d {
        self.conv = self.conv.dilation(dilation);
        self
    }

    /// Cuts the channels into groups, each with its own part of the outputs; as many as inputs: a depthwise
    /// convolution. The parameters are drawn anew, with their new shape: call it first, on a fresh layer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `groups` divides the inputs and the outputs.
    pub fn groups(mut self, groups: usize) -> Result<Conv2d> {
        let &[outputs, inputs, h, w] = self.weight.shape() else { return Ok(self) };
        if groups == 0 || inputs % groups != 0 || outputs % groups != 0 {
            let given = format!("{groups} groups do not divide {inputs} inputs and {outputs} outputs");
            return Err(Error::argument("Conv2d", given));
        }
        let [weight, bias] = drawn(inputs / groups, outputs, [h, w])?;
        (self.weight, self.bias) = (weight, self.bias.map(|_| bias));
        self.conv = self.conv.groups(groups);
        Ok(self)
    }

    /// The same layer without its bias.
    pub fn without_bias(mut self) -> Conv2d {
        self.bias = None;
        self
    }
}

impl Module for Conv2d {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.conv2d(&self.weight, self.bias.as_ref(), self.conv)
    }

    fn visit(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        f("weight", &self.weight);
        self.bias.iter().for_each(|bias| f("bias", bias));
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        f("weight", &mut self.weight);
        self.bias.iter_mut().for_each(|bias| f("bias", bias));
    }
}
