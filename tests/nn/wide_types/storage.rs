//! What is stored, moved, converted, printed and written to files.

use anygpu::{DType, Device, Error, Result, Tensor, narrow_64_bits, s};
use half::{bf16, f16};

use super::refused;
use crate::common::{adapters, devices};

/// Integers at which something ends: halves of words, floats that are exact, types.
const LONGS: [i64; 35] = [
    0,
    1,
    -1,
    2,
    -2,
    127,
    128,
    255,
    256,
    -129,
    65535,
    1 << 24,
    (1 << 24) + 1,
    (1 << 25) + 2,
    (1 << 25) + 6,
    -(1 << 24) - 1,
    i32::MAX as i64,
    i32::MIN as i64,
    i32::MAX as i64 + 1,
    i32::MIN as i64 - 1,
    u32::MAX as i64,
    u32::MAX as i64 + 1,
    -(u32::MAX as i64),
    -(u32::MAX as i64) - 1,
    (1 << 40) + 12345,
    -(1 << 40) - 12345,
    (1 << 53) + 1,
    -(1 << 53) - 1,
    (1 << 62) + (1 << 38),
    (1 << 62) + (1 << 38) + 1,
    0x7fff_ffbf_ffff_ffff,
    0x7fff_ffc0_0000_0000,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
];

const DOUBLES: [f64; 30] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    2.5,
    -2.5,
    255.9,
    -0.9,
    300.0,
    65504.0,
    65519.999,
    65520.0,
    1.000_488_281_25,
    1.000_488_281_250_000_3,
    1e-8,
    -2.980_232_238_769_532e-8,
    3.396e38,
    9_007_199_254_740_993.0,
    2_147_483_647.5,
    -2_147_483_648.9,
    4_294_967_295.9,
    1e19,
    -1e19,
    1e300,
    5e-324,
    f64::MAX,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

fn longs(device: &Device) -> Result<Tensor> {
    Tensor::from_slice(&LONGS, [LONGS.len()], device)
}

/// Compares the bits, so that zeros have their sign and NaN is equal to itself.
#[track_caller]
fn same_floats(got: &Tensor, expected: impl IntoIterator<Item = f64>) {
    let (got, expected): (Vec<f64>, Vec<f64>) = (got.to_vec_f64().unwrap(), expected.into_iter().collect());
    let bits = |values: &[f64]| -> Vec<u64> {
        values.iter().map(|v| if v.is_nan() { f64::NAN.to_bits() } else { v.to_bits() }).collect()
    };
    assert!(bits(&got) == bits(&expected), "{got:?}\n{expected:?}");
}

/// Returns the number of the list that is nearest, ties to even places; from `top` on, it is infinite.
fn nearest(v: f64, list: &[f64], top: f64) -> f64 {
    if v.is_nan() || v.abs() >= top {
        return v.signum() * f64::INFINITY;
    }
    let order = |&i: &usize| (list[i].is_finite() && list[i].is_sign_negative() == v.is_sign_negative()).then_some(i);
    let distance = |i: usize| ((list[i] - v).abs(), i % 2);
    let best =
        (0..list.len()).filter_map(|i| order(&i)).min_by(|&a, &b| distance(a).partial_cmp(&distance(b)).unwrap());
    list[best.unwrap()]
}

