//! Shapes, parts, indices, reductions.

use super::elementwise::{arithmetic, with_number, wrapped};
use super::graph::{Attribute, Graph, Id, Operand};
use super::translate::Call;
use crate::dtype::DType;
use crate::error::Result;
use crate::onnx::ElementType;
use crate::ops::traced::{Traced, Way};
use crate::ops::{Padding, SliceRange};

const LONG: ElementType = ElementType::Int64;

pub(super) fn translate(call: &mut Call, what: &Traced) -> Result<Option<Id>> {
    let x = call.stored(0)?;
    Ok(Some(match what {
        Traced::Reshape(shape) => call.graph().reshape(x, shape),
        Traced::Permute(dims) => transpose(call.graph(), x, dims),
        Traced::Slice(parts) => slice(call, x, parts),
        Traced::Broadcast(shape) => call.graph().node("Expand", &[x.into(), shape.into()], &[]),
        Traced::Flip(dims) => {
            let all = |value: i64| Operand::Ints(vec![value; dims.len()]);
            call.graph().node("Slice", &[x.into(), all(-1), all(i64::MIN), dims.into(), all(-1)], &[])
        }
        Traced::Pad(padding, margins) => pad(call, *padding, margins)?,
        Traced::Cat(dim) => {
            let inputs = (0..call.step.inputs.len()).map(|i| Ok(call.input(i)?.into())).collect::<Result<Vec<_>>>()?;
            call.graph().node("Concat", &inputs, &[("axis", (*dim).into())])
        }
        Traced::Triangle { upper, diagonal } => {
            // Few runtimes have this for shorter integers.
            let dtype = call.dtype(0).wide();
            let x = call.input_as(0, if dtype == DType::F32 { ElementType::Float } else { LONG })?;
            let g = call.graph();
            let diagonal = g.number(*diagonal as f64, LONG);
            let part = g.node("Trilu", &[x.into(), diagonal.into()], &[("upper", (*upper).into())]);
            g.cast(part, ElementType::natural(dtype))
        }
        Traced::Along { dim, rows } => along(call, *dim, rows)?,
        Traced::MaxOfParts { dim, parts } => max_of_parts(call, *dim, parts)?,
        Traced::Interpolate { dim, size, way } => interpolate(call, *dim, *size, *way)?,
        Traced::Reduce { reduction, dims } => {
            let op = match *reduction {
                "sum" => "ReduceSum",
                "prod" => "ReduceProd",
                "max" => "ReduceMax",
                _ => "ReduceMin",
            };
            // Products in 64 bits end at the largest integer in ONNX Runtime; those in 32 bits wrap around.
            let kind = match arithmetic(call.dtype(0)) {
                LONG if op == "ReduceProd" => ElementType::Int32,
                kind => kind,
            };
            let x = call.input_as(0, kind)?;
            let id = call.graph().node(op, &[x.into(), dims.into()], &[]);
            wrapped(call, id)
        }
        Traced::Arg { dim, smallest } => {
            let x = call.input_as(0, arithmetic(call.dtype(0)))?;
            let attributes = [("axis", (*dim).into()), ("keepdims", false.into())];
            let op = if *smallest { "ArgMin" } else { "ArgMax" };
            let [id] = call.graph().nodes(op, &[x.into()], &attributes, [LONG]);
            id
        }
        Traced::Softmax { dim, log } => {
            let x = call.input(0)?;
            call.graph().node(if *log { "LogSoftmax" } else { "Softmax" }, &[x.into()], &[("axis", (*dim).into())])
        }
        Traced::RunningSum(dim) => {
            let x = call.input_as(0, arithmetic(call.dtype(0)))?;
            let g = call.graph();
            let axis = g.number(*dim as f64, LONG);
            let id = g.simple("CumSum", &[x, axis]);
            wrapped(call, id)
        }
        Traced::Argsort { descending } => {
            let x = call.input_as(0, arithmetic(call.dtype(0)))?;
            let count = Operand::Ints(vec![call.shape(0).last().map_or(1, |&size| size as i64)]);
            let kind = call.graph().kind(x);
            let attributes = [("largest", (*descending).into())];
            let [_, order] = call.graph().nodes("TopK", &[x.into(), count], &attributes, [kind, LONG]);
            order
        }
        Traced::Gather { dim, shared } => {
            let index = call.input_as(1, LONG)?;
            let op = if *shared { "Gather" } else { "GatherElements" };
            call.graph().node(op, &[x.into(), index.into()], &[("axis", (*dim).into())])
        }
        Traced::Scatter { dim, shared, reduction } => scatter(call, *dim, *shared, *reduction)?,
        Traced::IndicesFromEnd(size) => {
            let index = call.input_as(0, LONG)?;
            let g = call.graph();
            let zero = g.number(0.0, LONG);
            let negative = g.truth("Less", &[index, zero]);
            let size = g.number(*size as f64, LONG);
            let counted = g.simple("Add", &[index, size]);
            g.nodes("Where", &[negative.into(), counted.into(), index.into()], &[], [LONG])[0]
        }
        Traced::JoinIndices(size) => {
            let (a, b) = (call.input_as(0, LONG)?, call.input_as(1, LONG)?);
            let g = call.graph();
            let a = with_number(g, "Mul", a, *size as f64);
            g.simple("Add", &[a, b])
        }
        _ => return Ok(None),
    }))
}

pub(super) fn transpose(g: &mut Graph, x: Id, dims: &[usize]) -> Id {
    g.node("Transpose", &[x.into()], &[("perm", dims.into())])
}

