//! Arithmetic of `f64` on `cpu`.

use anygpu::nn::{self, Module};
use anygpu::{DType, Error, Result, Tensor, s};

use super::refused;

const DOUBLES: [f64; 14] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    2.0,
    -3.75,
    1e-200,
    9_007_199_254_740_993.0,
    1e200,
    f64::MIN_POSITIVE,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|v| if v.is_nan() { f64::NAN.to_bits() } else { v.to_bits() }).collect()
}

#[track_caller]
fn same(got: &Tensor, expected: &[f64]) {
    assert_eq!(got.dtype(), DType::F64);
    let got = got.to_vec_f64().unwrap();
    assert!(bits(&got) == bits(expected), "{got:?}\n{expected:?}");
}

type Two<T> = fn(T, T) -> T;
type Tensors = fn(&Tensor, &Tensor) -> Result<Tensor>;

#[test]
fn doubles_meet_and_compare() -> Result<()> {
    let rows: &[(Tensors, Two<f64>)] = &[
        (|a, b| a.add(b), |x, y| x + y),
        (|a, b| a.sub(b), |x, y| x - y),
        (|a, b| a.mul(b), |x, y| x * y),
        (|a, b| a.div(b), |x, y| x / y),
        (|a, b| a.fmod(b), |x, y| x % y),
        (|a, b| a.pow(b), f64::powf),
        (|a, b| a.atan2(b), f64::atan2),
        (|a, b| a.maximum(b), |x, y| if x > y || x.is_nan() { x } else { y }),
        (|a, b| a.minimum(b), |x, y| if x < y || x.is_nan() { x } else { y }),
        (|a, b| a.div_trunc(b), |x, y| (x / y).trunc()),
    ];
    let (a, b) = (Tensor::from_f64(&DOUBLES, [14, 1], None)?, Tensor::from_f64(&DOUBLES, [14], None)?);
    for (op, f) in rows {
        same(&op(&a, &b)?, &DOUBLES.iter().flat_map(|&x| DOUBLES.map(|y| f(x, y))).collect::<Vec<_>>());
        // f64 is the widest type.
        same(&op(&b, &Tensor::full([1], 3u8, None)?)?, &DOUBLES.map(|x| f(x, 3.0)));
        same(&op(&Tensor::full([1], 0.1f32, None)?, &b)?, &DOUBLES.map(|x| f(f64::from(0.1f32), x)));
    }
    same(&b.add(0.1)?, &DOUBLES.map(|x| x + 0.1));
    same(&b.rem(2)?, &DOUBLES.map(|x| if x % 2.0 < 0.0 { x % 2.0 + 2.0 } else { x % 2.0 }));
    same(&b.div_floor(2)?, &DOUBLES.map(|x| if x.is_infinite() { f64::NAN } else { (x / 2.0).floor() }));
    let lt: Vec<bool> = DOUBLES.iter().flat_map(|x| DOUBLES.map(|y| *x < y)).collect();
    assert_eq!(a.lt(&b)?.to_vec::<bool>()?, lt);
    assert_eq!(b.ne(&b)?.to_vec::<bool>()?, DOUBLES.map(f64::is_nan));
    same(&b.ge(0)?.where_cond(&b, 0.25)?, &DOUBLES.map(|x| if x >= 0.0 { x } else { 0.25 }));
    refused(b.bitwise_and(&b), &["bitwise_and", "integers", "f64"]);
    let y = b.copy()?;
    y.add_(0.1)?;
    same(&y, &DOUBLES.map(|x| x + 0.1));
    Ok(())
}

/// A function of tensors, and that of numbers.
type One = (fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64);

