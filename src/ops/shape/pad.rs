//! Padding: adds elements around a tensor, either one value or elements of the tensor.

use std::sync::Arc;

use anygpu_host::sums::{Sum, added};
use anygpu_host::tasks::share;

use crate::device::cpu::collected;
use crate::device::gpu::{Buffer, Gpu, Kernel, Slots, params, shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::cast::number_word;
use crate::ops::inplace::copy_;
use crate::ops::inputs::{MAX_RANK, around, loops_within};
use crate::ops::long::{moved, scalar, untracked};
use crate::ops::names::{Names, names};
use crate::ops::traced::Traced;
use crate::ops::{
    Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, Strided, apply,
};
use crate::tensor::Tensor;

params! {
    struct Params {
        count: usize,
        rank: usize,
        offset: usize,
        value: u32,
        dims: Slots,
    }
}
params! {
    struct GradParams { count: usize, offset: usize, padded: usize, before: usize, size: usize, inner: usize }
}
shader!(SHADER: Params = "shape/pad");
shader!(GRAD_SHADER: GradParams = "shape/pad_grad");

/// The elements that [`Tensor::pad`] puts around a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Padding {
    /// One value, converted to the tensor's type.
    Constant(f64),
    /// The elements next to the edge, mirrored, without the edge itself: `3 2 | 1 2 3 | 2 1`. A margin must be less
    /// than the size.
    Reflect,
    /// The element at the edge: `1 1 | 1 2 3 | 3 3`.
    Replicate,
    /// The elements from the other end: `2 3 | 1 2 3 | 1 2`. A margin may be at most the size.
    Circular,
}

impl Padding {
    /// Returns the shader's `OP`.
    fn code(self) -> u8 {
        match self {
            Padding::Constant(_) => 0,
            Padding::Reflect => 1,
            Padding::Replicate => 2,
            Padding::Circular => 3,
        }
    }

    /// Returns which element of `size` is at place `at` of a padded dimension, or `None` if it is the constant value.
    fn repeated(self, at: usize, before: usize, size: usize) -> Option<usize> {
        let inside = at.checked_sub(before);
        if let Some(inside) = inside.filter(|&inside| inside < size) {
            return Some(inside);
        }
        match self {
            Padding::Constant(_) => None,
            Padding::Reflect => Some(inside.map_or(before.abs_diff(at), |i| 2 * (size - 1) - i)),
            Padding::Replicate => Some(inside.map_or(0, |_| size - 1)),
            Padding::Circular => Some(inside.map_or_else(|| at + size - before, |i| i - size)),
        }
    }

    /// Checks that the dimension has enough elements for the margins.
    fn check(self, size: usize, (before, after): (usize, usize)) -> Result<()> {
        let most = match self {
            Padding::Reflect => size.saturating_sub(1),
            Padding::Circular => size,
            Padding::Replicate if size == 0 => 0,
            _ => return Ok(()),
        };
        if before.max(after) <= most {
            return Ok(());
        }
        let detail = format!("{self:?} by ({before}, {after}) of a dimension of {size}: at most {most} on each side");
        Err(Error::argument("pad", detail))
    }
}

/// x → x with `(before, after)` more elements along each dimension.
#[derive(Debug)]
struct Pad {
    padding: Padding,
    /// The bits of the padding value.
    value: u32,
    margins: Vec<(usize, usize)>,
}

impl Pad {
    fn shape(&self, x: &[usize]) -> Result<Vec<usize>> {
        let whole = |(&size, &(before, after)): (&usize, &(usize, usize))| size.checked_add(before)?.checked_add(after);
        let shape: Option<Vec<usize>> = x.iter().zip(&self.margins).map(whole).collect();
        shape.ok_or_else(|| Error::argument("pad", format!("{:?} around {x:?} is too large", self.margins)))
    }
}

