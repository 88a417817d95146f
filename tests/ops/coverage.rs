//! Every op has a case in the table, and every op of the table a row in docs/check.md with the number of its cases. The names
//! are those that ops register.

use std::collections::{BTreeMap, BTreeSet};

use anygpu::check::{Options, Table};

use crate::source::{code, identifier, methods, read};

/// Names of ops that users do not call: each with the op of the table whose cases run it.
const INTERNAL: &[(&str, &str)] = &[
    ("adaptive_avg_pool", "adaptive_avg_pool2d"),
    ("adaptive_max_pool", "adaptive_max_pool2d"),
    ("adaptive_pool_grad", "adaptive_max_pool2d"),
    ("attention_grad", "attention"),
    ("cofactors", "det"),
    ("conv2d_input_grad", "conv2d"),
    ("conv2d_weight_grad", "conv2d"),
    ("interpolate_grad", "interpolate"),
    ("moments", "batch_norm"),
    ("nll", "cross_entropy"),
    ("norm_backward", "layer_norm"),
    ("norm_gradient_sums", "layer_norm"),
    ("norm_rows", "layer_norm"),
    ("pad_grad", "pad"),
    ("place", "slice"),
    ("pool2d_grad", "max_pool2d"),
    ("widen_packed", "matmul_packed"),
];

/// Methods of optional features, which the table is without. The host computes them: tests/ops/fourier.rs has their tests.
const OPTIONAL: &[&str] = &["fft", "ifft", "irfft", "rfft"];

/// The public functions of losses, which are compositions beside the modules.
fn functions(folder: &str) -> BTreeSet<String> {
    let all = code(folder).into_iter().flat_map(|(_, text)| {
        let names =
            text.lines().filter_map(|line| line.strip_prefix("pub fn ")).map(|rest| identifier(rest).to_owned());
        names.collect::<Vec<_>>()
    });
    all.collect()
}

fn table() -> BTreeSet<String> {
    let table = Table::new(&Options::default());
    table.ops().map(str::to_owned).collect()
}

#[test]
fn every_op_has_a_case() {
    let names: BTreeSet<String> = anygpu::ops::names().into_iter().map(str::to_owned).collect();
    let (table, methods) = (table(), methods("src/ops"));
    // The sources are still read.
    for known in ["matmul", "einsum", "std", "relu", "exp", "mish", "add", "atan2", "add_", "zero_", "batch_norm"] {
        assert!(methods.contains(known), "the methods lack {known}: has the syntax changed? {methods:?}");
    }
    let internal: BTreeMap<&str, &str> = INTERNAL.iter().copied().collect();
    let mut wrong: Vec<String> = Vec::new();
    for name in names.union(&methods).filter(|name| !table.contains(*name)) {
        if !internal.contains_key(name.as_str()) && !OPTIONAL.contains(&name.as_str()) {
            wrong.push(format!("{name} has no case: add one to src/check, or it to INTERNAL if users cannot call it"));
        }
    }
    for (name, op) in &internal {
        if !names.contains(*name) || table.contains(*name) {
            wrong.push(format!("INTERNAL need not have {name}"));
        }
        if methods.contains(*name) {
            wrong.push(format!("{name} is a method, which needs cases of its own"));
        }
        if !table.contains(*op) {
            wrong.push(format!("INTERNAL says that {op} runs {name}, but the table has no {op}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A case whose name is no op's would hide that the op has none.
#[test]
fn every_case_is_of_an_op() {
    let mut known = methods("src/ops");
    known.extend(methods("src/tensor"));
    known.extend(functions("src/nn"));
    known.insert("matmul_packed".to_owned()); // of the crate's own files of ONNX
    for op in table() {
        let op = op.split('/').next().unwrap_or(&op);
        assert!(known.contains(op), "the table has {op}, which is no method of Tensor and no function of nn");
    }
}

#[test]
fn every_op_has_a_row_in_the_docs() {
    let docs = read("docs/check.md");
    let (_, ops) = docs.split_once("| op | cases |").expect("docs/check.md has a table of ops");
    let rows = ops.lines().skip(2).filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?.to_owned(), cells.next()?.parse().ok()?))
    });
    let rows: BTreeSet<(String, usize)> = rows.collect();
    let table = Table::new(&Options::default());
    let table: BTreeSet<(String, usize)> = table.ops().map(|op| (op.to_owned(), table.cases_of(op))).collect();
    let (lacking, stale): (Vec<_>, Vec<_>) = (table.difference(&rows).collect(), rows.difference(&table).collect());
    let how = "if no case was lost, write docs/check.md anew with scripts/check_table.py";
    assert!(
        lacking.is_empty() && stale.is_empty(),
        "ops and numbers of cases without a row: {lacking:?}; rows that are not so in the table: {stale:?}: {how}"
    );
}
