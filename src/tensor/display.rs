//! Printing, as PyTorch prints: nested rows, four digits, the middle of long dimensions left out, then the device.

use std::fmt;

use crate::dtype::DType;
use crate::error::Result;
use crate::ops::cat;
use crate::tensor::Tensor;

/// Tensors with more elements than this are printed without the middle of their dimensions.
const THRESHOLD: usize = 1000;
/// Elements shown at either end of a dimension that is cut.
const EDGE: usize = 3;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match text(self) {
            Ok(body) => write!(f, "tensor({body}")?,
            Err(error) => write!(f, "tensor(<unreadable: {error}>, shape={:?}", self.shape())?,
        }
        if !self.device().is_cpu() {
            write!(f, ", device='{}'", self.device())?;
        }
        if !matches!(self.dtype(), DType::F32 | DType::Bool) {
            write!(f, ", dtype={}", self.dtype())?;
        }
        if self.is_leaf() {
            f.write_str(", requires_grad=True")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The elements of all but the middle of long dimensions: what is printed, and all that is read from the device.
fn corners(tensor: &Tensor) -> Result<Tensor> {
    let mut out = tensor.detach();
    if tensor.elem_count() <= THRESHOLD {
        return Ok(out);
    }
    for dim in 0..tensor.rank() {
        let size = tensor.shape()[dim];
        if size > 2 * EDGE {
            out = cat(&[&out.narrow(dim, 0, EDGE)?, &out.narrow(dim, size - EDGE, EDGE)?], dim)?;
        }
    }
    Ok(out)
}

fn text(tensor: &Tensor) -> Result<String> {
    let shown = corners(tensor)?;
    let words = shown.to_dtype(tensor.dtype().wide())?.to_words()?;
    let cells: Vec<String> = match tensor.dtype() {
        DType::F32 | DType::F16 | DType::BF16 => floats(bytemuck::cast_slice(&words)),
        DType::I32 => bytemuck::cast_slice::<u32, i32>(&words).iter().map(i32::to_string).collect(),
        DType::U32 | DType::U8 => words.iter().map(u32::to_string).collect(),
        DType::Bool => words.iter().map(|&word| if word != 0 { "True" } else { "False" }.to_owned()).collect(),
    };
    let width = if tensor.rank() == 0 { 0 } else { cells.iter().map(String::len).max().unwrap_or(0) };
    let cells: Vec<String> = cells.into_iter().map(|c| format!("{c:>width$}")).collect();
    let mut out = String::new();
    nest(&mut out, &cells, tensor.shape(), shown.shape(), "tensor(".len());
    Ok(out)
}

/// Whole numbers as `1.`, others with four digits, very large or small ones in scientific notation.
fn floats(values: &[f32]) -> Vec<String> {
    let finite = || values.iter().copied().filter(|v| v.is_finite());
    let largest = finite().fold(0.0, |m: f32, v| m.max(v.abs()));
    let smallest = finite().filter(|v| *v != 0.0).fold(f32::INFINITY, |m, v| m.min(v.abs()));
    let whole = finite().all(|v| v.fract() == 0.0);
    let scientific = largest > 1e8 || largest / smallest > 1e3 || (!whole && smallest < 1e-4);
    let one = |v: f32| match v {
        v if v.is_nan() => "nan".to_owned(),
        v if v.is_infinite() => if v > 0.0 { "inf" } else { "-inf" }.to_owned(),
        v if scientific => exponential(v),
        v if whole => format!("{v:.0}."),
        v => format!("{v:.4}"),
    };
    values.iter().map(|&v| one(v)).collect()
}

/// `1.0000e+03`: the exponent with its sign and at least two digits.
fn exponential(value: f32) -> String {
    let text = format!("{value:.4e}");
    match text.split_once('e').map(|(digits, exponent)| (digits, exponent.parse::<i32>())) {
        Some((digits, Ok(exponent))) => format!("{digits}e{exponent:+03}"),
        _ => text,
    }
}

/// Writes one dimension, and those inside it, indented as far as it is nested.
fn nest(out: &mut String, cells: &[String], shape: &[usize], shown: &[usize], indent: usize) {
    let Some((&count, rest)) = shown.split_first() else {
        out.extend(cells.first().map(String::as_str));
        return;
    };
    out.push('[');
    let inner: usize = rest.iter().product();
    let separator = match rest.len() {
        0 => ", ".to_owned(),
        deep => format!(",{}{}", "\n".repeat(deep), " ".repeat(indent + 1)),
    };
    for i in 0..count {
        if i > 0 {
            out.push_str(&separator);
        }
        if count < shape[0] && i == EDGE {
            out.push_str("...");
            out.push_str(&separator);
        }
        nest(out, &cells[i * inner..(i + 1) * inner], &shape[1..], rest, indent + 1);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use crate::Tensor;

    fn printed(tensor: crate::Result<Tensor>) -> String {
        tensor.map_or_else(|e| e.to_string(), |t| t.to_string())
    }

    #[test]
    fn prints_as_pytorch_does() {
        assert_eq!(printed(Tensor::scalar(1.5, None)), "tensor(1.5000)");
        assert_eq!(printed(Tensor::try_from([1.0, -2.0])), "tensor([ 1., -2.])");
        assert_eq!(
            printed(Tensor::try_from([[1.5, 2.0], [3.0, 4.0]])),
            "tensor([[1.5000, 2.0000],\n        [3.0000, 4.0000]])"
        );
        assert_eq!(printed(Tensor::try_from([3u32, 10])), "tensor([ 3, 10], dtype=u32)");
        assert_eq!(printed(Tensor::zeros([0], None)), "tensor([])");
        assert_eq!(printed(Tensor::zeros([2, 1, 2], None)), "tensor([[[0., 0.]],\n\n        [[0., 0.]]])");
    }

    #[test]
    fn leaves_out_the_middle_of_long_dimensions() {
        let long = printed(Tensor::arange(2000.0, 4000.0, 1.0, None));
        assert_eq!(long, "tensor([2000., 2001., 2002., ..., 3997., 3998., 3999.])");
        let wide = printed(Tensor::try_from([1.0, 2000.0]));
        assert_eq!(wide, "tensor([1.0000e+00, 2.0000e+03])");
    }
}
