//! Convolutions and pooling.

use super::super::call::{Call, Operator, sizes};
use super::super::fault;
use super::window::Window;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(Operator::One(match op {
        "Conv" => conv,
        "ConvTranspose" => conv_transpose,
        "MaxPool" => max_pool,
        "AveragePool" => average_pool,
        "LpPool" => lp_pool,
        "GlobalAveragePool" => |call| {
            let (x, dims) = spatial(call)?;
            x.mean(&dims, true)
        },
        "GlobalMaxPool" => |call| {
            let (x, dims) = spatial(call)?;
            x.max(&dims, true)
        },
        "GlobalLpPool" => |call| {
            let (x, dims) = spatial(call)?;
            x.norm(call.int("p", 2) as f32, &dims, true)
        },
        _ => return None,
    }))
}

/// The input and its spatial dimensions.
fn spatial(call: &Call) -> Result<(Tensor, Vec<usize>)> {
    let x = call.x(0)?;
    let dims = (2..x.rank()).collect();
    Ok((x, dims))
}

fn conv(call: &Call) -> Result<Tensor> {
    let (x, w, bias) = (call.x(0)?, call.x(1)?, call.maybe(2)?);
    let window = Window::of(call, &x, w.shape().get(2..).unwrap_or_default())?;
    let (padding, image) = window.padded(call, &x, 0.0)?;
    window.back(image.conv2d(&window.image(&w)?, bias.as_ref(), window.conv(call)?.padding(padding))?)
}

/// The whole output without padding is cut where the sides differ.
fn conv_transpose(call: &Call) -> Result<Tensor> {
    let (x, w, bias) = (call.x(0)?, call.x(1)?, call.maybe(2)?);
    let mut window = Window::of(call, &x, w.shape().get(2..).unwrap_or_default())?;
    let more = match sizes(&call.ints("output_padding").unwrap_or_default())?.as_slice() {
        [] => [0; 2],
        [one] => [0, *one],
        [first, second, ..] => [*first, *second],
    };
    let (image, w) = (window.image(&x)?, window.image(&w)?);
    let more = wanted_output(call, &mut window, &image, more)?;
    let conv = window.conv(call)?.output_padding(more);
    // What an op pads at the end is less than a step.
    let direct = window.begin == window.end && (0..2).all(|d| more[d] < window.stride[d].max(window.dilation[d]));
    let y = match direct {
        true => image.conv_transpose2d(&w, bias.as_ref(), conv.padding(window.begin))?,
        false => {
            let mut y = image.conv_transpose2d(&w, None, window.conv(call)?)?;
            let margins = [(0, 0), (0, 0), (0, more[0]), (0, more[1])];
            y = y.pad(&margins, crate::Padding::Constant(0.0))?;
            for d in 0..2 {
                let left = y.shape()[2 + d].checked_sub(window.begin[d] + window.end[d]);
                y = y.narrow(
                    2 + d,
                    window.begin[d],
                    left.ok_or_else(|| fault("the padding is larger than the output"))?,
                )?;
            }
            match &bias {
                Some(bias) => y.add(&bias.reshape([1, bias.elem_count(), 1, 1])?)?,
                None => y,
            }
        }
    };
    window.back(y)
}

/// Pads, or more at the end, from `output_shape`, or from SAME, which means the input's size times the stride.
fn wanted_output(call: &Call, window: &mut Window, image: &Tensor, mut more: [usize; 2]) -> Result<[usize; 2]> {
    let auto = call.text("auto_pad", "NOTSET");
    let wanted = call.ints("output_shape").map(|list| sizes(&list)).transpose()?.filter(|list| !list.is_empty());
    if wanted.is_none() && !auto.starts_with("SAME") {
        return Ok(more);
    }
    for d in usize::from(window.is_flat())..2 {
        let (size, stride) = (image.shape()[2 + d], window.stride[d]);
        let out = match &wanted {
            Some(list) => {
                *list.get((list.len() + d).wrapping_sub(2)).ok_or_else(|| fault("output_shape is too short"))?
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
    Ok(more)
}

fn kernel(call: &Call) -> Result<Vec<usize>> {
    sizes(&call.ints("kernel_shape").unwrap_or_default())
}

fn max_pool(call: &Call) -> Result<Tensor> {
    if call.wants(1) {
        return call.refuse("the positions of the maxima");
    }
    // The op pools floats; every u8 is one.
    let (x, dtype) = (call.x(0)?.to_dtype(DType::F32)?, call.x(0)?.dtype());
    let window = Window::of(call, &x, &kernel(call)?)?;
    let (padding, image) = window.padded(call, &x, f64::NEG_INFINITY)?;
    window.back(image.max_pool2d(window.pool().padding(padding))?)?.to_dtype(dtype)
}

/// Where padding that the op does not make itself does not count, the mean is a quotient of two means.
fn average_pool(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let window = Window::of(call, &x, &kernel(call)?)?;
    if window.dilation != [1, 1] {
        return call.refuse("a mean over dilated windows");
    }
    let counts = call.flag("count_include_pad");
    let mean = |x: &Tensor| {
        let (padding, image) = window.padded(call, x, 0.0)?;
        let include = counts || !window.leaves_padding(call);
        image.avg_pool2d(window.pool().padding(padding).count_include_pad(include))
    };
    let y = match counts || window.leaves_padding(call) {
        true => mean(&x)?,
        false => mean(&x)?.div(&mean(&Tensor::ones(x.shape(), x.device())?)?)?,
    };
    window.back(y)
}

/// (Σ |x|ᵖ)¹⸍ᵖ over a window.
fn lp_pool(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let window = Window::of(call, &x, &kernel(call)?)?;
    if window.dilation != [1, 1] {
        return call.refuse("a norm over dilated windows");
    }
    let p = call.int("p", 2) as f32;
    let (padding, image) = window.padded(call, &x.abs()?.pow(p)?, 0.0)?;
    let count = (window.kernel[0] * window.kernel[1]) as f32;
    let sum = image.avg_pool2d(window.pool().padding(padding))?.mul_scalar(count)?;
    window.back(sum.pow(1.0 / p)?)
}
