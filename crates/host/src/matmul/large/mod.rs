//! Large matrix products of f32 on the host.
//!
//! A task computes some rows and columns of the result. It copies its columns of the right operand into panels. It reads the
//! left one where it lies, or copies a few rows at a time. The sums of a tile stay in registers. Each task packs its own
//! panels, so that threads do not wait for each other before the end, or the next [`ROWS_AT_ONCE`] rows.
//!
//! The order of the terms depends on their number only: an element has the same bits however the work is divided.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::matmul::gemm::Matrix;
use crate::memory::{Result, scratch};
use crate::tasks::try_share;
use crate::vectors::{MOST_LANES, with_vectors};

mod pack;
mod tile;

use pack::{pack_columns, pack_rows};
use tile::{Left, Tile};

/// The most vectors in a row of a panel.
const VECTORS: usize = 3;

/// Returns the most rows and vectors of a tile: 8 · 3 sums, a row of a panel and an element take 28 of 32 registers, and 6 · 2 take 15 of
/// 16. (4 · 3 would take 16 of 16: the compiler then kept sums in memory, which took twice the time.)
const fn largest_tile<S: Simd>() -> [usize; 2] {
    if S::REGISTER_COUNT < 32 { [6, 2] } else { [8, VECTORS] }
}

/// The most terms that are added up in registers, and the most columns that are packed at a time: panels of 1 MiB, which stay in
/// the second-level cache where it is larger, and the terms of a tile's rows in the first-level one.
const MOST_TERMS: usize = 512;
const MOST_COLUMNS: usize = 528;

/// The rows for which a panel is read again and again. If they are copied, they are the rows of several tiles,
/// which share lines of the cache.
const GROUPED_ROWS: usize = 48;

/// The rows that tasks have in hand at a time: there is a slice for each part of one.
const ROWS_AT_ONCE: usize = 8192;

/// The most columns of a task for which a left operand is read where it lies, if its rows lie side by side.
const UNPACKED: usize = 3 * 48;

/// The fewest rows, columns and terms for which panels are worth their time, and the fewest multiplications.
const LEAST: [usize; 3] = [9, 32, 96];
const LEAST_PRODUCTS: usize = 1 << 23;

/// The rows and columns from which on another way is as fast for matrices whose columns are read where they lie.
const MANY: usize = 128;

/// The multiplications, and the rows, columns and terms, from which on that other way is slower again.
const HUGE: usize = 1 << 30;
const LONG: usize = 512;

/// The values to which a product adds its sums.
#[derive(Clone, Copy)]
enum Start<'a> {
    Zero,
    /// A value for each column.
    Columns(&'a [f32]),
    /// The result so far.
    Result,
}

/// Returns whether [`product`] is the fastest way for a product `[m, k] · [k, n]`.
pub(super) fn suits(a: Matrix, b: Matrix, [m, k, n]: [usize; 3]) -> bool {
    let [rows, columns, terms] = LEAST;
    let products = m.saturating_mul(k).saturating_mul(n);
    let huge = products >= HUGE && m.min(k).min(n) >= LONG;
    // The crate `gemm` is as fast if it need not pack the right operand, and there are many rows and columns, but not too many. It
    // packs a left operand whose terms do not lie side by side once, which is packed here for every `MOST_COLUMNS` columns.
    let other = match (a.strides[1], b.strides[1]) {
        (_, 1) => m.min(n) >= MANY && !(huge && a.strides[1] == 1),
        (1, _) => false,
        _ => n > MOST_COLUMNS,
    };
    // A step backwards is a large number.
    let ahead = [a, b].iter().all(|x| x.strides.iter().all(|step| *step <= x.data.len()));
    !other && ahead && products > LEAST_PRODUCTS && m >= rows && n >= columns && k >= terms
}

/// Computes `out [m, n] ← A [m, k] · B [k, n]`, with a bias for each column if there is one. `out` is row-major.
pub(super) fn product(
    out: &mut [f32],
    a: Matrix,
    b: Matrix,
    [m, k, n]: [usize; 3],
    bias: Option<&[f32]>,
) -> Result<()> {
    if m.min(n) == 0 {
        return Ok(());
    }
    let at_once = ROWS_AT_ONCE.min(m);
    let product = Product { a, b, terms: k, start: bias.map_or(Start::Zero, Start::Columns) };
    let Division { rows, columns } = Division::of([at_once, n], a.strides[1] == 1);
    for (turn, out) in out[..m * n].chunks_mut(at_once * n).enumerate() {
        let mut tasks: Vec<(usize, usize, Vec<&mut [f32]>)> = Vec::new();
        for (i, out) in out.chunks_mut(rows.saturating_mul(n)).enumerate() {
            let (first, at) = (turn * at_once + i * rows, tasks.len());
            tasks.extend((0..n).step_by(columns).map(|column| (first, column, Vec::new())));
            for row in out.chunks_exact_mut(n) {
                row.chunks_mut(columns).zip(&mut tasks[at..]).for_each(|(part, task)| task.2.push(part));
            }
        }
        try_share(tasks, 1, |(first, column, mut rows)| product.part(first, column, &mut rows))?;
    }
    Ok(())
}

