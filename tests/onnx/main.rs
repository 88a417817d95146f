//! ONNX's test vectors, loaded and run by `anygpu::onnx`: `tests/data/onnx-node*.tar.gz`, made by `scripts/onnx_vectors.py`.
//!
//! Each test is a model, mostly of one node, with its inputs and outputs. `proto.rs` reads these on its own. Tests that cannot be
//! run are listed with the reason in `skips.txt`. If the list differs from the tests that were skipped, this test fails, so a
//! loss of coverage is noticed. `ANYGPU_BLESS=1` writes the list anew.
//!
//! `cargo test --features onnx --test onnx -- --nocapture` prints the number of passed tests per operator.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/vectors.rs"]
mod vectors;

mod edges;
mod export;
mod functions;
mod fusions;
mod hostile;
mod longs;
mod models;
mod packed;
mod proto;
mod runtime;
mod table;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anygpu::nn::Module;
use anygpu::{DType, Device, Error, Tensor, onnx};
use common::{EXACT, Nd, Tolerance, difference};
use prost::Message;
use proto::{Model, TensorProto, Type, Value};
use vectors::{Files, tests};

/// ONNX's runner allows 1e-3 · |expected| + 1e-7. The 1e-5 is for values near 0 that come of larger ones.
const TOLERANCE: Tolerance = Tolerance { rtol: 1e-3, atol: 1e-5 };

/// Why a test gave no result to compare.
enum Stop {
    /// It asks for something that is not supported; the reason is in the committed list.
    Skip(String),
    Failed(String),
}

type Outcome<T = ()> = Result<T, Stop>;

/// What is not supported says so.
fn stop(error: &Error) -> Stop {
    let text = error.to_string();
    match text.contains("not supported") {
        true => Stop::Skip(reason(&text)),
        false => Stop::Failed(text),
    }
}

/// The message without the names of nodes, tensors and this crate.
fn reason(text: &str) -> String {
    let text = text.strip_prefix("onnx: ").unwrap_or(text);
    let text = text.rsplit_once("): ").map_or(text, |(_, rest)| rest);
    let text = text.split_once("': ").map_or(text, |(_, rest)| rest);
    // Operators are listed with the names of their nodes.
    let mut short = String::new();
    let mut depth = 0;
    for c in text.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 && c != ')' {
            short.push(c);
        }
    }
    short.trim().to_owned()
}

/// The element type of this crate that holds an ONNX type's values.
fn dtype_of(kind: Type) -> DType {
    match kind {
        Type::Float | Type::Float8(_) | Type::Float4 | Type::Power => DType::F32,
        Type::Double => DType::F64,
        Type::Float16 => DType::F16,
        Type::Bfloat16 => DType::BF16,
        Type::Uint32 => DType::U32,
        Type::Int64 | Type::Uint64 => DType::I64,
        Type::Uint8 => DType::U8,
        Type::Bool => DType::Bool,
        _ => DType::I32,
    }
}

/// A value on a device; floats of 64 bits on `cpu`.
fn upload(value: &Value, device: &Device) -> Outcome<Tensor> {
    let dtype = dtype_of(value.kind);
    let shape = value.shape.clone();
    let made = match dtype {
        DType::F64 => Tensor::from_f64(&value.data, shape, None),
        DType::I64 => match value.data.iter().find(|&&v| v.abs() > 2f64.powi(63)) {
            Some(v) => return Err(Stop::Skip(format!("{v} of {:?} fits no type of ours", value.kind))),
            None => Tensor::from_slice(&value.data.iter().map(|&v| v as i64).collect::<Vec<_>>(), shape, device),
        },
        _ if dtype.is_float() => {
            Tensor::from_slice(&value.data.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape, device)
        }
        DType::I32 => Tensor::from_slice(&value.data.iter().map(|&v| v as i32).collect::<Vec<_>>(), shape, device),
        _ => Tensor::from_slice(&value.data.iter().map(|&v| v as u32).collect::<Vec<_>>(), shape, device),
    };
    made.and_then(|tensor| tensor.to_dtype(dtype)).map_err(|error| Stop::Failed(error.to_string()))
}

/// A test, read.
struct Vector {
    model: Result<onnx::Model, Error>,
    /// The operator of a model of one node.
    operator: String,
    /// The declared element types of the graph's inputs, by name, and of its outputs.
    inputs: BTreeMap<String, i32>,
    outputs: Vec<i32>,
    files: Files,
    /// The tolerance for halves.
    halves: Tolerance,
}

