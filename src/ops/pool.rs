//! Max and average pooling over sliding windows, and their gradients.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::conv::{output_size, window_constants};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid};
use crate::ops::{Gradient, Op, Spec, apply, expect_dtype, shader};
use crate::tensor::Tensor;

pub(super) const SHADER: Shader = shader!("pool");

/// The most loop iterations of one invocation.
const MAX_LOOPS: usize = 60_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Max,
    Avg,
}

/// Windows of one shape over `[.., H, W]`.
#[derive(Clone, Copy, Debug)]
struct Windows {
    kind: Kind,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
}

/// The sizes of a pooled plane and its result.
#[derive(Clone, Copy)]
struct Planes {
    size: [usize; 2],
    out: [usize; 2],
}

impl Windows {
    fn planes(&self, shape: &[usize]) -> Result<Planes> {
        let &[_, _, h, w] = shape else {
            return Err(Error::argument("pool2d", format!("the input is [N, C, H, W], not {shape:?}")));
        };
        if (0..2).any(|d| self.padding[d] * 2 > self.kernel[d]) {
            let detail = format!("padding {:?} must be at most half the kernel {:?}", self.padding, self.kernel);
            return Err(Error::argument("pool2d", detail));
        }
        if h == 0 || w == 0 {
            return Err(Error::argument("pool2d", format!("the planes of {shape:?} have no pixels")));
        }
        let out = output_size("pool2d", [h, w], self.kernel, self.stride, self.padding)?;
        Ok(Planes { size: [h, w], out })
    }

    /// The rows (`d = 0`) or columns (`d = 1`) of the plane that window `o` covers.
    fn span(&self, planes: &Planes, d: usize, o: usize) -> std::ops::Range<usize> {
        let start = o * self.stride[d];
        let within = |v: usize| v.saturating_sub(self.padding[d]).min(planes.size[d]);
        within(start)..within(start + self.kernel[d])
    }

    /// The position of the first largest element of a window.
    fn largest(&self, planes: &Planes, x: &[f32], oy: usize, ox: usize) -> usize {
        let (ys, xs) = (self.span(planes, 0, oy), self.span(planes, 1, ox));
        let mut at = ys.start * planes.size[1] + xs.start;
        for y in ys {
            for i in y * planes.size[1] + xs.start..y * planes.size[1] + xs.end {
                if x[i] > x[at] || x[i].is_nan() {
                    at = i;
                }
            }
        }
        at
    }

    /// Refuses windows for which one invocation would loop longer than some drivers allow (they stop in silence).
    fn check_loops(&self, entry: &str) -> Result<()> {
        let window = self.kernel[0].saturating_mul(self.kernel[1] + 1);
        let [rows, columns] = [0, 1].map(|d| self.kernel[d].div_ceil(self.stride[d]) + 1);
        let loops = match entry {
            "max_backward" => rows.saturating_mul(columns).saturating_mul(window + 1),
            "avg_backward" => rows.saturating_mul(columns + 1),
            _ => window,
        };
        if loops <= MAX_LOOPS {
            return Ok(());
        }
        let (kernel, stride) = (self.kernel, self.stride);
        let detail = format!(
            "windows {kernel:?} with stride {stride:?} take {loops} steps for one element, more than the {MAX_LOOPS} \
             that every adapter can: pool in two stages, or on cpu"
        );
        Err(Error::argument("pool2d", detail))
    }

    fn area(&self) -> f32 {
        (self.kernel[0] * self.kernel[1]) as f32
    }

    fn kernel(
        &self,
        entry: &'static str,
        (planes, count): (Planes, usize),
        inputs: &[&GpuIn],
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        self.check_loops(entry)?;
        let mut params = vec![fits_u32("pool2d", count)?];
        params.extend(inputs.iter().map(|x| x.offset()));
        Ok(vec![Kernel {
            shader: SHADER,
            entry,
            header: "",
            constants: window_constants(planes.size, self.kernel, self.stride, self.padding, planes.out),
            params,
            inputs: inputs.iter().map(|x| x.buffer.clone()).collect(),
            outputs: vec![out.clone()],
            groups: grid(count),
        }])
    }
}

