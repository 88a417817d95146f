//! Ops with indices: gathering and scattering, slices, padding, sorting, creation of tensors.

use anygpu::DType;
use anygpu::Padding;
use anygpu::Tensor;

use super::call::skip;
use super::call::{Call, Outcome, dtype_of, upload};
use super::proto::{Type, Value};

pub fn map(call: &Call) -> Option<Outcome> {
    let out = match call.op() {
        "TopK" => return Some(topk(call)),
        "Concat" => call.all().and_then(|x| concat(call, &x)),
        "Slice" => slice(call),
        "Pad" => pad(call),
        "Tile" => tile(call),
        "Trilu" => trilu(call),
        "Gather" => gather(call),
        "GatherElements" => gather_elements(call),
        "Scatter" | "ScatterElements" => scatter(call),
        "OneHot" => one_hot(call),
        "Range" => range(call),
        "EyeLike" => eye_like(call),
        "ConstantOfShape" => constant(call),
        _ => return None,
    };
    Some(out.map(|tensor| vec![tensor]))
}

fn concat(call: &Call, x: &[Tensor]) -> Outcome<Tensor> {
    let dim = call.dim(call.int("axis", 0), x[0].rank());
    Ok(Tensor::cat(&x.iter().collect::<Vec<_>>(), dim)?)
}

/// Starts and ends count from the end where they are negative, and are cut to the dimension; a negative step walks
/// back, which is a walk forward over the flipped dimension.
fn slice(call: &Call) -> Outcome<Tensor> {
    let mut x = call.x(0)?;
    let (starts, ends) = (call.list("starts", 1).unwrap_or_default(), call.list("ends", 2).unwrap_or_default());
    let axes = call.list("axes", 3).unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = call.whole(4).unwrap_or_else(|| vec![1; starts.len()]);
    for (i, &axis) in axes.iter().enumerate() {
        let dim = call.dim(axis, x.rank());
        let size = x.shape()[dim] as i64;
        let from_start = |v: i64| if v < 0 { v + size } else { v };
        let (start, end, step) = (from_start(starts[i]), from_start(ends[i]), steps[i]);
        let (start, end) = match step > 0 {
            true => (start.clamp(0, size), end.clamp(0, size)),
            false => {
                x = x.flip([dim])?;
                (size - 1 - start.clamp(0, size - 1), size - 1 - end.clamp(-1, size - 1))
            }
        };
        x = x.slice(dim, start as usize, end.max(start) as usize, step.unsigned_abs() as usize)?;
    }
    Ok(x)
}

/// ONNX gives all begins, then all ends.
fn pad(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let pads = call.list("pads", 1).unwrap_or_default();
    if pads.iter().any(|&pad| pad < 0) {
        return skip("negative padding");
    }
    let axes = call.whole(3).unwrap_or_else(|| (0..x.rank() as i64).collect());
    let mut margins = vec![(0, 0); x.rank()];
    for (i, &axis) in axes.iter().enumerate() {
        margins[call.dim(axis, x.rank())] = (pads[i] as usize, pads[axes.len() + i] as usize);
    }
    let value = call.value(2).map_or(f64::from(call.float("value", 0.0)), |value| value.data[0]);
    let mode = match call.text("mode", "constant").as_str() {
        "constant" => Padding::Constant(value),
        "reflect" => Padding::Reflect,
        "edge" => Padding::Replicate,
        "wrap" => Padding::Circular,
        mode => return skip(format!("the padding mode {mode}")),
    };
    Ok(x.pad(&margins, mode)?)
}

fn tile(call: &Call) -> Outcome<Tensor> {
    let times: Vec<usize> = call.whole(1).unwrap_or_default().iter().map(|&times| times as usize).collect();
    Ok(call.x(0)?.repeat(times)?)
}

fn trilu(call: &Call) -> Outcome<Tensor> {
    let k = call.whole(1).map_or(0, |k| k[0]);
    let x = call.x(0)?;
    Ok(if call.int("upper", 1) == 1 { x.triu(k)? } else { x.tril(k)? })
}

