mod instance;

pub use instance::{InstanceNorm1d, InstanceNorm2d, InstanceNorm3d};

use super::{Buffer, Mode, Module, summary};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

fn ones(shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::ones(shape, None)?.requires_grad())
}

fn zeros(shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::zeros(shape, None)?.requires_grad())
}

/// An error unless the second dimension of `input: [N, C, ..]` has the channels of the layer.
fn fitting(layer: &'static str, input: &Tensor, weight: &Tensor) -> Result<()> {
    let channels = weight.elem_count();
    match input.shape() {
        [_, here, ..] if *here != channels => {
            let rule = format!("the layer is for {channels} channels, and the input [N, C, ..] has {here}");
            Err(Error::shapes(layer, input.shape(), weight.shape(), rule))
        }
        _ => Ok(()),
    }
}

/// Layer normalisation over the last dimensions: see [`Tensor::layer_norm`].
///
/// `weight` and `bias` have the normalised shape and are initialised with ones and zeros. The default eps is 1e-5.
///
/// # Example
/// ```
/// use anygpu::nn::{LayerNorm, Module};
/// use anygpu::Tensor;
///
/// let norm = LayerNorm::new(8)?;
/// let y = norm.forward(&Tensor::rand([2, 5, 8], None)?)?;
/// assert_eq!(y.shape(), [2, 5, 8]);
/// assert!(y.mean(&[2], false)?.to_vec::<f32>()?.iter().all(|mean| mean.abs() < 1e-5));
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f32,
}

impl LayerNorm {
    /// Creates a layer that normalises over the last dimensions, which have these sizes.
    ///
    /// The sizes are one number, or several as a tuple, an array, a slice or a vector.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not enough memory for the parameters.
    pub fn new(normalized_shape: impl Into<Shape>) -> Result<LayerNorm> {
        let normalized_shape = normalized_shape.into();
        let normalized_shape = normalized_shape.dims();
        Ok(LayerNorm { weight: ones(normalized_shape)?, bias: Some(zeros(normalized_shape)?), eps: 1e-5 })
    }

    /// Returns the same layer without its bias.
    #[must_use]
    pub fn without_bias(mut self) -> LayerNorm {
        self.bias = None;
        self
    }

    /// Sets eps, which is added to the variance.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> LayerNorm {
        self.eps = eps;
        self
    }

    /// Returns the scale, of the normalised shape.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Returns the offset, of the normalised shape, if there is one.
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl Module for LayerNorm {
    crate::children!(weight, bias);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::seen(self, input.layer_norm(self.weight.shape(), Some(&self.weight), self.bias.as_ref(), self.eps))
    }
}

/// RMS normalisation over the last dimensions: see [`Tensor::rms_norm`].
///
/// `weight` is initialised with ones. The default eps is f32's machine epsilon, 1.19e-7, as in PyTorch.
///
/// # Example
/// ```
/// use anygpu::nn::{Module, RMSNorm};
/// use anygpu::Tensor;
///
/// let y = RMSNorm::new([2])?.forward(&Tensor::new([[3.0, 3.0], [5.0, -5.0]], None)?)?;
/// let difference = |(y, expected): (f32, f32)| (y - expected).abs();
/// assert!(y.to_vec::<f32>()?.into_iter().zip([1.0, 1.0, 1.0, -1.0]).map(difference).all(|d| d < 1e-6));
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RMSNorm {
    weight: Tensor,
    eps: f32,
}

impl RMSNorm {
    /// Creates a layer that normalises over the last dimensions, which have these sizes.
    ///
    /// The sizes are one number, or several as a tuple, an array, a slice or a vector.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not enough memory for the parameters.
    pub fn new(normalized_shape: impl Into<Shape>) -> Result<RMSNorm> {
        let normalized_shape = normalized_shape.into();
        let normalized_shape = normalized_shape.dims();
        Ok(RMSNorm { weight: ones(normalized_shape)?, eps: f32::EPSILON })
    }

    /// Sets eps, which is added to the mean square.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> RMSNorm {
        self.eps = eps;
        self
    }

    /// Returns the scale, of the normalised shape.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }
}

impl Module for RMSNorm {
    crate::children!(weight);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::seen(self, input.rms_norm(self.weight.shape(), Some(&self.weight), self.eps))
    }
}