impl Op for Windows {
    fn name(&self) -> &'static str {
        if self.kind == Kind::Max { "max_pool2d" } else { "avg_pool2d" }
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        expect_dtype(self.name(), inputs[0], DType::F32)?;
        let [h, w] = self.planes(inputs[0].shape())?.out;
        Ok(Spec::Fresh(vec![inputs[0].shape()[0], inputs[0].shape()[1], h, w], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let planes = self.planes(&inputs[0].layout.shape)?;
        let ([h, w], [oh, ow]) = (planes.size, planes.out);
        let (x, out) = (inputs[0].slice::<f32>(), out.slice::<f32>());
        out.par_chunks_mut(oh * ow).zip(x.par_chunks(h * w)).with_min_len(16).for_each(|(out, x)| {
            for (oy, line) in out.chunks_mut(ow).enumerate() {
                match self.kind {
                    Kind::Max => {
                        line.iter_mut().enumerate().for_each(|(ox, v)| *v = x[self.largest(&planes, x, oy, ox)]);
                    }
                    Kind::Avg => {
                        let rows = self.span(&planes, 0, oy);
                        for (ox, v) in line.iter_mut().enumerate() {
                            let columns = self.span(&planes, 1, ox);
                            let sum: f32 = rows.clone().map(|y| x[y * w..][columns.clone()].iter().sum::<f32>()).sum();
                            *v = sum / self.area();
                        }
                    }
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let shape = &inputs[0].layout.shape;
        let planes = self.planes(shape)?;
        let entry = if self.kind == Kind::Max { "max_forward" } else { "avg_forward" };
        self.kernel(entry, (planes, shape[0] * shape[1] * planes.out[0] * planes.out[1]), &[&inputs[0]], out)
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
        let planes = windows.planes(&inputs[0].layout.shape)?;
        let ([h, w], [oh, ow]) = (planes.size, planes.out);
        let (x, g, out) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>());
        let all = out.par_chunks_mut(h * w).zip(x.par_chunks(h * w)).zip(g.par_chunks(oh * ow)).with_min_len(16);
        all.for_each(|((dx, x), g)| {
            dx.fill(0.0);
            for (o, &g) in g.iter().enumerate() {
                let (oy, ox) = (o / ow, o % ow);
                if windows.kind == Kind::Max {
                    dx[windows.largest(&planes, x, oy, ox)] += g;
                    continue;
                }
                for y in windows.span(&planes, 0, oy) {
                    let columns = windows.span(&planes, 1, ox);
                    dx[y * w..][columns].iter_mut().for_each(|v| *v += g / windows.area());
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, g) = (&inputs[0], &inputs[1]);
        let place = (self.0.planes(&x.layout.shape)?, x.layout.elem_count());
        match self.0.kind {
            Kind::Max => self.0.kernel("max_backward", place, &[x, g], out),
            Kind::Avg => self.0.kernel("avg_backward", place, &[g], out),
        }
    }
}

impl Tensor {
    /// The largest element of each window: `[N, C, H, W]` → `[N, C, (H + 2p − k) / s + 1, (W + 2p − k) / s + 1]`.
    /// Arguments are `[vertical, horizontal]`. The gradient goes to the first of equal maxima.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the input has another rank, the window does not fit, the stride is 0 or the padding
    /// is more than half the window; [`Error::DTypeMismatch`] unless f32.
    pub fn max_pool2d(&self, kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> Result<Tensor> {
        apply(Windows { kind: Kind::Max, kernel, stride, padding }, &[&self.contiguous()?])
    }

    /// The mean of each window, padding counted as zeros: shapes and arguments as [`Tensor::max_pool2d`].
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([[1.0, 2.0], [3.0, 6.0]])?.reshape([1, 1, 2, 2])?;
    /// assert_eq!(x.avg_pool2d([2, 2], [2, 2], [0, 0])?.to_vec::<f32>()?, [3.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn avg_pool2d(&self, kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> Result<Tensor> {
        apply(Windows { kind: Kind::Avg, kernel, stride, padding }, &[&self.contiguous()?])
    }
}
