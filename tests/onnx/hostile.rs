//! Damaged and hostile files: an error, or a model that runs, in bounded memory. `ANYGPU_ONNX_MUTATIONS` says how many mutations of
//! each test vector are tried.

use std::time::{Duration, Instant};

use anygpu::{DType, Device, Tensor, no_grad, onnx};
use prost::Message;

use super::models::{bytes, floats, graph, ints, node, two_layers, value};
use super::proto::{Attribute, Model};
use super::tests;

/// xorshift64*
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n.max(1)
    }
}

/// Changes a few bytes, cuts, or doubles a part.
fn mutated(original: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..1 + numbers.below(4) {
        let at = numbers.below(bytes.len());
        match numbers.below(8) {
            0..=2 => bytes[at] = numbers.below(256) as u8,
            3 => bytes[at] ^= 1 << numbers.below(8),
            4 => bytes[at] = [0, 1, 127, 128, 255][numbers.below(5)],
            5 => bytes.truncate(at.max(1)),
            6 => {
                let end = (at + 1 + numbers.below(40)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            _ => _ = bytes.remove(at),
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
    bytes
}

/// Changes the content of a model and keeps its form: numbers of attributes, operators, names of inputs, sizes, versions.
fn altered(original: &[u8], operators: &[String], numbers: &mut Numbers) -> Vec<u8> {
    const EXTREMES: [i64; 12] = [0, 1, -1, 2, 3, 7, -3, 255, 1 << 31, 1 << 40, i64::MAX, i64::MIN];
    let mut model = Model::decode(original).expect("a ModelProto");
    let graph = model.graph.as_mut().expect("a graph");
    let names: Vec<String> =
        graph.node.iter().flat_map(|node| node.input.iter().chain(&node.output)).cloned().collect();
    for _ in 0..1 + numbers.below(3) {
        let at = numbers.below(graph.node.len());
        let kind = numbers.below(10);
        if kind == 0 {
            model.opset_import.iter_mut().for_each(|set| set.version = 1 + numbers.below(26) as i64);
        } else if kind == 1 && !graph.initializer.is_empty() {
            let tensor = numbers.below(graph.initializer.len());
            let dims = &mut graph.initializer[tensor].dims;
            let dim = numbers.below(dims.len());
            dims.get_mut(dim).into_iter().for_each(|dim| *dim = EXTREMES[numbers.below(12)]);
        } else if let Some(node) = graph.node.get_mut(at) {
            let attribute = numbers.below(node.attribute.len());
            match (kind, node.attribute.get_mut(attribute)) {
                (2, _) => node.op_type = operators[numbers.below(operators.len())].clone(),
                (3, _) => {
                    let input = numbers.below(node.input.len());
                    let name = names[numbers.below(names.len())].clone();
                    node.input.get_mut(input).into_iter().for_each(|input| *input = name.clone());
                }
                (4, _) => _ = node.input.pop(),
                (5, _) => node.output.push(format!("more_{}", numbers.below(100))),
                (6, Some(attribute)) => attribute.ints.push(EXTREMES[numbers.below(12)]),
                (7, Some(attribute)) => _ = attribute.ints.pop(),
                (8, Some(attribute)) => {
                    attribute.i = EXTREMES[numbers.below(12)];
                    attribute.f = [0.0, -1.0, f32::NAN, f32::INFINITY, 1e30][numbers.below(5)];
                }
                (_, Some(attribute)) => {
                    let i = numbers.below(attribute.ints.len());
                    attribute.ints.get_mut(i).into_iter().for_each(|value| *value = EXTREMES[numbers.below(12)]);
                }
                _ => {}
            }
        }
    }
    model.encode_to_vec()
}

/// Loads a file, and runs what comes of it on zeros of the shapes that it asks for, if these are small.
///
/// Returns how far it came: 0 for an error of loading, 1 for a model that did not run, 2 for outputs.
fn try_file(bytes: &[u8]) -> usize {
    let Ok(model) = onnx::load_bytes(bytes) else { return 0 };
    let mut inputs = Vec::new();
    for info in model.inputs() {
        let size = |dim: &onnx::Dimension| if let onnx::Dimension::Size(size) = dim { *size } else { 2 };
        let shape: Vec<usize> = info.shape.iter().flatten().map(size).collect();
        let count = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        if count.is_none_or(|count| count > 1 << 16) {
            return 1;
        }
        let zeros = Tensor::zeros(shape, None).and_then(|x| x.to_dtype(info.element_type.dtype()));
        inputs.push((info.name.as_str(), zeros.expect("zeros")));
    }
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, x)| (*name, x)).collect();
    let Ok(outputs) = no_grad(|| model.run(&inputs)) else { return 1 };
    for (_, y) in outputs.iter() {
        match y.to_dtype(DType::F32).and_then(|y| y.sum_all()?.item::<f32>()) {
            // A constant of any shape is one element in memory, and may be too large to be read.
            Err(error) if error.is_out_of_memory() => return 1,
            read => _ = read.expect("a computed output can be read"),
        }
    }
    2
}

#[test]
fn mutated_files_are_errors_or_models() {
    let count: usize = std::env::var("ANYGPU_ONNX_MUTATIONS").map_or(2, |text| text.parse().expect("a number"));
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut slowest = (Duration::ZERO, String::new());
    let begin = Instant::now();
    let mut outcomes = [0usize; 3];
    let all = tests();
    let graphs = all
        .values()
        .map(|files| Model::decode(&files["model.onnx"][..]).expect("a ModelProto").graph.expect("a graph"));
    let operators: Vec<String> = graphs.flat_map(|graph| graph.node).map(|node| node.op_type).collect();
    for (name, files) in all {
        for i in 0..count {
            let original = &files["model.onnx"];
            let file =
                if i % 2 == 0 { mutated(original, &mut numbers) } else { altered(original, &operators, &mut numbers) };
            let start = Instant::now();
            outcomes[try_file(&file)] += 1;
            if start.elapsed() > slowest.0 {
                slowest = (start.elapsed(), name.clone());
            }
        }
    }
    let [errors, models, outputs] = outcomes;
    println!(
        "{errors} files with errors, {models} that did not run, {outputs} that gave outputs, in {:.0?}; the slowest took {:.2?} ({})",
        begin.elapsed(),
        slowest.0,
        slowest.1
    );
    // Mutations that no file survives would not reach what is behind the parser.
    assert!(models > 0 && outputs > 0);
    assert!(slowest.0 < Duration::from_secs(20), "{slowest:?}");
}

/// Short files that ask for much.
#[test]
fn files_cannot_ask_for_more_than_they_have() {
    let x = || vec![value("x", &[2])];
    let y = || vec![value("y", &[0])];
    let huge = [1i64 << 40];
    for (what, nodes, weights) in [
        ("a constant of a shape", vec![node("ConstantOfShape", &["n"], &["y"], vec![])], vec![ints("n", &huge)]),
        ("a tiling", vec![node("Tile", &["x", "n"], &["y"], vec![])], vec![ints("n", &huge)]),
        ("a padding", vec![node("Pad", &["x", "n"], &["y"], vec![])], vec![ints("n", &[1 << 40, 1 << 40])]),
        ("a tensor without elements", vec![node("Add", &["x", "w"], &["y"], vec![])], vec![floats("w", &huge, &[])]),
    ] {
        let model = bytes(graph(nodes, weights, x(), y()));
        let start = Instant::now();
        if let Ok(model) = onnx::load_bytes(&model) {
            // The host may have room for what is asked; here it has not.
            let zeros = Tensor::zeros(2, Device::cpu()).unwrap();
            assert!(model.run(&[("x", &zeros)]).is_err(), "{what}");
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{what} took {:?}", start.elapsed());
    }
}

/// A loop whose condition stays true, and which stacks an output of each trip.
#[test]
fn a_loop_without_an_end_is_an_error() {
    let inner = graph(
        vec![node("Neg", &["x"], &["y"], vec![])],
        vec![],
        vec![value("trip", &[]), value("condition", &[]), value("x", &[])],
        vec![value("condition", &[]), value("y", &[]), value("trip", &[])],
    );
    let body = Attribute { name: "body".into(), g: Some(inner), ..Attribute::default() };
    let nodes = vec![node("Loop", &["", "", "x"], &["y", "all"], vec![body])];
    let file = bytes(graph(nodes, vec![], vec![value("x", &[])], vec![value("y", &[]), value("all", &[0])]));
    let model = onnx::load_bytes(&file).unwrap();
    let error = model.run(&[("x", &Tensor::zeros((), Device::cpu()).unwrap())]).unwrap_err();
    assert!(error.to_string().contains("trips"), "{error}");
}

/// Constants that double sixty times are left for the run, which has no room for them.
#[test]
fn folding_is_bounded() {
    let doubled = |i: usize| node("Concat", &[&format!("c{i}"), &format!("c{i}")], &[&format!("c{}", i + 1)], vec![]);
    let nodes = (0..60).map(doubled).collect();
    let start = Instant::now();
    let file = bytes(graph(nodes, vec![floats("c0", &[2], &[1.0, 2.0])], vec![], vec![value("c60", &[0])]));
    assert!(onnx::load_bytes(&file).is_ok());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// Every file that is cut short is an error or, at the end of a message, a model.
#[test]
fn cut_files_are_errors() {
    let whole = two_layers();
    for length in 0..whole.len() {
        try_file(&whole[..length]);
    }
    assert!(onnx::load_bytes(&whole).is_ok());
    assert!(onnx::load_bytes(&[]).is_err());
}
