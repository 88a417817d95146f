//! The gradient of the weight of a 3 × 3 convolution on the host, by Winograd's method: the adjoint of the convolution's
//! transforms, with matrix products over the tiles.

use pulp::{Simd, WithSimd};

use super::Sizes;
use super::lanes::{Planes, from_lanes};
use super::strips::{OfGrads, OfPixels, Plan, Strip, load, pixels_of, store, transform};
use super::winograd::{PLACES, TAPS};
use crate::matmul::lane_sums::{LaneSums, Lie, Part};
use crate::matmul::tiles::panel_width;
use crate::memory::{Result, scratch};
use crate::tasks::{share, try_share};
use crate::vectors::{array, with_vectors};

/// The approximate number of elements of all transformed tiles of a step.
const STEP: usize = 1 << 20;

/// The output channels of a task.
const ROWS: usize = 16;

/// Writes `Gᵀ m G` of the sums of a row, `[PLACES, width]` at a distance of `place`, as `[TAPS, width]`.
struct Kernels<'a> {
    sums: &'a [f32],
    place: usize,
    to: &'a mut [f32],
}

impl WithSimd for Kernels<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Kernels { sums, place, to } = self;
        let (width, half) = (to.len() / TAPS, simd.splat_f32s(0.5));
        let line = |[a, b, c, d]: [S::f32s; 4]| {
            let both = simd.mul_f32s(half, simd.add_f32s(b, c));
            [simd.add_f32s(a, both), simd.mul_f32s(half, simd.sub_f32s(b, c)), simd.add_f32s(both, d)]
        };
        for v in (0..width).step_by(S::F32_LANES) {
            let m = |i: usize, j: usize| load::<S>(sums, (4 * i + j) * place + v);
            let rows: [[S::f32s; 3]; 4] = array([half; 3], |i| line([m(i, 0), m(i, 1), m(i, 2), m(i, 3)]));
            #[expect(clippy::needless_range_loop, reason = "j is a column of all rows")]
            for j in 0..3 {
                let column = line(array(half, |i| rows[i][j]));
                for (i, value) in column.into_iter().enumerate() {
                    store::<S>(to, (3 * i + j) * width + v, value);
                }
            }
        }
    }
}

pub(super) fn weight_grad(g: &Sizes, dy: &[f32], x: &[f32], dw: &mut [f32]) -> Result<()> {
    let (planes, width) = (g.planes(), panel_width());
    let [from, to] = &planes;
    let plan = Plan::new(g.images, g.channels.max(g.out_channels), to.size);
    let group = PLACES * plan.most_tiles() * width;
    let strips = plan.strips(0..g.images);
    let each = (STEP / (group * (from.blocks() + to.blocks()))).clamp(1, strips.len().max(1));
    let [mut tiles, mut grads] = [scratch(each * from.blocks() * group)?, scratch(each * to.blocks() * group)?];
    let wide = from.blocks() * width;
    // Rows of a task: `[PLACES, rows, wide]`.
    let mut sums = scratch(g.out_channels * PLACES * wide)?;
    let steps = strips.len().div_ceil(each);
    for (step, strips) in strips.chunks(each).enumerate() {
        let transformed = tiles.chunks_mut(group).zip(0..strips.len() * from.blocks());
        try_share(transformed, 1, |(to, i)| {
            let (strip, block) = (&strips[i / from.blocks()], i % from.blocks());
            let to = &mut to[..PLACES * strip.tiles() * width];
            transform::<4, OfPixels>(from, x, (strip, block), &mut pixels_of(&plan, from)?, to);
            Ok(())
        })?;
        let transformed = grads.chunks_mut(group).zip(0..strips.len() * to.blocks());
        try_share(transformed, 1, |(out, i)| {
            let (strip, block) = (&strips[i / to.blocks()], i % to.blocks());
            let out = &mut out[..PLACES * strip.tiles() * width];
            transform::<2, OfGrads>(to, dy, (strip, block), &mut pixels_of(&plan, to)?, out);
            Ok(())
        })?;
        let rows = ROWS.min(panel_width()); // of one block of channels
        let tasks = sums.chunks_mut(rows * PLACES * wide).zip(dw.chunks_mut(rows * TAPS * g.channels));
        try_share(tasks.enumerate(), 1, |(task, (sums, dw))| {
            add_products(&planes, strips, group, (task * rows, step > 0), [&grads, &tiles], sums);
            if step + 1 == steps { write_kernels(from, sums, dw) } else { Ok(()) }
        })?;
    }
    Ok(())
}

/// Adds the products over the tiles of some strips to the sums of a task's rows.
fn add_products(
    [from, to]: &[Planes; 2],
    strips: &[Strip],
    group: usize,
    (first, add): (usize, bool),
    [grads, tiles]: [&[f32]; 2],
    sums: &mut [f32],
) {
    let (width, wide) = (panel_width(), from.blocks() * panel_width());
    let rows = sums.len() / (PLACES * wide);
    share(sums.chunks_exact_mut(rows * wide).enumerate(), 1, |(k, sums)| {
        for block in 0..from.blocks() {
            let part = |(i, strip): (usize, &Strip)| {
                let place = k * strip.tiles() * width;
                let a = (i * to.blocks() + first / width) * group + place + first % width;
                Part { a, b: (i * from.blocks() + block) * group + place, terms: strip.tiles() }
            };
            let parts: Vec<Part> = strips.iter().enumerate().map(part).collect();
            let columns = from.channels_of(block);
            let product = LaneSums { a: grads, lie: Lie::Terms([width; 2]), b: tiles, parts: &parts, columns };
            product.compute(rows, add, &mut sums[block * width..], wide);
        }
    });
}

/// Writes the kernels of some rows, `[rows, C, 3, 3]`, from their sums.
fn write_kernels(from: &Planes, sums: &[f32], dw: &mut [f32]) -> Result<()> {
    let (width, wide) = (panel_width(), from.blocks() * panel_width());
    let (mut kernels, place) = (scratch(TAPS * width)?, sums.len() / PLACES);
    for (row, dw) in dw.chunks_exact_mut(TAPS * from.channels).enumerate() {
        for (block, dw) in dw.chunks_mut(TAPS * width).enumerate() {
            let sums = &sums[row * wide + block * width..];
            with_vectors(Kernels { sums, place, to: &mut kernels });
            from_lanes(&kernels, width, (from.channels_of(block), 0..TAPS), dw, TAPS);
        }
    }
    Ok(())
}
