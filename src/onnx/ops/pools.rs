//! Pooling.

use super::super::call::{Call, Operator, sizes};
use super::super::element_type::ElementType;
use super::super::fault;
use super::super::value::Value;
use super::window::{Window, lifted};
use crate::Padding;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "MaxPool" => Operator::Values(max_pool),
        "MaxUnpool" => Operator::One(max_unpool),
        "AveragePool" => Operator::One(|call| average_pool(call, &call.x(0)?)),
        "LpPool" => Operator::One(lp_pool),
        "GlobalAveragePool" => Operator::One(|call| {
            let (x, dims) = spatial(call)?;
            x.mean(&dims, true)
        }),
        "GlobalMaxPool" => Operator::One(|call| {
            let (x, dims) = spatial(call)?;
            x.max(&dims, true)
        }),
        "GlobalLpPool" => Operator::One(|call| {
            let (x, dims) = spatial(call)?;
            x.norm(exponent(call), &dims, true)
        }),
        _ => return None,
    })
}

/// The input and its spatial dimensions.
fn spatial(call: &Call) -> Result<(Tensor, Vec<usize>)> {
    let x = call.x(0)?;
    let dims = (2..x.rank()).collect();
    Ok((x, dims))
}

fn kernel(call: &Call) -> Result<Vec<usize>> {
    sizes(&call.ints("kernel_shape").unwrap_or_default())
}

fn max_pool(call: &Call) -> Result<Vec<Value>> {
    let kind = call.needed(0)?.kind();
    // The op pools floats; every integer of 8 bits is one.
    let (x, dtype) = (call.x(0)?.to_dtype(DType::F32)?, call.x(0)?.dtype());
    let dtype = if dtype.is_float() { x.dtype() } else { dtype };
    let window = Window::of(call, &x, &kernel(call)?)?;
    if call.wants(1) {
        let (values, positions) = with_positions(call, &window, &x)?;
        return Ok(vec![Value::of(values.to_dtype(kind.word())?, kind), Value::Device(positions, ElementType::Int64)]);
    }
    let pads = window.pool_pads();
    let padded = if pads { x } else { window.padded(&x, f64::NEG_INFINITY)? };
    let y = match window.rank {
        3 => padded.max_pool3d(window.pool::<3>(pads))?,
        _ => window.back(window.image(&padded)?.max_pool2d(window.pool::<2>(pads))?)?,
    };
    Ok(vec![Value::of(y.to_dtype(if kind.is_float() { kind.word() } else { dtype })?, kind)])
}

/// The maxima, and where each is in the whole input, counted by rows or by columns.
fn with_positions(call: &Call, window: &Window, x: &Tensor) -> Result<(Tensor, Tensor)> {
    if window.rank == 3 {
        return call.refuse("the positions of maxima over three dimensions");
    }
    let image = window.image(x)?;
    let &[n, c, h, w] = image.shape() else { return Err(fault("an input without channels")) };
    let pads = window.pool_pads();
    let padded = if pads { image } else { window.image(&window.padded(x, f64::NEG_INFINITY)?)? };
    let (values, places) = padded.max_pool2d_with_indices(window.pool::<2>(pads))?;
    let mut places = places.to_dtype(DType::I32)?;
    let whole = |size: usize| i32::try_from(size).unwrap_or(i32::MAX);
    if !pads || call.flag("storage_order") {
        // A window without a number above −∞ has its maximum in the padding: its position is the nearest pixel.
        let within = |place: Tensor, before: usize, size: usize| {
            place.sub(whole(before))?.maximum(0)?.minimum(whole(size.saturating_sub(1)))
        };
        let [top, left]: [usize; 2] = if pads { [0, 0] } else { lifted(&window.begin, 0) };
        let width = whole(padded.shape()[3]);
        let row = within(places.div_trunc(width)?, top, h)?;
        let column = within(places.rem(width)?, left, w)?;
        places = match call.flag("storage_order") {
            true => column.mul(whole(h))?.add(&row)?,
            false => row.mul(whole(w))?.add(&column)?,
        };
    }
    let planes =
        Tensor::iota(n * c, call.device)?.to_dtype(DType::I32)?.mul(i32::try_from(h * w).unwrap_or(i32::MAX))?;
    let places = places.add(&planes.reshape([n, c, 1, 1])?)?;
    Ok((window.back(values)?, window.back(places)?))
}

