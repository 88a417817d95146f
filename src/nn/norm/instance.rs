//! Instance normalisation.

use super::{ones, zeros};
use crate::error::{Error, Result};
use crate::nn::{Module, summary};
use crate::tensor::Tensor;

/// Defines an instance normalisation layer for inputs of one rank.
macro_rules! instance_norm {
    ($(#[$doc:meta])* $name:ident, $rank:literal, $shape:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            channels: usize,
            weight: Option<Tensor>,
            bias: Option<Tensor>,
            eps: f32,
        }

        impl $name {
            /// Creates a layer for inputs with `channels` channels, without parameters.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] if `channels` is 0.
            pub fn new(channels: usize) -> Result<$name> {
                if channels == 0 {
                    return Err(Error::argument(stringify!($name), "there must be at least one channel"));
                }
                Ok($name { channels, weight: None, bias: None, eps: 1e-5 })
            }

            /// Adds a scale and an offset for each channel, `weight: [C]` and `bias: [C]`, initialised with ones and zeros:
            /// PyTorch's `affine=True`.
            ///
            /// # Errors
            /// [`Error::OutOfMemory`] if there is not enough memory for the parameters.
            pub fn affine(mut self) -> Result<$name> {
                self.weight = Some(ones(&[self.channels])?);
                self.bias = Some(zeros(&[self.channels])?);
                Ok(self)
            }

            /// Sets eps, which is added to the variance.
            #[must_use]
            pub fn eps(mut self, eps: f32) -> $name {
                self.eps = eps;
                self
            }

            /// Returns the scale of each channel, `[C]`, if there is one.
            #[must_use]
            pub fn weight(&self) -> Option<&Tensor> {
                self.weight.as_ref()
            }

            /// Returns the offset of each channel, `[C]`, if there is one.
            #[must_use]
            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }
        }

        impl Module for $name {
            crate::children!(weight, bias);

            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let batched = match input.rank() {
                    $rank => input.clone(),
                    rank if rank + 1 == $rank => input.unsqueeze(0)?,
                    _ => {
                        let detail = format!("the input is {}, or one sample of it, not {:?}", $shape, input.shape());
                        return Err(Error::argument(stringify!($name), detail));
                    }
                };
                if batched.shape()[1] != self.channels {
                    let rule = format!("the layer is for {} channels", self.channels);
                    return Err(Error::shapes(stringify!($name), input.shape(), &[self.channels], rule));
                }
                if batched.shape()[2..].iter().product::<usize>() == 1 {
                    let detail = format!("a channel of {:?} has one element, whose variance is 0", input.shape());
                    return Err(Error::argument(stringify!($name), detail));
                }
                let (weight, bias) = (self.weight.as_ref(), self.bias.as_ref());
                let output = batched.group_norm(self.channels, weight, bias, self.eps);
                summary::seen(self, output.and_then(|output| output.reshape(input.shape())))
            }
        }
    };
}

instance_norm! {
    /// Instance normalisation of sequences `[N, C, L]` or `[C, L]`: each channel of each sample has mean 0 and variance
    /// 1 (Ulyanov et al., "Instance normalization", 2016).
    ///
    /// The statistics are always computed from the input, in training and in evaluation, as with PyTorch's defaults.
    /// The default eps is 1e-5. There are no parameters unless [`affine`](InstanceNorm1d::affine) is called.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{InstanceNorm1d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::new([[[1.0, 3.0], [10.0, 30.0]]], None)?;
    /// let y = InstanceNorm1d::new(2)?.eps(0.0).forward(&x)?;
    /// assert_eq!(y.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    InstanceNorm1d, 3, "[N, C, L]"
}

instance_norm! {
    /// Instance normalisation of images `[N, C, H, W]` or `[C, H, W]`; otherwise like [`InstanceNorm1d`].
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{InstanceNorm2d, Module};
    /// use anygpu::Tensor;
    ///
    /// let norm = InstanceNorm2d::new(3)?.affine()?;
    /// assert_eq!(norm.num_parameters(), 6);
    /// assert_eq!(norm.forward(&Tensor::rand([2, 3, 4, 4], None)?)?.shape(), [2, 3, 4, 4]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    InstanceNorm2d, 4, "[N, C, H, W]"
}

instance_norm! {
    /// Instance normalisation of volumes `[N, C, D, H, W]` or `[C, D, H, W]`; otherwise like [`InstanceNorm1d`].
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{InstanceNorm3d, Module};
    /// use anygpu::Tensor;
    ///
    /// let y = InstanceNorm3d::new(2)?.forward(&Tensor::rand([1, 2, 3, 3, 3], None)?)?;
    /// assert!(y.mean(&[2, 3, 4], false)?.to_vec::<f32>()?.iter().all(|mean| mean.abs() < 1e-5));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    InstanceNorm3d, 5, "[N, C, D, H, W]"
}
