//! Convolutions of few windows on the host, such as of pooled images and of short signals: the pixels of each
//! window are copied to a vector, and multiplied by each output channel's weights as they lie.

use super::Sizes;
use crate::matmul::dots::Dots;
use crate::matmul::plan::SMALL;
use crate::memory::{Result, scratch};
use crate::tasks::try_share;

pub(super) fn forward(g: &Sizes, x: &[f32], w: &[f32], bias: Option<&[f32]>, out: &mut [f32]) -> Result<()> {
    let (depth, wide, pixels) = (g.depth(), g.group_out(), g.window.pixels());
    let mut windows = scratch(g.images * g.groups * pixels * depth)?;
    windows.fill(0.0);
    for (windows, x) in windows.chunks_exact_mut(pixels * depth).zip(x.chunks(g.group_image().max(1))) {
        copy(g, x, windows);
    }
    let products = out.len() * depth;
    let parts = if products <= SMALL { 1 } else { rayon::current_num_threads().div_ceil(g.groups).min(wide) };
    let each = wide.div_ceil(parts);
    let mut tasks = Vec::with_capacity(g.images * g.groups * parts);
    for (at, out) in out.chunks_exact_mut(wide * pixels).enumerate() {
        tasks.extend(out.chunks_mut(each * pixels).enumerate().map(|(i, out)| (at, i * each, out)));
    }
    let compute = |(at, row, out): (usize, usize, &mut [f32])| {
        let channel = at % g.groups * wide + row;
        let rows = out.len() / pixels;
        let vectors = &windows[at * pixels * depth..][..pixels * depth];
        let start = bias.map(|bias| &bias[channel..channel + rows]);
        let dots = Dots { left: &w[channel * depth..], step: depth, rows, vectors, depth, start };
        dots.compute(pixels, out, [pixels, 1]);
        Ok(())
    };
    if products <= SMALL { tasks.into_iter().try_for_each(compute) } else { try_share(tasks, 1, compute) }
}

/// Copies the pixels of each window of a group, `[windows, depth]`. The padding has zeros already.
fn copy(g: &Sizes, x: &[f32], windows: &mut [f32]) {
    let (window, params) = (&g.window, &g.window.params);
    let [height, width] = window.size;
    let [rows, columns] = params.kernel;
    for (o, to) in windows.chunks_exact_mut(g.depth()).enumerate() {
        let (y, x_first) = (o / window.out[1] * params.stride[0], o % window.out[1] * params.stride[1]);
        // The columns of the kernel that read pixels of the image.
        let begin = params.padding[1].saturating_sub(x_first).div_ceil(params.dilation[1]).min(columns);
        let end = (width + params.padding[1]).saturating_sub(x_first).div_ceil(params.dilation[1]).min(columns);
        if begin >= end {
            continue;
        }
        let pixel = x_first + begin * params.dilation[1] - params.padding[1];
        for (to, x) in to.chunks_exact_mut(rows * columns).zip(x.chunks_exact(height * width)) {
            for (k, to) in to.chunks_exact_mut(columns).enumerate() {
                let line = (y + k * params.dilation[0]).checked_sub(params.padding[0]).filter(|line| *line < height);
                let Some(line) = line else { continue };
                let from = x[line * width + pixel..(line + 1) * width].iter().step_by(params.dilation[1]);
                to[begin..end].iter_mut().zip(from).for_each(|(to, v)| *to = *v);
            }
        }
    }
}
