//! Singular values by one-sided Jacobi rotations, after a QR factorisation with ordered columns: Drmač and Veselić, "New fast and
//! accurate Jacobi SVD algorithm" (2008). They converge for every matrix, also without full rank.

use anygpu_host::vectorised;

use super::householder::Qr;
use super::{dot, largest, norm, transpose};
use crate::error::Result;
use crate::ops::on_host::zeros;

/// Sweeps over all pairs of columns; ten are enough for nearly all matrices.
const SWEEPS: usize = 60;

/// Columns that are shorter, of a matrix whose largest element is 1, count as 0: their squares have no digits.
const NOTHING: f64 = 1e-140;

/// `A = U diag(S) Vᵀ` of a matrix `[m, n]`, for k the smaller size. The columns of U and of V are one after the other.
pub(in crate::ops::linalg) struct Svd {
    pub u: Vec<f64>,
    pub s: Vec<f64>,
    pub v: Vec<f64>,
}

/// Why there are none.
pub(in crate::ops::linalg) enum NoSvd {
    NotFinite,
    NotConverged,
}

impl Svd {
    /// Factors a row-major matrix. The singular values descend.
    pub fn new(matrix: &[f64], [m, n]: [usize; 2]) -> Result<Result<Svd, NoSvd>> {
        let most = largest(matrix);
        if !most.is_finite() {
            return Ok(Err(NoSvd::NotFinite));
        }
        if m < n {
            // The rows of A are the columns of Aᵀ = V diag(S) Uᵀ.
            let mut columns = zeros(matrix.len())?;
            columns.copy_from_slice(matrix);
            let transposed = tall(columns, [n, m], most)?;
            return Ok(transposed.map(|Svd { u, s, v }| Svd { u: v, s, v: u }));
        }
        tall(transpose(matrix, n)?, [m, n], most)
    }
}

/// Factors a matrix of at least as many rows as columns, which are one after the other.
fn tall(mut columns: Vec<f64>, [m, n]: [usize; 2], most: f64) -> Result<Result<Svd, NoSvd>> {
    let unit = if most == 0.0 { 1.0 } else { most };
    columns.iter_mut().for_each(|x| *x /= unit);
    let qr = Qr::new(columns, [m, n], true)?;
    // A P = Q R. Rotations J make the columns of Rᵀ J = X diag(S) orthogonal: A = (Q J) diag(S) (P X)ᵀ.
    let (mut x, mut j) = (zeros(n * n)?, zeros(n * n)?);
    for c in 0..n {
        (0..n).for_each(|row| x[c * n + row] = qr.r(c, row));
        j[c * n + c] = 1.0;
    }
    if !orthogonal(&mut x, &mut j, n) {
        return Ok(Err(NoSvd::NotConverged));
    }
    let lengths: Vec<f64> = x.chunks(n.max(1)).map(norm).collect();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| lengths[b].total_cmp(&lengths[a]));
    let (mut u, mut v) = (zeros(m * n)?, zeros(n * n)?);
    let mut s = Vec::with_capacity(n);
    for (to, &from) in order.iter().enumerate() {
        u[to * m..][..n].copy_from_slice(&j[from * n..][..n]);
        let (x, v) = (&x[from * n..][..n], &mut v[to * n..][..n]);
        let length = if lengths[from] > NOTHING { lengths[from] } else { 0.0 };
        s.push(length * unit);
        if length > 0.0 {
            qr.order.iter().zip(x).for_each(|(&row, x)| v[row] = x / length);
        }
    }
    qr.q_times(&mut u);
    let known = s.iter().take_while(|s| **s > 0.0).count();
    complete(&mut v, n, known);
    Ok(Ok(Svd { u, s, v }))
}

/// Rotates pairs of columns of X, and the same columns of J, until all columns of X are orthogonal. Returns whether
/// they are.
fn orthogonal(x: &mut [f64], j: &mut [f64], n: usize) -> bool {
    let small = f64::EPSILON * (n as f64).sqrt().max(2.0);
    vectorised!({
        for _ in 0..SWEEPS {
            let mut rotated = false;
            for p in 0..n {
                for q in p + 1..n {
                    let (a, b) = pair(x, p, q, n);
                    let (aa, bb, ab) = (dot(a, a), dot(b, b), dot(a, b));
                    if ab.abs() <= small * aa.sqrt() * bb.sqrt() || aa.min(bb) <= NOTHING * NOTHING {
                        continue;
                    }
                    rotated = true;
                    let zeta = (bb - aa) / (2.0 * ab);
                    let t = 1f64.copysign(zeta) / (zeta.abs() + 1f64.hypot(zeta));
                    let cos = 1.0 / 1f64.hypot(t);
                    let sin = cos * t;
                    rotate(a, b, cos, sin);
                    let (a, b) = pair(j, p, q, n);
                    rotate(a, b, cos, sin);
                }
            }
            if !rotated {
                return true;
            }
        }
        false
    })
}

/// Two of the columns, of which the first comes before the second.
#[inline(always)]
fn pair(columns: &mut [f64], p: usize, q: usize, n: usize) -> (&mut [f64], &mut [f64]) {
    let (before, after) = columns.split_at_mut(q * n);
    (&mut before[p * n..][..n], &mut after[..n])
}

#[inline(always)]
fn rotate(a: &mut [f64], b: &mut [f64], cos: f64, sin: f64) {
    for (a, b) in a.iter_mut().zip(b) {
        (*a, *b) = (cos * *a - sin * *b, sin * *a + cos * *b);
    }
}

/// Completes orthonormal columns of n elements, of which `known` are there, to a basis.
fn complete(columns: &mut [f64], n: usize, known: usize) {
    let mut axes = 0..n;
    for c in known..n {
        let (before, after) = columns.split_at_mut(c * n);
        let column = &mut after[..n];
        // Some axis is not in the space of the others, if there are fewer than n: its rest is at least 1 / √n long.
        for axis in axes.by_ref() {
            column.fill(0.0);
            column[axis] = 1.0;
            // Twice, since the first difference may have lost digits.
            for _ in 0..2 {
                for other in before.chunks(n) {
                    let along = dot(column, other);
                    super::add_scaled(column, -along, other);
                }
            }
            let length = norm(column);
            if length > 0.5 / (n as f64).sqrt() {
                column.iter_mut().for_each(|x| *x /= length);
                break;
            }
        }
    }
}
