//! A table of embeddings is loaded from a file of ONNX without a copy in wider elements.

use anygpu::{Result, onnx};
use prost::Message;

use crate::common::alone;
use crate::counting::measured;
use crate::proto::{Graph, Kind, Model, Node, Opset, TensorKind, TensorProto, ValueInfo};

#[test]
fn a_table_takes_the_memory_of_the_file_and_of_the_tensor() -> Result<()> {
    let _alone = alone();
    let (rows, width) = (1 << 14, 64);
    let size = rows * width * 4;
    let info = |name: &str, elem_type: i32| ValueInfo {
        name: name.into(),
        r#type: Some(Kind { tensor_type: Some(TensorKind { elem_type, shape: None }) }),
    };
    let node = Node {
        input: ["table", "ids"].map(String::from).into(),
        output: vec!["y".into()],
        name: "embedded".into(),
        op_type: "Gather".into(),
        ..Node::default()
    };
    let table = TensorProto {
        name: "table".into(),
        dims: vec![rows as i64, width as i64],
        data_type: 1,
        raw_data: vec![0; size].into(),
        ..TensorProto::default()
    };
    let graph = Graph {
        node: vec![node],
        initializer: vec![table],
        input: vec![info("ids", 7)],
        output: vec![info("y", 1)],
        ..Graph::default()
    };
    let sets = vec![Opset { domain: String::new(), version: 17 }];
    let bytes = Model { graph: Some(graph), opset_import: sets, ..Model::default() }.encode_to_vec();
    let (model, _, most) = measured(|| onnx::load_bytes(&bytes));
    model?;
    assert!(most < 5 * size / 2, "a table of {size} bytes took {most} bytes beside the file");
    Ok(())
}
