//! Elementwise ops: arithmetic, comparisons, activations, casts.

use anygpu::{DType, Tensor};

use super::call::{Call, Outcome, dtype_of, is_ours, skip};
use super::proto::Type;

pub fn map(call: &Call) -> Option<Outcome> {
    if let Some(f) = unary(call.op()) {
        return Some(call.x(0).and_then(|x| Ok(vec![f(&x)?])));
    }
    if let Some(f) = binary(call.op()) {
        return Some(call.all().and_then(|x| Ok(vec![fold(&x, f)?])));
    }
    let out = match call.op() {
        "Identity" => call.x(0),
        "Dropout" => return Some(dropout(call)),
        "Cast" => cast(call, Type::of(call.int("to", 0) as i32)),
        "CastLike" => match call.value(1) {
            Some(like) => cast(call, Ok(like.kind)),
            None => skip("no second input"),
        },
        "Where" => call.all().and_then(|x| Ok(x[0].where_cond(&x[1], &x[2])?)),
        "Pow" => pow(call),
        "Mod" => modulo(call),
        "Mean" => call.all().and_then(|x| Ok(fold(&x, |x, y| x.add(y))?.mul_scalar(1.0 / x.len() as f32)?)),
        "Clip" => clip(call),
        "IsInf" => is_inf(call),
        _ => return activation(call),
    };
    Some(out.map(|tensor| vec![tensor]))
}

type Unary = fn(&Tensor) -> anygpu::Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> anygpu::Result<Tensor>;

fn unary(op: &str) -> Option<Unary> {
    Some(match op {
        "Abs" => Tensor::abs,
        "Neg" => Tensor::neg,
        "Sign" => Tensor::sign,
        "Exp" => Tensor::exp,
        "Log" => Tensor::log,
        "Sqrt" => Tensor::sqrt,
        "Reciprocal" => Tensor::recip,
        "Sin" => Tensor::sin,
        "Cos" => Tensor::cos,
        "Tan" => Tensor::tan,
        "Tanh" => Tensor::tanh,
        "Sigmoid" => Tensor::sigmoid,
        "Erf" => Tensor::erf,
        "Floor" => Tensor::floor,
        "Ceil" => Tensor::ceil,
        "Round" => Tensor::round,
        "Relu" => Tensor::relu,
        "HardSwish" => Tensor::hardswish,
        "Mish" => Tensor::mish,
        "Softplus" => |x| x.softplus(1.0, 20.0),
        "Softsign" => Tensor::softsign,
        "IsNaN" => Tensor::isnan,
        "Not" => Tensor::logical_not,
        _ => return None,
    })
}

/// What takes two tensors, or any number of them from left to right.
fn binary(op: &str) -> Option<Binary> {
    Some(match op {
        "Add" | "Sum" => |x, y| x.add(y),
        "Sub" => |x, y| x.sub(y),
        "Mul" => |x, y| x.mul(y),
        "Max" => |x, y| x.maximum(y),
        "Min" => |x, y| x.minimum(y),
        "Equal" => |x, y| x.eq(y),
        "Greater" => |x, y| x.gt(y),
        "GreaterOrEqual" => |x, y| x.ge(y),
        "Less" => |x, y| x.lt(y),
        "LessOrEqual" => |x, y| x.le(y),
        "And" => |x, y| x.logical_and(y),
        "Or" => |x, y| x.logical_or(y),
        "Xor" => |x, y| x.logical_xor(y),
        // Ours of integers is a float, as in PyTorch; theirs is a whole number.
        "Div" => |x, y| if x.dtype().is_float() { x.div(y) } else { x.div_trunc(y) },
        _ => return None,
    })
}

fn fold(tensors: &[Tensor], f: Binary) -> Outcome<Tensor> {
    let mut out = tensors[0].clone();
    for tensor in &tensors[1..] {
        out = f(&out, tensor)?;
    }
    Ok(out)
}

/// Between types of ours only: one that stands in for another would not show the cast that is meant.
fn cast(call: &Call, to: Result<Type, &'static str>) -> Outcome<Tensor> {
    let from = call.value(0).map(|value| value.kind);
    match (from, to) {
        (_, Err(name)) => skip(format!("the type {name}")),
        (Some(from), _) if !is_ours(from) => skip(format!("the type {from:?}")),
        (_, Ok(to)) if !is_ours(to) => skip(format!("the type {to:?}")),
        (_, Ok(to)) => Ok(call.x(0)?.to_dtype(dtype_of(to))?),
    }
}