#[test]
fn integers_are_stored_and_moved() -> Result<()> {
    for device in &devices() {
        let x = longs(device)?;
        assert_eq!((x.dtype(), x.dtype().size()), (DType::I64, 8));
        assert_eq!(x.to_vec::<i64>()?, LONGS, "{device}");
        assert_eq!(x.cpu()?.to_vec::<i64>()?, LONGS);
        for other in &devices() {
            assert_eq!(x.to(other)?.to_vec::<i64>()?, LONGS, "{device} to {other}");
        }
        assert_eq!(Tensor::scalar(i64::MIN, device)?.item::<i64>()?, i64::MIN);
        assert_eq!(Tensor::full([2, 3], (1i64 << 53) + 1, device)?.to_vec::<i64>()?, [(1 << 53) + 1; 6]);
        assert_eq!(x.zeros_like()?.to_vec::<i64>()?, [0; 35]);
        assert_eq!(x.ones_like()?.to_vec::<i64>()?, [1; 35]);
        assert_eq!(x.copy()?.to_vec::<i64>()?, LONGS);
        for shape in [&[0][..], &[0, 3], &[2, 0]] {
            let empty = Tensor::from_slice::<i64>(&[], shape, device)?;
            assert_eq!((empty.to_vec::<i64>()?, empty.shape()), (vec![], shape));
            assert_eq!(empty.to_dtype(DType::F32)?.shape(), shape);
            assert_eq!(empty.to_dtype(DType::I32)?.to_dtype(DType::I64)?.contiguous()?.shape(), shape);
            assert_eq!(Tensor::full(shape, 7i64, device)?.shape(), shape);
        }
        let printed = x.i(..2)?.to_string();
        assert!(printed.starts_with("tensor([0, 1], ") && printed.ends_with("dtype=i64)"), "{printed}");
        pollster::block_on(async {
            assert_eq!(x.to_vec_async::<i64>().await?, LONGS);
            Ok::<(), Error>(())
        })?;
        assert_eq!(x.with_slice(|values: &[i64]| values.to_vec())?, LONGS);
        assert_eq!(x.i(3..7)?.with_slice(|values: &[i64]| values.to_vec())?, LONGS[3..7]);
        assert!(matches!(x.to_vec::<i32>(), Err(Error::DTypeMismatch { .. })));
    }
    Ok(())
}

#[test]
fn views_of_integers_are_copied_right() -> Result<()> {
    for device in &devices() {
        let x = longs(device)?.reshape([5, 7])?;
        let at = |i: usize, j: usize| LONGS[7 * i + j];
        let table = |rows: usize, columns: usize, f: &dyn Fn(usize, usize) -> i64| -> Vec<i64> {
            (0..rows * columns).map(|k| f(k / columns, k % columns)).collect()
        };
        let turned = x.t()?;
        assert_eq!(turned.to_vec::<i64>()?, table(7, 5, &|j, i| at(i, j)), "{device}");
        assert_eq!(turned.contiguous()?.to_vec::<i64>()?, table(7, 5, &|j, i| at(i, j)));
        let part = x.i(s![1..4, 2..;2])?;
        let expected = table(3, 3, &|i, j| at(i + 1, 2 + 2 * j));
        assert_eq!(part.to_vec::<i64>()?, expected);
        assert_eq!(part.reshape([9])?.to_vec::<i64>()?, expected);
        assert_eq!(part.to_dtype(DType::I32)?.to_vec::<i32>()?, expected.iter().map(|&v| v as i32).collect::<Vec<_>>());
        assert_eq!(
            part.t()?.to_dtype(DType::F32)?.t()?.to_vec_f64()?,
            expected.iter().map(|&v| f64::from(v as f32)).collect::<Vec<_>>()
        );
        assert_eq!(x.flip([0, 1])?.to_vec::<i64>()?, table(5, 7, &|i, j| at(4 - i, 6 - j)));
        assert_eq!(x.roll(2, 1)?.to_vec::<i64>()?, table(5, 7, &|i, j| at(i, (j + 5) % 7)));
        assert_eq!(x.repeat([1, 2])?.to_vec::<i64>()?, table(5, 14, &|i, j| at(i, j % 7)));
        assert_eq!(Tensor::cat(&[&x, &x.i(..2)?], 0)?.to_vec::<i64>()?, table(7, 7, &|i, j| at(i % 5, j)));
        assert_eq!(Tensor::cat(&[&turned, &part.t()?.i(..1)?.broadcast_to([7, 3])?], 1)?.shape(), [7, 8]);
        assert_eq!(Tensor::stack(&[&x, &x], 2)?.i(s![.., .., 1])?.to_vec::<i64>()?, LONGS);
        // Mixed with a narrower type, the result has 64 bits.
        let few = Tensor::from_slice(&[-1i32, 7], [2], device)?;
        assert_eq!(
            Tensor::cat(&[&few, &longs(device)?.i(33..)?], 0)?.to_vec::<i64>()?,
            [-1, 7, i64::MIN, i64::MIN + 1]
        );
        // In place, into views.
        let y = x.zeros_like()?;
        y.t()?.i(2)?.copy_(&x.i(s![.., 6])?)?;
        y.i(s![0, 0])?.fill_(i64::MAX)?;
        y.i(s![1, ..2])?.copy_(&few)?;
        let expected = table(5, 7, &|i, j| match (i, j) {
            (0, 0) => i64::MAX,
            (1, 0) => -1,
            (1, 1) => 7,
            (_, 2) => at(i, 6),
            _ => 0,
        });
        assert_eq!(y.to_vec::<i64>()?, expected, "{device}");
        y.fill_(2.9)?;
        assert_eq!(y.to_vec::<i64>()?, [2; 35]);
        let moved = anygpu::tensor::to_together(&[&few, &part, &few], &Device::cpu())?;
        assert_eq!(moved[1].to_vec::<i64>()?, part.to_vec::<i64>()?);
    }
    Ok(())
}

