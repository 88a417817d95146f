//! A case of the op table: an op, its operands and how they lie in memory, and the expected result.

use super::nd::{EXACT, Nd, Tolerance};
use super::oracle;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::variants;
use crate::tensor::Tensor;

/// One operand: its value, and its layout in memory.
pub(super) struct Input {
    /// The elements that the op reads.
    pub value: Nd,
    pub dtype: DType,
    /// What is uploaded; `view` of it is `value`.
    base: Nd,
    view: View,
}

enum View {
    Dense,
    Transposed(usize, usize),
    /// With a margin of three before and two behind along the dimension, filled with NaN, which no op may read.
    Narrowed(usize),
    Broadcast,
}

pub(super) fn dense(value: Nd) -> Input {
    Input { base: value.clone(), value, dtype: DType::F32, view: View::Dense }
}

/// Lies transposed in memory.
pub(super) fn transposed(value: Nd, a: usize, b: usize) -> Input {
    Input { base: oracle::transpose(&value, a, b), value, dtype: DType::F32, view: View::Transposed(a, b) }
}

/// Lies in the middle of something larger: an offset that is not 0, and rows with gaps unless `dim` is 0.
pub(super) fn narrowed(value: Nd, dim: usize) -> Input {
    let mut shape = value.shape.clone();
    shape[dim] += 5;
    let base = Nd::from_fn(&shape, |index| {
        let mut from = index.to_vec();
        match from[dim].checked_sub(3).filter(|&i| i < value.shape[dim]) {
            Some(i) => {
                from[dim] = i;
                value.at(&from)
            }
            None => f64::NAN,
        }
    });
    Input { base, value, dtype: DType::F32, view: View::Narrowed(dim) }
}

/// Repeats its elements with strides of 0.
pub(super) fn broadcast(base: Nd, shape: &[usize]) -> Input {
    Input { value: oracle::broadcast(&base, shape), base, dtype: DType::F32, view: View::Broadcast }
}

impl Input {
    /// Of another type than f32; the values are rounded to it.
    pub fn of(self, dtype: DType) -> Input {
        Input { value: self.value.rounded(dtype), base: self.base.rounded(dtype), dtype, view: self.view }
    }

    pub fn tensor(&self, device: &Device) -> Result<Tensor> {
        let base = self.base.tensor(self.dtype, device)?;
        match self.view {
            View::Dense => Ok(base),
            View::Transposed(a, b) => base.transpose(a, b),
            View::Narrowed(dim) => base.narrow(dim, 3, self.value.shape[dim]),
            View::Broadcast => base.broadcast_to(self.value.shape.clone()),
        }
    }
}

type Op = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;
type Oracle = Box<dyn Fn(&[&Nd]) -> Nd>;

/// A case of the table. The first word of its name is the op's.
pub(super) struct Case {
    pub name: String,
    pub inputs: Vec<Input>,
    op: Op,
    oracle: Oracle,
    pub result_dtype: DType,
    pub value: Tolerance,
    pub gradient: Option<Tolerance>,
    /// Scalar operations of the value, where they are many more than the elements.
    operations: u64,
    /// A family of kernels and the variant of it that is to run.
    pub variant: Option<(&'static str, &'static str)>,
}

impl Case {
    pub fn new(
        name: impl Into<String>,
        inputs: impl Into<Vec<Input>>,
        op: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
        oracle: impl Fn(&[&Nd]) -> Nd + 'static,
    ) -> Case {
        Case {
            name: name.into(),
            inputs: inputs.into(),
            op: Box::new(op),
            oracle: Box::new(oracle),
            result_dtype: DType::F32,
            value: Tolerance { atol: 1e-5, rtol: 1e-5 },
            gradient: Some(Tolerance { atol: 1e-4, rtol: 1e-4 }),
            operations: 0,
            variant: None,
        }
    }

    pub fn named(self, name: impl Into<String>) -> Case {
        Case { name: name.into(), ..self }
    }

