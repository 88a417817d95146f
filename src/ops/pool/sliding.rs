//! Max and average pooling over sliding windows, and their gradients.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid};
use crate::ops::window::{self, Window};
use crate::ops::{Gradient, Op, Spec, apply, expect_dtype, shader};
use crate::tensor::Tensor;

pub(in crate::ops) const MAX_SHADER: Shader = shader!("pool_max");
pub(in crate::ops) const AVG_SHADER: Shader = shader!("pool_avg");

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
    /// The rows (`d = 0`) or columns (`d = 1`) of the plane that window `o` reads: every `dilation`th of a range.
    fn reach(&self, d: usize, o: usize) -> Range<usize> {
        let moves = &self.window.moves;
        let (start, padding, dilation) = (o * moves.stride[d], moves.padding[d], moves.dilation[d]);
        // Most windows begin inside, and need no division.
        let outside = if start >= padding { 0 } else { (padding - start).next_multiple_of(dilation) };
        let end = (start + moves.span(d)).saturating_sub(padding).min(self.window.size[d]);
        (start + outside - padding).min(end)..end
    }

    /// The position of the first largest element of a window; none if the window holds no pixel.
    fn largest(&self, x: &[f32], oy: usize, ox: usize) -> Option<usize> {
        let [dy, dx] = self.window.moves.dilation;
        let (ys, xs) = (self.reach(0, oy), self.reach(1, ox));
        let width = self.window.size[1];
        let mut at = (!ys.is_empty() && !xs.is_empty()).then_some(ys.start * width + xs.start)?;
        for y in ys.step_by(dy) {
            for i in (y * width + xs.start..y * width + xs.end).step_by(dx) {
                if x[i] > x[at] || x[i].is_nan() {
                    at = i;
                }
            }
        }
        Some(at)
    }

    /// What a mean over window (oy, ox) is divided by.
    fn divisor(&self, oy: usize, ox: usize) -> f32 {
        let Window { moves, size, .. } = self.window;
        let counted = |d: usize, o: usize| {
            let (start, padding) = (o * moves.stride[d], moves.padding[d]);
            let end = (start + moves.kernel[d]).min(size[d] + 2 * padding);
            match self.kind {
                Kind::Avg { count_include_pad: false } => end.min(size[d] + padding) - start.max(padding),
                _ => end - start,
            }
        };
        (counted(0, oy) * counted(1, ox)) as f32
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
        let Window { size: [_, w], out: [_, ow], .. } = self.window;
        let (x, out) = (inputs[0].slice::<f32>(), out.slice::<f32>());
        let planes = out.par_chunks_mut(self.window.pixels()).zip(x.par_chunks(self.window.plane()));
        planes.with_min_len(16).for_each(|(out, x)| {
            for (oy, line) in out.chunks_mut(ow).enumerate() {
                if self.kind == Kind::Max {
                    let value = |ox| self.largest(x, oy, ox).map_or(f32::NEG_INFINITY, |at| x[at]);
                    line.iter_mut().enumerate().for_each(|(ox, v)| *v = value(ox));
                    continue;
                }
                let rows = self.reach(0, oy);
                for (ox, v) in line.iter_mut().enumerate() {
                    let columns = self.reach(1, ox);
                    let sum: f32 = rows.clone().map(|y| x[y * w..][columns.clone()].iter().sum::<f32>()).sum();
                    *v = sum / self.divisor(oy, ox);
                }
            }
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
        let windows = &self.0;
        let Window { size: [_, w], out: [_, ow], .. } = windows.window;
        let (plane, pixels) = (windows.window.plane(), windows.window.pixels());
        let (x, g, out) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>());
        let all = out.par_chunks_mut(plane).zip(x.par_chunks(plane)).zip(g.par_chunks(pixels)).with_min_len(16);
        all.for_each(|((dx, x), g)| {
            dx.fill(0.0);
            for ((oy, ox), &g) in (0..pixels / ow).flat_map(|oy| (0..ow).map(move |ox| (oy, ox))).zip(g) {
                if windows.kind == Kind::Max {
                    if let Some(at) = windows.largest(x, oy, ox) {
                        dx[at] += g;
                    }
                    continue;
                }
                let part = g / windows.divisor(oy, ox);
                for y in windows.reach(0, oy) {
                    dx[y * w..][windows.reach(1, ox)].iter_mut().for_each(|v| *v += part);
                }
            }
        });
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