#[test]
fn functions_of_doubles_are_of_64_bits() -> Result<()> {
    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }
    let rows: &[One] = &[
        (|x| x.neg(), |x| -x),
        (|x| x.abs(), f64::abs),
        (|x| x.square(), |x| x * x),
        (|x| x.recip(), |x| 1.0 / x),
        (|x| x.exp(), f64::exp),
        (|x| x.exp2(), f64::exp2),
        (|x| x.expm1(), f64::exp_m1),
        (|x| x.log(), f64::ln),
        (|x| x.log2(), f64::log2),
        (|x| x.log1p(), f64::ln_1p),
        (|x| x.sqrt(), f64::sqrt),
        (|x| x.rsqrt(), |x| 1.0 / x.sqrt()),
        (|x| x.sin(), f64::sin),
        (|x| x.cos(), f64::cos),
        (|x| x.tan(), f64::tan),
        (|x| x.asin(), f64::asin),
        (|x| x.acos(), f64::acos),
        (|x| x.atan(), f64::atan),
        (|x| x.sinh(), f64::sinh),
        (|x| x.cosh(), f64::cosh),
        (|x| x.asinh(), f64::asinh),
        (|x| x.acosh(), f64::acosh),
        (|x| x.atanh(), f64::atanh),
        (|x| x.tanh(), f64::tanh),
        (|x| x.sigmoid(), sigmoid),
        (|x| x.silu(), |x| x * sigmoid(x)),
        (|x| x.floor(), f64::floor),
        (|x| x.ceil(), f64::ceil),
        (|x| x.round(), f64::round_ties_even),
        (|x| x.trunc(), f64::trunc),
        (|x| x.relu(), |x| x.max(0.0)),
        (|x| x.relu6(), |x| x.clamp(0.0, 6.0)),
        (|x| x.clamp(Some(-0.5), None), |x| x.max(-0.5)),
        (|x| x.leaky_relu(0.25), |x| if x > 0.0 { x } else { 0.25 * x }),
        (|x| x.elu(0.5), |x| if x > 0.0 { x } else { 0.5 * x.exp_m1() }),
        (|x| x.softplus(1.0, 20.0), |x| x.exp().ln_1p()),
        (|x| x.log_sigmoid(), |x| -(-x).exp().ln_1p()),
        (|x| x.mish(), |x| x * x.exp().ln_1p().tanh()),
        (|x| x.hardswish(), |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
        (|x| x.hardsigmoid(), |x| (x + 3.0).clamp(0.0, 6.0) / 6.0),
        (|x| x.softsign(), |x| x / (1.0 + x.abs())),
        (|x| x.sign(), |x| if x == 0.0 { 0.0 } else { x.signum() }),
    ];
    let values: Vec<f64> = (-60..=60).map(|i| f64::from(i) * 0.137).collect();
    let x = Tensor::from_f64(&values, values.len(), None)?;
    for (i, (op, f)) in rows.iter().enumerate() {
        let got = op(&x)?;
        assert_eq!(got.dtype(), DType::F64);
        for (v, (got, expected)) in values.iter().zip(got.to_vec_f64()?.into_iter().zip(values.iter().map(|&v| f(v)))) {
            let near = (got - expected).abs() <= 4e-15 * expected.abs().max(1e-3) || got == expected;
            assert!(near || (got.is_nan() && expected.is_nan()), "row {i} at {v}: {got}, not {expected}");
        }
    }
    // From tables.
    let erf = [
        (0.1, 0.112_462_916_018_284_9),
        (0.5, 0.520_499_877_813_046_5),
        (1.0, 0.842_700_792_949_714_9),
        (2.0, 0.995_322_265_018_952_7),
        (2.5, 0.999_593_047_982_555),
        (3.5, 0.999_999_256_901_627_7),
    ];
    for (x, y) in erf {
        let got = Tensor::from_f64(&[x, -x], 2, None)?.erf()?.to_vec_f64()?;
        assert!((got[0] - y).abs() < 3e-16 * 4.0 && got[1] == -got[0], "erf {x}: {got:?}");
    }
    let far = Tensor::from_f64(&[-6.0, -40.0, 40.0, f64::NAN], 4, None)?.gelu()?.to_vec_f64()?;
    // −6 · ½ erfc(6 / √2) = −6 · 9.865876450376981e-10.
    assert!(
        (far[0] + 6.0 * 9.865_876_450_376_98e-10).abs() < 1e-21
            && far[1].abs() == 0.0
            && far[2] == 40.0
            && far[3].is_nan(),
        "{far:?}"
    );
    let odd = Tensor::from_f64(&DOUBLES, 14, None)?;
    assert_eq!(odd.isnan()?.to_vec::<bool>()?, DOUBLES.map(f64::is_nan));
    assert_eq!(odd.isinf()?.to_vec::<bool>()?, DOUBLES.map(f64::is_infinite));
    assert_eq!(odd.isfinite()?.to_vec::<bool>()?, DOUBLES.map(f64::is_finite));
    assert_eq!(odd.logical_not()?.to_vec::<bool>()?, DOUBLES.map(|x| x == 0.0));
    assert_eq!(odd.i(0..0)?.exp()?.shape(), [0]);
    Ok(())
}

