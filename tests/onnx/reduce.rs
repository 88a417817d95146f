//! Sums, extremes and what is made of them along dimensions: softmax, argmax.

use anygpu::Tensor;

use super::call::{Call, Outcome, skip};

pub fn map(call: &Call) -> Option<Outcome> {
    let out = match call.op() {
        "ReduceSum" => reduce(call, Tensor::sum),
        "ReduceMean" => reduce(call, Tensor::mean),
        "ReduceMax" => reduce(call, Tensor::max),
        "ArgMax" => arg(call, Tensor::argmax),
        "Softmax" => along(call, Tensor::softmax),
        "LogSoftmax" => along(call, Tensor::log_softmax),
        _ => return None,
    };
    Some(out.map(|tensor| vec![tensor]))
}

type Reduction = fn(&Tensor, &[usize], bool) -> anygpu::Result<Tensor>;
type Along = fn(&Tensor, usize) -> anygpu::Result<Tensor>;

/// Axes are an attribute up to opset 17 (13 for ReduceSum) and an input since; no axes mean all of them, or none where
/// `noop_with_empty_axes` says so.
fn reduce(call: &Call, f: Reduction) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let axes = call.list("axes", 1).unwrap_or_default();
    let dims: Vec<usize> = match axes.is_empty() {
        true if call.int("noop_with_empty_axes", 0) == 1 => return Ok(x),
        true => (0..x.rank()).collect(),
        false => axes.iter().map(|&axis| call.dim(axis, x.rank())).collect(),
    };
    Ok(f(&x, &dims, call.int("keepdims", 1) == 1)?)
}

fn arg(call: &Call, f: Along) -> Outcome<Tensor> {
    if call.int("select_last_index", 0) == 1 {
        return skip("the last of equal extremes: ours is the first, as in PyTorch");
    }
    let x = call.x(0)?;
    let dim = call.dim(call.int("axis", 0), x.rank());
    let out = f(&x, dim)?;
    Ok(if call.int("keepdims", 1) == 1 { out.unsqueeze(dim)? } else { out })
}

fn along(call: &Call, f: Along) -> Outcome<Tensor> {
    let x = call.x(0)?;
    Ok(f(&x, call.dim(call.int("axis", -1), x.rank()))?)
}
