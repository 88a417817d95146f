//! Convolutions and pooling.

use anygpu::{Conv, DType, Pool, Tensor};

use super::call::{Call, Outcome, skip};

pub fn map(call: &Call) -> Option<Outcome> {
    let out = match call.op() {
        "Conv" => conv(call),
        "ConvTranspose" => conv_transpose(call),
        "MaxPool" => max_pool(call),
        "AveragePool" => average_pool(call),
        "LpPool" => lp_pool(call),
        "GlobalAveragePool" => call.x(0).and_then(|x| Ok(x.adaptive_avg_pool2d(1)?)),
        "GlobalMaxPool" => call.x(0).and_then(|x| Ok(x.adaptive_max_pool2d(1)?)),
        _ => return None,
    };
    Some(out.map(|tensor| vec![tensor]))
}

/// How a window moves over two dimensions; one dimension is given a second of size 1 before it.
struct Window {
    flat: bool,
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    begin: [usize; 2],
    end: [usize; 2],
}

impl Window {
    /// From the attributes, for `x` and the size of a kernel.
    fn of(call: &Call, x: &Tensor, kernel: &[usize]) -> Outcome<Window> {
        let flat = match kernel.len() {
            1 => true,
            2 => false,
            rank => return skip(format!("{rank} spatial dimensions")),
        };
        // A dimension before the only one: one step of one pixel.
        let both = |list: &[usize], before: usize| if flat { [before, list[0]] } else { [list[0], list[1]] };
        let list = |name: &str, count: usize, default: usize| -> Vec<usize> {
            let given = call.ints(name).map(|list| list.iter().map(|&v| v as usize).collect());
            given.unwrap_or_else(|| vec![default; count])
        };
        let rank = kernel.len();
        let (stride, dilation) = (list("strides", rank, 1), list("dilations", rank, 1));
        let mut pads = list("pads", 2 * rank, 0);
        let auto = call.text("auto_pad", "NOTSET");
        for d in (0..rank).filter(|_| auto.starts_with("SAME")) {
            let (size, span) = (x.shape()[2 + d], dilation[d] * (kernel[d] - 1) + 1);
            let total = ((size.div_ceil(stride[d]) - 1) * stride[d] + span).saturating_sub(size);
            let less = total / 2;
            (pads[d], pads[rank + d]) = if auto == "SAME_UPPER" { (less, total - less) } else { (total - less, less) };
        }
        let (begin, end) = pads.split_at(rank);
        let (begin, end) = (both(begin, 0), both(end, 0));
        Ok(Window { flat, kernel: both(kernel, 1), stride: both(&stride, 1), dilation: both(&dilation, 1), begin, end })
    }

    /// `[N, C, H, W]` for both ranks.
    fn image(&self, x: &Tensor) -> anygpu::Result<Tensor> {
        if self.flat { x.unsqueeze(2) } else { Ok(x.clone()) }
    }

    fn back(&self, y: Tensor) -> anygpu::Result<Tensor> {
        if self.flat { y.squeeze(2) } else { Ok(y) }
    }

    /// Whether the op can do the padding: pools refuse more than half a window.
    fn leaves_padding(&self, call: &Call) -> bool {
        self.begin == self.end && (call.op() == "Conv" || (0..2).all(|d| self.begin[d] <= self.kernel[d] / 2))
    }

    /// What is left for the op to pad, and the image, padded with `value` where the op does not do it.
    fn padded(&self, call: &Call, x: &Tensor, value: f64) -> Outcome<([usize; 2], Tensor)> {
        let image = self.image(x)?;
        if self.leaves_padding(call) {
            return Ok((self.begin, image));
        }
        let margins = [0, 1].map(|d| (self.begin[d], self.end[d]));
        Ok(([0; 2], image.pad(&margins, anygpu::Padding::Constant(value))?))
    }

    fn conv(&self, call: &Call) -> Conv<2> {
        Conv::new().stride(self.stride).dilation(self.dilation).groups(call.int("group", 1) as usize)
    }

    fn pool(&self, call: &Call) -> Pool<2> {
        let pool = Pool::new(self.kernel).stride(self.stride).dilation(self.dilation);
        pool.ceil_mode(call.int("ceil_mode", 0) == 1)
    }
}

fn conv(call: &Call) -> Outcome<Tensor> {
    let (x, w, bias) = (call.x(0)?, call.x(1)?, call.maybe(2)?);
    let window = Window::of(call, &x, &w.shape()[2..])?;
    let (padding, image) = window.padded(call, &x, 0.0)?;
    let y = image.conv2d(&window.image(&w)?, bias.as_ref(), window.conv(call).padding(padding))?;
    Ok(window.back(y)?)
}

