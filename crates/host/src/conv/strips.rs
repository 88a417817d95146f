//! Winograd's transforms on the host, in strips: some rows of the tiles of an image, or all tiles of some small images, which
//! stay in a cache from the images to the results.
//!
//! Channels are in blocks of as many as a panel of a product has columns. A transformed strip is `[block, place, tile,
//! channel of the block]`: for each place a factor of the products over the channels, or over the tiles, as it is.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::lanes::{Planes, from_lanes, to_lanes};
use super::winograd::PLACES;
use crate::matmul::tiles::{VECTORS, panel_width};
use crate::memory::{Result, Scratch, scratch};
use crate::vectors::{array, with_vectors};

/// The approximate number of elements of a transformed strip, at most.
const STRIP: usize = 80 << 10;

/// The fewest tiles of a strip, if there are as many: with fewer, the weights are read too often.
const FEWEST_TILES: usize = 32;

/// How the tiles of all images are divided into strips.
pub(super) struct Plan {
    /// Rows of tiles, and tiles in a row.
    pub tiles: [usize; 2],
    /// Rows of tiles of a strip, and images of a strip: several only if a strip has all rows.
    rows: usize,
    pub images: usize,
}

/// Some rows of the tiles of some images.
#[derive(Clone)]
pub(super) struct Strip {
    pub images: Range<usize>,
    pub rows: Range<usize>,
    pub across: usize,
}

impl Plan {
    /// Returns the plan for results of this size, computed from strips of `channels` channels.
    pub fn new(images: usize, channels: usize, out: [usize; 2]) -> Plan {
        let tiles = out.map(|out| out.div_ceil(2));
        let all = tiles[0] * tiles[1];
        let most = (STRIP / (PLACES * channels.next_multiple_of(panel_width()))).max(FEWEST_TILES);
        let parts = tiles[0].div_ceil((most / tiles[1].max(1)).max(1));
        let images = if parts > 1 { 1 } else { FEWEST_TILES.div_ceil(all).min(images).max(1) };
        Plan { tiles, rows: tiles[0].div_ceil(parts.max(1)), images }
    }

    /// Returns the strips of some images.
    pub fn strips(&self, images: Range<usize>) -> Vec<Strip> {
        let mut strips = Vec::new();
        for first in images.clone().step_by(self.images) {
            for row in (0..self.tiles[0]).step_by(self.rows) {
                let rows = row..self.tiles[0].min(row + self.rows);
                strips.push(Strip { images: first..images.end.min(first + self.images), rows, across: self.tiles[1] });
            }
        }
        strips
    }

    /// Returns the most tiles of a strip.
    pub fn most_tiles(&self) -> usize {
        self.images * self.rows * self.tiles[1]
    }
}

impl Strip {
    pub fn tiles(&self) -> usize {
        self.images.len() * self.rows.len() * self.across
    }
}

/// The transform of a line of a tile, from `R` elements to four.
pub(super) trait Line<const R: usize> {
    fn line<S: Simd>(simd: S, d: [S::f32s; R]) -> [S::f32s; 4];
}

/// `Bᵀ d`, of pixels.
pub(super) struct OfPixels;

impl Line<4> for OfPixels {
    #[inline(always)]
    fn line<S: Simd>(simd: S, d: [S::f32s; 4]) -> [S::f32s; 4] {
        [simd.sub_f32s(d[0], d[2]), simd.add_f32s(d[1], d[2]), simd.sub_f32s(d[2], d[1]), simd.sub_f32s(d[1], d[3])]
    }
}

/// `A d`, of gradients of results: the adjoint of [`back`].
pub(super) struct OfGrads;

impl Line<2> for OfGrads {
    #[inline(always)]
    fn line<S: Simd>(simd: S, d: [S::f32s; 2]) -> [S::f32s; 4] {
        [d[0], simd.add_f32s(d[0], d[1]), simd.sub_f32s(d[0], d[1]), simd.sub_f32s(simd.splat_f32s(0.0), d[1])]
    }
}

/// Computes `Aᵀ m` of a column of a tile.
#[inline(always)]
fn back<S: Simd>(simd: S, m: [S::f32s; 4]) -> [S::f32s; 2] {
    let sum = simd.add_f32s(simd.add_f32s(m[0], m[1]), m[2]);
    [sum, simd.sub_f32s(simd.sub_f32s(m[1], m[2]), m[3])]
}

#[inline(always)]
pub(super) fn load<S: Simd>(from: &[f32], at: usize) -> S::f32s {
    S::as_simd_f32s(&from[at..at + S::F32_LANES]).0[0]
}

#[inline(always)]
pub(super) fn store<S: Simd>(to: &mut [f32], at: usize, v: S::f32s) {
    S::as_mut_simd_f32s(&mut to[at..at + S::F32_LANES]).0[0] = v;
}

/// Returns the memory for the pixels of a strip of the plan: of one image, with the zeros of the padding after them.
pub(super) fn pixels_of(plan: &Plan, planes: &Planes) -> Result<Scratch> {
    scratch(((2 * plan.rows + 2).min(planes.size[0]) * planes.size[1] + 1) * panel_width())
}

