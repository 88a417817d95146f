//! ONNX's test vectors, run with this crate's ops: `tests/data/onnx-node.tar.gz`, made by `scripts/onnx_vectors.py`.
//!
//! Each test is a model of one node with its inputs and outputs. The other files of this folder map ONNX's operators to
//! this crate's ops. Tests that cannot be run are listed with the reason in `skips.txt`. If the list differs from the
//! tests that were skipped, this test fails, so a loss of coverage is noticed. `ANYGPU_BLESS=1` writes the list anew.
//!
//! `cargo test --test onnx -- --nocapture` prints the number of passed tests per operator.

#[path = "../common/mod.rs"]
mod common;

mod call;
mod elementwise;
mod index;
mod layers;
mod linear;
mod norms;
mod proto;
mod reduce;
mod resize;
mod shape;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::path::Path;

use anygpu::{DType, Device, Tensor};
use call::{Call, Outcome, Stop, dtype_of, is_ours, skip};
use common::{EXACT, Nd, Tolerance, difference};
use flate2::read::GzDecoder;
use prost::Message;
use proto::{Graph, Model, TensorProto, Type, Value, ValueInfo};

/// ONNX's runner allows 1e-3 · |expected| + 1e-7. The 1e-5 is for values near 0 that come of larger ones.
const TOLERANCE: Tolerance = Tolerance { rtol: 1e-3, atol: 1e-5 };

/// The files of one test, by name: `model.onnx`, `test_data_set_0/input_0.pb`, …
type Files = BTreeMap<String, Vec<u8>>;

fn tests() -> BTreeMap<String, Files> {
    let archive = include_bytes!("../data/onnx-node.tar.gz");
    let mut all: BTreeMap<String, Files> = BTreeMap::new();
    for entry in tar::Archive::new(GzDecoder::new(&archive[..])).entries().expect("an archive") {
        let mut entry = entry.expect("a file of the archive");
        let path = entry.path().expect("its name").to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("its bytes");
        let (test, file) = path.split_once('/').expect("a folder for each test");
        all.entry(test.to_owned()).or_default().insert(file.to_owned(), bytes);
    }
    all
}

/// A test, read.
struct Vector {
    graph: Graph,
    opset: i64,
    files: Files,
}

impl Vector {
    fn new(files: Files) -> Vector {
        let model = Model::decode(&files["model.onnx"][..]).expect("a ModelProto");
        let opset = model.opset_import.iter().find(|set| set.domain.is_empty()).map_or(0, |set| set.version);
        Vector { graph: model.graph.expect("a graph"), opset, files }
    }

    /// The value of an input or an output of the graph. The files hold bfloat16 as the integers of its bits.
    fn read(&self, file: String, info: &ValueInfo) -> Outcome<Value> {
        let Some(kind) = info.kind.as_ref().and_then(|kind| kind.tensor.as_ref()) else {
            return skip("a sequence or an optional");
        };
        let bytes = &self.files[&format!("test_data_set_0/{file}.pb")];
        let tensor = TensorProto::decode(&bytes[..]).expect("a TensorProto");
        let tensor = TensorProto { data_type: kind.elem_type, ..tensor };
        tensor.value().or_else(|kind| skip(format!("the type {kind}")))
    }

    /// The node's inputs in its own order, `None` where it leaves one out.
    fn inputs(&self) -> Outcome<Vec<Option<Value>>> {
        let all = &self.graph.input;
        let of = |name: &String| match all.iter().position(|input| input.name == *name) {
            Some(i) => self.read(format!("input_{i}"), &all[i]).map(Some),
            None => Ok(None),
        };
        self.graph.node[0].input.iter().map(of).collect()
    }

    fn outputs(&self) -> Outcome<Vec<Value>> {
        self.graph.output.iter().enumerate().map(|(i, info)| self.read(format!("output_{i}"), info)).collect()
    }

    /// Runs the node on a device and compares.
    fn run(&self, device: &Device) -> Outcome<()> {
        let (inputs, expected) = (self.inputs()?, self.outputs()?);
        let call = Call { node: &self.graph.node[0], opset: self.opset, inputs, device };
        let outputs = map(&call)?;
        if outputs.len() != expected.len() {
            return Err(Stop::Failed(format!("{} outputs, not {}", outputs.len(), expected.len())));
        }
        outputs.iter().zip(&expected).try_for_each(|(got, expected)| compare(got, expected))
    }
}

/// The op of ours, or the composition, that an operator is.
fn map(call: &Call) -> Outcome {
    let families =
        [elementwise::map, reduce::map, linear::map, layers::map, norms::map, index::map, resize::map, shape::map];
    match families.into_iter().find_map(|family| family(call)) {
        Some(outcome) => outcome,
        None => skip("no op of ours yet"),
    }
}

