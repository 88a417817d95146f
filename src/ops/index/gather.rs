//! Taking elements by index: `gather` and `index_select`. Their gradients are the sums of `scatter.rs`.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use anygpu_host::tasks::share;

use super::range::{check_indices, check_on_adapter};
use crate::device::Backend;
use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::inplace::fill_kernel;
use crate::ops::inputs::around;
use crate::ops::names::{Names, names};
use crate::ops::parts::{Part, read_rows};
use crate::ops::traced::Traced;
use crate::ops::{
    CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply, long, named, same_device,
};
use crate::shape::{Dim, Layout, dimension};
use crate::tensor::Tensor;

params! {
    struct Params { count: usize, inner: usize, size: usize, picks: usize, x_offset: usize, index_offset: usize, first: usize }
}
shader!(SHADER: Params = "index/gather");

/// `x: [A, R, B]`, `index: [A, K, B]`, or `[K]` if it is shared → `[A, K, B]`; `dim` is the middle dimension.
#[derive(Debug)]
struct Gather {
    dim: usize,
    shared: bool,
}

impl Op for Gather {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["index_select", "gather"];

    fn name(&self) -> &'static str {
        if self.shared { "index_select" } else { "gather" }
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Gather { dim: self.dim, shared: self.shared })
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        long::by_index(Gather { dim: self.dim, shared: self.shared }, self.shared, inputs)
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let mut shape = inputs[0].shape().to_vec();
        shape[self.dim] = inputs[1].shape()[if self.shared { 0 } else { self.dim }];
        Ok((shape, inputs[0].dtype()))
    }

    fn along(&self, _shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        // Parts of what is behind the dimension would be copied first.
        let index = if self.shared { None } else { Some(dim) };
        match dim.cmp(&self.dim) {
            Ordering::Less => Some(vec![Some(dim), index]),
            Ordering::Equal => Some(vec![None, Some(if self.shared { 0 } else { dim })]),
            Ordering::Greater => None,
        }
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let [_, size, inner] = around(inputs[0].shape(), self.dim);
        let (x, index, out) = (inputs[0].slice::<u32>(), inputs[1].slice::<u32>(), out.slice::<u32>());
        check_indices(self.name(), index, size)?;
        let picks = if self.shared { index.len() } else { inputs[1].shape()[self.dim] };
        // Each item is one row of `inner` elements of the output.
        share(out.chunks_mut(inner).enumerate(), 64, |(row, out)| {
            let x = &x[row / picks * size * inner..][..size * inner];
            match self.shared {
                true => out.copy_from_slice(&x[index[row % picks] as usize * inner..][..inner]),
                false => {
                    let index = &index[row * inner..][..inner];
                    out.iter_mut().zip(index).enumerate().for_each(|(b, (out, &r))| *out = x[r as usize * inner + b]);
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, index) = (&inputs[0], &inputs[1]);
        let [outer, size, inner] = around(x.shape(), self.dim);
        let picks = index.shape()[if self.shared { 0 } else { self.dim }];
        let count = outer * picks * inner;
        let kernel = |x: &Buffer, x_offset, rows: &Range<usize>| {
            let (first, size, index_offset) = (rows.start, rows.len(), index.offset());
            let params = Params { count, inner, size, picks, x_offset, index_offset, first };
            let kernel = Kernel::build(SHADER, "gather", params).constant("SHARED", self.shared);
            kernel.input(x).input(index)
        };
        let check = check_on_adapter(gpu, self.name(), index, size, None)?;
        if outer > 1 || x.buffer().len() <= gpu.largest_binding() {
            return Ok(vec![check, kernel(x.buffer(), x.offset(), &(0..size)).output(out).each(count)]);
        }
        // A part of the table after the other, each for the indices of its rows.
        let layout = Layout { offset: x.offset(), ..Layout::contiguous(&[size, inner]) };
        let table = Part::of(&x.through(&layout));
        let mut kernels = vec![check, fill_kernel(out, 0, count, 0)];
        for range in read_rows(gpu, size, inner) {
            let part = table.narrow(0, range.start, range.len()).bound(gpu);
            let kernel = kernel(&part.buffer, part.layout.offset, &range).constant("PART", true);
            kernels.push(kernel.output(out).each(count));
        }
        Ok(kernels)
    }

    fn saves(&self) -> Saves {
        Saves::Input(1)
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (zeros, index) = (ctx.inputs[0].zeros_like()?, &ctx.inputs[1]);
        let grad = match self.shared {
            true => zeros.index_add(self.dim, index, ctx.grad)?,
            false => zeros.scatter_add(self.dim, index, ctx.grad)?,
        };
        Ok(vec![Some(grad), None])
    }
}

/// Returns the indices as u32, the type that ops take. Negative numbers become larger than any dimension.
pub(in crate::ops) fn indices(op: &'static str, index: &Tensor) -> Result<Tensor> {
    match index.dtype() {
        DType::U32 | DType::I32 | DType::U8 => index.detach().to_dtype(DType::U32),
        DType::I64 => long::cast::indices(op, index),
        other => {
            let expected = "indices of u32, i32, u8 or i64".into();
            Err(Error::DTypeMismatch { op, expected, got: other.to_string() })
        }
    }
}

/// Checks the dimension and the index of an op, and returns both. A `shared` index has one dimension. Others have the
/// rank of `x` and, except along the dimension, no larger sizes.
pub(in crate::ops) fn dim_and_index(
    op: &'static str,
    x: &Tensor,
    dim: impl Dim,
    index: &Tensor,
    shared: bool,
) -> Result<(usize, Tensor)> {
    same_device(op, &[x, index])?;
    let dim = dimension(op, dim, x.shape())?;
    let within = |d: usize| d == dim || index.shape()[d] <= x.shape()[d];
    let detail = match shared {
        true if index.rank() != 1 => "the index must have one dimension".into(),
        false if index.rank() != x.rank() || !(0..x.rank()).all(within) => {
            format!("the index must have the tensor's rank, and no larger sizes except along dimension {dim}")
        }
        _ => return Ok((dim, indices(op, index)?)),
    };
    Err(Error::shapes(op, x.shape(), index.shape(), detail))
}

/// Returns the leading part of `x` that has the sizes of `shape`; dimension `except` is kept whole.
pub(in crate::ops) fn leading(x: &Tensor, shape: &[usize], except: Option<usize>) -> Result<Tensor> {
    let dims = (0..x.rank()).filter(|&d| Some(d) != except && x.shape()[d] != shape[d]);
    dims.clone().try_fold(x.clone(), |x, d| x.narrow(d, 0, shape[d]))
}

impl Tensor {
    /// Takes elements by index along `dim`: `out[i][j][k] = x[i][index[i][j][k]][k]` for `dim` 1. The result has the
    /// shape of the index.
    ///
    /// The index is u32, i32, u8 or i64 and has the rank of this tensor. Except along `dim`, its sizes must not be
    /// larger than this tensor's sizes. The gradient of an element is the sum over all its uses, added in the same
    /// order on every run.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] or [`Error::DeviceMismatch`] if the index does not fit;
    /// [`Error::InvalidArgument`] if there is no such dimension, or if an index is out of range. An adapter reports an
    /// index that is out of range at the next call that waits for it, and the element is 0.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let scores = Tensor::new([[0.1, 0.9], [0.8, 0.2]], None)?;
    /// let labels = Tensor::new([[1u32], [0]], None)?;
    /// assert_eq!(scores.gather(1, &labels)?.to_vec::<f32>()?, [0.9, 0.8]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn gather(&self, dim: impl Dim, index: &Tensor) -> Result<Tensor> {
        let (dim, index) = dim_and_index("gather", self, dim, index, false)?;
        let x = leading(self, index.shape(), Some(dim))?;
        apply(Gather { dim, shared: false }, &[&x, &index])
    }

    /// Takes rows, columns or slices by index: `[.., n, ..]` and an index `[k]` → `[.., k, ..]`.
    ///
    /// The index is u32, i32, u8 or i64. The gradient of a slice is the sum over all its uses, added in the same order
    /// on every run.
    ///
    /// # Errors
    /// Same as [`Tensor::gather`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?;
    /// let y = x.index_select(0, &Tensor::new([1u32, 1, 0], None)?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [3.0, 4.0, 3.0, 4.0, 1.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn index_select(&self, dim: impl Dim, index: &Tensor) -> Result<Tensor> {
        let (dim, index) = dim_and_index("index_select", self, dim, index, true)?;
        apply(Gather { dim, shared: true }, &[self, &index])
    }

    /// Returns the row of this table for each id: `[V, D]` and ids of any shape `[..]` → `[.., D]`.
    ///
    /// # Errors
    /// Same as [`Tensor::gather`]; [`Error::InvalidArgument`] if this is not a matrix.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let table = Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?;
    /// let vectors = table.embedding(&Tensor::new([[0u32, 1, 1]], None)?)?;
    /// assert_eq!(vectors.shape(), [1, 3, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        let &[_, width] = self.shape() else {
            return Err(Error::argument("embedding", format!("the table is [V, D], not {:?}", self.shape())));
        };
        named("embedding", || {
            let rows = self.index_select(0, &ids.reshape(-1)?)?;
            rows.reshape([ids.shape(), &[width]].concat())
        })
    }

    /// Returns 1 at each class and 0 elsewhere: `[..]` of u32, i32, u8 or i64 → `[.., classes]` of u32.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for other types; [`Error::InvalidArgument`] if a number is not one of the classes. An
    /// adapter reports such a number at the next call that waits for it, and all its elements are 0.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([2u32, 0], None)?.one_hot(3)?;
    /// assert_eq!(x.to_vec::<u32>()?, [0, 0, 1, 1, 0, 0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn one_hot(&self, classes: usize) -> Result<Tensor> {
        named("one_hot", || self.one_of(classes))
    }

    fn one_of(&self, classes: usize) -> Result<Tensor> {
        let labels = indices("one_hot", self)?;
        if labels.elem_count() == 0 {
            return Tensor::full([self.shape(), &[classes]].concat(), 0u32, self.device());
        }
        match labels.device().backend()? {
            Backend::Cpu(_) => check_indices("one_hot", &labels.to_vec::<u32>()?, classes)?,
            Backend::Gpu(gpu) => {
                let dense = labels.contiguous()?;
                gpu.run(check_on_adapter(gpu, "one_hot", &GpuIn::new(&dense)?, classes, None)?)?;
            }
        }
        let all = Tensor::iota(classes, self.device())?;
        labels.unsqueeze(-1)?.eq(&all)?.to_dtype(DType::U32)
    }
}
