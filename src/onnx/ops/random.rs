//! Random tensors, from this crate's generator: a seed of the file is not used.

use super::super::call::{Call, Operator, sizes};
use super::super::element_type::ElementType;
use super::super::value::Value;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(Operator::Values(match op {
        "RandomNormal" | "RandomNormalLike" => |call| made(call, normal),
        "RandomUniform" | "RandomUniformLike" => |call| made(call, uniform),
        "Bernoulli" => |call| {
            let value = call.needed(0)?;
            let x = match value.kind() {
                ElementType::Double => call.tensor(&value.read()?.cast(ElementType::Float).into())?,
                _ => call.tensor(value)?,
            };
            let kind = call.type_attribute("dtype")?.unwrap_or(call.needed(0)?.kind());
            let drawn = Tensor::rand(x.shape(), call.device)?.lt(&x.to_dtype(crate::DType::F32)?)?;
            Ok(vec![Value::made(&drawn, kind)?])
        },
        _ => return None,
    }))
}

fn normal(call: &Call, shape: &[usize]) -> Result<Tensor> {
    Tensor::normal(call.float("mean", 0.0), call.float("scale", 1.0), shape, call.device)
}

fn uniform(call: &Call, shape: &[usize]) -> Result<Tensor> {
    Tensor::uniform(call.float("low", 0.0), call.float("high", 1.0), shape, call.device)
}

/// A tensor of the shape of the attribute, or of the input.
fn made(call: &Call, draw: fn(&Call, &[usize]) -> Result<Tensor>) -> Result<Vec<Value>> {
    let (shape, default) = match call.value(0) {
        Some(like) => (like.shape()?.to_vec(), like.kind()),
        None => (sizes(&call.ints("shape").unwrap_or_default())?, ElementType::Float),
    };
    let kind = call.type_attribute("dtype")?.unwrap_or(default);
    Ok(vec![Value::made(&draw(call, &shape)?, kind)?])
}
