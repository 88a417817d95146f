//! 3 × 3 convolutions with stride 1 on the host, by Winograd's minimal filtering: each tile of 2 × 2 results takes 16
//! products for each pair of channels, not 36 (Lavin and Gray, "Fast algorithms for convolutional neural networks",
//! 2016, F(2 × 2, 3 × 3)).
//!
//! Tiles of 4 × 4 pixels and kernels are transformed, `V = Bᵀ d B` and `U = G g Gᵀ`. For each of their 16 places, a
//! matrix product over the channels is computed, `M = U · V`; `Aᵀ M A` is the tile of the result. The weights' gradient
//! is the adjoint: `Gᵀ (Σ (A dy Aᵀ) · Vᵀ) G`. Batches are split into blocks of images. Everything within a block runs
//! on all cores, and no sum depends on their number.

use rayon::prelude::*;

use super::geometry::Geometry;
use crate::device::cpu::scratch;
use crate::error::Result;
use crate::ops::linalg::gemm::{Matrix, Threads, gemm};

/// The number of places in a transformed tile.
const PLACES: usize = 16;

/// The approximate number of tiles of a block: enough for the matrix products, few enough for the caches.
const BLOCK: usize = 512;

/// With fewer channels, or fewer tiles in a batch, the transforms take more time than they save.
const LEAST_CHANNELS: usize = 16;
const LEAST_TILES: usize = 192;

/// Planes `[H, W]` as tiles of 2 × 2 results.
#[derive(Clone, Copy)]
struct Tiles {
    /// The size of the planes that are read, their padding, and the size of the planes that are written.
    size: [usize; 2],
    padding: [usize; 2],
    out: [usize; 2],
}

/// A 3 × 3 convolution of stride 1: `inputs` channels to `outputs`.
struct WinogradConv {
    images: usize,
    inputs: usize,
    outputs: usize,
    tiles: Tiles,
}

impl Geometry {
    /// Returns whether Winograd's method applies and is faster.
    pub fn winograd(&self) -> bool {
        let params = &self.window.params;
        let plain = params.kernel == [3, 3] && params.stride == [1, 1] && params.dilation == [1, 1] && self.groups == 1;
        if !plain || params.padding.iter().any(|&p| p > 2) || self.channels.min(self.out_channels) < LEAST_CHANNELS {
            return false;
        }
        // In both directions, forward and backward, the tiles must not be much larger than the planes.
        [self.window.out, self.window.size].iter().all(|out| {
            let tiles = out[0].div_ceil(2) * out[1].div_ceil(2);
            self.images * tiles >= LEAST_TILES && PLACES * tiles * 5 <= 9 * out[0] * out[1] * 3
        })
    }

    fn tiles(&self) -> Tiles {
        Tiles { size: self.window.size, padding: self.window.params.padding, out: self.window.out }
    }
}

impl Tiles {
    fn across(&self) -> usize {
        self.out[1].div_ceil(2)
    }

    fn count(&self) -> usize {
        self.out[0].div_ceil(2) * self.across()
    }

    /// Returns the number of elements of a padded plane: all pixels that the tiles read.
    fn padded(&self) -> usize {
        (2 * self.out[0].div_ceil(2) + 2) * (2 * self.across() + 2)
    }

    /// Copies a plane into the middle of a padded one, whose edge stays 0.
    fn pad(&self, x: &[f32], padded: &mut [f32]) {
        let width = 2 * self.across() + 2;
        for (y, row) in x.chunks_exact(self.size[1]).enumerate() {
            let at = (y + self.padding[0]) * width + self.padding[1];
            padded[at..at + row.len()].copy_from_slice(row);
        }
    }

