//! Arithmetic of `i64` and `f64` on `cpu`, and `i64` as indices on every device, compared with loops in plain Rust.

mod common;

use anygpu::nn::{self, Module};
use anygpu::{DType, Device, Error, Padding, Result, Tensor, s};
use common::{adapters, devices};

const LONGS: [i64; 14] = [
    0,
    1,
    -1,
    7,
    -7,
    63,
    64,
    i32::MAX as i64 + 1,
    -(1 << 40) - 3,
    (1 << 53) + 1,
    (1 << 62) + 5,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
];

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

#[track_caller]
fn refused<T>(result: Result<T>, words: &[&str]) {
    let text = match result {
        Ok(_) => panic!("not refused: {words:?}"),
        Err(error) => error.to_string(),
    };
    words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
}

type Two<T> = fn(T, T) -> T;
type Tensors = fn(&Tensor, &Tensor) -> Result<Tensor>;

fn floor_div(x: i64, y: i64) -> i64 {
    if y == 0 {
        x
    } else {
        (i128::from(x).div_euclid(i128::from(y)) - i128::from(y < 0 && i128::from(x).rem_euclid(i128::from(y)) != 0))
            as i64
    }
}

fn power(x: i64, y: i64) -> i64 {
    if y < 0 {
        return match x {
            1 => 1,
            -1 => 1 - 2 * (y & 1),
            _ => 0,
        };
    }
    let (mut base, mut rest, mut result) = (x, y, 1i64);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        rest >>= 1;
    }
    result
}

#[test]
fn integers_meet_exactly() -> Result<()> {
    let rows: &[(Tensors, Two<i64>)] = &[
        (|a, b| a.add(b), i64::wrapping_add),
        (|a, b| a.sub(b), i64::wrapping_sub),
        (|a, b| a.mul(b), i64::wrapping_mul),
        (|a, b| a.div_trunc(b), |x, y| if y == 0 { x } else { x.wrapping_div(y) }),
        (|a, b| a.div_floor(b), floor_div),
        (|a, b| a.fmod(b), |x, y| if y == 0 { 0 } else { x.wrapping_rem(y) }),
        (|a, b| a.rem(b), |x, y| if y == 0 { 0 } else { x.wrapping_sub(floor_div(x, y).wrapping_mul(y)) }),
        (|a, b| a.pow(b), power),
        (|a, b| a.maximum(b), i64::max),
        (|a, b| a.minimum(b), i64::min),
        (|a, b| a.bitwise_and(b), |x, y| x & y),
        (|a, b| a.bitwise_or(b), |x, y| x | y),
        (|a, b| a.bitwise_xor(b), |x, y| x ^ y),
        (|a, b| a.bitwise_left_shift(b), |x, y| if (0..64).contains(&y) { x << y } else { 0 }),
        (|a, b| a.bitwise_right_shift(b), |x, y| if (0..64).contains(&y) { x >> y } else { x >> 63 }),
    ];
    let (a, b) = (Tensor::from_slice(&LONGS, [14, 1], None)?, Tensor::from_slice(&LONGS, [14], None)?);
    for (i, (op, f)) in rows.iter().enumerate() {
        let expected: Vec<i64> = LONGS.iter().flat_map(|&x| LONGS.map(|y| f(x, y))).collect();
        let got = op(&a, &b)?;
        assert_eq!((got.dtype(), got.shape()), (DType::I64, &[14, 14][..]));
        assert_eq!(got.to_vec::<i64>()?, expected, "row {i}");
        // Through views: transposed, and with a negative order of elements.
        let turned = op(&b.reshape([2, 7])?.t()?, &b.flip(0)?.reshape([7, 2])?)?.to_vec::<i64>()?;
        let expected: Vec<i64> = (0..14).map(|k| f(LONGS[k % 2 * 7 + k / 2], LONGS[13 - k])).collect();
        assert_eq!(turned, expected, "row {i}");
        assert_eq!(op(&a.i(0..0)?, &b)?.shape(), [0, 14]);
        assert_eq!(op(&b.i(9)?, &b.i(8)?)?.item::<i64>()?, f(LONGS[9], LONGS[8]));
        // With narrower integers and numbers.
        assert_eq!(op(&b, &Tensor::new([3], None)?)?.to_vec::<i64>()?, LONGS.map(|x| f(x, 3)));
        assert_eq!(op(&Tensor::full([1], 200u8, None)?, &b)?.to_vec::<i64>()?, LONGS.map(|x| f(200, x)));
    }
    assert_eq!(b.add((1i64 << 53) + 1)?.to_vec::<i64>()?, LONGS.map(|x| x.wrapping_add((1 << 53) + 1)));
    assert_eq!((3 - &b)?.to_vec::<i64>()?, LONGS.map(|x| 3i64.wrapping_sub(x)));
    // By PyTorch's rule, quotients and fractions are f32.
    assert_eq!(b.div(2)?.to_vec::<f32>()?, LONGS.map(|x| x as f32 / 2.0));
    assert_eq!(b.add(0.5)?.dtype(), DType::F32);
    assert_eq!(b.add(&Tensor::ones([1], None)?)?.dtype(), DType::F32);
    assert_eq!(b.add(&Tensor::full([1], 1u32, None)?)?.dtype(), DType::I64);
    refused(Tensor::new([1], None)?.add(&Tensor::full([1], 1u32, None)?), &["add", "i32", "u32"]);
    Ok(())
}