    /// Tolerance of the value; the gradient's is ten times as wide.
    pub fn within(mut self, atol: f64, rtol: f64) -> Case {
        self.value = Tolerance { atol, rtol };
        self.gradient = self.gradient.map(|_| Tolerance { atol: 10.0 * atol, rtol: 10.0 * rtol });
        self
    }

    pub fn exact(mut self) -> Case {
        self.value = EXACT;
        self
    }

    /// The op has no gradient, or the oracle's differences do not approximate it.
    pub fn no_gradient(mut self) -> Case {
        self.gradient = None;
        self
    }

    /// The type of the result, where it is not f32. One that is no float is exact and has no gradient.
    pub fn result_dtype(mut self, dtype: DType) -> Case {
        self.result_dtype = dtype;
        if dtype.is_float() { self } else { self.exact().no_gradient() }
    }

    /// Scalar operations of the value, where they are many more than the elements: of products and sliding windows.
    pub fn operations(mut self, count: usize) -> Case {
        self.operations = count as u64;
        self
    }

    /// Runs with one variant of a family of kernels, chosen or not, wherever an adapter has what it needs. The name starts
    /// with `family/variant`. The gradient would run outside of that: put it into the op.
    pub fn variant(mut self, family: &'static str, variant: &'static str) -> Case {
        self.variant = Some((family, variant));
        self.no_gradient()
    }

    /// The op's name.
    pub fn op_name(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }

    /// Whether the device has the variant that the case is for.
    pub fn runs_on(&self, device: &Device) -> bool {
        self.variant.is_none_or(|(family, variant)| variants::runs_on(device, family, variant))
    }

    /// An estimate of its scalar operations on a device: what [`Load`](super::load::Load) decides by.
    pub fn cost(&self) -> u64 {
        let elements = self.inputs.iter().map(|input| input.value.data.len() as u64).max().unwrap_or(0);
        // A gradient takes about twice the operations of the value.
        let passes = if self.gradient.is_some() { 3 } else { 1 };
        self.operations.max(elements).saturating_mul(passes)
    }

    pub fn run(&self, inputs: &[Tensor]) -> Result<Tensor> {
        (self.op)(inputs)
    }

    pub fn expected(&self) -> Nd {
        self.expected_with(None)
    }

    fn expected_with(&self, changed: Option<(usize, &Nd)>) -> Nd {
        let mut values: Vec<&Nd> = self.inputs.iter().map(|input| &input.value).collect();
        if let Some((i, value)) = changed {
            values[i] = value;
        }
        (self.oracle)(&values)
    }

    /// Central differences of Σ weights · op at some elements of input `i`.
    pub fn expected_gradient(&self, i: usize, weights: &Nd) -> ExpectedGradient {
        const STEP: f64 = 1e-5;
        let value = &self.inputs[i].value;
        let positions = sample(value.data.len());
        let weighted = |position: usize, step: f64| {
            let mut moved = value.clone();
            moved.data[position] += step;
            let out = self.expected_with(Some((i, &moved)));
            out.data.iter().zip(&weights.data).map(|(v, w)| v * w).collect::<Vec<_>>()
        };
        let difference = |&position: &usize| {
            let (up, down) = (weighted(position, STEP), weighted(position, -STEP));
            // Element by element: the difference of two large sums would lose digits.
            up.iter().zip(&down).map(|(u, d)| u - d).sum::<f64>() / (2.0 * STEP)
        };
        let values = positions.iter().map(difference).collect();
        ExpectedGradient { input: i, positions, values }
    }
}

/// The expected gradient of one input, at some of its elements.
pub(super) struct ExpectedGradient {
    pub input: usize,
    pub positions: Vec<usize>,
    pub values: Vec<f64>,
}

/// All positions of a small array, some of a large one.
fn sample(count: usize) -> Vec<usize> {
    match count {
        0..=30 => (0..count).collect(),
        _ => (0..8).map(|i| i * (count - 1) / 7).collect(),
    }
}
