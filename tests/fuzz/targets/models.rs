//! Files of ONNX, loaded and run.

use anygpu::nn::Module;
use anygpu::{DType, Tensor, no_grad, onnx};
use prost::Message;

use super::proto::{Attribute, Graph, Model, Node, TensorProto};
use super::text::Bytes;

/// Numbers at which operators often change what they do.
pub const EXTREMES: [i64; 16] =
    [0, 1, -1, 2, 3, 4, 7, -3, 9, 255, 65_537, 1 << 31, 1 << 40, -1 << 31, i64::MAX, i64::MIN];
const FLOATS: [f32; 8] = [0.0, -0.0, 1.0, -1.5, 1e30, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
/// The elements of all inputs of a model that is run.
const MOST_ELEMENTS: usize = 1 << 12;
/// The largest number in a model whose loops are run: a file may ask for any number of steps.
const MOST_STEPS: i64 = 40;

/// The other file of the folder, which models may name as external data.
pub fn prepare() {
    super::file("weights", &[0; 64]);
}

/// Whether a file can be loaded; what is known of the model then.
pub fn load(bytes: &[u8]) {
    let path = super::file("model.onnx", bytes);
    match onnx::load(path) {
        Ok(model) => {
            let _ = (model.to_string(), model.inputs().len(), model.outputs().len());
            let state = model.state_dict();
            assert!(state.iter().all(|(name, x)| !name.is_empty() && x.device().is_cpu()));
        }
        Err(error) => assert!(error.to_string().contains("onnx"), "{error}"),
    }
}

/// A byte for the number of changes and the elements of inputs, four bytes for each change, and a file. Changes of the content
/// come past the parser, which refuses most files of changed bytes.
pub fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let first = bytes.byte().unwrap_or(0);
    let changes: Vec<[u8; 4]> = (0..first % 4).map(|_| std::array::from_fn(|_| bytes.byte().unwrap_or(0))).collect();
    let Ok(mut file) = Model::decode(bytes.0) else { return };
    changes.into_iter().for_each(|change| altered(&mut file, change));
    if is_endless(&file) {
        return;
    }
    let Ok(model) = onnx::load_bytes(&file.encode_to_vec()) else { return };
    run_model(&model, f32::from(first >> 6) - 1.0);
}

/// Runs a model on inputs that are all of one value, if these are small.
fn run_model(model: &onnx::Model, value: f32) {
    let mut inputs = Vec::new();
    for info in model.inputs() {
        let size = |dim: &onnx::Dimension| if let onnx::Dimension::Size(size) = dim { *size } else { 2 };
        let shape: Vec<usize> = info.shape.iter().flatten().map(size).collect();
        let count = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size.max(1)));
        if count.is_none_or(|count| count > MOST_ELEMENTS) || inputs.len() > 16 {
            return;
        }
        let value = Tensor::full(shape, value, None).and_then(|x| x.to_dtype(info.element_type.dtype()));
        inputs.push((info.name.as_str(), value.expect("a small tensor")));
    }
    results(model, &inputs.iter().map(|(name, x)| (*name, x)).collect::<Vec<_>>());
}

