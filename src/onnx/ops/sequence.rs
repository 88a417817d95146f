//! Sequences of tensors within a graph.

use super::super::array::Array;
use super::super::call::{Call, Operator, sizes};
use super::super::element_type::ElementType;
use super::super::fault;
use super::super::value::Value;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(Operator::Values(match op {
        "SequenceEmpty" => |_| Ok(vec![Value::Sequence(Vec::new())]),
        "SequenceConstruct" => |call| Ok(vec![Value::Sequence(call.inputs.iter().flatten().cloned().collect())]),
        "SequenceAt" => |call| {
            let list = list(call)?;
            let at = position(call, 1, list.len())?;
            list.get(at)
                .cloned()
                .map(|value| vec![value])
                .ok_or_else(|| fault(format!("{at} of {} tensors", list.len())))
        },
        "SequenceLength" => |call| Ok(vec![Array::scalar(ElementType::Int64, list(call)?.len() as i64).into()]),
        "SequenceInsert" => |call| {
            let mut list = list(call)?.to_vec();
            let at = if call.value(2).is_some() { position(call, 2, list.len())? } else { list.len() };
            list.insert(at.min(list.len()), call.needed(1)?.clone());
            Ok(vec![Value::Sequence(list)])
        },
        "SequenceErase" => |call| {
            let mut list = list(call)?.to_vec();
            let at =
                if call.value(1).is_some() { position(call, 1, list.len())? } else { list.len().saturating_sub(1) };
            if at >= list.len() {
                return Err(fault(format!("{at} of {} tensors", list.len())));
            }
            list.remove(at);
            Ok(vec![Value::Sequence(list)])
        },
        "ConcatFromSequence" => concat,
        "SplitToSequence" => split,
        _ => return None,
    }))
}

fn list<'a>(call: &'a Call) -> Result<&'a [Value]> {
    match call.needed(0)? {
        Value::Sequence(values) => Ok(values),
        _ => Err(fault("a sequence is expected, not a tensor")),
    }
}

/// A position from the start, for one that may count from the end.
fn position(call: &Call, i: usize, count: usize) -> Result<usize> {
    let at = call.whole(i)?.and_then(|at| at.first().copied()).unwrap_or(0);
    let from_start = if at < 0 { at.saturating_add(count as i64) } else { at };
    usize::try_from(from_start).map_err(|_| fault(format!("{at} of {count} tensors")))
}

fn concat(call: &Call) -> Result<Vec<Value>> {
    let list = list(call)?;
    let kind = list.first().ok_or_else(|| fault("a sequence of no tensor"))?.kind();
    let axis = call.int("axis", 0);
    let joined = |tensors: Vec<Tensor>| {
        if call.flag("new_axis") { Tensor::stack(&tensors, axis) } else { Tensor::cat(&tensors, axis) }
    };
    Ok(vec![Value::joined(list, kind, call.device, joined)?])
}

/// Parts of given sizes, of one size, or of size 1, which lose the dimension if `keepdims` is 0.
fn split(call: &Call) -> Result<Vec<Value>> {
    let (x, kind) = (call.needed(0)?.whole(call.device)?, call.needed(0)?.kind());
    let dim = call.axis(0, x.rank())?;
    let length = x.shape()[dim];
    let parts = match call.value(1).map(Value::read).transpose()? {
        Some(array) if array.shape.is_empty() => {
            let part = sizes(&array.to_ints())?.first().copied().unwrap_or(0);
            if part == 0 {
                return Err(fault("parts of no element"));
            }
            (0..length).step_by(part).map(|start| part.min(length - start)).collect()
        }
        Some(array) => sizes(&array.to_ints())?,
        None => vec![1; length],
    };
    let squeeze = call.value(1).is_none() && call.int("keepdims", 1) == 0;
    let mut start = 0;
    let mut values = Vec::with_capacity(parts.len());
    for part in parts {
        let piece = x.narrow(dim, start, part)?;
        start += part;
        let piece = if squeeze { piece.squeeze(dim)? } else { piece };
        values.push(Value::of(piece, kind).settled_if_long(call.device)?);
    }
    Ok(vec![Value::Sequence(values)])
}