    /// Computes `Bᵀ d B` of every tile of a padded plane: place k of tile t to `to[k][first + t]`.
    fn transform(&self, padded: &[f32], to: &mut [&mut [f32]; PLACES], first: usize) {
        let (across, width) = (self.across(), 2 * self.across() + 2);
        for (ty, rows) in (0..self.out[0].div_ceil(2)).map(|ty| (ty, &padded[2 * ty * width..][..4 * width])) {
            let to = to.each_mut().map(|to| &mut to[first + ty * across..][..across]);
            for tx in 0..across {
                let row = |r: usize| -> [f32; 4] {
                    let row = &rows[r * width + 2 * tx..][..4];
                    std::array::from_fn(|i| row[i])
                };
                let [d0, d1, d2, d3] = [row(0), row(1), row(2), row(3)];
                let down = [lanes(d0, d2, |a, b| a - b), lanes(d1, d2, |a, b| a + b), lanes(d2, d1, |a, b| a - b)];
                let last = lanes(d1, d3, |a, b| a - b);
                for (i, t) in down.into_iter().chain([last]).enumerate() {
                    to[4 * i][tx] = t[0] - t[2];
                    to[4 * i + 1][tx] = t[1] + t[2];
                    to[4 * i + 2][tx] = t[2] - t[1];
                    to[4 * i + 3][tx] = t[1] - t[3];
                }
            }
        }
    }

    /// Computes `A dy Aᵀ` of every tile of a plane of results' gradients, which is stored in a plane of whole tiles.
    /// Writes it as [`Tiles::transform`] does.
    fn spread(&self, dy: &[f32], to: &mut [&mut [f32]; PLACES], first: usize) {
        let across = self.across();
        for (ty, rows) in dy.chunks_exact(4 * across).enumerate() {
            let to = to.each_mut().map(|to| &mut to[first + ty * across..][..across]);
            let (above, below) = rows.split_at(2 * across);
            for tx in 0..across {
                let wide = |row: &[f32]| {
                    let [a, b] = [row[2 * tx], row[2 * tx + 1]];
                    [a, a + b, a - b, -b]
                };
                let (a, b) = (wide(above), wide(below));
                for j in 0..4 {
                    to[j][tx] = a[j];
                    to[4 + j][tx] = a[j] + b[j];
                    to[8 + j][tx] = a[j] - b[j];
                    to[12 + j][tx] = -b[j];
                }
            }
        }
    }

    /// Computes `Aᵀ M A` of every tile, place k of tile t from `from[k][t]`, as a plane of whole tiles.
    fn gather(&self, from: &[&[f32]; PLACES], y: &mut [f32]) {
        let across = self.across();
        for (ty, rows) in y.chunks_exact_mut(4 * across).enumerate() {
            let from = from.map(|from| &from[ty * across..][..across]);
            let (above, below) = rows.split_at_mut(2 * across);
            for tx in 0..across {
                let row = |i: usize| -> [f32; 4] { std::array::from_fn(|j| from[4 * i + j][tx]) };
                let [m0, m1, m2, m3] = [row(0), row(1), row(2), row(3)];
                let a: [f32; 4] = std::array::from_fn(|j| m0[j] + m1[j] + m2[j]);
                let b: [f32; 4] = std::array::from_fn(|j| m1[j] - m2[j] - m3[j]);
                for (y, r) in [(&mut *above, a), (&mut *below, b)] {
                    y[2 * tx] = r[0] + r[1] + r[2];
                    y[2 * tx + 1] = r[1] - r[2] - r[3];
                }
            }
        }
    }

    /// Returns the number of elements of a plane of whole tiles.
    fn whole(&self) -> usize {
        4 * self.count()
    }
}

