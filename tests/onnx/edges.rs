//! Operators at the edges of their definitions, which no vector of ONNX has.

use anygpu::nn::Module;
use anygpu::{Tensor, onnx};

use super::common::devices;
use super::models::{bytes, floats, graph, ints, node, value};
use super::proto::{Attribute, Node, TensorProto, ValueInfo};

/// Integers of 8 bits wrap, powers of integers take fractions, and what is reduced along nothing is still transformed.
#[test]
fn operators_keep_their_definitions_at_the_edges() {
    let typed = |name: &str, code: i32, dims: &[i64]| {
        let mut info = value(name, dims);
        info.kind.as_mut().unwrap().tensor.as_mut().unwrap().elem_type = code;
        info
    };
    let run = |nodes: Vec<Node>, weights: Vec<TensorProto>, input: ValueInfo, x: &Tensor| {
        let model = onnx::load_bytes(&bytes(graph(nodes, weights, vec![input], vec![value("y", &[0])]))).unwrap();
        model.forward(x).unwrap()
    };
    for device in devices() {
        let x = Tensor::from_vec(vec![100i32; 5000], 5000, &device).unwrap();
        let y = run(vec![node("Add", &["x", "x"], &["y"], vec![])], vec![], typed("x", 3, &[5000]), &x);
        assert_eq!(y.to_vec::<i32>().unwrap(), [-56; 5000], "{device}");
        let x = Tensor::from_vec(vec![9i32; 5000], 5000, &device).unwrap();
        let half = vec![floats("half", &[], &[0.5])];
        let y = run(vec![node("Pow", &["x", "half"], &["y"], vec![])], half, typed("x", 6, &[5000]), &x);
        assert_eq!(y.to_vec::<i32>().unwrap(), [3; 5000], "{device}");
        let x = Tensor::from_vec(vec![-3.0f32, 2.0], 2, &device).unwrap();
        let flag = Attribute { name: "noop_with_empty_axes".into(), i: 1, ..Attribute::default() };
        let y = run(vec![node("ReduceSumSquare", &["x"], &["y"], vec![flag])], vec![], value("x", &[2]), &x);
        assert_eq!(y.to_vec::<f32>().unwrap(), [9.0, 4.0], "{device}");
        let x = Tensor::from_vec(vec![1.0f32, 1e8, 3.0], 3, &device).unwrap();
        let flag = Attribute { name: "exclusive".into(), i: 1, ..Attribute::default() };
        let sums = run(
            vec![node("CumSum", &["x", "axis"], &["y"], vec![flag])],
            vec![ints("axis", &[0])],
            value("x", &[3]),
            &x,
        );
        assert_eq!(sums.to_vec::<f32>().unwrap(), [0.0, 1.0, 1e8], "{device}");
    }
}
