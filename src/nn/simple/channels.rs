//! Layers that drop or move whole channels.

use super::probability;
use crate::error::{Error, Result};
use crate::nn::{Mode, Module, summary};
use crate::tensor::Tensor;

/// Defines a dropout of channels for inputs of one rank.
macro_rules! channel_dropout {
    ($(#[$doc:meta])* $name:ident, $rank:literal, $shape:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            p: f32,
            mode: Mode,
        }

        impl $name {
            /// Creates a layer that drops channels with probability `p`.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] unless p is between 0 and 1.
            pub fn new(p: f32) -> Result<$name> {
                Ok($name { p: probability(stringify!($name), p)?, mode: Mode::default() })
            }
        }

        impl Module for $name {
            crate::children!(mode);

            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                if input.rank() != $rank {
                    let detail = format!("the input is {}, not {:?}", $shape, input.shape());
                    return Err(Error::argument(stringify!($name), detail));
                }
                summary::seen(self, dropped(input, self.p, self.mode.is_training()))
            }
        }
    };
}

/// Drops channels of `[N, C, ..]`, in training.
fn dropped(x: &Tensor, p: f32, training: bool) -> Result<Tensor> {
    if !training || p == 0.0 {
        return Ok(x.clone());
    }
    let mut shape = vec![1; x.rank()];
    shape[..2].copy_from_slice(&x.shape()[..2]);
    let kept = Tensor::ones(shape, x.device())?.to_dtype(x.dtype())?.dropout(p, true)?;
    x.mul(&kept)
}

channel_dropout! {
    /// In training, sets each channel of each sample of `[N, C, L]` to zero with probability p, and scales the others
    /// to `x / (1 − p)`. In evaluation ([`Module::eval`]), it is the identity. Neighbouring elements of a channel are
    /// similar, so dropping single elements ([`Dropout`](crate::nn::Dropout)) has little effect (Tompson et al., 2015).
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{Dropout1d, Module};
    /// use anygpu::Tensor;
    ///
    /// let y = Dropout1d::new(0.5)?.forward(&Tensor::ones([4, 8, 3], None)?)?;
    /// assert!(y.to_vec::<f32>()?.chunks(3).all(|channel| channel == [0.0; 3] || channel == [2.0; 3]));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    Dropout1d, 3, "[N, C, L]"
}

channel_dropout! {
    /// In training, sets each channel of each image `[N, C, H, W]` to zero with probability p, and scales the others to
    /// `x / (1 − p)`; otherwise like [`Dropout1d`].
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{Dropout2d, Module};
    /// use anygpu::Tensor;
    ///
    /// let (dropout, x) = (Dropout2d::new(0.5)?, Tensor::ones([2, 8, 3, 3], None)?);
    /// assert!(dropout.forward(&x)?.to_vec::<f32>()?.chunks(9).any(|channel| channel == [0.0; 9]));
    /// dropout.eval();
    /// assert!(dropout.forward(&x)?.is_same(&x));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    Dropout2d, 4, "[N, C, H, W]"
}

channel_dropout! {
    /// In training, sets each channel of each volume `[N, C, D, H, W]` to zero with probability p, and scales the others to
    /// `x / (1 − p)`; otherwise like [`Dropout1d`].
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{Dropout3d, Module};
    /// use anygpu::Tensor;
    ///
    /// let y = Dropout3d::new(1.0)?.forward(&Tensor::ones([1, 2, 2, 2, 2], None)?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0; 16]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    Dropout3d, 5, "[N, C, D, H, W]"
}

/// Rearranges channels into larger images: `[.., C r², H, W]` → `[.., C, r H, r W]`.
///
/// Each pixel of r² channels becomes r × r pixels of one channel (Shi et al., "Real-time single image and video
/// super-resolution", 2016). [`PixelUnshuffle`] is the inverse.
///
/// # Example
/// ```
/// use anygpu::nn::{Module, PixelShuffle};
/// use anygpu::Tensor;
///
/// let x = Tensor::new([1.0, 2.0, 3.0, 4.0], None)?.reshape([1, 4, 1, 1])?;
/// let y = PixelShuffle::new(2).forward(&x)?;
/// assert_eq!((y.shape(), y.to_vec::<f32>()?), (&[1, 1, 2, 2][..], vec![1.0, 2.0, 3.0, 4.0]));
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PixelShuffle {
    factor: usize,
}

impl PixelShuffle {
    /// Creates a layer that enlarges height and width by `factor`, r. A factor of 0 is an error of
    /// [`forward`](Module::forward).
    #[must_use]
    pub fn new(factor: usize) -> PixelShuffle {
        PixelShuffle { factor }
    }
}

impl Module for PixelShuffle {
    crate::children!();

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let (r, shape) = (self.factor, input.shape());
        let [leading @ .., channels, height, width] = shape else {
            return Err(Error::argument("PixelShuffle", format!("the input is [.., C, H, W], not {shape:?}")));
        };
        let square = r.checked_mul(r).filter(|&square| square > 0 && channels.is_multiple_of(square));
        let Some(square) = square else {
            let detail =
                format!("the {channels} channels of {shape:?} are not a multiple of the squared factor, {r} * {r}");
            return Err(Error::argument("PixelShuffle", detail));
        };
        let samples: usize = leading.iter().product();
        let output = || {
            let parts = input.reshape([samples, channels / square, r, r, *height, *width])?;
            let parts = parts.permute([0, 1, 4, 2, 5, 3])?;
            parts.reshape([leading, &[channels / square, height * r, width * r]].concat())
        };
        summary::seen(self, output())
    }
}

/// Rearranges images into more channels: `[.., C, r H, r W]` → `[.., C r², H, W]`.
///
/// Each r × r pixels of one channel become one pixel of r² channels. This is the inverse of [`PixelShuffle`].
///
/// # Example
/// ```
/// use anygpu::nn::{Module, PixelShuffle, PixelUnshuffle};
/// use anygpu::Tensor;
///
/// let x = Tensor::rand([2, 3, 4, 6], None)?;
/// let y = PixelUnshuffle::new(2).forward(&x)?;
/// assert_eq!(y.shape(), [2, 12, 2, 3]);
/// assert!(PixelShuffle::new(2).forward(&y)?.equal(&x)?);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PixelUnshuffle {
    factor: usize,
}

impl PixelUnshuffle {
    /// Creates a layer that divides height and width by `factor`, r. A factor of 0 is an error of
    /// [`forward`](Module::forward).
    #[must_use]
    pub fn new(factor: usize) -> PixelUnshuffle {
        PixelUnshuffle { factor }
    }
}

impl Module for PixelUnshuffle {
    crate::children!();

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let (r, shape) = (self.factor, input.shape());
        let [leading @ .., channels, height, width] = shape else {
            return Err(Error::argument("PixelUnshuffle", format!("the input is [.., C, H, W], not {shape:?}")));
        };
        if r == 0 || !height.is_multiple_of(r) || !width.is_multiple_of(r) {
            let detail = format!("height and width of {shape:?} are not multiples of the factor, {r}");
            return Err(Error::argument("PixelUnshuffle", detail));
        }
        let samples: usize = leading.iter().product();
        let (height, width) = (height / r, width / r);
        let output = || {
            let parts = input.reshape([samples, *channels, height, r, width, r])?;
            let parts = parts.permute([0, 1, 3, 5, 2, 4])?;
            parts.reshape([leading, &[channels * r * r, height, width]].concat())
        };
        summary::seen(self, output())
    }
}
