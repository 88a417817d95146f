//! The report of a check.

use std::fmt;
use std::time::Duration;

use crate::dtype::DType;

/// The result of the op table on one device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The device's name.
    pub device: String,
    /// One report for each op, in the order of the table.
    pub ops: Vec<OpReport>,
    /// [Kernel variants](crate::Device::quarantined) that are not used on this device.
    pub quarantined: Vec<String>,
}

impl Report {
    /// Returns whether every op is within its tolerance. A variant in quarantine is not a failure, since no op uses it.
    pub fn passed(&self) -> bool {
        self.ops.iter().all(|op| op.verdict != Verdict::Failed)
    }

    /// Returns the number of cases that ran.
    pub fn cases(&self) -> usize {
        self.ops.iter().map(|op| op.cases).sum()
    }

    /// Returns the time that all cases took on the device, including transfers.
    pub fn time(&self) -> Duration {
        self.ops.iter().map(|op| op.time).sum()
    }

    /// Returns every case in which an op is wrong.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.ops.iter().filter(|op| op.verdict == Verdict::Failed).flat_map(|op| &op.failures)
    }
}

/// Writes one line for the device, one for each failure, and one for each variant in quarantine.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failures().count();
        let (cases, ops, seconds) = (self.cases(), self.ops.len(), self.time().as_secs_f64());
        write!(f, "{}: {failed} of {cases} cases of {ops} ops failed, in {seconds:.1} s", self.device)?;
        self.failures().try_for_each(|failure| write!(f, "\n  {failure}"))?;
        self.quarantined.iter().try_for_each(|variant| write!(f, "\n  in quarantine: {variant}"))
    }
}

/// The result of one op.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpReport {
    /// The op's name.
    pub op: String,
    /// The op's family; the first one if it is in several.
    pub family: &'static str,
    /// The number of cases that ran: shapes, layouts, element types, each with its gradient if it has one.
    pub cases: usize,
    /// `|x − y|` of the element whose error is the largest multiple of its tolerance.
    pub error: f64,
    /// The tolerance of that element: `atol + rtol · |y|`. 0 if every element must be exact.
    pub tolerance: f64,
    /// `error / tolerance`; 0 if there is no error.
    pub ratio: f64,
    /// Whether the op gives correct numbers on this device.
    pub verdict: Verdict,
    /// The time of the op's cases on the device, including transfers.
    pub time: Duration,
    /// One failure for each case that failed.
    pub failures: Vec<Failure>,
}

impl OpReport {
    pub(super) fn new(op: &str, family: &'static str) -> OpReport {
        OpReport {
            op: op.to_owned(),
            family,
            cases: 0,
            error: 0.0,
            tolerance: 0.0,
            ratio: 0.0,
            verdict: Verdict::Passed,
            time: Duration::ZERO,
            failures: Vec::new(),
        }
    }
}

/// Whether an op computes correct numbers on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Every case is within its tolerance.
    Passed,
    /// Some case is not within its tolerance, or ended in an error or a panic.
    Failed,
    /// Failed, but only in a kernel variant, which this device therefore does not use.
    Quarantined,
}

/// Writes `ok`, `FAILED` or `quarantined`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Passed => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Quarantined => "quarantined",
        })
    }
}

/// One case that failed: its name, the place and the size of the error.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Failure {
    /// The case's name, which begins with the name of the op.
    pub case: String,
    /// The operands' shapes.
    pub shapes: Vec<Vec<usize>>,
    /// The operands' types.
    pub dtypes: Vec<DType>,
    /// The output that is wrong: the op's value or one of its gradients.
    pub output: Output,
    /// What is wrong with that output.
    pub cause: Cause,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operand = |(shape, dtype): (&Vec<usize>, &DType)| format!("{shape:?} {dtype}");
        let operands: Vec<_> = self.shapes.iter().zip(&self.dtypes).map(operand).collect();
        write!(f, "{} of {}: {}: {}", self.case, operands.join(", "), self.output, self.cause)
    }
}

/// An output of an op: its value or a gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// The value.
    #[default]
    Value,
    /// The gradient with respect to one of the inputs.
    Gradient {
        /// The input's number, from 0.
        input: usize,
    },
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Output::Value => f.write_str("value"),
            Output::Gradient { input } => write!(f, "gradient of input {input}"),
        }
    }
}

/// The error in an output.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cause {
    /// Elements that differ by more than their tolerance; the fields describe the worst one.
    Value {
        /// The index of the element.
        index: Vec<usize>,
        /// The shape of the output.
        shape: Vec<usize>,
        /// The device's value.
        got: f64,
        /// The oracle's value.
        expected: f64,
        /// The absolute difference of the two values.
        error: f64,
        /// The largest difference that is allowed.
        tolerance: f64,
        /// The number of wrong elements among those that were compared.
        wrong: usize,
    },
    /// A wrong shape or type, a gradient that is missing, or the error that the op returned.
    Other(String),
    /// The op panicked, with this message.
    Panicked(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Other(what) => f.write_str(what),
            Cause::Panicked(message) => write!(f, "panicked: {message}"),
            Cause::Value { index, shape, got, expected, error, tolerance, wrong } => write!(
                f,
                "{wrong} wrong, worst at {index:?} of {shape:?}: got {got}, expected {expected}, \
                 off by {error:.2e} where {tolerance:.2e} is allowed"
            ),
        }
    }
}
