//! Products of matrices on the host whose right factor's rows are read where they lie. Each row has a place of its
//! own, such as the pixels at one position of a convolution's kernel. Nothing is packed, so small products take no
//! more than their multiplications.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::tiles::rows_in_registers;
use crate::memory::{Result, scratch};
use crate::vectors::{apart, with_vectors};

/// The most terms that are added up in registers: the part of the right factor that they read stays in the nearest
/// cache, and the rounding error is as small as for a shorter sum.
const LONGEST: usize = 384;

/// The most vectors in a row of a tile, for few rows, and for more.
const WIDE: usize = 4;
const NARROW: usize = 2;

/// A left factor `[rows, depth]`, whose rows are `step` apart, and a right factor whose row `k` begins at `places[k]` of `data`.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    pub left: &'a [f32],
    pub step: usize,
    pub rows: usize,
    pub data: &'a [f32],
    pub places: &'a [usize],
    /// A value that is added to each row.
    pub start: Option<&'a [f32]>,
}

impl Lines<'_> {
    /// Writes these columns of the product to `out`, whose rows are `step` apart. What follows the last column in a row is
    /// unspecified.
    pub fn compute(&self, columns: Range<usize>, out: &mut [f32], step: usize) -> Result<()> {
        if self.rows == 0 || columns.is_empty() {
            return Ok(());
        }
        with_vectors(Compute { lines: *self, columns, out, step })
    }
}

/// The most elements of a tile.
const LARGEST: usize = 256;

/// Returns the most rows of a tile of [`WIDE`] vectors.
fn wide_rows<S: Simd>() -> usize {
    if S::REGISTER_COUNT < 32 { 2 } else { 4 }
}

/// Returns the vectors of a tile for this many columns.
fn vectors<S: Simd>(count: usize) -> usize {
    let vectors = count.div_ceil(S::F32_LANES);
    if vectors > NARROW { WIDE } else { vectors }
}

struct Compute<'a> {
    lines: Lines<'a>,
    columns: Range<usize>,
    out: &'a mut [f32],
    step: usize,
}

impl WithSimd for Compute<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Result<()> {
        let Compute { lines, columns, out, step } = self;
        let wide = lines.rows <= wide_rows::<S>();
        let width = if wide { WIDE } else { NARROW } * S::F32_LANES;
        let (last, depth) = (lines.places.iter().max().copied().unwrap_or(0), lines.places.len());
        for (at, first) in columns.clone().step_by(width).enumerate() {
            let count = width.min(columns.end - first);
            let read = vectors::<S>(count) * S::F32_LANES;
            let room = at * width + read <= step;
            let out = &mut out[at * width..];
            let whole = |place: usize| place + first + read <= lines.data.len();
            if whole(last) {
                let lines = Lines { data: &lines.data[first..], ..lines };
                panel(simd, lines, wide, false, (count, room), out, step);
                continue;
            }
            // Whole vectors of the rest would reach past the end: it is copied. Where rows follow one another, that is few rows.
            let (before, rest) =
                lines.places.split_at(lines.places.iter().position(|&place| !whole(place)).unwrap_or(depth));
            if !before.is_empty() {
                let lines = Lines { data: &lines.data[first..], places: before, ..lines };
                panel(simd, lines, wide, false, (count, room), out, step);
            }
            let mut packed = scratch(rest.len() * width)?;
            for (place, to) in rest.iter().zip(packed.chunks_exact_mut(width)) {
                to[..count].copy_from_slice(&lines.data[place + first..][..count]);
                to[count..].fill(0.0);
            }
            let places: Vec<usize> = (0..rest.len()).map(|k| k * width).collect();
            let lines = Lines { left: &lines.left[before.len()..], data: &packed, places: &places, ..lines };
            panel(simd, lines, wide, !before.is_empty(), (count, room), out, step);
        }
        Ok(())
    }
}

/// Computes at most as many columns as a tile has, or adds to them. If there is `room`, it writes whole vectors.
#[inline(always)]
fn panel<S: Simd>(
    simd: S,
    lines: Lines,
    wide: bool,
    add: bool,
    (count, room): (usize, bool),
    out: &mut [f32],
    step: usize,
) {
    let (depth, vectors) = (lines.places.len(), vectors::<S>(count));
    let parts = depth.div_ceil(LONGEST).max(1);
    let blocks = lines.rows.div_ceil(if wide { wide_rows::<S>() } else { rows_in_registers::<S>() });
    for part in 0..parts {
        let (terms, add) = (part * depth / parts..(part + 1) * depth / parts, add || part > 0);
        for block in 0..blocks {
            let rows = block * lines.rows / blocks..(block + 1) * lines.rows / blocks;
            if room {
                let out = &mut out[rows.start * step..];
                Tile { lines, rows, terms: terms.clone(), out, step, add }.any(simd, vectors);
                continue;
            }
            let (mut sums, width, height) = ([0.0; LARGEST], vectors * S::F32_LANES, rows.len());
            let lines = Lines { start: lines.start.filter(|_| !add), ..lines };
            let out = out[rows.start * step..].chunks_mut(step);
            let tile = Tile { lines, rows, terms: terms.clone(), out: &mut sums, step: width, add: false };
            tile.any(simd, vectors);
            for (out, sums) in out.zip(sums.chunks_exact(width)).take(height) {
                let take = |(to, v): (&mut f32, &f32)| *to = if add { *to + v } else { *v };
                out[..count].iter_mut().zip(sums).for_each(take);
            }
        }
    }
}

