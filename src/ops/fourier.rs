//! Fourier transforms (feature `fft`), by the crate `rustfft`. The host computes them ([`on_host`]).

use std::sync::Arc;

use anygpu_host::tasks::try_share_with;
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlanner};

use crate::error::{Error, Result};
use crate::ops::names::{Names, names};
use crate::ops::on_host::{Array, HostOp, Stored, host_op, on_host};
use crate::ops::{Gradient, Gradients, Saves};
use crate::shape::{Dim, dimension};
use crate::tensor::Tensor;

/// The kind of a transform of lines of numbers. The sign of the exponent is −1 from real to complex numbers, and 1 from
/// complex to real ones.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Complex to complex numbers; 1 is the sign of the exponent of an inverse transform.
    Complex { inverse: bool },
    /// n real numbers to the first n / 2 + 1 of n complex numbers. The others are the conjugates of these.
    FromReal { twice: bool },
    /// The first n / 2 + 1 complex numbers to n real ones.
    ToReal { twice: bool },
}

/// A transform of the last dimension of numbers, which are real, `[.., length]`, or complex, `[.., length, 2]`. It is
/// linear. Its transpose, which is the gradient, is another transform.
///
/// With `twice`, a number of one side also counts for its twin on the other side. The first number has no twin, nor has
/// the last one of an even n.
#[derive(Clone, Copy, Debug)]
struct Transform {
    name: &'static str,
    kind: Kind,
    /// The numbers of the transform. The input is cut or filled with zeros.
    n: usize,
    /// The length of the result, which is cut or filled alike.
    wanted: usize,
    scale: f64,
}

impl Transform {
    fn complex_input(self) -> bool {
        !matches!(self.kind, Kind::FromReal { .. })
    }

    fn complex_result(self) -> bool {
        !matches!(self.kind, Kind::ToReal { .. })
    }

    /// The numbers of the input that the transform reads.
    fn read(self) -> usize {
        if matches!(self.kind, Kind::ToReal { .. }) { self.n / 2 + 1 } else { self.n }
    }

    /// The numbers that it gives.
    fn given(self) -> usize {
        if matches!(self.kind, Kind::FromReal { .. }) { self.n / 2 + 1 } else { self.n }
    }

    /// The transpose, for an input of some length.
    fn transposed(self, length: usize) -> Transform {
        let kind = match self.kind {
            Kind::Complex { inverse } => Kind::Complex { inverse: !inverse },
            Kind::FromReal { twice } => Kind::ToReal { twice },
            Kind::ToReal { twice } => Kind::FromReal { twice },
        };
        Transform { kind, wanted: length, ..self }
    }

    fn is_inverse(self) -> bool {
        matches!(self.kind, Kind::Complex { inverse: true } | Kind::ToReal { .. })
    }

    /// Whether number k of one side stands for one of the other side too.
    fn has_twin(self, k: usize) -> bool {
        k != 0 && 2 * k != self.n
    }

    /// Transforms one line.
    fn line<S: Stored>(self, fft: &Arc<dyn Fft<f64>>, space: &mut Space, input: &[S], out: &mut [S]) {
        let Space { numbers, scratch } = space;
        let zero = Complex::new(0.0, 0.0);
        numbers.fill(zero);
        if self.complex_input() {
            let pairs = input.as_chunks::<2>().0.iter().map(|[re, im]| Complex::new(re.number(), im.number()));
            numbers.iter_mut().zip(pairs.take(self.read())).for_each(|(to, from)| *to = from);
        } else {
            numbers.iter_mut().zip(input).for_each(|(to, from)| to.re = from.number());
        }
        if let Kind::ToReal { twice } = self.kind {
            // Both sides, so that the sums of all are real: each half, unless they count twice.
            let share = if twice { 1.0 } else { 0.5 };
            for k in 0..=self.n / 2 {
                if self.has_twin(k) {
                    numbers[k] *= share;
                    numbers[self.n - k] = numbers[k].conj();
                } else {
                    numbers[k].im = 0.0;
                }
            }
        }
        fft.process_with_scratch(numbers, scratch);
        let given = numbers[..self.given()].iter().enumerate().map(|(k, number)| match self.kind {
            Kind::FromReal { twice: true } if self.has_twin(k) => number * (2.0 * self.scale),
            _ => number * self.scale,
        });
        let given = given.chain(std::iter::repeat(zero));
        if self.complex_result() {
            let pairs = out.as_chunks_mut::<2>().0.iter_mut();
            pairs.zip(given).for_each(|(out, number)| *out = [S::of(number.re), S::of(number.im)]);
        } else {
            out.iter_mut().zip(given).for_each(|(out, number)| *out = S::of(number.re));
        }
    }
}

