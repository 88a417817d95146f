//! Convolutions.

use super::super::call::{Call, Operator, size, sizes};
use super::super::fault;
use super::super::fuse::then::{ACTIVATION, SCALE, SHIFT};
use super::window::{Window, lifted};
use crate::device::cpu::with_room;
use crate::error::Result;
use crate::ops::Activation;
use crate::tensor::Tensor;
use crate::{GridMode, GridPadding, Padding};

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(Operator::One(match op {
        "Conv" => conv,
        "ConvTranspose" => conv_transpose,
        "DeformConv" => deform_conv,
        _ => return None,
    }))
}

fn groups(call: &Call) -> Result<usize> {
    size(call.int("group", 1))
}

fn conv(call: &Call) -> Result<Tensor> {
    let (x, w, bias) = (call.x(0)?, call.x(1)?, call.maybe(2)?);
    let window = Window::of(call, &x, w.shape().get(2..).unwrap_or_default())?;
    let activation = match &*call.text(ACTIVATION, "") {
        "Relu" => Activation::Relu,
        "Sigmoid" => Activation::Sigmoid,
        "Swish" => Activation::Silu,
        "HardSwish" => Activation::HardSwish,
        _ => return convolved(call, &window, &x, &w, bias.as_ref()),
    };
    let (scale, shift) = (call.maybe(SCALE)?, call.maybe(SHIFT)?);
    let conv = window.conv(groups(call)?).padding(window.padding::<2>());
    let (x, w, after) = (window.image(&x)?, window.image(&w)?, [scale.as_ref(), shift.as_ref()]);
    window.back(x.conv2d_then(&w, bias.as_ref(), conv, activation, after)?)
}

/// The convolution of a window that is read from `call`.
pub(super) fn convolved(call: &Call, window: &Window, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let groups = groups(call)?;
    if window.rank == 3 {
        return x.conv3d(w, bias, window.conv(groups).padding(window.padding::<3>()));
    }
    let conv = window.conv(groups).padding(window.padding::<2>());
    window.back(window.image(x)?.conv2d(&window.image(w)?, bias, conv)?)
}

/// The whole output without padding is cut where the sides differ.
fn conv_transpose(call: &Call) -> Result<Tensor> {
    let (x, w, bias) = (call.x(0)?, call.x(1)?, call.maybe(2)?);
    let mut window = Window::of(call, &x, w.shape().get(2..).unwrap_or_default())?;
    let mut more = sizes(&call.ints("output_padding").unwrap_or_default())?;
    more.resize(window.rank, 0);
    wanted_output(call, &mut window, &x, &mut more)?;
    let (groups, rank) = (groups(call)?, window.rank);
    // What the op pads at the end is less than a step.
    let small = (0..rank).all(|d| more[d] < window.stride[d].max(window.dilation[d]));
    if window.begin == window.end && small {
        if rank == 3 {
            let conv = window.conv(groups).padding(window.padding::<3>()).output_padding(lifted(&more, 0));
            return x.conv_transpose3d(&w, bias.as_ref(), conv);
        }
        let conv = window.conv(groups).padding(window.padding::<2>()).output_padding(lifted(&more, 0));
        return window.back(window.image(&x)?.conv_transpose2d(&window.image(&w)?, bias.as_ref(), conv)?);
    }
    let y = match rank {
        3 => x.conv_transpose3d(&w, None, window.conv(groups))?,
        _ => window.back(window.image(&x)?.conv_transpose2d(&window.image(&w)?, None, window.conv(groups))?)?,
    };
    let margins: Vec<(usize, usize)> = more.iter().map(|&more| (0, more)).collect();
    let mut y = y.pad(&margins, Padding::Constant(0.0))?;
    for d in 0..rank {
        let left = y.shape()[2 + d].checked_sub(window.begin[d] + window.end[d]);
        y = y.narrow(2 + d, window.begin[d], left.ok_or_else(|| fault("the padding is larger than the output"))?)?;
    }
    match &bias {
        Some(bias) => y.add(&bias.reshape([&[bias.elem_count()], &vec![1; rank][..]].concat())?),
        None => Ok(y),
    }
}

