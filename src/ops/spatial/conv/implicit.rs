//! Convolution and its gradients on GPUs as products that read the image, so that no columns are in memory: see
//! `shaders/spatial/conv/conv_implicit.wgsl`. `implicit_variants` has the kernel in its variants.
//!
//! The [`Work`] of a convolution or a gradient is its sizes. By these, [`Tiles`] are chosen: a variant, and the parts of its sums. They
//! run as [`Sums`], which have the memory of the parts.

use anygpu_host::window::{Window, WindowParams};

use super::geometry::{Geometry, PASS};
use super::implicit_variants::{ImplicitParams, ImplicitVariant, Way};
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::error::{Error, Result};
use crate::ops::linalg::panels::{B_WIDTH, IndexMap, MAX_DEPTH, Pack};
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::stored::Stored;
use crate::ops::tiling::Sizes;

/// Steps of the sum in a tile; `DEPTH` in `tile_product.wgsl`.
const STEPS: usize = 8;

/// The most phases of the gradient of an image: the pixels at each place between two windows. With more, tiles would have few columns.
const MOST_PHASES: usize = 16;

/// With fewer channels, most of a tile of the image's gradient would be padding.
const FEWEST_CHANNELS: usize = 16;

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The sum of a result, in tiles.
#[derive(Clone, Copy)]
struct Sum {
    /// Whether tiles have any steps of the sum: if tiles of the channels of one position would be much padding.
    flat: bool,
    channels: usize,
}

impl Sum {
    fn over(channels: usize) -> Sum {
        Sum { flat: channels.next_multiple_of(STEPS) * 3 > channels * 4, channels }
    }

    /// Returns the number of tiles for some positions of a kernel.
    fn tiles(self, taps: usize) -> usize {
        if self.flat { (self.channels * taps).div_ceil(STEPS) } else { self.channels.div_ceil(STEPS) * taps }
    }
}

/// What tiles compute: a result of these sizes, in so many passes.
pub(super) struct Work {
    pub sizes: Sizes,
    /// The tiles of the longest sum of a pass, and the most steps of a part of a sum.
    tiles: usize,
    most: usize,
    passes: usize,
}

/// A variant, the parts of a sum in one pass, and the passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    pub variant: &'static ImplicitVariant,
    parts: usize,
    passes: usize,
}

impl Tiles {
    /// Returns the variant that is chosen for some work; `None` if it is to use columns. Sums are split if they are too long for one
    /// part, or if there are few tiles of the result.
    pub fn of(
        work: &Work,
        choose: impl FnOnce(&ImplicitParams) -> Result<&'static ImplicitVariant>,
    ) -> Result<Option<Tiles>> {
        let Work { sizes: Sizes { m, n, batch }, tiles, most, passes } = *work;
        let parts = work.sizes.parts(tiles * STEPS).max((tiles * STEPS).div_ceil(most));
        let variant = choose(&ImplicitParams { m, n, z_count: batch * parts, ..ImplicitParams::default() })?;
        Ok(match variant.way {
            Way::Implicit => Some(Tiles { variant, parts, passes }),
            Way::Columns => None,
        })
    }

    /// Returns the sums of a result of `total` elements, and memory for their parts.
    fn sums(self, gpu: &Gpu, total: usize, out: &Buffer) -> Result<Sums> {
        let parts = self.parts * self.passes;
        let to = if parts == 1 { out.clone() } else { gpu.alloc(parts * total)? };
        Ok(Sums { tiles: self, total, to })
    }
}

/// The sums of a result, and where their parts go.
struct Sums {
    tiles: Tiles,
    /// The elements of the result.
    total: usize,
    to: Buffer,
}

impl Sums {
    /// Returns the kernel for some of the elements, with sums of `tiles` tiles.
    fn kernel(
        &self,
        params: ImplicitParams,
        tiles: usize,
        choices: [bool; 2],
        operands: (&Buffer, Stored),
        bias: Option<&Buffer>,
    ) -> Kernel {
        let Tiles { variant, parts, .. } = self.tiles;
        let params = ImplicitParams {
            tiles_split: tiles.div_ceil(parts),
            splits: parts,
            z_count: params.z_count * parts,
            batch: self.total,
            ..params
        };
        params.kernel(variant, choices, operands, bias, &self.to)
    }

