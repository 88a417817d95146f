//! Operators over numbers of 64 bits. No adapter computes with these. So `cpu` does it for every device, with
//! copies, and results of 64 bits stay on the host. Integers on a device are words that hold their values: an
//! operator that gives only integers it was given stays there.

use super::call::{Call, Operator};
use super::element_type::ElementType;
use super::fault;
use super::ops::FUSED_ATTENTION;
use super::value::Value;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::UnaryFn;

/// What an operator gives of integers.
#[derive(Clone, Copy, PartialEq)]
enum Integers {
    /// Some that may need more bits.
    Wider,
    /// None that its inputs do not have.
    Same,
}

/// The input that sets the type in which an operator computes, for operators that have a form for 64 bits.
fn known(call: &Call) -> Option<(usize, Integers)> {
    let wider = match call.op() {
        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Pow" | "Neg" | "Abs" | "Sum" | "Mean" | "PRelu" => true,
        "ReduceSum" | "ReduceMean" | "ReduceProd" | "ReduceL1" | "ReduceL2" | "ReduceSumSquare" => true,
        "ReduceLogSum" | "ReduceLogSumExp" | "CumSum" | "CumProd" | "MatMul" | "Gemm" | "Einsum" | "Range" => true,
        "BitShift" | "BitwiseNot" => true,
        "Scatter" | "ScatterElements" | "ScatterND" => call.text("reduction", "none") != "none",
        "Where" => return Some((1, Integers::Same)),
        "OneHot" => return Some((2, Integers::Same)),
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Transpose" | "Concat" | "Slice" | "Split" | "Expand" => {
            false
        }
        "Tile" | "Gather" | "GatherElements" | "GatherND" | "Pad" | "Compress" | "TopK" | "Trilu" => false,
        "DepthToSpace" | "SpaceToDepth" | "ReverseSequence" | "CenterCropPad" | "Dropout" => false,
        "Max" | "Min" | "Clip" | "ReduceMax" | "ReduceMin" | "ArgMax" | "ArgMin" => false,
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" => false,
        "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" => false,
        "Softplus" | "LeakyRelu" | "Elu" | "Gelu" | "HardSigmoid" | "Celu" => false,
        "Selu" | "ThresholdedRelu" | "Shrink" | "Swish" | "Softmax" | "LogSoftmax" | "Hardmax" => false,
        "LayerNormalization" | "BatchNormalization" | "LpNormalization" | FUSED_ATTENTION => false,
        op => {
            UnaryFn::of_operator(op)?;
            false
        }
    };
    Some((0, if wider { Integers::Wider } else { Integers::Same }))
}

/// Whether an operator is computed here.
pub(super) fn is_for(call: &Call) -> bool {
    let kinds = || call.inputs.iter().flatten().map(Value::kind);
    if kinds().all(|kind| kind.is_float() && kind != ElementType::Double) {
        return false;
    }
    let Some((data, integers)) = known(call) else { return false };
    match call.value(data).map_or(ElementType::Float, Value::kind) {
        ElementType::Double => true,
        ElementType::Int64 | ElementType::Uint64 => {
            let too_wide = |value: &Value| value.array().is_some_and(|array| !array.fits_words());
            let of_nothing = matches!(call.op(), "ReduceMax" | "ReduceMin") && is_empty(call);
            integers == Integers::Wider || of_nothing || call.inputs.iter().flatten().any(too_wide)
        }
        // Sums of narrower integers, which this crate's ops have for floats only.
        kind => {
            !kind.is_float()
                && matches!(
                    call.op(),
                    "MatMul" | "ReduceMean" | "ReduceL1" | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp"
                )
        }
    }
}

fn is_empty(call: &Call) -> bool {
    call.value(0).is_some_and(|value| value.shape().is_ok_and(|shape| shape.contains(&0)))
}

/// The outputs of an operator that is computed here.
pub(super) fn outputs(call: &Call, operator: Operator) -> Result<Vec<Value>> {
    let cpu = Device::cpu();
    let exact = Call { node: call.node, inputs: call.inputs, device: &cpu, training: call.training, exact: true };
    let values = operator.call(&exact).map_err(|error| match error {
        Error::DTypeMismatch { got, .. } => fault(format!("{got} is not supported by this operator")),
        _ => error,
    })?;
    let kind = known(call).and_then(|(data, _)| call.value(data)).map_or(ElementType::Float, Value::kind);
    // Fractions of integers, and what a method of this crate computes in 32 bits.
    let is_rounded = |value: &Value| value.kind().is_float() && kind.is_long() && value.kind() != kind;
    if values.iter().any(is_rounded) {
        return Err(fault(format!("{kind} is not supported by this operator")));
    }
    values.into_iter().map(|value| value.settled(call.device)).collect()
}