/// What a thread transforms a line in.
struct Space {
    numbers: Vec<Complex<f64>>,
    scratch: Vec<Complex<f64>>,
}

fn room(count: usize) -> Result<Vec<Complex<f64>>> {
    let mut all = crate::device::cpu::with_room(count)?;
    all.resize(count, Complex::new(0.0, 0.0));
    Ok(all)
}

impl HostOp for Transform {
    const NAMES: Names = names!["fft", "ifft", "irfft", "rfft"];

    fn name(&self) -> &'static str {
        self.name
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>> {
        let numbers = inputs[0].len() - usize::from(self.complex_input());
        let mut shape = inputs[0][..numbers].to_vec();
        shape[numbers - 1] = self.wanted;
        shape.extend(self.complex_result().then_some(2));
        Ok(shape)
    }

    fn compute<S: Stored>(&self, inputs: &[Array<S>], out: &mut [S]) -> Result<()> {
        let x = &inputs[0];
        let words = |complex: bool| if complex { 2 } else { 1 };
        let line = self.wanted * words(self.complex_result());
        let rows = out.len() / line;
        let read = x.elements.len() / rows;
        // The plan of a length has about as many numbers.
        drop(room(self.n)?);
        let mut planner = FftPlanner::new();
        let fft = if self.is_inverse() { planner.plan_fft_inverse(self.n) } else { planner.plan_fft_forward(self.n) };
        let space = || Ok(Space { numbers: room(self.n)?, scratch: room(fft.get_inplace_scratch_len())? });
        let least = (1 << 13) / self.n;
        try_share_with(out.chunks_mut(line).enumerate(), least, space, |space, (i, out)| {
            self.line(&fft, space, &x.elements[i * read..][..read], out);
            Ok(())
        })
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let shape = ctx.inputs[0].shape();
        let length = shape[shape.len() - 1 - usize::from(self.complex_input())];
        Ok(vec![Some(host_op(self.transposed(length), &[ctx.grad])?)])
    }
}

/// Transforms one dimension. `n` gives the numbers of the transform, if they are asked for, by the length of the dimension.
fn transformed(
    name: &'static str,
    x: &Tensor,
    kind: Kind,
    dim: impl Dim,
    n: impl FnOnce(usize) -> usize,
    scale: fn(usize) -> f64,
) -> Result<Tensor> {
    let (shape, dim) = (x.shape(), dimension(name, dim, x.shape())?);
    let mut op = Transform { name, kind, n: 0, wanted: 0, scale: 1.0 };
    if op.complex_input() {
        let example = "stack([real, imaginary], -1) makes such a tensor";
        if *shape.last().unwrap_or(&0) != 2 {
            let what = "takes complex numbers, whose real and imaginary parts are a last dimension of 2";
            return Err(Error::argument(name, format!("{what}, and the shape is {shape:?}: Tensor::{example}")));
        }
        if dim + 1 == shape.len() {
            let what = format!("dimension {dim} of shape {shape:?} has the real and the imaginary parts");
            return Err(Error::argument(name, format!("{what}: the last dimension of the numbers is −2")));
        }
    }
    op.n = n(shape[dim]);
    if op.n == 0 {
        let what = format!("transforms at least one number, and dimension {dim} of shape {shape:?}");
        return Err(Error::argument(name, format!("{what} gives none: give a length n")));
    }
    (op.wanted, op.scale) = (op.given(), scale(op.n));
    let last = shape.len() - 1 - usize::from(op.complex_input());
    on_host(name, &[x], |x| {
        let out = host_op(op, &[&x[0].transpose(dim, last)?])?;
        out.transpose(dim, last)
    })
}

/// The factor of an inverse transform.
fn inverse_of(n: usize) -> f64 {
    1.0 / n as f64
}

