//! Operators at their edges, and those of ONNX Runtime's own domain: what it gives itself, on every device. `runtime_cases.txt` is
//! made by `scripts/onnx_runtime_cases.py`. Hostile sizes are errors.

use super::proto::Attribute;
use super::table::{Array, FLOAT, INT8, INT32, INT64, UINT8, absent, expect, float, floats, int, ints, longs, refused};
use super::table::{real, singles, text, whole};

fn numbers<T: std::str::FromStr>(list: &str, between: char) -> Vec<T>
where
    T::Err: std::fmt::Debug,
{
    list.split(between).filter(|number| !number.is_empty()).map(|number| number.parse().expect("a number")).collect()
}

/// An array as it is in the file: its type, its shape and its elements; a dash where it is left out.
fn array(word: &str) -> Array {
    let Some((kind, rest)) = word.trim().split_once('[') else { return absent() };
    let (shape, elements) = rest.split_once(']').expect("a shape");
    let array = match kind {
        "FLOAT" => real(FLOAT, &numbers::<f64>(elements, ' ')),
        "INT64" => whole(INT64, &numbers(elements, ' ')),
        "UINT8" => whole(UINT8, &numbers(elements, ' ')),
        "INT8" => whole(INT8, &numbers(elements, ' ')),
        _ => whole(INT32, &numbers(elements, ' ')),
    };
    array.shaped(&numbers(shape, ','))
}

fn attribute(word: &str) -> Attribute {
    let (name, rest) = word.split_once(':').expect("a kind");
    match rest.split_once('=').expect("a value") {
        ("s", value) => text(name, value),
        ("i", value) => int(name, value.parse().expect("a number")),
        ("f", value) => float(name, value.parse().expect("a number")),
        ("is", value) => ints(name, &numbers(value, ',')),
        (_, value) => floats(name, &numbers(value, ',')),
    }
}

#[test]
fn operators_give_what_onnx_runtime_gives() {
    for line in include_str!("runtime_cases.txt").lines() {
        let [op, attributes, inputs, given, outputs, near] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let attributes: Vec<Attribute> = attributes.split_whitespace().map(attribute).collect();
        let inputs: Vec<Array> = inputs.split(';').map(array).collect();
        let near = near.parse().expect("a tolerance");
        let outputs: Vec<Array> = outputs.split(';').map(|word| array(word).near(near)).collect();
        println!("{}", &line[..line.len().min(120)]);
        expect(op, &attributes, &inputs, given.parse().expect("a number"), &outputs);
    }
}

/// ONNX leaves open what a sequence of length 0 gives: ONNX Runtime has zeros for the state, this crate the initial state.
#[test]
fn a_sequence_of_length_0_leaves_the_state() {
    let with = |values: &[f64], shape: &[usize]| singles(values).shaped(shape).near(1e-6);
    let x = with(&[0.0; 2], &[1, 2, 1]);
    let h = with(&[0.25; 2], &[1, 2, 1]);
    for (op, gates, first) in [("RNN", 1, 0.0), ("GRU", 3, 0.125), ("LSTM", 4, 0.179_178_7)] {
        let weights = with(&vec![0.0; gates], &[1, gates, 1]);
        let mut inputs = vec![x.clone(), weights.clone(), weights, absent(), whole(INT32, &[1, 0]), h.clone()];
        let mut outputs = vec![with(&[first, 0.0], &[1, 1, 2, 1]), with(&[first, 0.25], &[1, 2, 1])];
        if op == "LSTM" {
            inputs.push(with(&[0.75; 2], &[1, 2, 1]));
            outputs.push(with(&[0.375, 0.75], &[1, 2, 1]));
        }
        expect(op, &[int("hidden_size", 1)], &inputs, 1, &outputs);
    }
}

