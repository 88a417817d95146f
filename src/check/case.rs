//! A case of the op table: an op, its operands and their layouts in memory, and the expected result.

use std::iter;

use super::nd::{EXACT, Nd, Tolerance};
use super::oracle;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::variants;
use crate::tensor::Tensor;

/// One operand: its value, and its layout in memory.
#[derive(Clone)]
pub(super) struct Input {
    /// The elements that the op reads.
    pub value: Nd,
    pub dtype: DType,
    /// The array that is uploaded; its part `view` is `value`.
    base: Nd,
    view: View,
}

#[derive(Clone)]
enum View {
    /// Without gaps; see [`Input::tensor`] for the offset.
    Dense,
    Transposed(usize, usize),
    /// With a margin of three elements before and two after along the dimension, filled with NaN, which no op may read.
    Narrowed(usize),
    Broadcast,
}

pub(super) fn dense(value: Nd) -> Input {
    Input { base: value.clone(), value, dtype: DType::F32, view: View::Dense }
}

/// Returns an operand that is transposed in memory.
pub(super) fn transposed(value: Nd, a: usize, b: usize) -> Input {
    Input { base: oracle::transpose(&value, a, b), value, dtype: DType::F32, view: View::Transposed(a, b) }
}

/// Returns an operand in the middle of a larger array: its offset is not 0, and its rows have gaps unless `dim` is 0.
pub(super) fn narrowed(value: Nd, dim: usize) -> Input {
    let mut shape = value.shape.clone();
    shape[dim] += 5;
    let below: usize = shape[dim + 1..].iter().product();
    let length = value.shape[dim] * below;
    let mut data = Vec::with_capacity(shape.iter().product());
    for part in 0..shape[..dim].iter().product() {
        data.extend(iter::repeat_n(f64::NAN, 3 * below));
        data.extend(&value.data[part * length..][..length]);
        data.extend(iter::repeat_n(f64::NAN, 2 * below));
    }
    let base = Nd::new(&shape, data);
    Input { base, value, dtype: DType::F32, view: View::Narrowed(dim) }
}

/// Returns an operand that repeats its elements with strides of 0.
pub(super) fn broadcast(base: Nd, shape: &[usize]) -> Input {
    Input { value: oracle::broadcast(&base, shape), base, dtype: DType::F32, view: View::Broadcast }
}

impl Input {
    /// Returns the operand with another type than f32; its values are rounded to it.
    pub fn of(self, dtype: DType) -> Input {
        Input { value: self.value.rounded(dtype), base: self.base.rounded(dtype), dtype, view: self.view }
    }

    /// Returns the operand as a tensor. A dense one is not at the beginning of its memory if `offset`: there are three
    /// elements before it and two after it, all NaN.
    pub fn tensor(&self, device: &Device, offset: bool) -> Result<Tensor> {
        if offset && matches!(self.view, View::Dense) {
            let count = self.base.data.len();
            let data = [&[f64::NAN; 3][..], &self.base.data, &[f64::NAN; 2]].concat();
            let margins = Nd { shape: vec![count + 5], data };
            return margins.tensor(self.dtype, device)?.narrow(0, 3, count)?.reshape(self.base.shape.clone());
        }
        let base = self.base.tensor(self.dtype, device)?;
        match self.view {
            View::Dense => Ok(base),
            View::Transposed(a, b) => base.transpose(a, b),
            View::Narrowed(dim) => base.narrow(dim, 3, self.value.shape[dim]),
            View::Broadcast => base.broadcast_to(self.value.shape.clone()),
        }
    }
}

type Op = Box<dyn Fn(&[Tensor]) -> Result<Tensor> + Send + Sync>;
type Oracle = Box<dyn Fn(&[&Nd]) -> Nd + Send + Sync>;

/// A case of the table. The first word of its name is the op's name.
pub(super) struct Case {
    pub name: String,
    pub inputs: Vec<Input>,
    op: Op,
    oracle: Oracle,
    pub result_dtype: DType,
    pub value: Tolerance,
    pub gradient: Option<Tolerance>,
    /// Scalar operations of the value, if there are many more than elements.
    operations: u64,
    /// A family of kernels, and the variant of it to run.
    pub variant: Option<(&'static str, &'static str)>,
}

impl Case {
    pub fn new(
        name: impl Into<String>,
        inputs: impl Into<Vec<Input>>,
        op: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
        oracle: impl Fn(&[&Nd]) -> Nd + Send + Sync + 'static,
    ) -> Case {
        Case::of(name.into(), inputs.into(), Box::new(op), Box::new(oracle))
    }

