//! `anygpu check`: whether the results of a device are right.

use anygpu::Device;
use anygpu::check::{Cause, Failure as CheckFailure, Options, Report, Row, Table, Verdict};
use serde::Serialize;

use crate::failure::Failure;
use crate::{devices, output};

/// Compares every op on your devices with oracles.
///
/// The cases have odd sizes and layouts, and check values and gradients. Prints for each op the number of cases, the
/// worst error |x − y| with its tolerance, a verdict and the time; then each failure: op, shapes, element, and both
/// values. The exit status is 1 if any case fails.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The devices: auto, all, or a list such as gpu:0,cpu; may be given several times
    #[arg(long, default_value = "all", value_name = "NAME", value_delimiter = ',')]
    device: Vec<String>,
    /// Only ops whose name contains this
    #[arg(long, value_name = "SUBSTRING")]
    op: Option<String>,
    /// Omit large cases
    #[arg(long)]
    quick: bool,
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
    part: String,
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
            part: wrong.part.to_string(),
            index: value.map(|(index, ..)| index),
            got: value.map(|(_, got, _)| got),
            expected: value.map(|(.., expected)| expected),
            message: wrong.cause.to_string(),
        }
    }
}

impl<'a> Line<'a> {
    fn new(device: &'a str, row: &'a Row) -> Self {
        Line {
            device,
            family: row.family,
            op: &row.op,
            cases: row.cases,
            worst_error: row.error,
            tolerance: row.tolerance,
            ratio: row.ratio,
            verdict: row.verdict.to_string(),
            ok: row.verdict != Verdict::Failed,
            seconds: row.time.as_secs_f64(),
            failures: row.failures.iter().map(FailureLine::new).collect(),
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
/// [`Failure::Usage`] for an unknown device and an `--op` that no name of an op contains; [`Failure::Run`] if a case
/// fails.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let devices = devices::select(&args.device.join(","))?;
    let table = Table::new(&Options { op: args.op.clone(), quick: args.quick, ..Options::default() });
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
        return report.rows.iter().try_for_each(|row| output::json(&Line::new(&report.device, row)));
    }
    let info = device.info();
    output::line(format!("{} – {} through {}, {}", report.device, info.adapter, info.api, info.driver))?;
    let mut table = output::table(&["op", "cases", "worst error", "tolerance", "verdict", "time"]);
    for row in &report.rows {
        let (error, tolerance) = match row.error == 0.0 {
            true => {
                ("0".to_string(), if row.tolerance == 0.0 { "exact".to_string() } else { scientific(row.tolerance) })
            }
            false => (scientific(row.error), scientific(row.tolerance)),
        };
        let time = format!("{:.1} ms", 1e3 * row.time.as_secs_f64());
        table.add_row([row.op.clone(), row.cases.to_string(), error, tolerance, row.verdict.to_string(), time]);
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
            ops: reports.iter().map(|report| report.rows.len()).max().unwrap_or(0),
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
        what.push(format!("{failed} of {cases} cases are off, on {}", off.join(", ")));
    }
    Err(Failure::Run(what.join("; ")))
}
