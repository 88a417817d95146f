//! The op table: runs every op on a device and compares it with oracles, which are plain loops.
//!
//! Drivers differ, and some are wrong. [`run`] computes every op of this crate on one device, with odd sizes and
//! layouts (transposed, narrowed, broadcast, empty, large). It compares values with oracles in `f64`, and gradients
//! with the oracles' central differences. The command `anygpu check` prints the report.
//!
//! ```
//! use anygpu::{Device, check};
//!
//! let options = check::Options { op: Some("matmul".into()), quick: true, ..Default::default() };
//! let report = check::run(&Device::cpu(), &options)?;
//! for op in &report.ops {
//!     println!("{}: {} cases, error {:e} of {:e}: {}", op.op, op.cases, op.error, op.tolerance, op.verdict);
//! }
//! assert!(report.passed(), "{report}");
//! # Ok::<(), anygpu::Error>(())
//! ```
//!
//! # For developers of this crate
//!
//! A family of ops is a file here with a function `cases`. `case.rs` defines a case, `load.rs` selects the cases that a
//! device runs, and `oracle.rs` has the oracles that several cases share. `tests/ops` fails for an op without a case.

mod case;
#[cfg(test)]
mod in_parts;
mod load;
#[doc(hidden)]
pub mod nd;
mod oracle;
mod report;
mod rows;
mod run;
#[cfg(test)]
mod second;

mod arrange;
mod conv;
mod elementwise;
mod factors;
mod index;
mod indexing;
mod inplace;
mod loss;
mod matmul;
mod norm;
mod order;
mod packed;
mod pad;
mod pairs;
mod pool;
mod products;
mod random;
mod reduce;
mod resample;
mod resize;
mod sampling;
mod search;
mod softmax;
mod sort;
mod statistics;
mod totals;
mod views;
mod volumes;
mod window;

/// The imports of every family.
mod prelude {
    pub(super) use super::case::{Case, Input, broadcast, dense, narrowed, transposed};
    pub(super) use super::nd::{Nd, signed, uniform, whole};
    pub(super) use super::oracle;
    pub(super) use crate::dtype::DType;
    pub(super) use crate::error::Result;
    pub(super) use crate::tensor::Tensor;
}

pub use report::{Cause, Failure, OpReport, Output, Report, Verdict};

use crate::device::Device;
use crate::error::Result;
use crate::util::waiting;
use case::Case;
use load::{Load, QUICK};
use run::Prepared;

type Family = (&'static str, fn() -> Vec<Case>);

/// The table's families.
const FAMILIES: &[Family] = &[
    ("arrange", arrange::cases),
    ("conv", conv::cases),
    ("elementwise", elementwise::cases),
    ("factors", factors::cases),
    ("index", index::cases),
    ("indexing", indexing::cases),
    ("inplace", inplace::cases),
    ("loss", loss::cases),
    ("matmul", matmul::cases),
    ("norm", norm::cases),
    ("order", order::cases),
    ("packed", packed::cases),
    ("pad", pad::cases),
    ("pairs", pairs::cases),
    ("pool", pool::cases),
    ("products", products::cases),
    ("random", random::cases),
    ("reduce", reduce::cases),
    ("resample", resample::cases),
    ("resize", resize::cases),
    ("rows", rows::cases),
    ("sampling", sampling::cases),
    ("search", search::cases),
    ("softmax", softmax::cases),
    ("sort", sort::cases),
    ("statistics", statistics::cases),
    ("totals", totals::cases),
    ("views", views::cases),
    ("volumes", volumes::cases),
];

/// Selects the cases of the table to run.
///
/// The default is all cases. If a machine has several software adapters, a case of many operations runs on only one
/// of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Selects only ops whose name contains this text.
    pub op: Option<String>,
    /// Selects only this family of ops, one of [`families`].
    pub family: Option<String>,
    /// Leaves out large cases.
    pub quick: bool,
    /// Runs cases of many operations on every software adapter, instead of on one of them.
    pub thorough: bool,
}

/// Returns the names of the table's families.
pub fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

/// Checks the ops on one device.
///
/// Wrong numbers, errors and panics of an op are part of the report. To check several devices, create one [`Table`].
///
/// # Errors
/// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) if the device does not open;
/// [`Error::DeviceLost`](crate::Error::DeviceLost) or [`Error::OutOfMemory`](crate::Error::OutOfMemory) if that happens
/// during the check.
pub fn run(device: &Device, options: &Options) -> Result<Report> {
    Table::new(options).run(device)
}

/// The table with the results of its oracles, which are computed once, however many devices are checked.
pub struct Table {
    groups: Vec<Group>,
    thorough: bool,
}

/// The cases of one op.
struct Group {
    op: String,
    family: &'static str,
    cases: Vec<Prepared>,
}

