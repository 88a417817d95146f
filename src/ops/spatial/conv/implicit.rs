//! Convolution and its gradients on GPUs as products that read the image, so that no columns are in memory: see
//! `shaders/spatial/conv/conv_implicit.wgsl`. `implicit_variants` has the kernel in its variants.
//!
//! The [`Work`] of a convolution or a gradient is its sizes. By these, [`Tiles`] are chosen: a variant, and the parts of its sums. They
//! run as [`Sums`], which have the memory of the parts.

use super::geometry::{Geometry, PASS};
use super::implicit_variants::{ImplicitParams, ImplicitVariant, Way};
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::error::{Error, Result};
use crate::ops::inplace::fill_kernel;
use crate::ops::linalg::panels::{B_WIDTH, IndexMap, MAX_DEPTH, Pack};
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::stored::Stored;
use crate::ops::tiling::Sizes;

/// Steps of the sum in a tile; `DEPTH` in `tile_product.wgsl`.
const STEPS: usize = 8;

/// The most kernels for the gradient of one image: with a stride, one for the pixels of each place between two windows.
const MOST_PHASES: usize = 16;

/// With fewer channels, most of a tile of the image's gradient would be padding.
const FEWEST_CHANNELS: usize = 16;

/// A direction of the image: which positions of the kernel reach the pixels `first`, `first + stride`, …, and where they
/// read the gradient: pixel i at position t reads `i + start − t · step`.
struct Phase {
    first: usize,
    pixels: usize,
    /// The first position, the distance to the next, and their number.
    tap: usize,
    tap_step: usize,
    taps: usize,
    start: isize,
    step: usize,
}

impl Phase {
    /// Returns the phases of direction `d` of an image.
    fn all(g: &Geometry, d: usize) -> impl Iterator<Item = Phase> + use<> {
        let (params, size) = (g.window.params, g.window.size[d]);
        let (kernel, stride, dilation) = (params.kernel[d], params.stride[d], params.dilation[d]);
        let common = gcd(stride, dilation);
        (0..stride.min(size)).map(move |first| {
            let place = first + params.padding[d];
            let tap_step = stride / common;
            // Positions at this distance from each other reach the same pixels.
            let tap = (0..tap_step.min(kernel)).find(|tap| tap * dilation % stride == place % stride);
            let taps = tap.map_or(0, |tap| (kernel - tap).div_ceil(tap_step));
            let tap = tap.unwrap_or(0);
            let start = (place.cast_signed() - (tap * dilation).cast_signed()).div_euclid(stride.cast_signed());
            let pixels = (size - first).div_ceil(stride);
            Phase { first, pixels, tap, tap_step, taps, start, step: dilation / common }
        })
    }
}

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

    /// Returns the phases of both directions; `None` if they are too many.
    fn phases(&self) -> Option<[Vec<Phase>; 2]> {
        let phases = [0, 1].map(|d| Phase::all(self, d).take(MOST_PHASES + 1).collect::<Vec<_>>());
        (phases[0].len() * phases[1].len() <= MOST_PHASES).then_some(phases)
    }

    /// Returns the work of the gradient of the image; `None` if it is not for tiles.
    pub fn input_grad_work(&self) -> Option<Work> {
        let sizes = Sizes { m: self.group_channels(), n: self.images * self.window.plane(), batch: self.groups };
        let tiles = Sum::over(self.group_out()).tiles(self.window.taps());
        let suits = sizes.m >= FEWEST_CHANNELS && self.phases().is_some();
        suits.then_some(Work { sizes, tiles, most: MAX_DEPTH, passes: 1 })
    }

    /// Returns the kernels of the gradient of the image, whose [work](Geometry::input_grad_work) is for tiles. It is a convolution of dy
    /// for the pixels of each phase, by the positions of the kernel that reach them.
    pub fn input_grad_implicit(
        &self,
        gpu: &Gpu,
        tiles: Tiles,
        [dy, weight]: [Stored; 2],
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let (channels, taps, rows) = (self.group_out(), self.window.taps(), self.group_channels());
        let phases = self.phases().ok_or_else(|| Error::internal("too many phases for tiles"))?;
        let sum = Sum::over(channels);
        let params = ImplicitParams {
            m: rows,
            n: self.images * self.window.plane(),
            z_count: self.groups,
            row: self.window.plane(),
            outer: self.image(),
            a_depth: channels * taps,
            image_offset: dy.offset,
            image_step: self.out_image(),
            channels,
            ..ImplicitParams::default()
        };
        let total = self.images * self.image();
        let sums = tiles.sums(gpu, total, out)?;
        let (panels, pack) = self.weight_panels(gpu, weight, [channels, self.depth()], [rows, taps])?;
        let mut kernels = vec![pack];
        if phases.iter().flatten().any(|phase| phase.taps == 0) {
            kernels.push(fill_kernel(&sums.to, 0, tiles.parts * total, 0));
        }
        for (y, x) in phases[0].iter().flat_map(|y| phases[1].iter().map(move |x| (y, x))) {
            let taps = y.taps * x.taps;
            if taps > 0 {
                let params = self.phase(params, y, x);
                kernels.push(sums.kernel(params, sum.tiles(taps), [sum.flat, false], (&panels, dy), None));
            }
        }
        kernels.extend(sums.added(gpu, out)?);
        Ok(kernels)
    }

    /// Returns the params for the pixels of two phases.
    fn phase(&self, params: ImplicitParams, y: &Phase, x: &Phase) -> ImplicitParams {
        let ([stride_y, stride_x], width) = (self.window.params.stride, self.window.size[1]);
        let tap = self.window.params.kernel[1] * params.channels;
        let less = |distance: usize| (distance as u32).wrapping_neg(); // sizes of windows are at most 2³⁰
        ImplicitParams {
            n: self.images * y.pixels * x.pixels,
            k: y.taps * x.taps * params.channels,
            offset: y.first * width + x.first,
            line: stride_y * width,
            step: stride_x,
            a_first: y.tap * tap + x.tap * params.channels,
            a_y: y.tap_step * tap,
            a_x: x.tap_step * params.channels,
            height: self.window.out[0],
            width: self.window.out[1],
            taps_y: y.taps,
            taps_x: x.taps,
            out_y: y.pixels,
            out_x: x.pixels,
            stride_y: 1,
            stride_x: 1,
            dilation_y: less(y.step),
            dilation_x: less(x.step),
            pad_y: (y.start as u32).wrapping_neg(),
            pad_x: (x.start as u32).wrapping_neg(),
            ..params
        }
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