impl Vector {
    fn new(name: &str, files: Files) -> Vector {
        let bytes = &files["model.onnx"][..];
        let graph = Model::decode(bytes).expect("a ModelProto").graph.expect("a graph");
        let operator = match &graph.node[..] {
            [node] => node.op_type.clone(),
            _ => "(several)".to_owned(),
        };
        let kind = |info: &proto::ValueInfo| {
            info.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref()).map_or(0, |t| t.elem_type)
        };
        let inputs = graph.input.iter().map(|info| (info.name.clone(), kind(info))).collect();
        let outputs = graph.output.iter().map(kind).collect();
        // The vectors' bf16 are cut off; ours are rounded to the nearest, as in PyTorch. Those of attention were also rounded
        // after each of its steps, f16 too, where ours are rounded once: both are a few units in the last place from the exact
        // value.
        let halves = match name.contains("attention") {
            true => Tolerance { rtol: 1.0 / 64.0, ..TOLERANCE },
            false => Tolerance { rtol: 1.0 / 128.0, ..TOLERANCE },
        };
        Vector { model: onnx::load_bytes(bytes), operator, inputs, outputs, files, halves }
    }

    /// The value of a file. The files hold bfloat16 as the integers of its bits.
    fn read(&self, file: &str, kind: i32) -> Outcome<Value> {
        let bytes = &self.files[&format!("test_data_set_0/{file}.pb")];
        let tensor = TensorProto::decode(&bytes[..]).expect("a TensorProto");
        let tensor = TensorProto { data_type: kind, ..tensor };
        tensor.value().map_err(|kind| Stop::Skip(format!("the type {kind}")))
    }

    /// Runs the model on a device and compares.
    fn run(&self, device: &Device) -> Outcome {
        let model = self.model.as_ref().map_err(stop)?.clone().to(device).map_err(|error| stop(&error))?;
        let mut inputs = Vec::new();
        for (i, info) in model.inputs().iter().enumerate() {
            let value = self.read(&format!("input_{i}"), self.inputs[&info.name])?;
            inputs.push((info.name.as_str(), upload(&value, device)?));
        }
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let outputs = model.run(&inputs).map_err(|error| stop(&error))?.into_vec();
        for (i, (got, &kind)) in outputs.iter().zip(&self.outputs).enumerate() {
            self.compare(got, &self.read(&format!("output_{i}"), kind)?)?;
        }
        match outputs.len() == self.outputs.len() {
            true => Ok(()),
            false => Err(Stop::Failed(format!("{} outputs", outputs.len()))),
        }
    }

    fn compare(&self, got: &Tensor, expected: &Value) -> Outcome {
        let wrong = |text: String| Err(Stop::Failed(text));
        if got.dtype() != dtype_of(expected.kind) {
            return wrong(format!("the elements are {}, expected {:?}", got.dtype(), expected.kind));
        }
        let tolerance = match got.dtype() {
            DType::BF16 => self.halves,
            DType::F16 => Tolerance { rtol: self.halves.rtol / 8.0, ..TOLERANCE },
            dtype if dtype.is_float() => TOLERANCE,
            _ => EXACT,
        };
        difference(got, &Nd::new(&expected.shape, expected.data.clone()), tolerance).or_else(wrong)
    }
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

/// Why a test's outputs cannot be compared.
fn known_wrong(name: &str) -> Option<&'static str> {
    if (name.starts_with("test_training_dropout") && !name.contains("zero_ratio")) || name.starts_with("test_bernoulli")
    {
        Some("another generator's random numbers")
    } else if name.starts_with("test_qlinearmatmul") && name.contains("int8_float") && !name.contains("uint8") {
        Some("its outputs wrap, where the operator's text says that they saturate")
    } else if name == "test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True" {
        Some("it counts what lies beyond the padding; PyTorch, ONNX Runtime and later versions of ONNX do not")
    } else if name.starts_with("test_cast_FLOAT") && name.contains("_to_") && name.ends_with("INT4") {
        Some(
            "floats beyond the type become its ends, which the operator's text leaves open; in later versions of ONNX they wrap",
        )
    } else if name.starts_with("test_cast") && name.contains("_to_FLOAT4E2M1") {
        Some("NaN becomes 0, where the description of the type says 6")
    } else {
        None
    }
}

