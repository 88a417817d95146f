//! Reductions along dimensions: sums, extremes, softmax, argmax, cumulative sums.

use super::super::array::{Array, Elements};
use super::super::call::{Call, Operator};
use super::super::element_type::ElementType;
use super::super::value::Value;
use super::long;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) type Reduction = fn(&Tensor, &[usize], bool) -> Result<Tensor>;
pub(super) type Along = fn(&Tensor, usize) -> Result<Tensor>;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "ArgMax" => Operator::Values(|call| arg(call, |x, dim| x.argmax(dim))),
        "ArgMin" => Operator::Values(|call| arg(call, |x, dim| x.argmin(dim))),
        "Softmax" => Operator::One(|call| along(call, softmax)),
        "LogSoftmax" => Operator::One(|call| along(call, log_softmax)),
        "Hardmax" => Operator::One(|call| along(call, hardmax)),
        "CumSum" => Operator::One(|call| cumulated(call, 0, |x, dim| x.cumsum(dim))),
        "CumProd" => Operator::One(|call| cumulated(call, 1, |x, dim| x.cumprod(dim))),
        _ => Operator::One(match op {
            "ReduceSum" => |call| reduce(call, |x, dims, keepdim| x.sum(dims, keepdim)),
            "ReduceMean" => |call| reduce(call, |x, dims, keepdim| x.mean(dims, keepdim)),
            "ReduceL1" => |call| reduce(call, |x, dims, keepdim| x.norm(1.0, dims, keepdim)),
            "ReduceL2" => |call| reduce(call, |x, dims, keepdim| x.norm(2.0, dims, keepdim)),
            "ReduceMax" => |call| reduce(call, |x, dims, keepdim| x.max(dims, keepdim)),
            "ReduceMin" => |call| reduce(call, |x, dims, keepdim| x.min(dims, keepdim)),
            "ReduceProd" => |call| reduce(call, |x, dims, keepdim| x.prod(dims, keepdim)),
            "ReduceLogSum" => |call| reduce(call, |x, dims, keepdim| x.sum(dims, keepdim)?.log()),
            "ReduceLogSumExp" => |call| reduce(call, |x, dims, keepdim| x.logsumexp(dims, keepdim)),
            "ReduceSumSquare" => |call| reduce(call, |x, dims, keepdim| x.square()?.sum(dims, keepdim)),
            _ => return None,
        }),
    })
}

/// Axes are an attribute up to opset 17 (13 for ReduceSum) and an input since; no axes mean all of them, or none where
/// `noop_with_empty_axes` says so.
fn reduce(call: &Call, f: Reduction) -> Result<Tensor> {
    if let Some(of_integers) = long::reduced(call)? {
        return Ok(of_integers);
    }
    let x = call.x(0)?;
    let Some(dims) = dims_of(call, x.rank())? else {
        // Nothing is reduced, but each element is transformed.
        return match call.op() {
            "ReduceSumSquare" => x.square(),
            "ReduceL1" | "ReduceL2" => x.abs(),
            "ReduceLogSum" => x.log(),
            _ => Ok(x),
        };
    };
    let keep = call.int("keepdims", 1) != 0;
    if matches!(call.op(), "ReduceMax" | "ReduceMin") && dims.iter().any(|&dim| x.shape()[dim] == 0) {
        return extreme_of_nothing(call, &x, &dims, keep);
    }
    // Bytes that stand for integers are reduced as integers.
    f(&x, &dims, keep)
}

/// The dimensions that are reduced; `None` where nothing is.
pub(super) fn dims_of(call: &Call, rank: usize) -> Result<Option<Vec<usize>>> {
    let axes = call.list("axes", 1)?.unwrap_or_default();
    match axes.is_empty() {
        true if call.flag("noop_with_empty_axes") => Ok(None),
        true => Ok(Some((0..rank).collect())),
        false => call.dims(&axes, rank).map(Some),
    }
}

