//! Images at other positions: Resize, Upsample and GridSample; and images of their windows, Col2Im.

use super::super::call::{Call, Operator, sizes};
use super::super::fault;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::{
    GridMode, GridPadding, Interpolation, Resample, ResampleCoordinates, ResampleFilter, ResampleRounding, Unfold,
};

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(Operator::One(match op {
        "Resize" | "Upsample" => resize,
        "GridSample" => grid_sample,
        "Col2Im" => col2im,
        _ => return None,
    }))
}

fn grid_sample(call: &Call) -> Result<Tensor> {
    let mode = match call.text("mode", "linear").as_ref() {
        "nearest" => GridMode::Nearest,
        "cubic" | "bicubic" => GridMode::Bicubic,
        _ => GridMode::Bilinear,
    };
    let padding = match call.text("padding_mode", "zeros").as_ref() {
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        _ => GridPadding::Zeros,
    };
    call.x(0)?.grid_sample(&call.x(1)?, mode, padding, call.flag("align_corners"))
}

/// The sums of columns at their places in images, whose padding is cut away.
fn col2im(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let (image, block) = (sizes(&call.whole(1)?.unwrap_or_default())?, sizes(&call.whole(2)?.unwrap_or_default())?);
    let (&[height, width], &[rows, columns]) = (image.as_slice(), block.as_slice()) else {
        return call.refuse(format!("images of {} dimensions", image.len()));
    };
    let list = |name: &str, count: usize, default: usize| -> Result<Vec<usize>> {
        let given = call.ints(name).map_or(Ok(vec![default; count]), |list| sizes(&list))?;
        if given.len() == count { Ok(given) } else { Err(fault(format!("{name} of {given:?}"))) }
    };
    let (stride, dilation, pads) = (list("strides", 2, 1)?, list("dilations", 2, 1)?, list("pads", 4, 0)?);
    let windows = Unfold::new([rows, columns]).stride([stride[0], stride[1]]).dilation([dilation[0], dilation[1]]);
    let padded = x.fold([height + pads[0] + pads[2], width + pads[1] + pads[3]], windows)?;
    padded.narrow(2, pads[0], height)?.narrow(3, pads[1], width)
}

/// A dimension that changes: its new size, and the scale of its positions.
struct Change {
    dim: usize,
    size: usize,
    scale: f64,
}

/// Whether the operator is from the time when positions were computed as in `asymmetric`.
fn is_old(call: &Call) -> bool {
    call.op() == "Upsample" || call.opset() < 11
}

fn resize(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let axes = match call.ints("axes") {
        Some(axes) => call.dims(&axes, x.rank())?,
        None => (0..x.rank()).collect(),
    };
    let changes = changes(call, x.shape(), &axes)?;
    if let Some(y) = by_planes(call, &x, &changes)? {
        return Ok(y);
    }
    let roi = if is_old(call) { None } else { call.floats(1)? };
    let mut y = x.clone();
    for change in changes {
        let coordinates =
            coordinates(call, &roi, axes.iter().position(|&axis| axis == change.dim).unwrap_or(0), axes.len())?;
        let crops = matches!(coordinates, ResampleCoordinates::CropAndResize { .. });
        if change.scale == 1.0 && change.size == x.shape()[change.dim] && !crops {
            continue;
        }
        let how = Resample::new(change.size).scale(change.scale).filter(filter(call)?).coordinates(coordinates);
        let nearest = matches!(filter(call)?, ResampleFilter::Nearest(_));
        let how =
            how.antialias(call.flag("antialias") && !nearest).exclude_outside(call.flag("exclude_outside") && !nearest);
        y = y.resample(change.dim, &how)?;
    }
    Ok(y)
}

/// The new sizes, from scales or given.
fn changes(call: &Call, shape: &[usize], axes: &[usize]) -> Result<Vec<Change>> {
    let given = |i: usize| Result::Ok(call.floats(i)?.filter(|list| !list.is_empty()));
    let scales = match call.node.attribute("scales") {
        Some(attribute) => Some(attribute.floats.iter().map(|&scale| f64::from(scale)).collect()),
        None => given(if is_old(call) { 1 } else { 2 })?,
    };
    let counted = |count: usize| match count == axes.len() {
        true => Ok(()),
        false => Err(fault(format!("{count} scales or sizes for {} dimensions", axes.len()))),
    };
    if let Some(scales) = scales {
        counted(scales.len())?;
        if let Some(scale) = scales.iter().find(|scale| !(scale.is_finite() && **scale > 0.0)) {
            return Err(fault(format!("a scale of {scale}")));
        }
        let change = |(&dim, scale): (&usize, f64)| Change {
            dim,
            size: (shape[dim] as f32 * scale as f32).floor() as usize,
            scale,
        };
        return Ok(axes.iter().zip(scales).map(change).collect());
    }
    let wanted = given(3)?.ok_or_else(|| fault("neither scales nor sizes are given"))?;
    counted(wanted.len())?;
    let wanted = sizes(&wanted.iter().map(|&size| size as i64).collect::<Vec<_>>())?;
    let ratios = axes.iter().zip(&wanted).map(|(&dim, &size)| size as f64 / shape[dim] as f64);
    let policy = call.text("keep_aspect_ratio_policy", "stretch");
    // One scale for all dimensions, by which none is larger than wanted, or none smaller.
    let common = match policy.as_ref() {
        "stretch" => None,
        "not_larger" => Some(ratios.clone().fold(f64::INFINITY, f64::min)),
        "not_smaller" => Some(ratios.clone().fold(0.0, f64::max)),
        policy => return call.refuse(format!("the policy {policy}")),
    };
    let change = |((&dim, &size), ratio): ((&usize, &usize), f64)| match common {
        Some(scale) => Change { dim, size: (shape[dim] as f64 * scale).round() as usize, scale },
        None => Change { dim, size, scale: ratio },
    };
    Ok(axes.iter().zip(&wanted).zip(ratios).map(change).collect())
}

