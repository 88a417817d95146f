//! Quantised tensors: integers with a scale and a zero point.

use super::super::call::{Call, Operator, size};
use super::super::element_type::ElementType;
use super::super::fault;
use super::super::value::Value;
use super::window::Window;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// The longest sum of products of 4 and 8 bits that is exact in f32: 2²⁴ / (15 · 255).
const EXACT: usize = 4096;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "DequantizeLinear" => Operator::Values(dequantize_linear),
        "QuantizeLinear" => Operator::Values(quantize_linear),
        "DynamicQuantizeLinear" => Operator::Values(dynamic),
        "MatMulInteger" => Operator::Values(matmul_integer),
        "ConvInteger" => Operator::Values(conv_integer),
        "QLinearMatMul" => Operator::Values(qlinear_matmul),
        "QLinearConv" => Operator::Values(qlinear_conv),
        _ => return None,
    })
}

/// A scale or a zero point in the rank of `x`: one element, one for each index of a dimension, or one for each block of it.
fn spread(call: &Call, v: Tensor, x: &[usize]) -> Result<Tensor> {
    if v.elem_count() == 1 {
        return v.reshape(());
    }
    let axis = call.axis(1, x.len())?;
    let block = size(call.int("block_size", 0))?;
    if v.rank() == 1 && block == 0 {
        let shape: Vec<usize> = (0..x.len()).map(|dim| if dim == axis { v.elem_count() } else { 1 }).collect();
        return v.reshape(shape);
    }
    let blocks = v.shape().get(axis).copied().unwrap_or(0);
    if block == 0 || v.rank() != x.len() || blocks != x[axis].div_ceil(block) {
        return Err(fault(format!("scales of shape {:?} with blocks of {block} for a shape of {x:?}", v.shape())));
    }
    let block = block.min(x[axis].max(1));
    let mut shape = v.shape().to_vec();
    shape.insert(axis + 1, block);
    let wide = v.unsqueeze(axis + 1)?.broadcast_to(shape)?;
    let mut joined = v.shape().to_vec();
    joined[axis] = blocks * block;
    wide.reshape(joined)?.narrow(axis, 0, x[axis])
}

/// (x − zero point), as floats.
fn centred(
    call: &Call,
    x: &Tensor,
    zero: Option<Tensor>,
    exact: fn(&Call, Tensor, &[usize]) -> Result<Tensor>,
) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    match zero {
        Some(zero) => wide.sub(&exact(call, zero.to_dtype(DType::F32)?, x.shape())?),
        None => Ok(wide),
    }
}

fn dequantize_linear(call: &Call) -> Result<Vec<Value>> {
    let (x, scale) = (call.x(0)?, call.x(1)?);
    let dtype = call.type_attribute("output_dtype")?.map_or(scale.dtype(), ElementType::word);
    let scale = spread(call, scale.to_dtype(DType::F32)?, x.shape())?;
    let y = centred(call, &x, call.maybe(2)?, spread)?.mul(&scale)?;
    Ok(vec![Value::natural(y.to_dtype(dtype)?)])
}

/// The quotient, rounded to the nearest even, and cut to the range of the type.
fn quantized(x: &Tensor, scale: &Tensor, zero: Option<&Tensor>, kind: ElementType) -> Result<Value> {
    let mut y = x.to_dtype(DType::F32)?.div(scale)?.round()?;
    if let Some(zero) = zero {
        y = y.add(zero)?;
    }
    limited(&y, kind)
}

/// Whole numbers, cut to the range of the type.
pub(super) fn limited(y: &Tensor, kind: ElementType) -> Result<Value> {
    let (low, high) = kind.range();
    let y = y.clamp(Some(low as f32), Some(high as f32))?.to_dtype(kind.word())?;
    Ok(Value::Device(y, kind))
}