/// Maxima at their positions, and zeros around them.
fn max_unpool(call: &Call) -> Result<Tensor> {
    let (x, places) = (call.x(0)?, call.x(1)?);
    let window = Window::of(call, &x, &kernel(call)?)?;
    let mut shape = x.shape().to_vec();
    for d in 0..window.rank {
        let whole = (x.shape()[2 + d].saturating_sub(1)) * window.stride[d] + window.kernel[d];
        shape[2 + d] = whole.saturating_sub(window.begin[d] + window.end[d]);
    }
    let zeros = Tensor::zeros(shape.iter().product::<usize>(), call.device)?.to_dtype(x.dtype())?;
    let y = zeros.scatter(0, &places.reshape(-1)?, &x.reshape(-1)?)?.reshape(shape.clone())?;
    let Some(wanted) = call.whole(2)? else { return Ok(y) };
    let wanted = sizes(&wanted)?;
    let more = |d: usize| wanted.get(d).and_then(|&wanted| wanted.checked_sub(shape[d])).map(|more| (0, more));
    let margins: Option<Vec<_>> = (0..shape.len()).map(more).collect();
    y.pad(
        &margins.ok_or_else(|| fault(format!("the output {wanted:?} is smaller than {shape:?}")))?,
        Padding::Constant(0.0),
    )
}

/// The sums over all windows, which may be dilated; what is beyond the image counts as 0.
fn window_sums(window: &Window, x: &Tensor) -> Result<Tensor> {
    let (planes, image) = (x.shape()[0] * x.shape()[1], &x.shape()[2..]);
    let mut margins = Vec::new();
    let mut counts = x.shape()[..2].to_vec();
    for (d, &pixels) in image.iter().enumerate() {
        let (size, stride) = (pixels + window.begin[d] + window.end[d], window.stride[d]);
        let span = window.dilation[d] * (window.kernel[d] - 1) + 1;
        let rest = size.checked_sub(span).ok_or_else(|| fault("a window is larger than the image"))?;
        let mut steps = if window.ceil { rest.div_ceil(stride) } else { rest / stride };
        // A window that begins beyond the image and its first padding does not count.
        if window.ceil && steps * stride >= pixels + window.begin[d] {
            steps -= 1;
        }
        margins.push((window.begin[d], window.end[d] + (steps * stride + span).saturating_sub(size)));
        counts.push(steps + 1);
    }
    let padded = x.reshape([&[planes, 1], image].concat())?.pad(&margins, Padding::Constant(0.0))?;
    let ones = Tensor::ones([&[1, 1], &window.kernel[..]].concat(), x.device())?;
    let sums = match window.rank {
        3 => padded.conv3d(&ones, None, window.conv(1))?,
        _ => window.back(window.image(&padded)?.conv2d(&window.image(&ones)?, None, window.conv(1))?)?,
    };
    let mut sums = sums;
    for d in 0..window.rank {
        sums = sums.narrow(2 + d, 0, counts[2 + d])?;
    }
    sums.reshape(counts)
}

/// The mean over each window, of the image's own elements or also of the padding.
pub(super) fn average_pool(call: &Call, x: &Tensor) -> Result<Tensor> {
    let window = Window::of(call, x, &kernel(call)?)?;
    let counts = call.flag("count_include_pad");
    if window.dilation.iter().any(|&step| step != 1) || (!window.pool_pads() && window.ceil) {
        let sums = window_sums(&window, x)?;
        let ones = Tensor::ones([&[1, 1], &x.shape()[2..]].concat(), x.device())?;
        if !counts {
            return sums.div(&window_sums(&window, &ones)?);
        }
        // The padding counts, but not what a last window needs beyond it.
        let wide = window.padded(&ones, 1.0)?;
        let zeros = || vec![0; window.rank];
        let around = Window {
            begin: zeros(),
            end: zeros(),
            kernel: window.kernel.clone(),
            stride: window.stride.clone(),
            dilation: window.dilation.clone(),
            ..window
        };
        let totals = window_sums(&around, &wide)?;
        let shape = sums.shape().to_vec();
        let mut totals = totals;
        for (d, &size) in shape.iter().enumerate().skip(2) {
            totals = totals.narrow(d, 0, size)?;
        }
        return sums.div(&totals);
    }
    let pads = window.pool_pads();
    let mean = |x: &Tensor, include: bool| {
        let padded = if pads { x.clone() } else { window.padded(x, 0.0)? };
        match window.rank {
            3 => padded.avg_pool3d(window.pool::<3>(pads).count_include_pad(include)),
            _ => window.back(window.image(&padded)?.avg_pool2d(window.pool::<2>(pads).count_include_pad(include))?),
        }
    };
    // Where the padding is made before the pool and does not count, the mean is a quotient of two means.
    match counts || pads {
        true => mean(x, counts),
        false => mean(x, true)?.div(&mean(&Tensor::ones(x.shape(), x.device())?, true)?),
    }
}

/// The exponent of a norm, which was a float at first.
fn exponent(call: &Call) -> f32 {
    if call.opset() < 2 { call.float("p", 2.0) } else { call.int("p", 2) as f32 }
}

/// (Σ |x|ᵖ)¹⸍ᵖ over a window.
fn lp_pool(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let window = Window::of(call, &x, &kernel(call)?)?;
    let p = exponent(call);
    window_sums(&window, &x.abs()?.pow(p)?)?.pow(1.0 / p)
}
