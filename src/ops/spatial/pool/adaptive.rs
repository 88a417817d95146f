//! Pooling to a given number of parts: part `o` of `O` over `L` elements is `⌊o·L / O⌋ .. ⌈(o + 1)·L / O⌉`.
//!
//! Along one dimension at a time, which gives what rectangles would: all rows of a part have equally many columns, and
//! the first largest element is in the first row that has it.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid};
use crate::ops::promote::apply_float;
use crate::ops::spatial::window::Sizes;
use crate::ops::sums::{Sum, added};
use crate::ops::{Gradient, Op, Spec, apply, expect_dtype, shader};
use crate::tensor::Tensor;

pub(in crate::ops) const SHADER: Shader = shader!("adaptive");

/// The most loop iterations of one invocation.
const MAX_LOOPS: usize = 32_768;

/// `[outer, len, inner]` → `[outer, out, inner]`
#[derive(Clone, Copy, Debug)]
struct Adaptive {
    max: bool,
    dim: usize,
    len: usize,
    out: usize,
}

impl Adaptive {
    fn part(&self, o: usize) -> Range<usize> {
        o * self.len / self.out..((o + 1) * self.len).div_ceil(self.out)
    }

    fn inner(&self, shape: &[usize]) -> usize {
        shape[self.dim + 1..].iter().product()
    }

    /// The first largest element of part `o` of a column that starts at `x[0]`, `inner` apart.
    fn largest(&self, x: &[f32], o: usize, inner: usize) -> usize {
        let better = |at: usize, i: usize| x[i * inner] > x[at * inner] || x[i * inner].is_nan();
        self.part(o).fold(self.part(o).start, |at, i| if better(at, i) { i } else { at })
    }

    /// Adds the gradient of each part to the elements that it is of.
    fn spread(&self, x: &[f32], g: &[f32], inner: usize, dx: &mut [impl Sum]) {
        for (at, &g) in g.iter().enumerate() {
            let (o, j) = (at / inner, at % inner);
            if self.max {
                dx[self.largest(&x[j..], o, inner) * inner + j].take(g);
                continue;
            }
            let part = self.part(o);
            let share = g / part.len() as f32;
            part.for_each(|i| dx[i * inner + j].take(share));
        }
    }

    fn kernel(
        &self,
        entry: &'static str,
        inputs: &[(&Buffer, usize)],
        out: (&Buffer, usize),
        inner: usize,
    ) -> Result<Kernel> {
        let longest = (self.len / self.out).max(self.out / self.len) + 2;
        if longest > MAX_LOOPS {
            let detail = format!(
                "{} elements in {} parts take {longest} steps for one element, more than the {MAX_LOOPS} that every \
                 adapter can: pool in two stages, or on cpu",
                self.len, self.out
            );
            return Err(Error::argument(self.name(), detail));
        }
        fits_u32(self.name(), (self.len + 1).saturating_mul(self.out + 1))?;
        let numbers = [out.1, self.len, self.out, inner].map(|n| n as u32);
        let offset = |i: usize| inputs.get(i).map_or(0, |&(_, offset)| offset as u32);
        fits_u32(self.name(), out.1)?;
        Ok(Kernel {
            shader: SHADER,
            entry,
            header: "",
            constants: vec![],
            params: numbers.into_iter().chain([offset(0), offset(1)]).collect(),
            inputs: inputs.iter().map(|&(buffer, _)| buffer.clone()).collect(),
            outputs: vec![out.0.clone()],
            groups: grid(out.1),
        })
    }
}

