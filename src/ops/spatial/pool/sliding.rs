//! Max and average pooling over sliding windows, and their gradients.

use std::sync::Arc;

use super::largest::{NONE, Slide, largest};
use super::quarters;
use crate::device::cpu::collected;
use crate::device::cpu::tasks::{share, try_share_with};
use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::inputs::{loops_within, run_of};
use crate::ops::spatial::window::{WINDOW, Window};
use crate::ops::sums::{Sum, added};
use crate::ops::traced::Traced;
use crate::ops::vectorised::vectorised;
use crate::ops::{Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply};
use crate::tensor::Tensor;

params! {
    struct Params {
        count: usize,
        offset: usize,
        lowest: f32,
        planes: usize,
        run: usize,
        height: usize,
        width: usize,
        out_y: usize,
        out_x: usize,
    }
}
shader!(SHADER: Params = "pool", after [WINDOW]);

/// The fewest planes for a thread of the host.
const FEWEST: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PoolMode {
    Max,
    Avg { count_include_pad: bool },
}

/// What a kernel of `pool.wgsl` computes.
#[derive(Clone, Copy)]
enum Pass<'a> {
    /// The results.
    Forward,
    /// The position of each maximum.
    Index,
    /// The gradient, from the positions of the maxima.
    Backward { taken: &'a Buffer },
}

/// x `[N, C, H, W]` → `[N, C, OH, OW]`
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    pub mode: PoolMode,
    pub window: Window,
}

impl Windows {
    /// Adds to every window its pixels.
    fn add(&self, x: &[f32], sums: &mut [impl Sum]) {
        for tap in 0..self.window.taps() {
            self.window.rows(tap, |o, i, len| {
                let pixels = x[i..].iter().step_by(self.window.params.stride[1]);
                sums[o..o + len].iter_mut().zip(pixels).for_each(|(sum, &x)| sum.take(x));
            });
        }
    }

    /// Adds to every pixel the parts of the windows that hold it.
    fn spread(&self, parts: &[f32], dx: &mut [impl Sum]) {
        for tap in 0..self.window.taps() {
            self.window.rows(tap, |o, i, len| {
                let pixels = dx[i..].iter_mut().step_by(self.window.params.stride[1]);
                pixels.zip(&parts[o..o + len]).for_each(|(dx, &part)| dx.take(part));
            });
        }
    }

    /// Returns the divisors of the means over the windows of a plane.
    fn divisors(&self) -> Result<Vec<f32>> {
        let Window { params, size, .. } = self.window;
        let counted = |d: usize, o: usize| {
            let (start, padding) = (o * params.stride[d], params.padding[d]);
            let end = (start + params.kernel[d]).min(size[d] + 2 * padding);
            match self.mode {
                PoolMode::Avg { count_include_pad: false } => end.min(size[d] + padding) - start.max(padding),
                _ => end - start,
            }
        };
        let [height, width] = self.window.out;
        collected((0..height * width).map(|o| (counted(0, o / width) * counted(1, o % width)) as f32))
    }

    /// Returns the loop iterations for one pixel of the gradient: the windows that hold it.
    fn gradient_loops(&self) -> usize {
        let Window { params, size, .. } = &self.window;
        let windows = |d: usize| params.span(d).min(size[d] + params.padding[d]).div_ceil(params.stride[d]) + 1;
        windows(0).saturating_mul(windows(1) + 1)
    }

    /// Returns a kernel of `pool.wgsl` over all planes of `x`, which is the gradient of the result in `Backward`.
    fn kernel(&self, pass: Pass, x: &GpuIn<Dense>, out: &Buffer) -> Result<Kernel> {
        let Window { params, size: [height, width], out: [out_y, out_x] } = self.window;
        let (entry, plane, loops) = match pass {
            Pass::Forward => ("forward", self.window.pixels(), params.loops()),
            Pass::Index => ("index", self.window.pixels(), params.loops()),
            Pass::Backward { .. } => ("backward", self.window.plane(), self.gradient_loops()),
        };
        loops_within(self.name(), loops, || format!("a window {:?} with stride {:?}", params.kernel, params.stride))?;
        let planes = x.shape()[0] * x.shape()[1];
        let run = run_of(planes * plane, loops);
        let count = planes.div_ceil(run) * plane;
        let (offset, lowest) = (x.offset(), f32::NEG_INFINITY);
        let params = Params { count, offset, lowest, planes, run, height, width, out_y, out_x };
        let kernel = Kernel::build(SHADER, entry, params).constants(self.window.params.constants()).input(x);
        let count_pad = self.mode != PoolMode::Avg { count_include_pad: false };
        let kernel = kernel.constant("MAX", self.mode == PoolMode::Max).constant("COUNT_PAD", count_pad);
        let kernel = if let Pass::Backward { taken } = pass { kernel.input(taken) } else { kernel };
        Ok(kernel.output(out).each(count))
    }
}

