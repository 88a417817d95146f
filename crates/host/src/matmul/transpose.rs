//! The transpose of a matrix on the host, in square blocks of vectors that stay in registers.

use pulp::{Simd, WithSimd};

use crate::vectors::{MOST_LANES, array, with_vectors};

/// Writes the `[rows, columns]` elements of `a`, whose rows are `row` apart, as columns: `to[k · step + i]` becomes
/// `a[i · row + k]`.
pub(crate) fn transpose(a: &[f32], row: usize, [rows, columns]: [usize; 2], to: &mut [f32], step: usize) {
    with_vectors(Transpose { a, row, rows, columns, to, step });
}

struct Transpose<'a> {
    a: &'a [f32],
    row: usize,
    rows: usize,
    columns: usize,
    to: &'a mut [f32],
    step: usize,
}

impl WithSimd for Transpose<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Transpose { a, row, rows, columns, to, step } = self;
        let lanes = S::F32_LANES;
        for i in (0..rows).step_by(lanes) {
            for k in (0..columns).step_by(lanes) {
                let sizes = [lanes.min(rows - i), lanes.min(columns - k)];
                transpose_block(simd, &a[i * row + k..], row, sizes, &mut to[k * step + i..], step);
            }
        }
    }
}

/// Transposes a block of at most as many rows and columns as a vector has elements.
#[inline(always)]
pub(super) fn transpose_block<S: Simd>(
    simd: S,
    a: &[f32],
    row: usize,
    [rows, columns]: [usize; 2],
    to: &mut [f32],
    step: usize,
) {
    let (lanes, mut lines) = (S::F32_LANES, [simd.splat_f32s(0.0); MOST_LANES]);
    for i in 0..lanes.min(rows) {
        let from = &a[i * row..][..columns];
        lines[i] = if columns < lanes { simd.partial_load_f32s(from) } else { S::as_simd_f32s(from).0[0] };
    }
    exchange::<S, 8>(simd, &mut lines);
    exchange::<S, 4>(simd, &mut lines);
    exchange::<S, 2>(simd, &mut lines);
    exchange::<S, 1>(simd, &mut lines);
    for k in 0..lanes.min(columns) {
        let to = &mut to[k * step..][..rows];
        if rows < lanes {
            simd.partial_store_f32s(to, lines[k]);
        } else {
            S::as_mut_simd_f32s(to).0[0] = lines[k];
        }
    }
}

/// Exchanges the two parts of `B` elements that lie off the diagonal in each part of `2B · 2B`.
#[inline(always)]
fn exchange<S: Simd, const B: usize>(simd: S, lines: &mut [S::f32s; MOST_LANES]) {
    if B >= S::F32_LANES {
        return;
    }
    let second: [u32; MOST_LANES] = array(0, |i| (i / B % 2) as u32);
    let second = simd.greater_than_u32s(S::as_simd_u32s(&second).0[0], simd.splat_u32s(0));
    for i in (0..S::F32_LANES).filter(|i| (i / B).is_multiple_of(2)) {
        let (a, b) = (lines[i], lines[i + B]);
        lines[i] = simd.select_f32s(second, simd.rotate_right_f32s(b, B), a);
        lines[i + B] = simd.select_f32s(second, b, simd.rotate_left_f32s(a, B));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Result;
    use crate::vectors::levels;

    #[test]
    fn blocks_of_any_size_are_transposed() -> Result<()> {
        for [rows, columns] in [[1, 1], [16, 16], [3, 40], [33, 9], [50, 17], [0, 4], [4, 0]] {
            let (row, step) = (columns + 3, rows + 2);
            let a: Vec<f32> = (0..rows * row).map(|i| i as f32).collect();
            levels::each(|| {
                let mut to = vec![-1.0; columns * step];
                with_vectors(Transpose { a: &a, row, rows, columns, to: &mut to, step });
                for (k, line) in to.chunks_exact(step).enumerate() {
                    let wanted: Vec<f32> = (0..rows).map(|i| a[i * row + k]).chain([-1.0; 2]).collect();
                    assert_eq!(line, wanted, "{rows} × {columns}");
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}
