//! Elementwise operators: arithmetic, comparisons, activations, casts.

use super::super::call::{Call, Operator, alike, wrapped};
use super::super::element_type::ElementType;
use super::super::fault;
use super::super::fuse::MOST_DIMENSIONS;
use super::super::fuse::activations::LEAST_RANK;
use super::super::value::Value;
use crate::autograd::is_recording;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{BinaryFn, UnaryFn};
use crate::tensor::Tensor;

/// What a cast makes on the host is there for the next operator up to this many elements.
const FEW: usize = 4096;

pub(super) fn find(op: &str) -> Option<Operator> {
    activation(op).or_else(|| {
        Some(match op {
            "Identity" => Operator::Values(|call| Ok(vec![call.needed(0)?.clone()])),
            "Dropout" => Operator::Values(dropout),
            "Cast" => Operator::Values(cast),
            "CastLike" => Operator::Values(|call| {
                let kind = call.needed(1)?.kind();
                Ok(vec![to_kind(call, kind)?])
            }),
            "Where" => Operator::Values(where_cond),
            "Pow" => Operator::One(pow),
            "Mod" => Operator::One(modulo),
            "Mean" => Operator::One(|call| {
                let count = call.all()?.len();
                let sum = fold(call, |x, y| x.add(y))?;
                if call.exact { sum.div(count as f64) } else { sum.mul_scalar(1.0 / count as f32) }
            }),
            "Clip" => Operator::One(clip),
            "IsInf" => Operator::One(is_inf),
            "Relu" => Operator::One(|call| positive(&call.x(0)?)),
            "Sum" => Operator::Binary(BinaryFn::Add),
            // This crate's quotient of integers is a float, as in PyTorch; ONNX's is a whole number.
            "Div" => {
                Operator::One(|call| fold(call, |x, y| if x.dtype().is_float() { x.div(y) } else { x.div_trunc(y) }))
            }
            op => match UnaryFn::of_operator(op) {
                Some(function) => Operator::Unary(function),
                None => Operator::Binary(BinaryFn::of_operator(op)?),
            },
        })
    })
}

/// max(x, 0)
fn positive(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::I64 { x.maximum(0) } else { x.relu() }
}

/// Operators that take two tensors, or any number of them from left to right.
pub(in crate::onnx) fn fold(call: &Call, f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let mut all = call.all()?.into_iter();
    let mut out = all.next().ok_or_else(|| fault("input 0 is missing"))?;
    for tensor in all {
        let (x, y) = alike(out, tensor)?;
        out = f(&x, &aligned(call, &x, y)?)?;
    }
    Ok(out)
}

/// The second operand. Up to operator set 6, an axis says which dimension of the first one its own begin at.
fn aligned(call: &Call, x: &Tensor, y: Tensor) -> Result<Tensor> {
    if call.opset() > 6 || !call.has("axis") {
        return Ok(y);
    }
    let end = call.axis(-1, x.rank())? + y.rank();
    let after = x.rank().checked_sub(end).ok_or_else(|| fault("the second input does not fit the axis"))?;
    y.reshape([y.shape(), &vec![1; after]].concat())
}

fn cast(call: &Call) -> Result<Vec<Value>> {
    let kind = call.type_attribute("to")?.ok_or_else(|| fault("the attribute 'to' is missing"))?;
    Ok(vec![to_kind(call, kind)?])
}

/// Floats are truncated. Integers wrap if their type is narrower than the type that stands for it. Floats of 8 and
/// fewer bits are made on the host, and so are numbers of 64 bits, unless words hold them.
fn to_kind(call: &Call, kind: ElementType) -> Result<Value> {
    let value = call.needed(0)?;
    if kind.is_minifloat() {
        return Ok(value.read()?.converted(kind, call.conversion()?).into());
    }
    if !in_words(value, kind) {
        let lost = matches!(value, Value::Device(tensor, _) if tensor.is_tracked());
        if lost && kind == ElementType::Double && is_recording() {
            return call.refuse("a gradient through double");
        }
        let array = value.read()?.converted(kind, call.conversion()?).checked()?;
        return match kind.is_long() || array.count() <= FEW {
            true => Ok(array.into()),
            false => Ok(Value::Device(array.upload(call.device)?, kind)),
        };
    }
    let x = call.x(0)?;
    let dtype = kind.word();
    let y = match (x.dtype().is_float(), dtype) {
        // As integers of 32 bits first, whose upper bits are cut.
        (true, DType::U8) => x.trunc()?.to_dtype(DType::I32)?.bitwise_and(255)?.to_dtype(dtype)?,
        (true, dtype) if !dtype.is_float() && dtype != DType::Bool => x.trunc()?.to_dtype(dtype)?,
        (false, DType::U8) if x.dtype() != DType::Bool => low_byte(&x)?.to_dtype(dtype)?,
        (_, dtype) => x.to_dtype(dtype)?,
    };
    Ok(Value::Device(wrapped(y, kind)?, kind))
}