    /// As [`new`](Case::new), compiled once for all functions.
    fn of(name: String, inputs: Vec<Input>, op: Op, oracle: Oracle) -> Case {
        Case {
            name,
            inputs,
            op,
            oracle,
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

    /// Sets the tolerance of the value; the gradient's is ten times as large.
    pub fn within(mut self, atol: f64, rtol: f64) -> Case {
        self.value = Tolerance { atol, rtol };
        self.gradient = self.gradient.map(|_| Tolerance { atol: 10.0 * atol, rtol: 10.0 * rtol });
        self
    }

    pub fn exact(mut self) -> Case {
        self.value = EXACT;
        self
    }

    /// Marks the op as one without a gradient, or with one that the oracle's differences do not approximate.
    pub fn no_gradient(mut self) -> Case {
        self.gradient = None;
        self
    }

    /// Sets the type of the result, if it is not f32. A result that is not a float is exact and has no gradient.
    pub fn result_dtype(mut self, dtype: DType) -> Case {
        self.result_dtype = dtype;
        if dtype.is_float() { self } else { self.exact().no_gradient() }
    }

    /// Sets the scalar operations of the value, if there are many more than elements: for products and sliding windows.
    pub fn operations(mut self, count: usize) -> Case {
        self.operations = count as u64;
        self
    }

    /// Runs the case with one variant of a family of kernels, chosen or not, on every adapter that can run it. The name
    /// starts with `op/variant`. The gradient would run without the variant, so it must be a part of the op.
    pub fn variant(mut self, family: &'static str, variant: &'static str) -> Case {
        self.variant = Some((family, variant));
        self.no_gradient()
    }

    /// Returns the op's name.
    pub fn op_name(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }

    /// Returns whether the device has the variant that the case is for.
    pub fn runs_on(&self, device: &Device) -> bool {
        self.variant.is_none_or(|(family, variant)| variants::runs_on(device, family, variant))
    }

    /// Returns whether the case is for a variant that the device never chooses itself.
    pub fn is_on_demand(&self, device: &Device) -> bool {
        self.variant.is_some_and(|(family, variant)| variants::is_on_demand(device, family, variant))
    }

    /// Estimates the case's scalar operations on a device, by which [`Load`](super::load::Load) decides.
    pub fn cost(&self) -> u64 {
        let elements = self.inputs.iter().map(|input| input.value.data.len() as u64).max().unwrap_or(0);
        // A gradient takes about twice the operations of the value.
        let passes = if self.gradient.is_some() { 3 } else { 1 };
        self.operations.max(elements).saturating_mul(passes)
    }

    /// Returns the operands on a device. Half of the dense ones have an offset, so that each op sees both.
    pub fn tensors(&self, device: &Device) -> Result<Vec<Tensor>> {
        let size: usize = self.inputs.iter().flat_map(|input| &input.value.shape).sum();
        let offset = |i: usize| (self.name.len() + size + i).is_multiple_of(2);
        self.inputs.iter().enumerate().map(|(i, input)| input.tensor(device, offset(i))).collect()
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

    /// Computes central differences of Σ weights · op at some elements of input `i`.
    pub fn expected_gradient(&self, i: usize, weights: &Nd) -> ExpectedGradient {
        const STEP: f64 = 1e-5;
        let value = &self.inputs[i].value;
        // The oracle runs twice for each position, which takes long for large cases.
        let positions = sample(value.data.len(), if self.cost() > LARGE { 3 } else { 8 });
        let weighted = |position: usize, step: f64| {
            let mut moved = value.clone();
            moved.data[position] += step;
            let out = self.expected_with(Some((i, &moved)));
            out.data.iter().zip(&weights.data).map(|(v, w)| v * w).collect::<Vec<_>>()
        };
        let difference = |&position: &usize| {
            let (up, down) = (weighted(position, STEP), weighted(position, -STEP));
            // Element by element, because the difference of two large sums would lose digits.
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

/// The scalar operations of a case that is large.
const LARGE: u64 = 10_000_000;

/// Returns all positions of a small array, and `some` of a large one, of at least two.
fn sample(count: usize, some: usize) -> Vec<usize> {
    match count {
        0..=30 => (0..count).collect(),
        _ => (0..some).map(|i| i * (count - 1) / (some - 1)).collect(),
    }
}
