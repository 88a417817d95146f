//! 3 × 3 convolutions with stride 1 on the host, by Winograd's minimal filtering: each tile of 2 × 2 results takes 16
//! products for each pair of channels, not 36 (Lavin and Gray, "Fast algorithms for convolutional neural networks",
//! 2016, F(2 × 2, 3 × 3)).
//!
//! Tiles of 4 × 4 pixels and kernels are transformed, `V = Bᵀ d B` and `U = G g Gᵀ`. For each of their 16 places, a
//! matrix product over the channels is computed, `M = U · V`; `Aᵀ M A` is the tile of the result. `strips` does it for some
//! rows of tiles at a time. The weights' gradient would be the adjoint, but a plain product takes less time.

use rayon::prelude::*;

use super::geometry::Geometry;
use super::strips;
use crate::device::cpu::scratch;
use crate::error::Result;

/// The number of places in a transformed tile.
pub(super) const PLACES: usize = 16;

/// With fewer channels, or fewer tiles in a batch, the transforms take more time than they save.
const LEAST_CHANNELS: usize = 16;
const LEAST_TILES: usize = 192;

/// Planes `[H, W]` as tiles of 2 × 2 results.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    /// The size of the planes that are read, their padding, and the size of the planes that are written.
    pub size: [usize; 2],
    pub padding: [usize; 2],
    pub out: [usize; 2],
}

/// A 3 × 3 convolution of stride 1: `inputs` channels to `outputs`.
pub(super) struct WinogradConv {
    pub images: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub tiles: Tiles,
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

pub(super) fn forward(g: &Geometry, x: &[f32], w: &[f32], bias: Option<&[f32]>, out: &mut [f32]) -> Result<()> {
    let conv = WinogradConv { images: g.images, inputs: g.channels, outputs: g.out_channels, tiles: g.tiles() };
    let mut u = scratch(PLACES * g.channels * g.out_channels)?;
    transform_weights(w, g.channels, false, &mut u);
    strips::convolve(&conv, x, (&u, g.channels, [PLACES * g.channels, 1]), bias, out)
}

/// Computes the convolution of dy by the rotated kernels, from the output's channels to the input's.
pub(super) fn input_grad(g: &Geometry, dy: &[f32], w: &[f32], dx: &mut [f32]) -> Result<()> {
    let Tiles { size, padding, out } = g.tiles();
    let tiles = Tiles { size: out, padding: padding.map(|p| 2 - p), out: size };
    let conv = WinogradConv { images: g.images, inputs: g.out_channels, outputs: g.channels, tiles };
    let mut u = scratch(PLACES * g.channels * g.out_channels)?;
    transform_weights(w, g.channels, true, &mut u);
    strips::convolve(&conv, dy, (&u, g.channels, [1, PLACES * g.channels]), None, dx)
}
