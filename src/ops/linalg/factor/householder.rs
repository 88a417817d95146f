//! The QR factorisation by Householder's reflections.

use anygpu_host::vectorised;

use super::{add_scaled, dot, largest, norm};
use crate::error::Result;
use crate::ops::on_host::zeros;

/// Columns that are shorter count as 0: reflections of numbers without all of their digits are not orthogonal.
const NOTHING: f64 = f64::MIN_POSITIVE / f64::EPSILON;

/// `A = Q R` of a matrix whose columns are one after the other: R on and above the diagonal, below it the vectors of the reflections
/// `1 − τ v vᵀ`, whose first element is 1.
pub(in crate::ops::linalg) struct Qr {
    m: usize,
    columns: Vec<f64>,
    taus: Vec<f64>,
    /// The number that the matrix was divided by, so that no square overflows.
    unit: f64,
    /// The column of A that is each column of Q R, if they were ordered.
    pub order: Vec<usize>,
}

impl Qr {
    /// Factors a matrix `[m, n]`. If `ordered`, the diagonal of R descends.
    pub fn new(mut columns: Vec<f64>, [m, n]: [usize; 2], ordered: bool) -> Result<Qr> {
        let k = m.min(n);
        let most = largest(&columns);
        let unit = if most == 0.0 || !most.is_finite() || (1e-100..1e100).contains(&most) { 1.0 } else { most };
        if unit != 1.0 {
            columns.iter_mut().for_each(|x| *x /= unit);
        }
        let mut taus = zeros(k)?;
        let mut order: Vec<usize> = (0..n).collect();
        vectorised!({
            for c in 0..k {
                if ordered {
                    let size = |j: usize| norm(&columns[j * m + c..][..m - c]);
                    let (mut best, mut most) = (c, size(c));
                    for j in c + 1..n {
                        let size = size(j);
                        (best, most) = if size > most { (j, size) } else { (best, most) };
                    }
                    if best != c {
                        let (before, after) = columns.split_at_mut(best * m);
                        before[c * m..][..m].swap_with_slice(&mut after[..m]);
                        order.swap(c, best);
                    }
                }
                let (before, after) = columns.split_at_mut((c + 1) * m);
                let column = &mut before[c * m + c..];
                let (first, rest) = (column[0], &mut column[1..]);
                let below = norm(rest);
                let length = first.hypot(below);
                if below == 0.0 || length < NOTHING {
                    continue; // no reflection
                }
                let diagonal = -length.copysign(first);
                let tau = (diagonal - first) / diagonal;
                rest.iter_mut().for_each(|x| *x /= first - diagonal);
                taus[c] = tau;
                for other in after.chunks_mut(m) {
                    reflect(&mut other[c..], tau, rest);
                }
                column[0] = diagonal;
            }
        });
        Ok(Qr { m, columns, taus, unit, order })
    }

    /// Returns an element of R.
    pub fn r(&self, row: usize, column: usize) -> f64 {
        if row <= column { self.columns[column * self.m + row] * self.unit } else { 0.0 }
    }

    /// Multiplies columns of m elements by Q from the left.
    pub fn q_times(&self, columns: &mut [f64]) {
        let Qr { m, columns: vectors, taus, .. } = self;
        vectorised!({
            for (c, &tau) in taus.iter().enumerate().rev().filter(|(_, tau)| **tau != 0.0) {
                let rest = &vectors[c * m + c + 1..(c + 1) * m];
                for column in columns.chunks_mut(*m) {
                    reflect(&mut column[c..], tau, rest);
                }
            }
        });
    }
}

/// `x ← (1 − τ v vᵀ) x` for the vector v of 1 and the rest.
#[inline(always)]
fn reflect(x: &mut [f64], tau: f64, rest: &[f64]) {
    let Some((first, others)) = x.split_first_mut() else { return };
    let along = tau * (*first + dot(others, rest));
    *first -= along;
    add_scaled(others, -along, rest);
}
