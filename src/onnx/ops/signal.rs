//! Operators of signals: Fourier transforms, windows, mel scales.

use std::f64::consts::PI;

use super::super::array::{Array, Elements};
use super::super::call::{Call, Operator, size};
use super::super::element_type::ElementType;
use super::super::fault;
use super::super::value::Value;
use crate::Padding;
use crate::device::cpu::{collected, with_room};
use crate::error::Result;
use crate::tensor::Tensor;

/// The longest transform: its matrix has this many rows and columns.
const LONGEST: usize = 1 << 13;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "DFT" => Operator::One(dft),
        "STFT" => Operator::One(stft),
        "HannWindow" => Operator::Values(|call| window(call, &[0.5, 0.5])),
        "HammingWindow" => Operator::Values(|call| window(call, &[25.0 / 46.0, 21.0 / 46.0])),
        "BlackmanWindow" => Operator::Values(|call| window(call, &[0.42, 0.5, 0.08])),
        "MelWeightMatrix" => Operator::Values(mel_weights),
        _ => return None,
    })
}

/// The cosines and sines of a transform from `n` values to `k` frequencies, as matrices `[n, k]`.
fn matrices(call: &Call, n: usize, k: usize) -> Result<(Tensor, Tensor)> {
    if n > LONGEST {
        return call.refuse(format!("a Fourier transform of {n} values"));
    }
    // The product is taken modulo n first, so that the angle is exact.
    let angle = |i: usize| 2.0 * PI * ((i / k * (i % k)) % n) as f64 / n as f64;
    let table =
        |f: fn(f64) -> f64| Tensor::from_vec(collected((0..n * k).map(|i| f(angle(i)) as f32))?, [n, k], call.device);
    Ok((table(f64::cos)?, table(f64::sin)?))
}

/// The transform of real and imaginary parts `[.., n]` to `[.., k, 2]`.
fn transform(call: &Call, re: &Tensor, im: Option<&Tensor>, k: usize, inverse: bool) -> Result<Tensor> {
    let n = re.shape().last().copied().unwrap_or(0);
    let (cos, sin) = matrices(call, n, k)?;
    let sign = if inverse { 1.0 } else { -1.0 };
    let (mut a, mut b) = (re.matmul(&cos)?, re.matmul(&sin)?.mul_scalar(sign)?);
    if let Some(im) = im {
        a = a.sub(&im.matmul(&sin)?.mul_scalar(sign)?)?;
        b = b.add(&im.matmul(&cos)?)?;
    }
    let last = a.rank();
    let y = Tensor::stack(&[a, b], last)?;
    if inverse { y.mul_scalar(1.0 / n as f32) } else { Ok(y) }
}

/// The `n` real values `[.., n, 1]` of one side of a spectrum, `[.., n / 2 + 1]`. The other side is conjugate, so
/// it doubles all terms that it has.
fn real_values(call: &Call, re: &Tensor, im: Option<&Tensor>, n: usize) -> Result<Tensor> {
    let (cos, sin) = matrices(call, n, n / 2 + 1)?;
    let weight = |k: usize| if k == 0 || 2 * k == n { 1.0 } else { 2.0 } / n as f32;
    let weights = Tensor::from_vec((0..n / 2 + 1).map(weight).collect(), [n / 2 + 1, 1], call.device)?;
    let matrix = |table: Tensor| table.t()?.mul(&weights);
    let mut y = re.matmul(&matrix(cos)?)?;
    if let Some(im) = im {
        y = y.sub(&im.matmul(&matrix(sin)?)?)?;
    }
    y.unsqueeze(y.rank())
}

/// The real and the imaginary part of `[.., 1]` or `[.., 2]`.
fn parts(x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
    let last = x.rank() - 1;
    match x.shape()[last] {
        1 => Ok((x.select(last, 0)?, None)),
        2 => Ok((x.select(last, 0)?, Some(x.select(last, 1)?))),
        parts => Err(fault(format!("a last dimension of {parts}, not 1 or 2"))),
    }
}

fn dft(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    if x.rank() < 2 {
        return Err(fault(format!("a shape of {:?}", x.shape())));
    }
    let default = if call.opset() < 20 { 1 } else { -2 };
    let axis = call.whole(2)?.and_then(|axis| axis.first().copied()).unwrap_or(call.int("axis", default));
    let dim = call.dim(axis, x.rank())?;
    let length = x.shape()[dim];
    let (one_sided, inverse) = (call.flag("onesided"), call.flag("inverse"));
    let real = one_sided && inverse;
    // One side of a spectrum belongs to real values that are twice as many without its ends.
    let default = if real { 2 * length.saturating_sub(1) } else { length };
    let count = call.whole(1)?.and_then(|length| length.first().copied()).map_or(Ok(default), size)?;
    let wanted = if real { count / 2 + 1 } else { count };
    let x = match wanted > length {
        true => {
            let mut margins = vec![(0, 0); x.rank()];
            margins[dim] = (0, wanted - length);
            x.pad(&margins, Padding::Constant(0.0))?
        }
        false => x.narrow(dim, 0, wanted)?,
    };
    let last = x.rank() - 1;
    // The dimension of the values goes before the dimension of the parts.
    let (re, im) = parts(&x.movedim(dim, last - 1)?)?;
    if real {
        return real_values(call, &re, im.as_ref(), count)?.movedim(last - 1, dim);
    }
    let k = if one_sided { wanted / 2 + 1 } else { wanted };
    transform(call, &re, im.as_ref(), k, inverse)?.movedim(last - 1, dim)
}

