//! What a loaded model is to a program: its description, errors, parameters, training, devices and threads.

use anygpu::nn::{Module, Reduction, mse_loss};
use anygpu::onnx::{self, Dimension};
use anygpu::optim::SGD;
use anygpu::{DataParallel, Device, Error, Tensor};
use prost::Message;

use super::common::devices_in_turn;
use super::proto::{Attribute, Dim, Entry, Graph, Kind, Model, Node, Opset, Shape, TensorKind, TensorProto, ValueInfo};

pub fn node(op: &str, input: &[&str], output: &[&str], attribute: Vec<Attribute>) -> Node {
    let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    Node {
        input: owned(input),
        output: owned(output),
        name: format!("{}_1", op.to_lowercase()),
        op_type: op.into(),
        attribute,
        domain: String::new(),
    }
}

pub fn floats(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.into(),
        data_type: 1,
        float_data: values.into(),
        ..TensorProto::default()
    }
}

pub fn ints(name: &str, values: &[i64]) -> TensorProto {
    let dims = vec![values.len() as i64];
    TensorProto { name: name.into(), dims, data_type: 7, int64_data: values.into(), ..TensorProto::default() }
}

/// An input or output of floats; a size of 0 is the symbol `batch`.
pub fn value(name: &str, dims: &[i64]) -> ValueInfo {
    let dim = |&size: &i64| match size {
        0 => Dim { dim_value: None, dim_param: Some("batch".into()) },
        size => Dim { dim_value: Some(size), dim_param: None },
    };
    let shape = Some(Shape { dim: dims.iter().map(dim).collect() });
    ValueInfo { name: name.into(), r#type: Some(Kind { tensor_type: Some(TensorKind { elem_type: 1, shape }) }) }
}

pub fn graph(node: Vec<Node>, initializer: Vec<TensorProto>, input: Vec<ValueInfo>, output: Vec<ValueInfo>) -> Graph {
    Graph { node, initializer, input, output, ..Graph::default() }
}

pub fn bytes(graph: Graph) -> Vec<u8> {
    let opset_import = vec![Opset { domain: String::new(), version: 17 }];
    Model { graph: Some(graph), opset_import, ..Model::default() }.encode_to_vec()
}

/// y = relu(x A + a) B, with x `[batch, 2]`.
pub fn two_layers() -> Vec<u8> {
    let nodes = vec![
        node("MatMul", &["x", "first.weight"], &["h1"], vec![]),
        node("Add", &["h1", "first.bias"], &["h2"], vec![]),
        node("Relu", &["h2"], &["h3"], vec![]),
        node("MatMul", &["h3", "second.weight"], &["y"], vec![]),
    ];
    let weights = vec![
        floats("first.weight", &[2, 3], &[1.0, -1.0, 0.5, 2.0, 0.25, -0.5]),
        floats("first.bias", &[3], &[0.1, 0.2, 0.3]),
        floats("second.weight", &[3, 1], &[1.0, -2.0, 0.5]),
    ];
    bytes(graph(nodes, weights, vec![value("x", &[0, 2])], vec![value("y", &[0, 1])]))
}

fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn describes_its_inputs_and_parameters() {
    let model = onnx::load_bytes(&two_layers()).unwrap();
    assert_eq!(model.inputs()[0].shape, Some(vec![Dimension::Symbol("batch".into()), Dimension::Size(2)]));
    assert_eq!(model.outputs()[0].to_string(), "'y': float [batch, 1]");
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["first.weight", "first.bias", "second.weight"]);
    let text = model.to_string();
    assert!(text.contains("12 parameters") && text.contains("MatMul 2"), "{text}");
    let state = model.state_dict();
    assert_eq!(state.names().count(), 3);
    onnx::load_bytes(&two_layers()).unwrap().load_state_dict(&state, true).unwrap();
    assert_eq!(model.summary(&[4, 2]).unwrap().parameters, 12);
}