/// Indices as ours, from the start: theirs may count from the end of a dimension of `size`.
fn indices(call: &Call, i: usize, size: usize) -> Outcome<Tensor> {
    let Some(value) = call.value(i) else { return skip("no indices") };
    let data = value.data.iter().map(|&v| if v < 0.0 { v + size as f64 } else { v }).collect();
    upload(&Value { shape: value.shape.clone(), kind: Type::Uint32, data }, call.device)
}

/// Whole slices, in the shape of the indices.
fn gather(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let dim = call.dim(call.int("axis", 0), x.rank());
    let index = indices(call, 1, x.shape()[dim])?;
    let shape = [&x.shape()[..dim], index.shape(), &x.shape()[dim + 1..]].concat();
    Ok(x.index_select(dim, &index.reshape(index.elem_count())?)?.reshape(shape)?)
}

fn gather_elements(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let dim = call.dim(call.int("axis", 0), x.rank());
    Ok(x.gather(dim, &indices(call, 1, x.shape()[dim])?)?)
}

fn scatter(call: &Call) -> Outcome<Tensor> {
    let (x, source) = (call.x(0)?, call.x(2)?);
    let dim = call.dim(call.int("axis", 0), x.rank());
    let index = indices(call, 1, x.shape()[dim])?;
    match call.text("reduction", "none").as_str() {
        "add" => Ok(x.scatter_add(dim, &index, &source)?),
        "none" => Ok(x.scatter(dim, &index, &source)?),
        kind => skip(format!("scattering by {kind}")),
    }
}

/// `[off, on]` as values; an index from the end counts back, one beyond the depth gives a row of `off`.
fn one_hot(call: &Call) -> Outcome<Tensor> {
    let (Some(index), Some(depth), Some(values)) = (call.value(0), call.value(1), call.x(2).ok()) else {
        return skip("no depth");
    };
    let depth = depth.data[0] as usize;
    let rank = index.shape.len() + 1;
    let dim = call.dim(call.int("axis", -1), rank);
    let hot = indices(call, 0, depth)?.one_hot(depth)?.movedim(rank - 1, dim)?.to_dtype(DType::U32)?;
    let flat = hot.reshape(hot.elem_count())?;
    Ok(values.index_select(0, &flat)?.reshape(hot.shape())?)
}

fn topk(call: &Call) -> Outcome {
    let x = call.x(0)?;
    let k = call.whole(1).map_or(1, |k| k[0]) as usize;
    let dim = call.dim(call.int("axis", -1), x.rank());
    let (values, positions) = x.topk(k, dim, call.int("largest", 1) == 1, call.int("sorted", 1) == 1)?;
    Ok(vec![values, positions])
}

/// Ours is f32: whole numbers are cast.
fn range(call: &Call) -> Outcome<Tensor> {
    let number = |i: usize| call.value(i).map_or(0.0, |value| value.data[0] as f32);
    let kind = call.value(0).map_or(Type::Float, |value| value.kind);
    Ok(Tensor::arange(number(0), number(1), number(2), call.device)?.to_dtype(dtype_of(kind))?)
}

fn eye_like(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let dtype = match call.has("dtype") {
        true => Type::of(call.int("dtype", 1) as i32).map_or(x.dtype(), dtype_of),
        false => x.dtype(),
    };
    let (k, ones) = (call.int("k", 0), Tensor::ones(x.shape(), x.device())?);
    Ok(ones.tril(k)?.triu(k)?.to_dtype(dtype)?)
}

fn constant(call: &Call) -> Outcome<Tensor> {
    let shape: Vec<usize> = call.whole(0).unwrap_or_default().iter().map(|&size| size as usize).collect();
    let value = call.tensor("value").unwrap_or(Value { shape: vec![1], kind: Type::Float, data: vec![0.0] });
    Ok(upload(&value, call.device)?.reshape(())?.broadcast_to(shape)?.contiguous()?)
}
