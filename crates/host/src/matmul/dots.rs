//! Products of a matrix and few vectors on the host, whose terms are neighbours: sums over vectors of terms, which need no panels.

use pulp::{Simd, WithSimd};

use crate::vectors::with_vectors;

/// The rows and the vectors of a tile.
const ROWS: usize = 4;
const VECTORS: usize = 4;

/// The most terms that an element of a vector adds up before the sum is added to the result.
const LONGEST: usize = 512;

/// A matrix `[rows, depth]`, whose rows are `step` apart, and vectors `[count, depth]`.
#[derive(Clone, Copy)]
pub(crate) struct Dots<'a> {
    pub left: &'a [f32],
    pub step: usize,
    pub rows: usize,
    pub vectors: &'a [f32],
    pub depth: usize,
    /// A value that is added to each row.
    pub start: Option<&'a [f32]>,
}

impl Dots<'_> {
    /// Writes the products of row `i` and vector `j` to `out[i · steps[0] + j · steps[1]]`.
    pub fn compute(self, count: usize, out: &mut [f32], steps: [usize; 2]) {
        with_vectors(Compute { dots: self, count, out, steps });
    }
}

struct Compute<'a> {
    dots: Dots<'a>,
    count: usize,
    out: &'a mut [f32],
    steps: [usize; 2],
}

impl WithSimd for Compute<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Compute { dots, count, out, steps } = self;
        for first in (0..count).step_by(VECTORS) {
            match count - first {
                1 => all_rows::<S, 1>(simd, dots, first, out, steps),
                2 => all_rows::<S, 2>(simd, dots, first, out, steps),
                3 => all_rows::<S, 3>(simd, dots, first, out, steps),
                _ => all_rows::<S, VECTORS>(simd, dots, first, out, steps),
            }
        }
    }
}

#[inline(always)]
fn all_rows<S: Simd, const V: usize>(simd: S, dots: Dots, first: usize, out: &mut [f32], steps: [usize; 2]) {
    let whole = dots.rows / ROWS * ROWS;
    for row in (0..whole).step_by(ROWS) {
        tile::<S, ROWS, V>(simd, dots, [row, first], out, steps);
    }
    for row in whole..dots.rows {
        tile::<S, 1, V>(simd, dots, [row, first], out, steps);
    }
}

/// Computes the products of `R` rows and `V` vectors.
#[inline(always)]
fn tile<S: Simd, const R: usize, const V: usize>(
    simd: S,
    dots: Dots,
    [row, first]: [usize; 2],
    out: &mut [f32],
    steps: [usize; 2],
) {
    let Dots { depth, start, .. } = dots;
    let part = LONGEST * S::F32_LANES;
    for begin in (0..depth.max(1)).step_by(part) {
        let len = part.min(depth - begin);
        let mut left = [(&[][..], &[][..]); R];
        for (i, left) in left.iter_mut().enumerate() {
            *left = S::as_simd_f32s(&dots.left[(row + i) * dots.step + begin..][..len]);
        }
        let mut right = [(&[][..], &[][..]); V];
        for (j, right) in right.iter_mut().enumerate() {
            *right = S::as_simd_f32s(&dots.vectors[(first + j) * depth + begin..][..len]);
        }
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        let whole = len / S::F32_LANES;
        let (a, b) = (left.map(|left| &left.0[..whole]), right.map(|right| &right.0[..whole]));
        for k in 0..whole {
            for i in 0..R {
                for j in 0..V {
                    sums[i][j] = simd.mul_add_e_f32s(a[i][k], b[j][k], sums[i][j]);
                }
            }
        }
        if !len.is_multiple_of(S::F32_LANES) {
            for i in 0..R {
                let a = simd.partial_load_f32s(left[i].1);
                for j in 0..V {
                    sums[i][j] = simd.mul_add_e_f32s(a, simd.partial_load_f32s(right[j].1), sums[i][j]);
                }
            }
        }
        for i in 0..R {
            let value = start.map_or(0.0, |start| start[row + i]);
            for j in 0..V {
                let out = &mut out[(row + i) * steps[0] + (first + j) * steps[1]];
                *out = if begin > 0 { *out } else { value } + simd.reduce_sum_f32s(sums[i][j]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Result;
    use crate::vectors::levels;

    /// Multiplies and compares with plain sums.
    fn check([rows, depth, count]: [usize; 3]) {
        let step = depth + 3;
        let left: Vec<f32> = (0..rows * step).map(|i| (i % 7) as f32 - 3.0).collect();
        let vectors: Vec<f32> = (0..count * depth).map(|i| (i % 5) as f32 - 2.0).collect();
        let bias: Vec<f32> = (0..rows).map(|i| i as f32).collect();
        for (start, steps) in [(None, [count, 1]), (Some(&bias[..]), [1, rows])] {
            let mut out = vec![f32::NAN; rows * count];
            let dots = Dots { left: &left, step, rows, vectors: &vectors, depth, start };
            with_vectors(Compute { dots, count, out: &mut out, steps });
            for (i, j) in (0..rows).flat_map(|i| (0..count).map(move |j| (i, j))) {
                let sum: f32 = (0..depth).map(|k| left[i * step + k] * vectors[j * depth + k]).sum();
                let expected = start.map_or(0.0, |start| start[i]) + sum;
                assert_eq!(out[i * steps[0] + j * steps[1]], expected, "{rows} × {depth} × {count} at {i}, {j}");
            }
        }
    }

    #[test]
    fn products_of_any_size_are_right() -> Result<()> {
        for sizes in [[1, 1, 1], [9, 3, 5], [6, 33, 8], [4, 0, 3], [13, 257, 3], [3, 20_000, 2], [5, 64, 7]] {
            levels::each(|| {
                check(sizes);
                Ok(())
            })?;
        }
        Ok(())
    }
}