/// Group normalisation of `[N, C, ..]`: see [`Tensor::group_norm`].
///
/// `weight` and `bias` are `[C]` and initialised with ones and zeros. The default eps is 1e-5.
///
/// # Example
/// ```
/// use anygpu::nn::{GroupNorm, Module};
/// use anygpu::Tensor;
///
/// let norm = GroupNorm::new(2, 6)?;
/// assert_eq!(norm.forward(&Tensor::rand([4, 6, 5, 5], None)?)?.shape(), [4, 6, 5, 5]);
/// assert!(GroupNorm::new(4, 6).is_err());
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: usize,
    eps: f32,
}

impl GroupNorm {
    /// Creates a layer with `groups` equal groups of `channels` channels.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `groups` does not divide `channels`.
    pub fn new(groups: usize, channels: usize) -> Result<GroupNorm> {
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(Error::argument("GroupNorm", format!("{groups} groups do not divide {channels} channels")));
        }
        Ok(GroupNorm { weight: ones(&[channels])?, bias: zeros(&[channels])?, groups, eps: 1e-5 })
    }

    /// Sets eps, which is added to the variance.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> GroupNorm {
        self.eps = eps;
        self
    }

    /// Returns the scale of each channel, `[C]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Returns the offset of each channel, `[C]`.
    #[must_use]
    pub fn bias(&self) -> &Tensor {
        &self.bias
    }
}

impl Module for GroupNorm {
    crate::children!(weight, bias);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        fitting("GroupNorm", input, &self.weight)?;
        summary::seen(self, input.group_norm(self.groups, Some(&self.weight), Some(&self.bias), self.eps))
    }
}

/// The running statistics, the weight, the bias and the mode of a batch norm.
type Arguments<'a> = (Option<(&'a Tensor, &'a Tensor)>, Option<&'a Tensor>, Option<&'a Tensor>, bool);

/// Defines a batch normalisation layer for inputs of some ranks.
macro_rules! batch_norm {
    ($(#[$doc:meta])* $name:ident, $ranks:pat, $shapes:literal, $example:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            weight: Tensor,
            bias: Tensor,
            running_mean: Buffer,
            running_var: Buffer,
            mode: Mode,
            momentum: f32,
            eps: f32,
        }

        impl $name {
            /// Creates a layer for inputs with `channels` channels.
            ///
            /// # Errors
            /// [`Error::OutOfMemory`] if there is not enough memory for the parameters.
            pub fn new(channels: usize) -> Result<$name> {
                Ok($name {
                    weight: ones(&[channels])?,
                    bias: zeros(&[channels])?,
                    running_mean: Buffer(Tensor::zeros([channels], None)?),
                    running_var: Buffer(Tensor::ones([channels], None)?),
                    mode: Mode::default(),
                    momentum: 0.1,
                    eps: 1e-5,
                })
            }

            /// Sets the momentum: the weight of each batch's statistics in the running statistics.
            #[must_use]
            pub fn momentum(mut self, momentum: f32) -> $name {
                self.momentum = momentum;
                self
            }

            /// Sets eps, which is added to the variance.
            #[must_use]
            pub fn eps(mut self, eps: f32) -> $name {
                self.eps = eps;
                self
            }

            /// Returns the scale of each channel, `[C]`.
            pub fn weight(&self) -> &Tensor {
                &self.weight
            }

            /// Returns the offset of each channel, `[C]`.
            pub fn bias(&self) -> &Tensor {
                &self.bias
            }

            /// Returns `relu(y + residual)`, where y is the layer's output, in one pass. This is the end of a residual
            /// block. `residual` has the shape of the input.
            ///
            /// # Errors
            /// The errors of [`Module::forward`]; [`Error::ShapeMismatch`] if `residual` has another shape.
            ///
            /// ```
            #[doc = concat!("use anygpu::nn::{Module, ", stringify!($name), "};")]
            /// use anygpu::Tensor;
            ///
            #[doc = concat!("let norm = ", stringify!($name), "::new(3)?;")]
            #[doc = concat!("let x = Tensor::rand(", $example, ", None)?;")]
            /// let y = norm.forward_add_relu(&x, &x)?;
            /// assert!(y.allclose(&(norm.forward(&x)? + &x)?.relu()?, 1e-5, 1e-5)?);
            /// # Ok::<(), anygpu::Error>(())
            /// ```
            pub fn forward_add_relu(&self, input: &Tensor, residual: &Tensor) -> Result<Tensor> {
                self.check(input)?;
                let (running, weight, bias, training) = self.arguments();
                let (momentum, eps) = (self.momentum, self.eps);
                let output = input.batch_norm_add_relu(residual, running, weight, bias, training, momentum, eps);
                summary::seen(self, output)
            }

            /// An error unless the layer is for inputs of this shape.
            fn check(&self, input: &Tensor) -> Result<()> {
                if !matches!(input.rank(), $ranks) {
                    let detail = format!("the input is {}, not {:?}", $shapes, input.shape());
                    return Err(Error::argument(stringify!($name), detail));
                }
                fitting(stringify!($name), input, &self.weight)
            }

            /// Returns the running statistics, the weight, the bias, and whether the mode is training.
            fn arguments(&self) -> Arguments<'_> {
                let running = Some((&self.running_mean.0, &self.running_var.0));
                (running, Some(&self.weight), Some(&self.bias), self.mode.is_training())
            }
        }

        impl Module for $name {
            crate::children!(weight, bias, running_mean, running_var, mode);

            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                self.check(input)?;
                let (running, weight, bias, training) = self.arguments();
                summary::seen(self, input.batch_norm(running, weight, bias, training, self.momentum, self.eps))
            }

            fn forward_relu(&self, input: &Tensor) -> Result<Tensor> {
                self.check(input)?;
                let (running, weight, bias, training) = self.arguments();
                summary::seen(self, input.batch_norm_relu(running, weight, bias, training, self.momentum, self.eps))
            }
        }
    };
}