#[test]
fn integers_compare_exactly() -> Result<()> {
    type Test = fn(&i64, &i64) -> bool;
    let rows: &[(Tensors, Test)] = &[
        (|a, b| a.eq(b), i64::eq),
        (|a, b| a.ne(b), i64::ne),
        (|a, b| a.lt(b), i64::lt),
        (|a, b| a.le(b), i64::le),
        (|a, b| a.gt(b), i64::gt),
        (|a, b| a.ge(b), i64::ge),
    ];
    let (a, b) = (Tensor::from_slice(&LONGS, [14, 1], None)?, Tensor::from_slice(&LONGS, [14], None)?);
    for (op, f) in rows {
        let expected: Vec<bool> =
            LONGS.iter().flat_map(|x| LONGS.iter().map(|y| f(x, y)).collect::<Vec<_>>()).collect();
        assert_eq!(op(&a, &b)?.to_vec::<bool>()?, expected);
    }
    assert_eq!(b.eq((1i64 << 53) + 1)?.to_vec::<bool>()?, LONGS.map(|x| x == (1 << 53) + 1));
    assert!(b.equal(&b.copy()?)?);
    Ok(())
}

#[test]
fn integers_one_by_one() -> Result<()> {
    let x = Tensor::from_slice(&LONGS, [7, 2], None)?.t()?;
    let back = |y: Result<Tensor>| y?.t()?.to_vec::<i64>();
    assert_eq!(back(x.neg())?, LONGS.map(i64::wrapping_neg));
    assert_eq!(back(x.abs())?, LONGS.map(i64::wrapping_abs));
    assert_eq!(back(x.sign())?, LONGS.map(i64::signum));
    assert_eq!(back(x.square())?, LONGS.map(|v| v.wrapping_mul(v)));
    assert_eq!(back(x.bitwise_not())?, LONGS.map(|v| !v));
    assert_eq!(back(x.floor())?, LONGS);
    assert_eq!(back(x.relu())?, LONGS.map(|v| v.max(0)));
    assert_eq!(back(x.clamp(Some(-6.5), Some(70.9)))?, LONGS.map(|v| v.clamp(-6, 70)));
    assert_eq!(x.logical_not()?.t()?.to_vec::<bool>()?, LONGS.map(|v| v == 0));
    assert_eq!(x.exp()?.dtype(), DType::F32);
    assert_eq!(x.isfinite()?.t()?.to_vec::<bool>()?, [true; 14]);
    Ok(())
}

