//! Indexing by tensors, NumPy's advanced indexing: `index`, `index_put`, `masked_select`, `nonzero`. The indices of
//! several dimensions become positions in one joined dimension.

use std::sync::Arc;

use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::index::gather::indices;
use crate::ops::index::range::{check_indices, check_on_adapter};
use crate::ops::long::cast::signed_indices;
use crate::ops::names::{Names, names};
use crate::ops::traced::Traced;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, apply, named, same_device};
use crate::shape::broadcast_shapes;
use crate::tensor::Tensor;

params! {
    struct Params { count: usize, outer: usize, size: usize, left_offset: usize, right_offset: usize }
}
shader!(SHADER: Params = "index/advanced");

/// Joins the indices of two dimensions of these sizes. An adapter writes u32::MAX for indices that are out of range.
#[derive(Debug)]
struct Join {
    sizes: [usize; 2],
    /// Whether the left index is the user's; else it was joined before, and its errors are known.
    first: bool,
}

impl Op for Join {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["index"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::JoinIndices(self.sizes[1]))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let [left, right] = [0, 1].map(|i| inputs[i].slice::<u32>());
        check_indices(self.name(), left, self.sizes[0])?;
        check_indices(self.name(), right, self.sizes[1])?;
        let pairs = left.iter().zip(right);
        out.0.iter_mut().zip(pairs).for_each(|(out, (&a, &b))| *out = a * self.sizes[1] as u32 + b);
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let [left, right] = [0, 1].map(|i| &inputs[i]);
        let ([outer, size], count) = (self.sizes, left.elem_count());
        let params = Params { count, outer, size, left_offset: left.offset(), right_offset: right.offset() };
        let ignored = (!self.first).then_some(u32::MAX);
        let join = Kernel::build(SHADER, "join", params).input(left).input(right).output(out).each(count);
        let checks = [
            check_on_adapter(gpu, self.name(), left, outer, ignored)?,
            check_on_adapter(gpu, self.name(), right, size, None)?,
        ];
        Ok(checks.into_iter().chain([join]).collect())
    }

    fn backward(&self, _ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![None, None])
    }
}

/// Converts i32 indices to u32. Negative indices count from the end of a dimension of this size. An index that is out
/// of range keeps its bits. If it is negative, they are larger than any dimension.
#[derive(Debug)]
struct FromEnd {
    size: usize,
}

impl Op for FromEnd {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["index"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::IndicesFromEnd(self.size))
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((inputs[0].shape().to_vec(), DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let size = i32::try_from(self.size).unwrap_or(i32::MAX);
        let from_end = |i: i32| if (-size..0).contains(&i) { i + size } else { i };
        let pairs = out.0.iter_mut().zip(inputs[0].slice::<i32>());
        pairs.for_each(|(out, &i)| *out = from_end(i).cast_unsigned());
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (index, size) = (&inputs[0], self.size);
        let (count, left_offset) = (index.elem_count(), index.offset());
        let params = Params { count, outer: 0, size, left_offset, right_offset: 0 };
        Ok(vec![Kernel::build(SHADER, "from_end", params).input(index).output(out).each(count)])
    }

    fn backward(&self, _ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![None])
    }
}

/// Returns the indices of a dimension as u32. Negative ones count from its end, as in PyTorch, which allows this for
/// indexing only.
fn counted(op: &'static str, index: &Tensor, size: usize) -> Result<Tensor> {
    if size > i32::MAX as usize {
        return indices(op, index);
    }
    match index.dtype() {
        DType::I32 => apply(FromEnd { size }, &[&index.detach()]),
        DType::I64 => apply(FromEnd { size }, &[&signed_indices(op, index)?]),
        _ => indices(op, index),
    }
}

/// The positions of the elements that are not 0. The input is the number of such elements up to each element: `[n]` →
/// `[count]`.
#[derive(Debug)]
struct Positions {
    count: usize,
}

impl Op for Positions {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["nonzero"];

