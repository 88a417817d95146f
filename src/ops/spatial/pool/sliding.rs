//! Max and average pooling over sliding windows, and their gradients.

use std::sync::Arc;

use anygpu_host::pool::{self, Mode};
use anygpu_host::window::Window;

use crate::device::cpu::{host_error, with_room};
use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::inputs::{loops_within, run_of};
use crate::ops::names::{Names, names};
use crate::ops::spatial::window::{WINDOW, constants};
use crate::ops::traced::Traced;
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
shader!(SHADER: Params = "spatial/pool", after [WINDOW]);

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
    pub mode: Mode,
    pub window: Window,
}

impl Windows {
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
        let kernel = Kernel::build(SHADER, entry, params).constants(constants(&self.window.params)).input(x);
        let count_pad = self.mode != Mode::Avg { count_include_pad: false };
        let kernel = kernel.constant("MAX", self.mode == Mode::Max).constant("COUNT_PAD", count_pad);
        let kernel = if let Pass::Backward { taken } = pass { kernel.input(taken) } else { kernel };
        Ok(kernel.output(out).each(count))
    }
}

impl Op for Windows {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = names!["max_pool2d", "avg_pool2d"];

    fn name(&self) -> &'static str {
        if self.mode == Mode::Max { "max_pool2d" } else { "avg_pool2d" }
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        let window = self.window;
        Some(match self.mode {
            Mode::Max => Traced::MaxPool(window),
            Mode::Avg { count_include_pad } => {
                let mut divisors = with_room(window.pixels()).ok()?;
                divisors.resize(window.pixels(), 0.0);
                pool::divisors(&window, self.mode, &mut divisors);
                Traced::AvgPool { window, count_pad: count_include_pad, divisors }
            }
        })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let (shape, [h, w]) = (inputs[0].shape(), self.window.out);
        Ok((vec![shape[0], shape[1], h, w], inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        pool::forward(&self.window, self.mode, inputs[0].slice(), out.slice()).map_err(host_error)
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

/// x `[N, C, H, W]` and the gradient of its pooled result → dx.
#[derive(Debug)]
struct PoolGrad(Windows);

impl Op for PoolGrad {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = names!["pool2d_grad"];

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let Windows { window, mode } = &self.0;
        pool::backward(window, *mode, [inputs[0].slice(), inputs[1].slice()], out.slice()).map_err(host_error)
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (windows, x, g) = (&self.0, &inputs[0], &inputs[1]);
        if windows.mode != Mode::Max {
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
    const NAMES: Names = names!["max_pool2d_with_indices"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::MaxPoolPositions(self.0.window))
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((self.0.output(inputs)?.0, DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        pool::positions(&self.0.window, inputs[0].slice(), out.slice()).map_err(host_error)
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        Ok(vec![self.0.kernel(Pass::Index, &inputs[0], out)?])
    }

    fn backward(&self, _ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![None]) // a position has no gradient
    }
}
