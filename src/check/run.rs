//! Runs cases on a device and checks value, shape, type and gradient.

use std::cell::OnceCell;
use std::panic::{self, AssertUnwindSafe};

use web_time::{Duration, Instant};

use super::case::{Case, ExpectedGradient};
use super::load::Load;
use super::nd::{Compared, Nd, Tolerance, index_of, uniform, values, worst};
use super::report::{Cause, Failure, OpReport, Output, Verdict};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::variants;
use crate::tensor::Tensor;
use crate::util::sync::panic_message;

/// A case with its expected results. They are computed at first use, once for all devices.
pub(super) struct Prepared {
    pub case: Case,
    /// Its position in its family, before cases are selected.
    pub position: usize,
    expected: OnceCell<Expected>,
}

struct Expected {
    value: Nd,
    /// The weight of each element of the result in the sum that is differentiated.
    weights: Nd,
    gradients: Vec<ExpectedGradient>,
}

impl Prepared {
    pub fn new(case: Case, position: usize) -> Prepared {
        Prepared { case, position, expected: OnceCell::new() }
    }

    fn expected(&self) -> &Expected {
        self.expected.get_or_init(|| {
            let case = &self.case;
            let value = case.expected();
            let weights = uniform(&value.shape, 0.5, 1.5, 99);
            let tracked = |i: &usize| case.gradient.is_some() && case.inputs[*i].dtype.is_float();
            let inputs = (0..case.inputs.len()).filter(tracked);
            let gradients = inputs.map(|i| case.expected_gradient(i, &weights)).collect();
            Expected { value, weights, gradients }
        })
    }

    /// Runs the case on a device.
    fn run(&self, device: &Device) -> Result<Outcome> {
        self.run_as(device, self.case.variant)
    }

    /// Runs the case with a variant. An error of the op and a panic are outcomes too, so the cases after it still run.
    fn run_as(&self, device: &Device, variant: Option<(&'static str, &'static str)>) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut attempt = || {
            panic::catch_unwind(AssertUnwindSafe(|| {
                let expected = self.expected();
                let start = Instant::now();
                let result = self.try_run(device, expected, &mut outcome);
                outcome.time = start.elapsed();
                result
            }))
        };
        // The panic is caught within `forced`, which would not undo its choice if a panic passed through it.
        let result = match variant {
            None => attempt(),
            Some((family, variant)) => variants::forced(family, variant, attempt),
        };
        match result {
            Ok(Ok(())) => {}
            // Neither an op nor a variant is at fault.
            Ok(Err(error)) if error.is_device_lost() || error.is_out_of_memory() => return Err(error),
            Ok(Err(error)) => outcome.wrong = Some(Cause::Other(error.to_string())),
            Err(panic) => outcome.wrong = Some(Cause::Panicked(panic_message(&*panic))),
        }
        Ok(outcome)
    }

    fn try_run(&self, device: &Device, expected: &Expected, outcome: &mut Outcome) -> Result<()> {
        let case = &self.case;
        let mut inputs = case.tensors(device)?;
        expected.gradients.iter().for_each(|g| inputs[g.input] = inputs[g.input].requires_grad());
        let out = case.run(&inputs)?;
        if (out.dtype(), out.device()) != (case.result_dtype, device) {
            outcome.other(format!("{} on {}, expected {}", out.dtype(), out.device(), case.result_dtype));
            return Ok(());
        }
        if out.shape() != expected.value.shape {
            outcome.other(format!("shape {:?}, expected {:?}", out.shape(), expected.value.shape));
            return Ok(());
        }
        let position = |at: usize| at;
        outcome.compare(&values(&out)?, &expected.value.data, &expected.value.shape, position, case.value);
        match case.gradient {
            Some(tolerance) if outcome.wrong.is_none() && !expected.gradients.is_empty() => {
                gradients(&inputs, &out, expected, tolerance, outcome)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the device runs the case.
    pub fn runs_on(&self, device: &Device, load: &Load) -> bool {
        load.takes(&self.case, self.position) && self.case.runs_on(device)
    }

    /// Returns whether the case is right with the safe variant. If it is not, another part of the op is wrong.
    fn is_the_variants_fault(&self, device: &Device) -> Result<bool> {
        let Some((family, variant)) = self.case.variant else { return Ok(false) };
        let Some(safe) = variants::safe(device, family).filter(|&safe| safe != variant) else { return Ok(false) };
        Ok(self.run_as(device, Some((family, safe)))?.wrong.is_none())
    }

    fn failure(&self, output: Output, cause: Cause) -> Failure {
        let inputs = &self.case.inputs;
        let shapes = inputs.iter().map(|input| input.value.shape.clone()).collect();
        let dtypes = inputs.iter().map(|input| input.dtype).collect();
        Failure { case: self.case.name.clone(), shapes, dtypes, output, cause }
    }
}

fn gradients(
    inputs: &[Tensor],
    out: &Tensor,
    expected: &Expected,
    tolerance: Tolerance,
    outcome: &mut Outcome,
) -> Result<()> {
    outcome.output = Output::Gradient { input: expected.gradients[0].input };
    let weights = expected.weights.tensor(DType::F32, out.device())?;
    out.to_dtype(DType::F32)?.mul(&weights)?.sum_all()?.backward()?;
    for ExpectedGradient { input, positions, values: wanted } in &expected.gradients {
        outcome.output = Output::Gradient { input: *input };
        let tensor = &inputs[*input];
        let Some(grad) = tensor.grad() else {
            outcome.other("there is no gradient".into());
            return Ok(());
        };
        if (grad.shape(), grad.dtype()) != (tensor.shape(), tensor.dtype()) {
            outcome.other(format!("{:?} of {}", grad.shape(), grad.dtype()));
            return Ok(());
        }
        let all = values(&grad)?;
        let got: Vec<f64> = positions.iter().map(|&p| all[p]).collect();
        outcome.compare(&got, wanted, tensor.shape(), |i| positions[i], tolerance);
        if outcome.wrong.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

/// The outcome of one case on one device.
#[derive(Default)]
struct Outcome {
    worst: Option<Compared>,
    /// The error, and the output in which it is.
    wrong: Option<Cause>,
    output: Output,
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

/// Runs the cases of one op. Returns `None` if none of them is for this device.
pub(super) async fn check_op(
    op: &str,
    family: &'static str,
    cases: &[Prepared],
    device: &Device,
    load: &Load,
) -> Result<Option<OpReport>> {
    let mut report = OpReport::new(op, family);
    for prepared in cases.iter().filter(|prepared| prepared.runs_on(device, load)) {
        log::debug!("{device}: {}", prepared.case.name);
        let outcome = device.rerun(|| prepared.run(device)).await?;
        report.cases += 1;
        report.time += outcome.time;
        if let Some(worst) = outcome.worst.filter(|worst| report.cases == 1 || worst.ratio() > report.ratio) {
            (report.error, report.tolerance, report.ratio) = (worst.error, worst.allowed, worst.ratio());
        }
        if let Some(cause) = outcome.wrong {
            let failure = prepared.failure(outcome.output, cause);
            match prepared.case.variant {
                Some((family, variant)) if device.rerun(|| prepared.is_the_variants_fault(device)).await? => {
                    variants::quarantine(device, family, variant, &failure.to_string());
                    if report.verdict != Verdict::Failed {
                        report.verdict = Verdict::Quarantined;
                    }
                }
                _ => report.verdict = Verdict::Failed,
            }
            report.failures.push(failure);
        }
    }
    Ok((report.cases > 0).then_some(report))
}
