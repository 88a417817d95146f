//! Images from their columns, on the host: the adjoint of copying the pixels under the kernels.

use pulp::{Simd, WithSimd};

use super::{Sizes, add};
use crate::sums::{LONG, Sum, added};
use crate::vectors::with_vectors;

/// The most pixels of a row that are added up at a time.
const LANES: usize = 16;

/// The most elements of a margin that is worth it for any length of a row.
const MOST_MARGIN: usize = 4096;

impl Sizes {
    /// Returns how many elements before the columns, and after them, [`Sizes::col2im`] may read.
    pub(super) fn margins(&self) -> [usize; 2] {
        self.gathers().unwrap_or_default()
    }

    /// Returns the margins if [`GatherRows`] computes the images: if the windows are one pixel apart, and the margins are not
    /// much longer than the rows that they are for.
    fn gathers(&self) -> Option<[usize; 2]> {
        let (window, params) = (&self.window, &self.window.params);
        // The columns of a transposed convolution with an output padding end before the last pixel that they could reach.
        let past = (window.size[1] + params.padding[1]).saturating_sub(window.out[1]);
        let (before, after) = (params.span(1) - 1, past + LANES);
        let few = before.max(after) <= MOST_MARGIN.max(4 * window.size[1]);
        (params.stride == [1, 1] && window.taps() <= LONG && few).then_some([before, after])
    }

    /// Adds up one image from its columns `[depth, OH·OW]`: adds each element to the pixel that it stands for. The columns
    /// begin after the first margin; the distance between their rows is `step`.
    pub(super) fn col2im(&self, cols: &[f32], step: usize, dx: &mut [f32]) {
        let (plane, taps, [before, _]) = (self.window.plane(), self.window.taps(), self.margins());
        let simple = self.gathers().is_some();
        let masks = if simple { self.masks() } else { Vec::new() };
        for (c, dx) in dx.chunks_mut(plane).enumerate() {
            let cols = &cols[c * taps * step..];
            if simple {
                with_vectors(GatherRows { g: self, cols, step, masks: &masks, dx });
                continue;
            }
            let cols = &cols[before..];
            added(dx, taps, |dx| self.add_rows(cols, step, dx), |dx| self.add_rows(cols, step, dx));
        }
    }

    /// Returns for each part of a row, and each column of the kernel, which of its pixels have a window whose kernel reads
    /// them there: all bits or none.
    fn masks(&self) -> Vec<[u32; LANES]> {
        let (params, out) = (&self.window.params, self.window.out[1]);
        let within = |x: usize| if (params.padding[1]..params.padding[1] + out).contains(&x) { u32::MAX } else { 0 };
        let pairs = (0..self.window.size[1]).step_by(LANES).flat_map(|x| (0..params.kernel[1]).map(move |k| (x, k)));
        let lane = |x: usize, k: usize| (x + 2 * params.padding[1]).checked_sub(k * params.dilation[1]);
        pairs.map(|(x, k)| std::array::from_fn(|i| lane(x + i, k).map_or(0, within))).collect()
    }

    /// Adds the rows of a channel's columns to its plane.
    fn add_rows(&self, cols: &[f32], step: usize, dx: &mut [impl Sum]) {
        for (tap, cols) in cols.chunks(step).take(self.window.taps()).enumerate() {
            let cols = &cols[..self.window.pixels()];
            self.window.rows(tap, |o, i, len| add(&mut dx[i..], self.window.params.stride[1], &cols[o..o + len], 1.0));
        }
    }
}

/// Adds up the pixels of a plane one after the other, for windows that are one pixel apart.
struct GatherRows<'a> {
    g: &'a Sizes,
    cols: &'a [f32],
    step: usize,
    masks: &'a [[u32; LANES]],
    dx: &'a mut [f32],
}

impl WithSimd for GatherRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let GatherRows { g, cols, step, masks, dx } = self;
        let (params, [height, width]) = (&g.window.params, g.window.out);
        let (columns, far) = (params.kernel[1], params.span(1) - 1);
        for (y, dx) in dx.chunks_mut(g.window.size[1]).enumerate() {
            for (x, dx) in (0..).step_by(S::F32_LANES).zip(dx.chunks_mut(S::F32_LANES)) {
                let (masks, lane) = (&masks[x / LANES * columns..][..columns], x % LANES);
                let mut sum = simd.splat_f32s(0.0);
                for ky in 0..params.kernel[0] {
                    let Some(row) = (y + params.padding[0]).checked_sub(ky * params.dilation[0]) else { break };
                    if row >= height {
                        continue;
                    }
                    // The margin before the columns is as wide as the kernel reaches.
                    let from = ky * columns * step + row * width + x + params.padding[1] + far;
                    for (kx, mask) in masks.iter().enumerate() {
                        let from = from + kx * step - kx * params.dilation[1];
                        let v = S::as_simd_f32s(&cols[from..from + S::F32_LANES]).0[0];
                        let mask = S::as_simd_u32s(&mask[lane..lane + S::F32_LANES]).0[0];
                        let v = simd.and_u32s(simd.transmute_u32s_f32s(v), mask);
                        sum = simd.add_f32s(sum, simd.transmute_f32s_u32s(v));
                    }
                }
                match S::as_mut_simd_f32s(dx) {
                    ([dx], _) => *dx = sum,
                    (_, rest) => simd.partial_store_f32s(rest, sum),
                }
            }
        }
    }
}
