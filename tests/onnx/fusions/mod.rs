//! Layer norms, RMS norms, GELU and attention of several operators: the loaded model has fewer nodes, and gives the outputs and
//! gradients of its operators one by one, which intermediate outputs keep apart.

mod attention;
mod gelu;
mod norms;

use std::collections::BTreeMap;

use anygpu::nn::Module;
use anygpu::{Device, Tensor, onnx};
use prost::Message;

use super::common::devices;
use super::models::{graph, value};
use super::proto::{Attribute, Model, Node, Opset, TensorProto};

/// A model in a text of lines `output = Operator(inputs) attribute=…`; an input that is a number is a scalar of the file.
struct Case {
    text: &'static str,
    opset: i64,
    weights: Vec<(&'static str, &'static [i64])>,
    inputs: Vec<(&'static str, &'static [usize])>,
}

/// A case of the input x `[2, 3, 5]` and the weights `weight` and `bias` of its last dimension.
fn case(text: &'static str) -> Case {
    let weights: Vec<(&str, &[i64])> = vec![("weight", &[5]), ("bias", &[5])];
    Case { text, opset: 17, weights, inputs: vec![("x", &[2, 3, 5])] }
}

/// Numbers between −1.6 and 1.6 without a pattern.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 11 + i * i * 3) % 101) as f32 / 31.0 - 1.6).collect()
}

fn tensor(name: &str, dims: &[i64], values: &[f32], half: bool) -> TensorProto {
    let base = TensorProto { name: name.into(), dims: dims.into(), ..TensorProto::default() };
    match half {
        false => TensorProto { data_type: 1, float_data: values.into(), ..base },
        true => {
            let bits = values.iter().map(|&value| half::f16::from_f32(value).to_bits().into()).collect();
            TensorProto { data_type: 10, int32_data: bits, ..base }
        }
    }
}

impl Case {
    fn inputs(mut self, inputs: &[(&'static str, &'static [usize])]) -> Case {
        self.inputs = inputs.to_vec();
        self
    }

    fn weights(mut self, weights: &[(&'static str, &'static [i64])]) -> Case {
        self.weights = weights.to_vec();
        self
    }

    fn opset(mut self, opset: i64) -> Case {
        self.opset = opset;
        self
    }

