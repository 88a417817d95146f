//! Mean, variance and other statistics: compositions of the reductions, computed as f32 for every float type except
//! f64.

use crate::dtype::DType;
use crate::error::Result;
use crate::ops::reduction::reduce::{Reduction, distinct, over};
use crate::ops::{expect_float, of_sums};
use crate::shape::Dims;
use crate::tensor::Tensor;

/// Converts a float tensor to f32. Other types are an error.
pub(in crate::ops) fn wide(name: &'static str, x: &Tensor) -> Result<Tensor> {
    expect_float(name, x)?;
    if x.dtype() == DType::F64 { Ok(x.clone()) } else { x.to_dtype(DType::F32) }
}

/// Returns the number of elements that are reduced to one result.
fn reduced(x: &Tensor, dims: &[usize]) -> usize {
    dims.iter().map(|&d| x.shape()[d]).product()
}

/// Computes the square root with a gradient of 0, not ∞, at 0, as torch does for norms and deviations.
pub(in crate::ops) fn root(x: &Tensor) -> Result<Tensor> {
    let zero = zeros_of(x)?;
    x.add(&zero)?.sqrt()?.sub(&zero)
}

/// Returns 1 where `x` is 0, else 0.
pub(in crate::ops) fn zeros_of(x: &Tensor) -> Result<Tensor> {
    x.eq(0)?.to_dtype(DType::F32)
}

fn mean(x: &Tensor, dims: &[usize], keepdim: bool) -> Result<Tensor> {
    let count = reduced(x, dims);
    let sum = x.sum(dims, keepdim)?;
    if x.dtype() == DType::F64 {
        return sum.div(count as f64);
    }
    if count == 0 { sum.add_scalar(f32::NAN) } else { sum.mul_scalar(1.0 / count as f32) }
}

/// Computes the variance in two passes, the mean and then the squares of the deviations, to avoid cancellation.
fn variance(x: &Tensor, dims: &[usize], correction: f64, keepdim: bool) -> Result<Tensor> {
    let free = (reduced(x, dims) as f64 - correction).max(0.0);
    // The deviations add up to 0, so the mean does not contribute to the gradient. It does contribute to the gradient
    // of the gradient.
    // Without degrees of freedom the gradient is infinite, and its sum, the gradient of the mean, would be NaN.
    let mean = mean(x, dims, true)?;
    let deviation = x.sub(&if free > 0.0 { mean } else { mean.detach() })?;
    let squares = deviation.mul(&deviation)?.sum(dims, keepdim)?;
    if x.dtype() == DType::F64 { squares.div(free) } else { squares.mul_scalar((1.0 / free) as f32) }
}

