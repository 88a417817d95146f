//! Bitwise operators of integers, and bits as another type. Types that have no tensor of their own are widened, and wrap as they
//! would.

use super::super::call::{Call, Operator};
use super::super::element_type::ElementType;
use super::super::fault;
use super::super::value::Value;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(Operator::Values(match op {
        "BitwiseAnd" => |call| combined(call, |x, y| x.bitwise_and(y)),
        "BitwiseOr" => |call| combined(call, |x, y| x.bitwise_or(y)),
        "BitwiseXor" => |call| combined(call, |x, y| x.bitwise_xor(y)),
        "BitwiseNot" => inverted,
        "BitCast" => bit_cast,
        "BitShift" => |call| match call.text("direction", "").as_ref() {
            "LEFT" => combined(call, |x, y| x.bitwise_left_shift(y)),
            _ => combined(call, |x, y| x.bitwise_right_shift(y)),
        },
        _ => return None,
    }))
}

/// The same bits as another type of as many bits. They are read on the host, which knows the type of the file.
fn bit_cast(call: &Call) -> Result<Vec<Value>> {
    let kind = call.type_attribute("to")?.ok_or_else(|| fault("the attribute 'to' is missing"))?;
    Ok(vec![call.needed(0)?.read()?.with_bits_as(kind)?.into()])
}

/// The type that is computed in.
fn wide(call: &Call, kind: ElementType) -> DType {
    if call.exact && kind.is_long() {
        return DType::I64;
    }
    if kind.word() == DType::I32 { DType::I32 } else { DType::U32 }
}

/// The result in its own type, without the bits that this does not have.
fn narrowed(call: &Call, x: &Tensor, kind: ElementType) -> Result<Value> {
    let (low, high) = kind.range();
    let x = match kind.bits() {
        bits @ ..32 => match wide(call, kind) {
            DType::I32 if low < 0 => x.add(-(low as i32))?.bitwise_and((1i32 << bits) - 1)?.add(low as i32)?,
            DType::I32 => x.bitwise_and(high as i32)?,
            _ => x.bitwise_and(high as u32)?,
        },
        32 => x.clone(),
        _ => return Ok(Value::of(x.clone(), kind)),
    };
    Ok(Value::Device(x.to_dtype(kind.word())?, kind))
}

fn combined(call: &Call, f: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Vec<Value>> {
    let kind = call.needed(0)?.kind();
    let (x, y) = (call.x(0)?.to_dtype(wide(call, kind))?, call.x(1)?.to_dtype(wide(call, kind))?);
    Ok(vec![narrowed(call, &f(&x, &y)?, kind)?])
}

fn inverted(call: &Call) -> Result<Vec<Value>> {
    let kind = call.needed(0)?.kind();
    if kind == ElementType::Uint64 {
        return call.refuse("the inverse of 64 bits without sign");
    }
    let x = call.x(0)?.to_dtype(wide(call, kind))?;
    let inverse = if x.dtype() == DType::U32 { x.bitwise_xor(u32::MAX)? } else { x.bitwise_xor(-1)? };
    Ok(vec![narrowed(call, &inverse, kind)?])
}
