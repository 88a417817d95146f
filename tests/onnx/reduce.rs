//! Reductions along dimensions: sums, extremes, softmax, argmax, cumulative sums.

use anygpu::{DType, Tensor};

use super::call::{Call, Outcome, skip};

pub fn map(call: &Call) -> Option<Outcome> {
    let out = match call.op() {
        "ArgMax" => arg(call, Tensor::argmax),
        "ArgMin" => arg(call, Tensor::argmin),
        "Softmax" => along(call, Tensor::softmax),
        "LogSoftmax" => along(call, Tensor::log_softmax),
        "Hardmax" => along(call, hardmax),
        "CumSum" => cumsum(call),
        op => reduce(call, reduction(op)?),
    };
    Some(out.map(|tensor| vec![tensor]))
}

type Reduction = fn(&Tensor, &[i64], bool) -> anygpu::Result<Tensor>;
type Along = fn(&Tensor, i64) -> anygpu::Result<Tensor>;

fn reduction(op: &str) -> Option<Reduction> {
    Some(match op {
        "ReduceSum" => |x, dims, keepdim| x.sum(dims, keepdim),
        "ReduceMean" => |x, dims, keepdim| x.mean(dims, keepdim),
        "ReduceL1" => |x, dims, keepdim| x.norm(1.0, dims, keepdim),
        "ReduceL2" => |x, dims, keepdim| x.norm(2.0, dims, keepdim),
        "ReduceMax" => |x, dims, keepdim| x.max(dims, keepdim),
        "ReduceMin" => |x, dims, keepdim| x.min(dims, keepdim),
        "ReduceProd" => |x, dims, keepdim| x.prod(dims, keepdim),
        "ReduceLogSum" => |x, dims, keepdim| x.sum(dims, keepdim)?.log(),
        "ReduceLogSumExp" => |x, dims, keepdim| x.logsumexp(dims, keepdim),
        "ReduceSumSquare" => |x, dims, keepdim| x.square()?.sum(dims, keepdim),
        _ => return None,
    })
}

/// Axes are an attribute up to opset 17 (13 for ReduceSum) and an input since; no axes mean all of them, or none where
/// `noop_with_empty_axes` says so.
fn reduce(call: &Call, f: Reduction) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let axes = call.list("axes", 1).unwrap_or_default();
    let dims: Vec<i64> = match axes.is_empty() {
        true if call.int("noop_with_empty_axes", 0) == 1 => return Ok(x),
        true => (0..x.rank() as i64).collect(),
        false => axes,
    };
    if matches!(call.op(), "ReduceMax" | "ReduceMin") && dims.iter().any(|&dim| x.shape()[call.dim(dim, x.rank())] == 0)
    {
        return skip("the extreme of nothing: an error in ours, as in PyTorch");
    }
    Ok(f(&x, &dims, call.int("keepdims", 1) == 1)?)
}

/// The first of equal extremes; the last is the first of the reversed elements, counted from the end.
fn arg(call: &Call, f: Along) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let dim = call.int("axis", 0);
    let out = match call.int("select_last_index", 0) {
        0 => f(&x, dim)?,
        _ => {
            let last = (x.shape()[call.dim(dim, x.rank())] - 1) as i32;
            let from_end = f(&x.flip([dim])?, dim)?.to_dtype(DType::I32)?;
            Tensor::full(from_end.shape(), last, x.device())?.sub(&from_end)?
        }
    };
    Ok(if call.int("keepdims", 1) == 1 { out.unsqueeze(dim)? } else { out })
}

fn along(call: &Call, f: Along) -> Outcome<Tensor> {
    let x = call.x(0)?;
    Ok(f(&x, call.int("axis", -1))?)
}

/// 1 at the first largest element, else 0.
fn hardmax(x: &Tensor, dim: i64) -> anygpu::Result<Tensor> {
    let classes = x.movedim(dim, -1)?.shape()[x.rank() - 1];
    x.argmax(dim)?.one_hot(classes)?.movedim(-1, dim)?.to_dtype(x.dtype())
}

/// `reverse` sums from the end; `exclusive` leaves each element out of its own sum.
fn cumsum(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let dim = call.whole(1).map_or(0, |axis| axis[0]);
    let reverse = call.int("reverse", 0) == 1;
    let x = if reverse { x.flip([dim])? } else { x };
    let mut sums = x.cumsum(dim)?;
    if call.int("exclusive", 0) == 1 {
        sums = sums.sub(&x)?;
    }
    Ok(if reverse { sums.flip([dim])? } else { sums })
}
