//! Reductions by index with every way to reduce: `scatter_reduce` and `index_reduce`, and their gradients.

use super::scatter::{ADD, Scatter, ScatterMode, scattered, sliced};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::index::gather::dim_and_index;
use crate::ops::reduction::reduce::Reduction;
use crate::ops::reduction::scan::without_zeros;
use crate::ops::{Gradient, Gradients, expect_dtype, named, same_device};
use crate::shape::Dim;
use crate::tensor::Tensor;

/// The reduction of [`Tensor::scatter_reduce`] and [`Tensor::index_reduce`], by PyTorch's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterReduce {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The mean, rounded down for integers.
    Mean,
    /// The largest element; NaN if one is NaN.
    Amax,
    /// The smallest element; NaN if one is NaN.
    Amin,
}

/// What the arguments of both methods say.
struct Reducing {
    op: &'static str,
    dim: usize,
    index: Tensor,
    /// Whether the index is of slices.
    shared: bool,
}

impl Reducing {
    fn put(&self, base: &Tensor, src: &Tensor, mode: ScatterMode) -> Result<Tensor> {
        if self.shared {
            sliced(base, self.dim, &self.index, src, mode)
        } else {
            scattered(base, self.dim, &self.index, src, mode)
        }
    }

    /// Reduces sources of the type of `base`. Unless `include_self`, an element that has sources starts from the value
    /// that changes no result.
    fn reduced(&self, base: &Tensor, src: &Tensor, reduce: ScatterReduce, include_self: bool) -> Result<Tensor> {
        let (dtype, by) =
            (base.dtype(), |base: &Tensor, src: &Tensor, reduce| self.reduced(base, src, reduce, include_self));
        if dtype == DType::Bool {
            if reduce == ScatterReduce::Mean {
                return Err(Error::DTypeMismatch { op: self.op, expected: "numbers".into(), got: dtype.to_string() });
            }
            return by(&base.to_dtype(DType::U32)?, &src.to_dtype(DType::U32)?, reduce)?.to_dtype(DType::Bool);
        }
        if reduce == ScatterReduce::Mean {
            // Bytes and halves could not hold the sum.
            let wide = if dtype == DType::U8 { DType::I32 } else { dtype.wide() };
            let sum = by(&base.to_dtype(wide)?, &src.to_dtype(wide)?, ScatterReduce::Sum)?;
            let ones = Tensor::full(src.shape(), 1u32, src.device())?;
            let own = Tensor::full(base.shape(), u32::from(include_self), base.device())?;
            let count = self.put(&own, &ones, ADD)?.maximum(1)?.to_dtype(wide)?;
            let mean = if wide.is_float() { sum.div(&count)? } else { sum.div_floor(&count)? };
            return mean.to_dtype(dtype);
        }
        let neutral = || neutral(reduce, dtype, src.shape(), src.device());
        let start = if include_self { base.clone() } else { self.put(base, &neutral()?, ScatterMode::Assign)? };
        self.put(
            &start,
            src,
            match reduce {
                ScatterReduce::Sum | ScatterReduce::Mean => ADD,
                ScatterReduce::Prod => ScatterMode::Reduce(Reduction::Prod),
                ScatterReduce::Amax => ScatterMode::Reduce(Reduction::Max),
                ScatterReduce::Amin => ScatterMode::Reduce(Reduction::Min),
            },
        )
    }
}

/// Returns a tensor of the element with which a reduction changes nothing.
fn neutral(reduce: ScatterReduce, dtype: DType, shape: &[usize], device: &Device) -> Result<Tensor> {
    let float = |value: f32| Tensor::full(shape, value, device)?.to_dtype(dtype);
    match (reduce, dtype) {
        (ScatterReduce::Sum | ScatterReduce::Mean, _) => float(0.0),
        (ScatterReduce::Prod, _) => float(1.0),
        (ScatterReduce::Amax, DType::I32) => Tensor::full(shape, i32::MIN, device),
        (ScatterReduce::Amin, DType::I32) => Tensor::full(shape, i32::MAX, device),
        (ScatterReduce::Amin, DType::U32) => Tensor::full(shape, u32::MAX, device),
        (ScatterReduce::Amin, DType::U8) => Tensor::full(shape, u8::MAX, device),
        (ScatterReduce::Amax, dtype) if !dtype.is_float() => float(0.0),
        (ScatterReduce::Amax, _) => float(f32::NEG_INFINITY),
        (ScatterReduce::Amin, _) => float(f32::INFINITY),
    }
}

