//! Functions of the file: their attributes, also within conditions, and names that operators have too.

use anygpu::nn::Module;
use anygpu::{Tensor, onnx};
use prost::Message;

use super::common::devices_in_turn;
use super::models::{floats, graph, ints, node, value};
use super::proto::{Attribute, Function, Graph, Model, Node, Opset};

fn opset(domain: &str, version: i64) -> Opset {
    Opset { domain: domain.into(), version }
}

fn file(functions: Vec<Function>, graph: Graph) -> Vec<u8> {
    Model { graph: Some(graph), opset_import: vec![opset("", 17), opset("my", 1)], functions, ..Model::default() }
        .encode_to_vec()
}

fn function(name: &str, input: &[&str], output: &str, node: Vec<Node>) -> Function {
    let input = input.iter().map(|name| name.to_string()).collect();
    let opset_import = vec![opset("", 17), opset("my", 1)];
    Function {
        name: name.into(),
        input,
        output: vec![output.into()],
        node,
        opset_import,
        domain: "my".into(),
        ..Function::default()
    }
}

fn call(op: &str, input: &[&str], output: &str, attribute: Vec<Attribute>) -> Node {
    Node { domain: "my".into(), ..node(op, input, &[output], attribute) }
}

/// leaky(x) = x, or slope · x below 0, if the condition is true; else −x. Called twice with two slopes, once by another function.
#[test]
fn attributes_reach_the_graphs_within_functions() {
    let slope = Attribute { name: "alpha".into(), ref_attr_name: "slope".into(), ..Attribute::default() };
    let branch = |name: &str, node: Node| {
        let graph = graph(vec![node], vec![], vec![], vec![value("out", &[2])]);
        Attribute { name: name.into(), g: Some(graph), ..Attribute::default() }
    };
    let then = branch("then_branch", node("LeakyRelu", &["v"], &["out"], vec![slope]));
    let otherwise = branch("else_branch", node("Neg", &["v"], &["out"], vec![]));
    let leaky = function("Leaky", &["v", "yes"], "w", vec![node("If", &["yes"], &["w"], vec![then, otherwise])]);
    let value_of = |v: f32| vec![Attribute { name: "slope".into(), f: v, ..Attribute::default() }];
    let both = vec![call("Leaky", &["a", "c"], "b", value_of(0.25)), node("Abs", &["b"], &["d"], vec![])];
    let outer = function("Outer", &["a", "c"], "d", both);
    let nodes = vec![
        node("Cast", &["one"], &["yes"], vec![Attribute { name: "to".into(), i: 9, ..Attribute::default() }]),
        call("Leaky", &["x", "yes"], "p", value_of(0.5)),
        call("Outer", &["x", "yes"], "q", vec![]),
        node("Add", &["p", "q"], &["y"], vec![]),
    ];
    let graph = graph(nodes, vec![ints("one", &[1])], vec![value("x", &[2])], vec![value("y", &[2])]);
    let file = file(vec![leaky, outer], graph);
    for device in devices_in_turn() {
        let model = onnx::load_bytes(&file).unwrap();
        let x = Tensor::from_vec(vec![-2.0f32, 3.0], 2, &device).unwrap();
        // −2 · ½ + |−2 · ¼|, 3 + 3
        assert_eq!(model.forward(&x).unwrap().to_vec::<f32>().unwrap(), [-0.5, 6.0], "{device}");
    }
}

/// A function that is called Mul is not the operator, and is not fused as one.
#[test]
fn a_function_may_have_the_name_of_an_operator() {
    let body = vec![node("Mul", &["a", "b"], &["c"], vec![]), node("Add", &["c", "c"], &["d"], vec![])];
    let nodes = vec![node("Sigmoid", &["x"], &["s"], vec![]), call("Mul", &["x", "s"], "y", vec![])];
    let file = file(
        vec![function("Mul", &["a", "b"], "d", body)],
        graph(nodes, vec![], vec![value("x", &[1])], vec![value("y", &[1])]),
    );
    let x = Tensor::from_vec(vec![1.0f32], 1, None).unwrap();
    let y: f32 = onnx::load_bytes(&file).unwrap().forward(&x).unwrap().item().unwrap();
    assert!((y - 2.0 / (1.0 + (-1f32).exp())).abs() < 1e-6, "{y}");
}

/// A function that calls itself, and functions that call each other twice each, are errors.
#[test]
fn functions_without_end_are_errors() {
    let own = function("F", &["a"], "b", vec![call("F", &["a"], "b", vec![])]);
    let only = |name: &str| {
        graph(vec![call(name, &["x"], "y", vec![])], vec![], vec![value("x", &[1])], vec![value("y", &[1])])
    };
    assert!(onnx::load_bytes(&file(vec![own], only("F"))).unwrap_err().to_string().contains("nested"));
    let twice = |i: usize| {
        let next = format!("F{}", i + 1);
        function(
            &format!("F{i}"),
            &["a"],
            "c",
            vec![call(&next, &["a"], "b", vec![]), call(&next, &["b"], "c", vec![])],
        )
    };
    let last = function("F25", &["a"], "c", vec![node("Neg", &["a"], &["c"], vec![])]);
    let functions = (0..25).map(twice).chain([last]).collect();
    assert!(onnx::load_bytes(&file(functions, only("F0"))).unwrap_err().to_string().contains("more than"));
}

/// Parameters of activations are listed for those that have them: here for the second of two. And a scale of the file is an f32.
#[test]
fn lists_and_scales_are_those_of_the_file() {
    let strings = |name: &str, list: &[&str]| {
        let strings = list.iter().map(|text| text.as_bytes().to_vec().into()).collect();
        Attribute { name: name.into(), strings, ..Attribute::default() }
    };
    let attributes = vec![
        strings("activations", &["Sigmoid", "LeakyRelu"]),
        Attribute { name: "activation_alpha".into(), floats: vec![0.3], ..Attribute::default() },
        Attribute { name: "hidden_size".into(), i: 1, ..Attribute::default() },
    ];
    let weights = vec![floats("w", &[1, 3, 1], &[1.0; 3]), floats("r", &[1, 3, 1], &[0.0; 3])];
    let nodes = vec![node("GRU", &["x", "w", "r"], &["", "y"], attributes)];
    let input = || vec![value("x", &[1, 1, 1])];
    let gru = onnx::load_bytes(&file(vec![], graph(nodes, weights, input(), vec![value("y", &[0])]))).unwrap();
    let y: f32 = gru.forward(&Tensor::full([1, 1, 1], -1.0f32, None).unwrap()).unwrap().item().unwrap();
    assert!((y + 0.2193).abs() < 1e-4, "{y}");

    let nodes = vec![node("Resize", &["x", "", "scales"], &["y"], vec![])];
    let scales = vec![floats("scales", &[4], &[1.0, 1.0, 1.0, 0.7])];
    let input = vec![value("x", &[1, 1, 1, 10])];
    let resize = onnx::load_bytes(&file(vec![], graph(nodes, scales, input, vec![value("y", &[0])]))).unwrap();
    assert_eq!(resize.forward(&Tensor::ones([1, 1, 1, 10], None).unwrap()).unwrap().shape(), [1, 1, 1, 7]);
}
