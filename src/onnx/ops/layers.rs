//! Convolutions.

use super::super::call::{Call, Operator, size, sizes};
use super::super::fault;
use super::window::{Window, lifted};
use crate::Padding;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(Operator::One(match op {
        "Conv" => conv,
        "ConvTranspose" => conv_transpose,
        _ => return None,
    }))
}

fn groups(call: &Call) -> Result<usize> {
    size(call.int("group", 1))
}

fn conv(call: &Call) -> Result<Tensor> {
    let (x, w, bias) = (call.x(0)?, call.x(1)?, call.maybe(2)?);
    let window = Window::of(call, &x, w.shape().get(2..).unwrap_or_default())?;
    convolved(call, &window, &x, &w, bias.as_ref())
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
    for d in 0..window.rank {
        let (size, stride) = (x.shape()[2 + d], window.stride[d]);
        let out = match &wanted {
            // The last sizes are those of the dimensions of the window.
            Some(list) => {
                let at = (list.len() + d).checked_sub(window.rank);
                *at.and_then(|at| list.get(at)).ok_or_else(|| fault("output_shape is too short"))?
            }
            None => size.saturating_mul(stride),
        };
        let whole = stride * size.saturating_sub(1) + more[d] + (window.kernel[d] - 1) * window.dilation[d] + 1;
        more[d] += out.saturating_sub(whole);
        let total = whole.saturating_sub(out);
        let less = total / 2;
        let upper = auto == "SAME_UPPER";
        (window.begin[d], window.end[d]) = if upper { (less, total - less) } else { (total - less, less) };
    }
    Ok(())
}
