//! Factorisations of matrices, and Fourier transforms.

use anygpu::{Device, Result, Tensor};

use super::{assert_case, assert_is, leaf, wave};
use crate::common::devices_in_turn;

/// A leaf, and a matrix of it: a wave alone has rank 2.
fn near(shape: &[usize], k: f64, device: &Device) -> Result<[Tensor; 2]> {
    let &[.., m, n] = shape else { panic!("a matrix") };
    let diagonal = Tensor::eye(m.max(n), device)?.narrow(0, 0, m)?.narrow(1, 0, n)?.mul(2.0)?;
    let x = leaf(shape, k, device)?;
    let matrix = x.add(&diagonal)?;
    Ok([x, matrix])
}

/// A function of matrices, with its name.
type Function = (&'static str, fn(&Tensor) -> Result<Tensor>);

#[test]
fn systems_and_factors() -> Result<()> {
    for d in &devices_in_turn() {
        let [a, matrix] = near(&[2, 3, 3], 60.0, d)?;
        let b = leaf(&[3, 2], 61.0, d)?;
        assert_case("solve", &matrix.solve(&b)?, &[("a", &a), ("b", &b)])?;
        let [a, matrix] = near(&[2, 3, 3], 60.0, d)?;
        let b = leaf(&[2, 3], 61.0, d)?;
        assert_case("solve vectors", &matrix.solve(&b)?, &[("a", &a), ("b", &b)])?;
        let functions: [Function; 3] =
            [("inv", Tensor::inv), ("det", Tensor::det), ("slogdet", |x| Ok(x.slogdet()?.1))];
        for (name, f) in functions {
            let [a, matrix] = near(&[2, 3, 3], 62.0, d)?;
            assert_case(name, &f(&matrix.neg()?)?, &[("a", &a)])?;
            assert_is("slogdet sign", &matrix.neg()?.slogdet()?.0)?;
        }
        let [_, matrix] = near(&[2, 4, 4], 63.0, d)?;
        let positive = matrix.matmul(&matrix.transpose(1, 2)?)?.detach().requires_grad();
        assert_case("cholesky", &positive.cholesky()?, &[("a", &positive)])?;
        for shape in [&[2, 4, 3][..], &[4, 4], &[2, 3, 5]] {
            let (m, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
            let [a, matrix] = near(shape, 64.0, d)?;
            assert_case(&format!("qr Q {m} {n}"), &matrix.qr()?.0, &[("a", &a)])?;
            let [a, matrix] = near(shape, 64.0, d)?;
            assert_case(&format!("qr R {m} {n}"), &matrix.qr()?.1, &[("a", &a)])?;
            let [a, matrix] = near(shape, 65.0, d)?;
            assert_case(&format!("svd S {m} {n}"), &matrix.svd()?.1, &[("a", &a)])?;
            let [a, matrix] = near(shape, 65.0, d)?;
            let (u, s, vt) = matrix.svd()?;
            let weights = wave(&[m.min(n)], 66.0, d)?.mul(&s)?;
            let joined = u.mul(&weights.unsqueeze(-2)?)?.matmul(&vt)?;
            assert_case(&format!("svd {m} {n}"), &joined, &[("a", &a)])?;
        }
    }
    Ok(())
}

#[cfg(feature = "fft")]
#[test]
fn fourier_transforms() -> Result<()> {
    for d in &devices_in_turn() {
        for n in [None, Some(3), Some(8)] {
            let text = n.map_or("None".to_owned(), |n: usize| n.to_string());
            for dim in [0, 1] {
                let case = |name: &str, shape: &[usize], k: f64, f: &dyn Fn(&Tensor) -> Result<Tensor>| {
                    let x = leaf(shape, k, d)?;
                    assert_case(&format!("{name} {text} {dim}"), &f(&x)?, &[("x", &x)])
                };
                case("fft", &[4, 5, 2], 70.0, &|x| x.fft(n, dim))?;
                case("ifft", &[4, 5, 2], 70.0, &|x| x.ifft(n, dim))?;
                case("rfft", &[4, 5], 71.0, &|x| x.rfft(n, dim))?;
                case("irfft", &[4, 5, 2], 72.0, &|x| x.irfft(n, dim))?;
            }
        }
    }
    Ok(())
}
