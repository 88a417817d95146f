//! Runs cases on a device: value, shape, type and gradient.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use super::case::{Case, Slopes};
use super::nd::{Compared, Nd, Tolerance, index_of, uniform, values, worst};
use super::report::{Cause, Failure, Part, Row, Verdict};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::variants;
use crate::tensor::Tensor;

/// A case with what should come out, computed at its first use and once for all devices.
pub(super) struct Prepared {
    pub case: Case,
    expected: OnceCell<Expected>,
}

struct Expected {
    value: Nd,
    /// What each element of the result counts in the sum that is differentiated.
    weights: Nd,
    slopes: Vec<Slopes>,
}

impl Prepared {
    pub fn new(case: Case) -> Prepared {
        Prepared { case, expected: OnceCell::new() }
    }

    fn expected(&self) -> &Expected {
        self.expected.get_or_init(|| {
            let case = &self.case;
            let value = case.expected();
            let weights = uniform(&value.shape, 0.5, 1.5, 99);
            let tracked = |i: &usize| case.gradient.is_some() && case.inputs[*i].dtype.is_float();
            let slopes = (0..case.inputs.len()).filter(tracked).map(|i| case.slopes(i, &weights)).collect();
            Expected { value, weights, slopes }
        })
    }

    /// What the case gives on a device.
    fn run(&self, device: &Device) -> Result<Outcome> {
        self.run_as(device, self.case.variant)
    }

    fn run_as(&self, device: &Device, variant: Option<(&'static str, &'static str)>) -> Result<Outcome> {
        let expected = self.expected();
        let start = Instant::now();
        let mut outcome = Outcome::default();
        if let Err(error) = self.try_run(device, variant, expected, &mut outcome) {
            if error.is_device_lost() || error.is_out_of_memory() {
                return Err(error); // no op's fault, and no variant's
            }
            outcome.wrong = Some(Cause::Other(error.to_string()));
        }
        outcome.time = start.elapsed();
        Ok(outcome)
    }

    fn try_run(
        &self,
        device: &Device,
        variant: Option<(&'static str, &'static str)>,
        expected: &Expected,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let case = &self.case;
        let mut inputs = case.inputs.iter().map(|i| i.tensor(device)).collect::<Result<Vec<_>>>()?;
        expected.slopes.iter().for_each(|s| inputs[s.input] = inputs[s.input].requires_grad());
        let out = case.run_as(variant, &inputs)?;
        if (out.dtype(), out.device()) != (case.dtype, device) {
            outcome.other(format!("{} on {}, expected {}", out.dtype(), out.device(), case.dtype));
            return Ok(());
        }
        if out.shape() != expected.value.shape {
            outcome.other(format!("shape {:?}, expected {:?}", out.shape(), expected.value.shape));
            return Ok(());
        }
        let position = |at: usize| at;
        outcome.compare(&values(&out)?, &expected.value.data, &expected.value.shape, position, case.value);
        match case.gradient {
            Some(tolerance) if outcome.wrong.is_none() && !expected.slopes.is_empty() => {
                gradients(&inputs, &out, expected, tolerance, outcome)
            }
            _ => Ok(()),
        }
    }

    /// Whether the case is right with the safe variant: if it is not, then something else that the op runs is broken.
    fn is_the_variants_fault(&self, device: &Device) -> Result<bool> {
        let Some((family, variant)) = self.case.variant else { return Ok(false) };
        let Some(safe) = variants::safe(device, family).filter(|&safe| safe != variant) else { return Ok(false) };
        Ok(self.run_as(device, Some((family, safe)))?.wrong.is_none())
    }

    fn failure(&self, part: Part, cause: Cause) -> Failure {
        let inputs = &self.case.inputs;
        let shapes = inputs.iter().map(|input| input.value.shape.clone()).collect();
        let dtypes = inputs.iter().map(|input| input.dtype).collect();
        Failure { case: self.case.name.clone(), shapes, dtypes, part, cause }
    }
}

fn gradients(
    inputs: &[Tensor],
    out: &Tensor,
    expected: &Expected,
    tolerance: Tolerance,
    outcome: &mut Outcome,
) -> Result<()> {
    outcome.part = Part::Gradient { input: expected.slopes[0].input };
    let weights = expected.weights.tensor(DType::F32, out.device())?;
    out.to_dtype(DType::F32)?.mul(&weights)?.sum_all()?.backward()?;
    for Slopes { input, at, slopes } in &expected.slopes {
        outcome.part = Part::Gradient { input: *input };
        let tensor = &inputs[*input];
        let Some(grad) = tensor.grad() else {
            outcome.other("there is none".into());
            return Ok(());
        };
        if (grad.shape(), grad.dtype()) != (tensor.shape(), tensor.dtype()) {
            outcome.other(format!("{:?} of {}", grad.shape(), grad.dtype()));
            return Ok(());
        }
        let all = values(&grad)?;
        let got: Vec<f64> = at.iter().map(|&p| all[p]).collect();
        outcome.compare(&got, slopes, tensor.shape(), |i| at[i], tolerance);
        if outcome.wrong.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

/// What one case gave on one device.
#[derive(Default)]
struct Outcome {
    worst: Option<Compared>,
    /// What is wrong, and where it happened.
    wrong: Option<Cause>,
    part: Part,
    time: Duration,
}

impl Outcome {
    fn other(&mut self, what: String) {
        self.wrong = Some(Cause::Other(what));
    }

    fn compare(
        &mut self,
        got: &[f64],
        expected: &[f64],
        shape: &[usize],
        position: impl Fn(usize) -> usize,
        tolerance: Tolerance,
    ) {
        let Some((element, wrong)) = worst(got, expected, tolerance) else { return };
        if self.worst.is_none_or(|known| element.ratio() > known.ratio()) {
            self.worst = Some(element);
        }
        if wrong > 0 {
            let Compared { position: at, got, expected, error, allowed } = element;
            let index = index_of(position(at), shape);
            let shape = shape.to_vec();
            self.wrong = Some(Cause::Value { index, shape, got, expected, error, tolerance: allowed, wrong });
        }
    }
}

/// Runs the cases of one op; `None` if none of them is for this device.
pub(super) fn row(op: &str, family: &'static str, cases: &[Prepared], device: &Device) -> Result<Option<Row>> {
    let mut row = Row::new(op, family);
    for prepared in cases.iter().filter(|prepared| prepared.case.runs_on(device)) {
        log::debug!("{device}: {}", prepared.case.name);
        let outcome = prepared.run(device)?;
        row.cases += 1;
        row.time += outcome.time;
        if let Some(worst) = outcome.worst.filter(|worst| row.cases == 1 || worst.ratio() > row.ratio) {
            (row.error, row.tolerance, row.ratio) = (worst.error, worst.allowed, worst.ratio());
        }
        if let Some(cause) = outcome.wrong {
            let failure = prepared.failure(outcome.part, cause);
            match prepared.case.variant {
                Some((family, variant)) if prepared.is_the_variants_fault(device)? => {
                    variants::quarantine(device, family, variant, &failure.to_string());
                    if row.verdict != Verdict::Failed {
                        row.verdict = Verdict::Quarantined;
                    }
                }
                _ => row.verdict = Verdict::Failed,
            }
            row.failures.push(failure);
        }
    }
    Ok((row.cases > 0).then_some(row))
}