    /// The file; `apart` makes every result an output.
    fn file(&self, apart: bool, half: bool) -> Vec<u8> {
        let mut weights: Vec<TensorProto> = Vec::new();
        for (i, (name, dims)) in self.weights.iter().enumerate() {
            let count = dims.iter().product::<i64>() as usize;
            weights.push(tensor(name, dims, &numbers(count, i + 5), half));
        }
        let mut nodes = Vec::new();
        for line in self.text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (output, rest) = line.split_once(" = ").unwrap();
            let (call, attributes) = rest.split_once(')').unwrap();
            let (op, arguments) = call.split_once('(').unwrap();
            let mut input = Vec::new();
            for argument in arguments.split(", ") {
                input.push(argument.to_owned());
                if weights.iter().any(|weight| weight.name == argument) {
                    continue;
                }
                if let Ok(number) = argument.parse::<f32>() {
                    weights.push(tensor(argument, &[], &[number], half));
                } else if let Some(list) = argument.strip_prefix('[') {
                    // Numbers of one dimension as floats, integers after a colon.
                    let list = list.trim_end_matches(']');
                    weights.push(match list.strip_prefix(':') {
                        Some(list) => super::models::ints(argument, &[list.parse().unwrap()]),
                        None => tensor(argument, &[1], &[list.parse().unwrap()], half),
                    });
                }
            }
            let attribute = attributes.split_whitespace().map(|text| {
                let (name, numbers) = text.split_once('=').unwrap();
                let ints: Vec<i64> = numbers.split(',').map(|number| number.parse().unwrap()).collect();
                Attribute { name: name.into(), i: ints[0], ints, ..Attribute::default() }
            });
            let attribute = attribute.collect();
            let (op_type, output, name) = (op.to_owned(), vec![output.to_owned()], format!("/{op}_{}", nodes.len()));
            nodes.push(Node { input, output, name, op_type, attribute, domain: String::new() });
        }
        let typed = |name: &str, dims: &[i64]| {
            let mut info = value(name, dims);
            info.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().elem_type = if half { 10 } else { 1 };
            info
        };
        let inputs = self.inputs.iter().map(|(name, dims)| {
            let dims: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
            typed(name, &dims)
        });
        let inputs = inputs.collect();
        let outputs = nodes.iter().filter(|node| apart || node.output[0].starts_with('y'));
        let outputs = outputs.map(|node| typed(&node.output[0], &[0])).collect();
        let opset_import = vec![Opset { domain: String::new(), version: self.opset }];
        Model { graph: Some(graph(nodes, weights, inputs, outputs)), opset_import, ..Model::default() }.encode_to_vec()
    }

    /// The model's operators, as its description lists them.
    fn operators(&self) -> String {
        let text = onnx::load_bytes(&self.file(false, false)).unwrap().to_string();
        text.rsplit_once("operators: ").unwrap().1.to_owned()
    }

    /// The output y, and the gradients of inputs and parameters, by name.
    fn run(&self, model: &onnx::Model, device: &Device) -> BTreeMap<String, Vec<f32>> {
        let model = model.clone().to(device).unwrap();
        let inputs: Vec<(&str, Tensor)> = self
            .inputs
            .iter()
            .enumerate()
            .map(|(i, &(name, dims))| {
                let count = dims.iter().product();
                (name, Tensor::from_vec(numbers(count, i), dims, device).unwrap().requires_grad())
            })
            .collect();
        let named: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, x)| (*name, x)).collect();
        let y = &model.run(&named).unwrap()["y"];
        let factors = Tensor::from_vec(numbers(y.elem_count(), 9), y.shape(), device).unwrap();
        y.mul(&factors).unwrap().sum_all().unwrap().backward().unwrap();
        let mut all = BTreeMap::from([("y".to_owned(), y.to_vec::<f32>().unwrap())]);
        all.insert("shape".into(), y.shape().iter().map(|&size| size as f32).collect());
        let parameters = model.named_parameters();
        for (name, x) in
            named.iter().map(|(name, x)| (*name, *x)).chain(parameters.iter().map(|(n, x)| (n.as_str(), x)))
        {
            let grad = x.grad().map_or(Vec::new(), |grad| grad.to_vec::<f32>().unwrap());
            all.insert(format!("gradient of {name}"), grad);
        }
        all
    }

    /// Fails unless the model has these operators, and the numbers of the model whose operators are kept apart.
    #[track_caller]
    fn becomes(self, expected: &str) {
        assert_eq!(self.operators(), expected, "{}", self.text);
        let [fused, apart] = [false, true].map(|apart| onnx::load_bytes(&self.file(apart, false)).unwrap());
        let lines = self.text.lines().filter(|line| !line.trim().is_empty()).count();
        let kept = apart.to_string();
        let counts = kept.rsplit_once("operators: ").unwrap().1.split(", ");
        let kept: usize = counts.map(|part| part.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum();
        assert_eq!(kept, lines, "a result that is an output is still computed: {}", self.text);
        for device in devices() {
            let (got, wanted) = (self.run(&fused, &device), self.run(&apart, &device));
            assert_eq!(got.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
            for (name, wanted) in &wanted {
                let got = &got[name];
                assert_eq!(got.len(), wanted.len(), "{name}");
                let largest = wanted.iter().filter(|v| v.is_finite()).fold(1.0, |most: f32, v| most.max(v.abs()));
                let close = |a: f32, b: f32| (a - b).abs() <= 1e-5 * largest || (a.is_nan() && b.is_nan());
                let wrong = got.iter().zip(wanted).position(|(&a, &b)| !close(a, b));
                assert!(wrong.is_none(), "{name} on {device} at {wrong:?}: {got:?}, not {wanted:?} of\n{}", self.text);
            }
        }
    }
}
