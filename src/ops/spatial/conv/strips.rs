//! Winograd's transforms on the host, in strips: some rows of an image's tiles, which stay in a cache from the images to the
//! results.
//!
//! The tiles of a strip are numbered row by row, with one tile more in each row than there are, so that the pixels of
//! neighbouring tiles are neighbours in memory: pixel (r, c) of tile t is element `t + r/2 · across + c/2` of the strip's
//! pixels in even or odd rows and columns. What is computed for the tile too many is not used.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::columns::{Task, ranges, tasks};
use super::winograd::{PLACES, WinogradConv};
use crate::device::cpu::scratch;
use crate::error::Result;
use crate::ops::linalg::tiles::{Left, Start, lanes, panel_width};
use crate::ops::vectorised::{vectorised, with_vectors};

/// The approximate number of elements of the transformed tiles of a step.
const STEP: usize = 160 << 10;

/// The output channels whose products are gathered at a time.
const ROWS: usize = 16;

/// The pixels of a row that are written at a time. A step may write some past the end of its row, which the next row
/// overwrites.
const LANES: usize = 16;

/// Some rows of an image's tiles.
struct Strip {
    /// The place of the image in its task.
    image: usize,
    rows: Range<usize>,
    /// The place of the first tile among those of the step.
    first: usize,
}

/// How a convolution is divided.
struct Plan<'a> {
    conv: &'a WinogradConv,
    /// Tiles in a row, with the one too many, and rows of tiles.
    across: usize,
    down: usize,
    /// Rows of tiles in a strip, and strips in a step, at most.
    rows: usize,
    strips: usize,
}

impl Plan<'_> {
    fn new(conv: &WinogradConv) -> Plan<'_> {
        let [down, across] = conv.tiles.out.map(|out| out.div_ceil(2));
        let across = across + 1;
        let tiles = (STEP / (PLACES * conv.inputs)).max(panel_width());
        let parts = (down * across).div_ceil(tiles.max(across));
        let rows = down.div_ceil(parts);
        Plan { conv, across, down, rows, strips: (tiles / lanes_of(rows * across)).max(1) }
    }

    /// Returns the elements of one of the four planes of a strip's pixels, and of what reads past their end.
    fn plane(&self) -> usize {
        lanes_of(self.rows * self.across) + self.across + 1 + 2 * LANES
    }

    /// Copies the pixels of a strip, in even and odd rows and columns, from a plane of an image.
    fn split(&self, x: &[f32], rows: &Range<usize>, to: &mut [f32]) {
        let ([height, width], [top, left]) = (self.conv.tiles.size, self.conv.tiles.padding);
        let plane = self.plane();
        let mut line = vec![0f32; 2 * self.across + 2 * LANES];
        for y in 2 * rows.start..2 * rows.end + 2 {
            match y.checked_sub(top).filter(|y| *y < height) {
                Some(y) => line[left..left + width].copy_from_slice(&x[y * width..][..width]),
                None => line.fill(0.0),
            }
            let at = (y / 2 - rows.start) * self.across;
            let (even, odd) = to[y % 2 * 2 * plane..].split_at_mut(plane);
            vectorised!(unzip(&line, self.across, &mut even[at..], &mut odd[at..plane]));
        }
    }
}

/// Returns a number of tiles as whole vectors.
fn lanes_of(tiles: usize) -> usize {
    tiles.next_multiple_of(lanes())
}

/// Copies the even and the odd elements of a line.
#[inline(always)]
fn unzip(line: &[f32], count: usize, even: &mut [f32], odd: &mut [f32]) {
    for at in (0..count).step_by(LANES) {
        let from = line[2 * at..].first_chunk::<{ 2 * LANES }>();
        let to = (even[at..].first_chunk_mut::<LANES>(), odd[at..].first_chunk_mut::<LANES>());
        debug_assert!(matches!((from, &to), (Some(_), (Some(_), Some(_)))), "a buffer is too short");
        if let (Some(from), (Some(even), Some(odd))) = (from, to) {
            for i in 0..LANES {
                (even[i], odd[i]) = (from[2 * i], from[2 * i + 1]);
            }
        }
    }
}

/// Writes pairs of even and odd elements, each plus `add`, as a row of results.
#[inline(always)]
fn zip(even: &[f32], odd: &[f32], add: f32, count: usize, row: &mut [f32]) {
    for at in (0..count).step_by(2 * LANES) {
        let from = (even[at / 2..].first_chunk::<LANES>(), odd[at / 2..].first_chunk::<LANES>());
        debug_assert!(matches!(from, (Some(_), Some(_))), "a buffer is too short");
        let (Some(even), Some(odd)) = from else { return };
        let mut both = [0f32; 2 * LANES];
        for i in 0..LANES {
            (both[2 * i], both[2 * i + 1]) = (even[i] + add, odd[i] + add);
        }
        match row[at..].first_chunk_mut::<{ 2 * LANES }>() {
            Some(row) => *row = both,
            None => row[at..count].copy_from_slice(&both[..count - at]),
        }
    }
}

