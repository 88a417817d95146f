//! Loops of the host over 64-bit integers, for operators whose ops in this crate have only floats or words.

use anygpu_host::tasks::share;

use super::super::array::{Array, Elements};
use super::super::call::{Call, size};
use super::super::fault;
use super::super::value::Value;
use super::reduce::{Reduction, dims_of};
use crate::device::cpu::with_room;
use crate::dtype::DType;
use crate::error::Result;
use crate::shape::broadcast_shapes;
use crate::tensor::Tensor;

/// The product of matrices of integers, which wraps.
pub(super) fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (&[.., m, k], &[.., rows, n]) = (a.shape(), b.shape()) else { return Err(fault("a product of no matrices")) };
    if k != rows {
        return Err(fault(format!("a product of shapes {:?} and {:?}", a.shape(), b.shape())));
    }
    let before = |x: &Tensor| x.shape()[..x.rank() - 2].to_vec();
    let batch = broadcast_shapes("matmul", &before(a), &before(b))?;
    let whole = |x: &Tensor, sizes: [usize; 2]| {
        x.to_dtype(DType::I64)?.broadcast_to([&batch[..], &sizes].concat())?.to_vec::<i64>()
    };
    let (a, b) = (whole(a, [m, k])?, whole(b, [k, n])?);
    let shape = [&batch[..], &[m, n]].concat();
    let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
    let count = count.ok_or_else(|| fault(format!("a product of shape {shape:?}")))?;
    let mut out: Vec<i64> = with_room(count)?;
    out.resize(count, 0);
    if k > 0 && count > 0 {
        share(out.chunks_mut(n).enumerate(), 1, |(row, out)| {
            for (i, &factor) in a[row * k..][..k].iter().enumerate() {
                let b = &b[((row / m) * k + i) * n..][..n];
                out.iter_mut().zip(b).for_each(|(out, &b)| *out = out.wrapping_add(factor.wrapping_mul(b)));
            }
        });
    }
    Tensor::from_slice(&out, shape, None)
}

/// Reductions whose steps have fractions, of integers: each result is cut to an integer, as ONNX Runtime's is.
pub(super) fn reduced(call: &Call) -> Result<Option<Tensor>> {
    let op = call.op();
    if !call.exact || call.needed(0)?.kind().is_float() {
        return Ok(None);
    }
    let x = call.x(0)?.to_dtype(DType::I64)?;
    let Some(dims) = dims_of(call, x.rank())? else { return Ok(None) };
    let keep = call.int("keepdims", 1) != 0;
    let cut = |f: Reduction| f(&x.to_dtype(DType::F64)?, &dims, keep)?.to_dtype(DType::I64);
    Ok(Some(match op {
        "ReduceMean" => {
            let count = dims.iter().map(|&dim| x.shape()[dim] as i64).product::<i64>();
            if count == 0 {
                return Err(fault("a mean over no element"));
            }
            x.sum(&dims, keep)?.div_trunc(&Tensor::full((), count, None)?)?
        }
        "ReduceL1" => x.abs()?.sum(&dims, keep)?,
        "ReduceL2" => cut(|x, dims, keep| x.square()?.sum(dims, keep)?.sqrt())?,
        "ReduceLogSum" => cut(|x, dims, keep| x.sum(dims, keep)?.log())?,
        "ReduceLogSumExp" => cut(|x, dims, keep| x.logsumexp(dims, keep))?,
        _ => return Ok(None),
    }))
}

/// The `k` largest or smallest of each row along a dimension, in order, and their positions; of equal ones, the first comes first.
pub(super) fn topk(call: &Call, k: usize) -> Result<Vec<Value>> {
    let x = call.needed(0)?.read()?;
    let dim = call.axis(-1, x.shape.len())?;
    let (length, inner) = (x.shape[dim], x.shape[dim + 1..].iter().product::<usize>());
    if k > length {
        return Err(fault(format!("{k} of {length} elements")));
    }
    let largest = call.int("largest", 1) == 1;
    let outer: usize = x.shape[..dim].iter().product();
    let mut shape = x.shape.clone();
    shape[dim] = k;
    let count = shape.iter().product();
    let mut places = with_room(count)?;
    places.resize(count, 0usize);
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        let at = |j: usize| (o * length + j) * inner + i;
        let mut order: Vec<usize> = (0..length).collect();
        let compare = |a: usize, b: usize| match &x.elements {
            Elements::Ints(values) => values[at(a)].cmp(&values[at(b)]),
            Elements::Floats(values) => values[at(a)].total_cmp(&values[at(b)]),
        };
        order.sort_by(|&a, &b| if largest { compare(b, a) } else { compare(a, b) });
        (0..k).for_each(|j| places[(o * k + j) * inner + i] = at(order[j]));
    }
    let positions = places.iter().map(|&place| (place / inner.max(1) % length) as i64).collect();
    let positions = Array::ints(positions).reshaped(shape.clone());
    Ok(vec![x.picked(shape, places.into_iter()).into(), positions.into()])
}

