//! Views: other shapes and strides of the same elements. Nothing is computed. Most gradients are views too; the
//! gradient of a part is a [`Place`], which writes it into a tensor of zeros.

use std::sync::Arc;

use anygpu_host::tasks::share;

use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::unary::{CHUNK, FEW_CHUNKS};
use crate::ops::inplace::copy_;
use crate::ops::names::{Names, names};
use crate::ops::parts::{Part, copies, fills};
use crate::ops::shape::copy::strided_copy;
use crate::ops::traced::Traced;
use crate::ops::{
    CpuIn, CpuOut, Differentiable, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, Strided, apply,
};
use crate::shape::{Dim, Dims, Layout, NewShape, broadcast_shapes, checked_elem_count, dimension, dimensions};
use crate::tensor::Tensor;

/// A change of a tensor's layout.
#[derive(Clone, Debug)]
pub(in crate::ops) enum View {
    Reshape(Vec<usize>),
    Permute(Vec<usize>),
    /// The range of each dimension: its first element, its length and its step.
    Slice(Vec<SliceRange>),
    /// Two dimensions become one, which is the last: its element `i` is element `(i, i + offset)` of the two.
    Diagonal {
        dims: [usize; 2],
        offset: i64,
    },
    Broadcast(Vec<usize>),
}

/// A range of a dimension: `len` elements from `start` on, with distance `step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceRange {
    pub start: usize,
    pub len: usize,
    pub step: usize,
}

impl SliceRange {
    /// Returns the range that holds all of a dimension.
    pub fn whole(len: usize) -> SliceRange {
        SliceRange { start: 0, len, step: 1 }
    }
}

impl View {
    /// Returns the layout after the view, or `None` if the strides do not allow it.
    fn layout(&self, from: &Layout) -> Option<Layout> {
        match self {
            View::Reshape(shape) => from.reshape(shape),
            View::Permute(dims) => Some(from.permute(dims)),
            View::Slice(parts) => Some(from.slice(parts.iter().map(|p| (p.start, p.len, p.step)))),
            View::Diagonal { dims, offset } => Some(from.diagonal(*dims, *offset)),
            View::Broadcast(shape) => Some(from.broadcast_to(shape)),
        }
    }
}

impl Differentiable for View {
    fn op_name(&self) -> &'static str {
        match self {
            View::Reshape(_) => "reshape",
            View::Permute(_) => "permute",
            View::Slice(_) => "slice",
            View::Diagonal { .. } => "diagonal",
            View::Broadcast(_) => "broadcast_to",
        }
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(match self {
            View::Reshape(shape) => Traced::Reshape(shape.clone()),
            View::Permute(dims) => Traced::Permute(dims.clone()),
            View::Slice(parts) => Traced::Slice(parts.clone()),
            View::Diagonal { .. } => return None,
            View::Broadcast(shape) => Traced::Broadcast(shape.clone()),
        })
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn gradients(&self, ctx: &Gradient) -> Result<Gradients> {
        let shape = ctx.inputs[0].shape();
        let grad = match self {
            View::Reshape(_) => ctx.grad.reshape(shape)?,
            View::Permute(dims) => {
                let mut inverse = vec![0; dims.len()];
                dims.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
                ctx.grad.permute(&inverse)?
            }
            View::Slice(_) | View::Diagonal { .. } => ctx.grad.place(shape, self.clone())?,
            View::Broadcast(_) => ctx.grad.clone(), // the backward pass sums over the repeated elements
        };
        Ok(vec![Some(grad)])
    }

    /// The parts that a tensor was split into are added one after the other, each where it was.
    fn add_gradient(&self, sum: &Tensor, grad: &Tensor) -> Result<bool> {
        let Some(layout) = self.layout(sum.layout()).filter(|_| matches!(self, View::Slice(_))) else {
            return Ok(false);
        };
        if !sum.layout().is_contiguous() || [sum, grad].iter().any(|tensor| tensor.dtype() != DType::F32) {
            return Ok(false);
        }
        let part = sum.with_layout(layout);
        copy_(&part, &part.add(grad)?)?;
        Ok(true)
    }
}

/// The inverse of a view: writes the elements to the places where the view read them, in a tensor of `shape` that is 0
/// elsewhere.
///
/// Not for views that read an element more than once.
#[derive(Debug)]
struct Place {
    shape: Vec<usize>,
    view: View,
}

