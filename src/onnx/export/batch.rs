//! A graph for any size of the batch, from the graphs of two sizes: what differs between them depends on the size.
//! The graph of a third size shows whether it depends on the size as the two suggest.

use super::graph::{Graph, Node, Operand, Source, Value};
use crate::autograd::no_grad;
use crate::error::{Error, Result};
use crate::onnx::fault;
use crate::ops::traced::Key;
use crate::tensor::Tensor;

/// The sizes of the batches that are compared. 1 is left out, since dimensions of size 1 are broadcast. The third is odd, and not
/// near the others, so that parts of it that are rounded, or limited to something, do not lie on the line through these.
pub(super) const SIZES: [usize; 3] = [2, 3, 11];

/// An integer: `fixed + per_sample · N` for N samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Extent {
    pub fixed: i64,
    pub per_sample: i64,
}

impl Extent {
    /// Returns the integer that has these values for the three sizes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they do not grow evenly.
    fn of(what: &str, [a, b, c]: [i64; 3]) -> Result<Extent> {
        let per_sample = b.wrapping_sub(a);
        let extent = Extent { fixed: a.wrapping_sub(per_sample.wrapping_mul(SIZES[0] as i64)), per_sample };
        if extent.fixed.wrapping_add(per_sample.wrapping_mul(SIZES[2] as i64)) != c {
            return Err(depends(format!("{what}, which is {a}, {b} and {c} for {SIZES:?} samples,")));
        }
        Ok(extent)
    }

    /// Returns the integers that have these values for the three sizes. All lists have the same length.
    fn all_of(what: &str, [a, b, c]: [&[i64]; 3]) -> Result<Vec<Extent>> {
        a.iter().zip(b).zip(c).map(|((&a, &b), &c)| Extent::of(what, [a, b, c])).collect()
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

/// Compares the graphs of the three sizes.
///
/// # Errors
/// [`Error::InvalidArgument`] if they differ in more than lists of integers and constants of equal elements, or if these do not grow
/// evenly.
pub(super) fn merged([a, b, c]: [&Graph; 3]) -> Result<Merged> {
    let unlike = |b: &Graph| {
        let ops = a
            .nodes
            .iter()
            .zip(&b.nodes)
            .any(|(a, b)| a.op != b.op || a.inputs.len() != b.inputs.len() || a.outputs != b.outputs);
        a.nodes.len() != b.nodes.len() || a.values.len() != b.values.len() || a.outputs != b.outputs || ops
    };
    if unlike(b) || unlike(c) {
        return Err(depends("which ops are computed".into()));
    }
    let mut inputs = Vec::with_capacity(a.nodes.len());
    let mut used = vec![false; a.values.len()];
    for (a, (b, c)) in a.nodes.iter().zip(b.nodes.iter().zip(&c.nodes)) {
        if a.attributes != b.attributes || a.attributes != c.attributes {
            return Err(depends(format!("an attribute of {}", a.op)));
        }
        let each = a.inputs.iter().zip(b.inputs.iter().zip(&c.inputs));
        inputs.push(each.map(|(x, (y, z))| input(a.op, [x, y, z])).collect::<Result<Vec<_>>>()?);
        for operand in &a.inputs {
            if let Operand::Value(id) = operand {
                used[*id] = true;
            }
        }
    }
    let each = a.values.iter().zip(b.values.iter().zip(&c.values)).zip(used);
    let uniform = each.map(|((a, (b, c)), used)| if used { constant([a, b, c]) } else { Ok(None) });
    Ok(Merged { inputs, uniform: uniform.collect::<Result<_>>()? })
}

fn input(op: &str, all: [&Operand; 3]) -> Result<Input> {
    match all {
        [a, b, c] if a == b && a == c => Ok(Input::Operand(a.clone())),
        [Operand::Ints(a), Operand::Ints(b), Operand::Ints(c)] if a.len() == b.len() && a.len() == c.len() => {
            Ok(Input::Extents(Extent::all_of(&format!("an input of {op}"), [a, b, c])?))
        }
        _ => Err(depends(format!("an input of {op}"))),
    }
}

/// Returns a shape for any size of the batch, from the shapes for the three sizes.
///
/// # Errors
/// [`Error::InvalidArgument`] if the ranks differ, or if the sizes do not grow evenly.
pub(super) fn extents(what: &str, shapes: [&[usize]; 3]) -> Result<Vec<Extent>> {
    let [a, b, c] = shapes.map(|shape| shape.iter().map(|&size| size as i64).collect::<Vec<_>>());
    if a.len() != b.len() || a.len() != c.len() {
        return Err(depends(format!("the rank of {what}")));
    }
    Extent::all_of(&format!("a size of {what}"), [&a, &b, &c])
}

/// Compares the constants of three graphs. Returns what they are in general, if they differ.
fn constant([a, b, c]: [&Value; 3]) -> Result<Option<Uniform>> {
    if let (Source::Tensor(x), Source::Tensor(y), Source::Tensor(z)) = (&a.source, &b.source, &c.source)
        && (x.shape() != y.shape() || x.shape() != z.shape())
    {
        let shapes = [x, y, z].map(|x| x.shape());
        let number = equal_elements(x)?;
        if number.is_none() || number != equal_elements(y)? || number != equal_elements(z)? {
            let [x, y, z] = shapes;
            return Err(depends(format!("a constant of shapes {x:?}, {y:?} and {z:?}")));
        }
        let shape = extents("a constant", shapes)?;
        return Ok(number.map(|number| Uniform { shape, number }));
    }
    match same_constant(a, b)? && same_constant(a, c)? {
        true => Ok(None),
        false => Err(depends("a constant".into())),
    }
}

fn same_constant(a: &Value, b: &Value) -> Result<bool> {
    Ok(match (&a.source, &b.source) {
        (Source::Tensor(x), Source::Tensor(y)) => Key::of(x) == Key::of(y) || x.to_words()? == y.to_words()?,
        (Source::Number(x), Source::Number(y)) => x.to_bits() == y.to_bits(),
        (Source::Floats(x, of_x), Source::Floats(y, of_y)) => {
            of_x == of_y && bytemuck::cast_slice::<f32, u32>(x) == bytemuck::cast_slice::<f32, u32>(y)
        }
        (Source::Named(x, _), Source::Named(y, _)) => x == y,
        (Source::Input(x), Source::Input(y)) => x == y,
        (Source::Node { node: x, output: i }, Source::Node { node: y, output: j }) => (x, i) == (y, j),
        _ => false,
    })
}

/// Returns the number that all elements are, if they are equal.
fn equal_elements(x: &Tensor) -> Result<Option<f64>> {
    let dtype = x.dtype();
    let wide = no_grad(|| x.to_dtype(dtype.wide()))?.to_words()?;
    let first = wide.first().copied();
    Ok(first.filter(|first| wide.iter().all(|word| word == first)).map(|word| dtype.number(word)))
}