/// Transforms of overlapping frames: `[B, L, 1 or 2]` to `[B, frames, k, 2]`.
fn stft(call: &Call) -> Result<Tensor> {
    let (signal, window) = (call.x(0)?, call.maybe(2)?);
    let single = |i: usize| call.whole(i)?.and_then(|list| list.first().copied()).map(size).transpose();
    let step = single(1)?.unwrap_or(0);
    let length = single(3)?.or(window.as_ref().map(Tensor::elem_count)).unwrap_or(0);
    let &[_, samples, _] = signal.shape() else { return Err(fault(format!("a signal of shape {:?}", signal.shape()))) };
    if step == 0 || length == 0 || length > samples {
        return Err(fault(format!("frames of {length} every {step} of {samples} samples")));
    }
    let frames = (samples - length) / step + 1;
    let mut places: Vec<u32> = with_room(frames.saturating_mul(length))?;
    places.extend((0..frames).flat_map(|f| (0..length).map(move |i| (f * step + i) as u32)));
    let places = Tensor::from_vec(places, frames * length, call.device)?;
    let framed = |x: Tensor| -> Result<Tensor> {
        let batch = x.shape()[0];
        let x = x.index_select(1, &places)?.reshape([batch, frames, length])?;
        window.as_ref().map_or(Ok(x.clone()), |window| x.mul(window))
    };
    let (re, im) = parts(&signal)?;
    let (re, im) = (framed(re)?, im.map(framed).transpose()?);
    let k = if call.int("onesided", 1) == 1 { length / 2 + 1 } else { length };
    transform(call, &re, im.as_ref(), k, false)
}

/// Σ (−1)ⁱ aᵢ cos(2πin / N), for N the size, or one less where the window is symmetric.
fn window(call: &Call, terms: &[f64]) -> Result<Vec<Value>> {
    let count = call.whole(0)?.and_then(|count| count.first().copied()).map_or(Ok(0), size)?;
    let period = if call.int("periodic", 1) == 1 { count } else { count.saturating_sub(1) }.max(1);
    let kind = call.type_attribute("output_datatype")?.unwrap_or(ElementType::Float);
    if count > 1 << 24 {
        return call.refuse(format!("a window of {count}"));
    }
    let term = |n: usize, i: usize| {
        (2.0 * PI * (i * n) as f64 / period as f64).cos() * if i.is_multiple_of(2) { 1.0 } else { -1.0 }
    };
    let value = |n: usize| terms.iter().enumerate().map(|(i, a)| a * term(n, i)).sum::<f64>();
    let elements = Elements::Floats(collected((0..count).map(value))?);
    Ok(vec![Array { shape: vec![count], kind: ElementType::Double, elements }.cast(kind).into()])
}

/// Triangles on the mel scale, `[dft_length / 2 + 1, bins]`.
fn mel_weights(call: &Call) -> Result<Vec<Value>> {
    let number = |i: usize| call.number(i)?.ok_or_else(|| fault(format!("input {i} is missing")));
    let (bins, length, rate) = (size(number(0)? as i64)?, number(1)?, number(2)?);
    let (low, high) = (number(3)?, number(4)?);
    let rows = size(length as i64)? / 2 + 1;
    if bins.saturating_mul(rows) > 1 << 24 {
        return call.refuse(format!("a matrix of {rows} × {bins}"));
    }
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(high) - mel(low)) / (bins + 2) as f64;
    let bin = |i: usize| {
        let hertz = 700.0 * (10f64.powf((i as f64 * step + mel(low)) / 2595.0) - 1.0);
        ((length + 1.0) * hertz / rate).floor()
    };
    let mut values = with_room(rows * bins)?;
    values.resize(rows * bins, 0.0);
    // The rows of a range that are in the matrix.
    let within = |first: f64, end: f64| first.clamp(0.0, rows as f64) as usize..end.clamp(0.0, rows as f64) as usize;
    for i in 0..bins {
        let (left, centre, right) = (bin(i), bin(i + 1), bin(i + 2));
        within(left, centre + 1.0).for_each(|j| {
            values[j * bins + i] = if left == centre { 1.0 } else { (j as f64 - left) / (centre - left) };
        });
        within(centre, right).for_each(|j| values[j * bins + i] = (right - j as f64) / (right - centre));
    }
    let kind = call.type_attribute("output_datatype")?.unwrap_or(ElementType::Float);
    let array = Array { shape: vec![rows, bins], kind: ElementType::Double, elements: Elements::Floats(values) };
    Ok(vec![array.cast(kind).into()])
}
