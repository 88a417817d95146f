//! Products of a matrix and a vector, and of two vectors.

use crate::error::{Error, Result};
use crate::ops::named;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns a matrix times a vector: `[m, k] · [k] → [m]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for other shapes; otherwise same as [`Tensor::matmul`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?;
    /// assert_eq!(a.mv(&Tensor::new([10.0, 1.0], None)?)?.to_vec::<f32>()?, [12.0, 34.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn mv(&self, vector: &Tensor) -> Result<Tensor> {
        match (self.shape(), vector.shape()) {
            (&[_, k], &[n]) if k == n => named("mv", || self.matmul(&vector.unsqueeze(1)?)?.squeeze(1)),
            (a, b) => Err(Error::shapes("mv", a, b, "takes a matrix [m, k] and a vector [k]")),
        }
    }

    /// Returns the inner product of two vectors: `[n] · [n]` → rank 0.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for other shapes; otherwise same as [`Tensor::matmul`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::new([1.0, 2.0, 3.0], None)?;
    /// assert_eq!(a.dot(&a)?.item::<f32>()?, 14.0);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn dot(&self, other: &Tensor) -> Result<Tensor> {
        match (self.shape(), other.shape()) {
            (&[m], &[n]) if m == n => named("dot", || self.unsqueeze(0)?.matmul(&other.unsqueeze(1)?)?.reshape(())),
            (a, b) => Err(Error::shapes("dot", a, b, "takes two vectors of one length")),
        }
    }

    /// Returns all products of the elements of two vectors: `[m], [n] → [m, n]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for other ranks; otherwise same as [`Tensor::mul`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::new([1.0, 2.0], None)?;
    /// assert_eq!(a.outer(&Tensor::new([1.0, 10.0], None)?)?.to_vec::<f32>()?, [1.0, 10.0, 2.0, 20.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn outer(&self, other: &Tensor) -> Result<Tensor> {
        match (self.shape(), other.shape()) {
            (&[_], &[_]) => named("outer", || self.unsqueeze(1)?.mul(other)),
            (a, b) => Err(Error::shapes("outer", a, b, "takes two vectors")),
        }
    }
}