#[test]
fn integers_are_reduced() -> Result<()> {
    let values: Vec<i64> = (0..3 * 400 * 5).map(|i| LONGS[i * 5 % 14].wrapping_mul(i as i64 + 1)).collect();
    let x = Tensor::from_slice(&values, [3, 400, 5], None)?;
    let at = |a: usize, r: usize, b: usize| values[(a * 400 + r) * 5 + b];
    let over = |f: &dyn Fn(&mut dyn Iterator<Item = i64>) -> i64| -> Vec<i64> {
        (0..15).map(|k| f(&mut (0..400).map(|r| at(k / 5, r, k % 5)))).collect()
    };
    let sums = over(&|row| row.fold(0, i64::wrapping_add));
    assert_eq!(x.sum(1, false)?.to_vec::<i64>()?, sums);
    assert_eq!(x.transpose(1, 2)?.sum(-1, true)?.shape(), [3, 5, 1]);
    assert_eq!(x.transpose(1, 2)?.sum(-1, false)?.to_vec::<i64>()?, sums);
    assert_eq!(x.prod(1, false)?.to_vec::<i64>()?, over(&|row| row.fold(1, i64::wrapping_mul)));
    assert_eq!(x.max(1, false)?.to_vec::<i64>()?, over(&|row| row.max().unwrap()));
    assert_eq!(x.min(1, false)?.to_vec::<i64>()?, over(&|row| row.min().unwrap()));
    assert_eq!(x.sum_all()?.item::<i64>()?, values.iter().fold(0, |a: i64, &v| a.wrapping_add(v)));
    assert_eq!(
        x.max([0, 2], false)?.to_vec::<i64>()?,
        (0..400).map(|r| (0..15).map(|k| at(k / 5, r, k % 5)).max().unwrap()).collect::<Vec<_>>()
    );
    let position = |row: &mut dyn Iterator<Item = i64>, least: bool| {
        row.enumerate()
            .reduce(|best, v| if (least && v.1 < best.1) || (!least && v.1 > best.1) { v } else { best })
            .unwrap()
            .0 as i64
    };
    assert_eq!(x.argmax(1)?.to_dtype(DType::I64)?.to_vec::<i64>()?, over(&|row| position(row, false)));
    assert_eq!(x.argmin(1)?.to_dtype(DType::I64)?.to_vec::<i64>()?, over(&|row| position(row, true)));
    let mut running = values.clone();
    (0..running.len()).filter(|i| i / 5 % 400 > 0).for_each(|i| running[i] = running[i].wrapping_add(running[i - 5]));
    assert_eq!(x.cumsum(1)?.to_vec::<i64>()?, running);
    assert_eq!(x.any(1, false)?.to_vec::<bool>()?, [true; 15]);
    let empty = x.i(s![.., 0..0])?;
    assert_eq!(empty.sum(1, false)?.to_vec::<i64>()?, [0; 15]);
    assert_eq!(empty.prod(1, false)?.to_vec::<i64>()?, [1; 15]);
    assert!(matches!(empty.max(1, false), Err(Error::InvalidArgument { .. })));
    assert_eq!(Tensor::scalar(i64::MIN, None)?.sum_all()?.item::<i64>()?, i64::MIN);
    refused(x.mean_all(), &["mean_all", "i64"]);
    Ok(())
}