/// Computes `Bᵀ d B` of every tile of a strip, from its pixels, to the panels of each place.
struct Transform<'a> {
    pixels: &'a [f32],
    plane: usize,
    across: usize,
    tiles: usize,
    /// The channel, and the number of channels.
    channel: [usize; 2],
    first: usize,
    /// The panels, and the elements of the panels of a place.
    to: &'a mut [f32],
    place: usize,
}

impl WithSimd for Transform<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Transform { pixels, plane, across, tiles, channel: [c, channels], first, to, place } = self;
        let width = panel_width();
        for t in (0..tiles).step_by(S::F32_LANES) {
            let mut columns = [[simd.splat_f32s(0.0); 4]; 4];
            for (x, column) in columns.iter_mut().enumerate() {
                let mut d = [simd.splat_f32s(0.0); 4];
                for (y, d) in d.iter_mut().enumerate() {
                    *d = load::<S>(pixels, (y % 2 * 2 + x % 2) * plane + t + y / 2 * across + x / 2);
                }
                *column = forth(simd, d);
            }
            let q = first + t;
            let at = q / width * width * channels + c * width + q % width;
            #[expect(clippy::needless_range_loop, reason = "y is a row of four columns")]
            for y in 0..4 {
                let row = forth(simd, [columns[0][y], columns[1][y], columns[2][y], columns[3][y]]);
                for (x, v) in row.into_iter().enumerate() {
                    store::<S>(to, (4 * y + x) * place + at, v);
                }
            }
        }
    }
}

/// Computes `Aᵀ M A` of every tile of a strip, from the products of an output channel: the results in even and odd rows and
/// columns.
struct Gather<'a> {
    products: &'a [f32],
    place: usize,
    tiles: usize,
    to: [&'a mut [f32]; 4],
}

impl WithSimd for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Gather { products, place, tiles, to } = self;
        for t in (0..tiles).step_by(S::F32_LANES) {
            let mut columns = [[simd.splat_f32s(0.0); 2]; 4];
            for (x, column) in columns.iter_mut().enumerate() {
                let mut m = [simd.splat_f32s(0.0); 4];
                for (y, m) in m.iter_mut().enumerate() {
                    *m = load::<S>(products, (4 * y + x) * place + t);
                }
                *column = back(simd, m);
            }
            for y in 0..2 {
                let row = back(simd, [columns[0][y], columns[1][y], columns[2][y], columns[3][y]]);
                for (x, v) in row.into_iter().enumerate() {
                    store::<S>(to[2 * y + x], t, v);
                }
            }
        }
    }
}

/// Computes `Bᵀ d` of a column of a tile.
#[inline(always)]
fn forth<S: Simd>(simd: S, d: [S::f32s; 4]) -> [S::f32s; 4] {
    [simd.sub_f32s(d[0], d[2]), simd.add_f32s(d[1], d[2]), simd.sub_f32s(d[2], d[1]), simd.sub_f32s(d[1], d[3])]
}

/// Computes `Aᵀ m` of a column of a tile.
#[inline(always)]
fn back<S: Simd>(simd: S, m: [S::f32s; 4]) -> [S::f32s; 2] {
    let sum = simd.add_f32s(simd.add_f32s(m[0], m[1]), m[2]);
    [sum, simd.sub_f32s(simd.sub_f32s(m[1], m[2]), m[3])]
}

#[inline(always)]
fn load<S: Simd>(from: &[f32], at: usize) -> S::f32s {
    S::as_simd_f32s(&from[at..at + S::F32_LANES]).0[0]
}

#[inline(always)]
fn store<S: Simd>(to: &mut [f32], at: usize, v: S::f32s) {
    S::as_mut_simd_f32s(&mut to[at..at + S::F32_LANES]).0[0] = v;
}