#[test]
fn errors_say_what_is_wrong() {
    let model = onnx::load_bytes(&two_layers()).unwrap();
    let x = Tensor::ones([3, 2], None).unwrap();
    assert!(message(model.run(&[("z", &x)])).contains("no input 'z'; its inputs are 'x': float [batch, 2]"));
    assert!(message(model.run(&[])).contains("'x': float [batch, 2] is missing"));
    assert!(message(model.forward(&Tensor::ones([3, 4], None).unwrap())).contains("is given the shape [3, 4]"));
    let whole = Tensor::full([3, 2], 1i32, None).unwrap();
    assert!(matches!(model.forward(&whole), Err(Error::DTypeMismatch { .. })));
    let elsewhere = Tensor::ones([3, 2], Device::new("cpu/1").unwrap()).unwrap();
    assert!(matches!(model.forward(&elsewhere), Err(Error::DeviceMismatch { .. })));

    let unknown = vec![
        node("Foo", &["x"], &["a"], vec![]),
        node("Bar", &["a"], &["b"], vec![]),
        node("Foo", &["b"], &["y"], vec![]),
    ];
    let unknown = bytes(graph(unknown, vec![], vec![value("x", &[2])], vec![value("y", &[2])]));
    let text = message(onnx::load_bytes(&unknown));
    assert!(text.contains("not supported: Foo (foo_1, foo_1), Bar (bar_1)"), "{text}");

    for (domain, operator) in
        [("com.microsoft", "QAttention"), ("com.microsoft.nchwc", "Conv"), ("com.microsoft", "Foo")]
    {
        let own = Node { domain: domain.into(), ..node(operator, &["x"], &["y"], vec![]) };
        let text =
            message(onnx::load_bytes(&bytes(graph(vec![own], vec![], vec![value("x", &[2])], vec![value("y", &[2])]))));
        assert!(text.contains(&format!("not supported: {domain}.{operator} (")), "{text}");
        let told = text.contains("quant_format=QuantFormat.QDQ") && text.contains("ORT_ENABLE_BASIC");
        assert_eq!(told, operator != "Foo", "{text}");
    }

    let mismatched = vec![node("Add", &["x", "w"], &["y"], vec![])];
    let weights = vec![floats("w", &[3], &[1.0, 2.0, 3.0])];
    let mismatched = bytes(graph(mismatched, weights, vec![value("x", &[2])], vec![value("y", &[2])]));
    let model = onnx::load_bytes(&mismatched).unwrap();
    let text = message(model.forward(&Tensor::ones(2, None).unwrap()));
    assert!(text.contains("node 'add_1' (Add)") && text.contains("[2] and [3]"), "{text}");

    let unread = bytes(graph(vec![node("Relu", &["q"], &["y"], vec![])], vec![], vec![], vec![value("y", &[2])]));
    assert!(message(onnx::load_bytes(&unread)).contains("reads 'q', which nothing before it gives"));
}

/// Five steps lower the loss, on each device alike, and with several devices as with one.
#[test]
fn trains_on_every_device() {
    let losses = |net: &dyn Fn(&Tensor, &Tensor) -> f32| -> Vec<f32> {
        let x = Tensor::try_from([[1.0, 2.0], [0.5, -1.0], [-2.0, 0.25], [3.0, 1.0]]).unwrap();
        let y = Tensor::try_from([[1.0], [0.0], [-1.0], [0.5]]).unwrap();
        (0..5).map(|_| net(&x, &y)).collect()
    };
    let mut all = Vec::new();
    for device in devices_in_turn() {
        let model = onnx::load_bytes(&two_layers()).unwrap().to(&device).unwrap();
        let sgd = std::cell::RefCell::new(SGD::new(model.parameters(), 0.02));
        all.push(losses(&|x, y| {
            let loss =
                mse_loss(&model.forward(&x.to(&device).unwrap()).unwrap(), &y.to(&device).unwrap(), Reduction::Mean)
                    .unwrap();
            loss.backward().unwrap();
            sgd.borrow_mut().step().unwrap();
            sgd.borrow_mut().zero_grad();
            loss.item().unwrap()
        }));
    }
    let devices = [Device::new("cpu/0").unwrap(), Device::new("cpu/1").unwrap()];
    let net = DataParallel::new(onnx::load_bytes(&two_layers()).unwrap(), &devices).unwrap();
    let sgd = std::cell::RefCell::new(SGD::new(net.parameters(), 0.02));
    all.push(losses(&|x, y| {
        let output = net.train_batch(x, y, |output, y| mse_loss(output, y, Reduction::Mean)).unwrap();
        sgd.borrow_mut().step().unwrap();
        sgd.borrow_mut().zero_grad();
        output.item().unwrap()
    }));
    assert!(all[0][4] < all[0][0] * 0.9, "{:?}", all[0]);
    for other in &all[1..] {
        other.iter().zip(&all[0]).for_each(|(a, b)| assert!((a - b).abs() <= 1e-4 * b.abs(), "{all:?}"));
    }
}