    fn output(&self, _inputs: &[&Tensor]) -> Result<Output> {
        Ok((vec![self.count], DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let mut before = 0;
        for (i, &count) in inputs[0].slice::<u32>().iter().enumerate() {
            if count != before {
                out.0[before as usize] = i as u32;
            }
            before = count;
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (counts, count) = (&inputs[0], self.count);
        let (size, left_offset) = (counts.elem_count(), counts.offset());
        let params = Params { count, outer: 0, size, left_offset, right_offset: 0 };
        Ok(vec![Kernel::build(SHADER, "truth", params).input(counts).output(out).each(count)])
    }

    fn backward(&self, _ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![None])
    }
}

/// Returns the positions, in row-major order, of the elements that are not 0. Reads their number back.
pub(in crate::ops) fn positions(mask: &Tensor) -> Result<Tensor> {
    let count = mask.elem_count();
    if count == 0 {
        return Tensor::full(0, 0u32, mask.device());
    }
    let truths = mask.detach().to_dtype(DType::Bool)?.to_dtype(DType::U32)?.reshape(count)?;
    let counts = truths.cumsum(0)?;
    let count = counts.narrow(0, count - 1, 1)?.item::<u32>()? as usize;
    apply(Positions { count }, &[&counts])
}

/// Returns the indices of positions, a tensor for each dimension of a shape.
fn coordinates(positions: &Tensor, shape: &[usize]) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    let mut rest = positions.clone();
    for &size in shape.iter().rev() {
        all.push(rest.rem(size.max(1))?);
        rest = rest.div_trunc(size.max(1))?;
    }
    all.reverse();
    Ok(all)
}

/// What indices refer to: slices of a tensor whose leading dimensions are one.
struct Picks {
    /// `[leading, ..]`: the shape of the tensor with its leading dimensions as one.
    slices: Vec<usize>,
    /// The slice of each element of the index.
    index: Tensor,
    /// The shape of the result.
    shape: Vec<usize>,
}

/// Returns what `list` refers to within a shape.
fn picks(op: &'static str, x: &Tensor, list: &[&Tensor]) -> Result<Picks> {
    let shape = x.shape();
    same_device(op, &[&[x], list].concat())?;
    let dims = |index: &Tensor| if index.dtype() == DType::Bool { index.rank() } else { 1 };
    let covered: usize = list.iter().map(|index| dims(index)).sum();
    if list.is_empty() || covered > x.rank() || list.iter().any(|index| dims(index) == 0) {
        let detail = format!("{} indices of {covered} dimensions do not fit {shape:?}", list.len());
        return Err(Error::argument(op, detail));
    }
    let leading = shape[..covered].iter().product();
    let (mut parts, mut at) = (Vec::new(), 0);
    for &index in list {
        if index.dtype() != DType::Bool {
            parts.push((counted(op, index, shape[at])?, shape[at]));
            at += 1;
            continue;
        }
        let part = &shape[at..at + index.rank()];
        if index.shape() != part {
            return Err(Error::shapes(op, index.shape(), part, "a mask has the sizes of the dimensions it is for"));
        }
        let found = positions(index)?;
        if list.len() == 1 {
            parts.push((found, leading));
        } else {
            parts.extend(coordinates(&found, part)?.into_iter().zip(part.iter().copied()));
        }
        at += index.rank();
    }
    let picked = parts.iter().try_fold(Vec::new(), |all, (part, _)| broadcast_shapes(op, &all, part.shape()))?;
    Ok(Picks {
        slices: [&[leading], &shape[covered..]].concat(),
        index: joined(&parts, &picked)?,
        shape: [&picked, &shape[covered..]].concat(),
    })
}

/// Joins the indices of several dimensions with their sizes, broadcast to a shape, to `[n]`.
fn joined(parts: &[(Tensor, usize)], shape: &[usize]) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let mut all: Option<(Tensor, usize)> = None;
    for (i, (part, size)) in parts.iter().enumerate() {
        let part = part.broadcast_to(shape)?.reshape(count)?;
        all = Some(match all {
            None => (part, *size),
            Some((before, outer)) => {
                (apply(Join { sizes: [outer, *size], first: i == 1 }, &[&before, &part])?, outer * size)
            }
        });
    }
    all.map(|(index, _)| index).ok_or_else(|| Error::internal("an index of no dimensions"))
}

