//! Sums of matrix products on the host, whose factors lie as a convolution's transforms leave them: a right factor has the
//! columns of one panel in each row, so that nothing is packed between a transform and the products.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::tiles::{VECTORS, panel_width};
use crate::vectors::{array, with_vectors};

/// The terms after which a sum is added to the result, so that the rounding error is as small as for a shorter sum.
/// The terms of one product are not divided.
pub(crate) const LONGEST: usize = 512;

/// One product of a sum: where its factors start, and its number of terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub a: usize,
    pub b: usize,
    pub terms: usize,
}

/// Adds products to a list, of at most `longest` terms each. They continue the last product of the list if their
/// factors, whose terms are `apart`, begin where its factors end.
pub(crate) fn add_terms(parts: &mut Vec<Part>, more: Part, apart: [usize; 2], longest: usize) {
    let Part { mut a, mut b, mut terms } = more;
    while terms > 0 {
        let goes_on = |last: &&mut Part| {
            last.terms < longest && [last.a + last.terms * apart[0], last.b + last.terms * apart[1]] == [a, b]
        };
        let some = match parts.last_mut().filter(goes_on) {
            Some(last) => {
                let some = terms.min(longest - last.terms);
                last.terms += some;
                some
            }
            None => {
                let some = terms.min(longest);
                parts.push(Part { a, b, terms: some });
                some
            }
        };
        (a, b, terms) = (a + some * apart[0], b + some * apart[1], terms - some);
    }
}

/// How the factors lie. The columns of a right factor are neighbours.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lie {
    /// The terms of a row of the left factor are neighbours, and its rows this far apart. The terms of the right one are as far
    /// apart as a panel is wide.
    Rows(usize),
    /// The rows of the left factor are neighbours, and the terms of each factor this far apart.
    Terms([usize; 2]),
}

/// The most rows whose sums are in registers, on processors that have 16 or 32 of them. Two vectors of the right
/// factor and an element of the left one are beside them. With 12 rows, compilers keep some of the sums in memory.
const FEW_ROWS: usize = 6;
const MANY_ROWS: usize = 10;

#[inline(always)]
const fn rows_in_registers<S: Simd>() -> usize {
    if S::REGISTER_COUNT < 32 { FEW_ROWS } else { MANY_ROWS }
}

/// Asks for the most rows of this processor.
struct Most;

impl WithSimd for Most {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        rows_in_registers::<S>()
    }
}

/// Cuts rows into the ranges that are computed at a time. Returns the length of the longest too.
pub(crate) fn blocks_of(rows: usize) -> (Vec<Range<usize>>, usize) {
    let count = rows.div_ceil(with_vectors(Most)).max(1);
    let blocks = (0..count).map(|i| i * rows / count..(i + 1) * rows / count).collect();
    (blocks, rows.div_ceil(count))
}

/// A sum of products `[rows, terms] · [terms, columns]`.
#[derive(Clone, Copy)]
pub(crate) struct LaneSums<'a> {
    pub a: &'a [f32],
    pub lie: Lie,
    pub b: &'a [f32],
    pub parts: &'a [Part],
    /// The columns that are needed, at most the width of a panel. The others may be left as they are.
    pub columns: usize,
}

impl LaneSums<'_> {
    /// Writes the sum to `out`, whose rows are `step` apart, or adds it if `add`.
    pub fn compute(self, rows: usize, add: bool, out: &mut [f32], step: usize) {
        debug_assert!(rows == 0 || out.len() >= (rows - 1) * step + panel_width());
        if rows > 0 {
            with_vectors(Compute { sums: self, rows, add, out, step });
        }
    }
}

struct Compute<'a> {
    sums: LaneSums<'a>,
    rows: usize,
    add: bool,
    out: &'a mut [f32],
    step: usize,
}

impl WithSimd for Compute<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Compute { sums, rows, mut add, out, step } = self;
        let blocks = rows.div_ceil(rows_in_registers::<S>());
        let mut rest = sums.parts;
        loop {
            let mut terms = 0;
            let long = rest.iter().position(|part| {
                terms += part.terms;
                terms > LONGEST
            });
            let (parts, others) = rest.split_at(long.map_or(rest.len(), |end| end.max(1)));
            let sums = LaneSums { parts, ..sums };
            for block in 0..blocks {
                let [row, end] = [block * rows / blocks, (block + 1) * rows / blocks];
                let out = &mut out[row * step..];
                if sums.columns <= S::F32_LANES {
                    rows_of::<S, 1>(simd, sums, row..end, add, out, step);
                } else {
                    rows_of::<S, VECTORS>(simd, sums, row..end, add, out, step);
                }
            }
            (rest, add) = (others, true);
            if rest.is_empty() {
                break;
            }
        }
    }
}

