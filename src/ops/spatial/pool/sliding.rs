//! Max and average pooling over sliding windows, and their gradients.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid};
use crate::ops::spatial::window::{self, Window};
use crate::ops::sums::{Sum, added};
use crate::ops::{Gradient, Op, Spec, apply, expect_dtype, shader};
use crate::tensor::Tensor;

pub(in crate::ops) const MAX_SHADER: Shader = shader!("pool_max");
pub(in crate::ops) const AVG_SHADER: Shader = shader!("pool_avg");

/// No position.
const NONE: u32 = u32::MAX;

/// The most loop iterations of one invocation.
const MAX_LOOPS: usize = 60_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Max,
    Avg { count_include_pad: bool },
}

/// x `[N, C, H, W]` → `[N, C, OH, OW]`
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    pub kind: Kind,
    pub window: Window,
}

impl Windows {
    /// The largest element of every window of a plane and its position, the first of equal ones; −∞ and `NONE` for a
    /// window that holds no pixel. NaN wins.
    fn largest(&self, x: &[f32], best: &mut [f32], at: &mut [u32]) {
        best.fill(f32::NEG_INFINITY);
        at.fill(NONE);
        for tap in 0..self.window.taps() {
            self.window.rows(tap, |o, i, len| {
                let pixels = (i..).step_by(self.window.moves.stride[1]);
                for ((best, at), i) in best[o..o + len].iter_mut().zip(&mut at[o..o + len]).zip(pixels) {
                    let v = x[i];
                    if v > *best || v.is_nan() || *at == NONE {
                        (*best, *at) = (v, i as u32);
                    }
                }
            });
        }
    }

    /// Adds to every window the pixels of it.
    fn add(&self, x: &[f32], sums: &mut [impl Sum]) {
        for tap in 0..self.window.taps() {
            self.window.rows(tap, |o, i, len| {
                let pixels = x[i..].iter().step_by(self.window.moves.stride[1]);
                sums[o..o + len].iter_mut().zip(pixels).for_each(|(sum, &x)| sum.take(x));
            });
        }
    }

    /// Adds to every pixel the parts of the windows that it is in.
    fn spread(&self, parts: &[f32], dx: &mut [impl Sum]) {
        for tap in 0..self.window.taps() {
            self.window.rows(tap, |o, i, len| {
                let pixels = dx[i..].iter_mut().step_by(self.window.moves.stride[1]);
                pixels.zip(&parts[o..o + len]).for_each(|(dx, &part)| dx.take(part));
            });
        }
    }

    /// What the means over the windows of a plane are divided by.
    fn divisors(&self) -> Vec<f32> {
        let Window { moves, size, .. } = self.window;
        let counted = |d: usize, o: usize| {
            let (start, padding) = (o * moves.stride[d], moves.padding[d]);
            let end = (start + moves.kernel[d]).min(size[d] + 2 * padding);
            match self.kind {
                Kind::Avg { count_include_pad: false } => end.min(size[d] + padding) - start.max(padding),
                _ => end - start,
            }
        };
        let [height, width] = self.window.out;
        (0..height * width).map(|o| (counted(0, o / width) * counted(1, o % width)) as f32).collect()
    }

    /// Refuses windows for which one invocation would loop longer than some drivers allow (they stop in silence).
    fn check_loops(&self, entry: &str) -> Result<()> {
        let moves = &self.window.moves;
        let per_pixel =
            |d: usize| moves.span(d).min(self.window.size[d] + moves.padding[d]).div_ceil(moves.stride[d]) + 1;
        let loops = match entry {
            "backward" => per_pixel(0).saturating_mul(per_pixel(1) + 1),
            _ => moves.kernel[0].saturating_mul(moves.kernel[1] + 1),
        };
        if loops <= MAX_LOOPS {
            return Ok(());
        }
        let detail = format!(
            "windows {:?} with stride {:?} take {loops} steps for one element, more than the {MAX_LOOPS} that every \
             adapter can: pool in two stages, or on cpu",
            moves.kernel, moves.stride
        );
        Err(Error::argument(self.name(), detail))
    }