#[test]
fn doubles_are_reduced() -> Result<()> {
    let values: Vec<f64> = (0..2 * 700 * 3).map(|i| 1e9 + f64::from(i % 97) * 0.1).collect();
    let x = Tensor::from_f64(&values, [2, 700, 3], None)?;
    let row = |k: usize| (0..700).map(move |r| 1e9 + f64::from(((k / 3 * 700 + r) * 3 + k % 3) as u32 % 97) * 0.1);
    let close = |got: Tensor, expected: Vec<f64>, tolerance: f64| {
        assert_eq!(got.dtype(), DType::F64);
        for (a, b) in got.to_vec_f64().unwrap().into_iter().zip(expected) {
            assert!((a - b).abs() <= tolerance * b.abs(), "{a}, not {b}");
        }
    };
    let sums: Vec<f64> = (0..6).map(|k| row(k).sum()).collect();
    close(x.sum(1, false)?, sums.clone(), 1e-14);
    close(x.mean(1, false)?, sums.iter().map(|v| v / 700.0).collect(), 1e-14);
    let variance = |k: usize| {
        let mean = row(k).sum::<f64>() / 700.0;
        row(k).map(|v| (v - mean).powi(2)).sum::<f64>() / 699.0
    };
    close(x.var(1, 1.0, false)?, (0..6).map(variance).collect(), 1e-9);
    close(x.std(1, 1.0, false)?, (0..6).map(|k| variance(k).sqrt()).collect(), 1e-9);
    close(x.max(1, false)?, (0..6).map(|k| row(k).fold(0.0, f64::max)).collect(), 0.0);
    close(x.min_all()?, vec![1e9], 0.0);
    close(x.norm(2.0, 1, false)?, (0..6).map(|k| row(k).map(|v| v * v).sum::<f64>().sqrt()).collect(), 1e-14);
    close(
        x.sub(1e9)?.logsumexp(1, false)?,
        (0..6).map(|k| row(k).map(|v| (v - 1e9).exp()).sum::<f64>().ln()).collect(),
        1e-13,
    );
    let running: Vec<f64> = row(0)
        .scan(0.0, |sum, v| {
            *sum += v;
            Some(*sum)
        })
        .collect();
    close(x.cumsum(1)?.i(s![0, .., 0])?, running, 1e-14);
    let odd = Tensor::from_f64(&[1.0, f64::NAN, 3.0, f64::NAN, -0.0, 0.0], [2, 3], None)?;
    same(&odd.max(1, false)?, &[f64::NAN; 2]);
    assert_eq!(odd.argmax(1)?.to_vec::<u32>()?, [1, 0]);
    assert_eq!(Tensor::from_f64(&[2.0, 5.0, 5.0], 3, None)?.argmax(0)?.item::<u32>()?, 1);
    let empty = odd.i(s![.., 0..0])?;
    same(&empty.sum(1, false)?, &[0.0; 2]);
    same(&empty.prod(1, false)?, &[1.0; 2]);
    same(&empty.mean(1, false)?, &[f64::NAN; 2]);
    Ok(())
}

