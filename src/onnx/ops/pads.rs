//! Padding.

use super::super::call::{Call, Operator, size};
use super::super::fault;
use crate::Padding;
use crate::device::cpu::with_room;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "Pad" => Operator::One(pad),
        "CenterCropPad" => Operator::One(center_crop_pad),
        _ => return None,
    })
}

/// ONNX gives all begins, then all ends; negative ones cut.
fn pad(call: &Call) -> Result<Tensor> {
    let mut x = call.x(0)?;
    let pads = call.list("pads", 1)?.unwrap_or_default();
    let axes = call.whole(3)?.unwrap_or_else(|| (0..x.rank() as i64).collect());
    if pads.len() != 2 * axes.len() {
        return Err(fault(format!("{} pads for {} dimensions", pads.len(), axes.len())));
    }
    let mut margins = vec![(0, 0); x.rank()];
    for (i, dim) in call.dims(&axes, x.rank())?.into_iter().enumerate() {
        let (begin, end) = (pads[i], pads[axes.len() + i]);
        let cut = |pad: i64| usize::try_from(pad.min(0).unsigned_abs()).unwrap_or(usize::MAX);
        let (before, after) = (cut(begin), cut(end));
        if before.saturating_add(after) > 0 {
            let left = x.shape()[dim].checked_sub(before.saturating_add(after));
            x = x.narrow(
                dim,
                before,
                left.ok_or_else(|| fault(format!("dimension {dim} is cut by more than its size")))?,
            )?;
        }
        margins[dim] = (begin.max(0) as usize, end.max(0) as usize);
    }
    let value = call.number(2)?.unwrap_or(f64::from(call.float("value", 0.0)));
    let mode = match call.text("mode", "constant").as_ref() {
        "constant" => Padding::Constant(value),
        "reflect" => Padding::Reflect,
        "edge" => Padding::Replicate,
        "wrap" => return wrapped(x, &margins),
        mode => return call.refuse(format!("the padding mode {mode}")),
    };
    x.pad(&margins, mode)
}

/// The elements again and again on both sides, also beyond their number.
fn wrapped(mut x: Tensor, margins: &[(usize, usize)]) -> Result<Tensor> {
    for (dim, &(before, after)) in margins.iter().enumerate() {
        let length = x.shape()[dim];
        if before == 0 && after == 0 {
            continue;
        }
        if length == 0 {
            return Err(fault(format!("dimension {dim} has no element to repeat")));
        }
        let whole = before.checked_add(length).and_then(|whole| whole.checked_add(after));
        let whole = size(whole.and_then(|whole| i64::try_from(whole).ok()).unwrap_or(i64::MAX))?;
        let start = length - before % length;
        let mut places = with_room(whole)?;
        places.extend((0..whole).map(|i| ((start + i) % length) as u32));
        x = x.index_select(dim, &Tensor::from_vec(places, whole, x.device())?)?;
    }
    Ok(x)
}

/// Cuts or pads to a shape, evenly on both sides.
fn center_crop_pad(call: &Call) -> Result<Tensor> {
    let mut x = call.x(0)?;
    let wanted = super::super::call::sizes(&call.whole(1)?.unwrap_or_default())?;
    let axes = call.ints("axes").unwrap_or_else(|| (0..x.rank() as i64).collect());
    let dims = call.dims(&axes, x.rank())?;
    for (&dim, &size) in dims.iter().zip(&wanted) {
        let old = x.shape()[dim];
        if size <= old {
            x = x.narrow(dim, (old - size) / 2, size)?;
        } else {
            let mut margins = vec![(0, 0); x.rank()];
            let before = (size - old) / 2;
            margins[dim] = (before, size - old - before);
            x = x.pad(&margins, Padding::Constant(0.0))?;
        }
    }
    Ok(x)
}
