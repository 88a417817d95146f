//! Views, and ops that move elements unchanged.

use anygpu::Tensor;

use super::call::{Call, Outcome, skip};

pub fn map(call: &Call) -> Option<Outcome> {
    let out = match call.op() {
        "Split" => return Some(split(call)),
        "Reshape" => reshape(call),
        "Flatten" => flatten(call),
        "Transpose" => transpose(call),
        "Squeeze" => squeeze(call),
        "Unsqueeze" => unsqueeze(call),
        "Expand" => expand(call),
        "DepthToSpace" => depth_to_space(call),
        "SpaceToDepth" => space_to_depth(call),
        _ => return None,
    };
    Some(out.map(|tensor| vec![tensor]))
}

/// A size of −1 is what remains; 0 is the input's size there, unless `allowzero` says that it is 0.
fn reshape(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let wanted = call.list("shape", 1).unwrap_or_default();
    let copied = |(i, &size): (usize, &i64)| match size {
        0 if call.int("allowzero", 0) == 0 => x.shape()[i] as i64,
        size => size,
    };
    let mut shape: Vec<i64> = wanted.iter().enumerate().map(copied).collect();
    let known: i64 = shape.iter().filter(|&&size| size >= 0).product();
    shape.iter_mut().filter(|size| **size < 0).for_each(|size| *size = x.elem_count() as i64 / known.max(1));
    Ok(x.reshape(sizes(&shape))?)
}

fn sizes(values: &[i64]) -> Vec<usize> {
    values.iter().map(|&value| value as usize).collect()
}

/// A matrix: the dimensions before `axis` as rows, the others as columns.
fn flatten(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let (rows, columns) = x.shape().split_at(call.dim(call.int("axis", 1), x.rank()));
    let shape: [usize; 2] = [rows.iter().product(), columns.iter().product()];
    Ok(x.reshape(shape)?)
}

fn transpose(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let dims = call.ints("perm").map_or((0..x.rank()).rev().collect(), |perm| sizes(&perm));
    Ok(x.permute(&dims)?)
}

fn squeeze(call: &Call) -> Outcome<Tensor> {
    let mut x = call.x(0)?;
    let mut dims: Vec<usize> = match call.list("axes", 1) {
        Some(axes) => axes.iter().map(|&axis| call.dim(axis, x.rank())).collect(),
        None => (0..x.rank()).filter(|&dim| x.shape()[dim] == 1).collect(),
    };
    dims.sort_unstable();
    for dim in dims.into_iter().rev() {
        x = x.squeeze(dim)?;
    }
    Ok(x)
}

fn unsqueeze(call: &Call) -> Outcome<Tensor> {
    let mut x = call.x(0)?;
    let axes = call.list("axes", 1).unwrap_or_default();
    let mut dims: Vec<usize> = axes.iter().map(|&axis| call.dim(axis, x.rank() + axes.len())).collect();
    dims.sort_unstable();
    for dim in dims {
        x = x.unsqueeze(dim)?;
    }
    Ok(x)
}

/// Broadcasts both ways: a wanted size of 1 leaves the input's.
fn expand(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let wanted = sizes(&call.whole(1).unwrap_or_default());
    let rank = wanted.len().max(x.rank());
    let size = |shape: &[usize], dim: usize| (dim + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    let shape: Vec<usize> = (0..rank).map(|dim| size(&wanted, dim).max(size(x.shape(), dim))).collect();
    Ok(x.broadcast_to(shape)?)
}

/// Equal parts, with a smaller last one, or the given sizes.
fn split(call: &Call) -> Outcome {
    let x = call.x(0)?;
    let dim = call.dim(call.int("axis", 0), x.rank());
    let (size, parts) = (x.shape()[dim], call.node.output.len());
    let equal = size.div_ceil(parts);
    let parts: Vec<usize> = match call.list("split", 1) {
        Some(parts) => sizes(&parts),
        None => (0..parts).map(|i| equal.min(size - i * equal)).collect(),
    };
    let mut start = 0;
    let part = |len: usize| {
        start += len;
        Ok(x.narrow(dim, start - len, len)?)
    };
    parts.into_iter().map(part).collect()
}

/// Blocks of channels become blocks of pixels.
fn depth_to_space(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let b = call.int("blocksize", 1) as usize;
    let &[n, c, h, w] = x.shape() else { return skip("a rank other than 4") };
    let deep = c / (b * b);
    let y = match call.text("mode", "DCR").as_str() {
        "DCR" => x.reshape([n, b, b, deep, h, w])?.permute([0, 3, 4, 1, 5, 2])?,
        _ => x.reshape([n, deep, b, b, h, w])?.permute([0, 1, 4, 2, 5, 3])?,
    };
    Ok(y.reshape([n, deep, h * b, w * b])?)
}

fn space_to_depth(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let b = call.int("blocksize", 1) as usize;
    let &[n, c, h, w] = x.shape() else { return skip("a rank other than 4") };
    let y = x.reshape([n, c, h / b, b, w / b, b])?.permute([0, 3, 5, 1, 2, 4])?;
    Ok(y.reshape([n, c * b * b, h / b, w / b])?)
}
