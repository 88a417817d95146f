//! Convolutions of many images on the host, in vectors of images: for each pixel of the result a product
//! `[output channels, terms] · [terms, images]`, whose terms are the channels of the pixels that it reads. Numbers of channels
//! that fill no vectors leave nothing unused, the padding is not multiplied, and no columns are written.
//!
//! Images are `[group of images, pixel, channel, image]`, and weights `[block of rows, position of the kernel, channel, row]`:
//! what neighbouring positions read are neighbouring terms.

use std::ops::Range;

use super::Sizes;
use super::columns::{Task, tasks};
use super::lanes::Planes;
use crate::matmul::lane_sums::{LONGEST, LaneSums, Lie, Part, add_terms, blocks_of};
use crate::matmul::tiles::panel_width;
use crate::matmul::transpose::transpose;
use crate::memory::{Result, Scratch, scratch};
use crate::tasks::{share, try_share};

/// The approximate number of elements of the images that are copied at a time.
const STEP: usize = 4 << 20;

/// The pixels of a task of the copy.
const PIXELS: usize = 64;

/// Returns the elements of a group of images.
pub(super) fn elements(planes: &Planes) -> usize {
    planes.channels.saturating_mul(planes.plane()).saturating_mul(panel_width())
}

/// Copies images to groups. The lanes of the last group that have no image become 0.
fn copied(planes: &Planes, x: &[f32]) -> Result<Scratch> {
    let (width, plane, image) = (panel_width(), planes.plane(), planes.channels * planes.plane());
    let (images, pixel) = (x.len() / image, planes.channels * width);
    let mut all = scratch(images.div_ceil(width) * plane * pixel)?;
    let groups = all.chunks_mut(plane * pixel).zip(x.chunks(width * image));
    let tasks = groups.flat_map(|(to, x)| to.chunks_mut(PIXELS * pixel).enumerate().map(move |part| (x, part)));
    share(tasks.collect::<Vec<_>>(), 1, |(x, (part, to))| {
        let (images, pixels) = (x.len() / image, to.len() / pixel);
        if images < width {
            to.fill(0.0);
        }
        for channel in 0..planes.channels {
            let x = &x[channel * plane + part * PIXELS..];
            transpose(x, image, [images, pixels], &mut to[channel * width..], pixel);
        }
    });
    Ok(all)
}

/// Computes the convolution. If `backward`, computes the gradient of its input from the gradient of its result,
/// without a bias.
pub(super) fn convolve(
    g: &Sizes,
    backward: bool,
    (x, w, bias): (&[f32], &[f32], Option<&[f32]>),
    out: &mut [f32],
) -> Result<()> {
    let ([from, to], reads) = g.sides(backward);
    let (width, taps) = (panel_width(), g.window.taps());
    let (blocks, rows) = blocks_of(to.channels);
    let weights = weights([&from, &to], backward, taps, (&blocks, rows), w)?;
    let parts: Vec<Vec<Part>> = reads.iter().map(|reads| parts(reads, taps, backward, [from.channels, rows])).collect();
    let blocks: Vec<_> = blocks.into_iter().map(|block| (0, block)).collect();
    let [image, out_image] = [&from, &to].map(|planes| planes.channels * planes.plane());
    let some = (STEP / ((image + out_image) * width)).max(1) * width;
    for (x, out) in x.chunks(some * image).zip(out.chunks_mut(some * out_image)) {
        let x = copied(&from, x)?;
        try_share(tasks(out, (out_image, to.plane()), width, &blocks), 1, |task| {
            let x = &x[task.images.start * image..];
            let weights = &weights[task.part * rows * taps * from.channels..];
            convolve_task([x, weights], bias, (&parts, rows), task)
        })?;
    }
    Ok(())
}

/// Returns the weights in these blocks of at most `rows` rows. The places of the rows that a block lacks hold any
/// numbers.
fn weights(
    [from, to]: [&Planes; 2],
    backward: bool,
    taps: usize,
    (blocks, rows): (&[Range<usize>], usize),
    w: &[f32],
) -> Result<Scratch> {
    let inputs = from.channels;
    let mut all = scratch(blocks.len() * rows * taps * inputs)?;
    share(all.chunks_mut((rows * taps * inputs).max(1)).zip(blocks), 1, |(block, channels)| {
        for (row, channel) in channels.clone().enumerate() {
            for input in 0..inputs {
                let kernel = if backward { input * to.channels + channel } else { channel * inputs + input };
                let kernel = &w[kernel * taps..][..taps];
                let to = block[input * rows + row..].iter_mut().step_by(inputs * rows);
                if backward {
                    to.zip(kernel.iter().rev()).for_each(|(to, v)| *to = *v);
                } else {
                    to.zip(kernel).for_each(|(to, v)| *to = *v);
                }
            }
        }
    });
    Ok(all)
}

/// Returns the products of a pixel's sums: one for all positions that are neighbours and read neighbours, unless
/// that is too long. The products of a gradient are in reverse order, in which their pixels are neighbours.
fn parts(reads: &[[usize; 2]], taps: usize, backward: bool, [inputs, rows]: [usize; 2]) -> Vec<Part> {
    let (mut parts, width) = (Vec::new(), panel_width());
    for i in 0..reads.len() {
        let [place, pixel] = match backward {
            false => reads[i],
            true => {
                let [tap, pixel] = reads[reads.len() - 1 - i];
                [taps - 1 - tap, pixel]
            }
        };
        let part = Part { a: place * inputs * rows, b: pixel * inputs * width, terms: inputs };
        add_terms(&mut parts, part, [rows, width], LONGEST);
    }
    parts
}

/// Computes a block of channels of a group of images.
fn convolve_task(
    [x, weights]: [&[f32]; 2],
    bias: Option<&[f32]>,
    (parts, rows): (&[Vec<Part>], usize),
    mut task: Task,
) -> Result<()> {
    let (width, pixels, images, count) = (panel_width(), parts.len(), task.out.len(), task.planes.len());
    let mut sums = scratch(count * pixels * width)?;
    if let Some(bias) = bias {
        sums.chunks_exact_mut(pixels * width).zip(&bias[task.planes.clone()]).for_each(|(sums, bias)| sums.fill(*bias));
    }
    for (pixel, parts) in parts.iter().enumerate() {
        let product = LaneSums { a: weights, lie: Lie::Terms([rows, width]), b: x, parts, columns: images };
        product.compute(count, bias.is_some(), &mut sums[pixel * width..], pixels * width);
    }
    let mut transposed = scratch(images * count * pixels)?;
    transpose(&sums, width, [count * pixels, images], &mut transposed, count * pixels);
    for (out, transposed) in task.out.iter_mut().zip(transposed.chunks_exact(count * pixels)) {
        out.copy_from_slice(transposed);
    }
    Ok(())
}
