//! The QR factorisation. The host computes it ([`on_host`]).

use super::factor::householder::Qr;
use super::solve::{Kind, solved, transposed};
use crate::error::{Error, Result};
use crate::ops::names::{Names, names};
use crate::ops::on_host::{Array, HostOp, Stored, each_matrix, host_op, on_host, write, zeros};
use crate::ops::{Gradient, Gradients, Saves};
use crate::tensor::Tensor;

/// Checks that a tensor is of matrices, and returns the dimensions of its batch and their sizes.
pub(super) fn matrices<'a>(op: &'static str, shape: &'a [usize]) -> Result<(&'a [usize], [usize; 2])> {
    match shape {
        [batch @ .., m, n] => Ok((batch, [*m, *n])),
        _ => Err(Error::argument(op, format!("takes matrices, [.., m, n], and the shape is {shape:?}"))),
    }
}

/// Cuts the last dimension into parts, and gives each the shape of a matrix or of a vector, as views.
pub(super) fn parts<const N: usize>(x: &Tensor, shapes: [&[usize]; N]) -> Result<[Tensor; N]> {
    let last = x.rank() - 1;
    let batch = &x.shape()[..last];
    let (mut all, mut start) = (Vec::with_capacity(N), 0);
    for shape in shapes {
        let count = shape.iter().product();
        all.push(x.narrow(last, start, count)?.reshape([batch, shape].concat())?);
        start += count;
    }
    all.try_into().map_err(|_| Error::internal("as many parts as shapes"))
}

/// The columns of a row-major matrix, one after the other.
pub(super) fn columns<S: Stored>(matrix: &[S], [m, n]: [usize; 2]) -> Result<Vec<f64>> {
    let mut columns = zeros(m * n)?;
    for (i, row) in matrix.chunks(n.max(1)).enumerate() {
        row.iter().enumerate().for_each(|(j, x)| columns[j * m + i] = x.number());
    }
    Ok(columns)
}

/// Q `[m, k]` and R `[k, n]` of matrices `[m, n]`, for k the smaller size, in one row.
#[derive(Clone, Copy, Debug)]
struct Factors {
    m: usize,
    n: usize,
}

impl Factors {
    fn parts(self, x: &Tensor) -> Result<[Tensor; 2]> {
        let k = self.m.min(self.n);
        parts(x, [&[self.m, k], &[k, self.n]])
    }
}

impl HostOp for Factors {
    const NAMES: Names = names!["qr"];

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>> {
        let (batch, [m, n]) = matrices(self.name(), inputs[0])?;
        Ok([batch, &[(m + n) * m.min(n)]].concat())
    }

    fn compute<S: Stored>(&self, inputs: &[Array<S>], out: &mut [S]) -> Result<()> {
        let (x, &Factors { m, n }) = (&inputs[0], self);
        let k = m.min(n);
        each_matrix(out, (m + n) * k, 2 * m * n * k, |i, out| {
            let qr = Qr::new(columns(&x.elements[i * m * n..][..m * n], [m, n])?, [m, n], false)?;
            let mut q = zeros(m * k)?;
            (0..k).for_each(|c| q[c * m + c] = 1.0);
            qr.q_times(&mut q);
            let (of_q, of_r) = out.split_at_mut(m * k);
            write((0..m).flat_map(|row| q.iter().skip(row).step_by(m).copied()), of_q);
            write((0..k).flat_map(|row| (0..n).map(move |column| (row, column))).map(|(i, j)| qr.r(i, j)), of_r);
            Ok(())
        })
    }

    fn saves(&self) -> Saves {
        Saves::Output
    }

    /// With M = R g(R)ᵀ − g(Q)ᵀ Q, and M' of its lower triangle on both sides of the diagonal, the gradient is (g(Q) +
    /// Q M') R⁻ᵀ: S. F. Walter, L. Lehmann, "Algorithmic differentiation of linear algebra functions" (2010). Beyond
    /// the square part, the columns of a wide matrix are Q times the columns of R: D. A. O. Roberts, L. R. Roberts, "QR
    /// and LQ decomposition matrix backpropagation algorithms for square, wide, and deep matrices" (2020).
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let k = self.m.min(self.n);
        let ([q, r], [mut of_q, of_r]) = (self.parts(ctx.out)?, self.parts(ctx.grad)?);
        let columns = |x: &Tensor, start: usize, end: usize| x.narrow(-1, start, end - start);
        let (square, of_square) = (columns(&r, 0, k)?, columns(&of_r, 0, k)?);
        let mut rest = None;
        if self.n > k {
            let of_beyond = columns(&of_r, k, self.n)?;
            let beyond = q.matmul(&columns(&r, k, self.n)?)?;
            of_q = of_q.add(&beyond.matmul(&transposed(&of_beyond)?)?)?;
            rest = Some(q.matmul(&of_beyond)?);
        }
        let m = square.matmul(&transposed(&of_square)?)?.sub(&transposed(&of_q)?.matmul(&q)?)?;
        let both = m.tril(0)?.add(&transposed(&m.tril(-1)?)?)?;
        let sum = transposed(&of_q.add(&q.matmul(&both)?)?)?;
        let none =
            "qr has no gradient where the first columns of a matrix, as many as it has rows, depend on each other";
        let of_columns = solved(&square, &sum, Kind::Upper).map_err(|error| match error {
            Error::InvalidArgument { .. } => Error::Autograd(none.into()),
            other => other,
        })?;
        let of_columns = transposed(&of_columns)?;
        let whole = rest.map_or(Ok(of_columns.clone()), |rest| Tensor::cat(&[&of_columns, &rest], -1))?;
        Ok(vec![Some(whole)])
    }
}

impl Tensor {
    /// Returns the reduced QR factorisations `A = Q R` of matrices, like `torch.linalg.qr`.
    ///
    /// For A `[.., m, n]`, Q is `[.., m, k]` and R is `[.., k, n]`, where k is the smaller of m and n. The columns of Q
    /// are orthonormal, and R is an upper triangle.
    ///
    /// The signs are LAPACK's: elements of R's diagonal may be negative. The gradient needs the first k columns of A to
    /// be linearly independent.
    ///
    /// **The host computes this, in f64.** On an adapter, the tensor is copied to the host and the results are copied
    /// back, which waits for the device. The first such copy of a process is logged. f64 tensors (on `cpu`) have no
    /// gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are fewer than two dimensions; [`Error::DTypeMismatch`] unless the matrices
    /// are f32 or f64. NaN and infinities are not an error; the results are NaN.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::new([[3.0, 1.0], [0.0, 2.0], [4.0, 2.0]], None)?;
    /// let (q, r) = a.qr()?;
    /// assert_eq!((q.shape(), r.shape()), (&[3, 2][..], &[2, 2][..]));
    /// assert!(q.matmul(&r)?.allclose(&a, 1e-6, 1e-6)?);
    /// assert!(q.t()?.matmul(&q)?.allclose(&Tensor::eye(2, None)?, 1e-6, 1e-6)?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn qr(&self) -> Result<(Tensor, Tensor)> {
        let (_, [m, n]) = matrices("qr", self.shape())?;
        let op = Factors { m, n };
        let both = on_host("qr", &[self], |x| host_op(op, &[&x[0]]))?;
        let [q, r] = op.parts(&both)?;
        Ok((q, r))
    }
}