impl Scatter {
    /// Computes the gradients of a product. The gradient of an element is the product of the others. Let P be the
    /// product of the elements that are not 0, and Z the number of zeros. The gradient is P / x if Z = 0, P if x is the
    /// only zero, else 0.
    pub(super) fn gradients_of_products(&self, ctx: &Gradient) -> Result<Gradients> {
        let [base, index, src] = [0, 1, 2].map(|i| &ctx.inputs[i]);
        without_zeros("scatter_reduce", &[base, src])?;
        let zeros_of = |x: &Tensor| x.eq(0)?.to_dtype(DType::F32);
        let (base_zero, src_zero) = (zeros_of(base)?, zeros_of(src)?);
        let (base_factor, src_factor) = (base.add(&base_zero)?, src.add(&src_zero)?);
        let product = self.put(ScatterMode::Reduce(Reduction::Prod), &base_factor, index, &src_factor)?;
        let zeros = self.put(ADD, &base_zero, index, &src_zero)?;
        let times_others = |g: &Tensor, product: &Tensor, zeros: &Tensor, own: [&Tensor; 2]| {
            zeros.eq(own[1])?.where_cond(&g.mul(product)?.div(own[0])?, 0.0)
        };
        let of_base = || times_others(ctx.grad, &product, &zeros, [&base_factor, &base_zero]);
        let of_src = || {
            let [g, product, zeros] = [ctx.grad, &product, &zeros].map(|x| self.taken(x, index));
            times_others(&g?, &product?, &zeros?, [&src_factor, &src_zero])
        };
        Ok(vec![ctx.needs[0].then(of_base).transpose()?, None, ctx.needs[2].then(of_src).transpose()?])
    }

    /// Computes the gradients of a maximum or a minimum. Equal elements share the gradient evenly, as in PyTorch.
    pub(super) fn gradients_of_extremes(&self, ctx: &Gradient) -> Result<Gradients> {
        let [base, index, src] = [0, 1, 2].map(|i| &ctx.inputs[i]);
        let base_hits = base.same(ctx.out)?;
        let src_hits = src.same(&self.taken(ctx.out, index)?)?;
        let share = ctx.grad.div(&self.put(ADD, &base_hits, index, &src_hits)?)?;
        let of_src = || src_hits.mul(&self.taken(&share, index)?);
        Ok(vec![Some(base_hits.mul(&share)?), None, ctx.needs[2].then(of_src).transpose()?])
    }
}

impl Tensor {
    /// Reduces sources and the elements of this tensor by index along `dim`: for `dim` 1, `out[i][j][k]` is the
    /// reduction of all `src[i][l][k]` with `index[i][l][k] = j` and, if `include_self`, of this tensor's element.
    ///
    /// Elements without sources keep their value.
    ///
    /// The shapes are as in [`Tensor::scatter_add`]. The sources of one element are reduced in their order, so two runs
    /// are bit-identical. For booleans, a sum or a maximum is true if any is true, and a product or a minimum is true
    /// if all are true. Equal extremes share the gradient evenly. The gradient of a product is also correct where
    /// elements are 0.
    ///
    /// # Errors
    /// Same as [`Tensor::scatter_add`]; [`Error::DTypeMismatch`] for means of booleans.
    ///
    /// ```
    /// # use anygpu::{ScatterReduce, Tensor};
    /// let x = Tensor::new([9.0, 9.0, 9.0], None)?;
    /// let (index, src) = (Tensor::new([0u32, 0, 2], None)?, Tensor::new([1.0, 5.0, 2.0], None)?);
    /// let largest = x.scatter_reduce(0, &index, &src, ScatterReduce::Amax, false)?;
    /// assert_eq!(largest.to_vec::<f32>()?, [5.0, 9.0, 2.0]);
    /// let mean = x.scatter_reduce(0, &index, &src, ScatterReduce::Mean, true)?;
    /// assert_eq!(mean.to_vec::<f32>()?, [5.0, 9.0, 5.5]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn scatter_reduce(
        &self,
        dim: impl Dim,
        index: &Tensor,
        src: &Tensor,
        reduce: ScatterReduce,
        include_self: bool,
    ) -> Result<Tensor> {
        self.reduce_by("scatter_reduce", dim, index, src, (reduce, include_self))
    }

    /// Reduces slices and this tensor's slices by index: `[.., n, ..]`, an index `[k]` and sources `[.., k, ..]` →
    /// `[.., n, ..]`. Otherwise like [`Tensor::scatter_reduce`].
    ///
    /// # Errors
    /// Same as [`Tensor::scatter_reduce`].
    ///
    /// ```
    /// # use anygpu::{ScatterReduce, Tensor};
    /// let x = Tensor::ones([2, 2], None)?;
    /// let src = Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?;
    /// let y = x.index_reduce(0, &Tensor::new([1u32, 1], None)?, &src, ScatterReduce::Prod, true)?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 1.0, 3.0, 8.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn index_reduce(
        &self,
        dim: impl Dim,
        index: &Tensor,
        src: &Tensor,
        reduce: ScatterReduce,
        include_self: bool,
    ) -> Result<Tensor> {
        self.reduce_by("index_reduce", dim, index, src, (reduce, include_self))
    }

    fn reduce_by(
        &self,
        op: &'static str,
        dim: impl Dim,
        index: &Tensor,
        src: &Tensor,
        (reduce, include_self): (ScatterReduce, bool),
    ) -> Result<Tensor> {
        named(op, || {
            let shared = op == "index_reduce";
            let (dim, index) = dim_and_index(op, self, dim, index, shared)?;
            same_device(op, &[self, src])?;
            expect_dtype(op, src, self.dtype())?;
            Reducing { op, dim, index, shared }.reduced(self, src, reduce, include_self)
        })
    }
}
