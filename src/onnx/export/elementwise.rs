//! Functions of single elements, comparisons, casts.

use super::exact;
use super::graph::{Graph, Id, Source};
use super::translate::Call;
use crate::dtype::DType;
use crate::error::Result;
use crate::onnx::ElementType;
use crate::ops::traced::Traced;
use crate::ops::{BinaryFn, Composition, Onnx, PairComposition, UnaryFn, Value};

const FLOAT: ElementType = ElementType::Float;

pub(super) fn translate(call: &mut Call, what: &Traced) -> Result<Option<Id>> {
    Ok(match what {
        Traced::Cast(to) => {
            let (id, to) = (call.stored(0)?, ElementType::natural(*to));
            // Truths stay what they are until a number is needed.
            let later = call.graph().kind(id) == ElementType::Bool && to == ElementType::Uint32;
            let rounded = call.dtype(0).is_float() && !is_float(to) && to != ElementType::Bool;
            Some(match (later, rounded) {
                (true, _) => id,
                (_, true) => exact::integer(call.graph(), id, to),
                _ => call.graph().cast(id, to),
            })
        }
        Traced::Truth(_) => Some(call.input_as(0, ElementType::Bool)?),
        Traced::Unary(function, args) => unary(call, *function, *args)?,
        Traced::Binary(function) => {
            let logical = matches!(function, BinaryFn::And | BinaryFn::Or | BinaryFn::Xor);
            let [a, b] = if logical { truths(call)? } else { operands(call)? };
            binary(call, *function, a, b)?
        }
        Traced::WithNumber { function, number, left } => {
            let kind = arithmetic(call.dtype(0));
            let x = call.input_as(0, kind)?;
            let number = call.graph().number(*number, kind);
            let [a, b] = if *left { [number, x] } else { [x, number] };
            binary(call, *function, a, b)?
        }
        Traced::Where => {
            let [a, b] = operands(call)?;
            let condition = call.input_as(2, ElementType::Bool)?;
            let id = chosen(call.graph(), condition, a, b);
            Some(wrapped(call, id))
        }
        Traced::MaskedFill(number) => {
            let kind = arithmetic(call.dtype(0));
            let (x, mask) = (call.input_as(0, kind)?, call.input_as(1, ElementType::Bool)?);
            let number = call.graph().number(*number, kind);
            let id = chosen(call.graph(), mask, number, x);
            Some(wrapped(call, id))
        }
        _ => None,
    })
}

/// a where the condition is true, else b.
pub(super) fn chosen(graph: &mut Graph, condition: Id, a: Id, b: Id) -> Id {
    let kind = graph.kind(a);
    let [id] = graph.nodes("Where", &[condition.into(), a.into(), b.into()], &[], [kind]);
    id
}

fn is_float(kind: ElementType) -> bool {
    matches!(kind, ElementType::Float | ElementType::Float16 | ElementType::Bfloat16)
}

/// The type in which numbers of a type are computed: few runtimes compute with unsigned integers.
pub(super) fn arithmetic(dtype: DType) -> ElementType {
    match dtype.wide() {
        DType::U32 => ElementType::Int64,
        wide => ElementType::natural(wide),
    }
}

fn operands(call: &mut Call) -> Result<[Id; 2]> {
    let kind = arithmetic(call.dtype(0));
    Ok([call.input_as(0, kind)?, call.input_as(1, kind)?])
}

fn truths(call: &mut Call) -> Result<[Id; 2]> {
    Ok([call.input_as(0, ElementType::Bool)?, call.input_as(1, ElementType::Bool)?])
}

/// The result for unsigned integers wraps around, as it does in their own type.
pub(super) fn wrapped(call: &mut Call, id: Id) -> Id {
    let unsigned = call.dtype(0).wide() == DType::U32;
    if unsigned { call.graph().cast(id, ElementType::Uint32) } else { id }
}

fn binary(call: &mut Call, function: BinaryFn, a: Id, b: Id) -> Result<Option<Id>> {
    let op = match function.onnx() {
        Onnx::Operator(op) => op,
        Onnx::Composed(PairComposition::NotEqual) => {
            let equal = call.graph().truth("Equal", &[a, b]);
            return Ok(Some(call.graph().truth("Not", &[equal])));
        }
        Onnx::Composed(division) => return divided(call, division, a, b).map(Some),
        Onnx::Nothing => return Ok(None),
    };
    if function.is_truth() {
        return Ok(Some(call.graph().truth(op, &[a, b])));
    }
    // A bias has no part in the shape of the sum.
    let bias = function == BinaryFn::Add && call.shape(0) == call.out_shape();
    let fused = if bias { with_bias(call.graph(), a, b) } else { None };
    let id = fused.unwrap_or_else(|| call.graph().simple(op, &[a, b]));
    Ok(Some(wrapped(call, id)))
}

