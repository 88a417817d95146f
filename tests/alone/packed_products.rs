//! Products and convolutions read halves as they are stored. The numbers are those of the operands that are widened first, to
//! the last bit.

use anygpu::{Conv, DType, Device, Result, Tensor, autocast};

use crate::common::{alone, devices};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// Numbers of all sizes that halves have: also subnormal ones, and zeros of both signs.
fn values(count: usize, seed: usize) -> Vec<f32> {
    let value = |i: usize| {
        let bits = (i + 977 * seed).wrapping_mul(2_654_435_761) as u32 >> 8;
        let size = match bits % 31 {
            0 => 2f32.powi(-24),
            1 => 3.0 * 2f32.powi(-16),
            2 => 0.0,
            3 => 200.0,
            _ => 1.0,
        };
        let sign = if bits & 64 == 0 { 1.0 } else { -1.0 };
        sign * size * (1.0 + ((bits >> 8) % 1000) as f32 / 1000.0)
    };
    (0..count).map(value).collect()
}

fn tensor(shape: &[usize], seed: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::from_vec(values(shape.iter().product(), seed), shape, device)?.to_dtype(dtype)
}

/// Returns whether a device may multiply halves in another order: where it has cooperative matrices, products of f16.
fn may_round_otherwise(dtype: DType, device: &Device) -> bool {
    dtype == DType::F16 && device.info().features.iter().any(|feature| feature == "cooperative-matrix")
}

/// Returns the first element that differs: in its bits, or by more than the last place of a half.
fn difference(got: &Tensor, expected: &Tensor, exact: bool) -> Result<Option<(usize, f32, f32)>> {
    let (got, expected) = (got.to_dtype(DType::F32)?.to_vec::<f32>()?, expected.to_dtype(DType::F32)?.to_vec::<f32>()?);
    let close = |a: f32, b: f32| a.to_bits() == b.to_bits() || !exact && (a - b).abs() <= 2e-2 + 2e-3 * b.abs();
    let mut pairs = got.into_iter().zip(expected).enumerate();
    Ok(pairs.find(|(_, (a, b))| !close(*a, *b)).map(|(i, (a, b))| (i, a, b)))
}

/// Computes `f` of halves and of the same numbers in f32, whose result is rounded at the end.
fn compare(
    what: &str,
    dtype: DType,
    device: &Device,
    shapes: [&[usize]; 2],
    f: impl Fn([&Tensor; 2]) -> Result<Tensor>,
) -> Result<()> {
    let [a, b] = [tensor(shapes[0], 1, dtype, device)?, tensor(shapes[1], 2, dtype, device)?];
    let got = f([&a, &b])?;
    assert_eq!(got.dtype(), dtype);
    let expected = f([&a.to_dtype(DType::F32)?, &b.to_dtype(DType::F32)?])?.to_dtype(dtype)?;
    assert_eq!(got.shape(), expected.shape());
    let wrong = difference(&got, &expected, !may_round_otherwise(dtype, device))?;
    assert_eq!(wrong, None, "{what} of {dtype} on {device}");
    Ok(())
}

/// Sizes `[m, k, n]`: few rows or columns, odd sizes, panels in part empty, and none at all.
const SIZES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [3, 205, 70],
    [70, 33, 2],
    [5, 7, 9],
    [65, 31, 130],
    [129, 77, 67],
    [33, 0, 5],
    [0, 4, 5],
    [20, 3, 300],
];

#[test]
fn products_have_the_numbers_of_widened_operands() -> Result<()> {
    let _alone = alone();
    for device in devices() {
        for (dtype, [m, k, n]) in HALVES.into_iter().flat_map(|dtype| SIZES.map(|sizes| (dtype, sizes))) {
            let what = format!("{m} × {k} × {n}");
            compare(&what, dtype, &device, [&[m, k], &[k, n]], |[a, b]| a.matmul(b))?;
            // Rows that begin in the middle of a word, and operands that are transposed.
            compare(&format!("{what}, inner"), dtype, &device, [&[m + 1, k + 3], &[k + 2, n + 1]], |[a, b]| {
                let (a, b) = (a.narrow(0, 1, m)?.narrow(1, 3, k)?, b.narrow(0, 2, k)?.narrow(1, 1, n)?);
                a.matmul(&b)
            })?;
            compare(&format!("{what}, transposed"), dtype, &device, [&[k, m], &[n, k]], |[a, b]| {
                a.t()?.matmul(&b.t()?)
            })?;
        }
    }
    Ok(())
}

