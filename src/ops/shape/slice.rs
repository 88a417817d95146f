//! Views of parts of a tensor: `select`, `slice`, diagonals; and other views under their PyTorch names.

use crate::error::{Error, Result};
use crate::ops::named;
use crate::ops::shape::view::{SliceRange, View};
use crate::shape::{Dim, NewShape, dimension};
use crate::tensor::Tensor;

impl Tensor {
    /// Takes one element of dimension `dim` and removes the dimension: `[.., n, ..]` → `[.., ..]`. The result is a
    /// view.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or it has no such element.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?;
    /// assert_eq!(x.select(1, 0)?.to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn select(&self, dim: impl Dim, index: usize) -> Result<Tensor> {
        let dim = dimension("select", dim, self.shape())?;
        if index >= self.shape()[dim] {
            let detail = format!("index {index} is not within dimension {dim} of {:?}", self.shape());
            return Err(Error::argument("select", detail));
        }
        self.part(dim, SliceRange { start: index, len: 1, step: 1 })?.squeeze(dim)
    }

    /// Takes every `step`-th element of dimension `dim`, from `start` up to but not including `end`.
    ///
    /// The result is a view with `⌈(end − start) / step⌉` elements in this dimension.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, the range is not within it, or `step` is 0.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::arange(0.0, 8.0, 1.0, None)?;
    /// assert_eq!(x.slice(0, 1, 8, 3)?.to_vec::<f32>()?, [1.0, 4.0, 7.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn slice(&self, dim: impl Dim, start: usize, end: usize, step: usize) -> Result<Tensor> {
        let dim = dimension("slice", dim, self.shape())?;
        if start > end || end > self.shape()[dim] || step == 0 {
            let shape = self.shape();
            let detail = format!("{start}..{end} in steps of {step} is not within dimension {dim} of {shape:?}");
            return Err(Error::argument("slice", detail));
        }
        self.part(dim, SliceRange { start, len: (end - start).div_ceil(step), step })
    }

    /// Returns the diagonals of the matrices in dimensions `dim1` and `dim2`, as a view.
    ///
    /// The result does not have these two dimensions. Its last dimension is the diagonal.
    ///
    /// `offset` is 0 for the main diagonal, positive above it, negative below. A diagonal outside the matrix is empty.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a dimension does not exist, or both are the same.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::arange(0.0, 6.0, 1.0, None)?.reshape([2, 3])?;
    /// assert_eq!(x.diagonal(1, 0, 1)?.to_vec::<f32>()?, [1.0, 5.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn diagonal(&self, offset: i64, dim1: impl Dim, dim2: impl Dim) -> Result<Tensor> {
        let dim1 = dimension("diagonal", dim1, self.shape())?;
        let dim2 = dimension("diagonal", dim2, self.shape())?;
        if dim1 == dim2 {
            return Err(Error::argument("diagonal", format!("dimension {dim1} has no diagonal with itself")));
        }
        self.view(View::Diagonal { dims: [dim1, dim2], offset })
    }

    /// Returns a matrix with this vector as its diagonal, or the diagonal of this matrix.
    ///
    /// The other elements of the matrix are 0. The diagonal of a matrix is a view.
    ///
    /// `offset` chooses the diagonal as in [`Tensor::diagonal`]; the matrix is `[n + |offset|, n + |offset|]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the rank is 1 or 2; [`Error::OutOfMemory`] if the device does not have enough
    /// memory for the matrix.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1.0, 2.0], None)?;
    /// assert_eq!(x.diag(0)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 2.0]);
    /// assert_eq!(x.diag(-1)?.diag(-1)?.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn diag(&self, offset: i64) -> Result<Tensor> {
        match self.rank() {
            1 => {
                let skip = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
                let n = self.elem_count().saturating_add(skip);
                named("diag", || self.place(&[n, n], View::Diagonal { dims: [0, 1], offset }))
            }
            2 => self.diagonal(offset, 0, 1),
            _ => Err(Error::argument("diag", format!("shape {:?} is neither a vector nor a matrix", self.shape()))),
        }
    }

    /// Repeats dimensions of size 1 and adds leading dimensions, without a copy. This is the same as
    /// [`Tensor::broadcast_to`].
    ///
    /// # Errors
    /// Same as [`Tensor::broadcast_to`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0], [2.0]], None)?;
    /// assert_eq!(x.expand([-1, 3])?.to_vec::<f32>()?, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn expand(&self, shape: impl Into<NewShape>) -> Result<Tensor> {
        named("expand", || self.broadcast_to(shape))
    }

    /// Moves one dimension to another place; the others keep their order. The result is a view.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if either place does not exist.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let image = Tensor::zeros([2, 32, 48, 3], None)?; // channels last
    /// assert_eq!(image.movedim(3, 1)?.shape(), [2, 3, 32, 48]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn movedim(&self, from: impl Dim, to: impl Dim) -> Result<Tensor> {
        let from = dimension("movedim", from, self.shape())?;
        let to = dimension("movedim", to, self.shape())?;
        let mut dims: Vec<usize> = (0..self.rank()).filter(|&d| d != from).collect();
        dims.insert(to, from);
        self.permute(&dims)
    }

    /// Removes all dimensions of size 1. The result is a view.
    ///
    /// # Errors
    /// Returns no error of its own.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::zeros([1, 3, 1, 2], None)?.squeeze_all()?.shape(), [3, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn squeeze_all(&self) -> Result<Tensor> {
        let kept: Vec<usize> = self.shape().iter().copied().filter(|&size| size != 1).collect();
        self.reshape(kept)
    }
}
