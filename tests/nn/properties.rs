//! Properties for any shape, strides and element type: the devices agree with `cpu`, and views, copies and conversions
//! preserve the elements. `PROPTEST_CASES` sets the number of cases; a failure prints the smallest one found.

use std::sync::LazyLock;

use anygpu::{DType, Device, Result, Tensor};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::{devices, property};

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(devices);

/// A step from one view of a tensor to the next; the numbers are taken modulo what is possible.
#[derive(Clone, Debug)]
enum Step {
    Swap(usize, usize),
    Narrow(usize, usize, usize),
    Stretch(usize, usize),
    Reshape,
    Copy,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6usize, 0..6usize).prop_map(|(a, b)| Step::Swap(a, b)),
        (0..6usize, 0..9usize, 0..9usize).prop_map(|(d, start, len)| Step::Narrow(d, start, len)),
        (0..6usize, 1..4usize).prop_map(|(d, n)| Step::Stretch(d, n)),
        Just(Step::Reshape),
        Just(Step::Copy),
    ]
}

impl Step {
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() == 0 {
            return Ok(x.clone());
        }
        match *self {
            Step::Swap(a, b) => x.transpose(a % x.rank(), b % x.rank()),
            Step::Narrow(dim, start, len) => {
                let (dim, size) = (dim % x.rank(), x.shape()[dim % x.rank()]);
                let start = start % (size + 1);
                x.narrow(dim, start, len.min(size - start))
            }
            // A dimension of size 1, repeated with stride 0.
            Step::Stretch(dim, n) if x.rank() < 6 => {
                let x = x.unsqueeze(dim % (x.rank() + 1))?;
                let mut shape = x.shape().to_vec();
                shape[dim % x.rank()] *= if shape[dim % x.rank()] == 1 { n } else { 1 };
                x.broadcast_to(shape)
            }
            Step::Stretch(..) => Ok(x.clone()),
            Step::Reshape => {
                let (first, rest) = x.shape().split_first().unwrap_or((&1, &[]));
                x.reshape([&[rest.iter().product()], &[*first][..]].concat())
            }
            Step::Copy => x.contiguous(),
        }
    }
}

fn dtype() -> impl Strategy<Value = DType> {
    // Those of 64 bits do not compute everywhere: see wide_types.rs.
    proptest::sample::select(DType::ALL.into_iter().filter(|dtype| dtype.size() < 8).collect::<Vec<_>>())
}

fn shape() -> impl Strategy<Value = Vec<usize>> {
    vec(0..7usize, 0..4)
}

/// A tensor of small whole numbers, exact in every type, seen through some views.
fn numbers(shape: &[usize], seed: i32, dtype: DType, device: &Device) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let values: Vec<i32> = (0..count as i32).map(|i| (i * 7 + seed) % 11).collect();
    Tensor::from_slice(&values, shape, device)?.to_dtype(dtype)
}

fn through(x: &Tensor, steps: &[Step]) -> Result<Tensor> {
    steps.iter().try_fold(x.clone(), |x, step| step.apply(&x))
}

/// Shape, type and values of a result; or its error's text without the device's name.
fn outcome(x: &Result<Tensor>) -> std::result::Result<(Vec<usize>, DType, Vec<f32>), String> {
    let read = |x: &Tensor| Ok((x.shape().to_vec(), x.dtype(), x.to_dtype(DType::F32)?.to_vec::<f32>()?));
    x.as_ref().map_err(ToString::to_string).and_then(|x| read(x).map_err(|e: anygpu::Error| e.to_string()))
}

fn close(a: &[f32], b: &[f32], tolerance: f32) -> bool {
    let near =
        |(x, y): (&f32, &f32)| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * y.abs().max(1.0);
    a.len() == b.len() && a.iter().zip(b).all(near)
}

