//! Factorisations of one matrix of f64 on the host, by the unblocked algorithms of LAPACK, whose pivots and signs these have.
//!
//! No crate is used: `faer` 0.24 takes more than two minutes of a processor's time to compile, and the singular value decompositions
//! of `nalgebra` 0.35 are wrong for some matrices without full rank.

pub(super) mod cholesky;
pub(super) mod householder;
pub(super) mod jacobi;
pub(super) mod lu;

/// The sum of products, in eight parts.
#[inline(always)]
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f64 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f64>() + rest
}

/// `y ← y + a x`.
#[inline(always)]
fn add_scaled(y: &mut [f64], a: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
}

/// The largest absolute value; NaN if there is one.
fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |most, x| if x.is_nan() || x.abs() > most { x.abs() } else { most })
}

/// The Euclidean norm. Squares of the elements may overflow.
#[inline(always)]
fn norm(x: &[f64]) -> f64 {
    let squares = dot(x, x);
    if (1e-280..1e280).contains(&squares) {
        return squares.sqrt();
    }
    let most = largest(x);
    if most == 0.0 || !most.is_finite() {
        return most;
    }
    most * x.iter().map(|x| (x / most) * (x / most)).sum::<f64>().sqrt()
}

/// The transpose of a row-major matrix of `columns` columns.
fn transpose(matrix: &[f64], columns: usize) -> crate::error::Result<Vec<f64>> {
    let rows = matrix.len().checked_div(columns).unwrap_or(0);
    let mut transposed = crate::ops::on_host::zeros(matrix.len())?;
    for i in 0..rows {
        for j in 0..columns {
            transposed[j * rows + i] = matrix[i * columns + j];
        }
    }
    Ok(transposed)
}