/// The sum of `x` until it exceeds 100, by a loop whose condition depends on the elements; the number of trips is a stacked output.
#[test]
fn loops_and_conditions_run_on_every_device() {
    let inner = graph(
        vec![
            node("Add", &["sum", "x"], &["next"], vec![]),
            node(
                "ReduceMax",
                &["next"],
                &["largest"],
                vec![Attribute { name: "keepdims".into(), ..Attribute::default() }],
            ),
            node("Less", &["largest", "limit"], &["go"], vec![]),
        ],
        vec![],
        vec![value("trip", &[]), value("condition", &[]), value("sum", &[2])],
        vec![value("go", &[]), value("next", &[2]), value("largest", &[])],
    );
    let body = Attribute { name: "body".into(), g: Some(inner), ..Attribute::default() };
    let nodes = vec![node("Loop", &["", "", "x"], &["y", "all"], vec![body])];
    let limit = vec![floats("limit", &[], &[100.0])];
    let model = bytes(graph(nodes, limit, vec![value("x", &[2])], vec![value("y", &[2]), value("all", &[0])]));
    for device in devices_in_turn() {
        let model = onnx::load_bytes(&model).unwrap();
        let x = Tensor::try_from([30.0, 7.0]).unwrap().to(&device).unwrap();
        let outputs = model.run(&[("x", &x)]).unwrap();
        assert_eq!(outputs["y"].to_vec::<f32>().unwrap(), [120.0, 28.0], "{device}");
        assert_eq!(outputs["all"].to_vec::<f32>().unwrap(), [60.0, 90.0, 120.0], "{device}");
    }
}

#[test]
fn many_threads_run_one_model() {
    for device in devices_in_turn() {
        let model = onnx::load_bytes(&two_layers()).unwrap().to(&device).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (model, device) = (&model, &device);
                scope.spawn(move || {
                    for i in 0..10 {
                        let v = (thread * 10 + i) as f32;
                        let x = Tensor::from_vec(vec![v, 0.0], [1, 2], device).unwrap();
                        let hidden = [v + 0.1, (0.2 - v).max(0.0), 0.5 * v + 0.3];
                        let expected = hidden[0] - 2.0 * hidden[1] + 0.5 * hidden[2];
                        let got = model.forward(&x).unwrap().to_vec::<f32>().unwrap()[0];
                        assert!((got - expected).abs() < 1e-4, "{v} on {device}: {got}, not {expected}");
                    }
                });
            }
        });
    }
}

