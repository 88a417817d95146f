//! A row of the op table, and how all rows run on all devices.

use anygpu::{DType, Device, Result, Tensor};

use crate::common::{EXACT, Nd, Tolerance, devices, difference, oracle, uniform, values};

/// One operand: what an op sees, and how it lies in memory.
pub struct Input {
    /// What the op sees.
    pub value: Nd,
    pub dtype: DType,
    /// What is uploaded, and the view of it that gives `value`.
    base: Nd,
    view: View,
}

enum View {
    Dense,
    Transposed(usize, usize),
    /// With a margin of three before and two behind along the dimension, full of what no op may read.
    Narrowed(usize),
    Broadcast,
}

pub fn dense(value: Nd) -> Input {
    Input { base: value.clone(), value, dtype: DType::F32, view: View::Dense }
}

/// Lies transposed in memory.
pub fn transposed(value: Nd, a: usize, b: usize) -> Input {
    Input { base: oracle::transpose(&value, a, b), value, dtype: DType::F32, view: View::Transposed(a, b) }
}

/// Lies in the middle of something larger: an offset that is not 0, and rows with gaps unless `dim` is 0.
pub fn narrowed(value: Nd, dim: usize) -> Input {
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
pub fn broadcast(base: Nd, shape: &[usize]) -> Input {
    Input { value: oracle::broadcast(&base, shape), base, dtype: DType::F32, view: View::Broadcast }
}

impl Input {
    pub fn of(mut self, dtype: DType) -> Input {
        self.dtype = dtype;
        self
    }

    fn tensor(&self, device: &Device) -> Result<Tensor> {
        let base = self.base.tensor(self.dtype, device);
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

/// A row of the table.
pub struct Case {
    name: String,
    inputs: Vec<Input>,
    op: Op,
    oracle: Oracle,
    dtype: DType,
    value: Tolerance,
    gradient: Option<Tolerance>,
    devices: Option<Vec<&'static str>>,
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
            dtype: DType::F32,
            value: Tolerance { atol: 1e-5, rtol: 1e-5 },
            gradient: Some(Tolerance { atol: 1e-4, rtol: 1e-4 }),
            devices: None,
        }
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

    /// The op has no gradient, or none worth its time here.
    pub fn no_gradient(mut self) -> Case {
        self.gradient = None;
        self
    }

    /// The type of the result, where it is not f32; such a result has no gradient.
    pub fn gives(mut self, dtype: DType) -> Case {
        self.dtype = dtype;
        self.exact().no_gradient()
    }

    /// Runs on these devices only: for what is too large for all.
    pub fn only(mut self, devices: &[&'static str]) -> Case {
        self.devices = Some(devices.to_vec());
        self
    }

    fn label(&self) -> String {
        let shapes: Vec<_> = self.inputs.iter().map(|input| format!("{:?}", input.value.shape)).collect();
        format!("{} {}", self.name, shapes.join(" "))
    }

    fn expected(&self, changed: Option<(usize, &Nd)>) -> Nd {
        let mut values: Vec<&Nd> = self.inputs.iter().map(|input| &input.value).collect();
        if let Some((i, value)) = changed {
            values[i] = value;
        }
        (self.oracle)(&values)
    }

    /// Central differences of Σ weights · op at some elements of input `i`: positions and slopes.
    fn slopes(&self, i: usize, weights: &Nd) -> (Vec<usize>, Vec<f64>) {
        const STEP: f64 = 1e-5;
        let value = &self.inputs[i].value;
        let at = sample(value.data.len());
        let weighted = |position: usize, step: f64| {
            let mut moved = value.clone();
            moved.data[position] += step;
            let out = self.expected(Some((i, &moved)));
            out.data.iter().zip(&weights.data).map(|(v, w)| v * w).collect::<Vec<_>>()
        };
        let slope = |&p: &usize| {
            let (up, down) = (weighted(p, STEP), weighted(p, -STEP));
            // Element by element: the difference of two large sums would lose what is looked for.
            up.iter().zip(&down).map(|(u, d)| u - d).sum::<f64>() / (2.0 * STEP)
        };
        let slopes = at.iter().map(slope).collect();
        (at, slopes)
    }
}

/// All positions of a small array, some of a large one.
fn sample(count: usize) -> Vec<usize> {
    match count {
        0..=30 => (0..count).collect(),
        _ => (0..8).map(|i| i * (count - 1) / 7).collect(),
    }
}

/// Runs every case on every device, and reports all failures together.
pub fn run(cases: Vec<Case>) {
    let devices = devices();
    let mut failures = Vec::new();
    for case in &cases {
        let expected = case.expected(None);
        let weights = uniform(&expected.shape, 0.5, 1.5, 99);
        let tracked = |i: &usize| case.gradient.is_some() && case.inputs[*i].dtype == DType::F32;
        let slopes: Vec<_> = (0..case.inputs.len()).filter(tracked).map(|i| (i, case.slopes(i, &weights))).collect();
        for device in &devices {
            if case.devices.as_ref().is_some_and(|only| !only.contains(&device.name())) {
                continue;
            }
            if let Err(why) = check(case, device, &expected, &weights, &slopes) {
                failures.push(format!("{} on {device}: {why}", case.label()));
            }
        }
    }
    let tries = cases.len();
    assert!(failures.is_empty(), "{} failures in {tries} cases:\n{}", failures.len(), failures.join("\n"));
}

type Slopes = (usize, (Vec<usize>, Vec<f64>));

fn check(case: &Case, device: &Device, expected: &Nd, weights: &Nd, slopes: &[Slopes]) -> Result<(), String> {
    let say = |error: anygpu::Error| error.to_string();
    let mut inputs = case.inputs.iter().map(|i| i.tensor(device)).collect::<Result<Vec<_>>>().map_err(say)?;
    slopes.iter().for_each(|(i, _)| inputs[*i] = inputs[*i].requires_grad());
    let out = (case.op)(&inputs).map_err(say)?;
    if (out.dtype(), out.device()) != (case.dtype, device) {
        return Err(format!("{} on {}, expected {}", out.dtype(), out.device(), case.dtype));
    }
    if out.shape() != expected.shape {
        return Err(format!("shape {:?}, expected {:?}", out.shape(), expected.shape));
    }
    let got = values(&out).map_err(say)?;
    if let Some(why) = difference(&got, &expected.data, &expected.shape, case.value) {
        return Err(why);
    }
    let Some(tolerance) = case.gradient.filter(|_| !slopes.is_empty()) else { return Ok(()) };
    let loss = out.mul(&weights.tensor(DType::F32, device)).and_then(|t| t.sum_all()).map_err(say)?;
    loss.backward().map_err(say)?;
    for (i, (at, slopes)) in slopes {
        let grad = inputs[*i].grad().ok_or(format!("input {i} has no gradient"))?;
        if grad.shape() != inputs[*i].shape() {
            return Err(format!("gradient {i} has shape {:?}", grad.shape()));
        }
        let all = values(&grad).map_err(say)?;
        let got: Vec<f64> = at.iter().map(|&p| all[p]).collect();
        if let Some(why) = difference(&got, slopes, &[got.len()], tolerance) {
            return Err(format!("gradient {i} (at every {at:?} of it): {why}"));
        }
    }
    Ok(())
}
