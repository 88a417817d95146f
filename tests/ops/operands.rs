//! Operands that are numbers or tensors of another type, on either side: the type of the result, and the signs of
//! zeros.

use anygpu::{DType, Result, Tensor};

use crate::common::devices;

#[test]
fn numbers_on_either_side() -> Result<()> {
    for device in devices() {
        let x = Tensor::from_slice(&[1.0, -2.0, 4.0], 3, &device)?;
        let rows = [
            (&x + 2.0, [3.0, 0.0, 6.0]),
            (2.0 - &x, [1.0, 4.0, -2.0]),
            (&x * 3, [3.0, -6.0, 12.0]),
            (8 / &x, [8.0, -4.0, 2.0]),
            (x.clone() / 2.0f32, [0.5, -1.0, 2.0]),
            (&x % 3, [1.0, 1.0, 1.0]),
            (-&x, [-1.0, 2.0, -4.0]),
            (x.clone() + x.clone(), [2.0, -4.0, 8.0]),
            (x.clone() - &x, [0.0; 3]),
            (&x * x.clone(), [1.0, 4.0, 16.0]),
            (x.pow(2), [1.0, 4.0, 16.0]),
        ];
        for (i, (result, expected)) in rows.into_iter().enumerate() {
            assert_eq!(result?.to_vec::<f32>()?, expected, "row {i} on {device}");
        }
        let i = Tensor::from_slice(&[5, -7], 2, &device)?;
        assert_eq!((&i * 3)?.to_vec::<i32>()?, [15, -21], "{device}");
        assert_eq!((&i * 0.5)?.to_vec::<f32>()?, [2.5, -3.5], "{device}");
        assert_eq!((1 - &i)?.to_vec::<i32>()?, [-4, 8], "{device}");
        let bytes = Tensor::from_slice(&[5u8, 250], 2, &device)?;
        assert_eq!((&bytes - 6)?.to_vec::<u8>()?, [255, 244], "{device}");
        assert_eq!((&bytes + 10)?.to_vec::<u8>()?, [15, 4], "{device}");
        let flags = Tensor::from_slice(&[true, false], 2, &device)?;
        assert_eq!((&flags + 1)?.to_vec::<i32>()?, [2, 1], "{device}");
        assert_eq!(flags.eq(true)?.to_vec::<bool>()?, [true, false], "{device}");
        assert_eq!((&flags + &flags)?.to_vec::<bool>()?, [true, false], "{device}");
        assert_eq!(flags.where_cond(1, 2.5)?.to_vec::<f32>()?, [1.0, 2.5], "{device}");
    }
    Ok(())
}

/// A tensor of rank 0 changes the type of one with dimensions only from a higher kind.
#[test]
fn a_scalar_keeps_the_other_operands_type() -> Result<()> {
    let of = |dtype: DType, shape: &[usize]| Tensor::ones(shape, None)?.to_dtype(dtype);
    for (a, b, result) in [
        (of(DType::F16, &[2])?, of(DType::F32, &[])?, DType::F16),
        (of(DType::U8, &[2])?, of(DType::I32, &[])?, DType::U8),
        (of(DType::U8, &[2])?, of(DType::F16, &[])?, DType::F16),
        (of(DType::I32, &[2])?, of(DType::U32, &[])?, DType::I32),
        (of(DType::F16, &[2])?, of(DType::BF16, &[1])?, DType::F32),
        (of(DType::Bool, &[2])?, of(DType::U8, &[1])?, DType::U8),
    ] {
        assert_eq!(a.mul(&b)?.dtype(), result, "{} {}", a.dtype(), b.dtype());
        assert_eq!(b.mul(&a)?.dtype(), result, "{} {}", b.dtype(), a.dtype());
    }
    Ok(())
}

#[test]
fn zeros_keep_their_sign() -> Result<()> {
    for device in devices() {
        let x = Tensor::from_slice(&[-0.0f32], 1, &device)?;
        for (name, y) in [
            ("mul", x.mul(1.0)?),
            ("sin", x.sin()?),
            ("tan", x.tan()?),
            ("tanh", x.tanh()?),
            ("expm1", x.expm1()?),
            ("log1p", x.log1p()?),
            ("erf", x.erf()?),
            ("sqrt", x.sqrt()?),
            ("ceil", x.add(-0.5)?.ceil()?),
            ("trunc", x.add(-0.5)?.trunc()?),
            ("round", x.add(-0.5)?.round()?),
            ("fmod", x.sub(2.0)?.fmod(2.0)?),
            ("atan2", x.atan2(1.0)?),
        ] {
            assert_eq!(y.to_vec::<f32>()?[0].to_bits(), (-0f32).to_bits(), "{name} on {device}");
        }
        assert_eq!(x.recip()?.to_vec::<f32>()?, [f32::NEG_INFINITY], "{device}");
        assert_eq!(x.neg()?.to_vec::<f32>()?[0].to_bits(), 0, "{device}");
    }
    Ok(())
}

/// A comparison has no gradient; the values that it selects do.
#[test]
fn gradients_stop_at_booleans() -> Result<()> {
    for device in devices() {
        let x = Tensor::from_slice(&[-4.0, 9.0], 2, &device)?.requires_grad();
        let positive = x.gt(0)?;
        assert!(!positive.is_tracked());
        let loss = positive.where_cond(&x.square()?, &x)?.sum_all()?;
        loss.backward()?;
        assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [1.0, 18.0], "{device}");
    }
    Ok(())
}
