//! Arrays of `f64`, with which oracles compute, and a function that compares them with tensors.
//!
//! Public for the crate's own tests. Users' tests have [`testing`](crate::testing).

use half::{bf16, f16};

use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::tensor::Tensor;

/// An array of any rank in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Nd {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

impl Nd {
    pub fn new(shape: &[usize], data: Vec<f64>) -> Nd {
        debug_assert_eq!(shape.iter().product::<usize>(), data.len(), "{shape:?}");
        Nd { shape: shape.to_vec(), data }
    }

    /// Creates an array whose element at each index is `f(index)`.
    pub fn from_fn(shape: &[usize], mut f: impl FnMut(&[usize]) -> f64) -> Nd {
        Nd::filled(shape, &mut f)
    }

    /// As [`from_fn`](Nd::from_fn), compiled once for all functions.
    fn filled(shape: &[usize], f: &mut dyn FnMut(&[usize]) -> f64) -> Nd {
        let mut index = vec![0; shape.len()];
        let count = shape.iter().product();
        let mut data = Vec::with_capacity(count);
        for _ in 0..count {
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

    /// Returns the array with each element rounded to the type.
    pub fn rounded(&self, dtype: DType) -> Nd {
        match dtype {
            DType::F32 => self.map(|v| f64::from(v as f32)),
            DType::F16 => self.map(|v| f64::from(f16::from_f64(v))),
            DType::BF16 => self.map(|v| f64::from(bf16::from_f64(v))),
            DType::I32 => self.map(|v| f64::from(v as i32)),
            DType::U32 => self.map(|v| f64::from(v as u32)),
            DType::U8 => self.map(|v| f64::from(v as u8)),
            DType::Bool => self.map(|v| f64::from(u8::from(v != 0.0))),
            DType::I64 => self.map(|v| v as i64 as f64),
            DType::F64 => self.clone(),
        }
    }

    /// Returns the array as a dense tensor.
    pub fn tensor(&self, dtype: DType, device: &Device) -> Result<Tensor> {
        fn of<T: Element>(x: &Nd, device: &Device, f: impl Fn(f64) -> T) -> Result<Tensor> {
            Tensor::from_slice(&x.data.iter().map(|&v| f(v)).collect::<Vec<_>>(), x.shape.clone(), device)
        }
        match dtype {
            DType::F32 => of(self, device, |v| v as f32),
            DType::F16 => of(self, device, f16::from_f64),
            DType::BF16 => of(self, device, bf16::from_f64),
            DType::I32 => of(self, device, |v| v as i32),
            DType::U32 => of(self, device, |v| v as u32),
            DType::U8 => of(self, device, |v| v as u8),
            DType::Bool => of(self, device, |v| v != 0.0),
            DType::I64 => of(self, device, |v| v as i64),
            DType::F64 => Tensor::from_f64(&self.data, self.shape.clone(), device),
        }
    }
}

/// Returns the elements of a tensor of any type.
///
/// For i64, elements beyond 2⁵³ are rounded.
pub fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_vec_f64()
}

/// Returns random numbers uniform on `lo..hi`, the same in every run, each of them an exact f32.
pub fn uniform(shape: &[usize], lo: f64, hi: f64, seed: u64) -> Nd {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03;
    let number = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (state >> 40) as f64 / (1u64 << 24) as f64;
        f64::from((lo + (hi - lo) * unit) as f32)
    };
    Nd::new(shape, (0..shape.iter().product()).map(number).collect())
}

/// Returns numbers between −1 and 1, but not close to 0, where relu is not differentiable and a quotient is infinite.
pub fn signed(shape: &[usize], seed: u64) -> Nd {
    uniform(shape, -1.0, 1.0, seed).map(|v| f64::from((v + 0.1 * v.signum()) as f32))
}

/// Returns whole numbers from `lo` up to but not including `hi`.
pub fn whole(shape: &[usize], lo: i32, hi: i32, seed: u64) -> Nd {
    uniform(shape, f64::from(lo), f64::from(hi), seed).map(f64::floor)
}

/// The largest difference between two numbers: `|x − y| ≤ atol + rtol · |y|`, as in NumPy's allclose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub atol: f64,
    pub rtol: f64,
}

pub const EXACT: Tolerance = Tolerance { atol: 0.0, rtol: 0.0 };

impl Tolerance {
    /// Returns the largest error that is allowed for `expected`.
    pub fn at(self, expected: f64) -> f64 {
        self.atol + if expected.is_finite() { self.rtol * expected.abs() } else { 0.0 }
    }
}

/// One element of a result, and its expected value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// Its place in row-major order.
    pub position: usize,
    pub got: f64,
    pub expected: f64,
    /// `|got − expected|`: 0 if both are NaN or the same infinity, infinite if only one is.
    pub error: f64,
    /// The largest error that is allowed.
    pub allowed: f64,
}

impl Compared {
    fn new(position: usize, got: f64, expected: f64, tolerance: Tolerance) -> Compared {
        let error = match (got.is_nan(), expected.is_nan()) {
            (true, true) => 0.0,
            (false, false) if got == expected => 0.0,
            (false, false) => (got - expected).abs(),
            _ => f64::INFINITY,
        };
        Compared { position, got, expected, error, allowed: tolerance.at(expected) }
    }

    pub fn is_wrong(&self) -> bool {
        self.error > self.allowed
    }

    /// Returns the error as a multiple of the allowed error.
    pub fn ratio(&self) -> f64 {
        if self.error == 0.0 { 0.0 } else { self.error / self.allowed }
    }
}

/// Returns the element with the largest error relative to its tolerance, and how many are wrong; `None` for no
/// elements.
///
/// `got` and `expected` must have the same length.
pub fn worst(got: &[f64], expected: &[f64], tolerance: Tolerance) -> Option<(Compared, usize)> {
    let elements = || got.iter().zip(expected).enumerate().map(|(i, (&x, &y))| Compared::new(i, x, y, tolerance));
    let wrong = elements().filter(Compared::is_wrong).count();
    // Of equal errors the first, which is the easiest to examine.
    let worst = elements().reduce(|a, b| if (b.ratio(), b.error) > (a.ratio(), a.error) { b } else { a })?;
    Some((worst, wrong))
}

/// Compares the shape and the elements of a tensor.
///
/// # Errors
///
/// A text that states the shapes, or the number of wrong elements and the worst of them, or why the tensor cannot be read.
pub fn difference(got: &Tensor, expected: &Nd, tolerance: Tolerance) -> Result<(), String> {
    if got.shape() != expected.shape {
        return Err(format!("the shape is {:?}, expected {:?}", got.shape(), expected.shape));
    }
    let values = values(got).map_err(|error| error.to_string())?;
    match worst(&values, &expected.data, tolerance) {
        Some((worst, wrong)) if wrong > 0 => {
            let Compared { position, got, expected: value, error, allowed } = worst;
            let (at, count) = (index_of(position, &expected.shape), values.len());
            Err(format!(
                "{wrong} of {count} elements differ, the worst at {at:?}: got {got}, expected {value}, error {error:.2e}, \
                 allowed {allowed:.2e}"
            ))
        }
        _ => Ok(()),
    }
}

/// Returns the index of the element at a position in row-major order.
pub fn index_of(mut position: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        index[d] = position % shape[d];
        position /= shape[d];
    }
    index
}
