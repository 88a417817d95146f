//! Joining, splitting, repeating and reversing tensors.

use std::sync::Arc;

use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::error::{Error, Result};
use crate::ops::inputs::MAX_RANK;
use crate::ops::long::moved;
use crate::ops::names::{Names, names};
use crate::ops::shape::copy::{strided_copy, strided_kernel};
use crate::ops::traced::Traced;
use crate::ops::{CpuIn, CpuOut, Elements, GpuIn, Gradient, Gradients, Op, Saves, Strided, apply, named};
use crate::shape::{Dim, Dims, Layout, Shape, dimension, dimensions};
use crate::tensor::Tensor;

/// The op that reverses the order of the elements along some dimensions.
#[derive(Debug)]
struct Flip {
    dims: Vec<usize>,
}

impl Flip {
    /// Returns the layout that reads the input from its end: negative strides as wrapped numbers, which the additions
    /// of the host and of the kernel wrap back.
    fn backwards(&self, layout: &Layout) -> Layout {
        let mut out = layout.clone();
        for &d in &self.dims {
            out.offset += (layout.shape[d] - 1) * layout.strides[d];
            out.strides[d] = layout.strides[d].wrapping_neg();
        }
        out
    }
}

impl Op for Flip {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["flip"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Flip(self.dims.clone()))
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        moved(Flip { dims: self.dims.clone() }, inputs)
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let backwards = self.backwards(inputs[0].layout());
        strided_copy(&inputs[0].through(&backwards), out.0, &Layout::contiguous(inputs[0].shape()));
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        let backwards = self.backwards(inputs[0].layout());
        Ok(vec![strided_kernel(gpu, &inputs[0].through(&backwards), out, &Layout::contiguous(inputs[0].shape()))?])
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![Some(ctx.grad.flip(&self.dims)?)])
    }
}

