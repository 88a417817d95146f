//! Convolutions as layers. A size is one number for all dimensions, or an array with one for each: `[vertical, horizontal]`
//! for two, `[depth, vertical, horizontal]` for three.

use super::{Module, init, summary};
use crate::error::{Error, Result};
use crate::ops::{Conv, ConvPadding, Sizes};
use crate::shape::checked_elem_count;
use crate::tensor::Tensor;

/// Defines a convolution layer over `$d` dimensions from its docs, its type, the method of `Tensor`, and an expression
/// for the weight's first two dimensions in terms of inputs, outputs and groups.
macro_rules! convolution {
    ($(#[$doc:meta])* $name:ident, $d:literal, $method:ident, |$inputs:ident, $outputs:ident, $groups:ident| $lead:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            weight: Tensor,
            bias: Option<Tensor>,
            conv: Conv<$d>,
            channels: [usize; 2],
        }

        impl $name {
            /// Creates a convolution from `inputs` to `outputs` channels with stride 1, no padding, no dilation, one
            /// group.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] if one of the sizes is 0.
            pub fn new(inputs: usize, outputs: usize, kernel: impl Sizes<$d>) -> Result<$name> {
                let kernel = kernel.sizes();
                if inputs == 0 || outputs == 0 || kernel.contains(&0) {
                    let given = format!("{inputs} inputs, {outputs} outputs and kernel {kernel:?}");
                    return Err(Error::argument(stringify!($name), format!("{given}: all must be at least 1")));
                }
                let channels = [inputs, outputs];
                let [weight, bias] = drawn(Self::lead(channels, 1), outputs, &kernel)?;
                Ok($name { weight, bias: Some(bias), conv: Conv::new(), channels })
            }

            /// Returns the weight's first two dimensions.
            fn lead([$inputs, $outputs]: [usize; 2], $groups: usize) -> [usize; 2] {
                $lead
            }

            /// Sets the stride: the step of the kernel. A stride of 0 is an error of [`forward`](Module::forward).
            #[must_use]
            pub fn stride(mut self, stride: impl Sizes<$d>) -> $name {
                self.conv = self.conv.stride(stride);
                self
            }

            /// Sets the padding: the number of zeros added on both sides of the input, or `[before, after]` for each
            /// dimension, or [`ConvPadding::Same`]. For a transposed convolution, it is the number of elements removed
            /// from the sides of the result.
            #[must_use]
            pub fn padding(mut self, padding: impl Into<ConvPadding<$d>>) -> $name {
                self.conv = self.conv.padding(padding);
                self
            }

            /// Sets the dilation: the distance between the input elements that adjacent kernel elements apply to. A
            /// dilation of 0 is an error of [`forward`](Module::forward).
            #[must_use]
            pub fn dilation(mut self, dilation: impl Sizes<$d>) -> $name {
                self.conv = self.conv.dilation(dilation);
                self
            }

            /// Splits the input channels into groups, each connected to its own part of the output channels. With as
            /// many groups as inputs, this is a depthwise convolution. The parameters get a new shape and new random
            /// values: call this first, on a new layer.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] unless `groups` divides the inputs and the outputs.
            pub fn groups(mut self, groups: usize) -> Result<$name> {
                let [inputs, outputs] = self.channels;
                if groups == 0 || inputs % groups != 0 || outputs % groups != 0 {
                    let given = format!("{groups} groups do not divide {inputs} inputs and {outputs} outputs");
                    return Err(Error::argument(stringify!($name), given));
                }
                let [weight, bias] = drawn(Self::lead(self.channels, groups), outputs, &self.weight.shape()[2..])?;
                (self.weight, self.bias) = (weight, self.bias.map(|_| bias));
                self.conv = self.conv.groups(groups);
                Ok(self)
            }

            /// Returns the same layer without its bias.
            #[must_use]
            pub fn without_bias(mut self) -> $name {
                self.bias = None;
                self
            }

            /// Returns the weight.
            pub fn weight(&self) -> &Tensor {
                &self.weight
            }

            /// Returns the bias, `[OC]`, if the layer has one.
            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }
        }

        impl Module for $name {
            crate::children!(weight, bias);

            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                summary::seen(self, input.$method(&self.weight, self.bias.as_ref(), self.conv))
            }
        }
    };
}

