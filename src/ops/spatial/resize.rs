//! Resampling of images to another size: nearest, linear and cubic in any number of dimensions, one after the other.
//!
//! A source position is computed as a fraction of integers, not with a rounded scale, so all devices agree.

use std::sync::Arc;

use anygpu_host::sums::{Sum, added};
use anygpu_host::tasks::share;

use crate::device::cpu::collected;
use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::error::{Error, Result};
use crate::ops::inputs::{around, loops_within};
use crate::ops::names::{Names, names};
use crate::ops::spatial::resample::{Resample, ResampleCoordinates, ResampleFilter};
use crate::ops::traced::Traced;
use crate::ops::{
    Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply, named,
};
use crate::tensor::Tensor;

params! {
    struct Params { count: usize, len: usize, size: usize, inner: usize, offset: usize }
}
shader!(SHADER: Params = "spatial/resize");

/// The method by which [`Tensor::interpolate`] finds values between pixels.
///
/// Each method says the position of output pixel o, for L input pixels and O output pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// `⌊o·L / O⌋`: PyTorch's `"nearest"`.
    Nearest,
    /// `⌊(o + ½)·L / O⌋`, the pixel that holds the centre of the new pixel: PyTorch's `"nearest-exact"`.
    NearestExact,
    /// Linear interpolation between the two pixels next to the position: bilinear in two dimensions, trilinear in
    /// three.
    Linear {
        /// Whether the centres of the first and last pixels keep their places. Then the position is
        /// `o·(L − 1) / (O − 1)`. Otherwise the borders of the image keep their places, and the position is
        /// `(o + ½)·L / O − ½`, but at least 0.
        align_corners: bool,
    },
    /// A cubic convolution of the four pixels around the position, with a = −0.75; in two dimensions this is PyTorch's
    /// `"bicubic"`. Pixels beyond an edge are equal to the edge's pixel.
    Cubic {
        /// As in `Linear`, except that without it the position `(o + ½)·L / O − ½` may also be below 0.
        align_corners: bool,
    },
}

/// The ways of [`Interpolation`] whose weights the kernel computes, in the order of the shader's codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    Nearest,
    NearestExact,
    Linear,
    LinearAligned,
}

impl Way {
    fn is_linear(self) -> bool {
        matches!(self, Way::Linear | Way::LinearAligned)
    }
}

/// The elements that a task of the host computes at least.
const LEAST: usize = 16 * 1024;

/// Resizes one dimension.
fn resized(x: &Tensor, mode: Interpolation, dim: usize, size: usize) -> Result<Tensor> {
    let mode = match mode {
        Interpolation::Nearest => Way::Nearest,
        Interpolation::NearestExact => Way::NearestExact,
        Interpolation::Linear { align_corners: false } => Way::Linear,
        Interpolation::Linear { align_corners: true } => Way::LinearAligned,
        Interpolation::Cubic { align_corners } => {
            let coordinates =
                if align_corners { ResampleCoordinates::AlignCorners } else { ResampleCoordinates::HalfPixel };
            let how = Resample::new(size).coordinates(coordinates).filter(ResampleFilter::Cubic { a: -0.75 });
            return x.resample(dim, &how);
        }
    };
    apply(Resize { mode, dim, len: x.shape()[dim], size }, &[x])
}

/// `[outer, len, inner]` → `[outer, size, inner]`
#[derive(Clone, Copy, Debug)]
struct Resize {
    mode: Way,
    dim: usize,
    len: usize,
    size: usize,
}

impl Resize {
    /// Returns the two pixels that output `o` is between, and the weight of the second.
    fn source(&self, o: usize) -> (usize, usize, f32) {
        let Resize { len, size, .. } = *self;
        let centre = (2 * o + 1) * len;
        let (above, below) = match self.mode {
            Way::Nearest => (o * len, size),
            Way::NearestExact => (centre, 2 * size),
            Way::Linear => (centre.saturating_sub(size), 2 * size),
            Way::LinearAligned => (o * (len - 1), (size - 1).max(1)),
        };
        let first = above / below;
        match self.mode.is_linear() {
            true => (first, (first + 1).min(len - 1), (above % below) as f32 / below as f32),
            false => (first, first, 0.0),
        }
    }

    /// Copies the nearest pixels of a line.
    fn repeat(&self, x: &[f32], out: &mut [f32], sources: &[(usize, usize, f32)]) {
        if self.mode == Way::Nearest && self.size == 2 * self.len {
            out.as_chunks_mut().0.iter_mut().zip(x).for_each(|(pair, v)| *pair = [*v; 2]);
        } else {
            out.iter_mut().zip(sources).for_each(|(v, (first, ..))| *v = x[*first]);
        }
    }

    fn kernel(&self, entry: &'static str, x: &GpuIn<Dense>, (out, to): (&Buffer, usize)) -> Result<Kernel> {
        let Resize { len, size, .. } = *self;
        // The shader computes positions as fractions of integers of 32 bits.
        let numerator = (len + 1).saturating_mul(size + 1).saturating_mul(2);
        if u32::try_from(numerator).is_err() {
            return Err(Error::argument("interpolate", format!("{size} pixels from {len}: the positions exceed 2^32")));
        }
        let [outer, _, inner] = around(x.shape(), self.dim);
        let params = Params { count: outer * to * inner, len, size, inner, offset: x.offset() };
        let kernel = Kernel::build(SHADER, entry, params).constant("OP", self.mode as u8);
        Ok(kernel.input(x).output(out).each(params.count))
    }
}

