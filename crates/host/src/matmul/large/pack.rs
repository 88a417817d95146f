//! Operands of a product, copied into the order in which its tiles read them.

use std::ops::Range;

use pulp::Simd;

use crate::matmul::gemm::Matrix;
use crate::matmul::transpose::transpose_block;

/// The terms that are copied for all tiles before the next ones, if the elements of a term lie side by side: lines of the cache
/// are used whole, and large powers of two between terms do not push them out.
const TERMS: usize = 8;

/// Writes rows from `first` on as blocks, `[terms, rows of a tile]` one after another. `tiles` has the rows of each.
#[inline(always)]
pub(super) fn pack_rows(
    a: Matrix,
    first: usize,
    tiles: impl Iterator<Item = Range<usize>> + Clone,
    terms: &Range<usize>,
    to: &mut [f32],
) {
    let ([row, term], depth) = (a.strides, terms.len());
    let from = |i: usize, t: usize| a.start + (first + i) * row + (terms.start + t) * term;
    if row != 1 {
        for tile in tiles {
            let height = tile.len();
            let to = &mut to[tile.start * depth..tile.end * depth];
            for (t, to) in to.chunks_exact_mut(height).enumerate() {
                to.iter_mut().zip(tile.clone()).for_each(|(to, i)| *to = a.data[from(i, t)]);
            }
        }
        return;
    }
    for few in (0..depth).step_by(TERMS).map(|t| t..depth.min(t + TERMS)) {
        for tile in tiles.clone() {
            let height = tile.len();
            let to = &mut to[tile.start * depth..tile.end * depth][few.start * height..few.end * height];
            if height == 8 {
                for (to, t) in to.as_chunks_mut::<8>().0.iter_mut().zip(few.clone()) {
                    to.copy_from_slice(&a.data[from(tile.start, t)..][..8]);
                }
            } else {
                for (to, t) in to.chunks_exact_mut(height).zip(few.clone()) {
                    to.copy_from_slice(&a.data[from(tile.start, t)..][..height]);
                }
            }
        }
    }
}

/// Writes columns as a panel, `[terms, columns]`, whose rows are whole vectors. Columns past the last one are
/// zeros.
#[inline(always)]
pub(super) fn pack_columns<S: Simd>(simd: S, b: Matrix, columns: Range<usize>, terms: &Range<usize>, to: &mut [f32]) {
    let ([term, column], depth, lanes) = (b.strides, terms.len(), S::F32_LANES);
    let (width, count) = (columns.len().next_multiple_of(lanes), columns.len());
    let from = |t: usize, j: usize| b.start + (terms.start + t) * term + (columns.start + j) * column;
    if column == 1 {
        for (t, to) in to.chunks_exact_mut(width).enumerate() {
            let line = &b.data[from(t, 0)..][..count];
            let (to, more) = to.split_at_mut(count);
            let (vectors, rest) = S::as_mut_simd_f32s(to);
            let (from, rest_of_line) = S::as_simd_f32s(line);
            vectors.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            rest.copy_from_slice(rest_of_line);
            more.fill(0.0);
        }
    } else if term == 1 {
        for t in (0..depth).step_by(lanes) {
            for j in (0..width).step_by(lanes) {
                let [rows, terms] = [lanes.min(count - j), lanes.min(depth - t)];
                let to = &mut to[t * width + j..];
                if rows < lanes {
                    (0..terms).for_each(|k| to[k * width + rows..][..lanes - rows].fill(0.0));
                }
                transpose_block(simd, &b.data[from(t, j)..], column, [rows, terms], to, width);
            }
        }
    } else {
        for (t, to) in to.chunks_exact_mut(width).enumerate() {
            let (to, more) = to.split_at_mut(count);
            to.iter_mut().enumerate().for_each(|(j, to)| *to = b.data[from(t, j)]);
            more.fill(0.0);
        }
    }
}
