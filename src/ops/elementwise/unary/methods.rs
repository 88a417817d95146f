//! Public functions of one element that check their arguments, or do more with integers than a row says.

use super::{UnaryFn, of_integers, of_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::named;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the integers with all bits inverted, in the same type.
    ///
    /// Booleans are negated. Floats are an error.
    ///
    /// The result has the same shape.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for floats; [`Error::OutOfMemory`] if the device does not have enough memory for the
    /// result.
    pub fn bitwise_not(&self) -> Result<Tensor> {
        match self.dtype() {
            DType::Bool => named("bitwise_not", || self.logical_not()),
            _ => of_one(UnaryFn::BitwiseNot, self, [0.0; 2]),
        }
    }

    /// Returns `min(max(x, 0), 6)`. Integers become f32.
    ///
    /// The result has the same shape. Halves are computed as f32 and keep their type, and f64 is computed as f64.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory for the result.
    pub fn relu6(&self) -> Result<Tensor> {
        named("relu6", || self.hardtanh(0.0, 6.0))
    }

    /// Returns `max(x, 0)` in the same type. The gradient is 0 at 0, and 1 at NaN.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for booleans.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([-1.0, 0.0, 2.0], None)?.relu()?.to_vec::<f32>()?, [0.0, 0.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn relu(&self) -> Result<Tensor> {
        if self.dtype().is_float() {
            return of_one(UnaryFn::Relu, self, [0.0; 2]);
        }
        self.clamp_integers("relu", Some(0.0), None)
    }

    /// Limits the elements to the range from `min` to `max`; each bound is optional.
    ///
    /// If `min` is above `max`, the result is `max`. NaN stays NaN. The gradient is 1 between the bounds, and 0 at the
    /// bounds and beyond, as in PyTorch 2.15. Integers keep their type; fractional bounds are rounded inwards to whole
    /// numbers.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without any bound or with NaN as one; [`Error::DTypeMismatch`] for booleans.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([-2.0, 0.5, 3.0], None)?;
    /// assert_eq!(x.clamp(Some(-1.0), Some(1.0))?.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
    /// assert_eq!(x.clamp(None, Some(1.0))?.to_vec::<f32>()?, [-2.0, 0.5, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn clamp(&self, min: Option<f32>, max: Option<f32>) -> Result<Tensor> {
        if (min.is_none() && max.is_none()) || [min, max].into_iter().flatten().any(f32::is_nan) {
            return Err(Error::argument("clamp", "needs min or max, and neither may be NaN"));
        }
        if self.dtype().is_float() {
            let bounds = [min.unwrap_or(f32::NEG_INFINITY), max.unwrap_or(f32::INFINITY)];
            return of_one(UnaryFn::Clamp, self, bounds);
        }
        self.clamp_integers("clamp", min, max)
    }

    fn clamp_integers(&self, op: &'static str, min: Option<f32>, max: Option<f32>) -> Result<Tensor> {
        match self.dtype() {
            DType::Bool => Err(Error::DTypeMismatch { op, expected: "numbers".into(), got: "bool".into() }),
            DType::I64 => named(op, || {
                let (low, high) = (min.map(|v| v.ceil() as i64), max.map(|v| v.floor() as i64));
                let x = low.map_or_else(|| Ok(self.clone()), |low| self.maximum(low))?;
                high.map_or_else(|| Ok(x.clone()), |high| x.minimum(high))
            }),
            DType::I32 => {
                let (low, high) =
                    (min.map_or(i32::MIN, |v| v.ceil() as i32), max.map_or(i32::MAX, |v| v.floor() as i32));
                of_integers(UnaryFn::Clamp, self, [low as u32, high as u32])
            }
            _ => {
                let most = if self.dtype() == DType::U8 { 255 } else { u32::MAX };
                let (low, high) = (min.map_or(0, |v| v.ceil() as u32), max.map_or(most, |v| v.floor() as u32));
                of_integers(UnaryFn::Clamp, self, [low.min(most), high.min(most)])
            }
        }
    }

    /// Limits the elements to the range from `min` to `max`, as an activation: integers become f32.
    ///
    /// The gradient is the same as for [`Tensor::clamp`]. `hardtanh(0.0, 6.0)` is [`Tensor::relu6`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `min` is below `max`.
    pub fn hardtanh(&self, min: f32, max: f32) -> Result<Tensor> {
        if min.is_nan() || max.is_nan() || min >= max {
            return Err(Error::argument("hardtanh", format!("min {min} is not below max {max}")));
        }
        of_one(UnaryFn::Hardtanh, self, [min, max])
    }
}
