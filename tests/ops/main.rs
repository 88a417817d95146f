//! The op table on every device, and what does not fit into its cases: gradients that are a convention, and errors.

#[path = "../common/mod.rs"]
mod common;
#[path = "../source/mod.rs"]
mod source;

mod coverage;
mod dims;
mod edges;
mod empty;
mod errors;
mod infinities;
mod inplace;
mod long_sums;
mod operands;
mod special;
mod windows;

use std::collections::HashSet;

use anygpu::DeviceKind;
use anygpu::check::{self, Options, Table};

/// The exact number of cases for each kind of device.
///
/// Where cases were added, `the_table_is_whole` fails and says the new numbers: write them here. A number that falls means
/// that cases were lost.
mod cases {
    /// On `cpu`, which has no kernel variants.
    pub const CPU: usize = 3446;
    /// On a hardware adapter, and on all software adapters together.
    pub const ADAPTER: usize = 3479;
    /// Those of them that only one of several software adapters runs.
    pub const SHARED: usize = 3;
}

/// Checks one family on every device, and reports all failures together.
fn run(family: &str) {
    let options = Options { family: Some(family.to_owned()), ..Options::default() };
    let table = Table::new(&options);
    let reports = common::devices().into_iter().map(|device| {
        let report = table.run(&device).unwrap_or_else(|error| panic!("{family} on {device}: {error}"));
        assert_eq!(report.cases(), table.cases_on(&device), "{family} on {device}: not every case ran");
        report
    });
    let failed: Vec<String> = reports
        .filter(|report| !report.passed() || !report.quarantined.is_empty())
        .map(|report| report.to_string())
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A test for each family, and a list of them.
macro_rules! families {
    ($($family:ident),* $(,)?) => {
        $(
            #[test]
            fn $family() {
                run(stringify!($family));
            }
        )*
        const TESTED: &[&str] = &[$(stringify!($family)),*];
    };
}

families! {
    arrange,
    conv,
    elementwise,
    index,
    inplace,
    loss,
    matmul,
    norm,
    pad,
    pairs,
    pool,
    products,
    random,
    reduce,
    resize,
    softmax,
    sort,
    statistics,
    totals,
    views,
}

#[test]
fn every_family_is_tested() {
    let tested: HashSet<&str> = TESTED.iter().copied().collect();
    assert_eq!(tested, check::families().collect());
}

/// No case is lost, whatever it is lost by: a family, a filter, or the share of a device.
#[test]
fn the_table_is_whole() {
    let table = Table::new(&Options::default());
    let thorough = Table::new(&Options { thorough: true, ..Options::default() });
    let how = "if you added or removed cases, write these numbers into `mod cases` of tests/ops/main.rs";
    let wrong = |what: &str, constant: &str, is: usize| format!("{what}: {constant} is {is}; {how}");
    assert_eq!(table.cases(), cases::ADAPTER, "{}", wrong("all cases", "ADAPTER", table.cases()));
    let devices = anygpu::Device::all();
    let of = |kind: fn(DeviceKind) -> bool| devices.iter().filter(move |device| kind(device.info().kind));
    for cpu in of(|kind| kind == DeviceKind::Cpu) {
        let count = table.cases_on(cpu);
        assert_eq!(count, cases::CPU, "{}", wrong("on the cpu", "CPU", count));
    }
    for gpu in of(|kind| !matches!(kind, DeviceKind::Cpu | DeviceKind::Software)) {
        let count = table.cases_on(gpu);
        assert_eq!(count, cases::ADAPTER, "{}", wrong(gpu.name(), "ADAPTER", count));
    }
    let software: Vec<_> = of(|kind| kind == DeviceKind::Software).collect();
    for adapter in &software {
        let (count, all) = (table.cases_on(adapter), thorough.cases_on(adapter));
        assert_eq!(all, cases::ADAPTER, "{}", wrong(adapter.name(), "ADAPTER", all));
        assert!(count + cases::SHARED >= cases::ADAPTER, "{adapter} lacks {}: SHARED is more; {how}", all - count);
    }
    if let others @ 1.. = software.len().saturating_sub(1) {
        let together: usize = software.iter().map(|adapter| table.cases_on(adapter)).sum();
        let shared = (software.len() * cases::ADAPTER - together) / others;
        assert_eq!(shared, cases::SHARED, "{}", wrong("on all software adapters together", "SHARED", shared));
    }
    assert!(Table::new(&Options { quick: true, ..Options::default() }).cases() < table.cases());
}
