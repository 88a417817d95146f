//! Operators on the host: shape arithmetic, in 64-bit integers and floats. An operator whose inputs are all on the host and small
//! is computed here, if it is one of those that graphs compute shapes with; others are computed on the device.

mod arithmetic;
mod movement;

pub(super) use movement::non_zero;

use super::array::{Array, Elements};
use super::call::Call;
use super::value::Value;
use crate::error::Result;
use crate::shape::broadcast_shapes;

/// The most elements of an input, and of the result of an elementwise operator.
const MOST: usize = 1 << 20;
/// The most elements of a result that is larger than its inputs: larger ones are for the device.
const GROWN: usize = 4096;

/// What an operator gives on the host; `None` if the device computes it.
pub(super) fn evaluate(call: &Call) -> Option<Result<Vec<Value>>> {
    if call.inputs.is_empty() {
        return None;
    }
    let mut inputs = Vec::with_capacity(call.inputs.len());
    for input in call.inputs {
        match input {
            Some(value) => inputs.push(Some(value.array().filter(|array| array.count() <= MOST)?)),
            None => inputs.push(None),
        }
    }
    let result = match arithmetic::evaluate(call, &inputs) {
        Some(result) => result.map(|array| vec![array]),
        None => movement::evaluate(call, &inputs)?,
    };
    Some(result.and_then(|arrays| arrays.into_iter().map(|array| array.checked().map(Value::from)).collect()))
}

/// The shape that two shapes broadcast to.
fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    broadcast_shapes("onnx", a, b)
}

/// The number of elements of a shape; `None` beyond all limits.
fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))
}

/// For each element of a shape, its position in an array that is broadcast to it.
fn positions<'a>(shape: &'a [usize], from: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    let offset = shape.len() - from.len();
    let mut strides = vec![0; shape.len()];
    let mut stride = 1;
    for dim in (0..from.len()).rev() {
        strides[offset + dim] = if from[dim] == 1 { 0 } else { stride };
        stride *= from[dim];
    }
    strided(shape, strides, 0)
}

/// Positions by a stride for each dimension, which may be negative, from a first one.
fn strided<S: TryInto<isize>>(shape: &[usize], strides: Vec<S>, first: usize) -> impl Iterator<Item = usize> + '_ {
    let strides: Vec<isize> = strides.into_iter().map(|stride| stride.try_into().unwrap_or(0)).collect();
    let total = count(shape).unwrap_or(0);
    let mut index = vec![0usize; shape.len()];
    let mut at = first as isize;
    (0..total).map(move |_| {
        let here = at;
        for dim in (0..shape.len()).rev() {
            index[dim] += 1;
            at += strides[dim];
            if index[dim] < shape[dim] {
                break;
            }
            at -= strides[dim] * shape[dim] as isize;
            index[dim] = 0;
        }
        here as usize
    })
}

/// Integers as an array of a type.
fn of_ints(shape: Vec<usize>, kind: super::ElementType, values: Vec<i64>) -> Array {
    Array { shape, kind, elements: Elements::Ints(values) }.cast(kind)
}