    /// Returns the kernels that add up the parts.
    fn added(&self, gpu: &Gpu, out: &Buffer) -> Result<Vec<Kernel>> {
        let parts = self.tiles.parts * self.tiles.passes;
        if parts == 1 { Ok(Vec::new()) } else { sum_parts(gpu, &self.to, [1, parts, self.total], out) }
    }
}

impl Geometry {
    /// Returns the weight of all groups in panels, with the steps (ky, kx, channel), and the kernel that writes them: for
    /// sums over `channels` at a distance of `step`, and rows at a distance of `row`.
    fn weight_panels(
        &self,
        gpu: &Gpu,
        weight: Stored,
        [channels, step]: [usize; 2],
        [across, row]: [usize; 2],
    ) -> Result<(Buffer, Kernel)> {
        let depth = channels * self.window.taps();
        let k = IndexMap { inner: channels, step, outer: 1 };
        let pack = Pack { width: B_WIDTH, depth, across, k, j: IndexMap::even(across, row) };
        let panels = gpu.alloc(Pack::size(B_WIDTH, depth, across) * self.groups)?;
        let groups = (IndexMap::even(self.groups, self.group_weights()), 0..self.groups);
        let kernel = pack.batch(gpu, weight, groups, &panels)?;
        Ok((panels, kernel))
    }

    /// Returns the work of the convolution.
    pub fn forward_work(&self) -> Work {
        let sizes = Sizes { m: self.group_out(), n: self.images * self.window.pixels(), batch: self.groups };
        let tiles = Sum::over(self.group_channels()).tiles(self.window.taps());
        Work { sizes, tiles, most: MAX_DEPTH, passes: 1 }
    }

    /// Returns the kernels of the convolution.
    pub fn forward_implicit(
        &self,
        gpu: &Gpu,
        tiles: Tiles,
        [x, weight]: [Stored; 2],
        bias: Option<Stored>,
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let (channels, taps, depth) = (self.group_channels(), self.window.taps(), self.depth());
        let Sizes { m, n, batch } = self.forward_work().sizes;
        let params = ImplicitParams {
            m,
            n,
            k: depth,
            z_count: batch,
            row: self.window.pixels(),
            outer: self.out_image(),
            line: self.window.out[1],
            step: 1,
            bias_offset: bias.map_or(0, |bias| bias.offset),
            a_depth: depth,
            a_y: self.window.params.kernel[1] * channels,
            a_x: channels,
            image_offset: x.offset,
            image_step: self.image(),
            channels,
            ..ImplicitParams::over(&self.window)
        };
        let sum = Sum::over(channels);
        let sums = tiles.sums(gpu, self.images * self.out_image(), out)?;
        let (panels, pack) = self.weight_panels(gpu, weight, [channels, taps], [params.m, depth])?;
        let bias = bias.map(|bias| bias.buffer);
        let mut kernels = vec![pack, sums.kernel(params, sum.tiles(taps), [sum.flat, false], (&panels, x), bias)];
        kernels.extend(sums.added(gpu, out)?);
        Ok(kernels)
    }

    /// Returns the work of the gradient of the image; `None` if it is not for tiles.
    pub fn input_grad_work(&self) -> Option<Work> {
        let (params, size) = (self.window.params, self.window.size);
        // The numbers of phases, the most pixels of one, and the most positions that reach its pixels, in both directions.
        let product = |of: &dyn Fn(usize) -> usize| of(0).saturating_mul(of(1));
        let phases = product(&|d| params.stride[d].min(size[d]));
        let pixels = product(&|d| size[d].div_ceil(params.stride[d]));
        let taps = product(&|d| params.kernel[d].div_ceil(self.tap_step(d)));
        let sizes = Sizes { m: self.group_channels(), n: self.images * pixels, batch: self.groups * phases };
        let tiles = Sum::over(self.group_out()).tiles(taps);
        let suits = sizes.m >= FEWEST_CHANNELS && phases <= MOST_PHASES;
        suits.then_some(Work { sizes, tiles, most: MAX_DEPTH, passes: 1 })
    }

    /// Returns the distance from a position of the kernel to the next one that reaches the same pixels, in direction `d`.
    fn tap_step(&self, d: usize) -> usize {
        let (stride, dilation) = (self.window.params.stride[d], self.window.params.dilation[d]);
        stride / gcd(stride, dilation)
    }

