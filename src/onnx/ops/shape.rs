//! Shapes, views, and operators that move elements unchanged.

use super::super::array::Array;
use super::super::call::{Call, Operator, size, sizes};
use super::super::element_type::ElementType;
use super::super::fault;
use super::super::value::Value;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "Shape" => Operator::Values(|call| {
            let values = shape_values(call, call.needed(0)?.shape()?)?;
            Ok(vec![Array::ints(values).into()])
        }),
        "Size" => Operator::Values(|call| {
            let count: usize = call.needed(0)?.shape()?.iter().product();
            Ok(vec![Array::scalar(ElementType::Int64, count as i64).into()])
        }),
        "Split" => Operator::Values(split),
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => Operator::One(|call| {
            let x = call.x(0)?;
            x.reshape(new_shape(call, x.shape())?)
        }),
        "Transpose" => Operator::One(transpose),
        "Expand" => Operator::One(expand),
        "DepthToSpace" => Operator::One(depth_to_space),
        "SpaceToDepth" => Operator::One(space_to_depth),
        "ReverseSequence" => Operator::One(reverse_sequence),
        _ => return None,
    })
}

/// The sizes that `Shape` gives: all, or a range of them.
pub(in super::super) fn shape_values(call: &Call, shape: &[usize]) -> Result<Vec<i64>> {
    let rank = shape.len() as i64;
    let bound = |name: &str, default: i64| {
        let v = call.int(name, default);
        (if v < 0 { v.saturating_add(rank) } else { v }).clamp(0, rank) as usize
    };
    let (start, end) = (bound("start", 0), bound("end", rank));
    Ok(shape[start..end.max(start)].iter().map(|&size| size as i64).collect())
}

/// The shape that `Reshape`, `Flatten`, `Squeeze` or `Unsqueeze` gives.
pub(in super::super) fn new_shape(call: &Call, shape: &[usize]) -> Result<Vec<usize>> {
    match call.op() {
        "Reshape" => reshaped(call, shape),
        "Flatten" => {
            // A matrix: the dimensions before the axis as rows, the others as columns. The axis may be the rank.
            let axis = call.int("axis", 1);
            let at = if axis == shape.len() as i64 { shape.len() } else { call.dim(axis, shape.len())? };
            let (rows, columns) = shape.split_at(at);
            Ok(vec![rows.iter().product(), columns.iter().product()])
        }
        "Squeeze" => {
            let dims = match call.list("axes", 1)? {
                Some(axes) => call.dims(&axes, shape.len())?,
                None => (0..shape.len()).filter(|&dim| shape[dim] == 1).collect(),
            };
            if let Some(&dim) = dims.iter().find(|&&dim| shape[dim] != 1) {
                return Err(fault(format!("dimension {dim} of {shape:?} is not 1")));
            }
            Ok((0..shape.len()).filter(|dim| !dims.contains(dim)).map(|dim| shape[dim]).collect())
        }
        _ => {
            let axes = call.list("axes", 1)?.unwrap_or_default();
            let dims = call.dims(&axes, shape.len() + axes.len())?;
            let mut old = shape.iter();
            let all = (0..shape.len() + axes.len()).map(|dim| if dims.contains(&dim) { Some(&1) } else { old.next() });
            all.collect::<Option<Vec<_>>>()
                .map(|sizes| sizes.into_iter().copied().collect())
                .ok_or_else(|| fault(format!("axes {axes:?} name a dimension twice")))
        }
    }
}

/// A size of −1 is what remains; 0 is the input's size there, unless `allowzero` says that it is 0.
fn reshaped(call: &Call, shape: &[usize]) -> Result<Vec<usize>> {
    let wanted = call.list("shape", 1)?.unwrap_or_default();
    let copied = |(i, &size): (usize, &i64)| match size {
        0 if !call.flag("allowzero") => shape
            .get(i)
            .map(|&size| size as i64)
            .ok_or_else(|| fault(format!("dimension {i} of {shape:?} is to be copied"))),
        size => Ok(size),
    };
    let mut new: Vec<i64> = wanted.iter().enumerate().map(copied).collect::<Result<_>>()?;
    let known = new.iter().filter(|&&size| size >= 0).try_fold(1i64, |product, &size| product.checked_mul(size));
    let known = known.ok_or_else(|| fault(format!("the shape {wanted:?} is too large")))?;
    let total: usize = shape.iter().product();
    let rest = (total as i64).checked_div(known).unwrap_or(0);
    let mut open = new.iter_mut().filter(|size| **size == -1);
    if let Some(size) = open.next() {
        *size = rest;
    }
    if open.next().is_some() {
        return Err(fault(format!("the shape {wanted:?} leaves more than one size open")));
    }
    sizes(&new)
}