/// What is scattered to the same place, combined: `places` are positions in the first input, one for each element of the third.
pub(super) fn scattered(call: &Call, places: &Tensor) -> Result<Tensor> {
    let places: Vec<usize> =
        places.to_dtype(DType::U32)?.to_vec::<u32>()?.into_iter().map(|place| place as usize).collect();
    let (mut x, source) = (call.needed(0)?.read()?, call.needed(2)?.read()?);
    if places.len() != source.count() || places.iter().any(|&place| place >= x.count()) {
        return Err(fault(format!("{} updates for {} places", source.count(), places.len())));
    }
    let reduction = call.text("reduction", "none");
    match (&mut x.elements, &source.elements) {
        (Elements::Ints(x), Elements::Ints(source)) => {
            let f: fn(i64, i64) -> i64 = match reduction.as_ref() {
                "add" => i64::wrapping_add,
                "mul" => i64::wrapping_mul,
                "max" => i64::max,
                "min" => i64::min,
                kind => return call.refuse(format!("scattering by {kind}")),
            };
            places.iter().zip(source).for_each(|(&at, &value)| x[at] = f(x[at], value));
        }
        (Elements::Floats(x), Elements::Floats(source)) => {
            let f: fn(f64, f64) -> f64 = match reduction.as_ref() {
                "add" => |a, b| a + b,
                "mul" => |a, b| a * b,
                "max" => f64::max,
                "min" => f64::min,
                kind => return call.refuse(format!("scattering by {kind}")),
            };
            places.iter().zip(source).for_each(|(&at, &value)| x[at] = f(x[at], value));
        }
        _ => return Err(fault("a tensor and updates of different types")),
    }
    x.exact()
}

/// The elements of a range, in the type of its start; `None` if these are more than `most`.
pub(in super::super) fn range([start, limit, step]: [&Array; 3], most: usize) -> Result<Option<Array>> {
    if [start, limit, step].iter().any(|bound| bound.count() == 0) {
        return Err(fault("a bound has no element"));
    }
    let kind = start.kind;
    let endless = |bounds: [&dyn std::fmt::Display; 3]| {
        fault(format!("a range from {} to {} by {} has no end", bounds[0], bounds[1], bounds[2]))
    };
    if kind.is_float() {
        let [start, limit, step] = [start, limit, step].map(|bound| bound.to_floats()[0]);
        let count = ((limit - start) / step).ceil().max(0.0);
        if !count.is_finite() {
            return Err(endless([&start, &limit, &step]));
        }
        let count = size(count as i64)?;
        if count > most {
            return Ok(None);
        }
        let mut values = with_room(count)?;
        values.extend((0..count).map(|i| start + i as f64 * step));
        return Ok(Some(Array { shape: vec![count], kind, elements: Elements::Floats(values) }.cast(kind)));
    }
    let [start, limit, step] = [start, limit, step].map(|bound| i128::from(bound.to_ints()[0]));
    if step == 0 {
        return Err(endless([&start, &limit, &step]));
    }
    let span = if step > 0 { limit - start } else { start - limit };
    let count = span.max(0).unsigned_abs().div_ceil(step.unsigned_abs());
    let count = size(i64::try_from(count).unwrap_or(i64::MAX))?;
    if count > most {
        return Ok(None);
    }
    let mut values: Vec<i64> = with_room(count)?;
    // Within the bounds, so of 64 bits.
    values.extend((0..count).map(|i| (start + i as i128 * step) as i64));
    Ok(Some(Array { shape: vec![count], kind, elements: Elements::Ints(values) }))
}