/// The most rows and columns of a task.
struct Division {
    rows: usize,
    columns: usize,
}

impl Division {
    /// Divides the columns, since a panel is then packed once. If there are fewer of them than rows, and the terms of a row do
    /// not lie side by side (as in `by_terms`), so that tasks may pack rows too, it divides the rows.
    fn of([m, n]: [usize; 2], by_terms: bool) -> Division {
        let threads = rayon::current_num_threads();
        let [most_rows, most_columns] = [m / 16, n / 48].map(|most| most.clamp(1, threads));
        let (parts, across) = if by_terms || n >= m {
            (threads.div_ceil(most_columns).min(most_rows), most_columns)
        } else {
            (most_rows, threads.div_ceil(most_rows).min(most_columns))
        };
        Division {
            rows: m.div_ceil(parts).next_multiple_of(8),
            columns: n.div_ceil(across).next_multiple_of(MOST_LANES),
        }
    }
}

struct Product<'a> {
    a: Matrix<'a>,
    b: Matrix<'a>,
    terms: usize,
    start: Start<'a>,
}

impl Product<'_> {
    /// Computes parts of rows: from row `first` and from column `column` on.
    fn part(&self, first: usize, column: usize, out: &mut [&mut [f32]]) -> Result<()> {
        let columns = out.first().map_or(0, |row| row.len());
        let depth = self.terms.min(MOST_TERMS);
        let mut panels = scratch(columns.min(MOST_COLUMNS).next_multiple_of(MOST_LANES) * depth)?;
        let mut lines = scratch(if self.packs(columns) { GROUPED_ROWS.min(out.len()) * depth } else { 0 })?;
        for part in even(columns, columns.div_ceil(MOST_COLUMNS)) {
            let (panels, lines) = (&mut panels[..], &mut lines[..]);
            with_vectors(Part { product: self, out, first, column, part, panels, lines });
        }
        Ok(())
    }

    /// Returns whether rows that meet this many columns are copied.
    fn packs(&self, columns: usize) -> bool {
        self.a.strides[1] != 1 && (self.a.strides[0] != 1 || columns > UNPACKED)
    }
}

struct Part<'p, 'a> {
    product: &'p Product<'p>,
    out: &'p mut [&'a mut [f32]],
    first: usize,
    column: usize,
    /// The columns of `out` that are computed.
    part: Range<usize>,
    panels: &'p mut [f32],
    /// Room for rows.
    lines: &'p mut [f32],
}

impl WithSimd for Part<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Part { product, out, first, column, part, panels, lines } = self;
        let Product { a, b, terms, start } = *product;
        let (lanes, packs) = (S::F32_LANES, product.packs(out.first().map_or(0, |row| row.len())));
        let vectors = part.len().div_ceil(lanes);
        let [_, most] = const { largest_tile::<S>() };
        for terms in even(terms, terms.div_ceil(MOST_TERMS).max(1)) {
            let (depth, start) = (terms.len(), if terms.start > 0 { Start::Result } else { start });
            for wide in even(vectors, vectors.div_ceil(most)) {
                let columns =
                    column + part.start + wide.start * lanes..column + (part.start + wide.end * lanes).min(part.end);
                let panel = &mut panels[wide.start * lanes * depth..wide.end * lanes * depth];
                pack_columns(simd, b, columns, &terms, panel);
            }
            for group in even(out.len(), out.len().div_ceil(GROUPED_ROWS)) {
                let (first, out) = (first + group.start, &mut out[group]);
                if packs {
                    pack_rows(a, first, tiles::<S>(out.len()), &terms, lines);
                }
                // A panel stays in the first-level cache for the rows of the group.
                for wide in even(vectors, vectors.div_ceil(most)) {
                    let columns = part.start + wide.start * lanes..(part.start + wide.end * lanes).min(part.end);
                    let start = match start {
                        Start::Columns(bias) => Start::Columns(&bias[column + columns.start..column + columns.end]),
                        other => other,
                    };
                    let panel = S::as_simd_f32s(&panels[wide.start * lanes * depth..wide.end * lanes * depth]).0;
                    for rows in tiles::<S>(out.len()) {
                        let left = if packs {
                            Left::Terms(&lines[rows.start * depth..rows.end * depth], rows.len())
                        } else {
                            Left::of(a, first + rows.start, terms.start)
                        };
                        let (columns, out) = (columns.clone(), &mut out[rows.clone()]);
                        Tile { left, depth, panel, start, out, columns }.compute(simd, rows.len(), wide.len());
                    }
                }
            }
        }
    }
}