/// Elements in another file of the folder are read; a path out of it is refused, also by a link.
#[test]
fn external_data_stays_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("models");
    std::fs::create_dir(&inside).unwrap();
    let elements: Vec<u8> = [9.0f32, 1.5, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(inside.join("weights.bin"), &elements).unwrap();
    std::fs::write(folder.path().join("outside.bin"), &elements).unwrap();
    let load = |location: &str, offset: &str| {
        let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
        let external_data = vec![entry("location", location), entry("offset", offset), entry("length", "8")];
        let weight = TensorProto { external_data, data_location: 1, ..floats("w", &[2], &[]) };
        let model = graph(
            vec![node("Add", &["x", "w"], &["y"], vec![])],
            vec![weight],
            vec![value("x", &[2])],
            vec![value("y", &[2])],
        );
        std::fs::write(inside.join("model.onnx"), bytes(model)).unwrap();
        onnx::load(inside.join("model.onnx"))
    };
    let y = load("weights.bin", "4").unwrap().forward(&Tensor::zeros(2, None).unwrap()).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.5, -2.0]);
    assert!(message(load("weights.bin", "8")).contains("beyond its end"));
    assert!(message(load("../outside.bin", "0")).contains("must be in the model's folder"));
    let absolute = folder.path().join("outside.bin");
    assert!(message(load(&absolute.to_string_lossy(), "0")).contains("must be in the model's folder"));
    assert!(message(load("missing.bin", "0")).contains("missing.bin"));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("../outside.bin", inside.join("link.bin")).unwrap();
        assert!(message(load("link.bin", "0")).contains("a link out of it"));
    }
    let alone = std::fs::read(inside.join("model.onnx")).unwrap();
    assert!(message(onnx::load_bytes(&alone)).contains("load the model by its path"));
}

/// Batch norm, scales and shifts around convolutions, and activations of several operators: the model has fewer nodes and the
/// same numbers as its operators one by one, which the names of intermediate outputs keep apart.
#[test]
fn fused_models_give_the_same_numbers() {
    let nodes = |end: &str| {
        vec![
            node("Mul", &["x", "two"], &["a"], vec![]),
            node("Add", &["a", "shift"], &["b"], vec![]),
            node("Conv", &["b", "w1"], &["c"], vec![]),
            node("BatchNormalization", &["c", "gamma", "beta", "mean", "variance"], &["d"], vec![]),
            node("Add", &["three", "d"], &["e"], vec![]),
            node("Clip", &["e", "zero", "six"], &["f"], vec![]),
            node("Mul", &["d", "f"], &["g"], vec![]),
            node("Div", &["g", "six"], &["h"], vec![]),
            node("Mul", &["scale", "h"], &["i"], vec![]),
            node("Add", &["i", "shift"], &["m"], vec![]),
            node("Conv", &["m", "w2", "bias"], &["j"], vec![pads(1)]),
            node("Sub", &["j", "shift3"], &["k"], vec![]),
            node("Sigmoid", &["k"], &["l"], vec![]),
            node("Mul", &["l", "k"], &[end], vec![]),
        ]
    };
    let pattern = |count: usize| -> Vec<f32> { (0..count).map(|i| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.4).collect() };
    let weights = vec![
        floats("two", &[], &[2.0]),
        floats("shift", &[], &[0.5]),
        floats("w1", &[3, 2, 1, 1], &pattern(6)),
        floats("gamma", &[3], &[1.5, -0.5, 0.75]),
        floats("beta", &[3], &[0.1, 0.2, -0.3]),
        floats("mean", &[3], &[0.05, -0.1, 0.2]),
        floats("variance", &[3], &[0.5, 2.0, 1.0]),
        floats("three", &[], &[3.0]),
        floats("zero", &[], &[0.0]),
        floats("six", &[], &[6.0]),
        floats("scale", &[1], &[-0.5]),
        floats("w2", &[3, 3, 3, 3], &pattern(81)),
        floats("bias", &[3], &[0.3, 0.1, -0.2]),
        floats("shift3", &[3, 1, 1], &[0.2, -0.4, 0.6]),
    ];
    let input = || vec![value("x", &[0, 2, 5, 4])];
    let names: Vec<String> = ('a'..='m').map(String::from).collect();
    let all = names.iter().map(|name| value(name, &[0])).chain([value("y", &[0])]).collect();
    let fused = onnx::load_bytes(&bytes(graph(nodes("y"), weights.clone(), input(), vec![value("y", &[0])]))).unwrap();
    let plain = onnx::load_bytes(&bytes(graph(nodes("y"), weights, input(), all))).unwrap();
    assert!(fused.to_string().ends_with("operators: Conv 2"), "{fused}");
    assert!(plain.to_string().contains("BatchNormalization 1"), "{plain}");
    for device in devices_in_turn() {
        let (fused, plain) = (fused.clone().to(&device).unwrap(), plain.clone().to(&device).unwrap());
        let x = Tensor::from_vec(pattern(80), [2, 2, 5, 4], &device).unwrap();
        let expected = plain.run(&[("x", &x)]).unwrap()["y"].to_vec::<f32>().unwrap();
        let got = fused.forward(&x).unwrap().to_vec::<f32>().unwrap();
        got.iter().zip(&expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a}, not {b} on {device}"));
    }
    let names: Vec<String> = fused.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["w2", "bias", "w1", "w1.bias"]);
}

