//! Convolution and its gradients on software adapters with subgroups: products that read a copy of the images in blocks of
//! four images or channels, with the padding around them, instead of a matrix of their columns.

use anygpu_host::conv::Sizes;

use super::blocks::{FOUR, Images, SumParams, Sums};

use super::geometry::{Geometry, PASS};
use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel};
use crate::error::Result;
use crate::ops::linalg::panels::{A_WIDTH, ALONE, IndexMap, Pack};
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::stored::Stored;
use crate::ops::{Dense, GpuIn};

/// A convolution of one group of channels over blocks of images, which [`Geometry::blocked`] repeats for all groups.
struct Blocked<'a> {
    sums: Sums,
    images: Images<'a>,
    /// The weight as the left operand, with its buffer and the offset of the first group.
    left: Pack,
    weight: &'a GpuIn<'a, Dense>,
    bias: Option<&'a GpuIn<'a, Dense>>,
    /// A plane of the result, and the elements of one image of it.
    pixels: [usize; 2],
    out_image: usize,
    out: &'a Buffer,
}

impl Geometry {
    /// Returns the size of an image with the padding that the windows reach.
    pub fn reached(&self) -> [usize; 2] {
        let Sizes { window, .. } = &self.0;
        [0, 1].map(|d| (window.out[d].max(1) - 1) * window.params.stride[d] + window.params.span(d))
    }

    /// Returns the images of the input.
    fn input_images<'a>(&self, x: &'a GpuIn<'a, Dense>) -> Images<'a> {
        Images {
            stored: Stored::of(x),
            image: self.image(),
            channels: self.group_channels(),
            size: self.window.size,
            padding: self.window.params.padding.map(usize::cast_signed),
            padded: self.reached(),
        }
    }

    /// Returns the kernels of the convolution over blocks of images.
    pub fn forward_in_blocks(
        &self,
        gpu: &Gpu,
        [x, weight]: [&GpuIn<Dense>; 2],
        bias: Option<&GpuIn<Dense>>,
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let (rows, depth, images) = (self.group_out(), self.depth(), self.input_images(x));
        let k = IndexMap::even(depth, 1);
        let left = Pack { width: A_WIDTH, depth, across: rows, k, j: IndexMap::even(rows, depth) };
        let (pixels, out_image) = (self.window.out, self.out_image());
        let blocked = Blocked { sums: Sums::Forward, images, left, weight, bias, pixels, out_image, out };
        self.blocked(gpu, blocked)
    }

    /// Returns the size of the gradient of a result with the zeros that the windows of the image's gradient reach.
    pub fn enlarged(&self) -> [usize; 2] {
        [0, 1].map(|d| self.window.size[d] + self.window.params.span(d) - 1)
    }

    /// Returns the kernels of the gradient of the image over blocks of images: a convolution of dy with the kernel
    /// turned by 180°, for windows without a stride.
    pub fn input_grad_in_blocks(
        &self,
        gpu: &Gpu,
        [dy, weight]: [&GpuIn<Dense>; 2],
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let window = &self.window.params;
        let (rows, taps) = (self.group_channels(), self.window.taps());
        let span = [window.span(0), window.span(1)];
        let images = Images {
            stored: Stored::of(dy),
            image: self.out_image(),
            channels: self.group_out(),
            size: self.window.out,
            padding: [0, 1].map(|d| (span[d] - 1).cast_signed() - window.padding[d].cast_signed()),
            padded: self.enlarged(),
        };
        let depth = images.channels * taps;
        let k = IndexMap { inner: taps, step: 1, outer: self.depth() };
        let left = Pack { width: A_WIDTH, depth, across: rows, k, j: IndexMap::even(rows, taps) };
        let (pixels, out_image) = (self.window.size, self.image());
        let blocked = Blocked { sums: Sums::InputGrad, images, left, weight, bias: None, pixels, out_image, out };
        self.blocked(gpu, blocked)
    }

