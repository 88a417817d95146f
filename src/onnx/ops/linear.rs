//! Matrix products.

use super::super::call::{Call, Operator};
use super::long;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(Operator::One(match op {
        "MatMul" => |call| product(&call.x(0)?, &call.x(1)?),
        "Gemm" => gemm,
        "Einsum" => |call| {
            let operands = call.all()?;
            Tensor::einsum(&call.text("equation", ""), &operands.iter().collect::<Vec<_>>())
        },
        _ => return None,
    }))
}

/// The product of matrices; a vector is a row on the left side and a column on the right, without a dimension in the result.
fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match (a.rank(), b.rank()) {
        (1, 1) => product(&a.unsqueeze(0)?, b)?.squeeze(0),
        (1, _) => product(&a.unsqueeze(0)?, b)?.squeeze(-2),
        (_, 1) => product(a, &b.unsqueeze(1)?)?.squeeze(-1),
        _ if !a.dtype().is_float() => long::product(a, b),
        _ => a.matmul(b),
    }
}

/// α · A · B + β · C
pub(super) fn gemm(call: &Call) -> Result<Tensor> {
    let operand = |i: usize, flag: &str| {
        let x = call.x(i)?;
        if call.flag(flag) { x.t() } else { Ok(x) }
    };
    let scaled = |x: Tensor, factor: f32| if factor == 1.0 { Ok(x) } else { x.mul_scalar(factor) };
    let product = scaled(product(&operand(0, "transA")?, &operand(1, "transB")?)?, call.float("alpha", 1.0))?;
    match call.maybe(2)? {
        Some(c) => product.add(&scaled(c, call.float("beta", 1.0))?),
        None => Ok(product),
    }
}