fn low_byte(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::I32 { x.bitwise_and(255) } else { x.to_dtype(DType::U32)?.bitwise_and(255u32) }
}

/// Whether words on the device hold the elements before a cast and after it.
fn in_words(value: &Value, kind: ElementType) -> bool {
    let from = value.kind();
    // The words of integers of 64 bits hold these, if they are on a device.
    let held = !from.is_long() || matches!(value, Value::Device(..));
    held && match kind {
        ElementType::Double => false,
        ElementType::Int64 => !from.is_float() && from.word() != DType::U32,
        ElementType::Uint64 => !from.is_float() && from.range().0 == 0,
        _ => true,
    }
}

fn where_cond(call: &Call) -> Result<Vec<Value>> {
    let (x, y) = call.pair(1, 2)?;
    Ok(vec![Value::of(call.x(0)?.where_cond(&x, &y)?, call.needed(1)?.kind())])
}

/// The result has the type of the base, whatever the exponent's is.
fn pow(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    // A small exponent of the file is known to the host: squares are products.
    if let Some(exponent) = call.needed(1)?.array().filter(|array| array.count() == 1) {
        let exponent = exponent.to_floats()[0];
        if x.dtype().is_float() && exponent == 2.0 && call.needed(1)?.shape()?.len() <= x.rank() {
            return x.square();
        }
    }
    let y = match call.needed(1)? {
        // The base has the type of the result.
        y if y.kind() == ElementType::Double && !call.exact => {
            call.tensor(&y.read()?.cast(ElementType::Float).into())?
        }
        y => call.tensor(y)?,
    };
    let y = aligned(call, &x, y)?;
    if x.dtype() == DType::I64 && y.dtype().is_float() {
        return x.to_dtype(DType::F64)?.pow(&y.to_dtype(DType::F64)?)?.to_dtype(DType::I64);
    }
    if !x.dtype().is_float() && y.dtype().is_float() {
        return x.to_dtype(DType::F32)?.pow(&y.to_dtype(DType::F32)?)?.trunc()?.to_dtype(x.dtype());
    }
    x.pow(&y.to_dtype(x.dtype())?)?.to_dtype(x.dtype())
}

/// Bounds are attributes up to opset 10, and inputs of one element since; either may be left out.
fn clip(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let bound = |name: &str, i: usize| match call.number(i)? {
        Some(value) => Ok(Some(value as f32)),
        None => Result::Ok(call.has(name).then(|| call.float(name, 0.0))),
    };
    if !x.dtype().is_float() || call.exact {
        // Bounds of integers are integers; many are no f32.
        let mut x = x.clone();
        if let Some(low) = call.maybe(1)?.filter(|low| low.elem_count() == 1) {
            x = x.maximum(&low.reshape(())?)?;
        }
        if let Some(high) = call.maybe(2)?.filter(|high| high.elem_count() == 1) {
            x = x.minimum(&high.reshape(())?)?;
        }
        if !call.has("min") && !call.has("max") {
            return Ok(x);
        }
    }
    match (bound("min", 1)?, bound("max", 2)?) {
        (None, None) => Ok(x),
        // Of a lower bound above the upper one, ONNX takes the upper.
        (Some(min), Some(max)) if min > max => Ok(x.mul_scalar(0.0)?.add_scalar(max)?.to_dtype(x.dtype())?),
        (min, max) => x.clamp(min, max),
    }
}

fn is_inf(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    match (call.int("detect_negative", 1), call.int("detect_positive", 1)) {
        (0, 0) => x.isinf()?.logical_and(&x.isnan()?),
        (0, _) => x.eq(f32::INFINITY),
        (_, 0) => x.eq(f32::NEG_INFINITY),
        _ => x.isinf(),
    }
}

/// Drops in training mode of the model, or where the file itself says that it is trained.
fn dropout(call: &Call) -> Result<Vec<Value>> {
    let x = call.x(0)?;
    let ratio = call.number(1)?.map_or(call.float("ratio", 0.5), |ratio| ratio as f32);
    let training = call.training || call.number(2)?.is_some_and(|training| training != 0.0);
    if training && ratio > 0.0 && call.wants(1) {
        return call.refuse("the mask of a dropout in training mode");
    }
    let mut outputs = vec![Value::of(x.dropout(ratio, training)?, call.needed(0)?.kind())];
    if call.outputs() > 1 {
        outputs.push(Value::natural(Tensor::ones(x.shape(), x.device())?.to_dtype(DType::Bool)?));
    }
    Ok(outputs)
}

