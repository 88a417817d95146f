//! ONNX's test vectors, with extreme numbers in their inputs and attributes.

use std::sync::LazyLock;

use anygpu::{Device, Tensor, onnx};
use prost::Message;

use super::models::{EXTREMES, altered, loops, pick, results, weight};
use super::proto::{Model, TensorProto};

#[path = "../../common/vectors.rs"]
mod archive;

/// A model and its inputs.
struct Vector {
    model: Model,
    inputs: Vec<TensorProto>,
}

static VECTORS: LazyLock<Vec<Vector>> = LazyLock::new(|| {
    let read = |files: archive::Files| {
        let model = Model::decode(&files["model.onnx"][..]).ok()?;
        let input = |i: usize| files.get(&format!("test_data_set_0/input_{i}.pb"));
        // What is not a tensor, a sequence for example, has no values here.
        let inputs = (0..).map_while(input).map(|bytes| TensorProto::decode(&bytes[..]).unwrap_or_default()).collect();
        Some(Vector { model, inputs })
    };
    archive::tests().into_values().filter_map(read).collect()
});

pub fn prepare() {
    assert!(VECTORS.len() > 2000, "{} vectors", VECTORS.len());
}

/// Two bytes for the vector, a byte for how its inputs come to it, and four bytes for each of up to three changes.
pub fn node(bytes: &[u8]) {
    let Some((&[low, high, how], changes)) = bytes.split_first_chunk() else { return };
    let Vector { model, inputs } = &VECTORS[usize::from(u16::from_le_bytes([low, high])) % VECTORS.len()];
    let (mut model, mut inputs) = (model.clone(), inputs.clone());
    for change in changes.chunks_exact(4).take(3).map(|change| <[u8; 4]>::try_from(change).expect("4 bytes")) {
        match change[0] % 8 {
            0..=3 => changed(&mut inputs, change),
            _ => altered(&mut model, [change[0] / 8, change[1], change[2], change[3]]),
        }
    }
    // A file may ask for any number of trips.
    if loops(&model) {
        return;
    }
    if how % 2 == 1 {
        with_weights(&mut model, std::mem::take(&mut inputs));
    }
    let Ok(model) = onnx::load_bytes(&model.encode_to_vec()) else { return };
    let mut tensors = Vec::new();
    for (info, input) in model.inputs().iter().zip(&inputs) {
        let Some(x) = tensor(input, info.element_type.dtype()) else { return };
        tensors.push((info.name.as_str(), x));
    }
    results(&model, &tensors.iter().map(|(name, x)| (*name, x)).collect::<Vec<_>>());
}

/// An input with another number, or with a size of 0 beside a large one.
fn changed(inputs: &mut [TensorProto], [kind, place, a, b]: [u8; 4]) {
    let Some(input) = pick(inputs, place.into()) else { return };
    let number = EXTREMES[usize::from(b) % EXTREMES.len()];
    if kind % 8 != 0 {
        return weight(input, 3, a.into(), number);
    }
    if let Some(dim) = pick(&mut input.dims, (a / 16).into()) {
        *dim = number.max(0);
    }
    if let Some(dim) = pick(&mut input.dims, (a % 16).into()) {
        *dim = 0;
        *input =
            TensorProto { dims: std::mem::take(&mut input.dims), data_type: input.data_type, ..TensorProto::default() };
    }
}

/// Makes the inputs weights, which operators read on the host.
fn with_weights(model: &mut Model, inputs: Vec<TensorProto>) {
    let Some(graph) = model.graph.as_mut() else { return };
    for (info, input) in std::mem::take(&mut graph.input).into_iter().zip(inputs) {
        graph.initializer.push(TensorProto { name: info.name, ..input });
    }
}

/// An input of a model, on `cpu`.
fn tensor(input: &TensorProto, dtype: anygpu::DType) -> Option<Tensor> {
    let shape: Vec<usize> = input.dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).collect();
    if shape.contains(&0) {
        return Tensor::zeros(shape, Device::cpu()).and_then(|x| x.to_dtype(dtype)).ok();
    }
    let values = input.value().ok()?.data;
    let x = match dtype {
        _ if dtype.is_float() => Tensor::from_vec(values.iter().map(|&v| v as f32).collect(), shape, Device::cpu()),
        anygpu::DType::I32 => Tensor::from_vec(values.iter().map(|&v| v as i32).collect(), shape, Device::cpu()),
        _ => Tensor::from_vec(values.iter().map(|&v| v as u32).collect(), shape, Device::cpu()),
    };
    x.and_then(|x| x.to_dtype(dtype)).ok()
}
