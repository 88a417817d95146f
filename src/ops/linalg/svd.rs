//! Singular values. The host computes them ([`on_host`]).

use super::factor::jacobi::{NoSvd, Svd};
use super::qr::{matrices, parts};
use super::solve::transposed;
use crate::error::{Error, Result};
use crate::ops::names::{Names, names};
use crate::ops::on_host::{Array, HostOp, Stored, each_matrix, host_op, numbers, on_host, the_matrix, write};
use crate::ops::{Gradient, Gradients, Saves};
use crate::tensor::Tensor;

/// U `[m, k]`, S `[k]` and Vᵀ `[k, n]` of matrices `[m, n]`, for k the smaller size, in one row.
#[derive(Clone, Copy, Debug)]
struct Factors {
    m: usize,
    n: usize,
}

impl Factors {
    fn parts(self, x: &Tensor) -> Result<[Tensor; 3]> {
        let k = self.m.min(self.n);
        parts(x, [&[self.m, k], &[k], &[k, self.n]])
    }
}

impl HostOp for Factors {
    const NAMES: Names = names!["svd"];

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>> {
        let (batch, [m, n]) = matrices(self.name(), inputs[0])?;
        Ok([batch, &[(m + n + 1) * m.min(n)]].concat())
    }

    fn compute<S: Stored>(&self, inputs: &[Array<S>], out: &mut [S]) -> Result<()> {
        let (x, &Factors { m, n }) = (&inputs[0], self);
        let (batch, _) = matrices(self.name(), x.shape)?;
        let k = m.min(n);
        each_matrix(out, (m + n + 1) * k, 20 * m * n * k, |i, out| {
            let Svd { u, s, v } = Svd::new(&numbers(&x.elements[i * m * n..][..m * n])?, [m, n])?.map_err(|why| {
                let why = match why {
                    NoSvd::NotFinite => "has an element that is NaN or infinite",
                    NoSvd::NotConverged => "has singular values that were not found: the iteration does not converge",
                };
                Error::argument(self.name(), format!("{} {why}", the_matrix(batch, i)))
            })?;
            let (of_u, rest) = out.split_at_mut(m * k);
            let (of_s, of_v) = rest.split_at_mut(k);
            write((0..m).flat_map(|row| u.iter().skip(row).step_by(m).copied()), of_u);
            write(s, of_s);
            write(v, of_v); // the columns of V are the rows of Vᵀ
            Ok(())
        })
    }

    fn saves(&self) -> Saves {
        Saves::Output
    }

    /// With E = sⱼ² − sᵢ² and skew(X) = X − Xᵀ, the gradient is
    ///
    /// U [(skew(Uᵀ g(U)) S + S skew(Vᵀ g(V))) / E + g(S)] Vᵀ + (1 − U Uᵀ) g(U) S⁻¹ Vᵀ + U S⁻¹ g(V)ᵀ (1 − V Vᵀ)
    ///
    /// J. Townsend, "Differentiating the singular value decomposition" (2016). Where a quotient is 0 / 0, it is 0. This
    /// happens where the loss depends on the singular values alone and two are equal.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let k = self.m.min(self.n);
        let ([u, s, vt], [of_u, of_s, of_vt]) = (self.parts(ctx.out)?, self.parts(ctx.grad)?);
        let (v, of_v) = (transposed(&vt)?, transposed(&of_vt)?);
        let skew = |x: Tensor| x.sub(&transposed(&x)?);
        let (row, column) = (s.unsqueeze(-2)?, s.unsqueeze(-1)?);
        let of_rotations = skew(transposed(&u)?.matmul(&of_u)?)?.mul(&row)?;
        let of_rotations = of_rotations.add(&skew(transposed(&v)?.matmul(&of_v)?)?.mul(&column)?)?;
        let differences = row.sub(&column)?.mul(&row.add(&column)?)?;
        let of_values = of_s.unsqueeze(-2)?.mul(&Tensor::eye(k, s.device())?)?;
        let inner = quotient(&of_rotations, &differences)?.add(&of_values)?;
        let mut whole = u.matmul(&inner)?.matmul(&vt)?;
        let outside = |basis: &Tensor, of_basis: &Tensor| {
            let scaled = quotient(of_basis, &row)?;
            scaled.sub(&basis.matmul(&transposed(basis)?.matmul(&scaled)?)?)
        };
        if self.m > k {
            whole = whole.add(&outside(&u, &of_u)?.matmul(&vt)?)?;
        }
        if self.n > k {
            whole = whole.add(&u.matmul(&transposed(&outside(&v, &of_v)?)?)?)?;
        }
        Ok(vec![Some(whole)])
    }
}

/// `a / b`, or 0 where both are 0.
fn quotient(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let b = b.broadcast_to(a.shape())?;
    let nothing = a.detach().eq(0.0)?.logical_and(&b.detach().eq(0.0)?)?;
    a.div(&nothing.where_cond(1.0, &b)?)
}

impl Tensor {
    /// Returns the reduced singular value decompositions `A = U diag(S) Vᵀ` of matrices.
    ///
    /// This is `torch.linalg.svd` with `full_matrices=False`. For A `[.., m, n]`, U is `[.., m, k]`, S is `[.., k]` and
    /// Vᵀ is `[.., k, n]`, where k is the smaller of m and n. The columns of U and the rows of Vᵀ are orthonormal, and
    /// S descends.
    ///
    /// A column of U and its row of Vᵀ may have the opposite sign of another implementation's. A loss that depends on
    /// such a sign, or on the vectors of equal singular values, has no meaningful gradient: it may be infinite or NaN.
    /// The gradient of S is always defined.
    ///
    /// **The host computes this, in f64**, each matrix on one thread: a matrix of 400 × 400 takes one or two seconds.
    /// On an adapter, the tensor is copied to the host and the results are copied back, which waits for the device. The
    /// first such copy of a process is logged. f64 tensors (on `cpu`) have no gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are fewer than two dimensions, or an element is NaN or infinite;
    /// [`Error::DTypeMismatch`] unless the matrices are f32 or f64.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::new([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]], None)?;
    /// let (u, s, vt) = a.svd()?;
    /// assert_eq!((u.shape(), vt.shape()), (&[3, 2][..], &[2, 2][..]));
    /// assert_eq!(s.to_vec::<f32>()?, [3.0, 2.0]);
    ///
    /// // The best approximation of rank 1.
    /// let best = u.narrow(1, 0, 1)?.mul(&s.i(0)?)?.matmul(&vt.narrow(0, 0, 1)?)?;
    /// assert!(best.allclose(&Tensor::new([[0.0, 0.0], [3.0, 0.0], [0.0, 0.0]], None)?, 1e-6, 1e-6)?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn svd(&self) -> Result<(Tensor, Tensor, Tensor)> {
        let (_, [m, n]) = matrices("svd", self.shape())?;
        let op = Factors { m, n };
        let all = on_host("svd", &[self], |x| host_op(op, &[&x[0]]))?;
        let [u, s, vt] = op.parts(&all)?;
        Ok((u, s, vt))
    }
}