#[test]
fn choices_and_padding_move_whole_elements() -> Result<()> {
    for device in &devices() {
        let x = Tensor::from_slice(&LONGS, [2, 7], device)?;
        let mask: Vec<bool> = (0..14).map(|i| i % 3 == 0).collect();
        let condition = Tensor::from_slice(&mask, [2, 7], device)?;
        let chosen: Vec<i64> = (0..14).map(|i| if mask[i] { LONGS[i] } else { i64::MIN + 9 }).collect();
        assert_eq!(condition.where_cond(&x, i64::MIN + 9)?.to_vec::<i64>()?, chosen, "{device}");
        let other = Tensor::from_slice(&[5i64, -5], [2, 1], device)?;
        let chosen: Vec<i64> = (0..14).map(|i| if mask[i] { [5, -5][i / 7] } else { LONGS[i] }).collect();
        assert_eq!(condition.where_cond(&other, &x)?.to_vec::<i64>()?, chosen);
        let filled: Vec<i64> = (0..14).map(|i| if mask[i] { -3 } else { LONGS[i] }).collect();
        assert_eq!(x.masked_fill(&condition, -3.9)?.to_vec::<i64>()?, filled);
        let padded = x.pad(&[(1, 0), (0, 2)], Padding::Constant(-7.0))?;
        let expected: Vec<i64> =
            (0..27).map(|k| if k / 9 > 0 && k % 9 < 7 { LONGS[(k / 9 - 1) * 7 + k % 9] } else { -7 }).collect();
        assert_eq!((padded.shape(), padded.to_vec::<i64>()?), (&[3, 9][..], expected), "{device}");
        let padded = x.pad(&[(2, 1)], Padding::Reflect)?;
        let expected: Vec<i64> = (0..20).map(|k| LONGS[k / 10 * 7 + [2, 1, 0, 1, 2, 3, 4, 5, 6, 5][k % 10]]).collect();
        assert_eq!(padded.to_vec::<i64>()?, expected, "{device}");
        let triangle: Vec<i64> = (0..14).map(|k| if k % 7 <= k / 7 + 1 { LONGS[k] } else { 0 }).collect();
        assert_eq!(x.tril(1)?.to_vec::<i64>()?, triangle, "{device}");
    }
    Ok(())
}

#[test]
fn adapters_refuse_arithmetic_of_integers_with_the_remedy() -> Result<()> {
    for device in &adapters() {
        let x = Tensor::from_slice(&LONGS, [14], device)?;
        let results: [(&str, Result<Tensor>); 6] = [
            ("add", x.add(1)),
            ("eq", x.eq(&x)),
            ("neg", x.neg()),
            ("sum", x.sum(0, false)),
            ("cumsum", x.cumsum(0)),
            ("argmax", x.argmax(0)),
        ];
        for (name, result) in results {
            refused(result, &[name, "i64", device.name(), "DType::I32", "cpu"]);
        }
    }
    Ok(())
}

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

type One = fn(&Tensor) -> Result<Tensor>;