#[test]
fn integers_become_every_type() -> Result<()> {
    for device in &devices() {
        let x = longs(device)?;
        assert_eq!(x.to_dtype(DType::I32)?.to_vec::<i32>()?, LONGS.map(|v| v as i32), "{device}");
        assert_eq!(x.to_dtype(DType::U32)?.to_vec::<u32>()?, LONGS.map(|v| v as u32), "{device}");
        assert_eq!(x.to_dtype(DType::U8)?.to_vec::<u8>()?, LONGS.map(|v| v as u8), "{device}");
        assert_eq!(x.to_dtype(DType::Bool)?.to_vec::<bool>()?, LONGS.map(|v| v != 0), "{device}");
        assert_eq!(x.to_dtype(DType::F32)?.to_vec::<f32>()?, LONGS.map(|v| v as f32), "{device}");
        assert_eq!(x.to_dtype(DType::F16)?.to_vec::<f16>()?, LONGS.map(|v| f16::from_f32(v as f32)), "{device}");
        assert_eq!(x.to_dtype(DType::BF16)?.to_vec::<bf16>()?, LONGS.map(|v| bf16::from_f32(v as f32)), "{device}");
        // Every place of the highest bit, and every way to round.
        let many: Vec<i64> = (0..64u32)
            .flat_map(|bit| {
                [0u64, 1, 0x7f, 0x80, 0x81, 0xff, 0x180, 0xfff]
                    .map(|low| (1u64 << bit) | low.rotate_left(bit) >> 31 | low)
            })
            .flat_map(|bits| {
                [bits.cast_signed(), bits.wrapping_neg().cast_signed(), (bits ^ (bits << 17)).cast_signed()]
            })
            .collect();
        let floats: Vec<f32> = many.iter().map(|&v| v as f32).collect();
        let got = Tensor::from_slice(&many, many.len(), device)?.to_dtype(DType::F32)?;
        assert_eq!(got.to_vec::<f32>()?, floats, "{device}");
        if device.is_cpu() {
            same_floats(&x.to_dtype(DType::F64)?, LONGS.map(|v| v as f64));
        } else {
            refused(x.to_dtype(DType::F64), &["to_dtype", "f64", device.name(), "DType::F32"]);
        }
    }
    Ok(())
}

#[test]
fn every_type_becomes_integers() -> Result<()> {
    let floats: Vec<f32> = (0..=255u32)
        .flat_map(|exponent| [0, 1, 0x40_0000, 0x7f_ffff].map(|fraction| f32::from_bits(exponent << 23 | fraction)))
        .flat_map(|v| [v, -v])
        .collect();
    for device in &devices() {
        let of = |x: Result<Tensor>| x?.to_dtype(DType::I64)?.to_vec::<i64>();
        let expected: Vec<i64> = floats.iter().map(|&v| v as i64).collect();
        assert_eq!(of(Tensor::from_slice(&floats, floats.len(), device))?, expected, "{device}");
        assert_eq!(
            of(Tensor::from_slice(&[i32::MIN, -1, 0, i32::MAX], 4, device))?,
            [i32::MIN as i64, -1, 0, i32::MAX as i64]
        );
        assert_eq!(of(Tensor::from_slice(&[u32::MAX, 1 << 31, 0], 3, device))?, [u32::MAX as i64, 1 << 31, 0]);
        assert_eq!(of(Tensor::from_slice(&[0u8, 128, 255], 3, device))?, [0, 128, 255]);
        assert_eq!(of(Tensor::from_slice(&[true, false, true], 3, device))?, [1, 0, 1]);
        assert_eq!(of(Tensor::from_slice(&[f16::MAX, f16::NEG_INFINITY, f16::NAN], 3, device))?, [65504, i64::MIN, 0]);
        assert_eq!(
            of(Tensor::from_slice(&[bf16::from_f32(-1e10)], 1, device))?,
            [bf16::from_f32(-1e10).to_f32() as i64]
        );
        let turned = Tensor::from_slice(&[1u32, 2, 3, 4, 5, 6], [2, 3], device)?.t()?;
        assert_eq!(of(Ok(turned))?, [1, 4, 2, 5, 3, 6]);
    }
    Ok(())
}

