//! A graph for any size of the batch, from the graphs of two sizes: what differs between them depends on the size.

use super::graph::{Graph, Node, Operand, Source, Value};
use crate::autograd::no_grad;
use crate::error::{Error, Result};
use crate::onnx::fault;
use crate::ops::traced::Key;
use crate::tensor::Tensor;

/// The sizes of the batches that are compared. 1 is left out, since dimensions of size 1 are broadcast.
pub(super) const SIZES: [usize; 2] = [2, 3];

/// An integer: `fixed + per_sample · N` for N samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Extent {
    pub fixed: i64,
    pub per_sample: i64,
}

impl Extent {
    /// The integer that is these numbers for the two sizes.
    fn of(pair: [i64; 2]) -> Extent {
        let per_sample = pair[1].wrapping_sub(pair[0]) / (SIZES[1] - SIZES[0]) as i64;
        Extent { fixed: pair[0].wrapping_sub(per_sample.wrapping_mul(SIZES[0] as i64)), per_sample }
    }
}

/// An input of a node, for any size of the batch.
#[derive(Clone, Debug)]
pub(super) enum Input {
    Operand(Operand),
    /// A list that depends on the size.
    Extents(Vec<Extent>),
}

/// A constant whose elements are all equal, and whose shape depends on the size.
#[derive(Clone, Debug)]
pub(super) struct Uniform {
    pub shape: Vec<Extent>,
    pub number: f64,
}

/// What depends on the size: the inputs of each node, and constants by value.
#[derive(Debug)]
pub(super) struct Merged {
    pub inputs: Vec<Vec<Input>>,
    pub uniform: Vec<Option<Uniform>>,
}

/// Returns the inputs of the nodes of a graph as they are.
pub(super) fn fixed(graph: &Graph) -> Merged {
    let inputs = |node: &Node| node.inputs.iter().cloned().map(Input::Operand).collect();
    Merged { inputs: graph.nodes.iter().map(inputs).collect(), uniform: vec![None; graph.values.len()] }
}

fn depends(what: String) -> Error {
    fault(format!("{what} depends on the size of the batch: export with the size of the example (fixed_batch)"))
}

/// Compares the graphs of the two sizes.
///
/// # Errors
/// [`Error::InvalidArgument`] if they differ in more than lists of integers and constants of equal
/// elements.
pub(super) fn merged(a: &Graph, b: &Graph) -> Result<Merged> {
    if a.nodes.len() != b.nodes.len() || a.values.len() != b.values.len() || a.outputs != b.outputs {
        return Err(depends("which ops are computed".into()));
    }
    let mut inputs = Vec::with_capacity(a.nodes.len());
    let mut used = vec![false; a.values.len()];
    for (a, b) in a.nodes.iter().zip(&b.nodes) {
        if a.op != b.op || a.inputs.len() != b.inputs.len() || a.outputs != b.outputs {
            return Err(depends("which ops are computed".into()));
        }
        if a.attributes != b.attributes {
            return Err(depends(format!("an attribute of {}", a.op)));
        }
        let pairs = a.inputs.iter().zip(&b.inputs);
        inputs.push(pairs.map(|(x, y)| input(a.op, x, y)).collect::<Result<Vec<_>>>()?);
        for operand in &a.inputs {
            if let Operand::Value(id) = operand {
                used[*id] = true;
            }
        }
    }
    let pairs = a.values.iter().zip(&b.values).zip(used);
    let uniform = pairs.map(|((a, b), used)| if used { constant(a, b) } else { Ok(None) }).collect::<Result<_>>()?;
    Ok(Merged { inputs, uniform })
}

fn input(op: &str, a: &Operand, b: &Operand) -> Result<Input> {
    match (a, b) {
        (Operand::Ints(x), Operand::Ints(y)) if x != y && x.len() == y.len() => {
            let extents: Vec<Extent> = x.iter().zip(y).map(|(&x, &y)| Extent::of([x, y])).collect();
            Ok(Input::Extents(extents))
        }
        _ if a == b => Ok(Input::Operand(a.clone())),
        _ => Err(depends(format!("an input of {op}"))),
    }
}

/// Returns a shape for any size, from those of the two sizes.
pub(super) fn extents(a: &[usize], b: &[usize]) -> Vec<Extent> {
    a.iter().zip(b).map(|(&a, &b)| Extent::of([a as i64, b as i64])).collect()
}

/// Compares two constants. Returns what they are in general, if they differ.
fn constant(a: &Value, b: &Value) -> Result<Option<Uniform>> {
    let same = match (&a.source, &b.source) {
        (Source::Tensor(x), Source::Tensor(y)) if x.shape() != y.shape() => {
            let [of_a, of_b] = [equal_elements(x)?, equal_elements(y)?];
            let number = of_a.filter(|_| of_a == of_b && x.rank() == y.rank());
            let Some(number) = number else { return Err(depends(shapes(x, y))) };
            return Ok(Some(Uniform { shape: extents(x.shape(), y.shape()), number }));
        }
        (Source::Tensor(x), Source::Tensor(y)) => Key::of(x) == Key::of(y) || x.to_words()? == y.to_words()?,
        (Source::Number(x), Source::Number(y)) => x.to_bits() == y.to_bits(),
        (Source::Floats(x, of_x), Source::Floats(y, of_y)) => {
            of_x == of_y && bytemuck::cast_slice::<f32, u32>(x) == bytemuck::cast_slice::<f32, u32>(y)
        }
        (Source::Named(x, _), Source::Named(y, _)) => x == y,
        (Source::Input(x), Source::Input(y)) => x == y,
        (Source::Node { node: x, output: i }, Source::Node { node: y, output: j }) => (x, i) == (y, j),
        _ => false,
    };
    if same { Ok(None) } else { Err(depends("a constant".into())) }
}

fn shapes(x: &Tensor, y: &Tensor) -> String {
    format!("a constant of shapes {:?} and {:?}", x.shape(), y.shape())
}

/// Returns the number that all elements are, if they are equal.
fn equal_elements(x: &Tensor) -> Result<Option<f64>> {
    let dtype = x.dtype();
    let wide = no_grad(|| x.to_dtype(dtype.wide()))?.to_words()?;
    let first = wide.first().copied();
    Ok(first.filter(|first| wide.iter().all(|word| word == first)).map(|word| dtype.number(word)))
}
