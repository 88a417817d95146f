//! The op table on every device, and what does not fit into its cases: gradients that are a convention, and errors.

#[path = "../common/mod.rs"]
mod common;
#[path = "../source/mod.rs"]
mod source;

mod blocks;
mod corners;
mod coverage;
mod dims;
mod edges;
mod empty;
mod errors;
#[cfg(feature = "fft")]
mod fourier;
mod fours;
mod infinities;
mod inplace;
mod inverse;
mod large_inputs;
mod linalg;
mod linear;
mod long_sums;
mod operands;
mod panels;
mod registers;
mod special;
mod windows;

use std::collections::HashSet;

use anygpu::DeviceKind;
use anygpu::check::{self, Options, Table};

/// Cases of kernel variants, which `cpu` has not. The number of all cases stands in docs/check.md, op by op.
const ON_ADAPTERS_ONLY: usize = 921;

/// Cases that only one of several software adapters runs.
const SHARED: usize = 134;

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
    factors,
    index,
    indexing,
    inplace,
    loss,
    matmul,
    norm,
    order,
    packed,
    pad,
    pairs,
    pool,
    products,
    random,
    reduce,
    resample,
    resize,
    rows,
    sampling,
    search,
    softmax,
    sort,
    statistics,
    totals,
    views,
    volumes,
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
    let devices = anygpu::Device::all();
    // Two variants are for software adapters with subgroups of 8 alone, and four for adapters with cooperative matrices of a size.
    let whole = |device: &anygpu::Device| {
        let info = device.info();
        let subgroups = info.kind == DeviceKind::Software && info.limits.subgroup_size == (8, 8);
        let matrices = info.features.iter().any(|feature| feature == "cooperative-matrix");
        let of_size = |size: u32| {
            ["matmul", "conv2d"].map(|op| table.cases_of(&format!("{op}/cooperative_{size}"))).iter().sum::<usize>()
        };
        let mut all = table.cases() - of_size(8);
        all -= if matrices { 0 } else { of_size(16) };
        if subgroups { all } else { all - table.cases_of("matmul/subgroups") - table.cases_of("matmul/shared") }
    };
    let of = |kind: fn(DeviceKind) -> bool| devices.iter().filter(move |device| kind(device.info().kind));
    for cpu in of(|kind| kind == DeviceKind::Cpu) {
        assert_eq!(table.cases_on(cpu) + ON_ADAPTERS_ONLY, table.cases(), "ON_ADAPTERS_ONLY is another number");
    }
    for gpu in of(|kind| !matches!(kind, DeviceKind::Cpu | DeviceKind::Software)) {
        assert_eq!(table.cases_on(gpu), whole(gpu), "{gpu}");
    }
    let software: Vec<_> = of(|kind| kind == DeviceKind::Software).collect();
    for adapter in &software {
        assert_eq!(thorough.cases_on(adapter), whole(adapter), "{adapter}");
    }
    if let others @ 1.. = software.len().saturating_sub(1) {
        let together: usize = software.iter().map(|adapter| whole(adapter) - table.cases_on(adapter)).sum();
        // Each of them is left out by all adapters but one.
        assert_eq!(together, SHARED * others, "SHARED is another number");
    }
    assert!(Table::new(&Options { quick: true, ..Options::default() }).cases() < table.cases());
}