fn filter(call: &Call) -> Result<ResampleFilter> {
    let rounding = call.text("nearest_mode", if is_old(call) { "floor" } else { "round_prefer_floor" });
    Ok(match call.text("mode", "nearest").as_ref() {
        "nearest" => ResampleFilter::Nearest(match rounding.as_ref() {
            "floor" => ResampleRounding::Floor,
            "ceil" => ResampleRounding::Ceil,
            "round_prefer_ceil" => ResampleRounding::PreferCeil,
            _ => ResampleRounding::PreferFloor,
        }),
        "linear" | "bilinear" => ResampleFilter::Linear,
        "cubic" => ResampleFilter::Cubic { a: call.float("cubic_coeff_a", -0.75) },
        mode => return call.refuse(format!("the mode {mode}")),
    })
}

/// The positions along axis `i` of `count`. Regions of interest list all starts, then all ends.
fn coordinates(call: &Call, roi: &Option<Vec<f64>>, i: usize, count: usize) -> Result<ResampleCoordinates> {
    let mode = call.text("coordinate_transformation_mode", if is_old(call) { "asymmetric" } else { "half_pixel" });
    Ok(match mode.as_ref() {
        "half_pixel" => ResampleCoordinates::HalfPixel,
        "pytorch_half_pixel" => ResampleCoordinates::PytorchHalfPixel,
        "half_pixel_symmetric" => ResampleCoordinates::HalfPixelSymmetric,
        "align_corners" => ResampleCoordinates::AlignCorners,
        "asymmetric" => ResampleCoordinates::Asymmetric,
        "tf_crop_and_resize" => {
            let part = roi.as_ref().and_then(|roi| Some((*roi.get(i)?, *roi.get(i + count)?)));
            let (start, end) = part.ok_or_else(|| fault("the region of interest is missing"))?;
            ResampleCoordinates::CropAndResize { start, end, extrapolation: call.float("extrapolation_value", 0.0) }
        }
        mode => return call.refuse(format!("the coordinates {mode}")),
    })
}

/// Images whose heights and widths change in one of PyTorch's ways, for which there are kernels.
fn by_planes(call: &Call, x: &Tensor, changes: &[Change]) -> Result<Option<Tensor>> {
    let &[_, _, h, w] = x.shape() else { return Ok(None) };
    let mut size = [h, w];
    for change in changes {
        let exact = change.size as f64 == x.shape()[change.dim] as f64 * change.scale;
        match change.dim {
            0 | 1 if change.size == x.shape()[change.dim] && exact => {}
            2 | 3 if exact => size[change.dim - 2] = change.size,
            _ => return Ok(None),
        }
    }
    let mode = call.text("coordinate_transformation_mode", if is_old(call) { "asymmetric" } else { "half_pixel" });
    let old = [h, w];
    // Where no position is half-way between two pixels, it matters not which of them is preferred.
    // (2o + 1) · old is a multiple of 2 · size for some pixel o if `old` has more factors of 2 than `size`.
    let tie = || (0..2).any(|d| old[d].trailing_zeros() > size[d].trailing_zeros());
    let way = match (filter(call)?, mode.as_ref()) {
        _ if call.flag("antialias") || call.flag("exclude_outside") => return Ok(None),
        (ResampleFilter::Nearest(ResampleRounding::Floor), "asymmetric") => Interpolation::Nearest,
        (ResampleFilter::Nearest(ResampleRounding::PreferCeil), "half_pixel") => Interpolation::NearestExact,
        (ResampleFilter::Nearest(ResampleRounding::PreferFloor), "half_pixel") if !tie() => Interpolation::NearestExact,
        (ResampleFilter::Linear, "half_pixel") => Interpolation::Linear { align_corners: false },
        (ResampleFilter::Linear, "pytorch_half_pixel") if size.iter().all(|&size| size > 1) => {
            Interpolation::Linear { align_corners: false }
        }
        (ResampleFilter::Linear, "align_corners") => Interpolation::Linear { align_corners: true },
        _ => return Ok(None),
    };
    x.interpolate(size, way).map(Some)
}