#[test]
fn doubles_are_stored_and_converted_on_the_host() -> Result<()> {
    let x = Tensor::from_f64(&DOUBLES, [3, 10], None)?;
    assert_eq!(x.dtype(), DType::F64);
    same_floats(&x, DOUBLES);
    same_floats(&x.t()?.contiguous()?.t()?, DOUBLES);
    same_floats(&x.i(s![1.., 1..;3])?, [11, 14, 17, 21, 24, 27].map(|i: usize| DOUBLES[i]));
    let of = |dtype| x.to_dtype(dtype);
    assert_eq!(of(DType::I64)?.to_vec::<i64>()?, DOUBLES.map(|v| v as i64));
    assert_eq!(of(DType::I32)?.to_vec::<i32>()?, DOUBLES.map(|v| v as i32));
    assert_eq!(of(DType::U32)?.to_vec::<u32>()?, DOUBLES.map(|v| v as u32));
    assert_eq!(of(DType::U8)?.to_vec::<u8>()?, DOUBLES.map(|v| v as u8));
    assert_eq!(of(DType::Bool)?.to_vec::<bool>()?, DOUBLES.map(|v| v != 0.0));
    same_floats(&of(DType::F32)?, DOUBLES.map(|v| f64::from(v as f32)));
    // One rounding: by way of f32, 1.0004882812500003 would be a tie, and become 1.
    let halves: Vec<f64> = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f64()).collect();
    same_floats(&of(DType::F16)?, DOUBLES.map(|v| nearest(v, &halves, 65520.0)));
    let halves: Vec<f64> = (0..=u16::MAX).map(|bits| bf16::from_bits(bits).to_f64()).collect();
    same_floats(&of(DType::BF16)?, DOUBLES.map(|v| nearest(v, &halves, 3.396_177_529_230_46e38)));
    same_floats(
        &Tensor::from_slice(&[f32::MIN_POSITIVE, 0.1], 2, None)?.to_dtype(DType::F64)?,
        [f64::from(f32::MIN_POSITIVE), f64::from(0.1f32)],
    );
    same_floats(&Tensor::from_slice(&[u32::MAX, 7], 2, None)?.to_dtype(DType::F64)?, [4294967295.0, 7.0]);
    same_floats(&Tensor::from_slice(&[-7i32], 1, None)?.to_dtype(DType::F64)?, [-7.0]);
    let filled = x.zeros_like()?;
    filled.fill_(0.1)?;
    same_floats(&filled, [0.1; 30]);
    filled.i(1)?.copy_(&Tensor::scalar(2.5, None)?)?;
    same_floats(&filled.i(s![.., 0])?, [0.1, 2.5, 0.1]);
    assert_eq!(Tensor::from_f64(&[0.1, 1e300], 2, None)?.to_string(), "tensor([ 1.0000e-01, 1.0000e+300], dtype=f64)");
    assert_eq!(Tensor::from_f64(&[], [0, 2], None)?.to_vec_f64()?, [0.0; 0]);
    Ok(())
}

#[test]
fn adapters_refuse_doubles_with_the_remedy() -> Result<()> {
    let x = Tensor::from_f64(&[1.0, 2.0], 2, None)?;
    for device in &adapters() {
        let words = &["f64", device.name(), ".to_dtype", "DType::F32", "cpu"];
        refused(x.to(device), words);
        refused(Tensor::from_f64(&[1.0], 1, device), words);
        refused(anygpu::tensor::to_together(&[&x, &Tensor::ones([2], None)?], device), words);
        refused(Tensor::ones([2], device)?.to_dtype(DType::F64), words);
        assert_eq!(x.to_dtype(DType::F32)?.to(device)?.to_vec::<f32>()?, [1.0, 2.0]);
    }
    Ok(())
}

