//! Pooling to a given number of parts: part `o` of `O` over `L` elements is `⌊o·L / O⌋ .. ⌈(o + 1)·L / O⌉`.
//!
//! One dimension is pooled after the other, with the same result as pooling rectangles: all rows of a part have equally
//! many columns, and the first largest element is in the first row that has it.

use std::ops::Range;
use std::sync::Arc;

use anygpu_host::pool::parts::Parts;

use crate::device::gpu::{Buffer, Gpu, Kernel, KernelBuilder, params, shader};
use crate::error::{Error, Result};
use crate::ops::inputs::{around, loops_within};
use crate::ops::names::{Names, names};
use crate::ops::spatial::window::Sizes;
use crate::ops::traced::Traced;
use crate::ops::{
    Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply, named,
};
use crate::tensor::Tensor;

params! {
    struct Params { count: usize, len: usize, parts: usize, inner: usize, offset: usize }
}
shader!(SHADER: Params = "spatial/adaptive");

/// `[outer, len, inner]` → `[outer, out, inner]`
#[derive(Clone, Copy, Debug)]
struct Adaptive {
    max: bool,
    dim: usize,
    len: usize,
    out: usize,
}

impl Adaptive {
    /// Returns the parts of the dimension.
    fn parts(&self) -> Parts {
        Parts { len: self.len, count: self.out }
    }

    /// Checks that one invocation's loop is no longer than some drivers allow, and that indices fit in 32 bits.
    fn check_kernel(&self) -> Result<()> {
        let (len, parts) = (self.len, self.out);
        let longest = (len / parts).max(parts / len) + 2;
        loops_within(self.name(), longest, || format!("{len} elements in {parts} parts"))?;
        match u32::try_from((len + 1).saturating_mul(parts + 1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::argument(self.name(), format!("{parts} parts of {len} elements exceed 2^32"))),
        }
    }

    /// Starts a kernel over `count` elements, with its first input.
    fn kernel(&self, entry: &'static str, count: usize, x: &GpuIn<Dense>) -> KernelBuilder {
        let [_, _, inner] = around(x.shape(), self.dim);
        let params = Params { count, len: self.len, parts: self.out, inner, offset: x.offset() };
        Kernel::build(SHADER, entry, params).constant("MAX", self.max).input(x)
    }
}

impl Op for Adaptive {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = names!["adaptive_max_pool", "adaptive_avg_pool"];

    fn name(&self) -> &'static str {
        if self.max { "adaptive_max_pool" } else { "adaptive_avg_pool" }
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        let parts = (0..self.out).map(|o| self.parts().part(o));
        if self.max {
            let parts = parts.map(|part| [part.start, part.end]).collect();
            return Some(Traced::MaxOfParts { dim: self.dim, parts });
        }
        let weight = |part: &Range<usize>, i| if part.contains(&i) { 1.0 / part.len() as f32 } else { 0.0 };
        let rows = parts.flat_map(|part| (0..self.len).map(move |i| weight(&part, i))).collect();
        Some(Traced::Along { dim: self.dim, rows })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        if self.out.checked_add(1).and_then(|end| end.checked_mul(self.len)).is_none() {
            let detail = format!("{} elements cannot be cut into {} parts", self.len, self.out);
            return Err(Error::argument(self.name(), detail));
        }
        let mut shape = inputs[0].shape().to_vec();
        shape[self.dim] = self.out;
        Ok((shape, inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let [_, _, inner] = around(inputs[0].shape(), self.dim);
        self.parts().pool(self.max, inner, inputs[0].slice(), out.slice());
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        self.check_kernel()?;
        let [outer, _, inner] = around(inputs[0].shape(), self.dim);
        let count = outer * self.out * inner;
        Ok(vec![self.kernel("forward", count, &inputs[0]).output(out).each(count)])
    }

    fn saves(&self) -> Saves {
        Saves::Inputs
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let grad = apply(AdaptiveGrad(*self), &[&ctx.inputs[0], ctx.grad])?;
        Ok(vec![Some(grad)])
    }
}

/// x and the gradient of its pooled result → dx.
#[derive(Debug)]
struct AdaptiveGrad(Adaptive);

impl Op for AdaptiveGrad {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = names!["adaptive_pool_grad"];

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let pool = &self.0;
        let [_, _, inner] = around(inputs[0].shape(), pool.dim);
        pool.parts().gradient(pool.max, inner, [inputs[0].slice(), inputs[1].slice()], out.slice());
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let pool = &self.0;
        pool.check_kernel()?;
        let (x, g) = (&inputs[0], &inputs[1]);
        let (count, results) = (x.elem_count(), g.elem_count());
        let backward = pool.kernel("backward", count, g);
        if !pool.max {
            return Ok(vec![backward.input(g).output(out).each(count)]); // a mean reads no index
        }
        let taken = gpu.alloc(results)?;
        let index = pool.kernel("index", results, x).output(&taken).each(results);
        Ok(vec![index, backward.input(&taken).output(out).each(count)])
    }
}