#[test]
fn numbers_out_of_range_are_errors() {
    let boxes = singles(&[0.0, 0.0, 1.0, 1.0]).shaped(&[1, 1, 4]);
    for threshold in [1.5, -1.0, f64::NAN] {
        let inputs = [boxes.clone(), singles(&[0.5]).shaped(&[1, 1, 1]), longs(&[9]), singles(&[threshold])];
        refused("NonMaxSuppression", &[], &inputs, 2, &["NonMaxSuppression", "between 0 and 1"]);
    }
    let weights = singles(&[1.0; 4]).shaped(&[1, 4, 1]);
    let inputs = [singles(&[1.0]).shaped(&[1, 1, 1]), weights.clone(), weights];
    refused("LSTM", &[int("hidden_size", 1), float("clip", 0.0)], &inputs, 1, &["LSTM", "a clip of 0"]);
    let image = || singles(&[1.0; 4]).shaped(&[1, 1, 2, 2]);
    let far = [image(), singles(&[0.0, 0.0, 1e9, 1.0]).shaped(&[1, 4]), longs(&[0])];
    refused("RoiAlign", &[], &far, 1, &["RoiAlign", "not supported"]);
    let rois = [image(), singles(&[7.0, 0.0, 0.0, 1.0, 1.0]).shaped(&[1, 5])];
    refused("MaxRoiPool", &[ints("pooled_shape", &[1, 1])], &rois, 1, &["MaxRoiPool", "image 7"]);
    let huge = [image(), singles(&[0.0, 0.0, 0.0, 1.0, 1.0]).shaped(&[1, 5])];
    refused("MaxRoiPool", &[ints("pooled_shape", &[1 << 40, 1])], &huge, 1, &["MaxRoiPool"]);
    refused("Pad", &[text("mode", "wrap")], &[singles(&[1.0]), longs(&[i64::MAX, 0])], 1, &["Pad"]);
    refused("Pad", &[text("mode", "wrap")], &[singles(&[]), longs(&[1, 0])], 1, &["Pad", "no element"]);
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    let x = || singles(&[0.5; 8]).shaped(&[1, 2, 4]);
    let (w, bias) = (singles(&[0.5; 48]).shaped(&[4, 12]), singles(&[0.5; 12]));
    let inputs = [x(), w.clone(), bias.clone()];
    refused(":Attention", &[int("num_heads", 5)], &inputs, 3, &["Attention", "5 heads"]);
    let sizes = ints("qkv_hidden_sizes", &[i64::MAX, 1, 1]);
    refused(":Attention", &[int("num_heads", 2), sizes], &inputs, 3, &["Attention"]);
    let past = singles(&[0.0; 4]).shaped(&[1, 1, 2, 1, 2]);
    refused(":Attention", &[int("num_heads", 2)], &[x(), w, bias, absent(), past], 5, &["past keys and values"]);
    let narrow = whole(INT8, &[1, 2]).shaped(&[2, 1]);
    refused(":DynamicQuantizeMatMul", &[], &[x(), narrow.clone(), singles(&[0.1])], 1, &["DynamicQuantizeMatMul"]);
    let scale = singles(&[0.1]).shaped(&[]);
    let weights = [narrow.clone(), narrow];
    let rest = [absent(), absent(), absent(), absent(), absent(), scale.clone(), absent(), scale.clone()];
    let lstm = [&[x()][..], &weights, &rest].concat();
    refused(":DynamicQuantizeLSTM", &[int("hidden_size", 1)], &lstm, 1, &["DynamicQuantizeLSTM"]);
    let one = || whole(INT32, &[1]);
    let sum = [one(), scale.clone(), absent(), one(), scale.clone(), absent(), scale];
    refused(":QLinearAdd", &[], &sum, 1, &["QLinearAdd", "int32"]);
    let byte = |values: &[i64]| whole(UINT8, values);
    let scale = || singles(&[0.1]).shaped(&[]);
    let flat = [byte(&[1, 2]).shaped(&[1, 2]), scale(), byte(&[0]), scale(), byte(&[0])];
    refused(":QLinearGlobalAveragePool", &[], &flat, 1, &["QLinearGlobalAveragePool", "without an image"]);
    refused(
        ":QLinearAveragePool",
        &[ints("kernel_shape", &[2])],
        &flat,
        1,
        &["QLinearAveragePool", "without an image"],
    );
    refused(":QLinearSoftmax", &[int("axis", 2), int("opset", 13)], &flat, 1, &["QLinearSoftmax", "axis 2"]);
    refused(":QLinearSigmoid", &[], &flat[..3], 1, &["QLinearSigmoid", "input 3 is missing"]);
    refused(":QLinearConcat", &[int("axis", 0)], &[scale(), byte(&[0])], 1, &["QLinearConcat", "input 2 is missing"]);
    let part = [&[scale(), byte(&[0])][..], &flat[..2]].concat();
    refused(":QLinearConcat", &[int("axis", 2)], &part, 1, &["QLinearConcat", "axis 2"]);
    let product = |b: &[usize]| [&flat[..3], &[byte(&[1; 6]).shaped(b), scale(), byte(&[0])]].concat();
    refused(":QGemm", &[], &product(&[3, 2]), 1, &["QGemm", "[1, 2] and [3, 2]"]);
    refused(":QGemm", &[], &product(&[1, 2, 3]), 1, &["QGemm", "[1, 2, 3]"]);
    let wide = [product(&[2, 3]), vec![whole(INT32, &[1; 4])]].concat();
    refused(":QGemm", &[], &wide, 1, &["QGemm", "[4]"]);
}
