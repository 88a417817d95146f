//! Determinants and their logarithms. The host computes them ([`on_host`]).

use anygpu_host::matmul::Threads;

use super::factor::jacobi::Svd;
use super::factor::lu::Lu;
use super::solve::{Kind, solved, square, threads, transposed};
use crate::autograd::is_recording;
use crate::error::{Error, Result};
use crate::ops::names::{Names, names};
use crate::ops::on_host::{Array, HostOp, Stored, each_matrix, host_op, numbers, on_host, write, zeros};
use crate::ops::{Gradient, Gradients, Saves};
use crate::tensor::Tensor;

/// The determinants of matrices `[.., n, n]`: `[..]`.
#[derive(Clone, Copy, Debug)]
struct Determinant;

/// Factors the matrices of a batch, each for a part of the result.
fn factored<S: Stored>(
    op: &'static str,
    x: &Array<S>,
    out: &mut [S],
    part: usize,
    f: impl Fn(Lu, &mut [S]) + Sync,
) -> Result<()> {
    let (_, n) = square(op, x.shape)?;
    let size = n * n;
    let threads = threads(n, out.len() / part);
    each_matrix(out, part, size * n, |i, out| {
        f(Lu::new(numbers(&x.elements[i * size..][..size])?, n, threads)?, out);
        Ok(())
    })
}

impl HostOp for Determinant {
    const NAMES: Names = names!["det"];

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>> {
        Ok(square(self.name(), inputs[0])?.0.to_vec())
    }

    fn compute<S: Stored>(&self, inputs: &[Array<S>], out: &mut [S]) -> Result<()> {
        factored(self.name(), &inputs[0], out, 1, |lu, out| write([lu.pivots().product::<f64>() * lu.sign()], out))
    }

    fn saves(&self) -> Saves {
        Saves::All
    }

    /// The gradient is g det(A) A⁻ᵀ, the transpose of the adjugate matrix, which also singular matrices have: Giles (2008), 2.2.4.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let a = &ctx.inputs[0];
        if !is_recording() {
            return Ok(vec![Some(host_op(Cofactors, &[a])?.mul(&of_matrices(ctx.grad)?)?)]);
        }
        let none = "the gradient of det has no gradient where a matrix is singular";
        Ok(vec![Some(by_inverse(a, &ctx.grad.mul(ctx.out)?, none)?)])
    }
}

/// Numbers `[..]` as `[.., 1, 1]`.
fn of_matrices(x: &Tensor) -> Result<Tensor> {
    x.unsqueeze(-1)?.unsqueeze(-1)
}

/// `s A⁻ᵀ` for numbers s, one for each matrix; `none` is the error where there is no inverse.
fn by_inverse(a: &Tensor, s: &Tensor, none: &str) -> Result<Tensor> {
    let (_, n) = square("det", a.shape())?;
    let scaled = of_matrices(s)?.mul(&Tensor::eye(n, a.device())?)?;
    solved(&transposed(a)?, &scaled, Kind::Square).map_err(|error| match error {
        Error::InvalidArgument { .. } => Error::Autograd(none.to_owned()),
        other => other,
    })
}

/// The cofactors of the elements: the determinants of the matrix without an element's row and column, with their signs:
/// det(A) A⁻ᵀ.
#[derive(Clone, Copy, Debug)]
struct Cofactors;

impl HostOp for Cofactors {
    const NAMES: Names = names!["cofactors"];

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>> {
        Ok(inputs[0].to_vec())
    }

    fn compute<S: Stored>(&self, inputs: &[Array<S>], out: &mut [S]) -> Result<()> {
        let x = &inputs[0];
        let (_, n) = square(self.name(), x.shape)?;
        each_matrix(out, n * n, 4 * n * n * n, |i, out| {
            write(cofactors(numbers(&x.elements[i * n * n..][..n * n])?, n)?, out);
            Ok(())
        })
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, _ctx: &Gradient) -> Result<Gradients> {
        Err(Error::Autograd("the cofactors of det have no gradient".into()))
    }
}