impl Op for Windows {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);

    fn name(&self) -> &'static str {
        if self.mode == PoolMode::Max { "max_pool2d" } else { "avg_pool2d" }
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        let window = self.window;
        Some(match self.mode {
            PoolMode::Max => Traced::MaxPool(window),
            PoolMode::Avg { count_include_pad } => {
                Traced::AvgPool { window, count_pad: count_include_pad, divisors: self.divisors().ok()? }
            }
        })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let (shape, [h, w]) = (inputs[0].shape(), self.window.out);
        Ok((vec![shape[0], shape[1], h, w], inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (window, x, out) = (&self.window, inputs[0].slice::<f32>(), out.slice::<f32>());
        let planes = out.chunks_mut(window.pixels()).zip(x.chunks(window.plane()));
        if quarters::fits(window) {
            share(planes, FEWEST, |(out, x)| vectorised!(quarters::forward(window, self.mode, x, out)));
            return Ok(());
        }
        if let Some(size) = Slide::size(window).filter(|_| self.mode == PoolMode::Max) {
            let slide = || Slide::new(window, size);
            return try_share_with(planes, FEWEST, slide, |slide, (out, x)| {
                vectorised!(slide.compute(x, out));
                Ok(())
            });
        }
        if self.mode == PoolMode::Max {
            let places = || zeros(window.pixels());
            return try_share_with(planes, FEWEST, places, |at, (out, x)| {
                vectorised!(largest(window, x, out, at));
                Ok(())
            });
        }
        let divisors = self.divisors()?;
        share(planes, FEWEST, |(out, x)| {
            added(out, window.taps(), |out| self.add(x, out), |out| self.add(x, out));
            out.iter_mut().zip(&divisors).for_each(|(out, divisor)| *out /= divisor);
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        Ok(vec![self.kernel(Pass::Forward, &inputs[0], out)?])
    }

    fn saves(&self) -> Saves {
        Saves::Inputs
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let grad = apply(PoolGrad(*self), &[&ctx.inputs[0], ctx.grad])?;
        Ok(vec![Some(grad)])
    }
}

/// Returns memory of a task, for so many numbers.
fn zeros<T: Copy + Default>(count: usize) -> Result<Vec<T>> {
    collected((0..count).map(|_| T::default()))
}

/// Adds every gradient to the pixel at its position, if it has one.
fn add_at(at: &[u32], g: &[f32], dx: &mut [impl Sum]) {
    let taken = at.iter().zip(g).filter(|(at, _)| **at != NONE);
    taken.for_each(|(&at, &g)| dx[at as usize].take(g));
}

/// x `[N, C, H, W]` and the gradient of its pooled result → dx.
#[derive(Debug)]
struct PoolGrad(Windows);

impl Op for PoolGrad {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);

    fn name(&self) -> &'static str {
        "pool2d_grad"
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (windows, window) = (&self.0, &self.0.window);
        let (plane, pixels) = (window.plane(), window.pixels());
        let (x, g, out) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>());
        let all = out.chunks_mut(plane).zip(x.chunks(plane)).zip(g.chunks(pixels));
        if quarters::fits(window) {
            share(all, FEWEST, |((dx, x), g)| vectorised!(quarters::backward(window, windows.mode, x, g, dx)));
            return Ok(());
        }
        let divisors = windows.divisors()?;
        let terms = window.taps(); // the most for one pixel
        let memory = || Ok((zeros(pixels)?, zeros(pixels)?));
        try_share_with(all, FEWEST, memory, |(values, at): &mut (Vec<f32>, Vec<u32>), ((dx, x), g)| {
            if windows.mode == PoolMode::Max {
                vectorised!(largest(window, x, values, at));
                added(dx, terms, |dx| add_at(at, g, dx), |dx| add_at(at, g, dx));
                return Ok(());
            }
            values.iter_mut().zip(g).zip(&divisors).for_each(|((part, g), divisor)| *part = g / divisor);
            added(dx, terms, |dx| windows.spread(values, dx), |dx| windows.spread(values, dx));
            Ok(())
        })
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (windows, x, g) = (&self.0, &inputs[0], &inputs[1]);
        if windows.mode != PoolMode::Max {
            return Ok(vec![windows.kernel(Pass::Backward { taken: g.as_buffer() }, g, out)?]); // a mean reads no index
        }
        let taken = gpu.alloc(g.elem_count())?;
        let index = windows.kernel(Pass::Index, x, &taken)?;
        Ok(vec![index, windows.kernel(Pass::Backward { taken: &taken }, g, out)?])
    }
}

/// x `[N, C, H, W]` → the position of each window's maximum in its plane `[N, C, OH, OW]`, u32.
#[derive(Debug)]
pub(super) struct Positions(pub Windows);

impl Op for Positions {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);

    fn name(&self) -> &'static str {
        "max_pool2d_with_indices"
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::MaxPoolPositions(self.0.window))
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((self.0.output(inputs)?.0, DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (window, x, out) = (&self.0.window, inputs[0].slice::<f32>(), out.slice::<u32>());
        let planes = out.chunks_mut(window.pixels()).zip(x.chunks(window.plane()));
        let values = || zeros(window.pixels());
        try_share_with(planes, FEWEST, values, |values, (out, x)| {
            vectorised!(largest(window, x, values, out));
            Ok(())
        })
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        Ok(vec![self.0.kernel(Pass::Index, &inputs[0], out)?])
    }

    fn backward(&self, _ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![None]) // a position has no gradient
    }
}
