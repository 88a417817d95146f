//! Matrix products on the host whose right factor the caller writes in panels: a convolution copies the pixels under its
//! kernels straight into them, so that no matrix of columns lies in memory.
//!
//! The left factor lies in blocks of rows, `[depth, rows of the block]`; the right one in panels of columns,
//! `[depth, width]`. One tile, the product of a block and a panel, stays in registers while it is added up.

use std::sync::LazyLock;

use pulp::{Simd, WithSimd};

use crate::memory::{Result, Scratch, scratch};
use crate::vectorised;
use crate::vectors::{array, with_vectors};

/// The vectors in a row of a panel.
pub(crate) const VECTORS: usize = 2;

/// The most terms that are added up in registers. Longer sums are split, so that a block's part stays in the cache,
/// and the rounding error is as small as for a shorter sum.
const LONGEST: usize = 512;

/// The sizes of a tile.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    width: usize,
}

/// Asks for the sizes of this processor's tiles.
struct Sizes;

impl WithSimd for Sizes {
    type Output = Tile;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Tile {
        // A tile of 8 · 2 or 6 · 2 vectors, one row of a panel and an element of the block fill the registers.
        Tile { rows: rows_in_registers::<S>(), width: VECTORS * S::F32_LANES }
    }
}

/// Returns the most rows of a tile of [`VECTORS`] vectors whose sums stay in registers.
pub(crate) const fn rows_in_registers<S: Simd>() -> usize {
    if S::REGISTER_COUNT < 32 { 6 } else { 8 }
}

fn tile() -> Tile {
    static TILE: LazyLock<Tile> = LazyLock::new(|| with_vectors(Sizes));
    // Tests have several levels.
    if cfg!(test) { with_vectors(Sizes) } else { *TILE }
}

/// Returns the number of columns in a panel.
pub fn panel_width() -> usize {
    tile().width
}

/// Returns the most rows of a product that are added up in registers at a time.
pub(crate) fn tile_rows() -> usize {
    tile().rows
}

/// A left factor `[rows, depth]` in blocks of rows of about the same height.
pub(crate) struct Left {
    data: Scratch,
    rows: usize,
    depth: usize,
    blocks: usize,
}

/// The values to which a product adds its sums.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    Zero,
    /// A value for each row.
    Rows(&'a [f32]),
    /// The result so far.
    Result,
}

impl Left {
    /// Returns a factor of unspecified values.
    pub fn new(rows: usize, depth: usize) -> Result<Left> {
        let blocks = rows.div_ceil(tile().rows).max(1);
        Ok(Left { data: scratch(rows * depth)?, rows, depth, blocks })
    }

    /// Returns the factor with the elements of `a`, of these strides.
    pub fn from(a: &[f32], strides: [usize; 2], [rows, depth]: [usize; 2]) -> Result<Left> {
        let mut left = Left::new(rows, depth)?;
        left.fill(0..depth, a, strides);
        Ok(left)
    }

    /// Sets these terms of every row to the elements of `a`, of these strides.
    pub fn fill(&mut self, terms: std::ops::Range<usize>, a: &[f32], strides: [usize; 2]) {
        for block in 0..if terms.is_empty() { 0 } else { self.blocks } {
            let [first, end] = [self.row(block), self.row(block + 1)];
            let (height, a) = (end - first, a.get(first * strides[0]..).unwrap_or_default());
            let to = &mut self.data[first * self.depth + terms.start * height..][..terms.len() * height];
            let count = terms.len();
            match (height, strides) {
                (8, [row, 1]) => vectorised!(transpose::<8>(a, row, count, to, 8)),
                (7, [row, 1]) => vectorised!(transpose::<7>(a, row, count, to, 7)),
                (6, [row, 1]) => vectorised!(transpose::<6>(a, row, count, to, 6)),
                (5, [row, 1]) => vectorised!(transpose::<5>(a, row, count, to, 5)),
                (0, _) => {}
                (8, [1, term]) => {
                    let from = |k: usize| a[k * term..].first_chunk::<8>();
                    let parts = to.as_chunks_mut::<8>().0.iter_mut().enumerate();
                    parts.for_each(|(k, to)| from(k).into_iter().for_each(|from| *to = *from));
                }
                (_, [row, term]) => {
                    for (k, to) in to.chunks_exact_mut(height).enumerate() {
                        to.iter_mut().enumerate().for_each(|(i, to)| *to = a[i * row + k * term]);
                    }
                }
            }
        }
    }

