//! Convolutions with few channels in each group (one in a depthwise convolution), for which a matrix product would
//! mostly multiply padding: plain sums, see `shaders/conv_direct.wgsl`.

use super::geometry::{Geometry, add};
use crate::device::cpu::tasks::share;
use crate::device::gpu::{Buffer, Gpu, Kernel, PUT, params, shader};
use crate::error::Result;
use crate::ops::inputs::run_of;
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::spatial::window::WINDOW;
use crate::ops::stored::{HALVES, halves};
use crate::ops::sums::product;
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
shader!(SHADER: Params = "conv_direct", after [WINDOW, HALVES, PUT]);

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
        let kernel = Kernel::build(SHADER, entry, params).constants(self.window.params.constants());
        let kernel = kernel.constant("A_HALVES", halves(a.dtype())).constant("B_HALVES", halves(b.dtype()));
        kernel.constant("HAS_BIAS", bias.is_some()).input(a).input(b).input(summand).output(out).each(count)
    }

    /// Returns the number of parts of the weight gradient's sums.
    fn direct_parts(&self) -> usize {
        (self.images * self.window.pixels()).div_ceil(RUN)
    }

    /// Returns the pixels of an output and of an input plane, the positions of a kernel, the distance between pixels, and
    /// the channels and output channels of a group.
    fn direct_sizes(&self) -> [usize; 6] {
        let window = &self.window;
        let stride = window.params.stride[1];
        [window.pixels(), window.plane(), window.taps(), stride, self.group_channels(), self.group_out()]
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

/// Products that one thread computes by these loops, which are slower than those of columns, in the time that it takes to wake
/// another one.
const SMALL: usize = 1 << 16;

/// Computes the convolution on the host, plane by plane.
pub(super) fn cpu_forward(g: &Geometry, x: &[f32], w: &[f32], bias: Option<&[f32]>, out: &mut [f32]) {
    let [pixels, plane, taps, stride, deep, wide] = g.direct_sizes();
    // Planes of so little work that waking another thread takes longer are one task.
    let planes = (SMALL / (pixels * taps * deep).max(1)).max(1);
    share(out.chunks_mut(pixels).enumerate(), planes, |(at, y)| {
        let (n, o) = (at / g.out_channels, at % g.out_channels);
        y.fill(bias.map_or(0.0, |bias| bias[o]));
        for c in 0..deep {
            let x = &x[(n * g.channels + o / wide * deep + c) * plane..][..plane];
            for (tap, &w) in w[(o * deep + c) * taps..][..taps].iter().enumerate() {
                g.window.rows(tap, |o, i, len| {
                    let y = &mut y[o..o + len];
                    if stride == 1 {
                        y.iter_mut().zip(&x[i..]).for_each(|(y, v)| *y += w * v);
                    } else {
                        y.iter_mut().zip(x[i..].iter().step_by(stride)).for_each(|(y, v)| *y += w * v);
                    }
                });
            }
        }
    });
}

pub(super) fn cpu_input_grad(g: &Geometry, dy: &[f32], w: &[f32], out: &mut [f32]) {
    let [pixels, plane, taps, stride, deep, wide] = g.direct_sizes();
    share(out.chunks_mut(plane).enumerate(), 1, |(at, dx)| {
        let (n, c) = (at / g.channels, at % g.channels);
        dx.fill(0.0);
        for o in c / deep * wide..(c / deep + 1) * wide {
            let dy = &dy[(n * g.out_channels + o) * pixels..][..pixels];
            for (tap, &w) in w[(o * deep + c % deep) * taps..][..taps].iter().enumerate() {
                g.window.rows(tap, |o, i, len| add(&mut dx[i..], stride, &dy[o..o + len], w));
            }
        }
    });
}

/// Adds the part of one image: dy `[OC, OH, OW]`, x `[C, H, W]`.
pub(super) fn cpu_weight_grad(g: &Geometry, dy: &[f32], x: &[f32], dw: &mut [f64]) {
    let [pixels, plane, taps, stride, deep, wide] = g.direct_sizes();
    for (at, dw) in dw.chunks_mut(taps).enumerate() {
        let (o, c) = (at / deep, at % deep);
        let (dy, x) = (&dy[o * pixels..][..pixels], &x[(o / wide * deep + c) * plane..][..plane]);
        for (tap, dw) in dw.iter_mut().enumerate() {
            g.window.rows(tap, |o, i, len| {
                *dw += product(&dy[o..o + len], &x[i..], stride);
            });
        }
    }
}
