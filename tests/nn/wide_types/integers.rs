//! Arithmetic of `i64` on `cpu`.

use anygpu::{DType, Error, Result, Tensor, s};

use super::{LONGS, refused};
use crate::common::adapters;

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
