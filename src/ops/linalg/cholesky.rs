//! The Cholesky factorisation. The host computes it ([`on_host`]).

use super::factor::cholesky::cholesky;
use super::solve::{Kind, solved, square, transposed};
use crate::error::{Error, Result};
use crate::ops::names::{Names, names};
use crate::ops::on_host::{Array, HostOp, Stored, each_matrix, host_op, numbers, on_host, the_matrix, write};
use crate::ops::{Gradient, Gradients, Saves};
use crate::tensor::Tensor;

/// The lower triangles L of `A = L Lᵀ`.
#[derive(Clone, Copy, Debug)]
struct Cholesky;

impl HostOp for Cholesky {
    const NAMES: Names = names!["cholesky"];

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>> {
        square(self.name(), inputs[0])?;
        Ok(inputs[0].to_vec())
    }

    fn compute<S: Stored>(&self, inputs: &[Array<S>], out: &mut [S]) -> Result<()> {
        let x = &inputs[0];
        let (batch, n) = square(self.name(), x.shape)?;
        each_matrix(out, n * n, n * n * n / 3, |i, out| {
            let mut matrix = numbers(&x.elements[i * n * n..][..n * n])?;
            cholesky(&mut matrix, n).map_err(|row| {
                let (which, order) = (the_matrix(batch, i), row + 1);
                let remedy = "add a small multiple of the identity matrix, and check that no element is NaN";
                let detail =
                    format!("{which} is not positive-definite: its leading minor of order {order} is not ({remedy})");
                Error::argument(self.name(), detail)
            })?;
            write(matrix, out);
            Ok(())
        })
    }

    fn saves(&self) -> Saves {
        Saves::Output
    }

    /// The gradient is ½ (S + Sᵀ), S = L⁻ᵀ Φ(Lᵀ g) L⁻¹, where Φ keeps the lower triangle with half of the diagonal: I. Murray,
    /// "Differentiation of the Cholesky decomposition" (2016), equation 10.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let upper = transposed(ctx.out)?;
        let whole = upper.matmul(ctx.grad)?;
        let phi = whole.tril(0)?.add(&whole.tril(-1)?)?.mul_scalar(0.5)?;
        let left = solved(&upper, &phi, Kind::Upper)?;
        let s = solved(&upper, &transposed(&left)?, Kind::Upper)?; // its transpose
        Ok(vec![Some(s.add(&transposed(&s)?)?.mul_scalar(0.5)?)])
    }
}

impl Tensor {
    /// Returns the Cholesky factors of symmetric positive-definite matrices: `[.., n, n]` → `[.., n, n]`.
    ///
    /// The result is the lower triangle L of `A = L Lᵀ`, like `torch.linalg.cholesky`. Elements above A's diagonal are
    /// not read. The gradient of A is symmetric.
    ///
    /// **The host computes this, in f64.** On an adapter, the tensor is copied to the host and the result is copied
    /// back, which waits for the device. The first such copy of a process is logged. f64 tensors (on `cpu`) have no
    /// gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a matrix is not square, or not positive-definite: a pivot is 0, negative or NaN.
    /// [`Error::DTypeMismatch`] unless the matrices are f32 or f64.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::new([[4.0, 2.0], [2.0, 10.0]], None)?;
    /// assert_eq!(a.cholesky()?.to_vec2::<f32>()?, [[2.0, 0.0], [1.0, 3.0]]);
    ///
    /// let error = (&a * -1.0)?.cholesky().unwrap_err();
    /// assert!(error.to_string().starts_with("cholesky: the matrix is not positive-definite"));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn cholesky(&self) -> Result<Tensor> {
        on_host("cholesky", &[self], |x| host_op(Cholesky, &[&x[0]]))
    }
}
