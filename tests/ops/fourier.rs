//! Fourier transforms against their sums, with gradients of first and second order.

use std::f64::consts::PI;

use anygpu::{DType, Device, GradOptions, Result, Tensor, grad};

use crate::common::{Nd, devices, uniform};

/// Complex numbers, as pairs.
type Line = Vec<[f64; 2]>;

/// The sums of n numbers, of which some are given.
fn sums(x: &[[f64; 2]], n: usize, sign: f64, scale: f64) -> Line {
    let term = |k: usize, j: usize, [re, im]: [f64; 2]| {
        let (sin, cos) = (sign * 2.0 * PI * (j * k % n) as f64 / n as f64).sin_cos();
        [re * cos - im * sin, re * sin + im * cos]
    };
    let sum = |k: usize| {
        let terms = x.iter().take(n).enumerate().map(|(j, x)| term(k, j, *x));
        terms.fold([0.0; 2], |[re, im], [a, b]| [re + scale * a, im + scale * b])
    };
    (0..n).map(sum).collect()
}

/// Replaces each line along `dim`, of numbers with a last dimension of `from` parts, by `f` of it, with `to` parts.
fn lines(x: &Nd, dim: usize, from: usize, to: usize, f: impl Fn(&[[f64; 2]]) -> Line) -> Nd {
    let numbers = if from == 2 { &x.shape[..x.shape.len() - 1] } else { &x.shape[..] };
    let (outer, length, inner) =
        (numbers[..dim].iter().product::<usize>(), numbers[dim], numbers[dim + 1..].iter().product::<usize>());
    let mut results = Vec::new();
    for a in 0..outer {
        for b in 0..inner {
            let number = |j: usize| {
                let at = ((a * length + j) * inner + b) * from;
                [x.data[at], if from == 2 { x.data[at + 1] } else { 0.0 }]
            };
            results.push(f(&(0..length).map(number).collect::<Line>()));
        }
    }
    let given = results[0].len();
    let mut shape = numbers.to_vec();
    shape[dim] = given;
    let count = outer * given * inner;
    let mut data = vec![0.0; count * to];
    for (line, result) in results.iter().enumerate() {
        for (k, number) in result.iter().enumerate() {
            let at = ((line / inner * given + k) * inner + line % inner) * to;
            data[at..at + to].copy_from_slice(&number[..to]);
        }
    }
    if to == 2 {
        shape.push(2);
    }
    Nd::new(&shape, data)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Fft,
    Ifft,
    Rfft,
    Irfft,
}

const KINDS: [Kind; 4] = [Kind::Fft, Kind::Ifft, Kind::Rfft, Kind::Irfft];

impl Kind {
    fn parts(self) -> [usize; 2] {
        match self {
            Kind::Rfft => [1, 2],
            Kind::Irfft => [2, 1],
            _ => [2, 2],
        }
    }

    fn run(self, x: &Tensor, n: Option<usize>, dim: usize) -> Result<Tensor> {
        match self {
            Kind::Fft => x.fft(n, dim),
            Kind::Ifft => x.ifft(n, dim),
            Kind::Rfft => x.rfft(n, dim),
            Kind::Irfft => x.irfft(n, dim),
        }
    }

    fn expected(self, x: &Nd, n: Option<usize>, dim: usize) -> Nd {
        let length = x.shape[dim];
        let [from, to] = self.parts();
        lines(x, dim, from, to, |line| match self {
            Kind::Fft => sums(line, n.unwrap_or(length), -1.0, 1.0),
            Kind::Ifft => sums(line, n.unwrap_or(length), 1.0, 1.0 / n.unwrap_or(length) as f64),
            Kind::Rfft => {
                let n = n.unwrap_or(length);
                sums(line, n, -1.0, 1.0)[..n / 2 + 1].to_vec()
            }
            Kind::Irfft => {
                let n = n.unwrap_or(2 * (length - 1));
                let side = |k: usize| line.get(k).copied().unwrap_or([0.0; 2]);
                let number = |k: usize| match k {
                    0 => [side(0)[0], 0.0],
                    k if 2 * k == n => [side(k)[0], 0.0],
                    k if 2 * k < n => side(k),
                    k => [side(n - k)[0], -side(n - k)[1]],
                };
                sums(&(0..n).map(number).collect::<Line>(), n, 1.0, 1.0 / n as f64)
            }
        })
    }