batch_norm! {
    /// Batch normalisation of `[N, C]` or `[N, C, L]`: see [`Tensor::batch_norm`].
    ///
    /// `weight` and `bias` are initialised with ones and zeros, the running mean and variance with zeros and ones. The
    /// default momentum is 0.1, the default eps 1e-5. In training (see [`Module::train`]), a forward pass updates the
    /// running statistics in place. Under [`DataParallel`](crate::DataParallel), the statistics are computed over the
    /// whole batch across all devices.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{BatchNorm1d, Module};
    /// use anygpu::Tensor;
    ///
    /// let norm = BatchNorm1d::new(1)?.momentum(0.5);
    /// let x = Tensor::new([[1.0], [3.0]], None)?;
    /// norm.forward(&x)?; // a mean of 2, an unbiased variance of 2
    /// let buffers = norm.named_buffers();
    /// assert_eq!((buffers[0].0.as_str(), buffers[0].1.item::<f32>()?), ("running_mean", 1.0));
    /// assert_eq!((buffers[1].0.as_str(), buffers[1].1.item::<f32>()?), ("running_var", 1.5));
    /// norm.eval();
    /// assert!((norm.forward(&x)?.to_vec::<f32>()?[1] - 2.0 / 1.5f32.sqrt()).abs() < 1e-4);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    BatchNorm1d, 2 | 3, "[N, C] or [N, C, L]", "[4, 3]"
}

batch_norm! {
    /// Batch normalisation of images `[N, C, H, W]`: see [`Tensor::batch_norm`].
    ///
    /// `weight` and `bias` are initialised with ones and zeros, the running mean and variance with zeros and ones. The
    /// default momentum is 0.1, the default eps 1e-5. In training (see [`Module::train`]), a forward pass updates the
    /// running statistics in place. Under [`DataParallel`](crate::DataParallel), the statistics are computed over the
    /// whole batch across all devices.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{BatchNorm2d, Module};
    /// use anygpu::Tensor;
    ///
    /// let norm = BatchNorm2d::new(3)?;
    /// assert_eq!(norm.forward(&Tensor::rand([2, 3, 4, 4], None)?)?.shape(), [2, 3, 4, 4]);
    /// assert!(norm.forward(&Tensor::rand([2, 3], None)?).is_err());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    BatchNorm2d, 4, "[N, C, H, W]", "[4, 3, 2, 2]"
}