fn transpose(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let dims = call.ints("perm").map_or(Ok((0..x.rank()).rev().collect()), |perm| call.dims(&perm, x.rank()))?;
    x.permute(&dims)
}

/// Broadcasts both ways: a wanted size of 1 leaves the input's.
fn expand(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let wanted = sizes(&call.whole(1)?.unwrap_or_default())?;
    let rank = wanted.len().max(x.rank());
    let size = |shape: &[usize], dim: usize| (dim + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    let joined = |dim: usize| match (size(&wanted, dim), size(x.shape(), dim)) {
        (1, own) => own,
        (wanted, _) => wanted,
    };
    x.broadcast_to((0..rank).map(joined).collect::<Vec<_>>())
}

/// The dimension that `Split` cuts, and the sizes of the parts: given, or equal except for a smaller last one.
pub(in super::super) fn split_sizes(call: &Call, shape: &[usize]) -> Result<(usize, Vec<usize>)> {
    let dim = call.axis(0, shape.len())?;
    let (length, parts) = (shape[dim], call.outputs());
    let parts = match call.list("split", 1)? {
        Some(parts) => sizes(&parts)?,
        None => {
            let count = size(call.int("num_outputs", parts as i64))?.max(1);
            if count > parts.max(1) {
                return Err(fault(format!("{count} parts for {parts} outputs")));
            }
            let parts = count;
            let equal = length.div_ceil(parts);
            (0..parts).map(|i| equal.min(length.saturating_sub(i * equal))).collect()
        }
    };
    match parts.iter().try_fold(0usize, |sum, &part| sum.checked_add(part)) == Some(length) {
        true => Ok((dim, parts)),
        false => Err(fault(format!("parts {parts:?} do not make the {length} elements of dimension {dim}"))),
    }
}

fn split(call: &Call) -> Result<Vec<Value>> {
    let (x, kind) = (call.x(0)?, call.needed(0)?.kind());
    let (dim, parts) = split_sizes(call, x.shape())?;
    let mut start = 0;
    let part = |len: usize| {
        start += len;
        Ok(Value::of(x.narrow(dim, start - len, len)?, kind))
    };
    parts.into_iter().map(part).collect()
}

/// The sizes of images, and the block size.
fn blocks(call: &Call, x: &Tensor) -> Result<([usize; 4], usize)> {
    let b = size(call.int("blocksize", 0))?;
    match x.shape() {
        &[n, c, h, w] if b > 0 => Ok(([n, c, h, w], b)),
        shape => Err(fault(format!("a shape of {shape:?} with blocks of {b}"))),
    }
}

/// Blocks of channels become blocks of pixels.
fn depth_to_space(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let ([n, c, h, w], b) = blocks(call, &x)?;
    let deep = c / (b * b);
    let y = match call.text("mode", "DCR").as_ref() {
        "DCR" => x.reshape([n, b, b, deep, h, w])?.permute([0, 3, 4, 1, 5, 2])?,
        _ => x.reshape([n, deep, b, b, h, w])?.permute([0, 1, 4, 2, 5, 3])?,
    };
    y.reshape([n, deep, h * b, w * b])
}

fn space_to_depth(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let ([n, c, h, w], b) = blocks(call, &x)?;
    let order = if call.text("mode", "DCR") == "DCR" { [0, 3, 5, 1, 2, 4] } else { [0, 1, 3, 5, 2, 4] };
    let y = x.reshape([n, c, h / b, b, w / b, b])?.permute(order)?;
    y.reshape([n, c * b * b, h / b, w / b])
}

/// The first elements of each sequence of a batch in reverse order.
fn reverse_sequence(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let (batch, time) = (call.dim(call.int("batch_axis", 1), x.rank())?, call.dim(call.int("time_axis", 0), x.rank())?);
    let lengths = sizes(&call.whole(1)?.unwrap_or_default())?;
    if lengths.len() != x.shape()[batch] || batch == time {
        return Err(fault(format!("{} lengths for a batch of {}", lengths.len(), x.shape()[batch])));
    }
    let mut parts = Vec::with_capacity(lengths.len());
    for (i, &length) in lengths.iter().enumerate() {
        let one = x.narrow(batch, i, 1)?;
        let (head, rest) =
            (one.narrow(time, 0, length)?, one.narrow(time, length, x.shape()[time] - length.min(x.shape()[time]))?);
        parts.push(Tensor::cat(&[&head.flip([time])?, &rest], time)?);
    }
    Tensor::cat(&parts, batch)
}
