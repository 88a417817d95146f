//! The gradient of a convolution's weight on the host, by products that read lines of windows where they lie. For each line of the
//! kernel: `[output channels, windows] · [windows, pixels of the line and channels]`, of the windows of all images. So no columns
//! are written, and few channels fill vectors.
//!
//! Images are `[image, line, pixel, channel]`, with the zeros left and right of a line, and the gradient of the result is
//! `[block of output channels, image, window, channel of the block]`: neighbouring windows are neighbouring terms.

use std::ops::Range;

use super::Sizes;
use crate::matmul::lane_sums::{LaneSums, Lie, Part, add_terms, blocks_of};
use crate::matmul::tiles::panel_width;
use crate::matmul::transpose::transpose;
use crate::memory::{Result, Scratch, scratch};
use crate::tasks::share;

/// The approximate number of elements of the images and gradients that are copied at a time, at least one image: what stays in a
/// cache, since each product reads all lines.
const STEP: usize = 512 << 10;

/// The approximate number of terms of which all panels are computed before the next: what they read stays in the smallest cache,
/// and neighbouring pixels of a line read mostly the same.
const TERMS: usize = 256;

/// The tasks of whole lines that are enough for all threads.
const ENOUGH: usize = 32;

/// The weights that one thread writes in the time that another one needs to begin.
const FEW_KERNELS: usize = 16 << 10;

/// The approximate number of pixels of a task of the copy.
const PIXELS: usize = 256;

/// The sizes of a line of the image in elements.
struct Line {
    /// Of the part that a window reads.
    window: usize,
    /// Of the zeros on each side.
    padding: usize,
    /// With them.
    all: usize,
}

impl Sizes {
    fn line(&self) -> Line {
        let ([_, kernel], [_, padding]) = (self.window.params.kernel, self.window.params.padding);
        let [window, padding] = [kernel, padding].map(|pixels| pixels * self.channels);
        Line { window, padding, all: self.window.size[1] * self.channels + 2 * padding }
    }
}

/// Returns the products of a line of the kernel: for each image, the lines of windows that read a line of the image there.
fn parts(g: &Sizes, at: usize, apart: [usize; 2], images: usize) -> Vec<Part> {
    let (window, line) = (&g.window, g.line().all);
    let mut parts = Vec::with_capacity(images * window.out[0]);
    for image in 0..images {
        for [y, from] in window.lines(at) {
            let a = (image * window.pixels() + y * window.out[1]) * apart[0];
            let part = Part { a, b: (image * window.size[0] + from) * line, terms: window.out[1] };
            add_terms(&mut parts, part, apart, TERMS);
        }
    }
    parts
}

/// Copies images to lines, and zeros after them, so that a whole panel can be read anywhere.
fn lines(g: &Sizes, x: &[f32]) -> Result<Scratch> {
    let (line, [height, width], plane) = (g.line(), g.window.size, g.window.plane());
    let lines = x.len() / g.image() * height * line.all;
    let mut all = scratch(lines + panel_width())?;
    let (to, end) = all.split_at_mut(lines);
    end.fill(0.0);
    let some = (PIXELS / width).clamp(1, height);
    let tasks = to.chunks_mut(height * line.all).zip(x.chunks(g.image())).flat_map(|(to, x)| {
        to.chunks_mut(some * line.all).enumerate().map(move |(i, to)| (to, &x[i * some * width..]))
    });
    share(tasks.collect::<Vec<_>>(), 1, |(to, x)| {
        if line.padding == 0 {
            return transpose(x, plane, [g.channels, to.len() / g.channels], to, g.channels);
        }
        for (y, to) in to.chunks_exact_mut(line.all).enumerate() {
            let (before, to) = to.split_at_mut(line.padding);
            let (pixels, after) = to.split_at_mut(line.all - 2 * line.padding);
            before.fill(0.0);
            after.fill(0.0);
            transpose(&x[y * width..], plane, [g.channels, width], pixels, g.channels);
        }
    });
    Ok(all)
}

/// Copies gradients of results to blocks of at most so many rows. The places of the rows that a block lacks hold any numbers.
fn gradients(g: &Sizes, (blocks, rows): (&[Range<usize>], usize), dy: &[f32]) -> Result<Scratch> {
    let (pixels, images) = (g.window.pixels(), dy.len() / g.out_image());
    let mut all = scratch(blocks.len() * images * pixels * rows)?;
    let tasks = all.chunks_mut(images * pixels * rows).zip(blocks).flat_map(|(to, block)| {
        let images = to.chunks_mut(pixels * rows).zip(dy.chunks(g.out_image()));
        images.map(move |(to, dy)| (block, to, dy))
    });
    share(tasks.collect::<Vec<_>>(), 1, |(block, to, dy)| {
        transpose(&dy[block.start * pixels..], pixels, [block.len(), pixels], to, rows);
    });
    Ok(all)
}

pub(super) fn weight_grad(g: &Sizes, dy: &[f32], x: &[f32], dw: &mut [f32]) -> Result<()> {
    let ([kernel_lines, kernel_pixels], line, width) = (g.window.params.kernel, g.line(), panel_width());
    let ((blocks, rows), panels) = (blocks_of(g.out_channels), line.window.div_ceil(width));
    let some = (STEP / (g.window.size[0] * line.all + g.out_image())).max(1); // images
    let apart = [rows, g.window.params.stride[1] * g.channels];
    // `[block, line of the kernel, panel, row, width]`.
    let mut sums = scratch(blocks.len() * kernel_lines * panels * rows * width)?;
    for (step, (x, dy)) in x.chunks(some * g.image()).zip(dy.chunks(some * g.out_image())).enumerate() {
        let (lines, gradients, images) = (lines(g, x)?, gradients(g, (&blocks, rows), dy)?, x.len() / g.image());
        let each = if blocks.len() * kernel_lines < ENOUGH { 1 } else { panels };
        let tasks = sums.chunks_mut(panels * rows * width).enumerate();
        let tasks = tasks.flat_map(|(i, sums)| {
            sums.chunks_mut(each * rows * width).enumerate().map(move |(part, sums)| (i, part * each, sums))
        });
        share(tasks.collect::<Vec<_>>(), 1, |(i, panel, sums)| {
            let (block, parts) = (i / kernel_lines, parts(g, i % kernel_lines, apart, images));
            let a = &gradients[block * images * g.window.pixels() * rows..];
            let most = parts.iter().map(|part| part.terms).max().unwrap_or(1);
            if step == 0 {
                sums.fill(0.0);
            }
            for parts in parts.chunks((TERMS / most).max(1)) {
                for (panel, sums) in (panel..).zip(sums.chunks_mut(rows * width)) {
                    let (first, lie) = (panel * width, Lie::Terms(apart));
                    let product = LaneSums { a, lie, b: &lines[first..], parts, columns: line.window - first };
                    product.compute(blocks[block].len(), true, sums, width);
                }
            }
        });
    }
    share(dw.chunks_mut(g.depth()).enumerate(), FEW_KERNELS.div_ceil(g.depth()), |(channel, dw)| {
        let block = blocks.partition_point(|block| block.end <= channel);
        for at in 0..kernel_lines {
            let panel = |i| ((block * kernel_lines + at) * panels + i) * rows + channel - blocks[block].start;
            let mut columns = (0..panels).flat_map(|i| &sums[panel(i) * width..][..width]);
            for pixel in 0..kernel_pixels {
                let to = dw[at * kernel_pixels + pixel..].iter_mut().step_by(g.window.taps());
                to.zip(&mut columns).take(g.channels).for_each(|(to, sum)| *to = *sum);
            }
        }
    });
    Ok(())
}