/// Pools the last `sizes.len()` dimensions to `sizes`, the last one first.
pub(super) fn pool(op: &'static str, x: &Tensor, max: bool, rank: usize, sizes: &[usize]) -> Result<Tensor> {
    let first = rank - sizes.len();
    if x.rank() != rank {
        return Err(Error::argument(op, format!("the input has {rank} dimensions, not {:?}", x.shape())));
    }
    if sizes.contains(&0) || x.shape()[first..].contains(&0) {
        let detail = format!("neither {sizes:?} nor the images of {:?} may have a size of 0", x.shape());
        return Err(Error::argument(op, detail));
    }
    let mut out = x.clone();
    if !max && sizes.iter().all(|&size| size == 1) {
        let all: Vec<usize> = (first..rank).collect();
        return named(op, || out.mean(&all, true));
    }
    for (d, &size) in sizes.iter().enumerate().rev() {
        let (dim, len) = (first + d, x.shape()[first + d]);
        // A mean of all elements is computed as a sum, which is split into parts, so the length is not limited.
        out = match !max && size == 1 {
            true => named(op, || out.mean(dim, true))?,
            false => named(op, || apply(Adaptive { max, dim, len, out: size }, &[&out]))?,
        };
    }
    Ok(out)
}

impl Tensor {
    /// Computes means over parts that divide the images into `[OH, OW]`: `[N, C, H, W]` → `[N, C, OH, OW]`.
    ///
    /// Part `o` covers `⌊o·H / OH⌋ .. ⌈(o + 1)·H / OH⌉`; parts overlap if OH does not divide H. Size 1 is global
    /// pooling.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the input has another rank, a size is 0, or, on adapters, parts are longer than
    /// 59 998; [`Error::DTypeMismatch`] unless the type is a float.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]], None)?.reshape([1, 1, 2, 3])?;
    /// assert_eq!(x.adaptive_avg_pool2d([1, 2])?.to_vec::<f32>()?, [3.5, 4.5]); // columns 0..2 and 1..3
    /// assert_eq!(x.adaptive_avg_pool2d(1)?.to_vec::<f32>()?, [4.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn adaptive_avg_pool2d(&self, size: impl Sizes<2>) -> Result<Tensor> {
        pool("adaptive_avg_pool2d", self, false, 4, &size.sizes())
    }

    /// Returns the largest elements of parts that divide the images into `[OH, OW]`, with the parts of
    /// [`Tensor::adaptive_avg_pool2d`].
    ///
    /// NaN counts as the largest. The gradient goes to the first of equal maxima.
    ///
    /// # Errors
    /// Same as [`Tensor::adaptive_avg_pool2d`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]], None)?.reshape([1, 1, 2, 3])?;
    /// assert_eq!(x.adaptive_max_pool2d([1, 2])?.to_vec::<f32>()?, [6.0, 7.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn adaptive_max_pool2d(&self, size: impl Sizes<2>) -> Result<Tensor> {
        pool("adaptive_max_pool2d", self, true, 4, &size.sizes())
    }

    /// Computes means over `size` parts: `[N, C, L]` → `[N, C, size]`, like [`Tensor::adaptive_avg_pool2d`].
    ///
    /// # Errors
    /// Same as [`Tensor::adaptive_avg_pool2d`].
    pub fn adaptive_avg_pool1d(&self, size: usize) -> Result<Tensor> {
        pool("adaptive_avg_pool1d", self, false, 3, &[size])
    }

    /// Returns the largest elements of `size` parts: `[N, C, L]` → `[N, C, size]`, like
    /// [`Tensor::adaptive_max_pool2d`].
    ///
    /// # Errors
    /// Same as [`Tensor::adaptive_max_pool2d`].
    pub fn adaptive_max_pool1d(&self, size: usize) -> Result<Tensor> {
        pool("adaptive_max_pool1d", self, true, 3, &[size])
    }
}