impl Op for Pad {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["pad"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Pad(self.padding, self.margins.clone()))
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let Padding::Constant(value) = self.padding else {
            let margins = [&self.margins[..], &[(0, 0)]].concat();
            return moved(Pad { padding: self.padding, value: 0, margins }, &[x]);
        };
        untracked(self.name(), &[x])?;
        let bits = if x.dtype() == DType::F64 { value.to_bits() } else { (value as i64).cast_unsigned() };
        let out = scalar(bits, x.dtype(), x.device())?.broadcast_to(self.shape(x.shape())?)?.copy()?;
        let mut margins = self.margins.iter().zip(x.shape()).enumerate();
        let place = margins.try_fold(out.clone(), |place, (d, (&(before, _), &size))| place.narrow(d, before, size))?;
        copy_(&place, &x.detach())?;
        Ok(out)
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((self.shape(inputs[0].shape())?, inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let (x, layout) = (&inputs[0], inputs[0].layout());
        let (shape, value, words) = (self.shape(x.shape())?, self.value, x.all::<u32>());
        // For each dimension: the offset that each place of the padded dimension reads.
        let reads = |d: usize| {
            let (size, stride) = (layout.shape[d], layout.strides[d]);
            let read = move |at| self.padding.repeated(at, self.margins[d].0, size).map(|at| at * stride);
            collected((0..shape[d]).map(read))
        };
        let mut reads: Vec<Vec<Option<usize>>> = (0..shape.len()).map(reads).collect::<Result<_>>()?;
        let Some(last) = reads.pop() else {
            out.0.copy_from_slice(&words[layout.offset..=layout.offset]);
            return Ok(());
        };
        share(out.0.chunks_mut(last.len()).enumerate(), 16, |(row, line)| {
            let (mut rest, mut start) = (row, Some(layout.offset));
            for reads in reads.iter().rev() {
                start = start.zip(reads[rest % reads.len()]).map(|(start, at)| start + at);
                rest /= reads.len();
            }
            match start {
                Some(start) => {
                    line.iter_mut().zip(&last).for_each(|(v, at)| *v = at.map_or(value, |at| words[start + at]));
                }
                None => line.fill(value),
            }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let shape = self.shape(x.shape())?;
        if shape.len() > MAX_RANK {
            return Err(Error::argument("pad", format!("{shape:?} has more than {MAX_RANK} dimensions")));
        }
        let dim = |d: usize| [x.layout().strides[d], self.margins[d].0, x.shape()[d], shape[d]];
        let params = Params {
            count: shape.iter().product(),
            rank: shape.len(),
            offset: x.offset(),
            value: self.value,
            dims: Slots::new(&(0..shape.len()).map(dim).collect::<Vec<_>>()),
        };
        let kernel = Kernel::build(SHADER, "pad", params).constant("OP", self.padding.code());
        Ok(vec![kernel.input(x).output(out).each(params.count)])
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let mut grad = ctx.grad.clone();
        for (dim, &(before, after)) in self.margins.iter().enumerate() {
            let size = ctx.inputs[0].shape()[dim];
            grad = match self.padding {
                _ if (before, after) == (0, 0) => grad,
                Padding::Constant(_) => grad.narrow(dim, before, size)?,
                padding => apply(Fold { padding, dim, before, size }, &[&grad])?,
            };
        }
        Ok(vec![Some(grad)])
    }
}

/// The gradient of a tensor padded along one dimension, `[outer, padded, inner]` → `[outer, size, inner]`.
#[derive(Debug)]
struct Fold {
    padding: Padding,
    dim: usize,
    before: usize,
    size: usize,
}

impl Fold {
    /// Adds every row of the padded gradient to the row that it was copied from.
    fn fold(&self, g: &[f32], inner: usize, dx: &mut [impl Sum]) {
        for (at, g) in g.chunks(inner).enumerate() {
            if let Some(to) = self.padding.repeated(at, self.before, self.size) {
                dx[to * inner..][..inner].iter_mut().zip(g).for_each(|(dx, &g)| dx.take(g));
            }
        }
    }
}

impl Op for Fold {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = names!["pad_grad"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let mut shape = inputs[0].shape().to_vec();
        shape[self.dim] = self.size;
        Ok((shape, DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let [_, padded, inner] = around(inputs[0].shape(), self.dim);
        let (g, out) = (inputs[0].slice::<f32>(), out.slice::<f32>());
        let all = out.chunks_mut(self.size * inner).zip(g.chunks(padded * inner));
        let terms = padded - self.size; // all of them may be copies of one edge
        share(all, 4, |(dx, g)| added(dx, terms, |dx| self.fold(g, inner, dx), |dx| self.fold(g, inner, dx)));
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (g, &Fold { padding, before, size, .. }) = (&inputs[0], self);
        let [outer, padded, inner] = around(g.shape(), self.dim);
        if padding == Padding::Replicate {
            loops_within(self.name(), padded - size, || "the gradient of a repeated edge".into())?;
        }
        let params = GradParams { count: outer * size * inner, offset: g.offset(), padded, before, size, inner };
        let kernel = Kernel::build(GRAD_SHADER, "pad_grad", params).constant("OP", padding.code());
        Ok(vec![kernel.input(g).output(out).each(params.count)])
    }
}

impl Tensor {
    /// Adds elements around the tensor.
    ///
    /// `margins` has a pair `(before, after)` for each of the *last* dimensions, in the dimensions' order: two pairs
    /// pad the height and then the width of `[N, C, H, W]`. (PyTorch's `F.pad` takes one flat list that starts at the
    /// last dimension.) The tensor may have any type and any rank.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are more pairs than dimensions, or if a dimension has too few elements for a
    /// margin (see [`Padding`]). On adapters also for more than eight dimensions, and in the gradient of an edge that
    /// is replicated more than 60 000 times.
    ///
    /// ```
    /// # use anygpu::{Padding, Tensor};
    /// let x = Tensor::new([[1.0, 2.0, 3.0]], None)?;
    /// let y = x.pad(&[(0, 1), (1, 0)], Padding::Constant(9.0))?;
    /// assert_eq!(y.to_vec::<f32>()?, [9.0, 1.0, 2.0, 3.0, 9.0, 9.0, 9.0, 9.0]);
    /// assert_eq!(x.pad(&[(2, 1)], Padding::Reflect)?.to_vec::<f32>()?, [3.0, 2.0, 1.0, 2.0, 3.0, 2.0]);
    /// assert_eq!(x.pad(&[(1, 2)], Padding::Replicate)?.to_vec::<f32>()?, [1.0, 1.0, 2.0, 3.0, 3.0, 3.0]);
    /// assert!(x.pad(&[(3, 0)], Padding::Reflect).is_err()); // two elements next to the edge, not three
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn pad(&self, margins: &[(usize, usize)], padding: Padding) -> Result<Tensor> {
        let Some(lead) = self.rank().checked_sub(margins.len()) else {
            let detail = format!("{} pairs are more than the dimensions of {:?}", margins.len(), self.shape());
            return Err(Error::argument("pad", detail));
        };
        let mut all = vec![(0, 0); lead];
        all.extend(margins);
        self.shape().iter().zip(&all).try_for_each(|(&size, &margin)| padding.check(size, margin))?;
        if all.iter().all(|&margin| margin == (0, 0)) {
            return Ok(self.clone());
        }
        let value = if let Padding::Constant(value) = padding { number_word(value, self.dtype()) } else { 0 };
        apply(Pad { padding, value, margins: all }, &[self])
    }
}