    fn kernel(&self, entry: &'static str, inputs: &[(&Buffer, usize)], out: &Buffer, count: usize) -> Result<Kernel> {
        self.check_loops(entry)?;
        let mut constants = self.window.constants();
        let shader = match self.kind {
            Kind::Max => MAX_SHADER,
            Kind::Avg { count_include_pad } => {
                constants.push(("COUNT_PAD", f64::from(u8::from(count_include_pad))));
                AVG_SHADER
            }
        };
        let offset = |i: usize| inputs.get(i).map_or(0, |&(_, offset)| offset as u32);
        Ok(Kernel {
            shader,
            entry,
            header: window::HEADER.source,
            constants,
            params: vec![fits_u32(self.name(), count)?, offset(0), offset(1), f32::NEG_INFINITY.to_bits()],
            inputs: inputs.iter().map(|&(buffer, _)| buffer.clone()).collect(),
            outputs: vec![out.clone()],
            groups: grid(count),
        })
    }
}

impl Op for Windows {
    fn name(&self) -> &'static str {
        if self.kind == Kind::Max { "max_pool2d" } else { "avg_pool2d" }
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        expect_dtype(self.name(), inputs[0], DType::F32)?;
        let (shape, [h, w]) = (inputs[0].shape(), self.window.out);
        Ok(Spec::Fresh(vec![shape[0], shape[1], h, w], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let (window, x, out) = (&self.window, inputs[0].slice::<f32>(), out.slice::<f32>());
        let planes = out.par_chunks_mut(window.pixels()).zip(x.par_chunks(window.plane())).with_min_len(16);
        if self.kind == Kind::Max {
            planes.for_each_init(|| vec![0; window.pixels()], |at, (out, x)| self.largest(x, out, at));
            return Ok(());
        }
        let divisors = self.divisors();
        planes.for_each(|(out, x)| {
            added(out, window.taps(), |out| self.add(x, out), |out| self.add(x, out));
            out.iter_mut().zip(&divisors).for_each(|(out, divisor)| *out /= divisor);
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let count = x.layout.shape[0] * x.layout.shape[1] * self.window.pixels();
        Ok(vec![self.kernel("forward", &[(x.buffer, x.layout.offset)], out, count)?])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let grad = apply(PoolGrad(*self), &[&ctx.inputs[0].detach(), &ctx.grad.contiguous()?])?;
        Ok(vec![Some(grad)])
    }
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
    fn name(&self) -> &'static str {
        "pool2d_grad"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        Ok(Spec::Fresh(inputs[0].shape().to_vec(), DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let (windows, window) = (&self.0, &self.0.window);
        let (plane, pixels) = (window.plane(), window.pixels());
        let (x, g, out) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>());
        let all = out.par_chunks_mut(plane).zip(x.par_chunks(plane)).zip(g.par_chunks(pixels)).with_min_len(16);
        let divisors = windows.divisors();
        let terms = window.taps(); // at most, for one pixel
        all.for_each_init(
            || (vec![0.0; pixels], vec![0; pixels]),
            |(values, at), ((dx, x), g)| {
                if windows.kind == Kind::Max {
                    windows.largest(x, values, at);
                    return added(dx, terms, |dx| add_at(at, g, dx), |dx| add_at(at, g, dx));
                }
                values.iter_mut().zip(g).zip(&divisors).for_each(|((part, g), divisor)| *part = g / divisor);
                added(dx, terms, |dx| windows.spread(values, dx), |dx| windows.spread(values, dx));
            },
        );
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let windows = &self.0;
        let [x, g] = [0, 1].map(|i| (inputs[i].buffer, inputs[i].layout.offset));
        let (count, results) = (inputs[0].layout.elem_count(), inputs[1].layout.elem_count());
        if windows.kind != Kind::Max {
            return Ok(vec![windows.kernel("backward", &[g], out, count)?]);
        }
        let taken = gpu.alloc(results)?;
        let index = windows.kernel("index", &[x], &taken, results)?;
        Ok(vec![index, windows.kernel("backward", &[(&taken, 0), g], out, count)?])
    }
}
