//! The op table: every op on a device of yours, against oracles in loops too simple to be wrong.
//!
//! Drivers differ, and some are wrong. [`run`] computes every op of this crate on one device, on odd sizes and layouts
//! (transposed, narrowed, broadcast, empty, large), and compares values with oracles in `f64`, and gradients with the
//! oracles' central differences. The command `anygpu check` prints what it finds.
//!
//! ```
//! use anygpu::{Device, check};
//!
//! let options = check::Options { op: Some("matmul".into()), quick: true, ..Default::default() };
//! let report = check::run(&Device::cpu(), &options)?;
//! for row in &report.rows {
//!     println!("{}: {} cases, off by {:e} of {:e}: {}", row.op, row.cases, row.error, row.tolerance, row.verdict);
//! }
//! assert!(report.passed(), "{report}");
//! # Ok::<(), anygpu::Error>(())
//! ```
//!
//! # For developers of this crate
//!
//! A family of ops is a file here with a function `cases`; `case.rs` says what a case is, `oracle.rs` has the oracles
//! that several cases share.

mod case;
#[doc(hidden)]
pub mod nd;
mod oracle;
mod report;
mod run;

mod arrange;
mod conv;
mod elementwise;
mod index;
mod loss;
mod matmul;
mod norm;
mod pad;
mod pairs;
mod pool;
mod products;
mod random;
mod reduce;
mod resize;
mod softmax;
mod sort;
mod statistics;
mod views;
mod window;

/// What the families are written with.
mod prelude {
    pub(super) use super::case::{Case, Input, broadcast, dense, narrowed, transposed};
    pub(super) use super::nd::{Nd, signed, uniform, whole};
    pub(super) use super::oracle;
    pub(super) use crate::dtype::DType;
    pub(super) use crate::error::Result;
    pub(super) use crate::tensor::Tensor;
}

pub use report::{Cause, Failure, Part, Report, Row, Verdict};

use crate::device::Device;
use crate::error::Result;
use case::Case;
use run::Prepared;

type Family = (&'static str, fn() -> Vec<Case>);

/// The table's parts.
const FAMILIES: &[Family] = &[
    ("arrange", arrange::cases),
    ("conv", conv::cases),
    ("elementwise", elementwise::cases),
    ("index", index::cases),
    ("loss", loss::cases),
    ("matmul", matmul::cases),
    ("norm", norm::cases),
    ("pad", pad::cases),
    ("pairs", pairs::cases),
    ("pool", pool::cases),
    ("products", products::cases),
    ("random", random::cases),
    ("reduce", reduce::cases),
    ("resize", resize::cases),
    ("softmax", softmax::cases),
    ("sort", sort::cases),
    ("statistics", statistics::cases),
    ("views", views::cases),
];

/// Operands of more elements are left out of a quick check.
const QUICK: usize = 5_000;

/// Which part of the table to run; the default is all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Only ops whose name contains this.
    pub op: Option<String>,
    /// Only this family of ops, one of [`families`].
    pub family: Option<String>,
    /// Leaves out what is large.
    pub quick: bool,
}

/// The names of the table's parts.
pub fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

/// Checks the ops on one device.
///
/// Wrong numbers and errors of an op are part of the report. For several devices, make a [`Table`] once.
///
/// # Errors
/// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) if the device does not open, and
/// [`Error::DeviceLost`](crate::Error::DeviceLost) or [`Error::OutOfMemory`](crate::Error::OutOfMemory) if that happens meanwhile.
pub fn run(device: &Device, options: &Options) -> Result<Report> {
    Table::new(options).run(device)
}

/// The table, with what its oracles gave: they compute once, however many devices are checked.
pub struct Table(Vec<Group>);

/// The cases of one op.
struct Group {
    op: String,
    family: &'static str,
    cases: Vec<Prepared>,
}

impl Table {
    /// The cases that the options leave.
    pub fn new(options: &Options) -> Table {
        let mut groups: Vec<Group> = Vec::new();
        for &(family, cases) in FAMILIES {
            if options.family.as_deref().is_some_and(|only| only != family) {
                continue;
            }
            for case in cases() {
                let wanted = options.op.as_deref().is_none_or(|part| case.op_name().contains(part));
                if !wanted || options.quick && case.size() > QUICK {
                    continue;
                }
                let op = case.op_name().to_owned();
                let case = Prepared::new(case);
                match groups.iter_mut().find(|group| group.op == op) {
                    Some(group) => group.cases.push(case),
                    None => groups.push(Group { op, family, cases: vec![case] }),
                }
            }
        }
        // What is wrong with a variant is to be known before an op uses it.
        groups.sort_by_key(|group| group.cases.iter().all(|prepared| prepared.case.variant.is_none()));
        Table(groups)
    }

    /// The names of its ops.
    pub fn ops(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|group| group.op.as_str())
    }

    /// How many cases it has.
    pub fn cases(&self) -> usize {
        self.0.iter().map(|group| group.cases.len()).sum()
    }

    /// Checks one device.
    ///
    /// # Errors
    /// As [`run`].
    pub fn run(&self, device: &Device) -> Result<Report> {
        let mut rows = Vec::new();
        for group in &self.0 {
            rows.extend(run::row(&group.op, group.family, &group.cases, device)?);
        }
        Ok(Report { device: device.name().to_owned(), rows, quarantined: device.quarantined()? })
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ops()).finish()
    }
}
