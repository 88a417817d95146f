//! The op table on every device; and what it has no place for: gradients that are a convention, and errors.

#[path = "../common/mod.rs"]
mod common;

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

use anygpu::check::{self, Options, Table};

/// Checks one family on every device, and reports all failures together.
fn run(family: &str) {
    let options = Options { family: Some(family.to_owned()), ..Options::default() };
    let table = Table::new(&options);
    let reports = common::devices()
        .into_iter()
        .map(|device| table.run(&device).unwrap_or_else(|error| panic!("{family} on {device}: {error}")));
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
    views,
}

#[test]
fn every_family_is_tested() {
    let tested: HashSet<&str> = TESTED.iter().copied().collect();
    assert_eq!(tested, check::families().collect());
}

/// Cases are added, not lost.
#[test]
fn the_table_is_whole() {
    let whole = Table::new(&Options::default());
    assert!(whole.cases() >= 525, "only {} cases", whole.cases());
    assert!(Table::new(&Options { quick: true, ..Options::default() }).cases() < whole.cases());
}