impl Op for Adaptive {
    fn name(&self) -> &'static str {
        if self.max { "adaptive_max_pool" } else { "adaptive_avg_pool" }
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        expect_dtype(self.name(), inputs[0], DType::F32)?;
        if self.out.checked_add(1).and_then(|end| end.checked_mul(self.len)).is_none() {
            return Err(Error::argument(self.name(), format!("{} elements cannot be cut in {}", self.len, self.out)));
        }
        let mut shape = inputs[0].shape().to_vec();
        shape[self.dim] = self.out;
        Ok(Spec::Fresh(shape, DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let inner = self.inner(&inputs[0].layout.shape);
        let (x, out) = (inputs[0].slice::<f32>(), out.slice::<f32>());
        let all = out.par_chunks_mut(self.out * inner).zip(x.par_chunks(self.len * inner)).with_min_len(16);
        all.for_each(|(out, x)| {
            for (o, line) in out.chunks_mut(inner).enumerate() {
                let part = self.part(o);
                for (j, v) in line.iter_mut().enumerate() {
                    *v = match self.max {
                        true => x[self.largest(&x[j..], o, inner) * inner + j],
                        false => {
                            (part.clone().map(|i| f64::from(x[i * inner + j])).sum::<f64>() / part.len() as f64) as f32
                        }
                    };
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let (inner, count) = (self.inner(&x.layout.shape), x.layout.elem_count() / self.len * self.out);
        let entry = if self.max { "max_forward" } else { "avg_forward" };
        Ok(vec![self.kernel(entry, &[(x.buffer, x.layout.offset)], (out, count), inner)?])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let grad = apply(AdaptiveGrad(*self), &[&ctx.inputs[0].detach(), &ctx.grad.contiguous()?])?;
        Ok(vec![Some(grad)])
    }
}

/// x and the gradient of its pooled result → dx.
#[derive(Debug)]
struct AdaptiveGrad(Adaptive);

impl Op for AdaptiveGrad {
    fn name(&self) -> &'static str {
        "adaptive_pool_grad"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        Ok(Spec::Fresh(inputs[0].shape().to_vec(), DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let pool = &self.0;
        let inner = pool.inner(&inputs[0].layout.shape);
        let (x, g, out) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>());
        let (long, short) = (pool.len * inner, pool.out * inner);
        let all = out.par_chunks_mut(long).zip(x.par_chunks(long)).zip(g.par_chunks(short)).with_min_len(16);
        let terms = pool.out / pool.len + 2; // of one element
        all.for_each(|((dx, x), g)| {
            added(dx, terms, |dx| pool.spread(x, g, inner, dx), |dx| pool.spread(x, g, inner, dx));
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let pool = &self.0;
        let [x, g] = [0, 1].map(|i| (inputs[i].buffer, inputs[i].layout.offset));
        let (count, results) = (inputs[0].layout.elem_count(), inputs[1].layout.elem_count());
        let inner = pool.inner(&inputs[0].layout.shape);
        if !pool.max {
            return Ok(vec![pool.kernel("avg_backward", &[g], (out, count), inner)?]);
        }
        let taken = gpu.alloc(results)?;
        let index = pool.kernel("max_index", &[x], (&taken, results), inner)?;
        Ok(vec![index, pool.kernel("max_backward", &[(&taken, 0), g], (out, count), inner)?])
    }
}

/// Pools the last `sizes.len()` dimensions to `sizes`, the last one first.
fn pool(op: &'static str, x: &Tensor, max: bool, rank: usize, sizes: &[usize]) -> Result<Tensor> {
    let first = rank - sizes.len();
    if x.rank() != rank {
        return Err(Error::argument(op, format!("the input has {rank} dimensions, not {:?}", x.shape())));
    }
    if sizes.contains(&0) || x.shape()[first..].contains(&0) {
        let detail = format!("neither {sizes:?} nor the images of {:?} may have a size of 0", x.shape());
        return Err(Error::argument(op, detail));
    }
    let mut out = x.contiguous()?;
    for (d, &size) in sizes.iter().enumerate().rev() {
        let (dim, len) = (first + d, x.shape()[first + d]);
        // A mean of everything is a sum, and those are cut into parts, however long they are.
        out = match !max && size == 1 {
            true => out.mean(&[dim], true)?,
            false => apply_float(Adaptive { max, dim, len, out: size }, &[&out])?,
        };
    }
    Ok(out)
}

impl Tensor {
    /// Means over parts that cut the images into `[OH, OW]`: `[N, C, H, W]` → `[N, C, OH, OW]`. Part `o` covers
    /// `⌊o·H / OH⌋ .. ⌈(o + 1)·H / OH⌉`: parts overlap where the sizes do not divide. Size 1 is global pooling.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the input has another rank, a size is 0, or, on adapters, parts are longer than
    /// 32 766; [`Error::DTypeMismatch`] unless float.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]])?.reshape([1, 1, 2, 3])?;
    /// assert_eq!(x.adaptive_avg_pool2d([1, 2])?.to_vec::<f32>()?, [3.5, 4.5]); // columns 0..2 and 1..3
    /// assert_eq!(x.adaptive_avg_pool2d(1)?.to_vec::<f32>()?, [4.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn adaptive_avg_pool2d(&self, size: impl Sizes<2>) -> Result<Tensor> {
        pool("adaptive_avg_pool2d", self, false, 4, &size.sizes())
    }

    /// The largest elements of parts that cut the images into `[OH, OW]`, as [`Tensor::adaptive_avg_pool2d`]. NaN wins.
    /// The gradient goes to the first of equal maxima.
    ///
    /// # Errors
    /// As [`Tensor::adaptive_avg_pool2d`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]])?.reshape([1, 1, 2, 3])?;
    /// assert_eq!(x.adaptive_max_pool2d([1, 2])?.to_vec::<f32>()?, [6.0, 7.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn adaptive_max_pool2d(&self, size: impl Sizes<2>) -> Result<Tensor> {
        pool("adaptive_max_pool2d", self, true, 4, &size.sizes())
    }

    /// Means over `size` parts: `[N, C, L]` → `[N, C, size]`, as [`Tensor::adaptive_avg_pool2d`].
    ///
    /// # Errors
    /// As [`Tensor::adaptive_avg_pool2d`].
    pub fn adaptive_avg_pool1d(&self, size: usize) -> Result<Tensor> {
        pool("adaptive_avg_pool1d", self, false, 3, &[size])
    }

    /// The largest elements of `size` parts: `[N, C, L]` → `[N, C, size]`, as [`Tensor::adaptive_max_pool2d`].
    ///
    /// # Errors
    /// As [`Tensor::adaptive_max_pool2d`].
    pub fn adaptive_max_pool1d(&self, size: usize) -> Result<Tensor> {
        pool("adaptive_max_pool1d", self, true, 3, &[size])
    }
}