/// Runs a model: outputs that can be read, or an error that says something.
pub fn results(model: &onnx::Model, inputs: &[(&str, &Tensor)]) {
    match no_grad(|| model.run(inputs)) {
        // The sum of a large output may have no room of its own.
        Ok(outputs) => outputs.iter().filter(|(_, y)| y.elem_count() < 1 << 16).for_each(|(name, y)| {
            let sum = y.to_dtype(DType::F32).and_then(|y| y.sum_all()?.item::<f32>());
            assert!(sum.is_ok(), "{name}: {sum:?}");
        }),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Changes the content of a model and keeps its form.
pub fn altered(model: &mut Model, [kind, place, a, b]: [u8; 4]) {
    let [place, a, b] = [place, a, b].map(usize::from);
    let number = if a < 128 { EXTREMES[b % EXTREMES.len()] } else { b as i64 - 128 };
    let Some(graph) = model.graph.as_mut() else { return };
    if kind % 12 == 0 {
        model.opset_import.iter_mut().for_each(|set| set.version = 1 + b as i64 % 26);
        return;
    }
    let operators: Vec<String> = graph.node.iter().map(|node| node.op_type.clone()).collect();
    let names: Vec<String> =
        graph.node.iter().flat_map(|node| node.input.iter().chain(&node.output)).cloned().collect();
    if let 1..=3 = kind % 12 {
        let Some(tensor) = pick(&mut graph.initializer, place) else { return };
        weight(tensor, kind % 12, a, number);
        return;
    }
    let Some(node) = pick(&mut graph.node, place) else { return };
    match kind % 12 {
        4 => node.op_type = OPERATORS[b % OPERATORS.len()].into(),
        5 => node.op_type = operators[b % operators.len()].clone(),
        6 => {
            let name =
                if b == 0 { String::new() } else { names.get(b % names.len().max(1)).cloned().unwrap_or_default() };
            pick(&mut node.input, a).into_iter().for_each(|input| input.clone_from(&name));
        }
        7 => _ = node.input.pop(),
        8 => node.output.push(format!("more_{b}")),
        9 => _ = pick(&mut node.attribute, a).map(|attribute| attribute.ints.push(number)),
        10 => _ = pick(&mut node.attribute, a).map(|attribute| attribute.ints.pop()),
        _ => {
            let Some(attribute) = pick(&mut node.attribute, a) else { return };
            (attribute.i, attribute.f) = (number, FLOATS[b % FLOATS.len()]);
            pick(&mut attribute.ints, b / 16).into_iter().for_each(|value| *value = number);
        }
    }
}

/// Operators that take one to three inputs, to stand for others.
const OPERATORS: [&str; 32] = [
    "Add",
    "ArgMax",
    "Clip",
    "Compress",
    "Concat",
    "ConstantOfShape",
    "Conv",
    "ConvTranspose",
    "CumSum",
    "DepthToSpace",
    "Einsum",
    "Expand",
    "Gather",
    "GatherElements",
    "GatherND",
    "GridSample",
    "MatMul",
    "MaxPool",
    "NonZero",
    "OneHot",
    "Pad",
    "Range",
    "ReduceSum",
    "Reshape",
    "Resize",
    "ScatterElements",
    "ScatterND",
    "Slice",
    "Split",
    "Tile",
    "TopK",
    "Where",
];

pub fn pick<T>(list: &mut [T], place: usize) -> Option<&mut T> {
    let count = list.len().max(1);
    list.get_mut(place % count)
}

/// Changes a size, the type or an element of a weight.
pub fn weight(tensor: &mut TensorProto, kind: u8, place: usize, number: i64) {
    match kind {
        1 => pick(&mut tensor.dims, place).into_iter().for_each(|dim| *dim = number),
        2 => tensor.data_type = (number.rem_euclid(26)) as i32,
        _ => {
            pick(&mut tensor.int64_data, place).into_iter().for_each(|value| *value = number);
            pick(&mut tensor.int32_data, place).into_iter().for_each(|value| *value = number as i32);
            pick(&mut tensor.float_data, place).into_iter().for_each(|value| *value = number as f32);
            let width = if tensor.data_type == 7 { 8 } else { 4 };
            let mut raw = tensor.raw_data.to_vec();
            let at = place % (raw.len() / width).max(1) * width;
            if let Some(bytes) = raw.get_mut(at..at + width) {
                match tensor.data_type {
                    1 => bytes.copy_from_slice(&(number as f32).to_le_bytes()),
                    _ => bytes.copy_from_slice(&number.to_le_bytes()[..width]),
                }
            }
            tensor.raw_data = raw.into();
        }
    }
}

/// All nodes of a file, with those of graphs within them.
fn nodes(model: &Model) -> Vec<&Node> {
    let mut all: Vec<&Node> = model.functions.iter().flat_map(|function| &function.node).collect();
    all.extend(model.graph.iter().flat_map(|graph| &graph.node));
    let mut next = 0;
    while let Some(node) = all.get(next) {
        next += 1;
        let inner: Vec<&Node> = graphs(node).flat_map(|graph| &graph.node).collect();
        all.extend(inner);
    }
    all
}

fn graphs(node: &Node) -> impl Iterator<Item = &Graph> {
    node.attribute.iter().filter_map(|attribute| attribute.g.as_ref())
}

/// Whether a model may loop for long: it has a large number, or a loop without a number of steps.
fn is_endless(model: &Model) -> bool {
    let counts = |node: &&Node| node.input.first().is_some_and(|name| !name.is_empty());
    let loops_on = nodes(model).iter().any(|node| node.op_type == "Loop" && !counts(node));
    loops_on || loops(model) && numbers(model).any(|n| !(0..=MOST_STEPS).contains(&n))
}

pub fn loops(model: &Model) -> bool {
    nodes(model).iter().any(|node| matches!(&*node.op_type, "Loop" | "Scan"))
}

/// The whole numbers of a file's weights and attributes.
fn numbers(model: &Model) -> impl Iterator<Item = i64> {
    let all = nodes(model);
    let inner = all.iter().flat_map(|node| graphs(node)).chain(&model.graph).flat_map(|graph| &graph.initializer);
    let attributes: Vec<&Attribute> = all.iter().flat_map(|node| &node.attribute).collect();
    let tensors: Vec<&TensorProto> =
        inner.chain(attributes.iter().filter_map(|attribute| attribute.t.as_ref())).collect();
    let mut found: Vec<i64> =
        attributes.iter().flat_map(|attribute| attribute.ints.iter().chain([&attribute.i])).copied().collect();
    for tensor in tensors {
        found.extend(tensor.int64_data.iter().copied().chain(tensor.int32_data.iter().map(|&n| i64::from(n))));
        found.extend(tensor.dims.iter().copied());
        if tensor.data_type == 7 {
            found.extend(
                tensor.raw_data.chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().expect("8 bytes"))),
            );
        }
    }
    found.into_iter()
}