    /// Returns the kernels of a convolution, group by group, each with as many images at a time as a buffer can hold.
    fn blocked(&self, gpu: &Gpu, blocked: Blocked) -> Result<Vec<Kernel>> {
        let Blocked { sums, mut images, left, weight, bias, pixels, out_image, out } = blocked;
        let (rows, depth, plane) = (left.across, left.depth, pixels[0] * pixels[1]);
        let block = FOUR * images.channels * images.padded_plane();
        let step = (PASS / block * FOUR).min(self.images.next_multiple_of(FOUR));
        let (blocks, weights) = (gpu.alloc(step / FOUR * block)?, gpu.alloc(Pack::size(A_WIDTH, depth, rows))?);
        let start = images.stored;
        let mut kernels = Vec::new();
        for group in 0..self.groups {
            let from = Stored::of(weight).after(group * self.group_weights());
            kernels.push(left.batch(gpu, from, ALONE, &weights)?);
            images.stored = start.after(group * images.channels * images.plane());
            for first in (0..self.images).step_by(step) {
                let count = step.min(self.images - first);
                let n = count.div_ceil(FOUR) * plane;
                let params = SumParams {
                    m: rows,
                    n,
                    k: depth,
                    k_split: depth,
                    splits: 1,
                    image_step: images.channels * images.padded_plane(),
                    plane_step: images.padded_plane(),
                    width: images.padded[1],
                    out_y: pixels[0],
                    out_x: pixels[1],
                    offset: first * out_image + group * rows * plane,
                    row: plane,
                    inner: plane,
                    outer: FOUR * out_image,
                    part: out_image,
                    parts: count,
                    bias_offset: bias.map_or(0, |bias| bias.offset() + group * rows),
                    ..SumParams::default()
                };
                kernels.push(images.of_images(first, count, &blocks));
                let bias = bias.map(AsBuffer::as_buffer);
                kernels.push(sums.kernel(self.window.params, params, [&weights, &blocks], bias, out));
            }
        }
        Ok(kernels)
    }

    /// Returns the words of one image's gradient of the result as the left operand of the weight's gradient.
    pub fn left_words(&self) -> usize {
        self.group_out().next_multiple_of(A_WIDTH).saturating_mul(self.window.pixels())
    }

    /// Returns the kernels of the gradient of the weight over blocks of channels. Each part of the sums is over at most `run` output
    /// pixels.
    pub fn weight_grad_in_blocks(
        &self,
        gpu: &Gpu,
        [dy, x]: [&GpuIn<Dense>; 2],
        run: usize,
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let (rows, depth, pixels, taps) = (self.group_out(), self.depth(), self.window.pixels(), self.window.taps());
        let mut images = self.input_images(x);
        let blocks = images.channels.div_ceil(FOUR);
        let grad = self.left_words();
        let image = FOUR * blocks * images.padded_plane();
        let step = (PASS / image.max(grad)).min(self.images);
        let counts: Vec<usize> = (0..self.images).step_by(step).map(|first| step.min(self.images - first)).collect();
        // No part is empty: every element of the partial sums is written.
        let lengths = |count: usize| (count * pixels).div_ceil((count * pixels).div_ceil(run));
        let splits = |count: usize| (count * pixels).div_ceil(lengths(count));
        let (len, parts) = (self.groups * self.group_weights(), counts.iter().map(|&count| splits(count)).sum());
        let partial = gpu.alloc(parts * len)?;
        let (x_blocks, grads) = (gpu.alloc(step * image)?, gpu.alloc(step * grad)?);
        let start = images.stored;
        let mut kernels = Vec::new();
        for group in 0..self.groups {
            images.stored = start.after(group * images.channels * images.plane());
            let mut done = 0;
            for (i, &count) in counts.iter().enumerate() {
                let (first, n) = (i * step, blocks * taps);
                let k = IndexMap { inner: pixels, step: 1, outer: self.out_image() };
                let (depth_of_sums, j) = (count * pixels, IndexMap::even(rows, pixels));
                let left = Pack { width: A_WIDTH, depth: depth_of_sums, across: rows, k, j };
                let from = Stored::of(dy).after((first * self.out_channels + group * rows) * pixels);
                let params = SumParams {
                    m: rows,
                    n,
                    k: depth_of_sums,
                    k_split: lengths(count),
                    splits: splits(count),
                    image_step: blocks * images.padded_plane(),
                    plane_step: images.padded_plane(),
                    width: images.padded[1],
                    out_y: self.window.out[0],
                    out_x: self.window.out[1],
                    offset: done * len + group * self.group_weights(),
                    split: len,
                    row: depth,
                    inner: taps,
                    outer: FOUR * taps,
                    part: taps,
                    parts: images.channels,
                    ..SumParams::default()
                };
                kernels.push(left.batch(gpu, from, ALONE, &grads)?);
                kernels.push(images.of_channels(first, count, &x_blocks));
                let sums = Sums::WeightGrad;
                kernels.push(sums.kernel(self.window.params, params, [&grads, &x_blocks], None, &partial));
                done += splits(count);
            }
        }
        kernels.extend(sum_parts(gpu, &partial, [1, parts, len], out)?);
        Ok(kernels)
    }
}
