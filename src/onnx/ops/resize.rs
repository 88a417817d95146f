//! Resize and Upsample. ONNX has more ways to round a position than PyTorch's `interpolate` and this crate.

use super::super::call::{Call, Operator};
use crate::Interpolation;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    match op {
        "Resize" | "Upsample" => Some(Operator::One(resize)),
        _ => None,
    }
}

fn resize(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let &[_, _, h, w] = x.shape() else { return call.refuse("images of a rank other than 4") };
    let size = size(call, [h, w])?;
    let ways: Vec<Interpolation> = [0, 1].map(|d| way(call, [h, w][d], size[d])).into_iter().collect::<Result<_>>()?;
    if ways[0] != ways[1] {
        return call.refuse("a rounding for each dimension");
    }
    x.interpolate(size, ways[0])
}

/// The images' new size. A scale that is not the ratio of the sizes places the pixels elsewhere than ours does.
fn size(call: &Call, old: [usize; 2]) -> Result<[usize; 2]> {
    let upsample = call.op() == "Upsample";
    let axes: Vec<usize> = call.ints("axes").unwrap_or(vec![0, 1, 2, 3]).iter().map(|&axis| axis as usize).collect();
    let old = [1, 1, old[0], old[1]];
    let filled = |i: usize| Result::Ok(call.floats(i)?.filter(|data| !data.is_empty()));
    let mut new = [1, 1, old[2], old[3]];
    match (filled(if upsample || call.opset() < 11 { 1 } else { 2 })?, filled(3)?) {
        (Some(scales), _) => {
            for (&axis, scale) in axes.iter().zip(scales) {
                let exact = old[axis] as f64 * scale;
                if exact.fract() != 0.0 {
                    return call.refuse("a scale that is not the ratio of the sizes");
                }
                new[axis] = exact as usize;
            }
        }
        (None, Some(sizes)) if call.text("keep_aspect_ratio_policy", "stretch") == "stretch" => {
            axes.iter().zip(sizes).for_each(|(&axis, size)| new[axis] = if axis < 2 { 1 } else { size as usize });
        }
        _ => return call.refuse("sizes that keep the aspect ratio"),
    }
    Ok([new[2], new[3]])
}

/// The way of ours that gives the same positions, along a dimension of `from` pixels made `to`.
fn way(call: &Call, from: usize, to: usize) -> Result<Interpolation> {
    let upsample = call.op() == "Upsample";
    let position = call.text(
        "coordinate_transformation_mode",
        if upsample || call.opset() < 11 { "asymmetric" } else { "half_pixel" },
    );
    let rounding =
        call.text("nearest_mode", if upsample || call.opset() < 11 { "floor" } else { "round_prefer_floor" });
    let mode = call.text("mode", "nearest");
    if call.flag("antialias") {
        return call.refuse("antialiasing");
    }
    // Where no position is half-way between two pixels, it matters not which of them is preferred.
    let tie = (0..to).any(|o| ((2 * o + 1) * from).is_multiple_of(2 * to));
    match (mode.as_ref(), position.as_ref(), rounding.as_ref()) {
        ("nearest", "asymmetric", "floor") => Ok(Interpolation::Nearest),
        ("nearest", "half_pixel", "round_prefer_ceil") => Ok(Interpolation::NearestExact),
        ("nearest", "half_pixel", "round_prefer_floor") if !tie => Ok(Interpolation::NearestExact),
        ("linear", "half_pixel", _) => Ok(Interpolation::Linear { align_corners: false }),
        ("linear", "pytorch_half_pixel", _) if to > 1 => Ok(Interpolation::Linear { align_corners: false }),
        ("linear", "align_corners", _) => Ok(Interpolation::Linear { align_corners: true }),
        ("nearest", _, _) => call.refuse(format!("nearest by {position} and {rounding}")),
        _ => call.refuse(format!("{mode} by {position}")),
    }
}