    /// Returns the first row of a block.
    fn row(&self, block: usize) -> usize {
        block * self.rows / self.blocks
    }

    /// Adds the product with `columns` columns in panels to `start`, and writes it to `out`, whose rows are `step` apart.
    pub fn multiply(&self, panels: &[f32], columns: usize, start: Start, out: &mut [f32], step: usize) {
        if self.rows > 0 {
            let part = [self.blocks, self.depth];
            with_vectors(Multiply { left: self, part, panels, columns, start, out, step });
        }
    }

    /// Writes the product of a part of the factor and of one panel of that depth: of its first `rows` rows,
    /// together with the rows that share a block with the last of them, and of its first `depth` terms. `out` has
    /// room for all rows, which are as far apart as the panel's rows.
    pub fn multiply_part(&self, [rows, depth]: [usize; 2], panel: &[f32], out: &mut [f32]) {
        let (blocks, width) = ((rows * self.blocks).div_ceil(self.rows.max(1)), panel_width());
        let part = [blocks.min(self.blocks), depth];
        if self.rows > 0 {
            with_vectors(Multiply {
                left: self,
                part,
                panels: panel,
                columns: width,
                start: Start::Zero,
                out,
                step: width,
            });
        }
    }
}

/// Writes `H` rows of `count` elements of `a`, which are `row` apart, as columns: parts of rows that are `step` apart.
#[inline(always)]
fn transpose<const H: usize>(a: &[f32], row: usize, count: usize, to: &mut [f32], step: usize) {
    let rows: [&[f32]; H] = array(&[], |i| &a[i * row..][..count]);
    for first in (0..count / 16 * 16).step_by(16) {
        let mut part = [[0f32; H]; 16];
        for i in 0..H {
            if let Some(from) = rows[i][first..].first_chunk::<16>() {
                (0..16).for_each(|k| part[k][i] = from[k]);
            }
        }
        for (k, part) in part.iter().enumerate() {
            to[(first + k) * step..][..H].copy_from_slice(part);
        }
    }
    for k in count / 16 * 16..count {
        (0..H).for_each(|i| to[k * step + i] = rows[i][k]);
    }
}

struct Multiply<'a> {
    left: &'a Left,
    /// The number of blocks and of terms that are multiplied.
    part: [usize; 2],
    panels: &'a [f32],
    columns: usize,
    start: Start<'a>,
    out: &'a mut [f32],
    step: usize,
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Multiply { left, part: [blocks, depth], panels, columns, start, out, step } = self;
        let width = VECTORS * S::F32_LANES;
        for first in (0..depth.max(1)).step_by(LONGEST) {
            let len = LONGEST.min(depth - first);
            for block in 0..blocks {
                let [row, end] = [left.row(block), left.row(block + 1)];
                let a = &left.data[row * left.depth + first * (end - row)..][..len * (end - row)];
                let start = match start {
                    _ if first > 0 => Start::Result,
                    Start::Rows(values) => Start::Rows(&values[row..end]),
                    other => other,
                };
                for column in (0..columns).step_by(width) {
                    let b = S::as_simd_f32s(&panels[column * depth + first * width..][..len * width]).0;
                    let (out, count) = (&mut out[row * step + column..], width.min(columns - column));
                    match end - row {
                        1 => add_tile::<S, 1>(simd, a, b, start, out, [step, count]),
                        2 => add_tile::<S, 2>(simd, a, b, start, out, [step, count]),
                        3 => add_tile::<S, 3>(simd, a, b, start, out, [step, count]),
                        4 => add_tile::<S, 4>(simd, a, b, start, out, [step, count]),
                        5 => add_tile::<S, 5>(simd, a, b, start, out, [step, count]),
                        6 => add_tile::<S, 6>(simd, a, b, start, out, [step, count]),
                        7 => add_tile::<S, 7>(simd, a, b, start, out, [step, count]),
                        _ => add_tile::<S, 8>(simd, a, b, start, out, [step, count]),
                    }
                }
            }
        }
    }
}

