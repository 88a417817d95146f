//! Models of one operator with inputs and outputs as constants: what ONNX Runtime 1.2x gives, on every device.

use anygpu::nn::Module;
use anygpu::{DType, Device, Tensor, onnx};
use prost::Message;

use super::common::devices;
use super::models::{graph, node};
use super::proto::{Attribute, Graph, Kind, Model, Opset, TensorKind, TensorProto, ValueInfo};

pub const FLOAT: i32 = 1;
pub const UINT8: i32 = 2;
pub const INT8: i32 = 3;
pub const INT32: i32 = 6;
pub const INT64: i32 = 7;
pub const BOOL: i32 = 9;
pub const HALF: i32 = 10;
pub const DOUBLE: i32 = 11;
pub const UINT64: i32 = 13;

/// A tensor of a test: its type, its shape, and its elements as integers or as floats. An input of type 0 is left out.
#[derive(Clone, Debug)]
pub struct Array {
    pub code: i32,
    shape: Vec<usize>,
    ints: Vec<i64>,
    floats: Vec<f64>,
    /// How far a float may be from that of ONNX Runtime, relative to it or to 1.
    tolerance: f64,
}

pub fn whole(code: i32, values: &[i64]) -> Array {
    Array { code, shape: vec![values.len()], ints: values.to_vec(), floats: vec![], tolerance: 0.0 }
}

pub fn real(code: i32, values: &[f64]) -> Array {
    let tolerance = if code == DOUBLE { 1e-15 } else { 0.0 };
    Array { code, shape: vec![values.len()], ints: vec![], floats: values.to_vec(), tolerance }
}

pub fn longs(values: &[i64]) -> Array {
    whole(INT64, values)
}

pub fn doubles(values: &[f64]) -> Array {
    real(DOUBLE, values)
}

pub fn singles(values: &[f64]) -> Array {
    real(FLOAT, values)
}

pub fn absent() -> Array {
    whole(0, &[])
}

impl Array {
    pub fn shaped(self, shape: &[usize]) -> Array {
        assert_eq!(shape.iter().product::<usize>(), self.ints.len() + self.floats.len());
        Array { shape: shape.to_vec(), ..self }
    }

    pub fn near(self, tolerance: f64) -> Array {
        Array { tolerance, ..self }
    }

    /// On the device, or on `cpu` if that has no such type.
    pub fn tensor(&self, device: &Device) -> Tensor {
        let shape = self.shape.clone();
        let ints = |dtype| Tensor::from_slice(&self.ints, shape.clone(), None)?.to_dtype(dtype)?.to(device);
        let made = match self.code {
            DOUBLE => Tensor::from_f64(&self.floats, shape, None),
            FLOAT => Tensor::from_slice(&self.floats.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape, device),
            UINT8 => ints(DType::U8),
            BOOL => ints(DType::Bool),
            INT32 | INT8 => ints(DType::I32),
            _ => ints(DType::I64),
        };
        made.unwrap()
    }

    /// As an initializer.
    fn constant(&self, name: &str) -> TensorProto {
        let mut proto = TensorProto { name: name.into(), data_type: self.code, ..TensorProto::default() };
        proto.dims = self.shape.iter().map(|&size| size as i64).collect();
        match self.code {
            DOUBLE => proto.double_data = self.floats.clone(),
            FLOAT => proto.float_data = self.floats.iter().map(|&v| v as f32).collect(),
            INT64 => proto.int64_data = self.ints.clone(),
            UINT64 => proto.uint64_data = self.ints.iter().map(|&v| v as u64).collect(),
            _ => proto.int32_data = self.ints.iter().map(|&v| v as i32).collect(),
        }
        proto
    }

    pub fn expect(&self, got: &Tensor, what: &str) {
        assert_eq!(got.shape(), self.shape, "{what}");
        let dtype = match self.code {
            DOUBLE => DType::F64,
            FLOAT => DType::F32,
            HALF => DType::F16,
            UINT8 => DType::U8,
            BOOL => DType::Bool,
            INT32 | INT8 => DType::I32,
            _ => DType::I64,
        };
        assert_eq!(got.dtype(), dtype, "{what}");
        if dtype == DType::I64 {
            return assert_eq!(got.to_vec::<i64>().unwrap(), self.ints, "{what}");
        }
        let got = got.to_vec_f64().unwrap();
        if self.floats.is_empty() {
            return assert_eq!(got, self.ints.iter().map(|&v| v as f64).collect::<Vec<_>>(), "{what}");
        }
        for (i, (&got, &wanted)) in got.iter().zip(&self.floats).enumerate() {
            let wanted = if dtype == DType::F64 { wanted } else { f64::from(wanted as f32) };
            let near = (got - wanted).abs() <= self.tolerance * wanted.abs().max(1.0);
            assert!(
                near || got == wanted || (got.is_nan() && wanted.is_nan()),
                "{what}: [{i}] {got}, expected {wanted}"
            );
        }
    }
}

