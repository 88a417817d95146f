//! The LU factorisation with partial pivoting, and triangular systems.

use anygpu_host::matmul::{Matrix, Threads, gemm};
use anygpu_host::vectorised;

use super::add_scaled;
use crate::error::Result;
use crate::ops::on_host::zeros;

/// Columns that are factored before a product updates the others.
const BLOCK: usize = 64;

/// `P A = L U`, row-major: U on and above the diagonal, L, whose diagonal is 1, below it.
pub(in crate::ops::linalg) struct Lu {
    n: usize,
    factors: Vec<f64>,
    /// The row of A that is each row of `P A`.
    pub rows: Vec<usize>,
    /// Whether the rows are an odd permutation.
    odd: bool,
}

impl Lu {
    /// Factors a matrix `[n, n]`. A pivot is 0 if the matrix is singular, or NaN where an element is not finite.
    pub fn new(matrix: Vec<f64>, n: usize, threads: Threads) -> Result<Lu> {
        let mut lu = Lu { n, factors: matrix, rows: (0..n).collect(), odd: false };
        let mut products = Vec::new();
        for start in (0..n).step_by(BLOCK) {
            let end = (start + BLOCK).min(n);
            lu.panel(start, end);
            let rest = n - end;
            if rest == 0 {
                break;
            }
            if products.is_empty() {
                products = zeros(rest * rest)?;
            }
            let left = Matrix::new(&lu.factors, end * n + start, [n, 1]);
            let right = Matrix::new(&lu.factors, start * n + end, [n, 1]);
            gemm(&mut products, left, right, [rest, end - start, rest], false, threads);
            for (row, product) in lu.factors[end * n..].chunks_mut(n).zip(products.chunks(rest)) {
                row[end..].iter_mut().zip(product).for_each(|(x, product)| *x -= product);
            }
        }
        Ok(lu)
    }

    /// Factors the columns of a block, and solves for the rows of U to the right of it.
    fn panel(&mut self, start: usize, end: usize) {
        let Lu { n, factors, rows, odd } = self;
        let n = *n;
        vectorised!({
            for c in start..end {
                let size = |r: usize| factors[r * n + c].abs();
                // In this order, NaN is the largest: it stays in the result.
                let pivot = (c + 1..n).fold(c, |best, r| if size(r).total_cmp(&size(best)).is_gt() { r } else { best });
                if pivot != c {
                    let (above, below) = factors.split_at_mut(pivot * n);
                    above[c * n..][..n].swap_with_slice(&mut below[..n]);
                    rows.swap(c, pivot);
                    *odd = !*odd;
                }
                let (above, below) = factors.split_at_mut((c + 1) * n);
                let row = &above[c * n..];
                if row[c] == 0.0 {
                    continue; // so are all below it
                }
                for other in below.chunks_mut(n) {
                    let factor = other[c] / row[c];
                    other[c] = factor;
                    add_scaled(&mut other[c + 1..end], -factor, &row[c + 1..end]);
                }
            }
            for i in start + 1..end {
                let (above, row) = factors.split_at_mut(i * n);
                let (factors, to) = row[..n].split_at_mut(end);
                for j in start..i {
                    add_scaled(to, -factors[j], &above[j * n + end..][..n - end]);
                }
            }
        });
    }

    pub fn pivots(&self) -> impl Iterator<Item = f64> + '_ {
        self.factors.iter().step_by(self.n + 1).copied()
    }

    /// The determinant of P: 1 or −1.
    pub fn sign(&self) -> f64 {
        if self.odd { -1.0 } else { 1.0 }
    }

    /// Solves `A X = B` for X, in the place of `P B`, `[n, columns]`.
    pub fn solve(&self, x: &mut [f64], columns: usize) {
        forward(&self.factors, x, [self.n, columns], true);
        back(&self.factors, x, [self.n, columns]);
    }
}

/// Solves `L X = B` in place by the lower triangle of a matrix, whose diagonal is 1 if `unit`.
pub(in crate::ops::linalg) fn forward(matrix: &[f64], x: &mut [f64], [n, columns]: [usize; 2], unit: bool) {
    vectorised!({
        for i in 0..n {
            let row = &matrix[i * n..][..n];
            let (before, rest) = x.split_at_mut(i * columns);
            let here = &mut rest[..columns];
            for (factor, x) in row.iter().zip(before.chunks(columns)) {
                add_scaled(here, -factor, x);
            }
            if !unit {
                here.iter_mut().for_each(|x| *x /= row[i]);
            }
        }
    });
}

/// Solves `U X = B` in place by the upper triangle of a matrix.
pub(in crate::ops::linalg) fn back(matrix: &[f64], x: &mut [f64], [n, columns]: [usize; 2]) {
    vectorised!({
        for i in (0..n).rev() {
            let row = &matrix[i * n..][..n];
            let (to, after) = x.split_at_mut((i + 1) * columns);
            let here = &mut to[i * columns..];
            for (factor, x) in row[i + 1..].iter().zip(after.chunks(columns)) {
                add_scaled(here, -factor, x);
            }
            here.iter_mut().for_each(|x| *x /= row[i]);
        }
    });
}