fn compare(got: &Tensor, expected: &Value) -> Outcome<()> {
    let wrong = |text: String| Err(Stop::Failed(text));
    let stands_in = |dtype: DType| !dtype.is_float() && dtype != DType::Bool;
    let same = match expected.kind {
        // Indices are u32 here.
        kind if !is_ours(kind) && stands_in(dtype_of(kind)) => stands_in(got.dtype()),
        kind => got.dtype() == dtype_of(kind),
    };
    if !same {
        return wrong(format!("the elements are {}, expected {:?}", got.dtype(), expected.kind));
    }
    let tolerance = match got.dtype() {
        // The vectors' bf16 are cut off; ours are rounded to the nearest, as in PyTorch.
        DType::BF16 => Tolerance { rtol: 1.0 / 128.0, ..TOLERANCE },
        dtype if dtype.is_float() => TOLERANCE,
        _ => EXACT,
    };
    difference(got, &Nd::new(&expected.shape, expected.data.clone()), tolerance).or_else(wrong)
}

/// What came of all tests on one device.
#[derive(Default)]
struct Report {
    /// Passed and all, by operator.
    operators: BTreeMap<String, (usize, usize)>,
    /// One line for each operator and reason, with the tests' names.
    skips: String,
    skipped: usize,
    failures: String,
}

fn run(vectors: &BTreeMap<String, Vector>, device: &Device) -> Report {
    let mut report = Report::default();
    let mut skips: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, vector) in vectors {
        let operator = &vector.graph.node[0].op_type;
        let (passed, all) = report.operators.entry(operator.clone()).or_default();
        *all += 1;
        match vector.run(device) {
            Ok(()) => *passed += 1,
            Err(Stop::Skip(reason)) => skips.entry(format!("{operator}: {reason}")).or_default().push(name),
            Err(Stop::Failed(text)) => writeln!(report.failures, "{operator} {name} on {device}: {text}").unwrap(),
        }
    }
    report.skipped = skips.values().map(Vec::len).sum();
    report.skips = skips.iter().map(|(reason, names)| format!("{reason}: {}\n", names.join(" "))).collect();
    report
}

impl Report {
    fn print(&self, device: &Device) {
        let (passed, all) = self.operators.values().fold((0, 0), |(p, a), (passed, all)| (p + passed, a + all));
        println!("ONNX node tests on {device}: {passed} of {all} passed, {} skipped", self.skipped);
        let cells: Vec<String> = self.operators.iter().map(|(op, (p, a))| format!("{op:>25} {p:>2}/{a:<2}")).collect();
        cells.chunks(4).for_each(|row| println!("{}", row.concat()));
    }
}

/// Panics where the list of skips is not the committed one.
fn expect_skips(found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/skips.txt");
    if std::env::var_os("ANYGPU_BLESS").is_some() {
        std::fs::write(&path, found).expect("skips.txt can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let lost: Vec<&str> = found.lines().filter(|line| !committed.lines().any(|known| known == *line)).collect();
    let won: Vec<&str> = committed.lines().filter(|line| !found.lines().any(|skipped| skipped == *line)).collect();
    assert!(
        lost.is_empty() && won.is_empty(),
        "tests/onnx/skips.txt is not what was skipped.\nSkipped and not listed:\n  {}\nListed and not skipped:\n  {}",
        lost.join("\n  "),
        won.join("\n  "),
    );
}

/// On `cpu` and on one adapter.
#[test]
fn operators_give_what_onnx_expects() {
    let vectors: BTreeMap<String, Vector> =
        tests().into_iter().map(|(name, files)| (name, Vector::new(files))).collect();
    let mut failures = String::new();
    for device in ["cpu", "soft:0"].into_iter().filter_map(common::device) {
        let report = run(&vectors, &device);
        report.print(&device);
        expect_skips(&report.skips);
        failures += &report.failures;
    }
    assert!(failures.is_empty(), "{failures}");
}

/// The halves and signs of `proto.rs`, which the vectors alone would not tell apart from ours.
#[test]
fn reads_the_types_of_onnx() {
    let value = |data_type: i32, raw_data: Vec<u8>, count: i64| {
        TensorProto { dims: vec![count], data_type, raw_data, ..TensorProto::default() }.value().unwrap().data
    };
    assert_eq!(value(10, vec![0, 0x3c, 0, 0xc0, 1, 0, 0, 0x7c], 4), [1.0, -2.0, 2f64.powi(-24), f64::INFINITY]);
    assert_eq!(value(16, vec![0x80, 0x3f], 1), [1.0]);
    assert_eq!(value(3, vec![0xff], 1), [-1.0]);
    assert_eq!(value(7, vec![0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], 1), [-2.0]);
    assert_eq!(Type::of(8), Err("string"));
}