impl Tensor {
    /// Returns the Fourier transforms of complex numbers along `dim`: `[.., m, .., 2]` → `[.., n, .., 2]`, like
    /// `torch.fft.fft`. Needs the feature `fft`.
    ///
    /// There is no complex element type: **the last dimension has the real and the imaginary parts**, in the layout of
    /// `torch.view_as_real`. It counts as a dimension, so PyTorch's dimension −1 of a complex tensor is −2 here. For
    /// real numbers, use [`rfft`](Tensor::rfft).
    ///
    /// yₖ = Σ xⱼ e^(−2πi jk / n). The sum is over the first n numbers; if there are fewer, zeros are appended. `None`
    /// is n = m. Any n is fast, also a prime. The result is not divided by n, which is PyTorch's norm `"backward"`. For
    /// the norm `"ortho"`, use `y.mul(1.0 / (n as f32).sqrt())`.
    ///
    /// Derivatives of every order are Fourier transforms. **The host computes this, in f64.** On an adapter, the tensor
    /// is copied to the host and the result is copied back, which waits for the device. The first such copy of a
    /// process is logged. f64 tensors (on `cpu`) have no gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the last dimension does not have size 2 or is `dim`, if there is no dimension
    /// `dim`, or if n is 0. [`Error::DTypeMismatch`] unless the tensor is f32 or f64. NaN and infinities are not an
    /// error; the result is NaN.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], None)?; // 1, i, 0
    /// let y = x.fft(None, 0)?;
    /// assert_eq!(y.i(0)?.to_vec::<f32>()?, [1.0, 1.0]);
    /// assert!(y.ifft(None, 0)?.allclose(&x, 1e-6, 1e-6)?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn fft(&self, n: Option<usize>, dim: impl Dim) -> Result<Tensor> {
        let kind = Kind::Complex { inverse: false };
        transformed("fft", self, kind, dim, |length| n.unwrap_or(length), |_| 1.0)
    }

    /// Returns the inverse Fourier transforms of complex numbers along `dim`: `[.., m, .., 2]` → `[.., n, .., 2]`, like
    /// `torch.fft.ifft`. Needs the feature `fft`.
    ///
    /// xⱼ = 1/n Σ yₖ e^(2πi jk / n). The sum is over the first n numbers; if there are fewer, zeros are appended.
    /// `None` is n = m. Everything else is as in [`fft`](Tensor::fft), whose example shows both: **the host computes
    /// it**.
    ///
    /// # Errors
    /// Same as [`fft`](Tensor::fft).
    pub fn ifft(&self, n: Option<usize>, dim: impl Dim) -> Result<Tensor> {
        let kind = Kind::Complex { inverse: true };
        transformed("ifft", self, kind, dim, |length| n.unwrap_or(length), inverse_of)
    }

    /// Returns the Fourier transforms of real numbers along `dim`: `[.., m, ..]` → `[.., n / 2 + 1, .., 2]`, like
    /// `torch.fft.rfft`. Needs the feature `fft`.
    ///
    /// A new last dimension has the real and the imaginary parts. The result has the first n / 2 + 1 of the n numbers
    /// of the transform; the other numbers are their conjugates. Everything else is as in [`fft`](Tensor::fft): **the
    /// host computes it**.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or if n is 0; [`Error::DTypeMismatch`] unless the
    /// tensor is f32 or f64.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1.0, 2.0, 3.0, 4.0], None)?;
    /// let y = x.rfft(None, -1)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0]]);
    /// assert_eq!(y.irfft(None, -2)?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    ///
    /// // The same, as the whole transform of complex numbers.
    /// let complex = Tensor::stack(&[&x, &x.zeros_like()?], -1)?;
    /// assert_eq!(complex.fft(None, -2)?.shape(), [4, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn rfft(&self, n: Option<usize>, dim: impl Dim) -> Result<Tensor> {
        let kind = Kind::FromReal { twice: false };
        transformed("rfft", self, kind, dim, |length| n.unwrap_or(length), |_| 1.0)
    }

    /// Returns real numbers from one side of their Fourier transform along `dim`: `[.., m, .., 2]` → `[.., n, ..]`,
    /// like `torch.fft.irfft`. Needs the feature `fft`.
    ///
    /// This is the inverse of [`rfft`](Tensor::rfft), whose example shows both. `None` is n = 2 (m − 1), an even
    /// number. If the number of real numbers was odd, give n. The imaginary part of the first number is not read, and
    /// for an even n, the imaginary part of the last number is not read either. Everything else is as in
    /// [`fft`](Tensor::fft): **the host computes it**.
    ///
    /// # Errors
    /// Same as [`fft`](Tensor::fft).
    pub fn irfft(&self, n: Option<usize>, dim: impl Dim) -> Result<Tensor> {
        let kind = Kind::ToReal { twice: true };
        transformed("irfft", self, kind, dim, |m| n.unwrap_or(2 * m.saturating_sub(1)), inverse_of)
    }
}