/// The cofactors of a row-major matrix: by its inverse, or by singular values where a pivot is small.
fn cofactors(matrix: Vec<f64>, n: usize) -> Result<Vec<f64>> {
    /// Pivots that are smaller than the largest one by this factor leave too few digits.
    const SMALL: f64 = 1e-6;
    let mut kept = zeros(n * n)?;
    kept.copy_from_slice(&matrix);
    let lu = Lu::new(matrix, n, Threads::One)?;
    let sizes = || lu.pivots().map(f64::abs);
    if sizes().fold(f64::INFINITY, f64::min) > SMALL * sizes().fold(0.0, f64::max) {
        let det = lu.pivots().product::<f64>() * lu.sign();
        let (mut x, mut transposed) = (zeros(n * n)?, zeros(n * n)?);
        lu.rows.iter().enumerate().for_each(|(i, &row)| x[i * n + row] = 1.0);
        lu.solve(&mut x, n);
        for (i, row) in x.chunks(n).enumerate() {
            row.iter().enumerate().for_each(|(j, x)| transposed[j * n + i] = det * x);
        }
        return Ok(transposed);
    }
    // A = U diag(s) Vᵀ: the cofactors are det(U) det(V) U diag(Π of the other s) Vᵀ.
    let Ok(Svd { u, s, v }) = Svd::new(&kept, [n, n])? else {
        kept.fill(f64::NAN);
        return Ok(kept);
    };
    let sign = |columns: &[f64]| -> Result<f64> {
        let lu = Lu::new(columns.to_vec(), n, Threads::One)?;
        Ok(lu.pivots().map(f64::signum).product::<f64>() * lu.sign())
    };
    let sign = sign(&u)? * sign(&v)?;
    kept.fill(0.0);
    for c in 0..n {
        let others: f64 = s.iter().enumerate().filter(|(i, _)| *i != c).map(|(_, s)| s).product();
        for i in 0..n {
            let factor = sign * others * u[c * n + i];
            kept[i * n..][..n].iter_mut().zip(&v[c * n..]).for_each(|(out, v)| *out += factor * v);
        }
    }
    Ok(kept)
}

/// The sign and the logarithm of the absolute value: `[.., 2]`.
#[derive(Clone, Copy, Debug)]
struct SignAndLog;

impl HostOp for SignAndLog {
    const NAMES: Names = names!["slogdet"];

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>> {
        Ok([square(self.name(), inputs[0])?.0, &[2]].concat())
    }

    fn compute<S: Stored>(&self, inputs: &[Array<S>], out: &mut [S]) -> Result<()> {
        factored(self.name(), &inputs[0], out, 2, |lu, out| {
            let sign = |x: f64| if x == 0.0 { x } else { x.signum() };
            let log: f64 = lu.pivots().map(|pivot| pivot.abs().ln()).sum();
            write([lu.pivots().map(sign).product::<f64>() * lu.sign(), log], out);
        })
    }

    fn saves(&self) -> Saves {
        Saves::Inputs
    }

    /// The gradient of log |det A| is A⁻ᵀ: Giles (2008), 2.2.4.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let none = "the logarithm of slogdet is −∞ for a singular matrix, and has no gradient";
        Ok(vec![Some(by_inverse(&ctx.inputs[0], &ctx.grad.select(-1, 1)?, none)?)])
    }
}

impl Tensor {
    /// Returns the determinants of square matrices: `[.., n, n]` → `[..]`, like `torch.linalg.det`. The determinant of
    /// a matrix without elements is 1.
    ///
    /// The gradient is also right for singular matrices. The product of many numbers is easily beyond the range of f32:
    /// [`slogdet`](Tensor::slogdet) returns its logarithm.
    ///
    /// **The host computes this, in f64.** On an adapter, the tensor is copied to the host and the result is copied
    /// back, which waits for the device. The first such copy of a process is logged. f64 tensors (on `cpu`) have no
    /// gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the matrices are not square; [`Error::DTypeMismatch`] unless they are f32 or f64.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::new([[[2.0, 1.0], [1.0, 3.0]], [[1.0, 2.0], [2.0, 4.0]]], None)?;
    /// assert_eq!(a.det()?.to_vec::<f32>()?, [5.0, 0.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn det(&self) -> Result<Tensor> {
        on_host("det", &[self], |x| host_op(Determinant, &[&x[0]]))
    }

    /// Returns the signs and the logarithms of the absolute values of determinants, like `torch.linalg.slogdet`.
    ///
    /// The square matrices are `[.., n, n]`, and both results are `[..]`. A sign is −1, 0 or 1. For a singular matrix,
    /// the sign is 0, and the logarithm is −∞.
    ///
    /// The logarithm has a gradient, except for singular matrices. **The host computes this**, as for
    /// [`det`](Tensor::det).
    ///
    /// # Errors
    /// Same as [`Tensor::det`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let (sign, log) = (Tensor::eye(100, None)? * -0.01)?.slogdet()?; // the determinant, 1e-200, is no f32
    /// assert_eq!(sign.item::<f32>()?, 1.0);
    /// assert!((log.item::<f32>()? + 460.517).abs() < 1e-3);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn slogdet(&self) -> Result<(Tensor, Tensor)> {
        let both = on_host("slogdet", &[self], |x| host_op(SignAndLog, &[&x[0]]))?;
        Ok((both.select(-1, 0)?.detach(), both.select(-1, 1)?))
    }
}
