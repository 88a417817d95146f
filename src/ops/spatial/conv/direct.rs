//! Convolutions with few channels in each group (one in a depthwise convolution), for which a matrix product would
//! mostly multiply padding: plain sums, see `shaders/spatial/conv/conv_direct.wgsl`.

use super::geometry::Geometry;
use crate::device::gpu::{Buffer, Gpu, Kernel, PUT, params, shader};
use crate::error::Result;
use crate::ops::inputs::run_of;
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::spatial::window::{WINDOW, constants};
use crate::ops::stored::{HALVES, halves};
use crate::ops::{Dense, GpuIn};

params! {
    struct Params {
        count: usize,
        a_offset: usize,
        b_offset: usize,
        bias_offset: usize,
        images: usize,
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
shader!(SHADER: Params = "spatial/conv/conv_direct", after [WINDOW, HALVES, PUT]);

/// Output pixels that one invocation adds for the weight's gradient.
const RUN: usize = 1024;

/// A kernel of `conv_direct.wgsl`.
#[derive(Clone, Copy)]
pub(super) enum Direct {
    Forward,
    InputGrad,
    /// Parts of the sums, which [`weight_grad`] adds.
    WeightGrad,
}

impl Geometry {
    /// Returns a kernel of the convolution or of one of its gradients.
    pub fn direct_kernel(
        &self,
        entry: Direct,
        [a, b]: [&GpuIn<Dense>; 2],
        bias: Option<&GpuIn<Dense>>,
        out: &Buffer,
    ) -> Kernel {
        let (depth, wide) = (self.group_channels(), self.group_out());
        let image = |image: usize, terms: usize| {
            let run = run_of(self.images * image, terms * self.window.params.loops());
            (run, self.images.div_ceil(run) * image)
        };
        let (entry, (run, count)) = match entry {
            Direct::Forward => ("forward", image(self.out_image(), depth)),
            Direct::InputGrad => ("input_grad", image(self.image(), wide)),
            Direct::WeightGrad => ("weight_grad", (RUN, self.direct_parts() * self.groups * self.group_weights())),
        };
        let summand = bias.unwrap_or(a); // not read without a bias
        let params = Params {
            count,
            a_offset: a.offset(),
            b_offset: b.offset(),
            bias_offset: summand.offset(),
            images: self.images,
            run,
            channels: self.channels,
            out_channels: self.out_channels,
            depth,
            wide,
            height: self.window.size[0],
            width: self.window.size[1],
            out_y: self.window.out[0],
            out_x: self.window.out[1],
        };
        let kernel = Kernel::build(SHADER, entry, params).constants(constants(&self.window.params));
        let kernel = kernel.constant("A_HALVES", halves(a.dtype())).constant("B_HALVES", halves(b.dtype()));
        kernel.constant("HAS_BIAS", bias.is_some()).input(a).input(b).input(summand).output(out).each(count)
    }

    /// Returns the number of parts of the weight gradient's sums.
    fn direct_parts(&self) -> usize {
        (self.images * self.window.pixels()).div_ceil(RUN)
    }
}

pub(super) fn weight_grad(
    gpu: &Gpu,
    g: &Geometry,
    dy: &GpuIn<Dense>,
    x: &GpuIn<Dense>,
    out: &Buffer,
) -> Result<Vec<Kernel>> {
    let len = g.groups * g.group_weights();
    let parts = g.direct_parts();
    let partial = gpu.alloc(parts * len)?;
    let mut kernels = vec![g.direct_kernel(Direct::WeightGrad, [dy, x], None, &partial)];
    kernels.extend(sum_parts(gpu, &partial, [1, parts, len], out)?);
    Ok(kernels)
}