impl Op for Resize {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = names!["interpolate"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Interpolate { dim: self.dim, size: self.size, way: self.mode })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let Resize { len, size, .. } = *self;
        if size.checked_mul(2).and_then(|twice| twice.checked_add(1)?.checked_mul(len)).is_none() {
            return Err(Error::argument("interpolate", format!("{size} pixels from {len} cannot be placed")));
        }
        let mut shape = inputs[0].shape().to_vec();
        shape[self.dim] = size;
        Ok((shape, inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let [_, _, inner] = around(inputs[0].shape(), self.dim);
        let (x, out) = (inputs[0].slice::<f32>(), out.slice::<f32>());
        let sources = collected((0..self.size).map(|o| self.source(o)))?;
        // Lines of one element are few for a task.
        let least = (LEAST / (self.size * inner)).max(4);
        share(out.chunks_mut(self.size * inner).zip(x.chunks(self.len * inner)), least, |(out, x)| {
            if inner == 1 && !self.mode.is_linear() {
                return self.repeat(x, out, &sources);
            }
            for (line, &(first, second, weight)) in out.chunks_mut(inner).zip(&sources) {
                let (a, b) = (&x[first * inner..][..inner], &x[second * inner..][..inner]);
                if !self.mode.is_linear() {
                    line.copy_from_slice(a);
                    continue;
                }
                line.iter_mut().zip(a.iter().zip(b)).for_each(|(v, (a, b))| *v = (1.0 - weight) * a + weight * b);
            }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        Ok(vec![self.kernel("forward", &inputs[0], (out, self.size))?])
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![Some(apply(ResizeGrad(*self), &[ctx.grad])?)])
    }
}

/// Adds every row of the gradient to the rows that it was computed from, each by its weight.
fn spread(sources: &[(usize, usize, f32)], g: &[f32], inner: usize, dx: &mut [impl Sum]) {
    for (line, &(first, second, weight)) in g.chunks(inner).zip(sources) {
        let mut add = |to: usize, weight: f32| {
            dx[to * inner..][..inner].iter_mut().zip(line).for_each(|(dx, g)| dx.take(weight * g));
        };
        add(first, 1.0 - weight);
        if weight > 0.0 {
            add(second, weight);
        }
    }
}

/// The gradient of the resized images → dx.
#[derive(Debug)]
struct ResizeGrad(Resize);

impl Op for ResizeGrad {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = names!["interpolate_grad"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let mut shape = inputs[0].shape().to_vec();
        shape[self.0.dim] = self.0.len;
        Ok((shape, inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let resize = &self.0;
        let [_, _, inner] = around(inputs[0].shape(), resize.dim);
        let (g, out) = (inputs[0].slice::<f32>(), out.slice::<f32>());
        let sources = collected((0..resize.size).map(|o| resize.source(o)))?;
        let all = out.chunks_mut(resize.len * inner).zip(g.chunks(resize.size * inner));
        let terms = 2 * (resize.size / resize.len + 2);
        share(all, 4, |(dx, g)| {
            added(dx, terms, |dx| spread(&sources, g, inner, dx), |dx| spread(&sources, g, inner, dx))
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let Resize { len, size, .. } = self.0;
        loops_within("interpolate", 2 * (size / len + 2), || format!("the gradient of {size} pixels from {len}"))?;
        Ok(vec![self.0.kernel("backward", &inputs[0], (out, self.0.len))?])
    }
}

impl Tensor {
    /// Resizes images, like PyTorch's `F.interpolate(x, size, mode, align_corners)`.
    ///
    /// The input is `[N, C, ..]` with `D` further dimensions: `[N, C, H, W]` for a `D` of 2. The result is
    /// `[N, C, size..]`. There is no antialiasing, which is PyTorch's default.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the rank of the input is not `D + 2`, or if a size is 0; [`Error::DTypeMismatch`]
    /// unless the type is a float. On adapters, the gradient of an enlargement by more than 29 000 is an
    /// [`Error::InvalidArgument`] too.
    ///
    /// ```
    /// # use anygpu::{Interpolation, Tensor};
    /// let x = Tensor::new([[1.0, 3.0]], None)?.reshape([1, 1, 1, 2])?;
    /// let size = [1, 4];
    /// assert_eq!(x.interpolate(size, Interpolation::Nearest)?.to_vec::<f32>()?, [1.0, 1.0, 3.0, 3.0]);
    /// let linear = |align_corners| x.interpolate(size, Interpolation::Linear { align_corners });
    /// assert_eq!(linear(false)?.to_vec::<f32>()?, [1.0, 1.5, 2.5, 3.0]);
    /// assert!((linear(true)?.to_vec::<f32>()?[1] - 5.0 / 3.0).abs() < 1e-6);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn interpolate<const D: usize>(&self, size: [usize; D], mode: Interpolation) -> Result<Tensor> {
        if D == 0 || self.rank() != D + 2 {
            let detail = format!("{D} sizes are for [N, C, ..] of {} dimensions, not {:?}", D + 2, self.shape());
            return Err(Error::argument("interpolate", detail));
        }
        if size.contains(&0) || self.shape()[2..].contains(&0) {
            let detail = format!("neither {size:?} nor the images of {:?} may have a size of 0", self.shape());
            return Err(Error::argument("interpolate", detail));
        }
        named("interpolate", || {
            let mut changed = (2..D + 2).rev().filter(|&dim| self.shape()[dim] != size[dim - 2]);
            changed.try_fold(self.clone(), |x, dim| resized(&x, mode, dim, size[dim - 2]))
        })
    }
}