/// Computes the sums of some rows, at most as many as registers hold, and of `V` vectors of columns.
#[inline(always)]
fn rows_of<S: Simd, const V: usize>(
    simd: S,
    sums: LaneSums,
    rows: Range<usize>,
    add: bool,
    out: &mut [f32],
    step: usize,
) {
    let row = rows.start;
    match rows.len() {
        1 => tile::<S, V, 1>(simd, sums, row, add, out, step),
        2 => tile::<S, V, 2>(simd, sums, row, add, out, step),
        3 => tile::<S, V, 3>(simd, sums, row, add, out, step),
        4 => tile::<S, V, 4>(simd, sums, row, add, out, step),
        5 => tile::<S, V, 5>(simd, sums, row, add, out, step),
        // A constant, so that tiles that do not fit in registers are not compiled.
        _ if const { S::REGISTER_COUNT < 32 } => tile::<S, V, FEW_ROWS>(simd, sums, row, add, out, step),
        6 => tile::<S, V, 6>(simd, sums, row, add, out, step),
        7 => tile::<S, V, 7>(simd, sums, row, add, out, step),
        8 => tile::<S, V, 8>(simd, sums, row, add, out, step),
        9 => tile::<S, V, 9>(simd, sums, row, add, out, step),
        _ => tile::<S, V, 10>(simd, sums, row, add, out, step),
    }
}

/// Computes the sums of `M` rows from number `row` on.
#[inline(always)]
fn tile<S: Simd, const V: usize, const M: usize>(
    simd: S,
    sums: LaneSums,
    row: usize,
    add: bool,
    out: &mut [f32],
    step: usize,
) {
    let LaneSums { a, lie, b, parts, .. } = sums;
    let mut totals = [[simd.splat_f32s(0.0); V]; M];
    for part in parts {
        match lie {
            Lie::Rows(apart) => {
                let b = &b[part.b..][..part.terms * VECTORS * S::F32_LANES];
                let b = &S::as_simd_f32s(b).0.as_chunks::<VECTORS>().0[..part.terms];
                let a: [&[f32]; M] = array(&[], |i| &a[part.a + (row + i) * apart..][..part.terms]);
                for k in 0..part.terms {
                    for i in 0..M {
                        let factor = simd.splat_f32s(a[i][k]);
                        for j in 0..V {
                            totals[i][j] = simd.mul_add_e_f32s(factor, b[k][j], totals[i][j]);
                        }
                    }
                }
            }
            Lie::Terms(apart) => {
                let (mut a, mut b) = (&a[part.a + row..], &b[part.b..]);
                let end = part.terms.saturating_sub(1);
                debug_assert!(end * apart[0] + M <= a.len() && end * apart[1] + V * S::F32_LANES <= b.len());
                for _ in 0..part.terms {
                    let line = b.get(..V * S::F32_LANES).map(|line| &S::as_simd_f32s(line).0[..V]);
                    let (Some(factors), Some(line)) = (a.first_chunk::<M>(), line) else { break };
                    for i in 0..M {
                        let factor = simd.splat_f32s(factors[i]);
                        for j in 0..V {
                            totals[i][j] = simd.mul_add_e_f32s(factor, line[j], totals[i][j]);
                        }
                    }
                    (a, b) = (a.get(apart[0]..).unwrap_or_default(), b.get(apart[1]..).unwrap_or_default());
                }
            }
        }
    }
    for i in 0..M {
        let out = &mut S::as_mut_simd_f32s(&mut out[i * step..][..V * S::F32_LANES]).0[..V];
        for j in 0..V {
            out[j] = if add { simd.add_f32s(out[j], totals[i][j]) } else { totals[i][j] };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_products_are_right() {
        let width = panel_width();
        for (rows, terms) in [(1, vec![1]), (9, vec![3, 0, 7]), (21, vec![400, 300, 600]), (5, vec![])] {
            let all: usize = terms.iter().sum();
            let a: Vec<f32> = (0..rows * all).map(|i| (i % 7) as f32 - 3.0).collect();
            let b: Vec<f32> = (0..all * width).map(|i| (i % 5) as f32 - 2.0).collect();
            let transposed: Vec<f32> = (0..rows * all).map(|i| a[i % rows * all + i / rows]).collect();
            let starts = terms.iter().scan(0, |at, terms| {
                *at += terms;
                Some(*at - terms)
            });
            let starts: Vec<usize> = starts.collect();
            for (a_of, lie, each) in [(&a, Lie::Rows(all), 1), (&transposed, Lie::Terms([rows, width]), rows)] {
                let part = |(&first, &terms)| Part { a: first * each, b: first * width, terms };
                let parts: Vec<Part> = starts.iter().zip(&terms).map(part).collect();
                let mut out = vec![1.0; rows * (width + 3)];
                for (add, times, columns) in [(false, 1.0, width), (true, 2.0, width), (false, 1.0, 1)] {
                    let sums = LaneSums { a: a_of, lie, b: &b, parts: &parts, columns };
                    sums.compute(rows, add, &mut out, width + 3);
                    for (i, row) in out.chunks_exact(width + 3).enumerate() {
                        for (j, &v) in row[..columns].iter().enumerate() {
                            let sum: f32 = (0..all).map(|k| a[i * all + k] * b[k * width + j]).sum();
                            assert_eq!(v, times * sum, "{rows} × {terms:?} at {i}, {j}");
                        }
                        assert_eq!(row[width..], [1.0; 3]);
                    }
                }
            }
        }
    }
}
