//! Systems of linear equations, and inverse matrices. The host computes them ([`on_host`]).

use anygpu_host::matmul::Threads;

use super::factor::lu::{Lu, back, forward};
use crate::error::{Error, Result};
use crate::ops::names::{Names, names};
use crate::ops::on_host::{Array, HostOp, Stored, each_matrix, host_op, numbers, on_host, the_matrix, write, zeros};
use crate::ops::{Gradient, Gradients, Saves};
use crate::shape::broadcast_shapes;
use crate::tensor::Tensor;

/// Matrices of at least so many rows are factored by all threads, if there is one of them.
const LARGE: usize = 256;

/// What a matrix of a system is known to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Square,
    /// Elements above the diagonal are not read.
    Lower,
    /// Elements below the diagonal are not read.
    Upper,
}

impl Kind {
    fn transposed(self) -> Kind {
        match self {
            Kind::Square => Kind::Square,
            Kind::Lower => Kind::Upper,
            Kind::Upper => Kind::Lower,
        }
    }
}

/// `A X = B`: A `[n, n]` or `[batch, n, n]`, B `[batch, n, k]`, with the same dimensions of the batch.
#[derive(Clone, Copy, Debug)]
struct Solve {
    kind: Kind,
}

/// Solves systems whose matrices are of a kind, on the host.
pub(super) fn solved(a: &Tensor, b: &Tensor, kind: Kind) -> Result<Tensor> {
    host_op(Solve { kind }, &[a, b])
}

/// Returns the transposes of matrices.
pub(super) fn transposed(x: &Tensor) -> Result<Tensor> {
    x.transpose(-1, -2)
}

/// Checks that a tensor is of square matrices, and returns the dimensions of its batch and their size.
pub(super) fn square<'a>(op: &'static str, shape: &'a [usize]) -> Result<(&'a [usize], usize)> {
    match shape {
        [batch @ .., m, n] if m == n => Ok((batch, *n)),
        _ => Err(Error::argument(op, format!("takes square matrices, [.., n, n], and the shape is {shape:?}"))),
    }
}

/// The threads for one of so many matrices `[n, n]`.
pub(super) fn threads(n: usize, matrices: usize) -> Threads {
    if n >= LARGE && matrices == 1 { Threads::All } else { Threads::One }
}

/// The error for a singular matrix.
pub(super) fn singular(op: &'static str, batch: &[usize], number: usize, pivot: usize) -> Error {
    let which = the_matrix(batch, number);
    let remedy = "add a small multiple of the identity matrix, or use svd, which takes every matrix";
    Error::argument(op, format!("{which} is singular: its pivot {pivot} is 0 ({remedy})"))
}

/// A matrix that is ready for solving.
enum Ready {
    Lu(Lu),
    Triangle(Vec<f64>),
}

impl Solve {
    fn ready<S: Stored>(self, a: &[S], n: usize, threads: Threads) -> Result<Result<Ready, usize>> {
        let matrix = numbers(a)?;
        let ready = match self.kind {
            Kind::Square => Ready::Lu(Lu::new(matrix, n, threads)?),
            _ => Ready::Triangle(matrix),
        };
        let zero = match &ready {
            Ready::Lu(lu) => lu.pivots().position(|pivot| pivot == 0.0),
            Ready::Triangle(matrix) => matrix.iter().step_by(n + 1).position(|pivot| *pivot == 0.0),
        };
        Ok(zero.map_or(Ok(ready), Err))
    }

    fn solve<S: Stored>(self, ready: &Ready, b: &[S], [n, k]: [usize; 2], out: &mut [S]) -> Result<()> {
        let mut x = zeros(n * k)?;
        let row = |i: usize| match ready {
            Ready::Lu(lu) => lu.rows[i],
            Ready::Triangle(_) => i,
        };
        for (i, x) in x.chunks_mut(k).enumerate() {
            x.iter_mut().zip(&b[row(i) * k..]).for_each(|(x, b)| *x = b.number());
        }
        match ready {
            Ready::Lu(lu) => lu.solve(&mut x, k),
            Ready::Triangle(matrix) if self.kind == Kind::Lower => forward(matrix, &mut x, [n, k], false),
            Ready::Triangle(matrix) => back(matrix, &mut x, [n, k]),
        }
        write(x, out);
        Ok(())
    }
}

impl HostOp for Solve {
    const NAMES: Names = names!["solve"];

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>> {
        Ok(inputs[1].to_vec())
    }

    fn compute<S: Stored>(&self, inputs: &[Array<S>], out: &mut [S]) -> Result<()> {
        let [a, b] = [&inputs[0], &inputs[1]];
        let [batch @ .., n, k] = b.shape else { return Err(Error::internal("systems are matrices")) };
        let (n, k) = (*n, *k);
        let of_zero = |i: usize| move |pivot| singular(self.name(), batch, i, pivot);
        if a.elements.len() == n * n {
            let ready = self.ready(a.elements, n, threads(n, 1))?.map_err(of_zero(0))?;
            return each_matrix(out, n * k, n * n * k, |i, out| {
                self.solve(&ready, &b.elements[i * n * k..], [n, k], out)
            });
        }
        each_matrix(out, n * k, n * n * (n + k), |i, out| {
            let ready = self.ready(&a.elements[i * n * n..][..n * n], n, Threads::One)?.map_err(of_zero(i))?;
            self.solve(&ready, &b.elements[i * n * k..], [n, k], out)
        })
    }