/// Pads, or more at the end, from `output_shape`, or from SAME, which means the input's size times the stride.
fn wanted_output(call: &Call, window: &mut Window, x: &Tensor, more: &mut [usize]) -> Result<()> {
    let auto = call.text("auto_pad", "NOTSET");
    let wanted = call.ints("output_shape").map(|list| sizes(&list)).transpose()?.filter(|list| !list.is_empty());
    if wanted.is_none() && !auto.starts_with("SAME") {
        return Ok(());
    }
    for (d, more) in more.iter_mut().enumerate() {
        let (size, stride) = (x.shape()[2 + d], window.stride[d]);
        let out = match &wanted {
            // The last sizes are the sizes of the window's dimensions.
            Some(list) => {
                let at = (list.len() + d).checked_sub(window.rank);
                *at.and_then(|at| list.get(at)).ok_or_else(|| fault("output_shape is too short"))?
            }
            None => size.saturating_mul(stride),
        };
        let whole = stride * size.saturating_sub(1) + *more + (window.kernel[d] - 1) * window.dilation[d] + 1;
        *more += out.saturating_sub(whole);
        let total = whole.saturating_sub(out);
        let less = total / 2;
        let upper = auto == "SAME_UPPER";
        (window.begin[d], window.end[d]) = if upper { (less, total - less) } else { (total - less, less) };
    }
    Ok(())
}

/// A convolution whose taps are each moved by an offset, and scaled by a mask: the moved pixels become columns of a product.
fn deform_conv(call: &Call) -> Result<Tensor> {
    let (x, w, offset) = (call.x(0)?, call.x(1)?, call.x(2)?);
    let (bias, mask) = (call.maybe(3)?, call.maybe(4)?);
    let window = Window::of(call, &x, w.shape().get(2..).unwrap_or_default())?;
    let (&[n, c, h, wide], &[outputs, _, rows, columns]) = (x.shape(), w.shape()) else {
        return call.refuse(format!("a deformable convolution over {:?}", x.shape()));
    };
    let (groups, parts) = (groups(call)?, size(call.int("offset_group", 1))?);
    let &[_, _, height, width] = offset.shape() else {
        return Err(fault(format!("offsets of shape {:?}", offset.shape())));
    };
    let (taps, places) = (rows * columns, height * width);
    if groups == 0 || parts == 0 || c % groups != 0 || c % parts != 0 || outputs % groups != 0 {
        return Err(fault(format!("{c} channels, {outputs} outputs, {groups} groups and {parts} groups of offsets")));
    }
    let offset = offset.reshape([n, parts, taps, 2, places])?;
    // Without an offset, tap (i, j) of the output (y, x) is at (y · stride − pad + i · dilation, …).
    let mut fixed = with_room((taps * 2).saturating_mul(places))?;
    for tap in 0..taps {
        for d in 0..2 {
            let step = [tap / columns, tap % columns][d] * window.dilation[d];
            let at = |place: usize| [place / width, place % width][d] * window.stride[d] + step;
            fixed.extend((0..places).map(|place| at(place) as f32 - window.begin[d] as f32));
        }
    }
    let fixed = Tensor::from_vec(fixed, [1, 1, taps, 2, places], call.device)?;
    let moved = offset.add(&fixed)?;
    // In the units of a grid: −1 and 1 are the borders of the image, x before y.
    let along =
        |d: usize, size: usize| moved.select(3, d)?.mul_scalar(2.0 / size as f32)?.add_scalar(1.0 / size as f32 - 1.0);
    let grid = Tensor::stack(&[along(1, wide)?, along(0, h)?], 4)?.reshape([n * parts, taps, places, 2])?;
    let images = x.reshape([n * parts, c / parts, h, wide])?;
    let mut found = images.grid_sample(&grid, GridMode::Bilinear, GridPadding::Zeros, false)?;
    if let Some(mask) = mask {
        found = found.mul(&mask.reshape([n * parts, 1, taps, places])?)?;
    }
    let depth = c / groups * taps;
    let product = w.reshape([groups, outputs / groups, depth])?.matmul(&found.reshape([n, groups, depth, places])?)?;
    let y = product.reshape([n, outputs, height, width])?;
    match bias {
        Some(bias) => y.add(&bias.reshape([outputs, 1, 1])?),
        None => Ok(y),
    }
}
