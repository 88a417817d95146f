//! Convolutions with few channels in each group (one in a depthwise convolution), for which a matrix product would
//! mostly multiply padding: plain sums, see `shaders/conv_direct.wgsl`.

use rayon::prelude::*;

use super::geometry::{Geometry, add};
use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::error::Result;
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::spatial::window::WINDOW;
use crate::ops::sums::product;
use crate::ops::{Dense, GpuIn};

params! {
    struct Params { count: usize, a_offset: usize, b_offset: usize, bias_offset: usize, pixels: usize, run: usize }
}
shader!(SHADER: Params = "conv_direct", after [WINDOW]);

/// Output pixels that one invocation adds for the weight's gradient.
const RUN: usize = 1024;

/// The differences between the three kernels.
struct Work<'a> {
    entry: &'static str,
    inputs: [&'a GpuIn<'a, Dense>; 2],
    bias: Option<&'a GpuIn<'a, Dense>>,
    out: &'a Buffer,
    count: usize,
}

impl Geometry {
    fn direct_kernel(&self, work: &Work) -> Kernel {
        let [a, b] = work.inputs;
        let bias = work.bias.unwrap_or(a);
        let params = Params {
            count: work.count,
            a_offset: a.offset(),
            b_offset: b.offset(),
            bias_offset: bias.offset(),
            pixels: self.images * self.window.pixels(),
            run: RUN,
        };
        let sizes = [
            ("CHANNELS", self.channels),
            ("OUT_CHANNELS", self.out_channels),
            ("DEPTH", self.group_channels()),
            ("WIDE", self.group_out()),
        ];
        let kernel = Kernel::build(SHADER, work.entry, params).constants(self.window.constants()).constants(sizes);
        let kernel = kernel.constant("HAS_BIAS", work.bias.is_some()).input(a).input(b).input(bias);
        kernel.output(work.out).each(work.count)
    }
}

pub(super) fn forward(
    g: &Geometry,
    x: &GpuIn<Dense>,
    w: &GpuIn<Dense>,
    bias: Option<&GpuIn<Dense>>,
    out: &Buffer,
) -> Kernel {
    g.direct_kernel(&Work { entry: "forward", inputs: [x, w], bias, out, count: g.images * g.out_image() })
}

pub(super) fn input_grad(g: &Geometry, dy: &GpuIn<Dense>, w: &GpuIn<Dense>, out: &Buffer) -> Kernel {
    g.direct_kernel(&Work { entry: "input_grad", inputs: [dy, w], bias: None, out, count: g.images * g.image() })
}

pub(super) fn weight_grad(
    gpu: &Gpu,
    g: &Geometry,
    dy: &GpuIn<Dense>,
    x: &GpuIn<Dense>,
    out: &Buffer,
) -> Result<Vec<Kernel>> {
    let len = g.groups * g.group_weights();
    let parts = (g.images * g.window.pixels()).div_ceil(RUN);
    let partial = gpu.alloc(parts * len)?;
    let work = Work { entry: "weight_grad", inputs: [dy, x], bias: None, out: &partial, count: parts * len };
    let mut kernels = vec![g.direct_kernel(&work)];
    kernels.extend(sum_parts(gpu, &partial, [1, parts, len], out)?);
    Ok(kernels)
}

/// Computes the convolution on the host, plane by plane; `fill` writes the bias of an output channel.
pub(super) fn cpu_forward(
    g: &Geometry,
    x: &[f32],
    w: &[f32],
    out: &mut [f32],
    fill: impl Fn(&mut [f32], usize) + Send + Sync,
) {
    let (pixels, plane, taps, stride) =
        (g.window.pixels(), g.window.plane(), g.window.taps(), g.window.params.stride[1]);
    let (deep, wide) = (g.group_channels(), g.group_out());
    out.par_chunks_mut(pixels).enumerate().for_each(|(at, y)| {
        let (n, o) = (at / g.out_channels, at % g.out_channels);
        fill(y, o);
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
    let (pixels, plane, taps, stride) =
        (g.window.pixels(), g.window.plane(), g.window.taps(), g.window.params.stride[1]);
    let (deep, wide) = (g.group_channels(), g.group_out());
    out.par_chunks_mut(plane).enumerate().for_each(|(at, dx)| {
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
    let (pixels, plane, taps, stride) =
        (g.window.pixels(), g.window.plane(), g.window.taps(), g.window.params.stride[1]);
    let (deep, wide) = (g.group_channels(), g.group_out());
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
