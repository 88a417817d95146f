//! Operators that ONNX Runtime's optimiser joins with the activation after them, and products of tensors that it quantises.

use super::super::super::call::{Call, Operator};
use super::super::super::fault;
use super::super::super::value::Value;
use super::super::layers;
use super::super::linear;
use super::super::quantised::{dynamically, integer_product};
use super::super::recurrent::Activation;
use super::super::window::Window;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "FusedConv" => Operator::One(fused_conv),
        "FusedGemm" => Operator::One(fused_gemm),
        "DynamicQuantizeMatMul" => Operator::Values(dynamic_product),
        _ => return None,
    })
}

/// A convolution, to which a tensor is added before an activation.
fn fused_conv(call: &Call) -> Result<Tensor> {
    let (x, w, bias) = (call.x(0)?, call.x(1)?, call.maybe(2)?);
    let window = Window::of(call, &x, w.shape().get(2..).unwrap_or_default())?;
    let mut y = layers::convolved(call, &window, &x, &w, bias.as_ref())?;
    if let Some(sum) = call.maybe(3)? {
        y = y.add(&sum)?;
    }
    let params = call.node.attribute("activation_params").map(|attribute| attribute.floats.clone()).unwrap_or_default();
    let [alpha, beta] = [0, 1].map(|i| params.get(i).copied());
    match call.text("activation", "").as_ref() {
        "" => Ok(y),
        "Clip" => y.clamp(alpha, beta),
        name => Activation { name: name.to_owned(), alpha, beta }.apply(&y),
    }
}

/// A product with a sum, and an activation after it.
fn fused_gemm(call: &Call) -> Result<Tensor> {
    let y = linear::gemm(call)?;
    let given = |name: &str| call.has(name).then(|| call.float(name, 0.0));
    let [alpha, beta, gamma] = ["activation_alpha", "activation_beta", "activation_gamma"].map(given);
    match call.text("activation", "").as_ref() {
        "" => Ok(y),
        "Selu" => y.elu(alpha.unwrap_or(1.673_263_2))?.mul_scalar(gamma.unwrap_or(1.050_701)),
        "ParametricSoftplus" => {
            let inner = y.mul_scalar(beta.unwrap_or(1.0))?;
            inner.softplus(1.0, 20.0)?.mul_scalar(alpha.unwrap_or(1.0))
        }
        name => Activation { name: name.to_owned(), alpha, beta }.apply(&y),
    }
}

/// The product with a matrix of integers of a tensor that is quantised for it, to 8 bits.
fn dynamic_product(call: &Call) -> Result<Vec<Value>> {
    let (x, w, scale) = (call.x(0)?, call.x(1)?.to_dtype(DType::F32)?, call.x(2)?);
    if x.rank() < 1 || w.rank() < 2 {
        return Err(fault(format!("a product of shapes {:?} and {:?}", x.shape(), w.shape())));
    }
    let centred = match call.maybe(3)? {
        Some(zero) => w.sub(&of_columns(zero.to_dtype(DType::F32)?)?)?,
        None => w,
    };
    let (whole, x_scale) = dynamically(&x)?;
    let y = integer_product(&whole, &centred)?.to_dtype(DType::F32)?.mul(&of_columns(scale)?.mul(&x_scale)?)?;
    let y = match call.maybe(4)? {
        Some(bias) => y.add(&bias)?,
        None => y,
    };
    Ok(vec![Value::natural(y)])
}

/// A scale or a zero point: one, or one for each column.
fn of_columns(v: Tensor) -> Result<Tensor> {
    if v.elem_count() == 1 { v.reshape(()) } else { Ok(v) }
}
