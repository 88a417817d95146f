//! Convolutions of several images with small planes on the host: for each pixel of the result a product whose rows are the
//! images, `[images, channels] · [channels, output channels]`, summed over the positions of the kernel that read a pixel
//! of the image. So the padding is not multiplied, which is most of what a kernel reads on planes of 3 × 3 pixels, nor are
//! the pixels between the windows of a stride.
//!
//! Images are `[group of images, block of channels, pixel, image, channel of the block]`, as the products read them.

use std::ops::Range;

use super::Sizes;
use super::columns::{Task, tasks};
use super::lanes::{Planes, from_lanes, kernels, to_lanes};
use crate::matmul::lane_sums::{LaneSums, Lie, Part};
use crate::matmul::tiles::panel_width;
use crate::memory::{Result, Scratch, scratch};
use crate::tasks::{share, try_share};

/// The fewest and the most images of a group, and the approximate number of elements of a group's planes.
pub(super) const IMAGES: [usize; 2] = [8, 32];
const GROUP: usize = 256 << 10;

/// The approximate number of elements of the images that are copied at a time.
const STEP: usize = 4 << 20;

/// The output channels of a task of the weight's gradient.
const ROWS: usize = 16;

impl Sizes {
    /// Returns the groups of images, and how many of them are computed at a time.
    fn image_groups(&self) -> (Vec<Range<usize>>, usize) {
        let elements = self.planes().map(|planes| planes.elements());
        let each = (GROUP / elements[0].max(elements[1]).max(1) / IMAGES[0] * IMAGES[0]).clamp(IMAGES[0], IMAGES[1]);
        let groups = (0..self.images).step_by(each).map(|first| first..self.images.min(first + each));
        (groups.collect(), (STEP / (each * (elements[0] + elements[1])).max(1)).max(1))
    }
}

/// Copies some groups of images to vectors.
fn copied(planes: &Planes, x: &[f32], groups: &[Range<usize>]) -> Result<Scratch> {
    let (width, blocks, plane) = (panel_width(), planes.blocks(), planes.plane());
    let each = groups.first().map_or(0, Range::len);
    let mut all = scratch(groups.len() * each * planes.elements())?;
    share(all.chunks_mut((plane * each * width).max(1)).enumerate(), 1, |(i, to)| {
        let (images, block) = (&groups[i / blocks], i % blocks);
        for (i, image) in images.clone().enumerate() {
            let x = &x[(image * planes.channels + block * width) * plane..];
            to_lanes(x, plane, (planes.channels_of(block), 0..plane), &mut to[i * width..], images.len() * width);
        }
    });
    Ok(all)
}

/// Computes the convolution, or, if `backward`, the gradient of its input, from that of its result and without a bias.
pub(super) fn convolve(
    g: &Sizes,
    backward: bool,
    (x, w, bias): (&[f32], &[f32], Option<&[f32]>),
    out: &mut [f32],
) -> Result<()> {
    let ([from, to], reads) = g.sides(backward);
    let (taps, width) = (g.window.taps(), panel_width());
    let weights = kernels(w, taps, [from.channels, to.channels], backward, taps, |kernel, term, to| {
        let place = to.len() / taps;
        for (to, tap) in to.chunks_exact_mut(place).zip(kernel.chunks_exact(width)) {
            to[term * width..][..width].copy_from_slice(tap);
        }
    })?;
    let (groups, some) = g.image_groups();
    let each = groups.first().map_or(1, Range::len);
    let parts: Vec<_> = (0..to.blocks()).map(|i| (0, i * width..to.channels.min((i + 1) * width))).collect();
    let image = to.channels * to.plane();
    for (groups, out) in groups.chunks(some).zip(out.chunks_mut((some * each * image).max(1))) {
        let x = copied(&from, x, groups)?;
        // The last of these groups may be the only one, with fewer images.
        let apart = groups.first().map_or(1, Range::len);
        try_share(tasks(out, (image, to.plane()), each, &parts), 1, |task| {
            let x = &x[task.images.start * from.elements()..];
            let weights = &weights[task.planes.start * taps * from.channels..];
            convolve_task([&from, &to], [x, weights], (bias, apart), &reads, task)
        })?;
    }
    Ok(())
}