/// Computes a tile of `M` rows and `count` columns.
#[inline(always)]
fn add_tile<S: Simd, const M: usize>(
    simd: S,
    a: &[f32],
    b: &[S::f32s],
    start: Start,
    out: &mut [f32],
    [step, count]: [usize; 2],
) {
    let mut sums = [[simd.splat_f32s(0.0); VECTORS]; M];
    if let Start::Rows(values) = start {
        for (sums, value) in sums.iter_mut().zip(values) {
            *sums = [simd.splat_f32s(*value); VECTORS];
        }
    }
    for (a, b) in a.as_chunks::<M>().0.iter().zip(b.as_chunks::<VECTORS>().0) {
        for i in 0..M {
            let factor = simd.splat_f32s(a[i]);
            for j in 0..VECTORS {
                sums[i][j] = simd.mul_add_e_f32s(factor, b[j], sums[i][j]);
            }
        }
    }
    let more = matches!(start, Start::Result);
    for i in 0..M {
        let (whole, rest) = S::as_mut_simd_f32s(&mut out[i * step..][..count]);
        #[expect(clippy::needless_range_loop, reason = "an iterator might take the sums out of their registers")]
        for j in 0..VECTORS {
            let sum = sums[i][j];
            if let Some(out) = whole.get_mut(j) {
                *out = if more { simd.add_f32s(*out, sum) } else { sum };
            } else if j == whole.len() && !rest.is_empty() {
                let sum = if more { simd.add_f32s(simd.partial_load_f32s(rest), sum) } else { sum };
                simd.partial_store_f32s(rest, sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::levels;

    /// Multiplies and compares with plain sums.
    fn check([rows, depth, columns]: [usize; 3]) -> Result<()> {
        let width = panel_width();
        let a: Vec<f32> = (0..rows * depth).map(|i| (i % 7) as f32 - 3.0).collect();
        let b: Vec<f32> = (0..depth * columns).map(|i| (i % 5) as f32 - 2.0).collect();
        let mut panels = vec![f32::NAN; columns.next_multiple_of(width) * depth];
        for (i, v) in b.iter().enumerate() {
            let (k, j) = (i / columns, i % columns);
            panels[j / width * width * depth + k * width + j % width] = *v;
        }
        let transposed: Vec<f32> = (0..rows * depth).map(|i| a[i % rows * depth + i / rows]).collect();
        let left = Left::from(&a, [depth, 1], [rows, depth])?;
        assert_eq!(*left.data, *Left::from(&transposed, [1, rows], [rows, depth])?.data);
        let bias: Vec<f32> = (0..rows).map(|i| i as f32).collect();
        let (mut out, step) = (vec![f32::NAN; rows * (columns + 2)], columns + 2);
        for (round, start) in [Start::Zero, Start::Rows(&bias), Start::Result].into_iter().enumerate() {
            let part = [left.blocks, depth];
            with_vectors(Multiply { left: &left, part, panels: &panels, columns, start, out: &mut out, step });
            for (i, row) in out.chunks_exact(step).enumerate() {
                for (j, &v) in row[..columns].iter().enumerate() {
                    let sum: f32 = (0..depth).map(|k| a[i * depth + k] * b[k * columns + j]).sum();
                    let expected = [sum, bias[i] + sum, bias[i] + 2.0 * sum][round];
                    assert_eq!(v, expected, "{rows} × {depth} × {columns} at {i}, {j}");
                }
                assert!(row[columns..].iter().all(|v| v.is_nan()));
            }
        }
        Ok(())
    }

    #[test]
    fn products_of_any_size_are_right() -> Result<()> {
        levels::each(|| {
            let width = panel_width();
            let wide = [[9, 3, width], [17, 600, width + 1], [50, 31, 2 * width - 1]];
            [[1, 1, 1], [8, 0, 3], [5, 40, 7]].into_iter().chain(wide).try_for_each(check)
        })
    }
}