impl Tensor {
    /// Joins tensors along dimension `dim`: `[.., a, ..], [.., b, ..] → [.., a + b, ..]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no tensor or no such dimension; [`Error::ShapeMismatch`] if other sizes
    /// differ; [`Error::DTypeMismatch`] if there is no common type (see [`DType::promote`](crate::DType::promote));
    /// [`Error::DeviceMismatch`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let (a, b) = (Tensor::new([[1.0], [2.0]], None)?, Tensor::new([[3.0, 4.0], [5.0, 6.0]], None)?);
    /// assert_eq!(Tensor::cat(&[&a, &b], 1)?.to_vec::<f32>()?, [1.0, 3.0, 4.0, 2.0, 5.0, 6.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn cat(tensors: &[impl AsRef<Tensor>], dim: impl Dim) -> Result<Tensor> {
        crate::ops::cat(&tensors.iter().map(AsRef::as_ref).collect::<Vec<_>>(), dim)
    }

    /// Joins tensors of one shape along a new dimension `dim`: n tensors of `[a, b]` at `dim` 0 → `[n, a, b]`.
    ///
    /// # Errors
    /// Same as [`Tensor::cat`]; `dim` may be at most the rank.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let (a, b) = (Tensor::new([1.0, 2.0], None)?, Tensor::new([3.0, 4.0], None)?);
    /// assert_eq!(Tensor::stack(&[&a, &b], 1)?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn stack(tensors: &[impl AsRef<Tensor>], dim: impl Dim) -> Result<Tensor> {
        let tensors: Vec<&Tensor> = tensors.iter().map(AsRef::as_ref).collect();
        if let Some(other) = tensors.iter().find(|t| t.shape() != tensors[0].shape()) {
            return Err(Error::shapes("stack", tensors[0].shape(), other.shape(), "the shapes must be equal"));
        }
        named("stack", || {
            let slices = tensors.iter().map(|t| t.unsqueeze(dim)).collect::<Result<Vec<_>>>()?;
            crate::ops::cat(&slices.iter().collect::<Vec<_>>(), dim)
        })
    }

    /// Splits dimension `dim` into parts of `size` elements.
    ///
    /// The last part may be smaller. The parts are views.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or `size` is 0.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let parts = Tensor::arange(0.0, 5.0, 1.0, None)?.split(2, 0)?;
    /// assert_eq!(parts.iter().map(|p| p.elem_count()).collect::<Vec<_>>(), [2, 2, 1]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn split(&self, size: usize, dim: impl Dim) -> Result<Vec<Tensor>> {
        let dim = dimension("split", dim, self.shape())?;
        if size == 0 {
            return Err(Error::argument("split", "parts of 0 elements"));
        }
        let whole = self.shape()[dim];
        // An empty dimension has one empty part, as in PyTorch.
        (0..whole.div_ceil(size).max(1)).map(|i| self.narrow(dim, i * size, size.min(whole - i * size))).collect()
    }

    /// Splits dimension `dim` into parts of the given sizes. The parts are views.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or the sizes do not add up to it.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let parts = Tensor::arange(0.0, 5.0, 1.0, None)?.split_sizes(&[1, 4], 0)?;
    /// assert_eq!(parts[1].to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn split_sizes(&self, sizes: &[usize], dim: impl Dim) -> Result<Vec<Tensor>> {
        let dim = dimension("split_sizes", dim, self.shape())?;
        let total = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
        if total != Some(self.shape()[dim]) {
            let detail = format!("{sizes:?} do not add up to dimension {dim} of {:?}", self.shape());
            return Err(Error::argument("split_sizes", detail));
        }
        let starts = sizes.iter().scan(0, |next, &size| Some(std::mem::replace(next, *next + size)));
        starts.zip(sizes).map(|(start, &size)| self.narrow(dim, start, size)).collect()
    }

    /// Splits dimension `dim` into at most `count` parts of equal size.
    ///
    /// The last part may be smaller. The parts are views.
    ///
    /// A part has ⌈n / count⌉ elements, so there may be fewer than `count` parts: 5 elements in 4 chunks are 2 + 2 + 1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or `count` is 0.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::zeros([5], None)?.chunk(4, 0)?.len(), 3);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn chunk(&self, count: usize, dim: impl Dim) -> Result<Vec<Tensor>> {
        let dim = dimension("chunk", dim, self.shape())?;
        if count == 0 {
            return Err(Error::argument("chunk", "0 chunks"));
        }
        self.split(self.shape()[dim].div_ceil(count).max(1), dim)
    }

    /// Repeats the whole tensor `times[d]` times along each dimension: `[a, b]` repeated `[2, 3]` times is `[2a, 3b]`.
    ///
    /// Further leading `times` add dimensions, as in PyTorch (and NumPy's `tile`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are fewer `times` than dimensions; [`Error::OutOfMemory`] if the device does
    /// not have enough memory for the copy.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1.0, 2.0], None)?;
    /// assert_eq!(x.repeat([2, 2])?.to_vec::<f32>()?, [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn repeat(&self, times: impl Into<Shape>) -> Result<Tensor> {
        let times = times.into().dims().to_vec();
        let Some(lead) = times.len().checked_sub(self.rank()) else {
            let detail = format!("{times:?} names fewer dimensions than shape {:?}", self.shape());
            return Err(Error::argument("repeat", detail));
        };
        let mut out = self.reshape([&vec![1; lead], self.shape()].concat())?;
        let repeated: Vec<usize> = (0..times.len()).filter(|&d| times[d] != 1).collect();
        // [A, r, B] → [A, 1, r, B] → [A, n, r, B] are views; one copy is made for each three dimensions, so that a
        // kernel can read the view.
        for dims in repeated.chunks(MAX_RANK / 2 - 1) {
            let (mut apart, mut wide, mut whole) = (Vec::new(), Vec::new(), Vec::new());
            for (d, &size) in out.shape().iter().enumerate() {
                let n = if dims.contains(&d) { times[d] } else { 1 };
                apart.extend([1, size]);
                wide.extend([n, size]);
                whole.push(size.saturating_mul(n)); // a size that is too large is refused later
            }
            out = named("repeat", || out.reshape(apart)?.broadcast_to(wide)?.reshape(whole))?;
        }
        Ok(out)
    }

    /// Reverses the order of the elements along some dimensions.
    ///
    /// The shape does not change. The result is always a copy: no stride is negative.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a dimension does not exist or is named twice.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?;
    /// assert_eq!(x.flip(&[1])?.to_vec::<f32>()?, [2.0, 1.0, 4.0, 3.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn flip(&self, dims: impl Dims) -> Result<Tensor> {
        let dims = dimensions("flip", dims, self.shape())?;
        apply(Flip { dims }, &[self])
    }

    /// Moves the elements by `shift` places along dimension `dim`. Elements moved past one end enter at the other.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1.0, 2.0, 3.0, 4.0], None)?;
    /// assert_eq!(x.roll(1, 0)?.to_vec::<f32>()?, [4.0, 1.0, 2.0, 3.0]);
    /// assert_eq!(x.roll(-1, 0)?.to_vec::<f32>()?, [2.0, 3.0, 4.0, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn roll(&self, shift: i64, dim: impl Dim) -> Result<Tensor> {
        let dim = dimension("roll", dim, self.shape())?;
        let size = self.shape()[dim];
        if size == 0 {
            return Ok(self.clone());
        }
        let first = (-i128::from(shift)).rem_euclid(size as i128) as usize; // the element that becomes the first
        let (front, back) = (self.narrow(dim, first, size - first)?, self.narrow(dim, 0, first)?);
        crate::ops::cat(&[&front, &back], dim)
    }
}