    /// Returns the kernels of the gradient of the image, whose [work](Geometry::input_grad_work) is for tiles.
    pub fn input_grad_implicit(
        &self,
        gpu: &Gpu,
        tiles: Tiles,
        [dy, weight]: [Stored; 2],
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let (channels, taps, rows) = (self.group_out(), self.window.taps(), self.group_channels());
        let work = self.input_grad_work().ok_or_else(|| Error::internal("a gradient of an image without tiles"))?;
        let sum = Sum::over(channels);
        let Window { params: WindowParams { kernel, stride, .. }, size, out: windows } = self.window;
        let params = ImplicitParams {
            m: rows,
            n: work.sizes.n,
            z_count: work.sizes.batch,
            row: self.window.plane(),
            outer: self.image(),
            line: stride[0] * size[1],
            step: stride[1],
            a_depth: channels * taps,
            a_y: kernel[1] * channels,
            a_x: channels,
            image_offset: dy.offset,
            image_step: self.out_image(),
            channels,
            height: windows[0],
            width: windows[1],
            out_y: size[0],
            out_x: size[1],
            tap_step_y: self.tap_step(0),
            tap_step_x: self.tap_step(1),
            ..ImplicitParams::over(&self.window)
        };
        let sums = tiles.sums(gpu, self.images * self.image(), out)?;
        let (panels, pack) = self.weight_panels(gpu, weight, [channels, self.depth()], [rows, taps])?;
        let kernel = sums.kernel(params, work.tiles, [sum.flat, false], (&panels, dy), None);
        let mut kernels = vec![pack, kernel];
        kernels.extend(sums.added(gpu, out)?);
        Ok(kernels)
    }

    /// Returns how many images the gradient of the result has in panels at a time; `None` if not even one fits.
    fn images_of_pass(&self) -> Option<usize> {
        let step = PASS / self.grad_panels().max(1);
        (step > 0).then(|| step.min(self.images))
    }

    /// Returns the elements of the gradient of one image's result in panels.
    fn grad_panels(&self) -> usize {
        self.group_out().next_multiple_of(B_WIDTH).saturating_mul(self.groups).saturating_mul(self.window.pixels())
    }

    /// Returns the work of the gradient of the weight, with at most `run` windows in each part of a sum; `None` if it is not for tiles.
    pub fn weight_grad_work(&self, run: usize) -> Option<Work> {
        let step = self.images_of_pass().filter(|_| self.images > 0)?;
        let sizes = Sizes { m: self.group_out(), n: self.depth(), batch: self.groups };
        let tiles = (step * self.window.pixels()).div_ceil(STEPS);
        Some(Work { sizes, tiles, most: run / STEPS * STEPS, passes: self.images.div_ceil(step) })
    }

    /// Returns the kernels of the gradient of the weight, whose [work](Geometry::weight_grad_work) is for tiles.
    pub fn weight_grad_implicit(
        &self,
        gpu: &Gpu,
        tiles: Tiles,
        [dy, x]: [Stored; 2],
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let (rows, pixels, depth) = (self.group_out(), self.window.pixels(), self.depth());
        let step = self.images_of_pass().ok_or_else(|| Error::internal("too many pixels for tiles"))?;
        let params = ImplicitParams {
            m: rows,
            n: depth,
            z_count: self.groups,
            row: depth,
            image_step: self.image(),
            channels: self.group_channels(),
            ..ImplicitParams::over(&self.window)
        };
        let total = self.groups * self.group_weights();
        let sums = tiles.sums(gpu, total, out)?;
        let grads = gpu.alloc(step * self.grad_panels())?;
        let mut kernels = Vec::new();
        for (pass, first) in (0..self.images).step_by(step).enumerate() {
            let k = step.min(self.images - first) * pixels;
            let map = IndexMap { inner: pixels, step: 1, outer: self.out_image() };
            let pack = Pack { width: B_WIDTH, depth: k, across: rows, k: map, j: IndexMap::even(rows, pixels) };
            let groups = (IndexMap::even(self.groups, rows * pixels), 0..self.groups);
            kernels.push(pack.batch(gpu, dy.after(first * self.out_image()), groups, &grads)?);
            let params = ImplicitParams {
                k,
                offset: pass * tiles.parts * total,
                a_depth: k,
                image_offset: x.offset + first * self.image(),
                ..params
            };
            kernels.push(sums.kernel(params, k.div_ceil(STEPS), [false, true], (&grads, x), None));
        }
        kernels.extend(sums.added(gpu, out)?);
        Ok(kernels)
    }
}