fn quantize_linear(call: &Call) -> Result<Vec<Value>> {
    let x = call.x(0)?;
    let kind = match call.type_attribute("output_dtype")? {
        Some(kind) => kind,
        None => call.value(2).map_or(ElementType::Uint8, Value::kind),
    };
    if kind.is_minifloat() {
        let scale = spread(call, call.x(1)?.to_dtype(DType::F32)?, x.shape())?;
        let y = Value::natural(x.to_dtype(DType::F32)?.div(&scale)?).read()?;
        return Ok(vec![y.converted(kind, call.conversion()?).into()]);
    }
    if kind.bits() > 16 || kind.is_float() {
        return call.refuse(format!("quantising to {kind}"));
    }
    let scale = spread(call, call.x(1)?.to_dtype(DType::F32)?, x.shape())?;
    let zero = call.maybe(2)?.map(|zero| spread(call, zero.to_dtype(DType::F32)?, x.shape())).transpose()?;
    Ok(vec![quantized(&x, &scale, zero.as_ref(), kind)?])
}

/// A scale and a zero point for the range of the elements, to 8 bits without sign.
fn dynamic(call: &Call) -> Result<Vec<Value>> {
    let x = call.x(0)?;
    let (scale, zero) = range_of(&x)?;
    let y = quantized(&x, &scale, Some(&zero), ElementType::Uint8)?;
    Ok(vec![y, Value::natural(scale), Value::Device(zero.to_dtype(DType::U8)?, ElementType::Uint8)])
}

fn range_of(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let (low, high) = (x.min_all()?.clamp(None, Some(0.0))?, x.max_all()?.clamp(Some(0.0), None)?);
    let scale = high.sub(&low)?.div(255.0)?;
    let zero = low.neg()?.div(&scale)?.round()?.clamp(Some(0.0), Some(255.0))?;
    Ok((scale, zero))
}

/// A tensor as whole numbers, without the zero point, and their scale, as `DynamicQuantizeLinear` has them; a tensor of zeros has
/// the scale 1.
pub(super) fn dynamically(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let x = x.to_dtype(DType::F32)?;
    let (scale, zero) = range_of(&x)?;
    let nothing = scale.eq(0.0)?;
    let (scale, zero) = (nothing.where_cond(1.0, &scale)?, nothing.where_cond(0.0, &zero)?);
    let whole = x.div(&scale)?.round()?.add(&zero)?.clamp(Some(0.0), Some(255.0))?.sub(&zero)?;
    Ok((whole, scale))
}

/// Two integer tensors combined by a product that sums `length` terms, as i32. The first is taken apart into halves of four bits,
/// so that sums of floats are exact.
fn exact_product(x: &Tensor, y: &Tensor, product: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let high = x.mul_scalar(1.0 / 16.0)?.floor()?;
    let low = x.sub(&high.mul_scalar(16.0)?)?;
    // A convolution may be computed with fractions, whose sums are near the integers.
    let whole = |x: &Tensor| product(x, y)?.round()?.to_dtype(DType::I32);
    whole(&high)?.mul(16)?.add(&whole(&low)?)
}

/// The zero point of a matrix: one, or one for each row (of the first) or column (of the second).
fn of_rows(_: &Call, zero: Tensor, _: &[usize]) -> Result<Tensor> {
    if zero.rank() == 1 && zero.elem_count() > 1 { zero.unsqueeze(1) } else { Ok(zero) }
}

fn of_columns(_: &Call, zero: Tensor, _: &[usize]) -> Result<Tensor> {
    Ok(zero)
}

fn matmul_integer(call: &Call) -> Result<Vec<Value>> {
    let (a, b) = (call.x(0)?, call.x(1)?);
    let a = centred(call, &a, call.maybe(2)?, of_rows)?;
    let b = centred(call, &b, call.maybe(3)?, of_columns)?;
    Ok(vec![Value::Device(integer_product(&a, &b)?, ElementType::Int32)])
}

