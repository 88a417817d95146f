//! What all tests share: the devices they run on, arrays of `f64`, oracles, and one way of comparing.
#![allow(dead_code, reason = "every test binary compiles this file and uses its own part of it")]

pub mod oracle;

use anygpu::{DType, Device, Tensor};

/// Every device that the tests run on: `cpu`, each visible adapter, and a second logical device on the first adapter.
///
/// `ANYGPU_REQUIRE_DEVICES`, a comma-separated list of names, says which must be there: a missing one fails the test.
pub fn devices() -> Vec<Device> {
    required();
    let mut all: Vec<Device> = Device::all().into();
    all.rotate_right(1); // cpu first: where it fails too, the op is wrong, not an adapter
    if let Some(first) = all.iter().find(|d| d.name().starts_with("soft:") || d.name().starts_with("gpu:")) {
        all.extend(Device::new(&format!("{}/1", first.name())));
    }
    all
}

/// Panics unless every device of `ANYGPU_REQUIRE_DEVICES` opens.
fn required() {
    let names = std::env::var("ANYGPU_REQUIRE_DEVICES").unwrap_or_default();
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if let Err(error) = Device::new(name) {
            panic!("ANYGPU_REQUIRE_DEVICES asks for {name}, and these tests may not run without it: {error}");
        }
    }
}

/// The device called `name`, or `None` (said on standard error) where this machine has none; what
/// `ANYGPU_REQUIRE_DEVICES` asks for is there.
pub fn device(name: &str) -> Option<Device> {
    required();
    Device::new(name).inspect_err(|error| eprintln!("NOT TESTED: {error}")).ok()
}

/// An array of any rank in row-major order: what oracles compute with.
#[derive(Clone, Debug, PartialEq)]
pub struct Nd {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

impl Nd {
    pub fn new(shape: &[usize], data: Vec<f64>) -> Nd {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "{shape:?}");
        Nd { shape: shape.to_vec(), data }
    }

    /// An array whose element at each index is `f(index)`.
    pub fn from_fn(shape: &[usize], mut f: impl FnMut(&[usize]) -> f64) -> Nd {
        let mut index = vec![0; shape.len()];
        let mut data = Vec::new();
        for _ in 0..shape.iter().product::<usize>() {
            data.push(f(&index));
            for d in (0..shape.len()).rev() {
                index[d] += 1;
                if index[d] < shape[d] {
                    break;
                }
                index[d] = 0;
            }
        }
        Nd::new(shape, data)
    }

    pub fn at(&self, index: &[usize]) -> f64 {
        let mut position = 0;
        for (i, size) in index.iter().zip(&self.shape) {
            position = position * size + i;
        }
        self.data[position]
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Nd {
        Nd::new(&self.shape, self.data.iter().map(|&v| f(v)).collect())
    }

    /// As a dense tensor.
    pub fn tensor(&self, dtype: DType, device: &Device) -> Tensor {
        let shape = self.shape.clone();
        let made = match dtype {
            DType::F32 => Tensor::from_slice(&self.data.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape, device),
            DType::I32 => Tensor::from_slice(&self.data.iter().map(|&v| v as i32).collect::<Vec<_>>(), shape, device),
            DType::U32 => Tensor::from_slice(&self.data.iter().map(|&v| v as u32).collect::<Vec<_>>(), shape, device),
            other => panic!("the tests know no {other}"),
        };
        made.unwrap_or_else(|error| panic!("{:?} on {device}: {error}", self.shape))
    }
}

/// The elements of a tensor, of whatever type.
pub fn values(tensor: &Tensor) -> anygpu::Result<Vec<f64>> {
    Ok(match tensor.dtype() {
        DType::F32 => tensor.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        DType::I32 => tensor.to_vec::<i32>()?.into_iter().map(f64::from).collect(),
        DType::U32 => tensor.to_vec::<u32>()?.into_iter().map(f64::from).collect(),
        other => panic!("the tests know no {other}"),
    })
}

/// Uniform on `lo..hi`, the same in every run, each value an exact f32.
pub fn uniform(shape: &[usize], lo: f64, hi: f64, seed: u64) -> Nd {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03;
    Nd::from_fn(shape, |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (state >> 40) as f64 / (1u64 << 24) as f64;
        f64::from((lo + (hi - lo) * unit) as f32)
    })
}

/// Between −1 and 1, but not close to 0, where relu has its kink and division its pole.
pub fn signed(shape: &[usize], seed: u64) -> Nd {
    uniform(shape, -1.0, 1.0, seed).map(|v| f64::from((v + 0.1 * v.signum()) as f32))
}

/// Whole numbers from `lo` to `hi`, without the latter.
pub fn whole(shape: &[usize], lo: i32, hi: i32, seed: u64) -> Nd {
    uniform(shape, f64::from(lo), f64::from(hi), seed).map(f64::floor)
}

/// How far two numbers may be apart: `|x − y| ≤ atol + rtol · |y|`, as in NumPy's allclose.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    pub atol: f64,
    pub rtol: f64,
}

pub const EXACT: Tolerance = Tolerance { atol: 0.0, rtol: 0.0 };

/// The worst element that is outside of the tolerance, with its index and both values.
pub fn difference(got: &[f64], expected: &[f64], shape: &[usize], tolerance: Tolerance) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!("{} elements, expected {} of {shape:?}", got.len(), expected.len()));
    }
    let excess = |x: f64, y: f64| match (x.is_nan(), y.is_nan()) {
        (true, true) => 0.0,
        (false, false) if x == y => 0.0,
        (false, false) => (x - y).abs() - (tolerance.atol + tolerance.rtol * y.abs()),
        _ => f64::INFINITY,
    };
    let bad: Vec<usize> = (0..got.len()).filter(|&i| excess(got[i], expected[i]) > 0.0).collect();
    let worst = *bad.iter().max_by(|&&i, &&j| excess(got[i], expected[i]).total_cmp(&excess(got[j], expected[j])))?;
    Some(format!(
        "{} of {} elements differ, worst at {:?} of {shape:?}: got {}, expected {} ({tolerance:?})",
        bad.len(),
        got.len(),
        index_of(worst, shape),
        got[worst],
        expected[worst],
    ))
}

fn index_of(mut position: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        index[d] = position % shape[d];
        position /= shape[d];
    }
    index
}

/// Panics with `what`, the device, the shape, and the worst element if a tensor is not as expected.
#[track_caller]
pub fn assert_close(what: &str, got: &Tensor, expected: &Nd, tolerance: Tolerance) {
    let device = got.device();
    assert_eq!(got.shape(), expected.shape, "{what} on {device}");
    let values = values(got).unwrap_or_else(|error| panic!("{what} on {device}: {error}"));
    if let Some(difference) = difference(&values, &expected.data, &expected.shape, tolerance) {
        panic!("{what} on {device}: {difference}");
    }
}
