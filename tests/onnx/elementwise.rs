//! One element from one element: arithmetic, comparisons, activations, casts.

use anygpu::Tensor;

use super::call::{Call, Outcome, dtype_of, is_ours, skip};
use super::proto::Type;

pub fn map(call: &Call) -> Option<Outcome> {
    let one = |tensor: Outcome<Tensor>| Some(tensor.map(|tensor| vec![tensor]));
    if let Some(f) = unary(call.op()) {
        return one(call.x(0).and_then(|x| Ok(f(&x)?)));
    }
    if let Some(f) = binary(call.op()) {
        return one(call.all().and_then(|x| fold(&x, f)));
    }
    match call.op() {
        "Identity" => one(call.x(0)),
        "Cast" => one(cast(call, Type::of(call.int("to", 0) as i32))),
        "CastLike" => one(match call.value(1) {
            Some(like) => cast(call, Ok(like.kind)),
            None => skip("no second input"),
        }),
        _ => None,
    }
}

type Unary = fn(&Tensor) -> anygpu::Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> anygpu::Result<Tensor>;

fn unary(op: &str) -> Option<Unary> {
    Some(match op {
        "Neg" => Tensor::neg,
        "Exp" => Tensor::exp,
        "Log" => Tensor::log,
        "Sqrt" => Tensor::sqrt,
        "Relu" => Tensor::relu,
        _ => return None,
    })
}

/// What takes two tensors, or any number of them from left to right.
fn binary(op: &str) -> Option<Binary> {
    Some(match op {
        "Add" | "Sum" => |a, b| a.add(b),
        "Sub" => |a, b| a.sub(b),
        "Mul" => |a, b| a.mul(b),
        "Div" => |a, b| if a.dtype().is_float() { a.div(b) } else { a.div_trunc(b) },
        _ => return None,
    })
}

fn fold(tensors: &[Tensor], f: Binary) -> Outcome<Tensor> {
    let mut out = tensors[0].clone();
    for tensor in &tensors[1..] {
        out = f(&out, tensor)?;
    }
    Ok(out)
}

/// Between types of ours only: one that stands in for another would not show the cast that is meant.
fn cast(call: &Call, to: Result<Type, &'static str>) -> Outcome<Tensor> {
    let from = call.value(0).map(|value| value.kind);
    match (from, to) {
        (_, Err(name)) => skip(format!("the type {name}")),
        (Some(from), _) if !is_ours(from) => skip(format!("the type {from:?}")),
        (_, Ok(to)) if !is_ours(to) => skip(format!("the type {to:?}")),
        (_, Ok(to)) => Ok(call.x(0)?.to_dtype(dtype_of(to))?),
    }
}