#[test]
fn batches_have_the_numbers_of_widened_operands() -> Result<()> {
    let _alone = alone();
    for (device, dtype) in devices().iter().flat_map(|device| HALVES.map(|dtype| (device, dtype))) {
        compare("a batch", dtype, device, [&[3, 17, 19], &[3, 19, 23]], |[a, b]| a.matmul(b))?;
        compare("a shared operand", dtype, device, [&[5, 17, 19], &[19, 23]], |[a, b]| a.matmul(b))?;
        compare("a broadcast batch", dtype, device, [&[2, 1, 9, 21], &[3, 21, 10]], |[a, b]| a.matmul(b))?;
        // Batches at two distances, and at three, which are made dense first.
        compare("exchanged", dtype, device, [&[9, 3, 2, 21], &[2, 3, 21, 70]], |[a, b]| {
            a.permute([2, 1, 0, 3])?.matmul(b)
        })?;
        compare("many distances", dtype, device, [&[9, 3, 2, 2, 21], &[2, 3, 2, 21, 70]], |[a, b]| {
            a.permute([3, 1, 2, 0, 4])?.matmul(b)
        })?;
    }
    Ok(())
}

#[test]
fn convolutions_have_the_numbers_of_widened_operands() -> Result<()> {
    let _alone = alone();
    let conv = Conv::new;
    let settings: [([usize; 4], [usize; 4], Conv<2>); 5] = [
        ([5, 7, 9, 8], [12, 7, 3, 3], conv().padding(1)),
        ([2, 5, 7, 9], [6, 5, 3, 2], conv().stride([2, 1])),
        ([3, 4, 7, 5], [4, 1, 3, 3], conv().groups(4).padding(1)),
        ([1, 33, 6, 7], [65, 33, 1, 1], conv()),
        ([4, 18, 5, 5], [10, 9, 3, 3], conv().groups(2).dilation(2).padding(2)),
    ];
    for (device, dtype) in devices().iter().flat_map(|device| HALVES.map(|dtype| (device, dtype))) {
        for (x, w, conv) in settings {
            let what = format!("{x:?} by {w:?}");
            compare(&what, dtype, device, [&x, &w], |[x, w]| x.conv2d(w, None, conv))?;
            // An image that begins in the middle of a word, and one with gaps.
            let [n, c, height, width] = x;
            compare(&format!("{what}, later"), dtype, device, [&[n * c * height * width + 1], &w], |[x, w]| {
                x.narrow(0, 1, n * c * height * width)?.reshape([n, c, height, width])?.conv2d(w, None, conv)
            })?;
            compare(&format!("{what}, gaps"), dtype, device, [&[n, c, width, height], &w], |[x, w]| {
                x.transpose(2, 3)?.conv2d(w, None, conv)
            })?;
        }
    }
    Ok(())
}

