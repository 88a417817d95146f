//! ONNX Runtime's operators of tensors of 8 bits with a scale and a zero point: they compute with floats, and quantise the result.
//!
//! Sums, scales and halves are rounded where ONNX Runtime rounds them. A number may still differ from ONNX
//! Runtime's by one step of its scale. ONNX Runtime takes softmax from a table of integers, and cuts 1 / scale of
//! its result to a whole number. An adapter may also round quotients in another way.

use super::super::super::call::{Call, Operator};
use super::super::super::element_type::ElementType;
use super::super::super::fault;
use super::super::super::value::Value;
use super::super::pools;
use super::super::quantised::{integer_product, limited, requantised};
use super::super::reduce::{self, flattened};
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(Operator::Values(match op {
        "QLinearAdd" => |call| combined(call, |x, y| x.add(y)),
        "QLinearMul" => |call| combined(call, |x, y| x.mul(y)),
        "QLinearSigmoid" => |call| mapped(call, |x| x.sigmoid()),
        "QLinearLeakyRelu" => |call| mapped(call, |x| x.leaky_relu(call.float("alpha", 0.01))),
        "QLinearSoftmax" => |call| mapped(call, |x| softmax(call, x)),
        "QLinearConcat" => concat,
        "QLinearAveragePool" => average_pool,
        "QLinearGlobalAveragePool" => global_average_pool,
        "QGemm" => gemm,
        _ => return None,
    }))
}

/// The element type of input `i`, which must be an integer of 8 bits.
fn kind(call: &Call, i: usize) -> Result<ElementType> {
    match call.needed(i)?.kind() {
        kind @ (ElementType::Uint8 | ElementType::Int8) => Ok(kind),
        kind => call.refuse(format!("a tensor of {kind}")),
    }
}

/// The only element of input `i`, as a float.
fn scalar(call: &Call, i: usize) -> Result<Tensor> {
    call.x(i)?.to_dtype(DType::F32)?.reshape(())
}

/// The zero point that is input `i`; 0 where it is left out.
fn zero(call: &Call, i: usize) -> Result<Tensor> {
    if call.value(i).is_some() { scalar(call, i) } else { Tensor::full((), 0.0f32, call.device) }
}

/// Input `i` without its zero point, which is input `i + 2`. The scale is input `i + 1`.
fn centred(call: &Call, i: usize) -> Result<Tensor> {
    kind(call, i)?;
    call.x(i)?.to_dtype(DType::F32)?.sub(&zero(call, i + 2)?)
}

fn dequantised(call: &Call, i: usize) -> Result<Tensor> {
    centred(call, i)?.mul(&scalar(call, i + 1)?)
}

/// The type of a result whose zero point is input `i`. If that is left out, it is the type of the first input.
fn result_kind(call: &Call, i: usize) -> Result<ElementType> {
    kind(call, if call.value(i).is_some() { i } else { 0 })
}

fn combined(call: &Call, f: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Vec<Value>> {
    requantised(call, &f(&dequantised(call, 0)?, &dequantised(call, 3)?)?, 6, kind(call, 0)?)
}

fn mapped(call: &Call, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<Value>> {
    requantised(call, &f(&dequantised(call, 0)?)?, 3, kind(call, 0)?)
}

/// The attribute says which version of ONNX's own operator it is.
fn softmax(call: &Call, x: &Tensor) -> Result<Tensor> {
    let axis = call.axis(-1, x.rank())?;
    if call.int("opset", 13) < 13 { flattened(x, axis, reduce::softmax) } else { reduce::softmax(x, axis) }
}

/// The scale and the zero point of the result come first, and then each tensor with its own.
fn concat(call: &Call) -> Result<Vec<Value>> {
    let firsts = || (2..call.inputs.len().max(3)).step_by(3);
    let parts: Vec<Tensor> = firsts().map(|i| dequantised(call, i)).collect::<Result<_>>()?;
    let axis = call.axis(0, parts[0].rank())?;
    requantised(call, &Tensor::cat(&parts.iter().collect::<Vec<_>>(), axis)?, 0, kind(call, 2)?)
}

/// The channels of a tensor that has them last, moved to where ONNX has them.
fn channels_first(call: &Call, x: &Tensor) -> Result<Tensor> {
    if x.rank() < 3 {
        return Err(fault(format!("a shape of {:?}, without an image", x.shape())));
    }
    if call.flag("channels_last") { x.movedim(-1, 1) } else { Ok(x.clone()) }
}

fn channels_back(call: &Call, y: Tensor) -> Result<Tensor> {
    if call.flag("channels_last") { y.movedim(1, -1)?.contiguous() } else { Ok(y) }
}

/// The zero point is added before the mean is rounded, which matters for halves.
fn average_pool(call: &Call) -> Result<Vec<Value>> {
    let mean = pools::average_pool(call, &channels_first(call, &dequantised(call, 0)?)?.contiguous()?)?;
    let y = mean.div(&scalar(call, 3)?)?.add(&zero(call, 4)?)?.round()?;
    Ok(vec![limited(&channels_back(call, y)?, result_kind(call, 4)?)?])
}

/// The sums are integers.
fn global_average_pool(call: &Call) -> Result<Vec<Value>> {
    let x = channels_first(call, &centred(call, 0)?)?;
    let dims: Vec<usize> = (2..x.rank()).collect();
    let pixels: usize = x.shape()[2..].iter().product();
    let factor = scalar(call, 1)?.div(&scalar(call, 3)?.mul_scalar(pixels as f32)?)?;
    let y = x.sum(&dims, true)?.mul(&factor)?.round()?.add(&zero(call, 4)?)?;
    Ok(vec![limited(&channels_back(call, y)?, result_kind(call, 4)?)?])
}

/// α · A · B + C, where C has integers in the product's scale. Without a scale of the result, the result is of
/// floats.
fn gemm(call: &Call) -> Result<Vec<Value>> {
    let operand = |i: usize, flag: &str| -> Result<Tensor> {
        kind(call, i)?;
        let x = call.x(i)?.to_dtype(DType::F32)?;
        if x.rank() != 2 {
            return Err(fault(format!("a product with a shape of {:?}", x.shape())));
        }
        if call.flag(flag) { x.t() } else { Ok(x) }
    };
    // One for all columns of B, or one for each.
    let of_columns = |i: usize| {
        let v = call.x(i)?.to_dtype(DType::F32)?;
        if v.elem_count() == 1 { v.reshape(()) } else { Ok(v) }
    };
    let (a, b) = (operand(0, "transA")?.sub(&zero(call, 2)?)?, operand(3, "transB")?.sub(&of_columns(5)?)?);
    let mut sum = integer_product(&a, &b)?;
    if let Some(c) = call.maybe(6)? {
        sum = sum.add(&c.to_dtype(DType::I32)?.broadcast_to(sum.shape())?)?;
    }
    let sum = sum.to_dtype(DType::F32)?;
    let scale = scalar(call, 1)?.mul_scalar(call.float("alpha", 1.0))?.mul(&of_columns(4)?)?;
    if call.value(7).is_none() {
        return Ok(vec![Value::natural(sum.mul(&scale)?)]);
    }
    let y = sum.mul(&scale.div(&scalar(call, 7)?)?)?.round()?.add(&zero(call, 8)?)?;
    Ok(vec![limited(&y, result_kind(call, 8)?)?])
}