impl Table {
    /// Creates the table of the cases that the options select.
    pub fn new(options: &Options) -> Table {
        let mut groups: Vec<Group> = Vec::new();
        for &(family, cases) in FAMILIES {
            if options.family.as_deref().is_some_and(|only| only != family) {
                continue;
            }
            for (position, case) in cases().into_iter().enumerate() {
                let wanted = options.op.as_deref().is_none_or(|part| case.op_name().contains(part));
                if !wanted || options.quick && case.cost() > QUICK {
                    continue;
                }
                let op = case.op_name().to_owned();
                let case = Prepared::new(case, position);
                match groups.iter_mut().find(|group| group.op == op) {
                    Some(group) => group.cases.push(case),
                    None => groups.push(Group { op, family, cases: vec![case] }),
                }
            }
        }
        // A wrong variant must be found before an op uses it.
        groups.sort_by_key(|group| group.cases.iter().all(|prepared| prepared.case.variant.is_none()));
        Table { groups, thorough: options.thorough }
    }

    /// Returns the names of the table's ops.
    pub fn ops(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|group| group.op.as_str())
    }

    /// Returns the number of cases of an op, or 0 if the table has no such op.
    pub fn cases_of(&self, op: &str) -> usize {
        self.groups.iter().find(|group| group.op == op).map_or(0, |group| group.cases.len())
    }

    /// Returns the number of the table's cases.
    pub fn cases(&self) -> usize {
        self.groups.iter().map(|group| group.cases.len()).sum()
    }

    /// Returns the number of cases that [`Table::run`] runs on a device. Opens the device.
    ///
    /// ```
    /// use anygpu::Device;
    /// use anygpu::check::{Options, Table};
    ///
    /// let table = Table::new(&Options { family: Some("softmax".into()), ..Options::default() });
    /// assert_eq!(table.cases_on(&Device::cpu()), table.cases());
    /// ```
    pub fn cases_on(&self, device: &Device) -> usize {
        let load = Load::of(device, self.thorough);
        let all = self.groups.iter().flat_map(|group| &group.cases);
        all.filter(|prepared| prepared.runs_on(device, &load)).count()
    }

    /// Checks one device.
    ///
    /// # Errors
    /// Same as [`run`].
    pub fn run(&self, device: &Device) -> Result<Report> {
        waiting::wait_for(self.run_async(device)).map_err(|error| error.instead("Table::run", "Table::run_async"))
    }

    /// Asynchronous form of [`Table::run`], for a browser, where that call would wait.
    ///
    /// # Errors
    /// Same as [`run`].
    pub async fn run_async(&self, device: &Device) -> Result<Report> {
        let load = Load::of(device, self.thorough);
        let mut ops = Vec::new();
        for group in &self.groups {
            ops.extend(run::check_op(&group.op, group.family, &group.cases, device, &load).await?);
        }
        Ok(Report { device: device.name().to_owned(), ops, quarantined: device.quarantined()? })
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ops()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::nd::uniform;
    use super::*;
    use case::dense;

    fn group(op: &'static str, cases: Vec<Case>) -> Group {
        let cases = cases.into_iter().enumerate().map(|(i, case)| Prepared::new(case, i)).collect();
        Group { op: op.to_owned(), family: "test", cases }
    }

    fn identity(name: &str) -> Case {
        let input = dense(uniform(&[3], 0.0, 1.0, 1));
        Case::new(name, [input], |t| t[0].mul_scalar(1.0), |x| x[0].clone())
    }

    /// A variant without cases is tried on the small example of its family only.
    #[test]
    fn every_variant_has_cases() {
        const WITHOUT_A_KERNEL: [&str; 3] = ["columns", "composed", "others"];
        let all = FAMILIES.iter().flat_map(|(_, cases)| cases()).filter_map(|case| case.variant);
        let with_cases: std::collections::HashSet<_> = all.collect();
        let mut lacking = crate::ops::variants::of_any_class();
        lacking.retain(|variant| !WITHOUT_A_KERNEL.contains(&variant.1) && !with_cases.contains(variant));
        assert!(lacking.is_empty(), "{lacking:?} have no case: add the names to the lists of variants in src/check");
    }

    #[test]
    fn a_panic_is_the_verdict_of_one_op() -> Result<()> {
        let input = || [dense(uniform(&[3], 0.0, 1.0, 1))];
        let in_the_op = Case::new("broken op", input(), |_| panic!("index {} is out of range", 7), |x| x[0].clone());
        let in_the_oracle = Case::new("broken oracle", input(), |t| Ok(t[0].clone()), |_| panic!("no such element"));
        let groups = vec![
            group("broken", vec![in_the_op, identity("broken by nothing"), in_the_oracle]),
            group("right", vec![identity("right")]),
        ];
        let report = Table { groups, thorough: false }.run(&Device::cpu())?;
        let verdicts: Vec<_> = report.ops.iter().map(|op| (op.op.as_str(), op.cases, op.verdict)).collect();
        assert_eq!(verdicts, [("broken", 3, Verdict::Failed), ("right", 1, Verdict::Passed)]);
        let messages: Vec<String> = report.failures().map(|failure| failure.cause.to_string()).collect();
        assert_eq!(messages, ["panicked: index 7 is out of range", "panicked: no such element"]);
        assert!(!report.passed() && report.to_string().contains("broken op of [3] f32: value: panicked: index 7"));
        Ok(())
    }
}