    fn saves(&self) -> Saves {
        Saves::OutputAnd(1)
    }

    /// With X = A⁻¹ B: the gradient of B is A⁻ᵀ g, and the gradient of A is −A⁻ᵀ g Xᵀ. M. B. Giles, "An extended
    /// collection of matrix derivative results for forward and reverse mode algorithmic differentiation" (2008), 2.2.3.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let of_b = solved(&transposed(&ctx.inputs[0])?, ctx.grad, self.kind.transposed())?;
        let of_a = |of_b: &Tensor| {
            let whole = of_b.matmul(&transposed(ctx.out)?)?.neg()?;
            match self.kind {
                Kind::Square => Ok(whole),
                Kind::Lower => whole.tril(0),
                Kind::Upper => whole.triu(0),
            }
        };
        let of_a = ctx.needs[0].then(|| of_a(&of_b)).transpose()?;
        Ok(vec![of_a, Some(of_b)])
    }
}

/// The solution of systems on the host: `b` is of vectors or of matrices, by PyTorch's rule.
fn solution(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (batch_a, n) = square("solve", a.shape())?;
    let vectors = b.rank() == 1 || b.shape() == &a.shape()[..a.rank() - 1];
    let columns = if vectors { b.unsqueeze(b.rank())? } else { b.clone() };
    let rule = "A is [.., n, n], and B [.., n, k], or vectors [.., n] with the dimensions before n of A";
    let wrong = || Error::shapes("solve", a.shape(), b.shape(), rule);
    let (batch_b, k) = match columns.shape() {
        [batch @ .., rows, k] if *rows == n => (batch, *k),
        _ => return Err(wrong()),
    };
    let batch = broadcast_shapes("solve", batch_a, batch_b).map_err(|_| wrong())?;
    let single = batch_a.iter().all(|size| *size == 1);
    let a = if single { a.reshape([n, n])? } else { a.broadcast_to([&batch[..], &[n, n]].concat())? };
    let x = solved(&a, &columns.broadcast_to([&batch[..], &[n, k]].concat())?, Kind::Square)?;
    if vectors { x.squeeze(-1) } else { Ok(x) }
}

impl Tensor {
    /// Returns the solution X of `A X = B`, where A is this tensor, like `torch.linalg.solve`.
    ///
    /// A is `[.., n, n]`, and B and X are `[.., n, k]`. Leading dimensions are a batch, and are broadcast. This is
    /// faster and more accurate than a product with [`inv`](Tensor::inv).
    ///
    /// B may also be vectors, and each vector is solved for. Its shape is then `[n]`, or `[.., n]` if that is the shape
    /// of A without its last dimension.
    ///
    /// **The host computes this, in f64.** On an adapter, both tensors are copied to the host and the result is copied
    /// back, which waits for the device. The first such copy of a process is logged. f64 tensors (on `cpu`) have no
    /// gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a matrix is not square, or is singular: a pivot is exactly 0. A nearly singular
    /// matrix has large and inaccurate results. [`Error::ShapeMismatch`]; [`Error::DeviceMismatch`];
    /// [`Error::DTypeMismatch`] unless both are f32 or both are f64. NaN and infinities are not an error; the result is
    /// NaN.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::new([[2.0, 1.0], [1.0, 3.0]], None)?;
    /// let b = Tensor::new([5.0, 10.0], None)?;
    /// let x = a.solve(&b)?; // 2 x + y = 5, x + 3 y = 10
    /// assert!(x.allclose(&Tensor::new([1.0, 3.0], None)?, 1e-6, 1e-6)?);
    ///
    /// let error = Tensor::ones([2, 2], None)?.solve(&b).unwrap_err();
    /// assert!(error.to_string().starts_with("solve: the matrix is singular"));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn solve(&self, b: &Tensor) -> Result<Tensor> {
        on_host("solve", &[self, b], |x| solution(&x[0], &x[1]))
    }

    /// Returns the inverses of square matrices: `[.., n, n]` → `[.., n, n]`, like `torch.linalg.inv`.
    ///
    /// For `A⁻¹ B`, use [`solve`](Tensor::solve): it is faster and more accurate. **The host computes this**, as in
    /// `solve`.
    ///
    /// # Errors
    /// Same as [`Tensor::solve`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::new([[2.0, 0.0], [1.0, 4.0]], None)?;
    /// assert_eq!(a.inv()?.to_vec2::<f32>()?, [[0.5, 0.0], [-0.125, 0.25]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn inv(&self) -> Result<Tensor> {
        on_host("inv", &[self], |x| {
            let a = &x[0];
            let (batch, n) = square("inv", a.shape())?;
            let identity = Tensor::eye(n, None)?;
            let identity = if a.dtype().is_long() { identity.to_dtype(a.dtype())? } else { identity };
            solved(a, &identity.broadcast_to([batch, &[n, n]].concat())?, Kind::Square)
        })
    }
}