/// A scale that gives its input more channels is no part of the convolution after it.
#[test]
fn scales_that_broadcast_the_image_are_not_fused() {
    let nodes = vec![node("Mul", &["x", "scale"], &["a"], vec![]), node("Conv", &["a", "w"], &["y"], vec![])];
    let weights = vec![floats("scale", &[1, 2, 1, 1], &[2.0, 3.0]), floats("w", &[1, 2, 1, 1], &[1.0, -1.0])];
    let model =
        onnx::load_bytes(&bytes(graph(nodes, weights, vec![value("x", &[0, 1, 1, 2])], vec![value("y", &[0])])))
            .unwrap();
    let x = Tensor::from_vec(vec![1.0f32, 5.0], [1, 1, 1, 2], None).unwrap();
    assert_eq!(model.forward(&x).unwrap().to_vec::<f32>().unwrap(), [-1.0, -5.0]);
}

/// Padding of both dimensions on both sides.
fn pads(size: i64) -> Attribute {
    Attribute { name: "pads".into(), ints: vec![size; 4], ..Attribute::default() }
}

/// A fused convolution of one channel, a constant that is computed at load, and tied weights, on every device.
#[test]
fn constants_move_with_the_model() {
    let nodes = vec![
        node("Exp", &["logarithm"], &["factor"], vec![]),
        node("Conv", &["x", "w"], &["a"], vec![]),
        node("Mul", &["a", "half"], &["b"], vec![]),
        node("Conv", &["x", "w"], &["c"], vec![]),
        node("Add", &["c", "one"], &["d"], vec![]),
        node("Add", &["b", "d"], &["e"], vec![]),
        node("Mul", &["e", "factor"], &["y"], vec![]),
    ];
    let weights = vec![
        floats("logarithm", &[], &[0.0]),
        floats("half", &[], &[0.5]),
        floats("one", &[], &[1.0]),
        floats("w", &[1, 1, 1, 1], &[2.0]),
    ];
    let file = bytes(graph(nodes, weights, vec![value("x", &[0, 1, 1, 2])], vec![value("y", &[0])]));
    for device in devices_in_turn() {
        let model = onnx::load_bytes(&file).unwrap().to(&device).unwrap();
        let x = Tensor::from_vec(vec![1.0f32, 3.0], [1, 1, 1, 2], &device).unwrap();
        // (2x · ½) + (2x + 1)
        assert_eq!(model.forward(&x).unwrap().to_vec::<f32>().unwrap(), [4.0, 10.0], "{device}");
        let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["w", "w.bias", "w.2", "w.bias.2"]);
        let other = onnx::load_bytes(&file).unwrap();
        other.load_state_dict(&model.state_dict(), true).unwrap();
        let x = x.to("cpu").unwrap();
        assert_eq!(other.forward(&x).unwrap().to_vec::<f32>().unwrap(), [4.0, 10.0]);
    }
}