/// The product of matrices of whole numbers of at most 9 bits, as i32.
pub(super) fn integer_product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let depth = a.shape().last().copied().unwrap_or(0);
    if b.rank() < 2 || b.shape()[b.rank() - 2] != depth {
        return Err(fault(format!("a product of shapes {:?} and {:?}", a.shape(), b.shape())));
    }
    let (last, before) = (a.rank().saturating_sub(1), b.rank().saturating_sub(2));
    let mut sum: Option<Tensor> = None;
    for start in (0..depth).step_by(EXACT) {
        let count = EXACT.min(depth - start);
        let (a, b) = (a.narrow(last, start, count)?, b.narrow(before, start, count)?);
        let part = exact_product(&a, &b, |a, b| a.matmul(b))?;
        sum = Some(match sum {
            Some(sum) => sum.add(&part)?,
            None => part,
        });
    }
    sum.ok_or_else(|| fault("a product over no element"))
}

/// The convolution of two tensors of floats.
fn convolved(call: &Call, x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let window = Window::of(call, x, w.shape().get(2..).unwrap_or_default())?;
    super::layers::convolved(call, &window, x, w, None)
}

/// One zero point for each kernel.
fn of_kernels(_: &Call, zero: Tensor, w: &[usize]) -> Result<Tensor> {
    if zero.elem_count() <= 1 {
        return zero.reshape(());
    }
    let shape: Vec<usize> = (0..w.len()).map(|dim| if dim == 0 { zero.elem_count() } else { 1 }).collect();
    zero.reshape(shape)
}

fn conv_integer(call: &Call) -> Result<Vec<Value>> {
    let (x, w) = (call.x(0)?, call.x(1)?);
    let terms: usize = w.shape().iter().skip(1).product();
    if terms > EXACT {
        return call.refuse(format!("an integer convolution with sums of {terms} products"));
    }
    let x = centred(call, &x, call.maybe(2)?, of_kernels)?;
    let w = centred(call, &w, call.maybe(3)?, of_kernels)?;
    let sum = exact_product(&x, &w, |x, w| convolved(call, x, w))?;
    Ok(vec![Value::Device(sum, ElementType::Int32)])
}

/// Dequantised numbers, quantised by the scale and the zero point of inputs `i` and `i + 1`; without a zero point, to `kind`.
pub(super) fn requantised(call: &Call, y: &Tensor, i: usize, kind: ElementType) -> Result<Vec<Value>> {
    let scale = call.x(i)?.to_dtype(DType::F32)?.reshape(())?;
    let zero = call.maybe(i + 1)?.map(|zero| zero.to_dtype(DType::F32)?.reshape(())).transpose()?;
    Ok(vec![quantized(y, &scale, zero.as_ref(), call.value(i + 1).map_or(kind, Value::kind))?])
}

fn qlinear_matmul(call: &Call) -> Result<Vec<Value>> {
    let a = centred(call, &call.x(0)?, call.maybe(2)?, of_rows)?.mul(&of_rows(
        call,
        call.x(1)?.to_dtype(DType::F32)?,
        &[],
    )?)?;
    let b = centred(call, &call.x(3)?, call.maybe(5)?, of_columns)?.mul(&call.x(4)?.to_dtype(DType::F32)?)?;
    requantised(call, &a.matmul(&b)?, 6, call.needed(0)?.kind())
}

fn qlinear_conv(call: &Call) -> Result<Vec<Value>> {
    let (x, w) = (call.x(0)?, call.x(3)?);
    let (x_scale, w_scale) = (call.x(1)?.to_dtype(DType::F32)?, call.x(4)?.to_dtype(DType::F32)?);
    let x = centred(call, &x, call.maybe(2)?, of_kernels)?;
    let w = centred(call, &w, call.maybe(5)?, of_kernels)?;
    let mut y = convolved(call, &x, &w)?;
    let channels = |v: &Tensor| -> Result<Tensor> {
        let shape: Vec<usize> = (0..y.rank()).map(|dim| if dim == 1 { v.elem_count() } else { 1 }).collect();
        v.reshape(shape)
    };
    let w_scale = channels(&w_scale)?;
    // The bias is an integer of the product's scale.
    let bias = call.maybe(8)?.map(|bias| channels(&bias.to_dtype(DType::F32)?)).transpose()?;
    if let Some(bias) = bias {
        y = y.add(&bias)?;
    }
    requantised(call, &y.mul(&x_scale.reshape(())?)?.mul(&w_scale)?, 6, call.needed(0)?.kind())
}