/// The whole output without padding is cut where the sides differ.
fn conv_transpose(call: &Call) -> Outcome<Tensor> {
    let (x, w, bias) = (call.x(0)?, call.x(1)?, call.maybe(2)?);
    let mut window = Window::of(call, &x, &w.shape()[2..])?;
    let more = call.ints("output_padding").map_or([0; 2], |more| [more[0] as usize, more[more.len() - 1] as usize]);
    let more = if window.flat { [0, more[1]] } else { more };
    let (image, w) = (window.image(&x)?, window.image(&w)?);
    let more = wanted_output(call, &mut window, &image, more);
    let conv = window.conv(call).output_padding(more);
    let y = match window.begin == window.end {
        true => image.conv_transpose2d(&w, bias.as_ref(), conv.padding(window.begin))?,
        false => {
            let mut y = image.conv_transpose2d(&w, bias.as_ref(), conv)?;
            for d in 0..2 {
                y = y.narrow(2 + d, window.begin[d], y.shape()[2 + d] - window.begin[d] - window.end[d])?;
            }
            y
        }
    };
    Ok(window.back(y)?)
}

/// Pads, or more at the end, from `output_shape`, or from SAME, which means the input's size times the stride.
fn wanted_output(call: &Call, window: &mut Window, image: &Tensor, mut more: [usize; 2]) -> [usize; 2] {
    let auto = call.text("auto_pad", "NOTSET");
    let wanted = call.ints("output_shape");
    if wanted.is_none() && !auto.starts_with("SAME") {
        return more;
    }
    for d in 0..2 {
        let (size, stride) = (image.shape()[2 + d], window.stride[d]);
        let out = match &wanted {
            Some(list) => list[list.len() - 2 + d] as usize,
            None => size * stride,
        };
        let whole = stride * (size - 1) + more[d] + (window.kernel[d] - 1) * window.dilation[d] + 1;
        more[d] += out.saturating_sub(whole);
        let total = whole.saturating_sub(out);
        let less = total / 2;
        let upper = auto == "SAME_UPPER";
        (window.begin[d], window.end[d]) = if upper { (less, total - less) } else { (total - less, less) };
    }
    more
}

fn kernel(call: &Call) -> Vec<usize> {
    call.ints("kernel_shape").unwrap_or_default().iter().map(|&size| size as usize).collect()
}

fn max_pool(call: &Call) -> Outcome<Tensor> {
    if call.node.output.len() > 1 {
        return skip("the positions of the maxima");
    }
    // Ours pools floats; every u8 is one.
    let (x, dtype) = (call.x(0)?.to_dtype(DType::F32)?, call.x(0)?.dtype());
    let window = Window::of(call, &x, &kernel(call))?;
    let (padding, image) = window.padded(call, &x, f64::NEG_INFINITY)?;
    Ok(window.back(image.max_pool2d(window.pool(call).padding(padding))?)?.to_dtype(dtype)?)
}

/// Where padding that the op does not make itself does not count, the mean is a quotient of two means.
fn average_pool(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let window = Window::of(call, &x, &kernel(call))?;
    if window.dilation != [1, 1] {
        return skip("dilated windows of a mean, which PyTorch lacks too");
    }
    let counts = call.int("count_include_pad", 0) == 1;
    let mean = |x: &Tensor| {
        let (padding, image) = window.padded(call, x, 0.0)?;
        let include = counts || !window.leaves_padding(call);
        Outcome::Ok(image.avg_pool2d(window.pool(call).padding(padding).count_include_pad(include))?)
    };
    let y = match counts || window.leaves_padding(call) {
        true => mean(&x)?,
        false => mean(&x)?.div(&mean(&Tensor::ones(x.shape(), x.device())?)?)?,
    };
    Ok(window.back(y)?)
}

/// (Σ |x|ᵖ)¹⸍ᵖ over a window.
fn lp_pool(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let window = Window::of(call, &x, &kernel(call))?;
    if window.dilation != [1, 1] {
        return skip("dilated windows of a mean, which PyTorch lacks too");
    }
    let p = call.int("p", 2) as f32;
    let (padding, image) = window.padded(call, &x.abs()?.pow(p)?, 0.0)?;
    let count = (window.kernel[0] * window.kernel[1]) as f32;
    let sum = image.avg_pool2d(window.pool(call).padding(padding))?.mul_scalar(count)?;
    Ok(window.back(sum.pow(1.0 / p)?)?)
}