#[test]
fn functions_of_doubles_are_of_64_bits() -> Result<()> {
    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }
    let rows: &[(One, fn(f64) -> f64)] = &[
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
        (far[0] + 6.0 * 9.865_876_450_376_981e-10).abs() < 1e-21
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
        nn::LayerNorm::new(&[4])?.forward(&row),
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

/// What a device says of an index, now or when it is waited for.
fn outcome(result: Result<Tensor>) -> Result<Vec<f64>> {
    let x = result?;
    let values = x.to_vec_f64()?;
    x.device().synchronize()?;
    Ok(values)
}

#[test]
fn integers_are_indices() -> Result<()> {
    for device in &devices() {
        let x = Tensor::arange(0.0, 24.0, 1.0, device)?.reshape([4, 6])?;
        let long = x.to_dtype(DType::I64)?.to(Device::cpu())?.mul(1i64 << 33)?.to(device)?;
        let list = [3i64, 0, 0, 2];
        let of = |shape: &[usize]| Tensor::from_slice(&list, shape, device);
        let same = |a: Result<Tensor>, b: Result<Tensor>| -> Result<()> {
            assert_eq!(outcome(a)?, outcome(b)?, "{device}");
            Ok(())
        };
        let narrow = |x: Tensor| x.to_dtype(DType::U32);
        same(x.index_select(0, &of(&[4])?), x.index_select(0, &narrow(of(&[4])?)?))?;
        same(x.gather(0, &of(&[2, 2])?.t()?), x.gather(0, &narrow(of(&[2, 2])?)?.t()?))?;
        same(x.embedding(&of(&[2, 2])?), x.embedding(&narrow(of(&[2, 2])?)?))?;
        same(of(&[4])?.one_hot(5), narrow(of(&[4])?)?.one_hot(5))?;
        same(
            x.scatter_add(0, &of(&[4, 1])?, &x.i(s![.., ..1])?),
            x.scatter_add(0, &narrow(of(&[4, 1])?)?, &x.i(s![.., ..1])?),
        )?;
        same(x.index_add(0, &of(&[4])?, &x), x.index_add(0, &narrow(of(&[4])?)?, &x))?;
        same(x.index(&[&of(&[4])?, &of(&[4])?]), x.index(&[&narrow(of(&[4])?)?, &narrow(of(&[4])?)?]))?;
        same(x.cross_entropy(&of(&[4])?), x.cross_entropy(&narrow(of(&[4])?)?))?;
        same(nn::cross_entropy(&x, &of(&[4])?), nn::cross_entropy(&x, &narrow(of(&[4])?)?))?;
        let ignoring = nn::CrossEntropyLoss::new().ignore_index(-100);
        let labels = Tensor::from_slice(&[1i64, -100, 2, -100], 4, device)?;
        same(ignoring.forward(&x, &labels), ignoring.forward(&x, &labels.to_dtype(DType::I32)?))?;
        assert_eq!(nn::correct(&x, &labels)?, 0);
        let embedding = nn::Embedding::new(4, 3)?.to(device)?;
        same(embedding.forward(&of(&[2, 2])?), embedding.forward(&narrow(of(&[2, 2])?)?))?;
        // Elements of 64 bits are picked whole.
        let at = |i: usize, j: usize| ((6 * i + j) as i64) << 33;
        let rows: Vec<i64> = list.iter().flat_map(|&i| (0..6).map(move |j| at(i as usize, j))).collect();
        assert_eq!(long.index_select(0, &of(&[4])?)?.to_vec::<i64>()?, rows, "{device}");
        assert_eq!(
            long.gather(0, &of(&[1, 4])?)?.to_vec::<i64>()?,
            (0..4).map(|j| at(list[j] as usize, j)).collect::<Vec<_>>()
        );
        assert_eq!(
            long.gather(1, &of(&[4, 1])?)?.to_vec::<i64>()?,
            (0..4).map(|i| at(i, list[i] as usize)).collect::<Vec<_>>()
        );
        assert_eq!(long.index(&[&of(&[4])?])?.to_vec::<i64>()?, rows);
        let copied = long.zeros_like()?.index_copy(0, &of(&[4])?.i(2..)?, &long.i(..2)?)?;
        let expected: Vec<i64> = (0..24)
            .map(|k| match k / 6 {
                0 => at(0, k % 6),
                2 => at(1, k % 6),
                _ => 0,
            })
            .collect();
        assert_eq!(copied.to_vec::<i64>()?, expected, "{device}");
        let scattered = long.zeros_like()?.scatter(0, &of(&[1, 4])?, &long.i(s![1..2, ..4])?)?;
        let expected: Vec<i64> =
            (0..24).map(|k| if k % 6 < 4 && list[k % 6] == (k / 6) as i64 { at(1, k % 6) } else { 0 }).collect();
        assert_eq!(scattered.to_vec::<i64>()?, expected, "{device}");
        refused(long.scatter_add(0, &of(&[4, 1])?, &long.i(s![.., ..1])?), &["scatter_add", "i64"]);
        // What is beyond 32 bits does not become an index by being cut off.
        for wrong in [
            4,
            -1,
            i64::from(i32::MAX),
            1 << 31,
            u32::MAX.into(),
            1 << 32,
            (1 << 32) + 1,
            -(1 << 32),
            i64::MIN,
            i64::MAX,
        ] {
            let index = Tensor::from_slice(&[1, wrong], 2, device)?;
            refused(outcome(x.index_select(0, &index)), &["index", "dimension"]);
            refused(outcome(long.index_select(0, &index)), &["index", "dimension"]);
            refused(outcome(x.embedding(&index)), &["index", "dimension"]);
            let label = Tensor::from_slice(&[1, if wrong == 4 { 6 } else { wrong }], 2, device)?;
            refused(outcome(x.i(..2)?.cross_entropy(&label)), &["cross_entropy"]);
        }
        assert_eq!(outcome(x.index_select(0, &of(&[4])?.i(0..0)?))?, [0.0; 0]);
    }
    Ok(())
}