impl Tensor {
    /// Returns the mean over `dims`.
    ///
    /// With `keepdim`, the reduced dimensions keep size 1. Otherwise they are removed. The mean over an empty dimension
    /// is NaN. Floats keep their type (halves are added up as f32).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there is no such dimension;
    /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for integers, as in PyTorch.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 3.0], [5.0, 7.0]], None)?;
    /// assert_eq!(x.mean(&[1], false)?.to_vec::<f32>()?, [2.0, 6.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn mean(&self, dims: impl Dims, keepdim: bool) -> Result<Tensor> {
        let dims = &distinct("mean", dims, self.shape())?;
        mean(&wide("mean", self)?, dims, keepdim)?.to_dtype(of_sums(self.dtype()))
    }

    /// Returns the variance `Σ (x − mean)² / max(0, n − correction)` over `dims`.
    ///
    /// `n` is the number of elements over which the variance is computed. With `keepdim`, the reduced dimensions keep
    /// size 1. Otherwise they are removed.
    ///
    /// A `correction` of 1 is Bessel's correction, PyTorch's default. It estimates the variance of the population from
    /// which the elements are a sample. A `correction` of 0 returns the variance of the elements themselves. The result
    /// is NaN if `n ≤ correction` and all deviations are 0.
    ///
    /// # Errors
    /// Same as [`Tensor::mean`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([10_001.0, 10_002.0, 10_003.0], None)?; // far from 0, and nothing cancels
    /// assert_eq!(x.var(&[0], 1.0, false)?.item::<f32>()?, 1.0);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn var(&self, dims: impl Dims, correction: f64, keepdim: bool) -> Result<Tensor> {
        let dims = &distinct("var", dims, self.shape())?;
        variance(&wide("var", self)?, dims, correction, keepdim)?.to_dtype(of_sums(self.dtype()))
    }

    /// Returns the standard deviation over `dims`: the square root of [`Tensor::var`].
    ///
    /// `correction` and `keepdim` have the same meaning as there. The gradient is 0 where the standard deviation is 0.
    ///
    /// # Errors
    /// Same as [`Tensor::mean`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 3.0], [2.0, 6.0]], None)?;
    /// assert_eq!(x.std(&[1], 0.0, false)?.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn std(&self, dims: impl Dims, correction: f64, keepdim: bool) -> Result<Tensor> {
        let dims = &distinct("std", dims, self.shape())?;
        root(&variance(&wide("std", self)?, dims, correction, keepdim)?)?.to_dtype(of_sums(self.dtype()))
    }

    /// Returns whether any element over `dims` is not 0, as bool.
    ///
    /// With `keepdim`, the reduced dimensions keep size 1. Otherwise they are removed. NaN counts as not 0. The result
    /// over an empty dimension is false.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[0.0, 0.5], [0.0, 0.0]], None)?;
    /// assert_eq!(x.any(&[1], false)?.to_vec::<bool>()?, [true, false]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn any(&self, dims: impl Dims, keepdim: bool) -> Result<Tensor> {
        let dims = &distinct("any", dims, self.shape())?;
        match reduced(self, dims) {
            0 => self.detach().to_dtype(DType::F32)?.sum(dims, keepdim)?.to_dtype(DType::Bool),
            _ => over(&self.detach().to_dtype(DType::Bool)?, Reduction::Max, dims, keepdim),
        }
    }

    /// Returns whether all elements over `dims` are not 0, as bool.
    ///
    /// With `keepdim`, the reduced dimensions keep size 1. Otherwise they are removed. NaN counts as not 0. The result
    /// over an empty dimension is true.
    ///
    /// # Errors
    /// Same as [`Tensor::any`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert!(!Tensor::new([true, false], None)?.all_all()?.item::<bool>()?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn all(&self, dims: impl Dims, keepdim: bool) -> Result<Tensor> {
        let dims = &distinct("all", dims, self.shape())?;
        match reduced(self, dims) {
            0 => self.detach().to_dtype(DType::F32)?.prod(dims, keepdim)?.to_dtype(DType::Bool),
            _ => over(&self.detach().to_dtype(DType::Bool)?, Reduction::Min, dims, keepdim),
        }
    }

    /// Returns `log Σ eˣ` over `dims`, without overflow.
    ///
    /// With `keepdim`, the reduced dimensions keep size 1. Otherwise they are removed. The result over an empty
    /// dimension is −∞.
    ///
    /// # Errors
    /// Same as [`Tensor::mean`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1000.0, 1000.0], None)?;
    /// assert_eq!(x.logsumexp(&[0], false)?.item::<f32>()?, 1000.0 + 2f32.ln());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn logsumexp(&self, dims: impl Dims, keepdim: bool) -> Result<Tensor> {
        let dims = &distinct("logsumexp", dims, self.shape())?;
        let x = wide("logsumexp", self)?;
        if reduced(&x, dims) == 0 {
            return x.sum(dims, keepdim)?.add_scalar(f32::NEG_INFINITY)?.to_dtype(of_sums(self.dtype()));
        }
        let largest = x.detach().max(dims, true)?;
        // An infinite shift would result in ∞ − ∞: the shift is 0 instead.
        let finite = largest.isfinite()?;
        let shift = finite.where_cond(&largest, 0)?;
        // Where the largest element is not finite, it is the result, without a gradient.
        let sum = finite.where_cond(&x.sub(&shift)?.exp()?.sum(dims, true)?, 1)?.log()?.add(&shift)?;
        let sum = finite.where_cond(&sum, &largest)?;
        let kept =
            (0..self.rank()).filter(|d| keepdim || !dims.contains(d)).map(|d| sum.shape()[d]).collect::<Vec<_>>();
        sum.reshape(kept)?.to_dtype(of_sums(self.dtype()))
    }
}