#[test]
fn no_gradient_is_lost_silently() -> Result<()> {
    let x = Tensor::ones([2], None)?.requires_grad();
    refused(x.to_dtype(DType::F64), &["f64", "gradient", "detach"]);
    assert_eq!(x.detach().to_dtype(DType::F64)?.to_vec_f64()?, [1.0; 2]);
    assert_eq!(anygpu::no_grad(|| x.to_dtype(DType::F64))?.to_vec_f64()?, [1.0; 2]);
    assert!(!x.to_dtype(DType::I64)?.is_tracked());
    let leaf = Tensor::from_f64(&[1.0], 1, None)?.requires_grad();
    refused(leaf.to_dtype(DType::F32), &["f64", "gradient"]);
    Ok(())
}

#[test]
fn an_op_without_a_64_bit_form_says_so() -> Result<()> {
    for device in &devices() {
        let x = longs(device)?;
        refused(x.sort(0, false), &["sort", "i64", "I32"]);
    }
    let x = Tensor::from_f64(&[1.0, 2.0], 2, None)?;
    refused(x.softmax(0), &["softmax", "f64", "F32"]);
    Ok(())
}

#[test]
fn files_keep_numbers_of_64_bits_unless_asked() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let (x, y) = (longs(&Device::cpu())?, Tensor::from_f64(&DOUBLES, [30], None)?);
    let small = Tensor::from_slice(&[-5i64, 6], [2], None)?;
    let npy = |name: &str| folder.path().join(name);
    x.save_npy(npy("x.npy"))?;
    y.save_npy(npy("y.npy"))?;
    small.save_npy(npy("small.npy"))?;
    // On request, 32 bits, or an error.
    assert_eq!(narrow_64_bits(|| Tensor::from_npy(npy("small.npy"), None))?.to_vec::<i32>()?, [-5, 6]);
    refused(narrow_64_bits(|| Tensor::from_npy(npy("x.npy"), None)), &["i32"]);
    refused(narrow_64_bits(|| Tensor::from_npy(npy("y.npy"), None)), &["f32"]);
    let read = |name: &str| Tensor::from_npy(npy(name), None);
    assert_eq!(read("x.npy")?.to_vec::<i64>()?, LONGS);
    same_floats(&read("y.npy")?, DOUBLES);
    anygpu::npy::save_npz(npy("all.npz"), &[("x", &x), ("y", &y)])?;
    let all = anygpu::npy::load_npz(npy("all.npz"), None)?;
    assert_eq!(all[0].1.to_vec::<i64>()?, LONGS);
    same_floats(&all[1].1, DOUBLES);
    for device in &adapters() {
        assert_eq!(Tensor::from_npy(npy("x.npy"), device)?.to_vec::<i64>()?, LONGS);
        refused(Tensor::from_npy(npy("y.npy"), device), &["y.npy", "float64", device.name(), "narrow_64_bits"]);
    }
    // Checkpoints of this crate keep the types.
    for device in &devices() {
        let mut state = anygpu::nn::StateDict::new();
        state.insert("x", x.to(device)?);
        state.insert("half", Tensor::from_slice(&[f16::ONE; 3], [3], device)?);
        state.insert("empty", Tensor::from_slice::<i64>(&[], [0], device)?);
        if device.is_cpu() {
            state.insert("y", y.clone());
        }
        let path = npy("state.safetensors");
        anygpu::checkpoint::save(&state, &path)?;
        let back = anygpu::checkpoint::load(&path, None)?;
        let narrow = narrow_64_bits(|| anygpu::checkpoint::load(&path, None))?;
        assert_eq!((narrow.get("x").is_none(), narrow.get("empty").expect("empty").dtype()), (true, DType::I32));
        assert_eq!(narrow.skipped().next().map(|(name, _)| name), Some("x"));
        assert_eq!(back.get("x").expect("x").to_vec::<i64>()?, LONGS, "{device}");
        assert_eq!(back.get("empty").expect("empty").dtype(), DType::I64);
        if device.is_cpu() {
            same_floats(back.get("y").expect("y"), DOUBLES);
        }
    }
    Ok(())
}