    /// The shape of an input of numbers.
    fn shape(self, numbers: &[usize]) -> Vec<usize> {
        if self.parts()[0] == 2 { [numbers, &[2]].concat() } else { numbers.to_vec() }
    }
}

#[track_caller]
fn assert_near(what: &str, got: &Tensor, expected: &Nd, most: f64) -> Result<()> {
    assert_eq!(got.shape(), expected.shape, "{what}");
    for (at, (got, expected)) in got.to_vec_f64()?.iter().zip(&expected.data).enumerate() {
        assert!((got - expected).abs() <= most, "{what}: element {at} is {got}, not {expected} ± {most}");
    }
    Ok(())
}

#[test]
fn transforms_are_their_sums() -> Result<()> {
    for device in devices() {
        let adapter = !device.is_cpu();
        for kind in KINDS {
            for length in [1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 64, 97, 100, 127, 128, 210, 257] {
                if (adapter && length > 17) || (kind == Kind::Irfft && length == 1) {
                    continue;
                }
                let x = uniform(&kind.shape(&[2, length]), -1.0, 1.0, length as u64);
                let what = format!("{kind:?} of {length} on {device}");
                let got = kind.run(&x.tensor(DType::F32, &device)?, None, 1)?;
                assert_eq!(got.device(), &device);
                assert_near(&what, &got, &kind.expected(&x, None, 1), 1e-6 * length as f64)?;
                if !adapter {
                    let wide = Tensor::from_f64(&x.data, x.shape.clone(), &device)?;
                    let got = kind.run(&wide, None, 1)?;
                    assert_eq!(got.dtype(), DType::F64);
                    assert_near(&what, &got, &kind.expected(&x, None, 1), 1e-14 * length as f64)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn every_dimension_length_and_layout() -> Result<()> {
    for device in devices() {
        for kind in KINDS {
            for n in [None, Some(1), Some(2), Some(3), Some(4), Some(5), Some(8), Some(11)] {
                for dim in 0..3 {
                    let x = uniform(&kind.shape(&[3, 4, 5]), -1.0, 1.0, 9);
                    let expected = kind.expected(&x, n, dim);
                    let whole = x.tensor(DType::F32, &device)?;
                    let what = format!("{kind:?} n {n:?} dim {dim} on {device}");
                    assert_near(&what, &kind.run(&whole, n, dim)?, &expected, 1e-5)?;
                    // The same elements, transposed in memory.
                    let apart = whole.transpose(0, 2)?.contiguous()?.transpose(0, 2)?;
                    assert_near(&what, &kind.run(&apart, n, dim)?, &expected, 1e-5)?;
                }
            }
        }
        let none = Tensor::zeros([0, 6], &device)?.rfft(None, -1)?;
        assert_eq!(none.shape(), [0, 4, 2]);
        let x = Tensor::zeros([2, 3], &device)?;
        assert_eq!(x.rfft(None, -1)?.irfft(Some(3), -2)?.shape(), [2, 3]);
    }
    Ok(())
}

/// Transforms are linear: the gradient of Σ w ∘ y is the transpose times w, and has that of the transpose again.
#[test]
fn gradients_of_every_order() -> Result<()> {
    let weights = |shape: &[usize], device: &Device| uniform(shape, -1.0, 1.0, 77).tensor(DType::F32, device);
    for device in devices() {
        for kind in KINDS {
            for (length, n) in
                [(4, None), (5, None), (6, Some(4)), (3, Some(6)), (5, Some(7)), (2, Some(1)), (7, Some(5))]
            {
                let x = uniform(&kind.shape(&[2, length]), -1.0, 1.0, 5);
                let what = format!("{kind:?} of {length}, n {n:?} on {device}");
                let leaf = x.tensor(DType::F32, &device)?.requires_grad();
                // Cubes, so that the second gradient is not 0.
                let y = kind.run(&leaf, n, 1)?;
                let loss = y.pow(3)?.mul(&weights(y.shape(), &device)?)?.sum_all()?;
                let first = grad(&loss, &[&leaf], &GradOptions::new().create_graph())?.remove(0);
                let v = weights(first.shape(), &device)?;
                let second = grad(&first.mul(&v)?.sum_all()?, &[&leaf], &GradOptions::new())?.remove(0);
                let w = uniform(y.shape(), -1.0, 1.0, 77).data;
                let of = |moved: &Nd| kind.expected(moved, n, 1).data;
                // The column of the matrix of each element.
                let column = |at: usize| {
                    let mut unit = Nd::from_fn(&x.shape, |_| 0.0);
                    unit.data[at] = 1.0;
                    of(&unit)
                };
                let columns: Vec<Vec<f64>> = (0..x.data.len()).map(column).collect();
                let (y, along) = (of(&x), of(&uniform(&x.shape, -1.0, 1.0, 77)));
                let sum =
                    |f: &dyn Fn(usize) -> f64, column: &[f64]| column.iter().enumerate().map(|(i, c)| c * f(i)).sum();
                let of_first = |i: usize| 3.0 * w[i] * y[i] * y[i];
                let of_second = |i: usize| 6.0 * w[i] * y[i] * along[i];
                let expected =
                    |f: &dyn Fn(usize) -> f64| Nd::new(&x.shape, columns.iter().map(|c| sum(f, c)).collect());
                assert_near(&what, &first, &expected(&of_first), 1e-3)?;
                assert_near(&format!("second gradient, {what}"), &second, &expected(&of_second), 1e-3)?;
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_no_number_stays_so_and_errors_say_why() -> Result<()> {
    for device in devices() {
        let x = Tensor::new([[1.0, f32::NAN, 3.0], [1.0, 2.0, 3.0], [f32::INFINITY, 2.0, 3.0]], &device)?;
        let real_parts = x.rfft(None, 1)?.select(-1, 0)?.isfinite()?.to_vec2::<bool>()?;
        assert_eq!(real_parts, [[false; 2], [true; 2], [false; 2]]);
        let message = |result: Result<Tensor>| result.map_or_else(|error| error.to_string(), |_| "no error".to_owned());
        assert!(
            message(x.fft(None, 0))
                .starts_with("fft: takes complex numbers, whose real and imaginary parts are a last")
        );
        let pairs = Tensor::zeros([4, 2], &device)?;
        assert!(
            message(pairs.ifft(None, -1)).contains("dimension 1 of shape [4, 2] has the real and the imaginary parts")
        );
        assert!(message(pairs.rfft(Some(0), 0)).contains("give a length n"));
        let one = Tensor::zeros([1, 2], &device)?;
        assert!(message(one.irfft(None, 0)).contains("dimension 0 of shape [1, 2] gives none: give a length n"));
        assert!(message(Tensor::zeros([0, 2], &device)?.fft(None, 0)).contains("give a length n"));
        assert!(message(x.rfft(None, 2)).contains("dimension 2 is out of range"));
        let halves = x.to_dtype(DType::F16)?;
        assert!(message(halves.rfft(None, 1)).starts_with("rfft: expected a tensor of f32, or of f64 on cpu, got f16"));
        for absurd in [usize::MAX, usize::MAX / 2, 1 << 50] {
            assert!(x.rfft(Some(absurd), 1).is_err() && pairs.fft(Some(absurd), 0).is_err());
            assert!(pairs.irfft(Some(absurd), 0).is_err());
        }
    }
    let tracked = Tensor::from_f64(&[1.0, 2.0], 2, None)?.requires_grad();
    assert!(tracked.rfft(None, 0).unwrap_err().to_string().contains("f64 has no gradient"));
    Ok(())
}
