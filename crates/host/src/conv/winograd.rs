//! 3 × 3 convolutions with stride 1 on the host, by Winograd's minimal filtering: each tile of 2 × 2 results takes 16
//! products for each pair of channels, not 36 (Lavin and Gray, "Fast algorithms for convolutional neural networks",
//! 2016, F(2 × 2, 3 × 3)).
//!
//! Tiles of 4 × 4 pixels and kernels are transformed, `V = Bᵀ d B` and `U = G g Gᵀ`. For each of their 16 places, a
//! matrix product over the channels is computed, `M = V · U`; `Aᵀ M A` is the tile of the result. `strips` has the transforms
//! of tiles. The gradient of the weight is the adjoint, `Gᵀ [Σ (A dy Aᵀ) · V] G` (`winograd_grad`).

use pulp::{Simd, WithSimd};

use super::Sizes;
use super::columns::{Task, tasks};
use super::lanes::{Planes, kernels};
use super::strips::{OfPixels, Plan, Strip, gather, load, pixels_of, store, transform};
use crate::matmul::lane_sums::{LaneSums, Lie, Part};
use crate::matmul::tiles::panel_width;
use crate::memory::{Result, Scratch, scratch};
use crate::tasks::try_share;
use crate::vectors::{array, with_vectors};

/// The number of places in a transformed tile, and of positions in a kernel.
pub const PLACES: usize = 16;
pub(super) const TAPS: usize = 9;

/// Transforms the kernels of one pair of a channel and a block: `G g Gᵀ`.
struct Kernel<'a> {
    /// `[TAPS, width]`
    taps: &'a [f32],
    turned: bool,
    /// `[PLACES, terms, width]`, and the term to be written.
    to: &'a mut [f32],
    term: usize,
}

impl WithSimd for Kernel<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Kernel { taps, turned, to, term } = self;
        let (width, place) = (taps.len() / TAPS, to.len() / PLACES);
        let half = simd.splat_f32s(0.5);
        let line = |[a, b, c]: [S::f32s; 3]| {
            let (outer, inner) = (simd.mul_f32s(half, simd.add_f32s(a, c)), simd.mul_f32s(half, b));
            [a, simd.add_f32s(outer, inner), simd.sub_f32s(outer, inner), c]
        };
        for v in (0..width).step_by(S::F32_LANES) {
            let tap = |i: usize| load::<S>(taps, if turned { TAPS - 1 - i } else { i } * width + v);
            let columns: [[S::f32s; 4]; 3] = array([half; 4], |x| line([tap(x), tap(3 + x), tap(6 + x)]));
            #[expect(clippy::needless_range_loop, reason = "i is a row of all columns")]
            for i in 0..4 {
                let row = line(array(half, |x| columns[x][i]));
                for (j, value) in row.into_iter().enumerate() {
                    store::<S>(to, (4 * i + j) * place + term * width + v, value);
                }
            }
        }
    }
}

/// Returns the transformed kernels of w `[OC, C, 3, 3]`, rotated by 180° and from OC to C channels if `backward`:
/// `[block of results, PLACES, channel, width]`.
fn transform_weights(w: &[f32], channels: [usize; 2], backward: bool) -> Result<Scratch> {
    kernels(w, TAPS, channels, backward, PLACES, |taps, term, to| {
        with_vectors(Kernel { taps, turned: backward, to, term });
    })
}

pub(super) fn forward(g: &Sizes, x: &[f32], w: &[f32], bias: Option<&[f32]>, out: &mut [f32]) -> Result<()> {
    let weights = transform_weights(w, [g.channels, g.out_channels], false)?;
    convolve(g.images, g.planes(), x, &weights, bias, out)
}

/// Computes the convolution of dy by the rotated kernels, from the output's channels to the input's.
pub(super) fn input_grad(g: &Sizes, dy: &[f32], w: &[f32], dx: &mut [f32]) -> Result<()> {
    let weights = transform_weights(w, [g.out_channels, g.channels], true)?;
    let [to, from] = g.planes();
    convolve(g.images, [Planes { padding: to.padding.map(|p| 2 - p), ..from }, to], dy, &weights, None, dx)
}

/// Computes x `[N, C, H, W]` → out `[N, OC, OH, OW]`.
fn convolve(
    images: usize,
    planes: [Planes; 2],
    x: &[f32],
    weights: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
) -> Result<()> {
    let [from, to] = &planes;
    let (plan, width) = (Plan::new(images, from.channels, to.size), panel_width());
    // Each part of the channels transforms the tiles again: there are only as many as keep all threads busy.
    let count = rayon::current_num_threads().div_ceil(images.div_ceil(plan.images).max(1)).clamp(1, to.blocks());
    let channels = |part: usize| to.channels.min(part * to.blocks() / count * width);
    let parts: Vec<_> = (0..count).map(|i| (0, channels(i)..channels(i + 1))).collect();
    let tasks = tasks(out, (to.channels * to.plane(), to.plane()), plan.images, &parts);
    try_share(tasks, 1, |mut task| {
        let mut tiles = scratch(PLACES * from.blocks() * plan.most_tiles() * width)?;
        let mut products = scratch(PLACES * plan.most_tiles() * width)?;
        let [mut read, mut written] = [pixels_of(&plan, from)?, pixels_of(&plan, to)?];
        for strip in plan.strips(task.images.clone()) {
            let block = PLACES * strip.tiles() * width;
            let tiles = &mut tiles[..from.blocks() * block];
            for (i, to) in tiles.chunks_exact_mut(block).enumerate() {
                transform::<4, OfPixels>(from, x, (&strip, i), &mut read, to);
            }
            multiply(&planes, &strip, [tiles, weights], bias, [&mut products[..block], &mut written], &mut task);
        }
        Ok(())
    })
}

/// Multiplies the tiles of a strip by the weights of the task's channels, and writes the results.
fn multiply(
    [from, to]: &[Planes; 2],
    strip: &Strip,
    [tiles, weights]: [&[f32]; 2],
    bias: Option<&[f32]>,
    [products, pixels]: [&mut [f32]; 2],
    task: &mut Task,
) {
    let (width, place) = (panel_width(), products.len() / PLACES);
    let part = |i: usize| Part { a: i * products.len(), b: i * width * width, terms: from.channels_of(i) };
    let parts: Vec<Part> = (0..from.blocks()).map(part).collect();
    for first in task.planes.clone().step_by(width) {
        for (k, products) in products.chunks_exact_mut(place).enumerate() {
            let b = &weights[(first * PLACES + k * width) * from.channels..];
            let columns = to.channels_of(first / width);
            let sums = LaneSums { a: &tiles[k * place..], lie: Lie::Rows(width), b, parts: &parts, columns };
            sums.compute(strip.tiles(), false, products, width);
        }
        let images = strip.images.start - task.images.start..strip.images.end - task.images.start;
        let planes = (first - task.planes.start) * to.plane();
        let mut out: Vec<&mut [f32]> = task.out[images].iter_mut().map(|out| &mut out[planes..]).collect();
        gather(to, (strip, first / width), products, bias.map(|bias| &bias[first..]), pixels, &mut out);
    }
}