fn slice(call: &mut Call, x: Id, parts: &[SliceRange]) -> Id {
    let shape = call.shape(0).to_vec();
    let cut: Vec<usize> = (0..parts.len()).filter(|&d| parts[d] != SliceRange::whole(shape[d])).collect();
    let ints = |f: &dyn Fn(SliceRange) -> usize| Operand::Ints(cut.iter().map(|&d| f(parts[d]) as i64).collect());
    let (starts, steps) = (ints(&|part| part.start), ints(&|part| part.step));
    let ends = ints(&|part| if part.len == 0 { part.start } else { part.start + (part.len - 1) * part.step + 1 });
    call.graph().node("Slice", &[x.into(), starts, ends, (&cut).into(), steps], &[])
}

fn pad(call: &mut Call, padding: Padding, margins: &[(usize, usize)]) -> Result<Id> {
    let x = call.input(0)?;
    let g = call.graph();
    let before = margins.iter().map(|margin| margin.0 as i64);
    let mut inputs =
        vec![x.into(), Operand::Ints(before.chain(margins.iter().map(|margin| margin.1 as i64)).collect())];
    let mode = match padding {
        Padding::Constant(value) => {
            let kind = g.kind(x);
            inputs.push(g.number(value, kind).into());
            "constant"
        }
        Padding::Reflect => "reflect",
        Padding::Replicate => "edge",
        Padding::Circular => {
            g.opset = g.opset.max(19);
            "wrap"
        }
    };
    Ok(g.node("Pad", &inputs, &[("mode", mode.into())]))
}

/// The product of a constant matrix with every column along a dimension.
fn along(call: &mut Call, dim: usize, rows: &[f32]) -> Result<Id> {
    let x = call.input(0)?;
    let (rank, len) = (call.shape(0).len(), call.shape(0)[dim]);
    let count = call.out_shape()[dim];
    let g = call.graph();
    if count == 1 && rows.iter().all(|&weight| weight == 1.0 / len as f32) {
        return Ok(g.node("ReduceMean", &[x.into(), Operand::Ints(vec![dim as i64])], &[]));
    }
    if dim + 2 == rank {
        let matrix = g.floats(rows.to_vec(), &[count, len]);
        let [id] = g.nodes("MatMul", &[matrix.into(), x.into()], &[], [ElementType::Float]);
        return Ok(id);
    }
    let transposed = (0..len).flat_map(|column| (0..count).map(move |row| rows[row * len + column])).collect();
    let matrix = g.floats(transposed, &[len, count]);
    let mut swapped: Vec<usize> = (0..rank).collect();
    swapped.swap(dim, rank - 1);
    let last = dim + 1 == rank;
    let x = if last { x } else { transpose(g, x, &swapped) };
    let product = g.simple("MatMul", &[x, matrix]);
    Ok(if last { product } else { transpose(g, product, &swapped) })
}

fn max_of_parts(call: &mut Call, dim: usize, parts: &[[usize; 2]]) -> Result<Id> {
    let (x, len) = (call.input(0)?, call.shape(0)[dim]);
    let g = call.graph();
    let one = |at: usize| Operand::Ints(vec![at as i64]);
    let largest = |g: &mut Graph, part: Id| g.node("ReduceMax", &[part.into(), one(dim)], &[]);
    if parts == [[0, len]] {
        return Ok(largest(g, x));
    }
    if parts.is_empty() {
        return Ok(g.node("Slice", &[x.into(), one(0), one(0), one(dim)], &[]));
    }
    let mut maxima = Vec::with_capacity(parts.len());
    for &[start, end] in parts {
        let part = g.node("Slice", &[x.into(), one(start), one(end), one(dim)], &[]);
        maxima.push(largest(g, part).into());
    }
    Ok(g.node("Concat", &maxima, &[("axis", dim.into())]))
}

fn interpolate(call: &mut Call, dim: usize, size: usize, way: Way) -> Result<Id> {
    let x = call.input(0)?;
    let (mode, coordinates, nearest) = match way {
        Way::Nearest => ("nearest", "asymmetric", "floor"),
        Way::NearestExact => ("nearest", "half_pixel", "round_prefer_ceil"),
        Way::Linear => ("linear", "half_pixel", "floor"),
        Way::LinearAligned => ("linear", "align_corners", "floor"),
    };
    let attributes = [
        ("mode", mode.into()),
        ("coordinate_transformation_mode", coordinates.into()),
        ("nearest_mode", nearest.into()),
        ("axes", Attribute::Ints(vec![dim as i64])),
    ];
    let inputs = [x.into(), Operand::Nothing, Operand::Nothing, Operand::Ints(vec![size as i64])];
    Ok(call.graph().node("Resize", &inputs, &attributes))
}

fn scatter(call: &mut Call, dim: usize, shared: bool, reduction: Option<&'static str>) -> Result<Id> {
    let kind = ElementType::natural(call.dtype(0).wide());
    let (base, index, source) = (call.input_as(0, kind)?, call.input_as(1, LONG)?, call.input_as(2, kind)?);
    let (sources, picks) = (call.shape(2).to_vec(), call.shape(1).first().copied().unwrap_or(1));
    let g = call.graph();
    let index = match shared {
        true => {
            let mut line = vec![1; sources.len()];
            line[dim] = picks;
            let line = g.reshape(index, &line);
            g.node("Expand", &[line.into(), (&sources).into()], &[])
        }
        false => index,
    };
    let reduction = match reduction {
        None => "none",
        Some("sum") => "add",
        Some("prod") => "mul",
        Some(other) => other,
    };
    let attributes = [("axis", dim.into()), ("reduction", reduction.into())];
    Ok(g.node("ScatterElements", &[base.into(), index.into(), source.into()], &attributes))
}
