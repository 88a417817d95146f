use super::{Module, init};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A 2-D convolution (cross-correlation, as in PyTorch):
/// `y[n, o, i, j] = b[o] + Σ over c, p, q of w[o, c, p, q] · x[n, c, i·stride + p − padding, j·stride + q − padding]`,
/// where x is 0 outside of its bounds.
///
/// `x: [N, C, H, W]` → `y: [N, OC, OH, OW]` with OH = (H + 2·padding − K) / stride + 1 (rounded down), OW likewise;
/// `weight: [OC, C, K, K]` and `bias: [OC]`, both uniform on ±1/√(C·K·K) at the start.
///
/// # Example
/// ```
/// use anygpu::nn::{Conv2d, Module};
/// use anygpu::Tensor;
///
/// let x = Tensor::ones([8, 3, 32, 32], None)?;
/// assert_eq!(Conv2d::new(3, 16, 5)?.forward(&x)?.shape(), [8, 16, 28, 28]);
/// assert_eq!(Conv2d::new(3, 16, 5)?.with_stride(2).with_padding(2).forward(&x)?.shape(), [8, 16, 16, 16]);
///
/// assert!(Conv2d::new(4, 16, 5)?.forward(&x).is_err()); // 4 channels wanted, 3 given
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Conv2d {
    weight: Tensor,
    bias: Option<Tensor>,
    stride: usize,
    padding: usize,
}

impl Conv2d {
    /// A convolution from `inputs` to `outputs` channels with a square kernel of `kernel` × `kernel`, stride 1, no
    /// padding.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when one of the three is 0.
    pub fn new(inputs: usize, outputs: usize, kernel: usize) -> Result<Conv2d> {
        if inputs == 0 || outputs == 0 || kernel == 0 {
            let given = format!("{inputs} inputs, {outputs} outputs and kernel {kernel}");
            return Err(Error::argument("Conv2d", format!("{given}: all must be at least 1")));
        }
        let fan_in = inputs * kernel * kernel;
        let weight = init::uniform(&[outputs, inputs, kernel, kernel], fan_in)?;
        Ok(Conv2d { weight, bias: Some(init::uniform(&[outputs], fan_in)?), stride: 1, padding: 0 })
    }

    /// The step of the kernel in both directions; 0 is refused by [`forward`](Module::forward).
    pub fn with_stride(mut self, stride: usize) -> Conv2d {
        self.stride = stride;
        self
    }

    /// The rows and columns of zeros around the image.
    pub fn with_padding(mut self, padding: usize) -> Conv2d {
        self.padding = padding;
        self
    }

    /// The same layer without its bias.
    pub fn without_bias(mut self) -> Conv2d {
        self.bias = None;
        self
    }
}

impl Module for Conv2d {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.conv2d(&self.weight, self.bias.as_ref(), [self.stride; 2], [self.padding; 2])
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
