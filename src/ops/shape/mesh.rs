//! Grids of coordinates.

use crate::error::{Error, Result};
use crate::ops::{expect_dtype, named, same_device};
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the coordinates of a grid.
    ///
    /// For axes `[a]`, `[b]`, .. there is one tensor of shape `[a, b, ..]` for each axis. The first tensor has the
    /// elements of the first axis and changes along dimension 0, and so on. The tensors are views, and their gradients
    /// flow to the axes.
    ///
    /// This is PyTorch's `meshgrid(.., indexing="ij")`. For `"xy"`, call [`transpose(0, 1)`](Tensor::transpose) on each
    /// result. An axis may be a tensor of rank 0, which counts as one element.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no axis; [`Error::ShapeMismatch`] for an axis of rank 2 or more;
    /// [`Error::DTypeMismatch`] or [`Error::DeviceMismatch`] if the axes differ in type or device.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let (y, x) = (Tensor::new([1, 2], None)?, Tensor::new([3, 4, 5], None)?);
    /// let grid = Tensor::meshgrid(&[y, x])?;
    /// assert_eq!(grid[0].to_vec2::<i32>()?, [[1, 1, 1], [2, 2, 2]]);
    /// assert_eq!(grid[1].to_vec2::<i32>()?, [[3, 4, 5], [3, 4, 5]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn meshgrid(axes: &[impl AsRef<Tensor>]) -> Result<Vec<Tensor>> {
        const NAME: &str = "meshgrid";
        let axes: Vec<&Tensor> = axes.iter().map(AsRef::as_ref).collect();
        named(NAME, || {
            let Some(first) = axes.first() else { return Err(Error::argument(NAME, "needs at least one axis")) };
            same_device(NAME, &axes)?;
            for axis in &axes {
                expect_dtype(NAME, axis, first.dtype())?;
                if axis.rank() > 1 {
                    return Err(Error::shapes(NAME, first.shape(), axis.shape(), "an axis has one dimension, or none"));
                }
            }
            let shape: Vec<usize> = axes.iter().map(|axis| axis.elem_count()).collect();
            let along = |(dim, axis): (usize, &&Tensor)| {
                let mut own = vec![1; axes.len()];
                own[dim] = shape[dim];
                axis.reshape(own)?.broadcast_to(shape.clone())
            };
            axes.iter().enumerate().map(along).collect()
        })
    }
}