/// Functions with parameters, and functions that take one line in this crate.
fn activation(op: &str) -> Option<Operator> {
    Some(Operator::One(match op {
        "LeakyRelu" => |call| call.x(0)?.leaky_relu(call.float("alpha", 0.01)),
        "Elu" => |call| call.x(0)?.elu(call.float("alpha", 1.0)),
        "Gelu" => gelu,
        // Beyond the bound, it is x to the last bit.
        "Softplus" => |call| call.x(0)?.softplus(1.0, if call.exact { 40.0 } else { 20.0 }),
        "HardSigmoid" => |call| {
            let sixth = (call.float("alpha", 0.2) - 1.0 / 6.0).abs() < 1e-7 && call.float("beta", 0.5) == 0.5;
            if sixth {
                return call.x(0)?.hardsigmoid();
            }
            let x = call.x(0)?.mul_scalar(call.float("alpha", 0.2))?;
            x.add_scalar(call.float("beta", 0.5))?.clamp(Some(0.0), Some(1.0))
        },
        // max(x, 0) + min(0, α (eˣ⸍ᵅ − 1))
        "Celu" => |call| {
            let (x, alpha) = (call.x(0)?, call.float("alpha", 1.0));
            let negative = x.clamp(None, Some(0.0))?.mul_scalar(1.0 / alpha)?.expm1()?;
            x.relu()?.add(&negative.mul_scalar(alpha)?)
        },
        "Selu" => |call| call.x(0)?.elu(call.float("alpha", 1.673_263_2))?.mul_scalar(call.float("gamma", 1.050_701)),
        "ThresholdedRelu" => |call| {
            let x = call.x(0)?;
            above(&x, call.float("alpha", 1.0), &x)
        },
        // x + bias below −λ, x − bias above λ, else 0
        "Shrink" => |call| {
            let (x, bias, lambd) = (call.x(0)?, call.float("bias", 0.0), call.float("lambd", 0.5));
            let low = above(&x.neg()?, lambd, &x.add_scalar(bias)?)?;
            above(&x, lambd, &x.add_scalar(-bias)?)?.add(&low)
        },
        "PRelu" => |call| {
            let (x, slope) = (call.x(0)?, call.x(1)?);
            // Up to operator set 6, a vector has a slope for each channel.
            let channels = call.opset() < 7 && slope.rank() == 1 && slope.elem_count() > 1;
            let rest = vec![1; x.rank().saturating_sub(2)];
            let slope = if channels { slope.reshape([slope.shape(), &rest].concat())? } else { slope };
            let negative = if x.dtype() == DType::I64 { x.minimum(0)? } else { x.clamp(None, Some(0.0))? };
            positive(&x)?.add(&negative.mul(&slope)?)
        },
        "Swish" => swish,
        "SwiGLU" => |call| {
            let (gate, x) = (swish(call)?, call.x(1)?);
            match gate.shape() == x.shape() {
                true => gate.mul(&x),
                false => Err(fault(format!("inputs of shapes {:?} and {:?}", gate.shape(), x.shape()))),
            }
        },
        _ => return None,
    }))
}

/// The rest of a division that is rounded down, or towards 0 on request. The first has the sign of the divisor, also where it is 0.
fn modulo(call: &Call) -> Result<Tensor> {
    let (x, y) = call.pair(0, 1)?;
    if call.flag("fmod") {
        return x.fmod(&y);
    }
    let rest = x.rem(&y)?;
    match rest.dtype().is_float() {
        true => rest.eq(0.0)?.where_cond(&y.sign()?.mul_scalar(0.0)?, &rest),
        false => Ok(rest),
    }
}

/// x · sigmoid(α · x)
fn swish(call: &Call) -> Result<Tensor> {
    let (x, alpha) = (call.x(0)?, call.float("alpha", 1.0));
    if alpha == 1.0 { x.silu() } else { x.mul(&x.mul_scalar(alpha)?.sigmoid()?) }
}

/// The result has at least as many dimensions as the numbers of the formula that it was in the file.
fn gelu(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let y = if call.text("approximate", "none") == "tanh" { x.gelu_tanh()? } else { x.gelu()? };
    let rank = call.int(LEAST_RANK, 0).clamp(0, MOST_DIMENSIONS as i64) as usize;
    match rank.checked_sub(y.rank()) {
        None | Some(0) => Ok(y),
        Some(more) => y.reshape([&vec![1; more], y.shape()].concat()),
    }
}

/// `y` where `x` is above a limit, else 0.
fn above(x: &Tensor, limit: f32, y: &Tensor) -> Result<Tensor> {
    x.gt(limit)?.where_cond(y, 0.0)
}
