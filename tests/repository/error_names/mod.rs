//! The name in an error is that of the method that the user called, also where that method is composed of others.

mod calls;
mod indexing;

use std::collections::BTreeSet;

use anygpu::{DType, Device, Error, Result, Tensor};
use calls::Call;

use crate::common::devices_in_turn;
use crate::source;

/// Methods that refuse no arguments: they fail only if a device does.
const TOTAL: &[&str] = &[
    "all_all",
    "any_all",
    "cpu",
    "equal",
    "from_image",
    "from_ndarray",
    "nonzero",
    "unique",
    "unique_with_counts",
    "ones_like",
    "prod_all",
    "scalar",
    "squeeze_all",
    "sum_all",
    "to",
    "zeros_like",
    "div_scalar",
    "to_vec_f64",
];

/// The methods of the graph, whose errors say `backward`, and properties.
const NO_OPS: &[&str] =
    &["backward", "backward_retain_graph", "device", "dtype", "elem_count", "is_same", "rank", "shape"];

/// Methods of optional features: their calls are made only with the feature.
const OPTIONAL: &[&str] = &["fft", "ifft", "irfft", "rfft", "to_image", "to_ndarray"];

/// A function of one element, with its name.
type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>);

/// The functions of one element, which all refuse a layout of too many dimensions on an adapter.
const UNARY: &[Unary] = &[
    ("abs", Tensor::abs),
    ("acos", Tensor::acos),
    ("acosh", Tensor::acosh),
    ("asin", Tensor::asin),
    ("asinh", Tensor::asinh),
    ("atan", Tensor::atan),
    ("atanh", Tensor::atanh),
    ("bitwise_not", Tensor::bitwise_not),
    ("ceil", Tensor::ceil),
    ("cos", Tensor::cos),
    ("cosh", Tensor::cosh),
    ("elu", |x| x.elu(1.0)),
    ("erf", Tensor::erf),
    ("exp", Tensor::exp),
    ("exp2", Tensor::exp2),
    ("expm1", Tensor::expm1),
    ("floor", Tensor::floor),
    ("gelu", Tensor::gelu),
    ("gelu_tanh", Tensor::gelu_tanh),
    ("hardsigmoid", Tensor::hardsigmoid),
    ("hardswish", Tensor::hardswish),
    ("isfinite", Tensor::isfinite),
    ("isinf", Tensor::isinf),
    ("isnan", Tensor::isnan),
    ("leaky_relu", |x| x.leaky_relu(0.1)),
    ("log", Tensor::log),
    ("log1p", Tensor::log1p),
    ("log2", Tensor::log2),
    ("log_sigmoid", Tensor::log_sigmoid),
    ("logical_not", Tensor::logical_not),
    ("mish", Tensor::mish),
    ("neg", Tensor::neg),
    ("recip", Tensor::recip),
    ("relu", Tensor::relu),
    ("relu6", Tensor::relu6),
    ("round", Tensor::round),
    ("rsqrt", Tensor::rsqrt),
    ("sigmoid", Tensor::sigmoid),
    ("sign", Tensor::sign),
    ("silu", Tensor::silu),
    ("sin", Tensor::sin),
    ("sinh", Tensor::sinh),
    ("softplus", |x| x.softplus(1.0, 20.0)),
    ("softsign", Tensor::softsign),
    ("sqrt", Tensor::sqrt),
    ("square", Tensor::square),
    ("tan", Tensor::tan),
    ("tanh", Tensor::tanh),
    ("trunc", Tensor::trunc),
    ("contiguous", Tensor::contiguous),
    ("copy", Tensor::copy),
    ("to_dtype", |x| x.to_dtype(DType::I32)),
];

/// All calls for a device, and another one if there is one.
fn calls_on(device: &Device, other: Option<&Device>) -> Result<Vec<Call>> {
    let families = [
        calls::creation,
        calls::shapes,
        calls::reductions,
        calls::elements,
        calls::layers,
        indexing::indices,
        indexing::searches,
        indexing::samples,
    ];
    let mut all = families.iter().map(|family| family(device)).collect::<Result<Vec<_>>>()?.concat();
    if let Some(other) = other {
        all.extend(calls::mixed(device, other)?);
        all.extend(indexing::mixed(device, other)?);
    }
    if !device.is_cpu() {
        // More dimensions than a kernel walks, in an order in which none of them merge.
        let deep = Tensor::zeros([2; 10], device)?.permute([9, 8, 7, 6, 5, 4, 3, 2, 1, 0])?;
        all.extend(UNARY.iter().map(|(name, call)| (*name, call(&deep).map(drop))));
    }
    Ok(all)
}

/// What is wrong with a result: no error, or one with another name. `known` has the names of all methods.
fn complaint(name: &str, result: &Result<()>, known: &BTreeSet<String>) -> Option<String> {
    let Err(error) = result else { return Some("no error".to_owned()) };
    let op = match error {
        Error::DeviceMismatch { op, .. }
        | Error::ShapeMismatch { op, .. }
        | Error::InvalidArgument { op, .. }
        | Error::DTypeMismatch { op, .. } => op,
        _ => return Some(format!("an error without a name: {error:?}")),
    };
    let text = error.to_string();
    let other = |word: &str| word.strip_suffix(':').is_some_and(|word| word != name && known.contains(word));
    let right = *op == name && text.contains(name) && !text.split([' ', '(']).any(other);
    (!right).then(|| format!("{op}: {text}"))
}

fn methods() -> BTreeSet<String> {
    let all: BTreeSet<String> = source::methods("src/ops").union(&source::methods("src/tensor")).cloned().collect();
    for known in ["Tensor::new", "reshape", "exp", "add", "add_", "sum_all", "to_vec2"] {
        let known = known.trim_start_matches("Tensor::");
        assert!(all.contains(known), "the methods lack {known}: has the syntax changed? {all:?}");
    }
    all
}

#[test]
fn errors_have_the_name_of_the_method_that_was_called() -> Result<()> {
    let (all, known) = (devices_in_turn(), methods());
    let mut failures = Vec::new();
    for device in &all {
        let other = all.iter().find(|other| *other != device);
        for (i, (name, result)) in calls_on(device, other)?.iter().enumerate() {
            failures.extend(complaint(name, result, &known).map(|what| format!("{device}, {i}, {name}: {what}")));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

#[test]
fn every_method_is_called() -> Result<()> {
    let mut called: BTreeSet<&str> = UNARY.iter().map(|(name, _)| *name).collect();
    called.extend(calls_on(&Device::cpu(), None)?.into_iter().map(|(name, _)| name.trim_start_matches("Tensor::")));
    called.extend([TOTAL, NO_OPS, OPTIONAL].into_iter().flatten());
    let lacking: Vec<String> = methods().into_iter().filter(|name| !called.contains(name.as_str())).collect();
    assert!(
        lacking.is_empty(),
        "no call with bad arguments of {lacking:?}: add one to tests/repository/error_names: a function \
         of one element to `UNARY` of mod.rs, others to calls.rs"
    );
    Ok(())
}