/// Quotients that are whole, and their remainders.
fn divided(call: &mut Call, division: PairComposition, a: Id, b: Id) -> Result<Id> {
    let dtype = call.dtype(0).wide();
    let g = call.graph();
    if dtype == DType::F32 {
        return Ok(match division {
            PairComposition::Fmod => exact::truncated_remainder(g, a, b),
            PairComposition::Rem => exact::remainder(g, a, b),
            PairComposition::DivFloor => exact::floor_quotient(g, a, b),
            _ => {
                let quotient = g.simple("Div", &[a, b]);
                truncated(g, quotient)
            }
        });
    }
    // In the longer type, the least integer divided by −1 has a result, which wraps around.
    let [a, b] = [a, b].map(|x| g.cast(x, ElementType::Int64));
    let b = exact::divisor(g, b);
    let id = match division {
        PairComposition::Fmod => exact::truncated_remainder(g, a, b),
        PairComposition::Rem => g.simple("Mod", &[a, b]),
        PairComposition::DivFloor => {
            let rest = g.simple("Mod", &[a, b]);
            let whole = g.simple("Sub", &[a, rest]);
            g.simple("Div", &[whole, b])
        }
        _ => g.simple("Div", &[a, b]),
    };
    Ok(g.cast(id, ElementType::natural(dtype)))
}

/// A product with a transposed matrix and what is added to it are one operator, if the second is a row.
fn with_bias(g: &mut Graph, a: Id, b: Id) -> Option<Id> {
    let product = g.made_by(a, "Gemm").filter(|node| node.inputs.len() == 2)?;
    let row = match &g.values[b].source {
        Source::Named(_, x) | Source::Tensor(x) => x.rank() == 1,
        _ => false,
    };
    if !row {
        return None;
    }
    let (mut inputs, attributes) = (product.inputs.clone(), product.attributes.clone());
    inputs.push(b.into());
    Some(g.node("Gemm", &inputs, &attributes))
}

fn truncated(g: &mut Graph, x: Id) -> Id {
    let size = g.simple("Abs", &[x]);
    let [whole, sign] = [g.simple("Floor", &[size]), g.simple("Sign", &[x])];
    g.simple("Mul", &[whole, sign])
}

fn unary(call: &mut Call, function: UnaryFn, args: [f64; 2]) -> Result<Option<Id>> {
    let x = match (function, call.dtype(0).wide()) {
        (UnaryFn::Not, _) => call.input_as(0, ElementType::Bool)?,
        (_, DType::F32) => call.input(0)?,
        (_, wide) => call.input_as(0, arithmetic(wide))?,
    };
    let kind = if call.dtype(0).wide() == DType::F32 { FLOAT } else { call.graph().kind(x) };
    let g = call.graph();
    let id = match function.onnx() {
        Onnx::Operator(op) if function.is_truth() => return Ok(Some(g.truth(op, &[x]))),
        Onnx::Operator(op) => g.simple(op, &[x]),
        Onnx::Composed(form) => composed(g, form, x, kind, args),
        Onnx::Nothing => return Ok(None),
    };
    Ok(Some(wrapped(call, id)))
}

/// The functions that are no plain operator. `kind` is the type of numbers that meet x.
fn composed(g: &mut Graph, form: Composition, x: Id, kind: ElementType, [a, b]: [f64; 2]) -> Id {
    let alpha = |value: f64| [("alpha", (value as f32).into())];
    match form {
        Composition::Nodes(nodes) => {
            let mut made: Vec<Id> = Vec::new();
            for (op, values) in nodes {
                let read = |value: &Value| match *value {
                    Value::X => x,
                    Value::Node(i) => made[i],
                    Value::Number(number) => g.number(number, kind),
                };
                let inputs: Vec<Id> = values.iter().map(read).collect();
                made.push(g.simple(op, &inputs));
            }
            made.last().copied().unwrap_or(x)
        }
        Composition::Expm1 => exact::expm1(g, x),
        Composition::Log1p => exact::log1p(g, x),
        Composition::Trunc => truncated(g, x),
        Composition::Clip => {
            // Both are given, also if they are infinite: others are the largest finite numbers in ONNX Runtime.
            let [low, high] = [a, b].map(|bound| g.number(bound, kind));
            g.simple("Clip", &[x, low, high])
        }
        Composition::LeakyRelu => g.node("LeakyRelu", &[x.into()], &alpha(a)),
        Composition::Elu => g.node("Elu", &[x.into()], &alpha(a)),
        Composition::HardSigmoid => {
            let attributes = [("alpha", (1.0 / 6.0f32).into()), ("beta", 0.5f32.into())];
            g.node("HardSigmoid", &[x.into()], &attributes)
        }
        // Above the threshold, log(1 + exp(x β)) / β is x.
        Composition::Softplus => {
            let scaled = if a == 1.0 { x } else { with_number(g, "Mul", x, a) };
            let soft = g.simple("Softplus", &[scaled]);
            let soft = if a == 1.0 { soft } else { with_number(g, "Div", soft, a) };
            let threshold = g.number(b, FLOAT);
            let above = g.truth("Greater", &[scaled, threshold]);
            chosen(g, above, x, soft)
        }
        Composition::IsFinite => {
            let either = [g.truth("IsNaN", &[x]), g.truth("IsInf", &[x])];
            let either = g.truth("Or", &either);
            g.truth("Not", &[either])
        }
    }
}

pub(super) fn with_number(g: &mut Graph, op: &'static str, x: Id, number: f64) -> Id {
    let kind = g.kind(x);
    let number = g.number(number, kind);
    g.simple(op, &[x, number])
}