/// Writes the transformed tiles of a block of a strip's channels to `to`, `[PLACES, tiles, width]`.
pub(super) fn transform<const R: usize, L: Line<R>>(
    planes: &Planes,
    x: &[f32],
    (strip, block): (&Strip, usize),
    pixels: &mut [f32],
    to: &mut [f32],
) {
    let ([height, across], width, channels) = (planes.size, panel_width(), planes.channels_of(block));
    let line = |tile: usize, i: usize| (2 * tile + i).saturating_sub(planes.padding[0]).min(height);
    let lines = line(strip.rows.start, 0)..line(strip.rows.end - 1, R);
    let some = lines.start * across..lines.end * across;
    let zeros = some.len() * width;
    pixels[zeros..][..width].fill(0.0);
    for (i, image) in strip.images.clone().enumerate() {
        let x = &x[(image * planes.channels + block * width) * planes.plane()..];
        to_lanes(x, planes.plane(), (channels, some.clone()), pixels, width);
        let first = i * strip.rows.len() * strip.across;
        let line = std::marker::PhantomData::<L>;
        with_vectors(Transform { planes, strip, lines: lines.clone(), pixels, zeros, first, to, line });
    }
}

/// Transforms the tiles of one image of a strip.
struct Transform<'a, const R: usize, L> {
    planes: &'a Planes,
    strip: &'a Strip,
    /// The lines of the image that `pixels` has.
    lines: Range<usize>,
    pixels: &'a [f32],
    /// Where the zeros of the padding are.
    zeros: usize,
    /// The number of the first tile.
    first: usize,
    to: &'a mut [f32],
    line: std::marker::PhantomData<L>,
}

impl<const R: usize, L: Line<R>> WithSimd for Transform<'_, R, L> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Transform { planes, strip, lines, pixels, zeros, first, to, .. } = self;
        let (width, place) = (VECTORS * S::F32_LANES, to.len() / PLACES);
        let [top, left] = planes.padding;
        for (r, row) in strip.rows.clone().enumerate() {
            let ys: [Option<usize>; R] = array(None, |i| {
                let y = (2 * row + i).checked_sub(top).filter(|y| *y < planes.size[0])?;
                Some((y - lines.start) * planes.size[1])
            });
            for column in 0..strip.across {
                let xs: [Option<usize>; R] =
                    array(None, |i| (2 * column + i).checked_sub(left).filter(|x| *x < planes.size[1]));
                let at: [[usize; R]; R] =
                    array([0; R], |i| array(0, |j| ys[i].zip(xs[j]).map_or(zeros, |(y, x)| (y + x) * width)));
                let tile = (first + r * strip.across + column) * width;
                for v in (0..width).step_by(S::F32_LANES) {
                    let mut rows = [[simd.splat_f32s(0.0); 4]; R];
                    for i in 0..R {
                        let mut d = [simd.splat_f32s(0.0); R];
                        for j in 0..R {
                            d[j] = load::<S>(pixels, at[i][j] + v);
                        }
                        rows[i] = L::line(simd, d);
                    }
                    #[expect(clippy::needless_range_loop, reason = "j is a column of all rows")]
                    for j in 0..4 {
                        let mut d = [simd.splat_f32s(0.0); R];
                        for i in 0..R {
                            d[i] = rows[i][j];
                        }
                        for (i, value) in L::line(simd, d).into_iter().enumerate() {
                            store::<S>(to, (4 * i + j) * place + tile + v, value);
                        }
                    }
                }
            }
        }
    }
}

/// Computes `Aᵀ M A` of every tile of a strip from the products of a block of output channels, `[PLACES, tiles, width]`, and
/// writes them, plus a bias, to the planes of these channels, of each image.
pub(super) fn gather(
    planes: &Planes,
    (strip, block): (&Strip, usize),
    products: &[f32],
    bias: Option<&[f32]>,
    pixels: &mut [f32],
    out: &mut [&mut [f32]],
) {
    let ([height, across], width, channels) = (planes.size, panel_width(), planes.channels_of(block));
    let lines = 2 * strip.rows.start..height.min(2 * strip.rows.end);
    for (i, out) in out.iter_mut().enumerate() {
        let first = i * strip.rows.len() * strip.across;
        with_vectors(Gather { planes, strip, products, first, pixels });
        if let Some(bias) = bias {
            for pixel in pixels.chunks_exact_mut(width).take(lines.len() * across) {
                pixel.iter_mut().zip(bias).for_each(|(v, bias)| *v += bias);
            }
        }
        let some = lines.start * across..lines.end * across;
        from_lanes(pixels, width, (channels, some), out, planes.plane());
    }
}

/// Gathers the tiles of one image of a strip.
struct Gather<'a> {
    planes: &'a Planes,
    strip: &'a Strip,
    products: &'a [f32],
    first: usize,
    pixels: &'a mut [f32],
}

impl WithSimd for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Gather { planes, strip, products, first, pixels } = self;
        let (width, place) = (VECTORS * S::F32_LANES, products.len() / PLACES);
        let [height, across] = planes.size;
        for (r, row) in strip.rows.clone().enumerate() {
            for column in 0..strip.across {
                let tile = (first + r * strip.across + column) * width;
                for v in (0..width).step_by(S::F32_LANES) {
                    let m = |i: usize, j: usize| load::<S>(products, (4 * i + j) * place + tile + v);
                    let mut rows = [[simd.splat_f32s(0.0); 2]; 4];
                    for (i, row) in rows.iter_mut().enumerate() {
                        *row = back(simd, [m(i, 0), m(i, 1), m(i, 2), m(i, 3)]);
                    }
                    let pairs = [
                        back(simd, [rows[0][0], rows[1][0], rows[2][0], rows[3][0]]),
                        back(simd, [rows[0][1], rows[1][1], rows[2][1], rows[3][1]]),
                    ];
                    for (j, pair) in pairs.iter().enumerate().take(across - 2 * column) {
                        for (i, value) in pair.iter().enumerate().take(height - 2 * row) {
                            let at = ((2 * r + i) * across + 2 * column + j) * width + v;
                            store::<S>(pixels, at, *value);
                        }
                    }
                }
            }
        }
    }
}
