//! Factorisations beyond the cases of the table: what they are defined by, large and odd matrices, f64, and errors.

use anygpu::testing::assert_close;
use anygpu::{DType, Device, GradOptions, Result, Tensor, autocast, grad};

use crate::common::{devices, uniform};

fn matrix(shape: &[usize], seed: u64, device: &Device) -> Result<Tensor> {
    uniform(shape, -1.0, 1.0, seed).tensor(DType::F32, device)
}

/// Asserts that no element of `got` is further from `expected` than `most`.
#[track_caller]
fn assert_near(what: &str, got: &Tensor, expected: &Tensor, most: f64) -> Result<()> {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    let (got, expected) = (got.to_vec_f64()?, expected.to_vec_f64()?);
    for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert!((got - expected).abs() <= most, "{what}: element {at} is {got}, not {expected} ± {most}");
    }
    Ok(())
}

fn identity(n: usize, like: &Tensor) -> Result<Tensor> {
    Tensor::eye(n, like.device())?.to_dtype(like.dtype())
}

/// Checks U diag(S) Vᵀ = A, and what the factors are, relative to the largest element.
fn assert_svd(what: &str, a: &Tensor, most: f64) -> Result<()> {
    let ([m, n], (u, s, vt)) = ([a.shape()[0], a.shape()[1]], a.svd()?);
    let k = m.min(n);
    assert_eq!((u.shape(), s.shape(), vt.shape()), (&[m, k][..], &[k][..], &[k, n][..]), "{what}");
    let scale = a.to_vec_f64()?.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let values = s.to_vec_f64()?;
    assert!(values.windows(2).all(|w| w[0] >= w[1]) && values.iter().all(|s| *s >= 0.0), "{what}: {values:?}");
    assert_near(what, &u.t()?.matmul(&u)?, &identity(k, a)?, most)?;
    assert_near(what, &vt.matmul(&vt.t()?)?, &identity(k, a)?, most)?;
    let product =
        u.matmul(&Tensor::from_f64(&diagonal(&values), [k, k], None)?.to_dtype(a.dtype())?.to(a.device())?)?;
    assert_near(what, &product.matmul(&vt)?, a, most * scale * (m.max(n) as f64).sqrt())
}

fn diagonal(values: &[f64]) -> Vec<f64> {
    let k = values.len();
    (0..k * k).map(|at| if at / k == at % k { values[at / k] } else { 0.0 }).collect()
}

#[test]
fn large_matrices_are_factored() -> Result<()> {
    for device in devices() {
        // More columns than a block has, and more rows than one thread factors.
        for n in [65, 130, 260] {
            if n == 260 && !device.is_cpu() {
                continue;
            }
            let a = matrix(&[n, n], 1, &device)?;
            let b = matrix(&[n, 3], 2, &device)?;
            assert_near("solve", &a.matmul(&a.solve(&b)?)?, &b, 2e-3)?;
            assert_near("inv", &a.matmul(&a.inv()?)?, &identity(n, &a)?, 5e-3)?;
            let (q, r) = a.qr()?;
            assert_near("qr", &q.matmul(&r)?, &a, 1e-5)?;
            assert_near("qr", &q.t()?.matmul(&q)?, &identity(n, &a)?, 1e-5)?;
            let positive = a.matmul(&a.t()?)?.add(&identity(n, &a)?)?;
            let l = positive.cholesky()?;
            assert_near("cholesky", &l.matmul(&l.t()?)?, &positive, 1e-3)?;
            let (sign, log) = positive.slogdet()?;
            let expected = l.to_vec2::<f32>()?.iter().enumerate().map(|(i, row)| 2.0 * row[i].ln()).sum::<f32>();
            assert_eq!(sign.item::<f32>()?, 1.0);
            assert!((log.item::<f32>()? - expected).abs() < 1e-2, "{log} {expected}");
        }
    }
    Ok(())
}

