//! PyTorch's results for ops without a simple oracle, on every device: values and gradients, the table of type
//! promotions, the printed form of tensors. `scripts/pytorch_reference.py` writes `tests/data/pytorch.json`.

mod case;
mod ops;

use anygpu::{DType, Device};
use case::{Case, dtype, numbers, shape};
use serde_json::Value;

use crate::common::devices;

fn reference() -> Value {
    serde_json::from_str(include_str!("../../data/pytorch.json")).expect("the reference is JSON")
}

fn list<'a>(reference: &'a Value, name: &str) -> &'a [Value] {
    reference[name].as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn values_and_gradients_are_pytorchs() {
    let reference = reference();
    let cases = list(&reference, "cases");
    assert!(cases.len() > 200, "{} cases", cases.len());
    for device in devices() {
        let wrong: Vec<String> = cases.iter().filter_map(|case| Case(case).check(&device).err()).collect();
        assert!(wrong.is_empty(), "{} of {} on {device}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    }
}

/// Where PyTorch refuses a pair (its unsigned types wider than a byte are young), we may have an answer.
#[test]
fn types_meet_where_pytorchs_do() {
    let reference = reference();
    let pairs = list(&reference, "promotions");
    assert_eq!(pairs.len(), 7 * 7); // those of 64 bits are in wide_types.rs
    for pair in pairs {
        let (a, b) = (dtype(&pair[0]), dtype(&pair[1]));
        let got = a.promote(b).ok();
        match pair[2].is_null() {
            true => assert!(got.is_none_or(|got| got == DType::U32), "{a} and {b}: {got:?}"),
            false => assert_eq!(got, Some(dtype(&pair[2])), "{a} and {b}"),
        }
    }
}

#[test]
fn prints_as_pytorch_does() {
    let reference = reference();
    let prints = list(&reference, "prints");
    assert!(prints.len() > 60, "{} prints", prints.len());
    let mut wrong = String::new();
    for print in prints {
        let shape = shape(print);
        let count = shape.iter().product::<usize>();
        let values: Vec<f64> = match print["ramp"].as_array() {
            Some(ramp) => {
                let [scale, shift] = [0, 1].map(|i| ramp[i].as_f64().expect("a number"));
                (0..count).map(|i| i as f64 * scale + shift).collect()
            }
            None => numbers(print),
        };
        let tensor = case::tensor(&values, &shape, dtype(&print["dtype"]), &Device::cpu()).expect("a tensor");
        let expected = print["text"].as_str().expect("a text");
        if tensor.to_string() != expected {
            wrong += &format!("--- PyTorch ({} {shape:?}):\n{expected}\n--- ours:\n{tensor}\n", print["dtype"]);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