fn run(vectors: &BTreeMap<String, Vector>, device: &Device) -> Report {
    let mut report = Report::default();
    let mut skips: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, vector) in vectors {
        let operator = &vector.operator;
        let (passed, all) = report.operators.entry(operator.clone()).or_default();
        *all += 1;
        match known_wrong(name).map_or_else(|| vector.run(device), |reason| Err(Stop::Skip(reason.into()))) {
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
    let vectors: BTreeMap<String, Vector> = tests()
        .into_iter()
        .map(|(name, files)| {
            let vector = Vector::new(&name, files);
            (name, vector)
        })
        .collect();
    let mut failures = String::new();
    for device in ["cpu", "soft:0"].into_iter().filter_map(common::device) {
        let report = run(&vectors, &device);
        report.print(&device);
        expect_skips(&report.skips);
        failures += &report.failures;
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Real models with the outputs of ONNX Runtime, from the folder that ANYGPU_ONNX_MODELS names; `scripts/onnx_models.py` makes it.
#[test]
fn real_models_give_what_onnx_runtime_gives() {
    let Some(folder) = std::env::var_os("ANYGPU_ONNX_MODELS") else {
        eprintln!("skipped: ANYGPU_ONNX_MODELS names no folder of models (scripts/onnx_models.py makes one)");
        return;
    };
    let folder = Path::new(&folder);
    let devices: Vec<Device> = ["cpu", "soft:0", "soft:2"].into_iter().filter_map(common::device).collect();
    // Most of the time, each driver compiles on one thread.
    let failures: String = std::thread::scope(|scope| {
        let runs: Vec<_> = devices.iter().map(|device| scope.spawn(|| real_models_on(device, folder))).collect();
        runs.into_iter().map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    assert!(failures.is_empty(), "{failures}");
}

/// Runs each model with each of its inputs; returns what failed, in lines.
fn real_models_on(device: &Device, folder: &Path) -> String {
    let mut failures = String::new();
    for folder in subfolders(folder) {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let model = onnx::load(folder.join("model.onnx")).unwrap_or_else(|error| panic!("{name}: {error}"));
        model.eval();
        for case in subfolders(&folder) {
            let start = std::time::Instant::now();
            match real_case(&model, &case, device) {
                // Three models have tensors of 144 to 392 MiB, and some adapters bind 128.
                Err(text) if text.contains("max_storage_buffer_binding_size") => {
                    println!("{name:>26} on {device:<7} skipped: {text}")
                }
                Ok(error) => println!(
                    "{name:>26} on {device:<7} differs by {error:.1e} ({:.2} s)",
                    start.elapsed().as_secs_f64()
                ),
                Err(text) => writeln!(failures, "{name} on {device}: {text}").unwrap(),
            }
        }
    }
    failures
}

fn subfolders(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut all: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()).collect();
    all.sort();
    all
}

/// Runs a model on one set of inputs; returns the largest difference, relative to the largest element of an output or to 1.
fn real_case(model: &onnx::Model, case: &Path, device: &Device) -> Result<f64, String> {
    let read = |file: String| {
        let bytes = std::fs::read(case.join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        TensorProto::decode(&bytes[..]).expect("a TensorProto").value().expect("a type that is read")
    };
    let model = model.clone().to(device).map_err(|error| error.to_string())?;
    let mut inputs = Vec::new();
    for (i, info) in model.inputs().iter().enumerate() {
        let value = read(format!("input_{i}.pb"));
        // Rates and other settings are for the host.
        let place = if value.shape.is_empty() { Device::cpu() } else { device.clone() };
        inputs.push((info.name.as_str(), upload(&value, &place).map_err(|_| "an input that does not fit".to_owned())?));
    }
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let outputs = anygpu::no_grad(|| model.run(&inputs)).map_err(|error| error.to_string())?;
    let mut worst: f64 = 0.0;
    for (i, (name, got)) in outputs.iter().enumerate() {
        let expected = read(format!("output_{i}.pb"));
        if got.shape() != expected.shape {
            return Err(format!("{name} has the shape {:?}, expected {:?}", got.shape(), expected.shape));
        }
        let got = got.to_dtype(DType::F32).and_then(|got| got.to_vec::<f32>()).map_err(|error| error.to_string())?;
        let largest = expected.data.iter().fold(1.0, |most: f64, v| most.max(v.abs()));
        let error =
            got.iter().zip(&expected.data).map(|(&got, v)| (f64::from(got) - v).abs()).fold(0.0, f64::max) / largest;
        if error.is_nan() || error > 1e-4 {
            return Err(format!("{name} differs by {error:.1e}"));
        }
        worst = worst.max(error);
    }
    Ok(worst)
}

/// The halves and signs of `proto.rs`, which the vectors alone would not tell apart from ours.
#[test]
fn reads_the_types_of_onnx() {
    let value = |data_type: i32, raw_data: Vec<u8>, count: i64| {
        TensorProto { dims: vec![count], data_type, raw_data: raw_data.into(), ..TensorProto::default() }
            .value()
            .unwrap()
            .data
    };
    assert_eq!(value(10, vec![0, 0x3c, 0, 0xc0, 1, 0, 0, 0x7c], 4), [1.0, -2.0, 2f64.powi(-24), f64::INFINITY]);
    assert_eq!(value(16, vec![0x80, 0x3f], 1), [1.0]);
    assert_eq!(value(3, vec![0xff], 1), [-1.0]);
    assert_eq!(value(7, vec![0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], 1), [-2.0]);
    assert_eq!(Type::of(8), Err("string"));
}
