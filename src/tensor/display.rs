//! Formatting as in PyTorch (torch/_tensor_str.py): nested rows, four digits, long dimensions without their middle,
//! then the device and the element type. `tests/nn/pytorch/` compares the two.

use std::fmt;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::cat;
use crate::tensor::Tensor;

/// Tensors with more elements than this are printed without the middle of their dimensions.
const THRESHOLD: usize = 1000;
/// Elements shown at each end of a shortened dimension.
const EDGE: usize = 3;
/// Characters in a line; longer rows are wrapped.
const LINE: usize = 80;
/// The text before the elements.
const HEAD: &str = "tensor(";

/// Prints the tensor in PyTorch's format, with its device and its type unless they are `cpu` and f32. For a result of a
/// recorded op, `grad_fn` shows the op's name, as in errors and in the op table.
///
/// ```
/// # use anygpu::Tensor;
/// let x = Tensor::new([1.0, 2.5], None)?.requires_grad();
/// assert_eq!(x.to_string(), "tensor([1.0000, 2.5000], requires_grad=True)");
/// assert_eq!((&x * 2.0)?.to_string(), "tensor([2., 5.], grad_fn=<mul>)");
/// # Ok::<(), anygpu::Error>(())
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = text(self).unwrap_or_else(|error| format!("<unreadable: {error}>, shape={:?}", self.shape()));
        let text = format!("{HEAD}{body}");
        f.write_str(&text)?;
        let mut column = text.rfind('\n').map_or(text.len() + 2, |newline| text.len() - newline + 1);
        for suffix in suffixes(self) {
            if column + suffix.len() + 2 > LINE {
                write!(f, ",\n{:indent$}{suffix}", "", indent = HEAD.len())?;
                column = HEAD.len() + suffix.len();
            } else {
                write!(f, ", {suffix}")?;
                column += suffix.len() + 2;
            }
        }
        f.write_str(")")
    }
}

/// Returns the suffixes: device, size and type, each only where it cannot be seen from the elements, and the place in the
/// graph: `grad_fn=<mul>` with the name of the op that made the tensor, or `requires_grad=True`.
fn suffixes(tensor: &Tensor) -> Vec<String> {
    let mut all = Vec::new();
    let empty = tensor.elem_count() == 0;
    if *tensor.device() != Device::cpu() {
        all.push(format!("device='{}'", tensor.device()));
    }
    if empty && tensor.rank() != 1 {
        let sizes: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
        all.push(format!("size=({})", sizes.join(", ")));
    }
    if tensor.dtype() != DType::F32 && (empty || tensor.dtype() != DType::Bool) {
        all.push(format!("dtype={}", tensor.dtype()));
    }
    if let Some(node) = tensor.node() {
        all.push(format!("grad_fn=<{}>", node.name()));
    } else if tensor.is_leaf() {
        all.push("requires_grad=True".to_owned());
    }
    all
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the elements that are printed: all but the middle of long dimensions. Only these are read from the device.
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
    if tensor.elem_count() == 0 {
        return Ok("[]".to_owned());
    }
    let shown = corners(tensor)?;
    let widest = |cells: Vec<String>| {
        let width = cells.iter().map(String::len).max().unwrap_or(0);
        (cells, width)
    };
    let (cells, width) = match tensor.dtype() {
        dtype if dtype.is_float() => floats(&shown.to_vec_f64()?),
        DType::I64 => widest(shown.to_vec::<i64>()?.iter().map(i64::to_string).collect()),
        other => {
            let words = shown.to_dtype(other.wide())?.to_words()?;
            widest(words.iter().map(|&word| whole(word, other)).collect())
        }
    };
    let cells: Vec<String> = cells.into_iter().map(|c| format!("{c:>width$}")).collect();
    let per_line = |indent: usize| (LINE.saturating_sub(indent) / (width + 2)).max(1);
    let mut out = String::new();
    nest(&mut out, &cells, tensor.shape(), shown.shape(), HEAD.len(), &per_line);
    Ok(out)
}

fn whole(word: u32, dtype: DType) -> String {
    match dtype {
        DType::I32 => (word as i32).to_string(),
        DType::Bool => if word != 0 { "True" } else { "False" }.to_owned(),
        _ => word.to_string(),
    }
}

/// Formats whole numbers as `1.`, others with four digits, very large or small ones in scientific notation. Returns the
/// width of the widest, too. Zeros, NaN and infinities affect neither the notation nor the width.
fn floats(values: &[f64]) -> (Vec<String>, usize) {
    let counted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite() && *v != 0.0).collect();
    let largest = counted.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    let smallest = counted.iter().fold(f64::INFINITY, |m, v| m.min(v.abs()));
    let whole = counted.iter().all(|v| v.fract() == 0.0);
    let scientific = largest > 1e8 || largest / smallest > 1e3 || (!whole && smallest < 1e-4);
    let one = |v: f64| match v {
        v if v.is_nan() => "nan".to_owned(),
        v if v.is_infinite() => if v > 0.0 { "inf" } else { "-inf" }.to_owned(),
        v if scientific => exponential(v),
        v if whole => format!("{v:.0}."),
        v => format!("{v:.4}"),
    };
    let width = counted.iter().map(|&v| one(v).len()).max().unwrap_or(1);
    (values.iter().map(|&v| one(v)).collect(), width)
}

/// Formats a number as `1.0000e+03`: the exponent has its sign and at least two digits.
fn exponential(value: f64) -> String {
    let text = format!("{value:.4e}");
    match text.split_once('e').map(|(digits, exponent)| (digits, exponent.parse::<i32>())) {
        Some((digits, Ok(exponent))) => format!("{digits}e{exponent:+03}"),
        _ => text,
    }
}

/// Writes one dimension and those inside it, indented by nesting depth.
fn nest(
    out: &mut String,
    cells: &[String],
    shape: &[usize],
    shown: &[usize],
    indent: usize,
    per_line: &dyn Fn(usize) -> usize,
) {
    let Some((&count, rest)) = shown.split_first() else {
        out.extend(cells.first().map(String::as_str));
        return;
    };
    out.push('[');
    let inner: usize = rest.iter().product();
    let cut = count < shape[0];
    let new_line = format!(",{}{:pad$}", "\n".repeat(rest.len().max(1)), "", pad = indent + 1);
    // The dots count as one element of the line.
    for place in 0..count + usize::from(cut) {
        if place > 0 {
            let same_line = rest.is_empty() && !place.is_multiple_of(per_line(indent));
            out.push_str(if same_line { ", " } else { &new_line });
        }
        match place {
            EDGE if cut => out.push_str(if rest.is_empty() { " ..." } else { "..." }),
            _ => {
                let i = if cut && place > EDGE { place - 1 } else { place };
                nest(out, &cells[i * inner..(i + 1) * inner], &shape[1..], rest, indent + 1, per_line);
            }
        }
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
        assert_eq!(long, "tensor([2000., 2001., 2002.,  ..., 3997., 3998., 3999.])");
        let wide = printed(Tensor::try_from([1.0, 2000.0]));
        assert_eq!(wide, "tensor([1.0000e+00, 2.0000e+03])");
    }
}
