//! GELU of several operators.

use anygpu::nn::Module;
use anygpu::{DType, Tensor, onnx};
use prost::Message;

use super::super::common::devices;
use super::super::proto::Model;
use super::{Case, case, numbers};

#[test]
fn gelu_becomes_one_operator() {
    let forms = [
        "a = Div(x, 1.4142135)
        b = Erf(a)
        c = Add(b, 1)
        d = Mul(x, c)
        y = Mul(d, 0.5)",
        "a = Mul(x, 0.70710677)
        b = Erf(a)
        c = Add(1, b)
        d = Mul(0.5, c)
        y = Mul(d, x)",
        "h = Mul(x, 0.5)
        a = Div(x, [1.4142135])
        b = Erf(a)
        c = Add(b, [1])
        y = Mul(h, c)",
        "a = Div(x, 1.4142135)
        b = Erf(a)
        c = Add(b, 1)
        d = Div(c, 2)
        y = Mul(x, d)",
        "q = Mul(x, x)
        r = Mul(x, q)
        a = Mul(0.044715, r)
        b = Add(x, a)
        c = Mul(b, 0.79788456)
        t = Tanh(c)
        d = Add(t, 1)
        h = Mul(x, 0.5)
        y = Mul(h, d)",
        "r = Pow(x, 3)
        a = Mul(r, 0.044715)
        b = Add(x, a)
        c = Mul(b, 0.79788456)
        t = Tanh(c)
        d = Add(1, t)
        e = Mul(0.5, d)
        y = Mul(x, e)",
        "q = Mul(x, x)
        a = Mul(q, 0.044715)
        b = Add(a, 1)
        m = Mul(x, 0.79788456)
        c = Mul(m, b)
        t = Tanh(c)
        h = Mul(x, 0.5)
        k = Mul(h, t)
        y = Add(h, k)",
    ];
    for text in forms {
        case(text).weights(&[]).becomes("Gelu 1");
    }
    // A number of three dimensions gives its result as many.
    let shaped = "a = Div(x, root)
        b = Erf(a)
        c = Add(b, 1)
        d = Mul(x, c)
        y = Mul(d, half)";
    let file = |case: Case| {
        let mut model = Model::decode(&case.file(false, false)[..]).unwrap();
        for weight in &mut model.graph.as_mut().unwrap().initializer {
            match weight.name.as_str() {
                "root" => weight.float_data = vec![2f32.sqrt()],
                "half" => weight.float_data = vec![0.5],
                _ => {}
            }
        }
        onnx::load_bytes(&model.encode_to_vec()).unwrap()
    };
    let case = case(shaped).weights(&[("root", &[1, 1, 1]), ("half", &[1])]).inputs(&[("x", &[3, 5])]);
    let model = file(case);
    assert!(model.to_string().ends_with("operators: Gelu 1"), "{model}");
    let x = Tensor::from_vec(numbers(15, 0), [3, 5], None).unwrap();
    let y = model.forward(&x).unwrap();
    assert_eq!(y.shape(), [1, 3, 5]);
    assert_eq!(y.to_vec::<f32>().unwrap(), x.gelu().unwrap().to_vec::<f32>().unwrap());
}

#[test]
fn what_is_almost_gelu_stays() {
    let half = |number: &str, root: &str, one: &str| -> &'static str {
        let text = format!("a = Div(x, {root})\nb = Erf(a)\nc = Add(b, {one})\nd = Mul(x, c)\ny = Mul(d, {number})");
        Box::leak(text.into_boxed_str())
    };
    case(half("0.5", "1.4142135", "1")).weights(&[]).becomes("Gelu 1");
    for text in [half("0.51", "1.4142135", "1"), half("0.5", "1.4143", "1"), half("0.5", "1.4142135", "1.01")] {
        case(text).weights(&[]).becomes("Add 1, Div 1, Erf 1, Mul 2");
    }
    let vector = "a = Div(x, 1.4142135)
        b = Erf(a)
        c = Add(b, 1)
        d = Mul(x, c)
        y = Mul(d, weight)";
    case(vector).becomes("Add 1, Div 1, Erf 1, Mul 2");
    let read = "a = Div(x, 1.4142135)
        b = Erf(a)
        c = Add(b, 1)
        d = Mul(x, c)
        e = Mul(d, 0.5)
        y = Add(e, b)";
    case(read).weights(&[]).becomes("Add 2, Div 1, Erf 1, Mul 2");
    let inputs: &[(&str, &[usize])] = &[("x", &[2, 3, 5]), ("z", &[2, 3, 5])];
    let different = "a = Div(x, 1.4142135)
        b = Erf(a)
        c = Add(b, 1)
        d = Mul(z, c)
        y = Mul(d, 0.5)";
    case(different).inputs(inputs).weights(&[]).becomes("Add 1, Div 1, Erf 1, Mul 2");
    let square = "r = Pow(x, 2)
        a = Mul(r, 0.044715)
        b = Add(x, a)
        c = Mul(b, 0.79788456)
        t = Tanh(c)
        d = Add(1, t)
        e = Mul(0.5, d)
        y = Mul(x, e)";
    case(square).weights(&[]).becomes("Add 2, Mul 4, Pow 1, Tanh 1");
}

/// The numbers of halves are rounded, and the fused operator is the more exact.
#[test]
fn gelu_of_halves_becomes_one_operator() {
    let text = "a = Div(x, 1.4142135)
        b = Erf(a)
        c = Add(b, 1)
        d = Mul(x, c)
        y = Mul(d, 0.5)";
    let model = onnx::load_bytes(&case(text).weights(&[]).file(false, true)).unwrap();
    assert!(model.to_string().ends_with("operators: Gelu 1"), "{model}");
    for device in devices() {
        let x = Tensor::from_vec(numbers(30, 0), [2, 3, 5], &device).unwrap().to_dtype(DType::F16).unwrap();
        let y = model.clone().to(&device).unwrap().forward(&x).unwrap();
        let wanted = x.to_dtype(DType::F32).unwrap().gelu().unwrap().to_vec::<f32>().unwrap();
        assert_eq!(y.dtype(), DType::F16);
        let y = y.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
        y.iter().zip(&wanted).for_each(|(a, b)| assert!((a - b).abs() < 1e-3, "{a}, not {b} on {device}"));
    }
}