/// Computes a block of channels of a group of images; the blocks of `x` have room for `each` images.
fn convolve_task(
    [from, to]: [&Planes; 2],
    [x, weights]: [&[f32]; 2],
    (bias, each): (Option<&[f32]>, usize),
    reads: &[Vec<[usize; 2]>],
    mut task: Task,
) -> Result<()> {
    let (width, images) = (panel_width(), task.out.len());
    let mut sums = scratch(to.plane() * images * width)?;
    let mut parts = Vec::new();
    for (reads, sums) in reads.iter().zip(sums.chunks_exact_mut(images * width)) {
        parts.clear();
        for [tap, pixel] in reads {
            parts.extend((0..from.blocks()).map(|i| Part {
                a: (i * from.plane() * each + pixel * images) * width,
                b: (tap * from.channels + i * width) * width,
                terms: from.channels_of(i),
            }));
        }
        let products = LaneSums { a: x, lie: Lie::Rows(width), b: weights, parts: &parts, columns: task.planes.len() };
        products.compute(images, false, sums, width);
        if let Some(bias) = bias {
            let bias = &bias[task.planes.clone()];
            sums.chunks_exact_mut(width).for_each(|row| row.iter_mut().zip(bias).for_each(|(v, bias)| *v += bias));
        }
    }
    for (i, out) in task.out.iter_mut().enumerate() {
        from_lanes(&sums[i * width..], images * width, (task.planes.len(), 0..to.plane()), out, to.plane());
    }
    Ok(())
}

pub(super) fn weight_grad(g: &Sizes, dy: &[f32], x: &[f32], dw: &mut [f32]) -> Result<()> {
    let ([from, to], taps, width) = (g.planes(), g.window.taps(), panel_width());
    let reads = g.window.by_position();
    let (groups, some) = g.image_groups();
    let (wide, steps) = (from.blocks() * width, groups.len().div_ceil(some));
    let mut sums = scratch(g.out_channels * taps * wide)?;
    for (step, groups) in groups.chunks(some).enumerate() {
        let (x, dy) = (copied(&from, x, groups)?, copied(&to, dy, groups)?);
        let rows = ROWS.min(width); // of one block of channels
        let tasks = sums.chunks_mut(rows * taps * wide).zip(dw.chunks_mut(rows * taps * g.channels));
        share(tasks.enumerate(), 1, |(task, (sums, dw))| {
            add_products([&from, &to], groups, (&reads, task * rows, step > 0), [&dy, &x], sums);
            if step + 1 < steps {
                return;
            }
            let place = sums.len() / taps;
            for (row, dw) in dw.chunks_exact_mut(taps * from.channels).enumerate() {
                for (block, dw) in dw.chunks_mut(taps * width).enumerate() {
                    let sums = &sums[row * wide + block * width..];
                    from_lanes(sums, place, (from.channels_of(block), 0..taps), dw, taps);
                }
            }
        });
    }
    Ok(())
}

/// Adds the products over some groups of images to the sums of a task's rows, `[positions, rows, wide]`. `reads` has for each
/// position of the kernel the windows and the pixels that they read there.
fn add_products(
    [from, to]: [&Planes; 2],
    groups: &[Range<usize>],
    (reads, first, add): (&[Vec<[usize; 2]>], usize, bool),
    [dy, x]: [&[f32]; 2],
    sums: &mut [f32],
) {
    let (width, wide) = (panel_width(), from.blocks() * panel_width());
    let (place, one) = (sums.len() / reads.len().max(1), groups.first().cloned().unwrap_or_default());
    let mut parts = Vec::new();
    for block in 0..from.blocks() {
        for (reads, sums) in reads.iter().zip(sums.chunks_exact_mut(place)) {
            parts.clear();
            for images in groups {
                let (before, count) = (images.start - one.start, images.len());
                let [a, b] = [(to, first / width), (from, block)]
                    .map(|(planes, block)| before * planes.elements() + block * planes.plane() * one.len() * width);
                parts.extend(reads.iter().map(|[window, pixel]| Part {
                    a: a + window * count * width + first % width,
                    b: b + pixel * count * width,
                    terms: count,
                }));
            }
            let product =
                LaneSums { a: dy, lie: Lie::Terms([width; 2]), b: x, parts: &parts, columns: from.channels_of(block) };
            product.compute(place / wide, add, &mut sums[block * width..], wide);
        }
    }
}