impl Place {
    fn target(&self) -> Result<Layout> {
        let target = self.view.layout(&Layout::contiguous(&self.shape));
        target.ok_or_else(|| Error::argument("place", "the strides do not allow this view"))
    }
}

impl Op for Place {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["place"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((self.shape.clone(), inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        share(out.0.chunks_mut(CHUNK), FEW_CHUNKS, |part| part.fill(0));
        strided_copy(&inputs[0], out.0, &self.target()?);
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        let mut kernels = fills(gpu, out, self.shape.iter().product(), 0);
        if inputs[0].elem_count() > 0 {
            kernels.extend(copies(gpu, &Part::of(&inputs[0]), out, &self.target()?)?);
        }
        Ok(kernels)
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![Some(ctx.grad.view(self.view.clone())?)])
    }
}

impl Tensor {
    /// Returns the same elements with another layout, as a recorded op.
    pub(in crate::ops) fn view(&self, view: View) -> Result<Tensor> {
        let layout = view.layout(self.layout());
        let layout = layout.ok_or_else(|| Error::argument(view.op_name(), "the strides do not allow this view"))?;
        Ok(crate::autograd::record(view, &[self], self.with_layout(layout)))
    }

    /// Returns a tensor of `shape` in which `view` shows this tensor, and which is 0 elsewhere.
    pub(in crate::ops) fn place(&self, shape: &[usize], view: View) -> Result<Tensor> {
        apply(Place { shape: shape.to_vec(), view }, &[self])
    }

    /// Returns a part of every dimension. The caller has checked the ranges.
    pub(crate) fn parts(&self, parts: Vec<SliceRange>) -> Result<Tensor> {
        let whole = parts.iter().zip(self.shape()).all(|(part, &size)| *part == SliceRange::whole(size));
        if whole { Ok(self.clone()) } else { self.view(View::Slice(parts)) }
    }

    /// Returns a part of one dimension. The caller has checked the range.
    pub(in crate::ops) fn part(&self, dim: usize, part: SliceRange) -> Result<Tensor> {
        let mut parts: Vec<SliceRange> = self.shape().iter().map(|&size| SliceRange::whole(size)).collect();
        parts[dim] = part;
        self.parts(parts)
    }

    /// Returns the same elements in row-major order with another shape: a view if the strides allow it, else a copy.
    ///
    /// One size may be −1; it is then computed from the number of elements. [`NewShape`] lists what the shape may be
    /// given as: an array `[-1, 3]`, a tuple `(-1, n)`, a slice, a vector, a number.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the shapes hold different numbers of elements. [`Error::InvalidArgument`] if there
    /// are two −1 or another negative size, or if no size fits in the place of −1, or every size fits (0 elements and
    /// another size of 0).
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::arange(0.0, 6.0, 1.0, None)?.reshape([2, 3])?;
    /// assert_eq!(x.t()?.reshape([6])?.to_vec::<f32>()?, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    /// assert_eq!(x.reshape([-1, 1])?.shape(), [6, 1]);
    /// assert!(x.reshape([4]).is_err());
    /// assert!(x.reshape([-1, 4]).is_err());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn reshape(&self, shape: impl Into<NewShape>) -> Result<Tensor> {
        let shape = shape.into().inferred("reshape", self.shape())?;
        if checked_elem_count("reshape", &shape)? != self.elem_count() {
            let detail = format!("{} elements do not fill the new shape", self.elem_count());
            return Err(Error::shapes("reshape", self.shape(), &shape, detail));
        }
        if self.layout().reshape(&shape).is_some() {
            return self.view(View::Reshape(shape));
        }
        self.contiguous()?.view(View::Reshape(shape))
    }

