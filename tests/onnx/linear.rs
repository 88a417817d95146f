//! Matrix products.

use anygpu::Tensor;

use super::call::{Call, Outcome};

pub fn map(call: &Call) -> Option<Outcome> {
    let out = match call.op() {
        "MatMul" => matmul(call),
        "Gemm" => gemm(call),
        "Einsum" => einsum(call),
        _ => return None,
    };
    Some(out.map(|tensor| vec![tensor]))
}

fn matmul(call: &Call) -> Outcome<Tensor> {
    Ok(call.x(0)?.matmul(&call.x(1)?)?)
}

/// α · A · B + β · C
fn gemm(call: &Call) -> Outcome<Tensor> {
    let operand = |i: usize, flag: &str| {
        let x = call.x(i)?;
        Outcome::Ok(if call.int(flag, 0) == 1 { x.t()? } else { x })
    };
    let product = operand(0, "transA")?.matmul(&operand(1, "transB")?)?.mul_scalar(call.float("alpha", 1.0))?;
    Ok(match call.maybe(2)? {
        Some(c) => product.add(&c.mul_scalar(call.float("beta", 1.0))?)?,
        None => product,
    })
}

fn einsum(call: &Call) -> Outcome<Tensor> {
    let operands = call.all()?;
    Ok(Tensor::einsum(&call.text("equation", ""), &operands.iter().collect::<Vec<_>>())?)
}