/// Gradients are summed in f32 and rounded once, whichever type the gradient of the result comes in.
#[test]
fn gradients_have_the_numbers_of_widened_operands() -> Result<()> {
    let _alone = alone();
    for (device, dtype) in devices().iter().flat_map(|device| HALVES.map(|dtype| (device, dtype))) {
        let gradients = |operands: [&Tensor; 2], f: &dyn Fn([&Tensor; 2]) -> Result<Tensor>| -> Result<[Tensor; 2]> {
            let [a, b] = operands.map(Tensor::requires_grad);
            let y = f([&a, &b])?.to_dtype(dtype)?;
            // A gradient of halves, from a residual sum.
            let y = y.add(&tensor(y.shape(), 4, dtype, device)?)?;
            y.mul(&tensor(y.shape(), 3, dtype, device)?)?.to_dtype(DType::F32)?.sum_all()?.backward()?;
            let grad = |x: &Tensor| x.grad().map_or_else(|| Tensor::zeros(x.shape(), device), Ok);
            Ok([grad(&a)?, grad(&b)?])
        };
        let check = |what: &str, shapes: [&[usize]; 2], f: &dyn Fn([&Tensor; 2]) -> Result<Tensor>| -> Result<()> {
            let [a, b] = [tensor(shapes[0], 1, dtype, device)?, tensor(shapes[1], 2, dtype, device)?];
            let got = gradients([&a, &b], f)?;
            let expected = gradients([&a.to_dtype(DType::F32)?, &b.to_dtype(DType::F32)?], f)?;
            for (which, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got.dtype(), dtype);
                let wrong = difference(got, &expected.to_dtype(dtype)?, !may_round_otherwise(dtype, device))?;
                assert_eq!(wrong, None, "gradient {which} of {what} of {dtype} on {device}");
            }
            Ok(())
        };
        check("a product", [&[33, 21], &[21, 70]], &|[a, b]| a.matmul(b))?;
        check("few rows", [&[2, 21], &[21, 70]], &|[a, b]| a.matmul(b))?;
        check("a transposed operand", [&[33, 21], &[70, 21]], &|[a, b]| a.matmul(&b.t()?))?;
        check("a shared operand", [&[4, 9, 21], &[21, 10]], &|[a, b]| a.matmul(b))?;
        let conv = Conv::new().padding(1);
        check("a convolution", [&[4, 7, 6, 5], &[9, 7, 3, 3]], &|[x, w]| x.conv2d(w, None, conv))?;
        check("a convolution with a stride", [&[4, 7, 6, 5], &[9, 7, 3, 3]], &|[x, w]| {
            x.conv2d(w, None, conv.stride(2))
        })?;
        check("a depthwise convolution", [&[4, 6, 6, 5], &[6, 1, 3, 3]], &|[x, w]| x.conv2d(w, None, conv.groups(6)))?;
        check("a transposed convolution", [&[4, 7, 6, 5], &[7, 9, 3, 3]], &|[x, w]| x.conv_transpose2d(w, None, conv))?;
    }
    Ok(())
}

/// A product of halves takes one dispatch more than one of f32, which rounds the result, and little more memory than its
/// panels: no pass widens the operands.
#[test]
fn no_pass_widens_the_operands() -> Result<()> {
    let _alone = alone();
    for device in devices().iter().filter(|device| !device.is_cpu()) {
        // Lavapipe reads smaller operands of f32 where they are, in one dispatch.
        let dispatches = |dtype| -> Result<u64> {
            let (a, b) = (tensor(&[470, 65], 1, dtype, device)?, tensor(&[65, 490], 2, dtype, device)?);
            a.matmul(&b)?;
            let before = device.dispatches();
            a.matmul(&b)?;
            Ok(device.dispatches() - before)
        };
        assert_eq!(dispatches(DType::F16)?, dispatches(DType::F32)? + 1, "{device}");
        let (x, w) = (tensor(&[4, 7, 9, 8], 1, DType::F32, device)?, tensor(&[12, 7, 3, 3], 2, DType::F32, device)?);
        let convolve = |dtype| -> Result<u64> {
            let (x, w) = (x.to_dtype(dtype)?, w.to_dtype(dtype)?);
            x.conv2d(&w, None, Conv::new())?;
            let before = device.dispatches();
            x.conv2d(&w, None, Conv::new())?;
            Ok(device.dispatches() - before)
        };
        assert_eq!(convolve(DType::BF16)?, convolve(DType::F32)? + 1, "{device}");
        // Within autocast, both operands are rounded, and that is all.
        let (a, b) = (tensor(&[70, 65], 1, DType::F32, device)?, tensor(&[65, 90], 2, DType::F32, device)?);
        autocast(DType::F16, || a.matmul(&b))?;
        let before = device.dispatches();
        autocast(DType::F16, || a.matmul(&b))?;
        assert_eq!(device.dispatches() - before, dispatches(DType::F32)? + 3, "{device}");
    }
    Ok(())
}
