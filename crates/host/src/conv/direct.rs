//! Convolutions with few channels in each group (one in a depthwise convolution), for which a matrix product would mostly multiply
//! padding: plain sums.

use super::columns::by_parts;
use super::{Sizes, add};
use crate::memory::Result;
use crate::sums::product;
use crate::tasks::share;

/// Returns the pixels of an output and of an input plane, the positions of a kernel, the distance between pixels, and
/// the channels and output channels of a group.
fn sizes(g: &Sizes) -> [usize; 6] {
    let window = &g.window;
    let stride = window.params.stride[1];
    [window.pixels(), window.plane(), window.taps(), stride, g.group_channels(), g.group_out()]
}

/// The most products that one thread computes by these loops in the time that it takes to wake another one. The
/// loops are slower than products of columns.
const SMALL: usize = 1 << 16;

/// Computes the convolution on the host, plane by plane.
pub(super) fn forward(g: &Sizes, x: &[f32], w: &[f32], bias: Option<&[f32]>, out: &mut [f32]) {
    let [pixels, plane, taps, stride, deep, wide] = sizes(g);
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

pub(super) fn input_grad(g: &Sizes, dy: &[f32], w: &[f32], out: &mut [f32]) {
    let [pixels, plane, taps, stride, deep, wide] = sizes(g);
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

pub(super) fn weight_grad(g: &Sizes, dy: &[f32], x: &[f32], dw: &mut [f32]) -> Result<()> {
    by_parts(g, dw, |images, _, dw| {
        let mut sums = vec![0f64; dw.len()];
        let images = dy.chunks_exact(g.out_image()).zip(x.chunks_exact(g.image())).take(images.end).skip(images.start);
        images.for_each(|(dy, x)| add_image(g, dy, x, &mut sums));
        dw.iter_mut().zip(sums).for_each(|(dw, sum)| *dw = sum as f32);
        Ok(())
    })
}

/// Adds the part of one image: dy `[OC, OH, OW]`, x `[C, H, W]`.
fn add_image(g: &Sizes, dy: &[f32], x: &[f32], dw: &mut [f64]) {
    let [pixels, plane, taps, stride, deep, wide] = sizes(g);
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