fn lanes(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// Splits `chunk` into `PLACES` equal parts.
fn places(chunk: &mut [f32]) -> [&mut [f32]; PLACES] {
    let mut parts = chunk.chunks_exact_mut(chunk.len() / PLACES);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// Computes `G g Gᵀ` of all kernels of w `[OC, C, 3, 3]`, rotated by 180° if `turned`, as `[OC, PLACES, C]`.
fn transform_weights(w: &[f32], channels: usize, turned: bool, to: &mut [f32]) {
    let line = |[a, b, c]: [f32; 3]| [a, 0.5 * (a + b + c), 0.5 * (a - b + c), c];
    to.par_chunks_mut(PLACES * channels).zip(w.par_chunks(9 * channels)).for_each(|(to, w)| {
        let mut to = places(to);
        for (c, g) in w.chunks_exact(9).enumerate() {
            let tap = |i: usize| if turned { g[8 - i] } else { g[i] };
            let columns: [[f32; 4]; 3] = std::array::from_fn(|x| line([tap(x), tap(3 + x), tap(6 + x)]));
            for i in 0..4 {
                let row = line([columns[0][i], columns[1][i], columns[2][i]]);
                (0..4).for_each(|j| to[4 * i + j][c] = row[j]);
            }
        }
    });
}

/// Computes `Gᵀ u G` of the 16 places of every kernel of `[PLACES, OC, C]` as dw `[OC, C, 3, 3]`.
fn gather_weights(u: &[f32], dw: &mut [f32]) {
    let line = |[a, b, c, d]: [f32; 4]| [a + 0.5 * (b + c), 0.5 * (b - c), 0.5 * (b + c) + d];
    let pairs = dw.len() / 9;
    dw.par_chunks_mut(9 * 256).enumerate().for_each(|(i, dw)| {
        for (j, dw) in dw.chunks_exact_mut(9).enumerate() {
            let at = |place: usize| u[place * pairs + 256 * i + j];
            let columns: [[f32; 3]; 4] = std::array::from_fn(|x| line([at(x), at(4 + x), at(8 + x), at(12 + x)]));
            for y in 0..3 {
                let row = line([columns[0][y], columns[1][y], columns[2][y], columns[3][y]]);
                dw[3 * y..3 * y + 3].copy_from_slice(&row);
            }
        }
    });
}

impl WinogradConv {
    /// Computes the transformed tiles of a block of images x `[images, inputs, H, W]`:
    /// `[inputs, PLACES, images · tiles]`.
    fn transform(&self, x: &[f32], to: &mut [f32]) {
        let tiles = &self.tiles;
        let (count, plane) = (tiles.count(), tiles.size[0] * tiles.size[1]);
        let images = x.len() / (self.inputs * plane);
        let chunks = to.par_chunks_mut(PLACES * images * count).enumerate();
        chunks.for_each_init(
            || vec![0f32; tiles.padded()],
            |padded, (c, to)| {
                let mut to = places(to);
                for n in 0..images {
                    tiles.pad(&x[(n * self.inputs + c) * plane..][..plane], padded);
                    tiles.transform(padded, &mut to, n * count);
                }
            },
        );
    }

    /// Computes the same for a block of results' gradients, dy `[images, outputs, OH, OW]`:
    /// `[outputs, PLACES, images · tiles]`.
    fn spread(&self, dy: &[f32], to: &mut [f32]) {
        let tiles = &self.tiles;
        let (count, [height, width]) = (tiles.count(), tiles.out);
        let images = dy.len() / (self.outputs * height * width);
        to.par_chunks_mut(PLACES * images * count).enumerate().for_each_init(
            || vec![0f32; tiles.whole()],
            |whole, (o, to)| {
                let mut to = places(to);
                for n in 0..images {
                    let dy = &dy[(n * self.outputs + o) * height * width..][..height * width];
                    let rows = whole.chunks_exact_mut(2 * tiles.across()).zip(dy.chunks_exact(width));
                    rows.for_each(|(row, dy)| row[..width].copy_from_slice(dy));
                    tiles.spread(whole, &mut to, n * count);
                }
            },
        );
    }

    /// Computes the results of a block from its products `[PLACES, outputs, images · tiles]`.
    fn gather(&self, products: &[f32], bias: Option<&[f32]>, out: &mut [f32]) {
        let count = self.tiles.count();
        let across = products.len() / (PLACES * self.outputs);
        let planes = out.par_chunks_mut(self.tiles.out[0] * self.tiles.out[1]).enumerate();
        planes.for_each_init(
            || vec![0f32; self.tiles.whole()],
            |whole, (at, y)| {
                let (n, o) = (at / self.outputs, at % self.outputs);
                let from: [&[f32]; PLACES] =
                    std::array::from_fn(|k| &products[(k * self.outputs + o) * across + n * count..][..count]);
                self.tiles.gather(&from, whole);
                let add = bias.map_or(0.0, |bias| bias[o]);
                let rows = y.chunks_exact_mut(self.tiles.out[1]).zip(whole.chunks_exact(2 * self.tiles.across()));
                rows.for_each(|(y, row)| y.iter_mut().zip(row).for_each(|(y, v)| *y = v + add));
            },
        );
    }

    /// Computes x `[N, inputs, H, W]` → out `[N, outputs, OH, OW]`. Place k of the weights is a matrix
    /// `[outputs, inputs]` with these strides, which starts at `k · step`.
    fn run(
        &self,
        g: &Geometry,
        x: &[f32],
        (weights, step, strides): (&[f32], usize, [usize; 2]),
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) -> Result<()> {
        let WinogradConv { images, inputs, outputs, tiles } = *self;
        let block = g.block(tiles.count(), BLOCK).min(images);
        let most = block * tiles.count();
        let (mut transformed, mut products) = (scratch(PLACES * inputs * most)?, scratch(PLACES * outputs * most)?);
        let image = [inputs * tiles.size[0] * tiles.size[1], outputs * tiles.out[0] * tiles.out[1]];
        for (x, out) in x.chunks(block * image[0]).zip(out.chunks_mut(block * image[1])) {
            let across = x.len() / image[0] * tiles.count();
            let v = &mut transformed[..PLACES * inputs * across];
            self.transform(x, v);
            let (v, m) = (&*v, &mut products[..PLACES * outputs * across]);
            m.par_chunks_mut(outputs * across).enumerate().for_each(|(k, m)| {
                let left = Matrix::new(weights, k * step, strides);
                let right = Matrix::new(v, k * across, [PLACES * across, 1]);
                gemm(m, left, right, [outputs, inputs, across], false, Threads::One);
            });
            self.gather(m, bias, out);
        }
        Ok(())
    }
}

pub(super) fn forward(g: &Geometry, x: &[f32], w: &[f32], bias: Option<&[f32]>, out: &mut [f32]) -> Result<()> {
    let conv = WinogradConv { images: g.images, inputs: g.channels, outputs: g.out_channels, tiles: g.tiles() };
    let mut u = scratch(PLACES * g.channels * g.out_channels)?;
    transform_weights(w, g.channels, false, &mut u);
    conv.run(g, x, (&u, g.channels, [PLACES * g.channels, 1]), bias, out)
}

/// Computes the convolution of dy by the rotated kernels, from the output's channels to the input's.
pub(super) fn input_grad(g: &Geometry, dy: &[f32], w: &[f32], dx: &mut [f32]) -> Result<()> {
    let Tiles { size, padding, out } = g.tiles();
    let tiles = Tiles { size: out, padding: padding.map(|p| 2 - p), out: size };
    let conv = WinogradConv { images: g.images, inputs: g.out_channels, outputs: g.channels, tiles };
    let mut u = scratch(PLACES * g.channels * g.out_channels)?;
    transform_weights(w, g.channels, true, &mut u);
    conv.run(g, dy, (&u, g.channels, [1, PLACES * g.channels]), None, dx)
}

pub(super) fn weight_grad(g: &Geometry, dy: &[f32], x: &[f32], dw: &mut [f32]) -> Result<()> {
    let (channels, wide, tiles) = (g.channels, g.out_channels, g.tiles());
    let conv = WinogradConv { images: g.images, inputs: channels, outputs: wide, tiles };
    let block = g.block(tiles.count(), BLOCK).min(g.images);
    let most = block * tiles.count();
    let (mut transformed, mut spread) = (scratch(PLACES * channels * most)?, scratch(PLACES * wide * most)?);
    let mut sums = scratch(PLACES * channels * wide)?;
    for (i, (x, dy)) in x.chunks(block * g.image()).zip(dy.chunks(block * g.out_image())).enumerate() {
        let images = x.len() / g.image();
        let across = images * tiles.count();
        let v = &mut transformed[..PLACES * channels * across];
        conv.transform(x, v);
        let s = &mut spread[..PLACES * wide * across];
        conv.spread(dy, s);
        let (v, s) = (&*v, &*s);
        sums.par_chunks_mut(wide * channels).enumerate().for_each(|(k, sums)| {
            let left = Matrix::new(s, k * across, [PLACES * across, 1]);
            let right = Matrix::new(v, k * across, [1, PLACES * across]);
            gemm(sums, left, right, [wide, across, channels], i > 0, Threads::One);
        });
    }
    gather_weights(&sums, dw);
    Ok(())
}
