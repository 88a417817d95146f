//! Operators that ONNX Runtime's optimiser and quantiser write.

mod fused;
mod qlinear;
mod transformers;

use super::super::call::{Call, Operator, size};
use super::super::value::Value;
use super::{quantised, recurrent};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::traced::is_traced;
use crate::ops::{Form, Packed};
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "Gelu" => Operator::One(|call| call.x(0)?.gelu()),
        "BiasGelu" => Operator::One(|call| call.x(0)?.add(&call.x(1)?)?.gelu()),
        "FastGelu" => Operator::One(|call| match call.maybe(1)? {
            Some(bias) => call.x(0)?.add(&bias)?.gelu_tanh(),
            None => call.x(0)?.gelu_tanh(),
        }),
        "QuickGelu" => Operator::One(|call| {
            let x = call.x(0)?;
            x.mul(&x.mul_scalar(call.float("alpha", 1.702))?.sigmoid()?)
        }),
        "FusedMatMul" => Operator::One(fused_matmul),
        "MatMulNBits" => Operator::One(matmul_n_bits),
        "SkipLayerNormalization" => Operator::Values(skip_layer_norm),
        "SkipSimplifiedLayerNormalization" => Operator::Values(skip_rms_norm),
        // For integers of 16 bits, in files of an operator set of ONNX that had none.
        "QuantizeLinear" | "DequantizeLinear" => return quantised::find(op),
        _ => {
            let families = [fused::find, qlinear::find, transformers::find, recurrent::quantised];
            return families.into_iter().find_map(|family| family(op));
        }
    })
}

/// α · A · B, each transposed in its last two dimensions on request.
fn fused_matmul(call: &Call) -> Result<Tensor> {
    let operand = |i: usize, flag: &str| {
        let x = call.x(i)?;
        if call.flag(flag) { x.transpose(-2, -1) } else { Ok(x) }
    };
    if call.flag("transBatchA") || call.flag("transBatchB") {
        return call.refuse("a transposed batch");
    }
    let product = operand(0, "transA")?.matmul(&operand(1, "transB")?)?;
    let alpha = call.float("alpha", 1.0);
    if alpha == 1.0 { Ok(product) } else { product.mul_scalar(alpha) }
}

/// The normalised sum of two tensors and a bias.
fn skip_layer_norm(call: &Call) -> Result<Vec<Value>> {
    let mut sum = call.x(0)?.add(&call.x(1)?)?;
    if let Some(bias) = call.maybe(4)? {
        sum = sum.add(&bias)?;
    }
    let (weight, bias) = (call.x(2)?, call.maybe(3)?);
    let y = sum.layer_norm(weight.shape(), Some(&weight), bias.as_ref(), call.float("epsilon", 1e-12))?;
    with_sum(call, y, sum)
}

/// The sum of two tensors and a bias, divided by its root mean square.
fn skip_rms_norm(call: &Call) -> Result<Vec<Value>> {
    let mut sum = call.x(0)?.add(&call.x(1)?)?;
    if let Some(bias) = call.maybe(3)? {
        sum = sum.add(&bias)?;
    }
    let weight = call.x(2)?;
    let y = sum.rms_norm(weight.shape(), Some(&weight), call.float("epsilon", 1e-5))?;
    with_sum(call, y, sum)
}

/// The outputs of a normalised sum: the fourth is the sum itself.
fn with_sum(call: &Call, y: Tensor, sum: Tensor) -> Result<Vec<Value>> {
    if call.wants(1) || call.wants(2) {
        return call.refuse("the mean and the deviation");
    }
    let mut outputs = vec![Value::natural(y)];
    if call.wants(3) {
        outputs.extend([Value::natural(sum.clone()), Value::natural(sum.clone()), Value::natural(sum)]);
    }
    Ok(outputs)
}

/// A product with a matrix of integers of a few bits, `[N, blocks, bytes]`, each block with a scale and a zero point.
fn matmul_n_bits(call: &Call) -> Result<Tensor> {
    let (a, integers, scales, zeros) = (call.x(0)?, call.x(1)?, call.x(2)?, call.maybe(3)?);
    let (k, n) = (size(call.int("K", 0))?, size(call.int("N", 0))?);
    let (bits, block) = (call.int("bits", 4), size(call.int("block_size", 0))?);
    if call.value(4).is_some() {
        return call.refuse("an index of groups");
    }
    if !matches!(bits, 4 | 8) || block == 0 || block % 2 != 0 {
        return call.refuse(format!("a matrix of {bits} bits with blocks of {block}"));
    }
    let form = Form { bits: if bits == 4 { 4 } else { 8 }, block, k };
    let of_words = form.is_known() && n > 0 && integers.dtype() == DType::U8 && a.dtype() != DType::F64;
    // Scales and zero points that are computed may be tracked, and a trace takes no packed matrix.
    let tracked = scales.is_tracked() || zeros.as_ref().is_some_and(Tensor::is_tracked);
    let y = if of_words && !tracked && !is_traced() {
        a.matmul_packed(&Packed::new(form, n, &integers, &scales, zeros.as_ref())?)?
    } else {
        a.matmul(&widened(form, n, &integers, &scales, zeros.as_ref())?.to_dtype(a.dtype())?.t()?)?
    };
    match call.maybe(5)? {
        Some(bias) => y.add(&bias),
        None => Ok(y),
    }
}

/// The elements of a matrix of integers, by ops that have gradients of scales and zero points: `[n, k]`.
fn widened(form: Form, n: usize, integers: &Tensor, scales: &Tensor, zeros: Option<&Tensor>) -> Result<Tensor> {
    let Form { bits, block, k } = form;
    let blocks = k.div_ceil(block);
    let values = unpacked(integers, bits)?.reshape([n, blocks, block])?;
    let centred = match zeros {
        // Zero points of integers are packed as the matrix is, each row from a whole byte.
        Some(zero) if zero.dtype() == DType::U8 => {
            let zero = unpacked(zero, bits)?.reshape([n, zero.elem_count() * (8 / bits) / n.max(1)])?;
            values.sub(&zero.narrow(1, 0, blocks)?.unsqueeze(2)?)?
        }
        Some(zero) => values.sub(&zero.to_dtype(DType::F32)?.reshape([n, blocks, 1])?)?,
        None => values.sub_scalar(if bits == 4 { 8.0 } else { 128.0 })?,
    };
    let weights = centred.mul(&scales.to_dtype(DType::F32)?.reshape([n, blocks, 1])?)?;
    weights.reshape([n, blocks * block])?.narrow(1, 0, k)
}

/// Integers of 4 or 8 bits as floats, in one dimension; the first of a byte is in its lower half.
fn unpacked(packed: &Tensor, bits: usize) -> Result<Tensor> {
    let bytes = packed.reshape(-1)?.to_dtype(DType::F32)?;
    if bits == 8 {
        return Ok(bytes);
    }
    let high = bytes.mul_scalar(1.0 / 16.0)?.floor()?;
    let low = bytes.sub(&high.mul_scalar(16.0)?)?;
    Tensor::stack(&[low, high], 1)?.reshape(-1)
}
