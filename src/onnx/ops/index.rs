//! Operators with indices: gathering and scattering, slices, sorting; creation of tensors.

use super::super::array::Array;
use super::super::call::{Call, Operator, size, sizes};
use super::super::element_type::ElementType;
use super::super::fault;
use super::super::host;
use super::super::value::Value;
use super::long;
use crate::ScatterReduce;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "TopK" => Operator::Values(topk),
        "Concat" => Operator::One(concat),
        "Slice" => Operator::One(slice),
        "Tile" => Operator::One(|call| call.x(0)?.repeat(sizes(&call.whole(1)?.unwrap_or_default())?)),
        "Trilu" => Operator::One(trilu),
        "Gather" => Operator::One(gather),
        "GatherElements" => Operator::One(gather_elements),
        "GatherND" => Operator::One(gather_nd),
        "Scatter" | "ScatterElements" => Operator::One(scatter),
        "ScatterND" => Operator::One(scatter_nd),
        "OneHot" => Operator::Values(one_hot),
        "Range" => Operator::Values(range),
        "EyeLike" => Operator::Values(eye_like),
        "ConstantOfShape" => Operator::Values(constant),
        "NonZero" => Operator::Values(non_zero),
        "Compress" => Operator::One(compress),
        _ => return None,
    })
}

fn concat(call: &Call) -> Result<Tensor> {
    let x = call.all()?;
    let x: Vec<&Tensor> = x.iter().collect();
    Tensor::cat(&x, call.axis(i64::from(call.opset() < 4), x[0].rank())?)
}

/// A range of a dimension: `count` elements from `start`, every `step`th; a negative step goes back.
pub(in super::super) struct Range {
    pub dim: usize,
    pub start: usize,
    pub count: usize,
    pub step: i64,
}

/// The ranges of `Slice`. Starts and ends count from the end where they are negative, and are cut to the dimension.
pub(in super::super) fn slice_range(call: &Call, shape: &[usize]) -> Result<Vec<Range>> {
    let starts = call.list("starts", 1)?.unwrap_or_default();
    let ends = call.list("ends", 2)?.unwrap_or_default();
    let axes = call.list("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = call.whole(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()].iter().any(|&len| len != starts.len()) {
        return Err(fault("starts, ends, axes and steps differ in length"));
    }
    let range = |i: usize| {
        let dim = call.dim(axes[i], shape.len())?;
        let size = i64::try_from(shape[dim]).unwrap_or(i64::MAX);
        let from_start = |v: i64| if v < 0 { v.saturating_add(size) } else { v };
        let (start, end, step) = (from_start(starts[i]), from_start(ends[i]), steps[i]);
        let (start, count) = match step {
            0 => return Err(fault("a step of 0")),
            1.. => {
                let (start, end) = (start.clamp(0, size), end.clamp(0, size));
                (start, (end - start).max(0).unsigned_abs().div_ceil(step.unsigned_abs()))
            }
            _ => {
                let (start, end) = (start.clamp(-1, size - 1), end.clamp(-1, size - 1));
                (start.max(0), (start - end).max(0).unsigned_abs().div_ceil(step.unsigned_abs()))
            }
        };
        Ok(Range { dim, start: start as usize, count: count as usize, step })
    };
    let ranges: Vec<Range> = (0..starts.len()).map(range).collect::<Result<_>>()?;
    match ranges.iter().enumerate().find(|(i, range)| ranges[..*i].iter().any(|other| other.dim == range.dim)) {
        Some((_, range)) => Err(fault(format!("dimension {} is sliced twice", range.dim))),
        None => Ok(ranges),
    }
}

fn slice(call: &Call) -> Result<Tensor> {
    let mut x = call.x(0)?;
    let shape = x.shape().to_vec();
    for Range { dim, start, count, step } in slice_range(call, &shape)? {
        let size = shape[dim];
        if count == 0 {
            x = x.narrow(dim, 0, 0)?;
        } else if step > 0 {
            let step = usize::try_from(step).unwrap_or(usize::MAX);
            x = x.slice(dim, start, (start + (count - 1) * step + 1).min(size), step)?;
        } else {
            // A walk back is a walk forward over the flipped dimension.
            let step = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
            let from = size - 1 - start;
            x = x.flip([dim])?.slice(dim, from, (from + (count - 1) * step + 1).min(size), step)?;
        }
    }
    Ok(x)
}

