//! Norms of vectors.

use crate::dtype::DType;
use crate::error::Result;
use crate::ops::reduction::reduce::distinct;
use crate::ops::reduction::statistics::{root, wide, zeros_of};
use crate::ops::{named, of_sums};
use crate::shape::Dims;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the p-norm over `dims`, `(Σ |x|ᵖ)^(1/p)`, like PyTorch's `linalg.vector_norm`.
    ///
    /// With `keepdim`, the reduced dimensions keep size 1. Otherwise they are removed. For an infinite p, the norm is
    /// the largest `|x|`. For −∞, it is the smallest `|x|`. For 0, it is the number of elements that are not 0.
    ///
    /// The gradient is 0 where the norm is 0. The norm is computed as f32 (f64 as f64), so `|x|ᵖ` may overflow even if
    /// the norm does not.
    ///
    /// # Errors
    /// Same as [`Tensor::mean`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) also for an infinite p over
    /// an empty dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[3.0, -4.0], [0.0, 2.0]], None)?;
    /// assert_eq!(x.norm(2.0, &[1], false)?.to_vec::<f32>()?, [5.0, 2.0]);
    /// assert_eq!(x.norm(1.0, &[1], false)?.to_vec::<f32>()?, [7.0, 2.0]);
    /// assert_eq!(x.norm(f32::INFINITY, &[0], true)?.to_vec::<f32>()?, [3.0, 4.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn norm(&self, p: f32, dims: impl Dims, keepdim: bool) -> Result<Tensor> {
        let dims = &distinct("norm", dims, self.shape())?;
        let x = wide("norm", self)?;
        let out = if p == 0.0 {
            x.detach().to_dtype(DType::Bool)?.to_dtype(DType::F32)?.sum(dims, keepdim)?
        } else if p == f32::INFINITY {
            named("norm", || x.abs()?.max(dims, keepdim))?
        } else if p == f32::NEG_INFINITY {
            named("norm", || x.abs()?.min(dims, keepdim))?
        } else if p == 1.0 {
            x.abs()?.sum(dims, keepdim)?
        } else if p == 2.0 {
            root(&x.mul(&x)?.sum(dims, keepdim)?)?
        } else if p < 0.0 {
            x.abs()?.pow(p)?.sum(dims, keepdim)?.pow(1.0 / p)?
        } else {
            power(&power(&x.abs()?, p)?.sum(dims, keepdim)?, 1.0 / p)?
        };
        out.to_dtype(of_sums(self.dtype()))
    }

    /// Returns the p-norm of all elements, as a tensor of rank 0: see [`Tensor::norm`].
    ///
    /// # Errors
    /// Same as [`Tensor::norm`].
    pub fn norm_all(&self, p: f32) -> Result<Tensor> {
        named("norm_all", || self.norm(p, self.all_dims(), false))
    }
}

/// Computes `xᵖ` of numbers that are not negative. The gradient at 0 is 0, not ∞.
fn power(x: &Tensor, p: f32) -> Result<Tensor> {
    let zero = zeros_of(x)?;
    x.add(&zero)?.pow(p)?.sub(&zero)
}