/// The result has the type of the base, whatever the exponent's is.
fn pow(call: &Call) -> Outcome<Tensor> {
    let (x, y) = (call.x(0)?, call.x(1)?);
    Ok(x.pow(&y.to_dtype(x.dtype())?)?.to_dtype(x.dtype())?)
}

fn modulo(call: &Call) -> Outcome<Tensor> {
    match call.int("fmod", 0) {
        0 => Ok(call.x(0)?.rem(&call.x(1)?)?),
        _ => Ok(call.x(0)?.fmod(&call.x(1)?)?),
    }
}

/// Bounds are inputs of one element, either may be left out.
fn clip(call: &Call) -> Outcome<Tensor> {
    let bound = |i: usize| call.value(i).map(|value| value.data[0] as f32);
    match (call.x(0)?, bound(1), bound(2)) {
        (x, None, None) => Ok(x),
        (x, min, max) => Ok(x.clamp(min, max)?),
    }
}

fn is_inf(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    Ok(match (call.int("detect_negative", 1), call.int("detect_positive", 1)) {
        (1, 1) => x.isinf()?,
        (1, _) => x.eq(f32::NEG_INFINITY)?,
        _ => x.eq(f32::INFINITY)?,
    })
}

/// What is thrown away in training is the generator's choice; the rest is the input.
fn dropout(call: &Call) -> Outcome {
    let ratio = call.value(1).map_or(0.5, |value| value.data[0]);
    if call.value(2).is_some_and(|value| value.data[0] != 0.0) && ratio > 0.0 {
        return skip("another generator's random numbers");
    }
    let x = call.x(0)?;
    let mut outputs = vec![x.clone()];
    if call.node.output.len() > 1 {
        outputs.push(Tensor::ones(x.shape(), x.device())?.to_dtype(DType::Bool)?);
    }
    Ok(outputs)
}

/// Functions with parameters, and those that are a line of ours.
fn activation(call: &Call) -> Option<Outcome> {
    let alpha = |default: f32| call.float("alpha", default);
    type Function<'a> = Box<dyn Fn(&Tensor) -> anygpu::Result<Tensor> + 'a>;
    let f: Function<'_> = match call.op() {
        "LeakyRelu" => Box::new(|x| x.leaky_relu(alpha(0.01))),
        "Elu" => Box::new(|x| x.elu(alpha(1.0))),
        "Gelu" if call.text("approximate", "none") == "tanh" => Box::new(Tensor::gelu_tanh),
        "Gelu" => Box::new(Tensor::gelu),
        "HardSigmoid" => {
            Box::new(|x| x.mul_scalar(alpha(0.2))?.add_scalar(call.float("beta", 0.5))?.clamp(Some(0.0), Some(1.0)))
        }
        // max(x, 0) + min(0, α (eˣ⸍ᵅ − 1))
        "Celu" => Box::new(|x| {
            let negative = x.clamp(None, Some(0.0))?.mul_scalar(1.0 / alpha(1.0))?.expm1()?;
            x.relu()?.add(&negative.mul_scalar(alpha(1.0))?)
        }),
        "Selu" => Box::new(|x| x.elu(alpha(1.673_263_2))?.mul_scalar(call.float("gamma", 1.050_701))),
        "ThresholdedRelu" => Box::new(|x| above(x, alpha(1.0), x)),
        // x + bias below −λ, x − bias above λ, else 0
        "Shrink" => Box::new(|x| {
            let (bias, lambd) = (call.float("bias", 0.0), call.float("lambd", 0.5));
            let low = above(&x.neg()?, lambd, &x.add_scalar(bias)?)?;
            above(x, lambd, &x.add_scalar(-bias)?)?.add(&low)
        }),
        "PRelu" => {
            let slope = match call.x(1) {
                Ok(slope) => slope,
                Err(stop) => return Some(Err(stop)),
            };
            Box::new(move |x| x.relu()?.add(&x.clamp(None, Some(0.0))?.mul(&slope)?))
        }
        _ => return None,
    };
    Some(call.x(0).and_then(|x| Ok(vec![f(&x)?])))
}

/// `y` where `x` is above a limit, else 0.
fn above(x: &Tensor, limit: f32, y: &Tensor) -> anygpu::Result<Tensor> {
    x.gt(limit)?.where_cond(y, 0.0)
}
