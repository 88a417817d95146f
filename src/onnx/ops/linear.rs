//! Matrix products.

use super::super::call::{Call, Operator};
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(Operator::One(match op {
        "MatMul" => |call| call.x(0)?.matmul(&call.x(1)?),
        "Gemm" => gemm,
        "Einsum" => |call| {
            let operands = call.all()?;
            Tensor::einsum(&call.text("equation", ""), &operands.iter().collect::<Vec<_>>())
        },
        _ => return None,
    }))
}

/// α · A · B + β · C
fn gemm(call: &Call) -> Result<Tensor> {
    let operand = |i: usize, flag: &str| {
        let x = call.x(i)?;
        if call.flag(flag) { x.t() } else { Ok(x) }
    };
    let scaled = |x: Tensor, factor: f32| if factor == 1.0 { Ok(x) } else { x.mul_scalar(factor) };
    let product = scaled(operand(0, "transA")?.matmul(&operand(1, "transB")?)?, call.float("alpha", 1.0))?;
    match call.maybe(2)? {
        Some(c) => product.add(&scaled(c, call.float("beta", 1.0))?),
        None => Ok(product),
    }
}
