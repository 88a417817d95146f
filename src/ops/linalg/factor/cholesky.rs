//! The Cholesky factorisation.

use anygpu_host::vectorised;

use super::dot;

/// Factors `A = L Lᵀ` in place. Only the lower triangle is read; elements above the diagonal become 0. The error is the
/// first row whose minor is not positive, or not a number.
pub(in crate::ops::linalg) fn cholesky(matrix: &mut [f64], n: usize) -> Result<(), usize> {
    vectorised!({
        for i in 0..n {
            let (above, row) = matrix.split_at_mut(i * n);
            let row = &mut row[..n];
            for (j, other) in above.chunks(n).enumerate() {
                row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
            }
            let square = row[i] - dot(&row[..i], &row[..i]);
            if square.is_nan() || square <= 0.0 {
                return Err(i);
            }
            row[i] = square.sqrt();
            row[i + 1..].fill(0.0);
        }
        Ok(())
    })
}
