//! `anygpu check`: whether the results of a device are right.

use anygpu::Device;
use anygpu::check::{Cause, Failure as CheckFailure, OpReport, Options, Report, Table, Verdict};
use serde::Serialize;

use crate::failure::Failure;
use crate::{devices, output};

/// Compares every op on your devices with oracles.
///
/// The cases have odd sizes and layouts, and check values and gradients. For each op, this prints the number of
/// cases, the worst error |x − y| with its tolerance, a verdict and the time. Then it prints each failure: op,
/// shapes, element, and both values. The exit status is 1 if any case fails. With several software adapters, each
/// runs a part of the cases that take long; --thorough runs them on all.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The devices: auto, all, or a list such as gpu:0,cpu; may be given several times
    #[arg(long, alias = "device", default_value = "all", value_name = "auto|all|LIST", value_delimiter = ',')]
    devices: Vec<String>,
    /// Only ops whose name contains this
    #[arg(long, value_name = "SUBSTRING")]
    op: Option<String>,
    /// Omit large cases
    #[arg(long)]
    quick: bool,
    /// Run every case on every software adapter, instead of dividing the long cases among them
    #[arg(long, conflicts_with = "quick")]
    thorough: bool,
}

/// One op on one device, as `--json` prints it.
#[derive(Serialize)]
struct Line<'a> {
    device: &'a str,
    family: &'a str,
    op: &'a str,
    cases: usize,
    worst_error: f64,
    tolerance: f64,
    /// `worst_error / tolerance`.
    ratio: f64,
    /// `ok`, `FAILED` or `quarantined`.
    verdict: String,
    ok: bool,
    seconds: f64,
    failures: Vec<FailureLine<'a>>,
}

/// One case that failed.
#[derive(Serialize)]
struct FailureLine<'a> {
    case: &'a str,
    shapes: &'a [Vec<usize>],
    /// `value`, or `gradient of input 0`.
    output: String,
    /// The index of the worst element; absent if the op returned no values of the right shape and type.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<&'a [usize]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    got: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<f64>,
    message: String,
}

impl<'a> FailureLine<'a> {
    fn new(wrong: &'a CheckFailure) -> Self {
        let value = match &wrong.cause {
            Cause::Value { index, got, expected, .. } => Some((index.as_slice(), *got, *expected)),
            _ => None,
        };
        FailureLine {
            case: &wrong.case,
            shapes: &wrong.shapes,
            output: wrong.output.to_string(),
            index: value.map(|(index, ..)| index),
            got: value.map(|(_, got, _)| got),
            expected: value.map(|(.., expected)| expected),
            message: wrong.cause.to_string(),
        }
    }
}

impl<'a> Line<'a> {
    fn new(device: &'a str, op: &'a OpReport) -> Self {
        Line {
            device,
            family: op.family,
            op: &op.op,
            cases: op.cases,
            worst_error: op.error,
            tolerance: op.tolerance,
            ratio: op.ratio,
            verdict: op.verdict.to_string(),
            ok: op.verdict != Verdict::Failed,
            seconds: op.time.as_secs_f64(),
            failures: op.failures.iter().map(FailureLine::new).collect(),
        }
    }
}

/// The last line of `--json`.
#[derive(Serialize)]
struct Summary<'a> {
    devices: Vec<&'a str>,
    ops: usize,
    cases: usize,
    failed_cases: usize,
    /// Kernel variants that the devices do not use, because their results are wrong there.
    quarantined: Vec<String>,
    /// Devices that did not open or were lost.
    unavailable: Vec<String>,
    ok: bool,
}

/// Runs the command. `as_json`: a line for each op on each device, then a summary.
///
/// # Errors
/// [`Failure::Usage`] for an unknown device, and for an `--op` that is in no op's name; [`Failure::Run`] if a case
/// fails.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let devices = devices::select(&args.devices.join(","))?;
    let Args { op, quick, thorough, .. } = args;
    let table = Table::new(&Options { op: op.clone(), quick: *quick, thorough: *thorough, family: None });
    if table.cases() == 0 {
        return Err(Failure::Usage(format!("no op has '{}' in its name", args.op.as_deref().unwrap_or_default())));
    }
    let (mut reports, mut unavailable) = (Vec::new(), Vec::new());
    for device in &devices {
        match table.run(device) {
            Ok(report) => {
                print(&report, device, as_json)?;
                reports.push(report);
            }
            Err(error) => unavailable.push(error.to_string()),
        }
    }
    conclude(&reports, unavailable, as_json)
}

fn print(report: &Report, device: &Device, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return report.ops.iter().try_for_each(|op| output::json(&Line::new(&report.device, op)));
    }
    let info = device.info();
    let doubt = if info.conformant { "" } else { ", which says that it is not conformant" };
    output::line(format!("{} – {} through {}, {}{doubt}", report.device, info.adapter, info.api, info.driver))?;
    let mut table = output::table(&["op", "cases", "worst error", "tolerance", "verdict", "time"]);
    for op in &report.ops {
        let (error, tolerance) = match op.error == 0.0 {
            true => ("0".to_string(), if op.tolerance == 0.0 { "exact".to_string() } else { scientific(op.tolerance) }),
            false => (scientific(op.error), scientific(op.tolerance)),
        };
        let time = format!("{:.1} ms", 1e3 * op.time.as_secs_f64());
        table.add_row([op.op.clone(), op.cases.to_string(), error, tolerance, op.verdict.to_string(), time]);
    }
    output::line(table)?;
    output::line(format!("{report}\n"))
}

fn scientific(number: f64) -> String {
    format!("{number:.1e}")
}

/// Prints the summary, and returns an error if a case failed.
fn conclude(reports: &[Report], unavailable: Vec<String>, as_json: bool) -> Result<(), Failure> {
    let failed: usize = reports.iter().map(|report| report.failures().count()).sum();
    let cases: usize = reports.iter().map(Report::cases).sum();
    if as_json {
        output::json(&Summary {
            devices: reports.iter().map(|report| report.device.as_str()).collect(),
            ops: reports.iter().map(|report| report.ops.len()).max().unwrap_or(0),
            cases,
            failed_cases: failed,
            quarantined: reports
                .iter()
                .flat_map(|r| r.quarantined.iter().map(|q| format!("{}: {q}", r.device)))
                .collect(),
            unavailable: unavailable.clone(),
            ok: failed == 0 && unavailable.is_empty(),
        })?;
    }
    if failed == 0 && unavailable.is_empty() {
        return if as_json { Ok(()) } else { output::line(format!("all {cases} cases are within their tolerance")) };
    }
    let off: Vec<&str> = reports.iter().filter(|r| !r.passed()).map(|r| r.device.as_str()).collect();
    let mut what = unavailable;
    if failed > 0 {
        what.push(format!("{failed} of {cases} cases failed, on {}", off.join(", ")));
    }
    Err(Failure::Run(what.join("; ")))
}