/// Runs `f` on every device and compares with what it gives on `cpu`.
fn same_everywhere(tolerance: f32, f: impl Fn(&Device) -> Result<Tensor>) -> std::result::Result<(), TestCaseError> {
    let expected = outcome(&f(&Device::cpu()));
    for device in DEVICES.iter().filter(|d| !d.is_cpu()) {
        match (&expected, &outcome(&f(device))) {
            (Ok((shape, dtype, values)), Ok((s, d, v))) => {
                prop_assert_eq!((s, d), (shape, dtype), "{}", device);
                prop_assert!(close(v, values, tolerance), "{}: {:?}, on cpu {:?}", device, v, values);
            }
            (Err(expected), Err(got)) => prop_assert_eq!(got, expected),
            (expected, got) => prop_assert!(false, "{}: {:?}, on cpu {:?}", device, got, expected),
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(property(64))]

    #[test]
    fn views_and_copies(shape in shape(), steps in vec(step(), 0..6), dtype in dtype(), seed in 0..11) {
        same_everywhere(0.0, |device| through(&numbers(&shape, seed, dtype, device)?, &steps))?;
        // A view's elements are those of its copy.
        let x = through(&numbers(&shape, seed, dtype, &Device::cpu()).unwrap(), &steps).unwrap();
        prop_assert_eq!(outcome(&x.contiguous()), outcome(&Ok(x)));
    }

    #[test]
    fn journeys(shape in shape(), steps in vec(step(), 0..4), dtype in dtype(), from in 0..16usize, to in 0..16usize) {
        let (from, to) = (&DEVICES[from % DEVICES.len()], &DEVICES[to % DEVICES.len()]);
        let x = through(&numbers(&shape, 3, dtype, from).unwrap(), &steps).unwrap();
        prop_assert_eq!(outcome(&x.to(to).and_then(|y| y.to(from))), outcome(&Ok(x)));
    }

    #[test]
    fn conversions(bits in vec(any::<u32>(), 0..40), from in dtype(), to in dtype(), start in 0..5usize) {
        let values: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
        same_everywhere(0.0, |device| {
            let x = Tensor::from_slice(&values, values.len(), device)?.to_dtype(from)?;
            let start = start.min(values.len());
            x.narrow(0, start, values.len() - start)?.to_dtype(to)
        })?;
    }

    #[test]
    fn arithmetic(
        shape in shape(), a in vec(step(), 0..4), ones in vec(any::<bool>(), 4), types in (dtype(), dtype()), op in 0..3usize,
    ) {
        let ops: [fn(&Tensor, &Tensor) -> Result<Tensor>; 3] = [|a, b| a.add(b), |a, b| a.mul(b), |a, b| a.sub(b)];
        // The second operand has some of the first's dimensions as 1: it is stretched.
        same_everywhere(1e-6, |device| {
            let x = through(&numbers(&shape, 1, types.0, device)?, &a)?;
            let other: Vec<usize> =
                x.shape().iter().enumerate().map(|(d, &s)| if ones[d % 4] { 1 } else { s }).collect();
            ops[op](&x, &numbers(&other, 5, types.1, device)?)
        })?;
    }

    #[test]
    fn reductions(shape in shape(), steps in vec(step(), 0..4), dims in vec(0..6usize, 0..3), keepdim in any::<bool>()) {
        same_everywhere(1e-6, |device| {
            let x = through(&numbers(&shape, 2, DType::F32, device)?, &steps)?;
            let dims: Vec<usize> = dims.iter().filter(|_| x.rank() > 0).map(|d| d % x.rank().max(1)).collect();
            x.sum(&dims, keepdim)
        })?;
    }

    #[test]
    fn products(m in 0..20usize, k in 0..20usize, n in 0..70usize, batch in 0..3usize, turned in any::<(bool, bool)>(), half in any::<bool>()) {
        same_everywhere(1e-5, |device| {
            let dtype = if half { DType::F16 } else { DType::F32 };
            let operand = |rows, columns, turned, seed| match turned {
                true => numbers(&[batch, columns, rows], seed, dtype, device)?.t(),
                false => numbers(&[batch, rows, columns], seed, dtype, device),
            };
            operand(m, k, turned.0, 1)?.matmul(&operand(k, n, turned.1, 4)?)
        })?;
    }

    /// The gradient of a sum over views counts how often each element is seen: the same as summing a tensor of ones back.
    #[test]
    fn gradients_of_views(shape in shape(), steps in vec(step(), 0..5)) {
        same_everywhere(0.0, |device| {
            let x = numbers(&shape, 0, DType::F32, device)?.requires_grad();
            let y = through(&x, &steps)?;
            (&y * &y)?.sum_all()?.backward()?;
            Ok(x.grad().unwrap_or(x))
        })?;
    }
}
