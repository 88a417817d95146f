//! Layers without parameters of their own.

mod channels;

pub use channels::{Dropout1d, Dropout2d, Dropout3d, PixelShuffle, PixelUnshuffle};

use super::{Mode, Module, summary};
use crate::error::{Error, Result};
use crate::ops::Interpolation;
use crate::tensor::Tensor;

/// The identity: returns its input.
///
/// Use it to replace a layer that you want to remove.
///
/// # Example
/// ```
/// use anygpu::nn::{Identity, Module, models};
/// use anygpu::Tensor;
///
/// let mut net = models::lenet()?;
/// net.set("fc2", Identity)?; // the features before the last layer
/// assert_eq!(net.forward(&Tensor::zeros([2, 1, 28, 28], None)?)?.shape(), [2, 128]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity;

impl Module for Identity {
    crate::children!();

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::seen(self, Ok(input.clone()))
    }
}

/// Flattens each sample to one row: `[N, ..]` → `[N, product of the rest]`.
///
/// # Example
/// ```
/// use anygpu::nn::{Flatten, Module};
/// use anygpu::Tensor;
///
/// assert_eq!(Flatten.forward(&Tensor::ones([2, 50, 4, 4], None)?)?.shape(), [2, 800]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Module for Flatten {
    crate::children!();

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::seen(self, input.flatten(1))
    }
}

/// In training, sets each element to zero with probability p and scales the others to `x / (1 − p)`.
///
/// In evaluation ([`Module::eval`]), it is the identity. Inputs may have any shape: see [`Tensor::dropout`].
///
/// # Example
/// ```
/// use anygpu::nn::{Dropout, Module};
/// use anygpu::Tensor;
///
/// let (dropout, x) = (Dropout::new(0.5)?, Tensor::ones([100], None)?);
/// assert!(dropout.forward(&x)?.to_vec::<f32>()?.contains(&0.0));
/// dropout.eval();
/// assert_eq!(dropout.forward(&x)?.to_vec::<f32>()?, [1.0; 100]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dropout {
    p: f32,
    mode: Mode,
}

impl Dropout {
    /// Creates a layer that drops elements with probability `p`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless p is between 0 and 1.
    pub fn new(p: f32) -> Result<Dropout> {
        Ok(Dropout { p: probability("Dropout", p)?, mode: Mode::default() })
    }
}

/// Returns `p`, or an error unless it is a probability.
pub(super) fn probability(layer: &'static str, p: f32) -> Result<f32> {
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::argument(layer, format!("{p} is not a probability between 0 and 1")));
    }
    Ok(p)
}

impl Module for Dropout {
    crate::children!(mode);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::seen(self, input.dropout(self.p, self.mode.is_training()))
    }
}

/// y = f(x) + x, or f(x) + g(x) with a shortcut g (He et al., "Deep residual learning for image recognition", 2016).
///
/// The layers are called `inner` and `shortcut`; both return the same shape. Without a shortcut, `inner` must return
/// the shape of x.
///
/// # Example
/// ```
/// use anygpu::nn::{Conv2d, Module, ReLU, Residual, Sequential};
/// use anygpu::Tensor;
///
/// let x = Tensor::ones([2, 8, 6, 6], None)?;
/// let block = Sequential::new().push(Conv2d::new(8, 8, 3)?.padding(1)).push(ReLU);
/// assert_eq!(Residual::new(block).forward(&x)?.shape(), [2, 8, 6, 6]);
///
/// let (wider, shortcut) = (Conv2d::new(8, 16, 3)?.padding(1).stride(2), Conv2d::new(8, 16, 1)?.stride(2));
/// assert_eq!(Residual::new(wider).shortcut(shortcut).forward(&x)?.shape(), [2, 16, 3, 3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone)]
pub struct Residual {
    inner: Box<dyn Module>,
    shortcut: Option<Box<dyn Module>>,
}

impl Residual {
    /// Creates a layer that adds its input to the output of `inner`.
    pub fn new(inner: impl Module) -> Residual {
        Residual { inner: Box::new(inner), shortcut: None }
    }

    /// Adds the output of `shortcut` instead of the input.
    #[must_use]
    pub fn shortcut(mut self, shortcut: impl Module) -> Residual {
        self.shortcut = Some(Box::new(shortcut));
        self
    }
}

impl Module for Residual {
    crate::children!(inner, shortcut);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let shortcut = self.shortcut.as_ref().map_or_else(|| Ok(input.clone()), |shortcut| shortcut.forward(input))?;
        let inner = self.inner.forward(input)?;
        if inner.shape() != shortcut.shape() {
            let rule =
                "the input must have the shape of the inner layer's output, or needs a shortcut() with that shape";
            return Err(Error::shapes("Residual", inner.shape(), shortcut.shape(), rule));
        }
        summary::seen(self, inner.add(&shortcut))
    }
}

/// Enlarges images by a factor: `[N, C, H, W]` → `[N, C, factor · H, factor · W]`; see [`Tensor::interpolate`].
///
/// # Example
/// ```
/// use anygpu::nn::{Module, Upsample};
/// use anygpu::{Interpolation, Tensor};
///
/// let x = Tensor::from_slice(&[1.0f32, 3.0], [1, 1, 1, 2], None)?;
/// let y = Upsample::new(2).forward(&x)?;
/// assert_eq!((y.shape(), y.to_vec::<f32>()?), (&[1, 1, 2, 4][..], vec![1.0, 1.0, 3.0, 3.0, 1.0, 1.0, 3.0, 3.0]));
/// let bilinear = Upsample::new(2).mode(Interpolation::Linear { align_corners: false });
/// assert_eq!(bilinear.forward(&x)?.to_vec::<f32>()?[..4], [1.0, 1.5, 2.5, 3.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Upsample {
    factor: usize,
    mode: Interpolation,
}

impl Upsample {
    /// Creates a layer that enlarges height and width by `factor`, with the nearest pixel. A factor of 0 is an error of
    /// [`forward`](Module::forward).
    #[must_use]
    pub fn new(factor: usize) -> Upsample {
        Upsample { factor, mode: Interpolation::Nearest }
    }

    /// Sets the interpolation mode.
    #[must_use]
    pub fn mode(mut self, mode: Interpolation) -> Upsample {
        self.mode = mode;
        self
    }
}

impl Module for Upsample {
    crate::children!();

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let &[_, _, h, w] = input.shape() else {
            return Err(Error::argument("Upsample", format!("the input is [N, C, H, W], not {:?}", input.shape())));
        };
        if self.factor == 0 {
            return Err(Error::argument("Upsample", "the factor is 0, and must be at least 1"));
        }
        let size = [h, w].map(|size| size.saturating_mul(self.factor));
        summary::seen(self, input.interpolate(size, self.mode))
    }
}