/// Elements by a random number, their row and their column, with a name.
type Kind = (&'static str, fn(f64, usize, usize) -> f64);

/// Matrices of all kinds, also without full rank, of which other algorithms' singular values are wrong.
#[test]
fn singular_values_of_every_matrix() -> Result<()> {
    let kinds: &[Kind] = &[
        ("any", |x, _, _| x),
        ("whole", |x, _, _| (2.0 * x).round()),
        ("sparse", |x, _, _| if x > 0.3 { x } else { 0.0 }),
        ("ones", |_, _, _| 1.0),
        ("zeros", |_, _, _| 0.0),
        ("rank 2", |_, i, j| (i as f64 + 1.0) * (j as f64 - 2.0) + (i as f64).cos() * (j as f64).sin()),
        ("graded", |x, i, _| x * 10f64.powi(-4 * i as i32)),
        ("wide range", |x, _, _| 10f64.powf(12.0 * x)),
        ("beyond f32", |x, _, _| 10f64.powf(150.0 * x)),
        ("two diagonals", |x, i, j| if i == j || i + 1 == j { (3.0 * x).round() } else { 0.0 }),
        ("permutation", |_, i, j| f64::from(u8::from((i + 2) % 5 == j))),
        ("small", |x, _, _| x * 1e-300),
        ("large", |x, _, _| x * 1e300),
    ];
    let mut seed = 0;
    for (name, kind) in kinds {
        for [m, n] in [[1, 1], [1, 4], [4, 1], [2, 8], [5, 5], [9, 6], [6, 9], [12, 12], [30, 7]] {
            seed += 1;
            let x = uniform(&[m, n], -1.0, 1.0, seed).data;
            let values: Vec<f64> = x.iter().enumerate().map(|(at, x)| kind(*x, at / n, at % n)).collect();
            let what = format!("{name} {m} × {n}");
            assert_svd(&what, &Tensor::from_f64(&values, [m, n], None)?, 1e-13)?;
            if !matches!(*name, "beyond f32" | "small" | "large") {
                assert_svd(&what, &Tensor::from_f64(&values, [m, n], None)?.to_dtype(DType::F32)?, 2e-6)?;
            }
        }
    }
    // The product with a diagonal matrix of 1e300 is beyond f64 above, unless scaled: so are the squares in QR.
    for scale in [1e-300, 1e300] {
        let a = Tensor::from_f64(&[3.0 * scale, 0.5 * scale, 4.0 * scale, 2.0 * scale], [2, 2], None)?;
        let r = a.qr()?.1.to_vec_f64()?;
        assert!((r[0] / scale + 5.0).abs() < 1e-12, "{r:?}");
    }
    for device in devices() {
        let a = matrix(&[2, 3, 4, 5], 9, &device)?;
        let (u, s, vt) = a.svd()?;
        assert_eq!((u.shape(), s.shape(), vt.shape()), (&[2, 3, 4, 4][..], &[2, 3, 4][..], &[2, 3, 4, 5][..]));
        assert_near("batch", &u.mul(&s.unsqueeze(-2)?)?.matmul(&vt)?, &a, 1e-5)?;
    }
    Ok(())
}

#[test]
fn f64_has_its_digits_and_no_gradient() -> Result<()> {
    let of = |shape: &[usize], seed: u64| Tensor::from_f64(&uniform(shape, -1.0, 1.0, seed).data, shape, None);
    let (a, b) = (of(&[2, 9, 9], 4)?, of(&[2, 9, 2], 5)?);
    let unit = identity(9, &a)?.broadcast_to([2, 9, 9])?;
    assert_near("solve", &a.matmul(&a.solve(&b)?)?, &b, 1e-11)?;
    assert_near("inv", &a.matmul(&a.inv()?)?, &unit, 1e-11)?;
    let (q, r) = a.qr()?;
    assert_near("qr", &q.matmul(&r)?, &a, 1e-14)?;
    let (sign, log) = a.slogdet()?;
    let det = a.det()?.to_vec_f64()?;
    for (i, det) in det.iter().enumerate() {
        let other = sign.to_vec_f64()?[i] * log.to_vec_f64()?[i].exp();
        assert!((det - other).abs() < 1e-12 * det.abs(), "{det} {other}");
    }
    let positive = a.matmul(&a.transpose(1, 2)?)?;
    let l = positive.cholesky()?;
    assert_eq!(l.dtype(), DType::F64);
    assert_near("cholesky", &l.matmul(&l.transpose(1, 2)?)?, &positive, 1e-13)?;
    let tracked = a.requires_grad();
    let errors =
        [tracked.solve(&b).map(drop), tracked.det().map(drop), tracked.svd().map(drop), tracked.qr().map(drop)];
    for error in errors {
        assert!(error.unwrap_err().to_string().contains("f64 has no gradient"));
    }
    let mixed = a.solve(&b.to_dtype(DType::F32)?).unwrap_err().to_string();
    assert!(mixed.starts_with("solve: expected a tensor of f64, got f32"), "{mixed}");
    Ok(())
}

#[test]
fn errors_name_the_matrix_and_a_remedy() -> Result<()> {
    for device in devices() {
        let message =
            |result: Result<Tensor>| result.map_or_else(|error| error.to_string(), |x| format!("no error: {x}"));
        let mut values = vec![0.0; 2 * 2 * 4];
        values.chunks_mut(4).for_each(|m| m.copy_from_slice(&[2.0, 1.0, 1.0, 2.0]));
        values[8..12].copy_from_slice(&[1.0, 2.0, 2.0, 4.0]);
        let a = Tensor::from_vec(values, [2, 2, 2, 2], &device)?;
        let b = Tensor::ones([2, 1], &device)?;
        let remedy = "is singular: its pivot 1 is 0 (add a small multiple of the identity matrix, or use svd, which takes every matrix)";
        assert_eq!(message(a.solve(&b)), format!("solve: matrix [1, 0] of the batch {remedy}"));
        assert_eq!(message(a.i((1, 0))?.inv()), format!("inv: the matrix {remedy}"));
        let text = message((a * -1.0)?.cholesky());
        assert!(
            text.starts_with(
                "cholesky: matrix [0, 0] of the batch is not positive-definite: its leading minor of order 1"
            ),
            "{text}"
        );
        let wide = Tensor::ones([2, 3], &device)?;
        assert_eq!(message(wide.det()), "det: takes square matrices, [.., n, n], and the shape is [2, 3]");
        let vectors = message(Tensor::eye(3, &device)?.solve(&b));
        assert!(vectors.starts_with("shape mismatch in solve: [3, 3] and [2, 1]: A is [.., n, n], and B"), "{vectors}");
        // NaN: an error where PyTorch has one, and NaN elsewhere.
        for bad in [f32::NAN, f32::INFINITY] {
            let x = Tensor::new([[1.0, 2.0], [bad, 3.0]], &device)?;
            assert_eq!(x.svd().unwrap_err().to_string(), "svd: the matrix has an element that is NaN or infinite");
            assert!(message(x.tril(0)?.cholesky()).contains("not positive-definite"));
            assert!(x.qr()?.0.isnan()?.any_all()?.item::<bool>()?);
            let det = x.det()?.item::<f32>()?;
            assert!(!det.is_finite() || bad.is_infinite(), "{det}");
        }
        let x = Tensor::new([[f32::NAN, 2.0], [1.0, 3.0]], &device)?;
        assert!(x.solve(&b)?.isnan()?.all_all()?.item::<bool>()?);
        assert!(x.inv()?.isnan()?.any_all()?.item::<bool>()?);
        let halves = Tensor::eye(2, &device)?.to_dtype(DType::F16)?;
        assert_eq!(
            message(halves.inv()),
            "inv: expected a tensor of f32, or of f64 on cpu, got f16 (convert it with .to_dtype())"
        );
        assert_eq!(autocast(DType::F16, || halves.inv())?.dtype(), DType::F32);
    }
    Ok(())
}

#[test]
fn empty_matrices() -> Result<()> {
    for device in devices() {
        let none = Tensor::zeros([0, 0], &device)?;
        assert_eq!(none.det()?.item::<f32>()?, 1.0);
        let (sign, log) = none.slogdet()?;
        assert_eq!((sign.item::<f32>()?, log.item::<f32>()?), (1.0, 0.0));
        assert_eq!((none.inv()?.shape(), none.cholesky()?.shape()), (&[0, 0][..], &[0, 0][..]));
        let (u, s, vt) = Tensor::zeros([3, 0], &device)?.svd()?;
        assert_eq!((u.shape(), s.shape(), vt.shape()), (&[3, 0][..], &[0][..], &[0, 0][..]));
        let (q, r) = Tensor::zeros([4, 0, 2], &device)?.qr()?;
        assert_eq!((q.shape(), r.shape()), (&[4, 0, 0][..], &[4, 0, 2][..]));
        assert_eq!(Tensor::zeros([2, 0, 0], &device)?.solve(&Tensor::zeros([2, 0, 3], &device)?)?.shape(), [2, 0, 3]);
    }
    Ok(())
}

/// Equal singular values: the gradient of their sum is U Vᵀ, whatever the vectors are.
#[test]
fn gradients_where_others_have_none() -> Result<()> {
    for device in devices() {
        let a = (Tensor::eye(3, &device)? * 2.0)?.requires_grad();
        a.svd()?.1.sum_all()?.backward()?;
        assert_near("sum of S", &a.grad().unwrap(), &Tensor::eye(3, &device)?, 1e-6)?;
        let zero = Tensor::zeros([2, 3], &device)?.requires_grad();
        zero.svd()?.1.square()?.sum_all()?.backward()?;
        assert_near("squares of S", &zero.grad().unwrap(), &Tensor::zeros([2, 3], &device)?, 0.0)?;
        // The cofactors of a matrix of rank n − 1.
        let a = Tensor::new([[1.0, 2.0], [2.0, 4.0]], &device)?.requires_grad();
        a.det()?.backward()?;
        let expected = Tensor::new([[4.0, -2.0], [-2.0, 1.0]], &device)?;
        assert_near("det", &a.grad().unwrap(), &expected, 1e-6)?;
        let log = a.slogdet()?.1.backward().unwrap_err().to_string();
        assert!(log.contains("slogdet is −∞ for a singular matrix"), "{log}");
        let twice = grad(&a.det()?, &[&a], &GradOptions::new().create_graph()).unwrap_err().to_string();
        assert!(twice.contains("det has no gradient where a matrix is singular"), "{twice}");
        let dependent = zero.t()?.qr()?.1.sum_all()?.backward().unwrap_err().to_string();
        assert!(dependent.contains("qr has no gradient where the first columns"), "{dependent}");
        let x = Tensor::new([[2.0, 1.0], [1.0, 3.0]], &device)?;
        let b = Tensor::try_from([5.0, 10.0])?.to(&device)?;
        assert_close(&x.solve(&b)?, &Tensor::try_from([1.0, 3.0])?);
    }
    Ok(())
}
