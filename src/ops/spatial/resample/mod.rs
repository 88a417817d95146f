//! Resampling along a dimension by any filter and any placement of the pixels: a sparse matrix (`matrix`), whose weights
//! the host computes (`weights`). `resize.rs` has the ways whose weights a kernel computes.

mod matrix;
mod weights;

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ops::named;
use crate::shape::{Dim, dimension};
use crate::tensor::Tensor;
use matrix::product;

/// The method by which [`Resample`] computes a pixel from the pixels around its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResampleFilter {
    /// The nearest pixel.
    Nearest(ResampleRounding),
    /// Linear interpolation between the two pixels next to the position.
    Linear,
    /// A cubic convolution of the four pixels around the position.
    Cubic {
        /// The slope at distance 1: −0.75 in PyTorch and by default in ONNX, −0.5 in Pillow.
        a: f32,
    },
}

/// The choice of the nearest pixel to a position, for [`ResampleFilter::Nearest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResampleRounding {
    /// The pixel before the position.
    Floor,
    /// The pixel after the position.
    Ceil,
    /// The nearest pixel; the one before the position if both are equally near.
    PreferFloor,
    /// The nearest pixel; the one after the position if both are equally near.
    PreferCeil,
}

/// The position of new pixel `o`, for [`Resample`].
///
/// Pixel i of the L old pixels is at position i. `s` is the scale, by default the ratio of the sizes. The names are
/// ONNX's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResampleCoordinates {
    /// `(o + ½) / s − ½`: the images' borders keep their places.
    HalfPixel,
    /// Like `HalfPixel`, but −½ if the new size is 1.
    PytorchHalfPixel,
    /// Like `HalfPixel`, but both images have the same centre even if the new size is not `s · L`.
    HalfPixelSymmetric,
    /// `o · (L − 1) / (s · L − 1)`: the centres of the first and the last pixel keep their places.
    AlignCorners,
    /// `o / s`.
    Asymmetric,
    /// The part of the image from `start` to `end`, like TensorFlow's `crop_and_resize`:
    /// `(L − 1) · (start + o · (end − start) / (s · L − 1))`.
    CropAndResize {
        /// The beginning of the part: 0 is the first pixel's centre, 1 the last one's.
        start: f64,
        /// The end of the part, likewise.
        end: f64,
        /// The value of new pixels that are outside of the image.
        extrapolation: f32,
    },
}

/// The options of [`Tensor::resample`]: the resampling of one dimension by all methods of ONNX's `Resize`.
///
/// | ONNX's `Resize` | here |
/// |---|---|
/// | `sizes` | [`Resample::new`] |
/// | `scales` | [`Resample::scale`]; the size is `⌊scale · L⌋` |
/// | `mode`, `nearest_mode`, `cubic_coeff_a` | [`Resample::filter`] |
/// | `coordinate_transformation_mode`, `roi`, `extrapolation_value` | [`Resample::coordinates`] |
/// | `antialias`, `exclude_outside` | [`Resample::antialias`], [`Resample::exclude_outside`] |
/// | `axes` | one call for each |
#[derive(Clone, Debug, PartialEq)]
pub struct Resample {
    size: usize,
    scale: Option<f64>,
    filter: ResampleFilter,
    coordinates: ResampleCoordinates,
    antialias: bool,
    exclude_outside: bool,
}

impl Resample {
    /// Returns a resampling to `size` pixels: linear, with half-pixel coordinates, at the ratio of the sizes as the
    /// scale.
    pub fn new(size: usize) -> Resample {
        Resample {
            size,
            scale: None,
            filter: ResampleFilter::Linear,
            coordinates: ResampleCoordinates::HalfPixel,
            antialias: false,
            exclude_outside: false,
        }
    }

    /// Sets the scale by which positions are computed.
    ///
    /// It must be above 0. The default is the ratio of the sizes.
    #[must_use]
    pub fn scale(self, scale: f64) -> Resample {
        Resample { scale: Some(scale), ..self }
    }

    /// Sets the filter.
    #[must_use]
    pub fn filter(self, filter: ResampleFilter) -> Resample {
        Resample { filter, ..self }
    }

    /// Sets the positions of the new pixels.
    #[must_use]
    pub fn coordinates(self, coordinates: ResampleCoordinates) -> Resample {
        Resample { coordinates, ..self }
    }

