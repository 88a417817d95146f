//! Matrix products of few rows on the host, for which panels would take longer than the product.

use std::ops::Range;

use super::dots::Dots;
use super::gemm::{Matrix, Threads};
use super::lines::Lines;
use super::plan::SMALL;
use crate::memory::{Result, Scratch, scratch};
use crate::tasks::try_share;

/// The most rows: if the terms of a column are neighbours, and if the columns are.
const MOST_DOTS: usize = 8;
const MOST_LINES: usize = 32;

/// The most elements of a right factor whose columns are neighbours. A larger one leaves the caches from row to row.
const MOST: usize = 1 << 20;

/// The most terms, unless a right factor whose columns are neighbours has at least `WIDE` columns: the places of
/// its rows take memory too.
const LONGEST: usize = 1 << 13;
const WIDE: usize = 64;

/// The rows of a longer left factor are copied only if the right factor is at least this many times as large.
const COPIED: usize = 16;

/// The columns that a task computes at once, into memory of its own, where it has several rows.
const AT_ONCE: usize = 512;

/// How the right factor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The terms of a column are neighbours.
    Dots,
    /// The columns are neighbours.
    Lines,
}

/// Returns how products of few rows compute `[m, k] · [k, n]`, if that is the fastest way.
pub(super) fn suits(a: Matrix, b: Matrix, [m, k, n]: [usize; 3]) -> Option<By> {
    let lines = b.strides[1] == 1 && m <= MOST_LINES && k.saturating_mul(n) <= MOST && (n >= WIDE || k <= LONGEST);
    let dots = b.strides[0] == 1 && m <= MOST_DOTS && (k > 1 || !lines);
    let apart = if dots { b.strides[1] } else { b.strides[0] };
    // A step backwards is a large number.
    if !(lines || dots) || apart > b.data.len() || m.min(k).min(n) == 0 {
        return None;
    }
    if !lies_dense(a, m, k) && k > LONGEST && m * COPIED > n {
        return None;
    }
    Some(if dots { By::Dots } else { By::Lines })
}

/// Returns whether the rows of the left factor follow one another.
fn lies_dense(a: Matrix, m: usize, k: usize) -> bool {
    a.strides[1] == 1 && (m == 1 || a.strides[0] == k)
}

/// Computes `out [m, n] ← A [m, k] · B [k, n]`. `out` is row-major.
pub(super) fn product(
    out: &mut [f32],
    a: Matrix,
    b: Matrix,
    [m, k, n]: [usize; 3],
    by: By,
    threads: Threads,
) -> Result<()> {
    let dots = by == By::Dots;
    let apart = if dots { b.strides[1] } else { b.strides[0] };
    let right = &b.data[b.start..];
    let copy;
    let rows = if lies_dense(a, m, k) {
        &a.data[a.start..][..m * k]
    } else {
        copy = dense_rows(a, m, k)?;
        &copy[..]
    };
    let places: Vec<usize> = if dots { Vec::new() } else { (0..k).map(|j| j * apart).collect() };
    let columns = |columns: Range<usize>, out: &mut [f32], step: usize| {
        if dots {
            let left = &right[columns.start * apart..];
            let dots = Dots { left, step: apart, rows: columns.len(), vectors: rows, depth: k, start: None };
            dots.compute(m, out, [1, step]);
            return Ok(());
        }
        Lines { left: rows, step: k, rows: m, data: right, places: &places, start: None }.compute(columns, out, step)
    };
    let parts = match threads {
        Threads::All if m * n * k > SMALL => rayon::current_num_threads().min(n.div_ceil(64)),
        _ => 1,
    };
    if parts == 1 {
        return columns(0..n, out, n);
    }
    let each = n.div_ceil(parts).next_multiple_of(64);
    let mut tasks: Vec<Vec<&mut [f32]>> = Vec::new();
    tasks.resize_with(n.div_ceil(each), Vec::new);
    for row in out.chunks_exact_mut(n) {
        row.chunks_mut(each).zip(&mut tasks).for_each(|(part, task)| task.push(part));
    }
    try_share(tasks.into_iter().enumerate(), 1, |(i, mut task)| {
        let range = i * each..n.min((i + 1) * each);
        if let [row] = &mut task[..] {
            return columns(range.clone(), row, range.len());
        }
        let mut part = scratch(m * AT_ONCE.min(range.len()))?;
        for first in range.clone().step_by(AT_ONCE) {
            let width = AT_ONCE.min(range.end - first);
            columns(first..first + width, &mut part, width)?;
            for (to, row) in task.iter_mut().zip(part.chunks_exact(width)) {
                to[first - range.start..][..width].copy_from_slice(row);
            }
        }
        Ok(())
    })
}

/// Returns a copy of a matrix `[m, k]` without gaps.
fn dense_rows(a: Matrix, m: usize, k: usize) -> Result<Scratch> {
    let mut rows = scratch(m * k)?;
    for (i, row) in rows.chunks_exact_mut(k).enumerate() {
        let first = a.start.wrapping_add(i.wrapping_mul(a.strides[0]));
        match a.strides[1] {
            1 => row.copy_from_slice(&a.data[first..first + k]),
            step => row.iter_mut().enumerate().for_each(|(j, v)| *v = a.data[first.wrapping_add(j.wrapping_mul(step))]),
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operands in every order, with gaps and backwards, and products of several parts.
    #[test]
    fn products_of_all_layouts_are_right() -> Result<()> {
        for [m, k, n] in [
            [1usize, 1, 1],
            [2, 128, 512],
            [8, 33, 70],
            [20, 120, 1400],
            [32, 5, 3],
            [1, 700, 900],
            [3, 1, 65],
            [2, 9000, 1],
        ] {
            let wide = n + 5;
            let data: Vec<f32> = (0..wide * k.max(m) + wide * m + k * wide).map(|i| (i % 11) as f32 - 5.0).collect();
            for (at, [row, column]) in [(3, [k, 1]), (0, [1, m]), ((m - 1) * k, [k.wrapping_neg(), 1])] {
                for strides in [[n, 1], [wide, 1], [1, k], [1, k + 2], [0, 1]] {
                    let (a, b) = (Matrix::new(&data, at, [row, column]), Matrix::new(&data, 2, strides));
                    let mut out = vec![f32::NAN; m * n];
                    let Some(by) = suits(a, b, [m, k, n]) else {
                        assert!(strides[1] != 1 || k > LONGEST);
                        continue;
                    };
                    product(&mut out, a, b, [m, k, n], by, Threads::All)?;
                    for (at_out, v) in out.iter().enumerate() {
                        let (i, j) = (at_out / n, at_out % n);
                        let left = |t: usize| data[at.wrapping_add(i.wrapping_mul(row)).wrapping_add(t * column)];
                        let sum: f32 = (0..k).map(|t| left(t) * data[2 + t * strides[0] + j * strides[1]]).sum();
                        assert_eq!(*v, sum, "{m} × {k} × {n} with {strides:?} at {i}, {j}");
                    }
                }
            }
        }
        Ok(())
    }
}