#[test]
fn products_of_doubles() -> Result<()> {
    for (m, k, n) in [(3, 5, 4), (1, 1, 1), (1, 70, 2), (17, 33, 9), (2, 0, 3), (0, 4, 2), (2, 3, 0)] {
        let numbers = |count: usize, seed: usize| {
            (0..count).map(|i| ((i * 37 + seed) % 101) as f64 / 7.0 - 5.0).collect::<Vec<_>>()
        };
        let (a, b) = (numbers(2 * m * k, 3), numbers(k * n, 11));
        let x = Tensor::from_f64(&a, [2, k, m], None)?.transpose(1, 2)?;
        let y = Tensor::from_f64(&b, [n, k], None)?.t()?;
        let got = x.matmul(&y)?;
        assert_eq!((got.dtype(), got.shape()), (DType::F64, &[2, m, n][..]));
        for (i, got) in got.to_vec_f64()?.into_iter().enumerate() {
            let (batch, row, column) = (i / (m * n), i / n % m, i % n);
            let sum: f64 = (0..k).map(|l| a[(batch * k + l) * m + row] * b[column * k + l]).sum();
            assert!((got - sum).abs() < 1e-11, "{m} {k} {n}: {got}, not {sum}");
        }
    }
    let x = Tensor::from_f64(&[1.0; 4], [2, 2], None)?;
    refused(x.matmul(&Tensor::ones([2, 2], None)?), &["matmul", "f64", "f32"]);
    assert!(matches!(x.matmul(&Tensor::from_f64(&[1.0; 3], [3, 1], None)?), Err(Error::ShapeMismatch { .. })));
    let long = Tensor::from_slice(&[1i64; 4], [2, 2], None)?;
    assert!(matches!(long.matmul(&long), Err(Error::DTypeMismatch { .. })));
    Ok(())
}

#[test]
fn nothing_of_64_bits_is_computed_in_32() -> Result<()> {
    let x = Tensor::from_f64(&[0.1; 16], [1, 1, 4, 4], None)?;
    let (w, row) = (Tensor::ones([1, 1, 2, 2], None)?, x.reshape([4, 4])?);
    let labels = Tensor::from_slice(&[0u32; 4], 4, None)?;
    let results = [
        x.conv2d(&w, None, anygpu::Conv::new()),
        x.conv2d(&w.to_dtype(DType::F64)?, None, anygpu::Conv::new()),
        w.conv2d(&w, Some(&x.reshape(-1)?.i(..1)?), anygpu::Conv::new()),
        x.max_pool2d(2),
        x.unsqueeze(0)?.avg_pool3d(1),
        row.softmax(1),
        row.cross_entropy(&labels),
        nn::cross_entropy(&row, &labels),
        nn::mse_loss(&row, &row, nn::Reduction::Mean),
        nn::Linear::new(4, 2)?.forward(&row),
        nn::LayerNorm::new([4])?.forward(&row),
        row.attention(&row, &row, &anygpu::Attention::new()),
        row.sort(0, false).map(|(sorted, _)| sorted),
        row.rand_like(),
    ];
    for (i, result) in results.into_iter().enumerate() {
        let text = match result {
            Ok(y) => panic!("{i}: {} of {:?}", y.dtype(), y.shape()),
            Err(error) => error.to_string(),
        };
        assert!(text.contains("f64"), "{i}: {text}");
    }
    let leaf = x.requires_grad();
    refused(leaf.mul(2.0), &["mul", "f64", "gradient", "detach"]);
    assert_eq!(leaf.gt(0.0)?.elem_count(), 16);
    assert_eq!(leaf.detach().mul(2.0)?.dtype(), DType::F64);
    Ok(())
}