pub fn info(name: &str, code: i32) -> ValueInfo {
    ValueInfo {
        name: name.into(),
        r#type: Some(Kind { tensor_type: Some(TensorKind { elem_type: code, shape: None }) }),
    }
}

pub fn model(graph: Graph, version: i64) -> onnx::Model {
    let set = |domain: &str, version| Opset { domain: domain.into(), version };
    let opset_import = vec![set("", version), set("com.microsoft", 1)];
    let bytes = Model { graph: Some(graph), opset_import, ..Model::default() }.encode_to_vec();
    onnx::load_bytes(&bytes).unwrap_or_else(|error| panic!("{error}"))
}

pub fn int(name: &str, i: i64) -> Attribute {
    Attribute { name: name.into(), i, ..Attribute::default() }
}

pub fn ints(name: &str, ints: &[i64]) -> Attribute {
    Attribute { name: name.into(), ints: ints.into(), ..Attribute::default() }
}

pub fn float(name: &str, f: f32) -> Attribute {
    Attribute { name: name.into(), f, ..Attribute::default() }
}

pub fn floats(name: &str, floats: &[f32]) -> Attribute {
    Attribute { name: name.into(), floats: floats.into(), ..Attribute::default() }
}

pub fn text(name: &str, s: &str) -> Attribute {
    Attribute { name: name.into(), s: s.to_owned().into(), ..Attribute::default() }
}

/// The outputs of an operator on all devices, with inputs on `cpu` and then on the device. Inputs beyond `given` are constants. A name
/// after a colon is of ONNX Runtime's own domain.
pub fn outputs(
    op: &str,
    attributes: &[Attribute],
    inputs: &[Array],
    given: usize,
    kinds: &[i32],
) -> Vec<(String, anygpu::Result<Vec<Tensor>>)> {
    let name = |i: usize| if inputs[i].code == 0 { String::new() } else { format!("x{i}") };
    let names: Vec<String> = (0..inputs.len()).map(name).collect();
    let results: Vec<String> = (0..kinds.len()).map(|i| format!("y{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let results: Vec<&str> = results.iter().map(String::as_str).collect();
    let there = |range: std::ops::Range<usize>| range.filter(|&i| inputs[i].code != 0);
    let constants = there(given..inputs.len()).map(|i| inputs[i].constant(names[i])).collect();
    let open = there(0..given).map(|i| info(names[i], inputs[i].code)).collect();
    let made = results.iter().zip(kinds).map(|(name, &code)| info(name, code)).collect();
    let mut one = node(op.trim_start_matches(':'), &names, &results, attributes.to_vec());
    if op.starts_with(':') {
        one.domain = "com.microsoft".into();
    }
    let model = model(graph(vec![one], constants, open, made), 19);
    let mut all = Vec::new();
    for device in devices() {
        for place in [Device::cpu(), device.clone()] {
            // A model without weights runs on the device of its first input; floats have to be there.
            let on = |i: usize| if inputs[i].code == FLOAT { &device } else { &place };
            let tensors: Vec<(usize, Tensor)> = there(0..given).map(|i| (i, inputs[i].tensor(on(i)))).collect();
            let named: Vec<(&str, &Tensor)> = tensors.iter().map(|(i, tensor)| (names[*i], tensor)).collect();
            let what = format!("{op} on {device} of {place}");
            all.push((what, anygpu::no_grad(|| model.clone().to(&device)?.run(&named)).map(onnx::Outputs::into_vec)));
        }
    }
    all
}

/// Compares with ONNX Runtime's outputs.
pub fn expect(op: &str, attributes: &[Attribute], inputs: &[Array], given: usize, expected: &[Array]) {
    let codes: Vec<i32> = expected.iter().map(|array| array.code).collect();
    for (what, got) in outputs(op, attributes, inputs, given, &codes) {
        let got = got.unwrap_or_else(|error| panic!("{what}: {error}"));
        got.iter().zip(expected).for_each(|(got, expected)| expected.expect(got, &what));
    }
}

/// Expects an error with these words.
pub fn refused(op: &str, attributes: &[Attribute], inputs: &[Array], given: usize, words: &[&str]) {
    for (what, got) in outputs(op, attributes, inputs, given, &[inputs[0].code]) {
        let error = got.err().unwrap_or_else(|| panic!("{what}: no error")).to_string();
        words.iter().for_each(|word| assert!(error.contains(word), "{what}: {error}"));
    }
}