/// Returns ranges of about the same length, which together are `0..total`.
#[inline(always)]
fn even(total: usize, parts: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    // The number may be so large that its products overflow.
    let start = move |i: usize| total / parts * i + total % parts * i / parts;
    (0..parts).map(move |i| start(i)..start(i + 1))
}

/// Returns the rows of each tile.
#[inline(always)]
fn tiles<S: Simd>(rows: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let [most, _] = const { largest_tile::<S>() };
    even(rows, rows.div_ceil(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::levels;

    /// Whole numbers, whose sums are exact in every order.
    fn numbers(len: usize, most: usize) -> Vec<f32> {
        (0..len).map(|i| (i * 7 % most) as f32 - (most / 2) as f32).collect()
    }

    /// Returns the places of a matrix `[rows, columns]`: row by row, column by column, with gaps, and with gaps everywhere.
    fn layouts([rows, columns]: [usize; 2]) -> [[usize; 2]; 4] {
        [[columns, 1], [1, rows], [columns + 3, 1], [2 * columns + 1, 2]]
    }

    fn expected(a: Matrix, b: Matrix, [m, k, n]: [usize; 3]) -> Vec<f32> {
        let at = |x: Matrix, i: usize, j: usize| x.data[x.start + i * x.strides[0] + j * x.strides[1]];
        (0..m * n).map(|i| (0..k).map(|t| at(a, i / n, t) * at(b, t, i % n)).sum()).collect()
    }

    #[test]
    fn products_of_all_layouts_are_right() -> Result<()> {
        for [m, k, n] in [[1, 1, 1], [9, 97, 33], [20, 40, 50], [7, 3, 150], [48, 21, 160], [13, 0, 5], [3, 20, 0]] {
            let (left, right) = (numbers(2 * m * (k + 3) + 9, 11), numbers(2 * k * (n + 3) + 9, 7));
            let bias = numbers(n, 5);
            for of_a in layouts([m, k]) {
                for of_b in layouts([k, n]) {
                    let (a, b) = (Matrix::new(&left, 4, of_a), Matrix::new(&right, 1, of_b));
                    let mut out = vec![f32::NAN; m * n];
                    product(&mut out, a, b, [m, k, n], None)?;
                    let mut wanted = expected(a, b, [m, k, n]);
                    assert_eq!(out, wanted, "{m} × {k} × {n}, {of_a:?} and {of_b:?}");
                    product(&mut out, a, b, [m, k, n], Some(&bias))?;
                    wanted.iter_mut().zip(bias.iter().cycle()).for_each(|(v, bias)| *v += bias);
                    assert_eq!(out, wanted, "{m} × {k} × {n}, {of_a:?} and {of_b:?}, with a bias");
                }
            }
        }
        Ok(())
    }

    /// More rows, terms and columns than are in hand at a time.
    #[test]
    fn long_and_wide_products_are_right() -> Result<()> {
        for [m, k, n] in [[ROWS_AT_ONCE + 11, 4, 20], [97, 2 * MOST_TERMS + 5, 35], [4, 30, 3 * MOST_COLUMNS + 17]] {
            let (left, right, bias) = (numbers(m * k, 3), numbers(k * n, 3), numbers(n, 3));
            for (of_a, of_b) in [([k, 1], [n, 1]), ([1, m], [1, k])] {
                let (a, b) = (Matrix::new(&left, 0, of_a), Matrix::new(&right, 0, of_b));
                let mut out = vec![f32::NAN; m * n];
                product(&mut out, a, b, [m, k, n], Some(&bias))?;
                let mut wanted = expected(a, b, [m, k, n]);
                wanted.iter_mut().zip(bias.iter().cycle()).for_each(|(v, bias)| *v += bias);
                assert!(out == wanted, "{m} × {k} × {n}, {of_a:?} and {of_b:?}");
            }
        }
        Ok(())
    }

    /// One task, and more tasks than there are cores.
    #[test]
    fn every_number_of_threads_has_the_same_sums() -> Result<()> {
        let [m, k, n] = [51, MOST_TERMS + 11, 2 * MOST_COLUMNS + 9];
        let (left, right) = (numbers(2 * m * (k + 3), 5), numbers(2 * k * n, 7));
        for of_a in layouts([m, k]) {
            for of_b in [[n, 1], [1, k], [2 * n - 1, 2]] {
                let (a, b) = (Matrix::new(&left, 0, of_a), Matrix::new(&right, 0, of_b));
                let wanted = expected(a, b, [m, k, n]);
                for threads in [1, 3, 16] {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
                    let mut out = vec![f32::NAN; m * n];
                    pool.install(|| product(&mut out, a, b, [m, k, n], None))?;
                    assert!(out == wanted, "{threads} threads, {of_a:?} and {of_b:?}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn ranges_of_the_largest_numbers_are_right() {
        for (total, parts) in [(0, 3), (10, 4), (7, 7), (1 << 58, (1 << 58) / MOST_TERMS), (usize::MAX, 9)] {
            let mut end = 0;
            for range in even(total, parts).take(100) {
                assert!(range.start == end && range.len().abs_diff(total / parts) <= 1);
                end = range.end;
            }
            assert!(parts > 100 || end == total);
        }
    }

    #[test]
    fn only_products_that_gain_are_computed_here() {
        let data = vec![0.0; 4];
        let suits = |a, b, sizes| {
            let (a, b) = (Matrix::new(&data, 0, a), Matrix::new(&data, 0, b));
            suits(a, b, sizes)
        };
        assert!(suits([2, 1], [1, 2], [1000, 1000, 1000]) && suits([2, 1], [2, 1], [64, 1000, 1000]));
        assert!(suits([1, 2], [1, 2], [1000, 1000, 528]) && !suits([1, 2], [1, 2], [1000, 1000, 529]));
        assert!(suits([2, 1], [2, 1], [1024; 3]) && !suits([1, 2], [2, 1], [1024; 3]));
        assert!(!suits([2, 1], [2, 1], [128, 1 << 20, 128]) && !suits([2, 1], [2, 1], [1 << 20, 128, 128]));
        assert!(!suits([2, 1], [2, 1], [1000, 1000, 1000]) && !suits([2, 1], [1, 2], [100, 100, 100]));
        assert!(!suits([2, 1], [1, 2], [1 << 20, 1 << 20, 31]) && !suits([2, 1], [1, 2], [1 << 20, 95, 1 << 20]));
        assert!(!suits([2, 1], [1, 5], [1000, 1000, 1000]) && !suits([1usize.wrapping_neg(), 1], [1, 2], [1000; 3]));
    }

    /// The part of a product, with the widest vectors of the processor and with others.
    #[test]
    fn every_level_of_vectors_has_the_same_sums() -> Result<()> {
        for [m, k, n] in [[1, 9, 1], [31, 41, 70], [5, 800, 25], [48, 800, 200]] {
            let (left, right) = (numbers(m * k, 5), numbers(k * n, 7));
            for (of_a, of_b) in [([k, 1], [n, 1]), ([1, m], [1, k]), ([k, 1], [1, k])] {
                let (a, b) = (Matrix::new(&left, 0, of_a), Matrix::new(&right, 0, of_b));
                let wanted = expected(a, b, [m, k, n]);
                let check = |compute: &dyn Fn(Part)| {
                    let product = Product { a, b, terms: k, start: Start::Zero };
                    let mut out = vec![f32::NAN; m * n];
                    let mut rows: Vec<&mut [f32]> = out.chunks_exact_mut(n).collect();
                    let (mut panels, mut lines) =
                        (vec![f32::NAN; (n + 64) * k], vec![f32::NAN; GROUPED_ROWS.min(m) * k]);
                    let (panels, lines) = (&mut panels[..], &mut lines[..]);
                    compute(Part { product: &product, out: &mut rows, first: 0, column: 0, part: 0..n, panels, lines });
                    assert!(out == wanted, "{m} × {k} × {n}, {of_a:?} and {of_b:?}");
                };
                levels::each(|| {
                    check(&|part| with_vectors(part));
                    Ok(())
                })?;
                // Vectors of four, which other processors have.
                check(&|part| part.with_simd(pulp::Scalar128b));
            }
        }
        Ok(())
    }

    /// The rows of a product are the same bits in a product of fewer rows and columns.
    #[test]
    fn sums_do_not_depend_on_the_division() -> Result<()> {
        let [m, k, n] = [70, 900, 200];
        let numbers = |len: usize| -> Vec<f32> { (0..len).map(|i| ((i * 37 % 101) as f32).sin()).collect() };
        let (left, right) = (numbers(m * k), numbers(k * n));
        let mut whole = vec![0.0; m * n];
        product(&mut whole, Matrix::new(&left, 0, [k, 1]), Matrix::new(&right, 0, [n, 1]), [m, k, n], None)?;
        let mut part = vec![0.0; 11 * 50];
        let (a, b) = (Matrix::new(&left, 30 * k, [k, 1]), Matrix::new(&right, 70, [n, 1]));
        product(&mut part, a, b, [11, k, 50], None)?;
        for (i, row) in part.chunks_exact(50).enumerate() {
            assert_eq!(row, &whole[(30 + i) * n + 70..][..50]);
        }
        Ok(())
    }
}