/// Returns a new weight `[lead.., kernel..]` and a new bias `[outputs]`.
fn drawn(lead: [usize; 2], outputs: usize, kernel: &[usize]) -> Result<[Tensor; 2]> {
    let fan_in = checked_elem_count("convolution", &[&lead[1..], kernel].concat())?;
    Ok([init::fresh(&[&lead, kernel].concat(), fan_in)?, init::fresh(&[outputs], fan_in)?])
}

convolution! {
    /// A 2-D convolution (cross-correlation, as in PyTorch):
    /// `y[n, o, i, j] = b[o] + Σ over c, p, q of w[o, c, p, q] · x[n, c, i·stride + p·dilation − padding, j·stride + …]`,
    /// where x is 0 outside its bounds.
    ///
    /// `x: [N, C, H, W]` → `y: [N, OC, OH, OW]` with OH = (H + 2·padding − dilation·(KH − 1) − 1) / stride + 1 (rounded
    /// down), OW likewise; `weight: [OC, C / groups, KH, KW]` and `bias: [OC]`, both initialised uniformly on ±1/√(C /
    /// groups · KH·KW). Sizes are one number or `[vertical, horizontal]`.
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
    /// let same = Conv2d::new(3, 16, 4)?.padding(anygpu::ConvPadding::Same); // PyTorch's padding="same"
    /// assert_eq!(same.forward(&x)?.shape(), [8, 16, 32, 32]);
    ///
    /// assert!(Conv2d::new(4, 16, 5)?.forward(&x).is_err()); // 4 channels expected, 3 given
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    Conv2d, 2, conv2d, |inputs, outputs, groups| [outputs, inputs / groups]
}