    /// Joins all dimensions from `dim` on into one, like PyTorch's `flatten(start_dim)`.
    ///
    /// With `dim` 1, `[N, C, H, W]` becomes `[N, C·H·W]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::zeros([2, 3, 4], None)?.flatten(1)?.shape(), [2, 12]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn flatten(&self, dim: impl Dim) -> Result<Tensor> {
        let dim = dimension("flatten", dim, self.shape())?;
        let mut shape = self.shape()[..dim].to_vec();
        shape.push(self.shape()[dim..].iter().product());
        self.reshape(shape)
    }

    /// Puts the dimensions in another order: output dimension `i` is input dimension `dims[i]`. The result is a view.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `dims` names each dimension once.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::zeros([2, 3, 4], None)?.permute(&[2, 0, 1])?.shape(), [4, 2, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn permute(&self, dims: impl Dims) -> Result<Tensor> {
        let dims = dimensions("permute", dims, self.shape())?;
        if dims.len() != self.rank() {
            let detail = format!("{dims:?} does not name each dimension of shape {:?} once", self.shape());
            return Err(Error::argument("permute", detail));
        }
        self.view(View::Permute(dims))
    }

    /// Exchanges two dimensions. The result is a view.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], None)?;
    /// assert_eq!(x.transpose(0, 1)?.to_vec2::<f32>()?, [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn transpose(&self, a: impl Dim, b: impl Dim) -> Result<Tensor> {
        let a = dimension("transpose", a, self.shape())?;
        let b = dimension("transpose", b, self.shape())?;
        let mut dims: Vec<usize> = (0..self.rank()).collect();
        dims.swap(a, b);
        self.permute(&dims)
    }

    /// Exchanges the last two dimensions, like PyTorch's `mT`: `[.., m, n]` → `[.., n, m]`. The result is a view.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are fewer than two dimensions.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::zeros([5, 2, 3], None)?.t()?.shape(), [5, 3, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn t(&self) -> Result<Tensor> {
        match self.rank() {
            0 | 1 => Err(Error::argument("t", format!("shape {:?} has fewer than two dimensions", self.shape()))),
            rank => self.transpose(rank - 2, rank - 1),
        }
    }

    /// Returns the part `start .. start + len` of one dimension. The result is a view.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range is not within the dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::arange(0.0, 6.0, 1.0, None)?.reshape([2, 3])?;
    /// assert_eq!(x.narrow(1, 1, 2)?.to_vec::<f32>()?, [1.0, 2.0, 4.0, 5.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn narrow(&self, dim: impl Dim, start: usize, len: usize) -> Result<Tensor> {
        let dim = dimension("narrow", dim, self.shape())?;
        if start.checked_add(len).is_none_or(|end| end > self.shape()[dim]) {
            let detail = format!("{start}..{start}+{len} is not within dimension {dim} of {:?}", self.shape());
            return Err(Error::argument("narrow", detail));
        }
        self.part(dim, SliceRange { start, len, step: 1 })
    }

    /// Repeats dimensions of size 1 and adds leading dimensions, without a copy, by NumPy's rule. A size of −1 is the
    /// tensor's own size in that dimension.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if a dimension is neither 1 nor the requested size; [`Error::InvalidArgument`] for a −1
    /// in a new dimension, and for other negative sizes.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::zeros([1, 3], None)?;
    /// assert_eq!(x.broadcast_to([5, 2, 3])?.shape(), [5, 2, 3]);
    /// assert_eq!(x.broadcast_to([4, -1])?.shape(), [4, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn broadcast_to(&self, shape: impl Into<NewShape>) -> Result<Tensor> {
        let shape = shape.into().expanded("broadcast_to", self.shape())?;
        checked_elem_count("broadcast_to", &shape)?;
        if broadcast_shapes("broadcast_to", self.shape(), &shape)? != shape {
            return Err(Error::shapes("broadcast_to", self.shape(), &shape, "the target must not be smaller"));
        }
        self.view(View::Broadcast(shape))
    }

    /// Removes a dimension of size 1.
    ///
    /// The result is a view. For a dimension of another size, this returns an error, while PyTorch returns the tensor
    /// unchanged.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the dimension does not exist or is not of size 1.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::zeros([2, 1, 3], None)?.squeeze(1)?.shape(), [2, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn squeeze(&self, dim: impl Dim) -> Result<Tensor> {
        let dim = dimension("squeeze", dim, self.shape())?;
        if self.shape()[dim] != 1 {
            return Err(Error::argument("squeeze", format!("dimension {dim} of {:?} is not 1", self.shape())));
        }
        let mut shape = self.shape().to_vec();
        shape.remove(dim);
        self.reshape(shape)
    }

    /// Inserts a dimension of size 1 before `dim`, or at the end if `dim` is the rank or −1. The result is a view.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `dim` is larger than the rank.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::zeros([3], None)?.unsqueeze(0)?.shape(), [1, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn unsqueeze(&self, dim: impl Dim) -> Result<Tensor> {
        let Some(dim) = dim.resolve(self.rank() + 1) else {
            let detail = format!("dimension {dim} is out of range for a new dimension of shape {:?}", self.shape());
            return Err(Error::argument("unsqueeze", detail));
        };
        let mut shape = self.shape().to_vec();
        shape.insert(dim, 1);
        self.reshape(shape)
    }
}