/// Some terms of some elements of a product.
struct Tile<'a> {
    lines: Lines<'a>,
    rows: Range<usize>,
    terms: Range<usize>,
    out: &'a mut [f32],
    step: usize,
    /// Whether the sums are added to what is there.
    add: bool,
}

impl Tile<'_> {
    #[inline(always)]
    fn any<S: Simd>(self, simd: S, vectors: usize) {
        apart(
            #[inline(always)]
            || {
                if vectors > NARROW {
                    match self.rows.len() {
                        1 => self.compute::<S, WIDE, 1>(simd),
                        // A constant, so that tiles that do not fit in registers are not compiled.
                        _ if const { S::REGISTER_COUNT < 32 } => self.compute::<S, WIDE, 2>(simd),
                        2 => self.compute::<S, WIDE, 2>(simd),
                        3 => self.compute::<S, WIDE, 3>(simd),
                        _ => self.compute::<S, WIDE, 4>(simd),
                    }
                } else if vectors > 1 {
                    self.of_any_height::<S, NARROW>(simd);
                } else {
                    self.of_any_height::<S, 1>(simd);
                }
            },
        )
    }

    #[inline(always)]
    fn of_any_height<S: Simd, const V: usize>(self, simd: S) {
        match self.rows.len() {
            1 => self.compute::<S, V, 1>(simd),
            2 => self.compute::<S, V, 2>(simd),
            3 => self.compute::<S, V, 3>(simd),
            4 => self.compute::<S, V, 4>(simd),
            5 => self.compute::<S, V, 5>(simd),
            _ if const { S::REGISTER_COUNT < 32 } => self.compute::<S, V, 6>(simd),
            6 => self.compute::<S, V, 6>(simd),
            7 => self.compute::<S, V, 7>(simd),
            _ => self.compute::<S, V, 8>(simd),
        }
    }

    #[inline(always)]
    fn compute<S: Simd, const V: usize, const M: usize>(self, simd: S) {
        let Tile { lines, rows, terms, out, step, add } = self;
        let len = terms.len();
        let mut factors: [&[f32]; M] = [&[]; M];
        for (i, factors) in factors.iter_mut().enumerate() {
            *factors = &lines.left[(rows.start + i) * lines.step + terms.start..][..len];
        }
        let places = &lines.places[terms.clone()][..len];
        let mut sums = [[simd.splat_f32s(0.0); V]; M];
        for k in 0..len {
            // There are as many elements: see `Compute`.
            let Some(line) = lines.data.get(places[k]..places[k] + V * S::F32_LANES) else { break };
            let Some(line) = S::as_simd_f32s(line).0.first_chunk::<V>() else { break };
            let line = *line;
            for i in 0..M {
                let factor = simd.splat_f32s(factors[i][k]);
                for j in 0..V {
                    sums[i][j] = simd.mul_add_e_f32s(factor, line[j], sums[i][j]);
                }
            }
        }
        for i in 0..M {
            let start = lines.start.map_or(0.0, |start| start[rows.start + i]);
            let out = &mut S::as_mut_simd_f32s(&mut out[i * step..][..V * S::F32_LANES]).0[..V];
            for j in 0..V {
                out[j] = simd.add_f32s(if add { out[j] } else { simd.splat_f32s(start) }, sums[i][j]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::levels;

    /// Multiplies and compares with plain sums.
    fn check([rows, depth, columns]: [usize; 3], more: usize) -> Result<()> {
        let (step, apart) = (depth + 2, columns + 3);
        let left: Vec<f32> = (0..rows * step).map(|i| (i % 7) as f32 - 3.0).collect();
        // The rows of the right factor lie in reverse order, unless one element follows the last one; `more` do.
        let data: Vec<f32> = (0..(depth * apart + more)).map(|i| (i % 5) as f32 - 2.0).collect();
        let places: Vec<usize> = (0..depth).rev().map(|k| k * apart).collect();
        let bias: Vec<f32> = (0..rows).map(|i| i as f32).collect();
        let places = if more == 1 { (0..depth).map(|k| k * apart).collect() } else { places };
        // Rows of the result with room for whole vectors, and without.
        let steps = [(0, None, apart), (columns / 3, Some(&bias[..]), apart), (0, Some(&bias[..]), columns)];
        for (first, start, to) in steps {
            let mut out = vec![f32::NAN; rows * to];
            let lines = Lines { left: &left, step, rows, data: &data, places: &places, start };
            with_vectors(Compute { lines, columns: first..columns, out: &mut out, step: to })?;
            for (i, row) in out.chunks_exact(to).enumerate() {
                for (j, &v) in row[..columns - first].iter().enumerate() {
                    let terms = (0..depth).map(|k| left[i * step + k] * data[places[k] + first + j]);
                    let expected = start.map_or(0.0, |bias| bias[i]) + terms.sum::<f32>();
                    assert_eq!(v, expected, "{rows} × {depth} × {columns} at {i}, {j}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn products_of_any_size_are_right() -> Result<()> {
        let sizes =
            [[1, 1, 1], [3, 25, 70], [4, 9, 64], [9, 3, 33], [17, 900, 16], [8, 0, 3], [50, 31, 95], [5, 40, 7]];
        for (sizes, more) in sizes.into_iter().flat_map(|sizes| [(sizes, 0), (sizes, 1), (sizes, 64)]) {
            levels::each(|| check(sizes, more))?;
        }
        Ok(())
    }
}