fn trilu(call: &Call) -> Result<Tensor> {
    let k = call.whole(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
    let x = call.x(0)?;
    if call.int("upper", 1) == 1 { x.triu(k) } else { x.tril(k) }
}

/// Indices as this crate's, from the start: ONNX's may count from the end of a dimension of `size`.
fn indices(value: &Value, size: usize, device: &Device) -> Result<Tensor> {
    let Some(array) = value.array() else {
        let index = value.tensor(device)?;
        return match index.dtype() {
            DType::I32 => index.lt(0)?.where_cond(&index.add(i32::try_from(size).unwrap_or(i32::MAX))?, &index),
            _ => Ok(index),
        };
    };
    let from_start = |&i: &i64| {
        let place = if i < 0 { i.saturating_add(size as i64) } else { i };
        usize::try_from(place)
            .ok()
            .filter(|&i| i < size)
            .map(|i| i as i64)
            .ok_or_else(|| fault(format!("index {i} of a dimension of {size}")))
    };
    let ints = array.to_ints();
    if ints.iter().all(|&i| i >= 0 && (i as u64) < size as u64) {
        // The copy on the device is kept with the value.
        return value.tensor(device);
    }
    let values = ints.iter().map(from_start).collect::<Result<Vec<_>>>()?;
    Array { shape: array.shape.clone(), ..Array::ints(values) }.upload(device)
}

/// Whole slices, in the shape of the indices.
fn gather(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let dim = call.axis(0, x.rank())?;
    let index = call.needed(1)?;
    if let Some(only) = index.array().filter(|array| array.shape.is_empty()) {
        // One slice is a view.
        let (at, size) = (only.to_ints()[0], x.shape()[dim]);
        let place = usize::try_from(if at < 0 { at.saturating_add(size as i64) } else { at });
        return x.select(dim, place.map_err(|_| fault(format!("index {at} of a dimension of {size}")))?);
    }
    let index = indices(index, x.shape()[dim], call.device)?;
    let shape = [&x.shape()[..dim], index.shape(), &x.shape()[dim + 1..]].concat();
    x.index_select(dim, &index.reshape(index.elem_count())?)?.reshape(shape)
}

fn gather_elements(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let dim = call.axis(0, x.rank())?;
    x.gather(dim, &indices(call.needed(1)?, x.shape()[dim], call.device)?)
}

/// The indices of each of some leading dimensions, from tuples along the last dimension of an index tensor.
fn tuple_parts(tuples: &Value, leading: &[usize], device: &Device) -> Result<Vec<Tensor>> {
    let all = tuples.tensor(device)?.to_dtype(DType::I32)?;
    let last = all.rank() - 1;
    let part = |(i, &size): (usize, &usize)| {
        let part = Value::Device(all.select(last, i)?, ElementType::Int64);
        indices(&part, size, device)
    };
    leading.iter().enumerate().map(part).collect()
}

/// How many leading dimensions index tuples name, checked.
fn tuple_length(index: &[usize], rank: usize, batch: usize) -> Result<usize> {
    match index.last() {
        Some(&length) if length > 0 && batch + length <= rank && batch < index.len() => Ok(length),
        _ => Err(fault(format!("indices of shape {index:?} do not fit {rank} dimensions"))),
    }
}

/// Slices by tuples of indices, after `batch_dims` common dimensions.
fn gather_nd(call: &Call) -> Result<Tensor> {
    let (x, tuples) = (call.x(0)?, call.needed(1)?);
    let batch = size(call.int("batch_dims", 0))?;
    let index = tuples.shape()?;
    let length = tuple_length(index, x.rank(), batch)?;
    let places = &index[..index.len() - 1];
    let mut parts = Vec::with_capacity(batch + length);
    for dim in 0..batch {
        // Each place is in the part of the common dimensions that it has itself.
        let counted = Tensor::iota(index[dim], call.device)?.to_dtype(DType::I32)?;
        let shape: Vec<usize> = (0..places.len()).map(|d| if d == dim { index[d] } else { 1 }).collect();
        parts.push(counted.reshape(shape)?.broadcast_to(places)?);
    }
    parts.extend(tuple_parts(tuples, &x.shape()[batch..batch + length], call.device)?);
    x.index(&parts.iter().collect::<Vec<_>>())
}

/// How `reduction` combines what comes to the same place; `None` if the last one stays.
fn reduction(call: &Call) -> Result<Option<ScatterReduce>> {
    Ok(Some(match call.text("reduction", "none").as_ref() {
        "none" => return Ok(None),
        "add" => ScatterReduce::Sum,
        "mul" => ScatterReduce::Prod,
        "max" => ScatterReduce::Amax,
        "min" => ScatterReduce::Amin,
        kind => return call.refuse(format!("scattering by {kind}")),
    }))
}

fn scatter(call: &Call) -> Result<Tensor> {
    let (x, source) = (call.x(0)?, call.x(2)?);
    let dim = call.axis(0, x.rank())?;
    let index = indices(call.needed(1)?, x.shape()[dim], call.device)?;
    match reduction(call)? {
        Some(_) if call.exact => {
            let numbers = Tensor::iota(x.elem_count(), call.device)?.reshape(x.shape())?;
            long::scattered(call, &numbers.gather(dim, &index)?)
        }
        Some(reduce) => x.scatter_reduce(dim, &index, &source, reduce, true),
        None => x.scatter(dim, &index, &source),
    }
}

fn scatter_nd(call: &Call) -> Result<Tensor> {
    let (x, tuples, source) = (call.x(0)?, call.needed(1)?, call.x(2)?);
    let length = tuple_length(tuples.shape()?, x.rank(), 0)?;
    let (leading, rest) = x.shape().split_at(length);
    let parts = tuple_parts(tuples, leading, call.device)?;
    let parts: Vec<&Tensor> = parts.iter().collect();
    let Some(reduce) = reduction(call)? else { return x.index_put(&parts, &source, false) };
    // The number of each row, taken by the same indices as the rows.
    let (rows, width) = (leading.iter().product::<usize>(), rest.iter().product::<usize>());
    let numbers = Tensor::iota(rows, call.device)?.reshape(leading)?.index(&parts)?.reshape(-1)?;
    if call.exact {
        let within = Tensor::iota(width, call.device)?;
        let all = numbers.to_dtype(DType::U32)?.mul(width as u32)?.unsqueeze(1)?.add(&within)?;
        return long::scattered(call, &all);
    }
    let (table, source) = (x.reshape([rows, width])?, source.reshape([numbers.elem_count(), width])?);
    table.index_reduce(0, &numbers, &source, reduce, true)?.reshape(x.shape())
}

/// `[off, on]` as values; an index from the end counts back, one beyond the depth gives a row of `off`.
fn one_hot(call: &Call) -> Result<Vec<Value>> {
    let depth = call.whole(1)?.and_then(|depth| depth.first().copied()).ok_or_else(|| fault("the depth is missing"))?;
    let (depth, values) = (size(depth)?, call.x(2)?);
    let index = call.needed(0)?.tensor(call.device)?.to_dtype(DType::I32)?;
    let rank = index.rank() + 1;
    let dim = call.axis(-1, rank)?;
    let whole = i32::try_from(depth).unwrap_or(i32::MAX);
    let index = index.lt(0)?.where_cond(&index.add(whole)?, &index)?.unsqueeze(dim)?;
    let place: Vec<usize> = (0..rank).map(|d| if d == dim { depth } else { 1 }).collect();
    let classes = Tensor::iota(depth, call.device)?.to_dtype(DType::I32)?.reshape(place)?;
    let (off, on) = (values.select(0, 0)?, values.select(0, 1)?);
    let hot = index.eq(&classes)?;
    Ok(vec![Value::of(hot.where_cond(&on, &off)?, call.needed(2)?.kind())])
}

fn topk(call: &Call) -> Result<Vec<Value>> {
    let k = call.whole(1)?.and_then(|k| k.first().copied()).unwrap_or(call.int("k", 1));
    if call.exact {
        return long::topk(call, size(k)?);
    }
    let x = call.x(0)?;
    let dim = call.axis(-1, x.rank())?;
    let (values, positions) = x.topk(size(k)?, dim, call.int("largest", 1) == 1, call.int("sorted", 1) == 1)?;
    let positions = Value::Device(positions.to_dtype(DType::I32)?, ElementType::Int64);
    Ok(vec![Value::of(values, call.needed(0)?.kind()), positions])
}

/// Long ranges; short ones are made on the host.
fn range(call: &Call) -> Result<Vec<Value>> {
    if call.exact {
        let [start, limit, step] = [call.needed(0)?.read()?, call.needed(1)?.read()?, call.needed(2)?.read()?];
        return Ok(long::range([&start, &limit, &step], usize::MAX)?.into_iter().map(Value::from).collect());
    }
    let number = |i: usize| call.number(i)?.ok_or_else(|| fault(format!("input {i} is missing")));
    let (start, limit, step) = (number(0)?, number(1)?, number(2)?);
    let kind = call.needed(0)?.kind();
    let count = ((limit - start) / step).ceil().max(0.0);
    if !count.is_finite() {
        return Err(fault(format!("a range from {start} to {limit} by {step} has no end")));
    }
    let steps = Tensor::iota(size(count as i64)?, call.device)?;
    let tensor = match kind.is_float() {
        true => steps.to_dtype(DType::F32)?.mul_scalar(step as f32)?.add_scalar(start as f32)?.to_dtype(kind.word())?,
        false => steps.to_dtype(DType::I32)?.mul(step as i32)?.add(start as i32)?.to_dtype(kind.word())?,
    };
    Ok(vec![Value::Device(tensor, kind)])
}

fn eye_like(call: &Call) -> Result<Vec<Value>> {
    let shape = call.needed(0)?.shape()?.to_vec();
    let kind = call.type_attribute("dtype")?.unwrap_or(call.needed(0)?.kind());
    let k = call.int("k", 0);
    let ones = Tensor::ones(shape, call.device)?.tril(k)?.triu(k)?;
    Ok(vec![Value::made(&ones, kind)?])
}

fn constant(call: &Call) -> Result<Vec<Value>> {
    let shape = sizes(&call.whole(0)?.unwrap_or_default())?;
    let zero = || Array { kind: ElementType::Float, ..Array::ints(vec![0]) }.cast(ElementType::Float);
    let value = call.constant("value")?.unwrap_or_else(zero);
    if value.count() != 1 {
        return Err(fault("the value has more than one element"));
    }
    let kind = value.kind;
    if !value.fits_words() {
        let all = value.reshaped(Vec::new()).exact()?.broadcast_to(shape)?;
        return Ok(vec![Value::Device(all, kind).settled(call.device)?]);
    }
    let number = value.to_floats()[0];
    let one = match kind.is_float() {
        true => Tensor::scalar(number as f32, call.device)?,
        // The copy of one element says whether it fits.
        false => match value.reshaped(Vec::new()).upload(&Device::cpu())? {
            one if one.dtype() == DType::I32 => one.to(call.device)?,
            one => one.to_dtype(DType::U32)?.to(call.device)?,
        },
    };
    // One element in memory: weights of tests are made so, larger than an adapter may bind.
    Ok(vec![Value::Device(one.to_dtype(kind.word())?.broadcast_to(shape)?, kind)])
}

/// The indices of the elements that are not zero. How many there are is known when the tensor is read back.
fn non_zero(call: &Call) -> Result<Vec<Value>> {
    Ok(vec![host::non_zero(&call.needed(0)?.read()?).into()])
}

/// The slices whose condition is true; of the flattened tensor without an axis.
fn compress(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let (x, dim) = match call.has("axis") {
        true => (x.clone(), call.axis(0, x.rank())?),
        false => (x.reshape(-1)?, 0),
    };
    let condition = call.whole(1)?.unwrap_or_default();
    let kept: Vec<i64> =
        (0..condition.len().min(x.shape()[dim])).filter(|&i| condition[i] != 0).map(|i| i as i64).collect();
    x.index_select(dim, &Array::ints(kept).upload(call.device)?)
}
