//! Convolutions on software adapters that keep blocks of results in registers, see `shaders/spatial/conv/conv_registers.wgsl`: groups of few
//! channels, and results of few pixels, for which panels would be mostly padding, and writing them most of the time.

use super::geometry::Geometry;
use crate::device::gpu::{Buffer, Kernel, PUT, params, shader, wgsl};
use crate::ops::inputs::MAX_LOOPS;
use crate::ops::spatial::window::{WINDOW, constants};
use crate::ops::stored::{HALVES, halves};
use crate::ops::{Dense, GpuIn};

params! {
    struct Params {
        count: usize,
        x_offset: usize,
        w_offset: usize,
        bias_offset: usize,
        run: usize,
        channels: usize,
        out_channels: usize,
        depth: usize,
        wide: usize,
        height: usize,
        width: usize,
        out_y: usize,
        out_x: usize,
    }
}
shader!(TILES: Params = "spatial/conv/conv_tiles", after [WINDOW, HALVES, PUT, REGISTERS]);
shader!(POINTS: Params = "spatial/conv/conv_points", after [WINDOW, HALVES, PUT, REGISTERS]);

/// What both shaders read.
const REGISTERS: &str = wgsl!("spatial/conv/conv_registers");

/// Tiles of a workgroup; each of its 64 invocations computes four of them.
const RUN: usize = 256;
const TILES_EACH: usize = 4;

/// The most output pixels of all images for which weights are read from where they are: the time grows with the pixels, while
/// panels take the same for 1 and for 64 of them.
const MOST_POINTS: usize = 12;

/// Invocations of a workgroup of `points`, and the output channels of an invocation, which has as many pixels too.
const FEW: usize = 8;
const BLOCK: usize = 4;

/// Which of the two kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Registers {
    /// Tiles of pixels, for groups of few channels.
    Tiles,
    /// Single pixels.
    Points,
}

impl Geometry {
    /// Returns the kernel that adds the sums of the convolution in registers; `None` if there is none for its sizes.
    pub fn registers(&self) -> Option<Registers> {
        let params = &self.window.params;
        let [kernel_y, kernel_x] = params.kernel;
        let depth = self.group_channels();
        if self.is_thin() {
            let rows = kernel_y.saturating_add(params.stride[0]);
            let loops = rows.saturating_mul(kernel_x + 1).saturating_add(1).saturating_mul(TILES_EACH * depth);
            (params.dilation == [1, 1] && loops <= MAX_LOOPS).then_some(Registers::Tiles)
        } else {
            let loops = params.loops().saturating_add(1).saturating_mul(depth);
            let points = self.images * self.window.pixels();
            (self.groups == 1 && points <= MOST_POINTS && loops <= MAX_LOOPS).then_some(Registers::Points)
        }
    }

    /// Returns that kernel.
    pub fn forward_in_registers(
        &self,
        registers: Registers,
        [x, w]: [&GpuIn<Dense>; 2],
        bias: Option<&GpuIn<Dense>>,
        out: &Buffer,
    ) -> Kernel {
        let (window, [out_y, out_x]) = (&self.window, self.window.out);
        let (shader, entry, count, each, run) = match registers {
            Registers::Tiles => {
                let parts = (out_y.div_ceil(2) * out_x.div_ceil(4)).div_ceil(RUN);
                (TILES, "tiles", self.images * self.out_channels * parts, 1, RUN)
            }
            Registers::Points => {
                let points = self.images * window.pixels();
                (POINTS, "points", points.div_ceil(BLOCK) * self.out_channels.div_ceil(BLOCK), FEW, points)
            }
        };
        let summand = bias.unwrap_or(x); // not read without a bias
        let params = Params {
            count,
            x_offset: x.offset(),
            w_offset: w.offset(),
            bias_offset: summand.offset(),
            run,
            channels: self.channels,
            out_channels: self.out_channels,
            depth: self.group_channels(),
            wide: self.group_out(),
            height: window.size[0],
            width: window.size[1],
            out_y,
            out_x,
        };
        let kernel = Kernel::build(shader, entry, params).constants(constants(&window.params));
        let kernel = kernel.constant("X_HALVES", halves(x.dtype())).constant("W_HALVES", halves(w.dtype()));
        let kernel = kernel.constant("HAS_BIAS", bias.is_some()).input(x).input(w).input(summand).output(out);
        kernel.workgroups(count.div_ceil(each))
    }
}
