//! A model of ONNX with a packed matrix holds it as it is in the file, on every device, and its products take no more than a part of it
//! widened.

use anygpu::nn::Module;
use anygpu::{Result, Tensor, onnx};
use prost::Message;

use crate::common::{alone, devices_in_turn};
use crate::proto::{Attribute, Graph, Kind, Model, Node, Opset, TensorKind, TensorProto, ValueInfo};

/// Rows and columns: 8 MiB of integers of 4 bits, 64 MiB as f32.
const SIZES: [usize; 2] = [4096, 4096];
const BLOCK: usize = 32;

/// The most bytes of f32 that are widened at a time.
const PART: u64 = 16 << 20;

fn model(scales: i32) -> Result<onnx::Model> {
    let [n, k] = SIZES;
    let int = |name: &str, i: usize| Attribute { name: name.into(), i: i as i64, ..Attribute::default() };
    let tensor = |name: &str, dims: &[usize], data_type: i32, raw: Vec<u8>| TensorProto {
        name: name.into(),
        dims: dims.iter().map(|&size| size as i64).collect(),
        data_type,
        raw_data: raw.into(),
        ..TensorProto::default()
    };
    let info = |name: &str| ValueInfo {
        name: name.into(),
        r#type: Some(Kind { tensor_type: Some(TensorKind { elem_type: 1, shape: None }) }),
    };
    let size = if scales == 1 { 4 } else { 2 };
    let node = Node {
        input: ["x", "w", "scales"].map(String::from).into(),
        output: vec!["y".into()],
        name: "product".into(),
        op_type: "MatMulNBits".into(),
        attribute: vec![int("K", k), int("N", n), int("bits", 4), int("block_size", BLOCK)],
        domain: "com.microsoft".into(),
    };
    let graph = Graph {
        node: vec![node],
        initializer: vec![
            tensor("w", &[n, k / BLOCK, BLOCK / 2], 2, vec![0x19; n * k / 2]),
            tensor("scales", &[n * k / BLOCK], scales, vec![0; n * k / BLOCK * size]),
        ],
        input: vec![info("x")],
        output: vec![info("y")],
        ..Graph::default()
    };
    let sets = ["", "com.microsoft"].map(|domain| Opset { domain: domain.into(), version: 1 }).into();
    onnx::load_bytes(&Model { graph: Some(graph), opset_import: sets, ..Model::default() }.encode_to_vec())
}

#[test]
fn packed_matrices_are_held_packed() -> Result<()> {
    let _alone = alone();
    let [n, k] = SIZES;
    for (scales, size) in [(1, 4), (10, 2)] {
        let packed = (n * k / 2 + n * k / BLOCK * size) as u64;
        for device in devices_in_turn() {
            device.synchronize()?;
            let before = device.memory().live;
            let model = model(scales)?.to(&device)?;
            device.synchronize()?;
            let held = device.memory().live.saturating_sub(before);
            assert!(held >= packed && held * 20 <= packed * 21, "{device}: {held} bytes for {packed}");
            for m in [1, 40] {
                let x = Tensor::ones([m, k], &device)?;
                // Once before: the trial of a variant has buffers of its own.
                model.forward(&x)?;
                device.synchronize()?;
                let live = device.memory().live;
                device.reset_peak_memory();
                let y = model.forward(&x)?;
                device.synchronize()?;
                let more = device.memory().peak.saturating_sub(live);
                // Parts that a device has yet to compute, panels of a part, and the result.
                let most = if m == 1 { 1 << 20 } else { 3 * PART };
                assert!(more <= most, "{device}: {more} bytes for a product of {m} rows");
                drop(y);
            }
            let held = device.memory().live.saturating_sub(before);
            assert!(held <= packed * 21 / 20 + (2 << 20), "{device}: {held} bytes after products");
        }
    }
    Ok(())
}