/// ONNX defines what this crate and PyTorch refuse: the least value for a maximum, the greatest for a minimum.
fn extreme_of_nothing(call: &Call, x: &Tensor, dims: &[usize], keep: bool) -> Result<Tensor> {
    let kind = call.needed(0)?.kind();
    let low = call.op() == "ReduceMax";
    let shape = (0..x.rank()).filter(|dim| keep || !dims.contains(dim));
    let shape: Vec<usize> = shape.map(|dim| if dims.contains(&dim) { 1 } else { x.shape()[dim] }).collect();
    let elements = match kind.is_float() {
        true => Elements::Floats(vec![if low { f64::NEG_INFINITY } else { f64::INFINITY }]),
        false => {
            let range = kind.range();
            Elements::Ints(vec![if low { range.0 } else { range.1 }])
        }
    };
    let one = call.tensor(&Array { shape: Vec::new(), kind, elements }.into())?;
    one.broadcast_to(shape)?.contiguous()
}

/// The first of equal extremes; the last is the first of the reversed elements, counted from the end.
fn arg(call: &Call, f: Along) -> Result<Vec<Value>> {
    let x = call.x(0)?;
    let dim = call.axis(0, x.rank())?;
    let out = match call.flag("select_last_index") {
        false => f(&x, dim)?.to_dtype(DType::I32)?,
        true => {
            let last = x.shape()[dim].saturating_sub(1) as i32;
            let from_end = f(&x.flip([dim])?, dim)?.to_dtype(DType::I32)?;
            Tensor::full(from_end.shape(), last, x.device())?.sub(&from_end)?
        }
    };
    let out = if call.int("keepdims", 1) != 0 { out.unsqueeze(dim)? } else { out };
    Ok(vec![Value::Device(out, ElementType::Int64)])
}

fn along(call: &Call, f: Along) -> Result<Tensor> {
    let axis = call.int("axis", if call.opset() >= 13 { -1 } else { 1 });
    along_axis(call, &call.x(0)?, axis, f)
}

/// Up to opset 12, all dimensions from the axis on are taken as one.
pub(super) fn along_axis(call: &Call, x: &Tensor, axis: i64, f: Along) -> Result<Tensor> {
    let axis = call.dim(axis, x.rank())?;
    if call.opset() >= 13 { f(x, axis) } else { flattened(x, axis, f) }
}

/// All dimensions from the axis on, taken as one.
pub(super) fn flattened(x: &Tensor, axis: usize, f: Along) -> Result<Tensor> {
    if axis + 1 == x.rank() {
        return f(x, axis);
    }
    let (rows, columns) = x.shape().split_at(axis);
    let matrix = x.reshape([rows.iter().product::<usize>(), columns.iter().product::<usize>()])?;
    f(&matrix, 1)?.reshape(x.shape())
}

pub(super) fn softmax(x: &Tensor, dim: usize) -> Result<Tensor> {
    if x.dtype() != DType::F64 {
        return x.softmax(dim);
    }
    let powers = x.sub(&x.max([dim], true)?)?.exp()?;
    powers.div(&powers.sum([dim], true)?)
}

fn log_softmax(x: &Tensor, dim: usize) -> Result<Tensor> {
    if x.dtype() != DType::F64 {
        return x.log_softmax(dim);
    }
    let centred = x.sub(&x.max([dim], true)?)?;
    centred.sub(&centred.exp()?.sum([dim], true)?.log()?)
}

/// 1 at the first largest element, else 0.
fn hardmax(x: &Tensor, dim: usize) -> Result<Tensor> {
    x.argmax(dim)?.one_hot(x.shape()[dim])?.movedim(-1, dim)?.to_dtype(x.dtype())
}

/// `reverse` sums from the end; `exclusive` leaves each element out of its own sum.
fn cumulated(call: &Call, nothing: i32, f: fn(&Tensor, usize) -> Result<Tensor>) -> Result<Tensor> {
    let x = call.x(0)?;
    let axis = call.whole(1)?.and_then(|axis| axis.first().copied()).unwrap_or(0);
    let dim = call.dim(axis, x.rank())?;
    let reverse = call.flag("reverse");
    let x = if reverse { x.flip([dim])? } else { x };
    let mut all = f(&x, dim)?;
    if call.flag("exclusive") && x.shape()[dim] > 0 {
        let count = x.shape()[dim];
        let first = Tensor::full(x.narrow(dim, 0, 1)?.shape(), nothing, x.device())?.to_dtype(all.dtype())?;
        all = Tensor::cat(&[&first, &all.narrow(dim, 0, count - 1)?], dim)?;
    }
    if reverse { all.flip([dim]) } else { Ok(all) }
}
