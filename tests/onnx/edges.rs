//! Operators at the edges of their definitions, which no vector of ONNX has.

use anygpu::nn::Module;
use anygpu::{Device, Tensor, onnx};

use super::common::devices_in_turn;
use super::models::{bytes, floats, graph, ints, node, value};
use super::proto::{Attribute, Graph, Node, TensorProto, ValueInfo};
use super::table::{DOUBLE, FLOAT, INT64, info, longs, model};

/// Integers of 8 bits wrap, powers of integers take fractions, and what is reduced along nothing is still transformed.
#[test]
fn operators_keep_their_definitions_at_the_edges() {
    let typed = |name: &str, code: i32, dims: &[i64]| {
        let mut info = value(name, dims);
        info.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().elem_type = code;
        info
    };
    let run = |nodes: Vec<Node>, weights: Vec<TensorProto>, input: ValueInfo, x: &Tensor| {
        let model = onnx::load_bytes(&bytes(graph(nodes, weights, vec![input], vec![value("y", &[0])]))).unwrap();
        model.forward(x).unwrap()
    };
    for device in devices_in_turn() {
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

/// What ONNX Runtime gives for a loop without a trip: a stack of nothing, whose other sizes are those that the body declares, or 0.
#[test]
fn a_loop_without_a_trip_gives_empty_stacks() {
    let copy = |from: &str, to: &str| node("Identity", &[from], &[to], vec![]);
    let typed = |name: &str, code: i32, dims: &[i64]| {
        let mut info = value(name, dims);
        info.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().elem_type = code;
        info
    };
    for (code, dims, shape) in
        [(FLOAT, vec![2, 3], vec![0, 2, 3]), (INT64, vec![0, 3], vec![0, 0, 3]), (DOUBLE, vec![], vec![0])]
    {
        let inputs = vec![info("i", INT64), info("c", 9), info("v", code)];
        let outputs = vec![info("c2", 9), info("v2", code), typed("s", code, &dims)];
        let body = graph(vec![copy("c", "c2"), copy("v", "v2"), copy("v", "s")], vec![], inputs, outputs);
        let body = Attribute { name: "body".into(), g: Some(body), ..Attribute::default() };
        let repeat = node("Loop", &["m", "", "x"], &["y", "z"], vec![body]);
        let graph = graph(
            vec![repeat],
            vec![],
            vec![info("m", INT64), info("x", code)],
            vec![info("y", code), info("z", code)],
        );
        let model = model(graph, 18);
        for device in devices_in_turn() {
            let x = if code == DOUBLE { Device::cpu() } else { device.clone() };
            let dtype = model.outputs()[0].element_type.dtype();
            let x = Tensor::ones([2, 3], &x).unwrap().to_dtype(dtype).unwrap();
            let trips = |count: i64| longs(&[count]).shaped(&[]).tensor(&Device::cpu());
            let run = |count: i64| model.run(&[("x", &x), ("m", &trips(count))]).unwrap();
            assert_eq!((run(0)["z"].shape(), run(0)["z"].dtype()), (&shape[..], dtype), "{device}");
            assert_eq!((run(2)["z"].shape(), run(2)["z"].dtype()), (&[2, 2, 3][..], dtype), "{device}");
        }
    }
}

#[test]
fn a_name_that_is_defined_twice_is_refused_with_both_definitions() {
    let error = |graph: Graph| onnx::load_bytes(&bytes(graph)).map(|_| ()).unwrap_err().to_string();
    let two = |second: Node| {
        let first = node("Relu", &["x"], &["a"], vec![]);
        let last = node("Neg", &["a"], &["y"], vec![]);
        error(graph(vec![first, second, last], vec![], vec![value("x", &[2])], vec![value("y", &[2])]))
    };
    let words = ["'a' is defined twice", "node 'relu_1' (Relu)"];
    for (second, name) in [
        (node("Abs", &["x"], &["a"], vec![]), "node 'abs_1' (Abs)"),
        (node("Identity", &["x"], &["a"], vec![]), "node 'identity_1' (Identity)"),
    ] {
        let error = two(second);
        words.iter().chain([&name]).for_each(|word| assert!(error.contains(word), "{error}"));
    }
    let twice = |nodes: Vec<Node>, weights: Vec<TensorProto>| {
        error(graph(nodes, weights, vec![value("x", &[2])], vec![value("y", &[2])]))
    };
    let relu = || node("Relu", &["x"], &["y"], vec![]);
    let y = || floats("y", &[2], &[1.0, 2.0]);
    let error = twice(vec![relu()], vec![y()]);
    assert!(error.contains("by an initializer and by node 'relu_1' (Relu)"), "{error}");
    let error = twice(vec![], vec![y(), y()]);
    assert!(error.contains("by an initializer and by an initializer"), "{error}");
    let error = twice(vec![node("Relu", &["x"], &["x"], vec![]), node("Neg", &["x"], &["y"], vec![])], vec![]);
    assert!(error.contains("by an input of the graph and by node 'relu_1' (Relu)"), "{error}");
}
