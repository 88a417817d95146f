//! The table's cases where a kernel can bind only a part of their tensors: each is right, or refused by the name of the limit.

use std::collections::BTreeSet;

use super::FAMILIES;
use super::load::QUICK;
use super::nd::values;
use crate::device::Device;
use crate::device::gpu::LARGEST_BINDING;
use crate::error::Error;
use crate::tensor::manual_seed;

/// The words that a kernel can bind, and the least elements of an input of the cases that are computed.
const WORDS: usize = 512;

/// Ops that have to be right here.
const DIVIDED: &[&str] = &[
    "contiguous",
    "cross_entropy",
    "exp",
    "gather",
    "masked_fill",
    "matmul",
    "maximum",
    "mean",
    "min",
    "softmax",
    "sub",
    "sum",
];

#[test]
fn ops_on_long_tensors_are_right_or_refused() {
    let Some(device) = Device::all().into_iter().find(|device| !device.is_cpu()) else { return };
    let (mut right, mut refused, mut wrong) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    let mut count = 0;
    for case in FAMILIES.iter().flat_map(|(_, cases)| cases()) {
        let long = case.inputs.iter().any(|input| input.value.data.len() > WORDS);
        if case.variant.is_some() || case.cost() > QUICK || !long {
            continue;
        }
        let run = |words| {
            manual_seed(1);
            let inputs = case.tensors(&device)?;
            LARGEST_BINDING.set(words);
            let result = case.run(&inputs);
            LARGEST_BINDING.set(None);
            values(&result?)
        };
        let Ok(expected) = run(None) else { continue }; // a case of an error
        match run(Some(WORDS)) {
            Ok(got) => {
                let size = expected.iter().filter(|v| v.is_finite()).fold(0.0f64, |size, v| size.max(v.abs()));
                let near = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 * size;
                match got.iter().zip(&expected).position(|(a, b)| !near(*a, *b)) {
                    Some(at) => wrong.push(format!("{}: {} at {at}, not {}", case.name, got[at], expected[at])),
                    None => {
                        count += 1;
                        right.insert(case.op_name().to_owned());
                    }
                }
            }
            Err(Error::LimitExceeded { limit: "max_storage_buffer_binding_size", .. }) => {
                refused.insert(case.op_name().to_owned());
            }
            Err(error) => wrong.push(format!("{}: {error}", case.name)),
        }
    }
    println!("{count} cases are right, of {right:?}; refused: {refused:?}");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    let missing: Vec<_> = DIVIDED.iter().filter(|op| !right.contains(**op) || refused.contains(**op)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