impl Tensor {
    /// Takes elements or slices by tensors of indices, `x[i, j]` in PyTorch: `out[k..] = x[i[k..], j[k..], ..]`.
    ///
    /// There is one index tensor for each leading dimension. The index tensors are broadcast against each other.
    /// Dimensions without an index follow: `[A, B, ..]` and indices of shape `[K..]` → `[K.., ..]`.
    ///
    /// Indices are u32, i32, u8 or i64. Negative indices count from the end of the dimension. A tensor of booleans is a
    /// mask: it has the sizes of the dimensions that it covers, and stands for the indices of its true elements. The
    /// number of these is read back, so a call with a mask waits for the device.
    ///
    /// The gradient of an element is the sum over all its uses, added in the same order on every run. For numbers and
    /// ranges, which make views, see [`Tensor::i`].
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] or [`Error::DeviceMismatch`] if an index does not fit;
    /// [`Error::InvalidArgument`] if there are no indices or too many, or if an index is out of range. An adapter
    /// reports an index that is out of range at the next call that waits for it, and the element is 0.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], None)?;
    /// let (rows, columns) = (Tensor::new([0u32, 1, 1], None)?, Tensor::new([2u32, 0, 2], None)?);
    /// assert_eq!(x.index(&[&rows, &columns])?.to_vec::<f32>()?, [3.0, 4.0, 6.0]);
    /// assert_eq!(x.index(&[&rows])?.shape(), [3, 3]);
    /// let large = x.gt(3.5)?;
    /// assert_eq!(x.index(&[&large])?.to_vec::<f32>()?, [4.0, 5.0, 6.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn index(&self, indices: &[&Tensor]) -> Result<Tensor> {
        named("index", || {
            let picks = picks("index", self, indices)?;
            self.reshape(picks.slices)?.index_select(0, &picks.index)?.reshape(picks.shape)
        })
    }

    /// Writes elements or slices at tensors of indices, `x[i, j] = values` in PyTorch.
    ///
    /// With `accumulate`, adds the values instead. Returns a new tensor. The values are broadcast to the shape of
    /// [`Tensor::index`], which describes the indices.
    ///
    /// If an element has several values, the last one is kept, on every device, and only that one has a gradient. With
    /// `accumulate`, they are added in their order.
    ///
    /// # Errors
    /// Same as [`Tensor::index`], except that an adapter drops the value of an index that is out of range;
    /// [`Error::ShapeMismatch`] or [`Error::DTypeMismatch`] if the values do not fit.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::zeros([2, 3], None)?;
    /// let (rows, columns) = (Tensor::new([0u32, 1, 1], None)?, Tensor::new([2u32, 0, 0], None)?);
    /// let values = Tensor::new([1.0, 2.0, 3.0], None)?;
    /// assert_eq!(x.index_put(&[&rows, &columns], &values, false)?.to_vec::<f32>()?, [0.0, 0.0, 1.0, 3.0, 0.0, 0.0]);
    /// assert_eq!(x.index_put(&[&rows, &columns], &values, true)?.to_vec::<f32>()?, [0.0, 0.0, 1.0, 5.0, 0.0, 0.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn index_put(&self, indices: &[&Tensor], values: &Tensor, accumulate: bool) -> Result<Tensor> {
        named("index_put", || {
            same_device("index_put", &[self, values])?;
            let picks = picks("index_put", self, indices)?;
            let mut sources = picks.slices.clone();
            sources[0] = picks.index.elem_count();
            let values = values.broadcast_to(picks.shape)?.reshape(sources)?;
            let slices = self.reshape(picks.slices)?;
            let put = match accumulate {
                true => slices.index_add(0, &picks.index, &values)?,
                false => slices.index_copy(0, &picks.index, &values)?,
            };
            put.reshape(self.shape())
        })
    }

    /// Returns the elements where a mask is true (or not 0), in row-major order: `[n]`.
    ///
    /// The tensor and the mask are broadcast by NumPy's rule. The number of elements is read back, so the call waits
    /// for the device.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] or [`Error::DeviceMismatch`] if the mask does not fit; errors of earlier work on the
    /// device.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, -2.0], [-3.0, 4.0]], None)?;
    /// assert_eq!(x.masked_select(&x.gt(0)?)?.to_vec::<f32>()?, [1.0, 4.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        named("masked_select", || {
            same_device("masked_select", &[self, mask])?;
            let shape = broadcast_shapes("masked_select", self.shape(), mask.shape())?;
            let found = positions(&mask.broadcast_to(&shape)?)?;
            let all = self.broadcast_to(&shape)?;
            all.reshape(all.elem_count())?.index_select(0, &found)
        })
    }

    /// Returns the indices of the elements that are not 0, in row-major order: `[n, rank]`.
    ///
    /// The indices are u32 (i64 in PyTorch). NaN counts as not 0. The number of elements is read back, so the call
    /// waits for the device.
    ///
    /// # Errors
    /// Errors of earlier work on the device.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[0.0, 1.5], [2.5, 0.0]], None)?;
    /// assert_eq!(x.nonzero()?.to_vec2::<u32>()?, [[0, 1], [1, 0]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn nonzero(&self) -> Result<Tensor> {
        named("nonzero", || {
            let found = positions(self)?;
            match self.rank() {
                0 => Tensor::full([found.elem_count(), 0], 0u32, self.device()),
                1 => found.unsqueeze(1),
                _ => Tensor::stack(&coordinates(&found, self.shape())?.iter().collect::<Vec<_>>(), 1),
            }
        })
    }
}