/// Computes x `[N, inputs, H, W]` → out `[N, outputs, OH, OW]`. Place k of the weights is a matrix `[outputs, inputs]` with
/// these strides, which starts at `k · step`.
pub(super) fn convolve(
    conv: &WinogradConv,
    x: &[f32],
    (weights, step, strides): (&[f32], usize, [usize; 2]),
    bias: Option<&[f32]>,
    out: &mut [f32],
) -> Result<()> {
    let plan = Plan::new(conv);
    let block = |at: usize| {
        let (rows, k) = (at / PLACES * ROWS, at % PLACES);
        let count = ROWS.min(conv.outputs - rows);
        Left::from(&weights[k * step + rows * strides[0]..], strides, [count, conv.inputs])
    };
    let blocks = conv.outputs.div_ceil(ROWS);
    let weights: Vec<Left> = (0..blocks * PLACES).into_par_iter().map(block).collect::<Result<_>>()?;
    let images = plan.strips.div_ceil(plan.down.div_ceil(plan.rows));
    let parts = ranges(1, blocks, blocks, conv.images.div_ceil(images));
    let planes =
        |(group, blocks): (usize, Range<usize>)| (group, blocks.start * ROWS..conv.outputs.min(blocks.end * ROWS));
    let parts: Vec<_> = parts.into_iter().map(planes).collect();
    let plane = conv.tiles.out[0] * conv.tiles.out[1];
    let tasks = tasks(out, (conv.outputs * plane, plane), images, &parts);
    tasks.into_par_iter().try_for_each(|mut task| {
        let mut strips = Vec::new();
        for image in 0..task.out.len() {
            let starts = (0..plan.down).step_by(plan.rows);
            strips.extend(starts.map(|y| Strip { image, rows: y..plan.down.min(y + plan.rows), first: 0 }));
        }
        let most = plan.strips * lanes_of(plan.rows * plan.across);
        let mut tiles = scratch(PLACES * conv.inputs * most.next_multiple_of(panel_width()))?;
        let mut products = scratch(PLACES * ROWS * most)?;
        for strips in strips.chunks_mut(plan.strips) {
            let mut all = 0;
            for strip in &mut *strips {
                strip.first = all;
                all += lanes_of(strip.rows.len() * plan.across);
            }
            let place = conv.inputs * all.next_multiple_of(panel_width());
            transform(&plan, x, task.images.start, strips, &mut tiles[..PLACES * place])?;
            multiply(&plan, &weights, bias, (&tiles, place), strips, &mut products[..PLACES * ROWS * all], &mut task)?;
        }
        Ok(())
    })
}

fn transform(plan: &Plan, x: &[f32], first: usize, strips: &[Strip], to: &mut [f32]) -> Result<()> {
    let (conv, plane) = (plan.conv, plan.plane());
    let size = conv.tiles.size[0] * conv.tiles.size[1];
    let mut pixels = scratch(4 * plane)?;
    for strip in strips {
        for c in 0..conv.inputs {
            plan.split(&x[((first + strip.image) * conv.inputs + c) * size..][..size], &strip.rows, &mut pixels);
            with_vectors(Transform {
                pixels: &pixels,
                plane,
                across: plan.across,
                tiles: strip.rows.len() * plan.across,
                channel: [c, conv.inputs],
                first: strip.first,
                place: to.len() / PLACES,
                to: &mut *to,
            });
        }
    }
    Ok(())
}

/// Multiplies the tiles of a step by the weights of the task's channels, and writes the results.
fn multiply(
    plan: &Plan,
    weights: &[Left],
    bias: Option<&[f32]>,
    (tiles, place): (&[f32], usize),
    strips: &[Strip],
    products: &mut [f32],
    task: &mut Task,
) -> Result<()> {
    let [height, width] = plan.conv.tiles.out;
    let all = products.len() / (PLACES * ROWS);
    let mut results = scratch(4 * (plan.plane() + LANES))?;
    for rows in task.planes.clone().step_by(ROWS) {
        for k in 0..PLACES {
            let left = &weights[rows / ROWS * PLACES + k];
            left.multiply(&tiles[k * place..][..place], all, Start::Zero, &mut products[k * ROWS * all..], all);
        }
        for o in rows..task.planes.end.min(rows + ROWS) {
            let add = bias.map_or(0.0, |bias| bias[o]);
            for strip in strips {
                let mut to = results.chunks_exact_mut(plan.plane() + LANES);
                let mut to: [&mut [f32]; 4] = std::array::from_fn(|_| to.next().unwrap_or_default());
                with_vectors(Gather {
                    products: &products[(o - rows) * all + strip.first..],
                    place: ROWS * all,
                    tiles: strip.rows.len() * plan.across,
                    to: to.each_mut().map(|to| &mut **to),
                });
                let out = &mut task.out[strip.image][(o - task.planes.start) * height * width..][..height * width];
                for y in 2 * strip.rows.start..height.min(2 * strip.rows.end) {
                    let at = (y / 2 - strip.rows.start) * plan.across;
                    let (even, odd) = (&to[y % 2 * 2][at..], &to[y % 2 * 2 + 1][at..]);
                    vectorised!(zip(even, odd, add, width, &mut out[y * width..]));
                }
            }
        }
    }
    Ok(())
}