    /// Sets whether the filter is stretched if the scale is below 1, so that all pixels count. Not for
    /// [`ResampleFilter::Nearest`].
    #[must_use]
    pub fn antialias(self, antialias: bool) -> Resample {
        Resample { antialias, ..self }
    }

    /// Sets whether pixels beyond the edges have no weight.
    ///
    /// The weights of the other pixels then add up to 1. Otherwise, pixels beyond an edge are equal to the edge's
    /// pixel. Not for [`ResampleFilter::Nearest`].
    #[must_use]
    pub fn exclude_outside(self, exclude: bool) -> Resample {
        Resample { exclude_outside: exclude, ..self }
    }

    /// Checks the numbers for a dimension of `len` pixels.
    fn check(&self, len: usize) -> Result<()> {
        let error = |detail: String| Err(Error::argument("resample", detail));
        if len == 0 && self.size > 0 {
            return error(format!("{} pixels cannot be made of none", self.size));
        }
        if u32::try_from(len.max(self.size)).is_err() {
            return error(format!("{} pixels from {len} exceed 2^32", self.size));
        }
        if let Some(scale) = self.scale.filter(|scale| !(scale.is_finite() && *scale > 0.0)) {
            return error(format!("a scale of {scale} is not above 0"));
        }
        if matches!(self.filter, ResampleFilter::Nearest(_)) && (self.antialias || self.exclude_outside) {
            return error("the nearest pixel has neither antialias nor exclude_outside".into());
        }
        if matches!(self.filter, ResampleFilter::Cubic { a } if !a.is_finite()) {
            return error("the cubic filter needs a finite number a".into());
        }
        match self.coordinates {
            ResampleCoordinates::CropAndResize { start, end, .. } if !(start.is_finite() && end.is_finite()) => {
                error(format!("the part from {start} to {end} is not finite"))
            }
            _ => Ok(()),
        }
    }
}

impl Tensor {
    /// Resamples one dimension: `[.., L, ..]` → `[.., size, ..]`.
    ///
    /// To resize an image, call this once for each dimension. See also [`Tensor::interpolate`].
    ///
    /// The host computes the weights of the pixels, in f64, so that all devices agree.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, if it is empty, or if `how` has an invalid number. On
    /// adapters also if a pixel, or a pixel of the gradient, is a sum of more than 60 000 pixels.
    /// [`Error::DTypeMismatch`] unless the type is a float or the filter is [`ResampleFilter::Nearest`].
    ///
    /// ```
    /// # use anygpu::{Resample, ResampleCoordinates, ResampleFilter, Tensor};
    /// let x = Tensor::new([1.0, 2.0, 3.0, 4.0], None)?;
    /// let half = Resample::new(2);
    /// assert_eq!(x.resample(0, &half)?.to_vec::<f32>()?, [1.5, 3.5]);
    /// assert_eq!(x.resample(0, &half.clone().antialias(true))?.to_vec::<f32>()?, [1.625, 3.375]);
    /// let ends = half.coordinates(ResampleCoordinates::AlignCorners).filter(ResampleFilter::Cubic { a: -0.75 });
    /// assert_eq!(x.resample(-1, &ends)?.to_vec::<f32>()?, [1.0, 4.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn resample(&self, dim: impl Dim, how: &Resample) -> Result<Tensor> {
        named("resample", || {
            let dim = dimension("resample", dim, self.shape())?;
            how.check(self.shape()[dim])?;
            let weights = how.weights(self.shape()[dim])?;
            let out = match how.filter {
                ResampleFilter::Nearest(_) if !self.dtype().is_float() => {
                    let places = weights.matrix.first_places();
                    self.index_select(dim, &Tensor::from_vec(places, how.size, self.device())?)?
                }
                _ => product("resample", self, dim, Arc::new(weights.matrix))?,
            };
            match how.coordinates {
                ResampleCoordinates::CropAndResize { extrapolation, .. } if weights.outside.contains(&true) => {
                    let mut column = vec![1; self.rank()];
                    column[dim] = how.size;
                    let outside = Tensor::from_vec(weights.outside, column, self.device())?;
                    out.masked_fill(&outside, extrapolation)
                }
                _ => Ok(out),
            }
        })
    }
}