convolution! {
    /// A 1-D convolution: [`Conv2d`] along one dimension.
    ///
    /// `x: [N, C, L]` → `y: [N, OC, (L + 2·padding − dilation·(K − 1) − 1) / stride + 1]` (rounded down);
    /// `weight: [OC, C / groups, K]` and `bias: [OC]`, both initialised uniformly on ±1/√(C / groups · K).
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{Conv1d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::ones([8, 3, 32], None)?;
    /// assert_eq!(Conv1d::new(3, 16, 5)?.stride(2).padding(2).forward(&x)?.shape(), [8, 16, 16]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    Conv1d, 1, conv1d, |inputs, outputs, groups| [outputs, inputs / groups]
}

convolution! {
    /// A transposed 2-D convolution. It maps the output size of a [`Conv2d`] with the same settings back to its input
    /// size: see [`Tensor::conv_transpose2d`].
    ///
    /// `x: [N, C, H, W]` → `y: [N, OC, OH, OW]` with OH = (H − 1)·stride − 2·padding + dilation·(KH − 1) +
    /// output_padding + 1, OW likewise; `weight: [C, OC / groups, KH, KW]` and `bias: [OC]`, both initialised uniformly
    /// on ±1/√(OC / groups · KH·KW), as in PyTorch.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{ConvTranspose2d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::ones([8, 16, 14, 14], None)?;
    /// assert_eq!(ConvTranspose2d::new(16, 4, 2)?.stride(2).forward(&x)?.shape(), [8, 4, 28, 28]);
    /// let doubled = ConvTranspose2d::new(16, 4, 3)?.stride(2).padding(1).output_padding(1);
    /// assert_eq!(doubled.forward(&x)?.shape(), [8, 4, 28, 28]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    ConvTranspose2d, 2, conv_transpose2d, |inputs, outputs, groups| [inputs, outputs / groups]
}

convolution! {
    /// A 3-D convolution: [`Conv2d`] over volumes; see [`Tensor::conv3d`].
    ///
    /// `x: [N, C, D, H, W]` → `y: [N, OC, OD, OH, OW]` with OD = (D + 2·padding − dilation·(KD − 1) − 1) / stride + 1 (rounded
    /// down), OH and OW likewise; `weight: [OC, C / groups, KD, KH, KW]` and `bias: [OC]`, both initialised uniformly on
    /// ±1/√(C / groups · KD·KH·KW).
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{Conv3d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::ones([2, 3, 8, 16, 16], None)?;
    /// assert_eq!(Conv3d::new(3, 4, 3)?.padding(1).forward(&x)?.shape(), [2, 4, 8, 16, 16]);
    /// assert_eq!(Conv3d::new(3, 4, [1, 3, 3])?.stride([2, 1, 1]).forward(&x)?.shape(), [2, 4, 4, 14, 14]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    Conv3d, 3, conv3d, |inputs, outputs, groups| [outputs, inputs / groups]
}

convolution! {
    /// A transposed 1-D convolution: [`ConvTranspose2d`] along one dimension.
    ///
    /// `x: [N, C, L]` → `y: [N, OC, (L − 1)·stride − 2·padding + dilation·(K − 1) + output_padding + 1]`;
    /// `weight: [C, OC / groups, K]` and `bias: [OC]`, both initialised uniformly on ±1/√(OC / groups · K), as in PyTorch.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{ConvTranspose1d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::ones([8, 16, 10], None)?;
    /// assert_eq!(ConvTranspose1d::new(16, 4, 4)?.stride(2).padding(1).forward(&x)?.shape(), [8, 4, 20]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    ConvTranspose1d, 1, conv_transpose1d, |inputs, outputs, groups| [inputs, outputs / groups]
}

convolution! {
    /// A transposed 3-D convolution: [`ConvTranspose2d`] over volumes; see [`Tensor::conv_transpose3d`].
    ///
    /// `x: [N, C, D, H, W]` → `y: [N, OC, OD, OH, OW]` with OD = (D − 1)·stride − 2·padding + dilation·(KD − 1) +
    /// output_padding + 1, OH and OW likewise; `weight: [C, OC / groups, KD, KH, KW]` and `bias: [OC]`, both initialised
    /// uniformly on ±1/√(OC / groups · KD·KH·KW), as in PyTorch.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{ConvTranspose3d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::ones([2, 16, 3, 5, 5], None)?;
    /// assert_eq!(ConvTranspose3d::new(16, 4, 2)?.stride(2).forward(&x)?.shape(), [2, 4, 6, 10, 10]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    ConvTranspose3d, 3, conv_transpose3d, |inputs, outputs, groups| [inputs, outputs / groups]
}

impl Conv2d {
    /// Returns the layer with the settings of `like`, and this `weight: [OC, C / groups, KH, KW]` and `bias: [OC]`, in `groups`
    /// groups.
    pub(crate) fn of_parts(like: &Conv2d, weight: Tensor, bias: Option<Tensor>, groups: usize) -> Conv2d {
        let channels = [weight.shape()[1] * groups, weight.shape()[0]];
        Conv2d { weight, bias, conv: like.conv.groups(groups), channels }
    }

    /// Returns the numbers of channels in and out.
    pub(crate) fn channels(&self) -> [usize; 2] {
        self.channels
    }
}

/// Adds the setting that only transposed convolutions have.
macro_rules! output_padding {
    ($($name:ident, $d:literal;)*) => {$(
        impl $name {
            /// Sets the number of elements added at the end of the result in each dimension. It must be less than the
            /// stride or the dilation; otherwise [`forward`](Module::forward) returns an error.
            #[must_use]
            pub fn output_padding(mut self, output_padding: impl Sizes<$d>) -> $name {
                self.conv = self.conv.output_padding(output_padding);
                self
            }
        }
    )*};
}

output_padding! {
    ConvTranspose1d, 1;
    ConvTranspose2d, 2;
    ConvTranspose3d, 3;
}
