//! Operators on the host that move elements, and those that create arrays.

use super::super::array::{Array, Elements};
use super::super::call::{Call, sizes};
use super::super::element_type::ElementType;
use super::super::fault;
use super::super::ops::{Range, new_shape, range, slice_range};
use super::{GROWN, broadcast, count, of_ints, positions, strided};
use crate::error::Result;

pub(super) fn evaluate(call: &Call, inputs: &[Option<&Array>]) -> Option<Result<Vec<Array>>> {
    let x = (*inputs.first()?)?;
    let one = match call.op() {
        "Shape" => shape(call, x),
        "Size" => Ok(Array::scalar(ElementType::Int64, x.count() as i64)),
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => reshape(call, x),
        "Transpose" => transpose(call, x),
        "Gather" => gather(call, x, (*inputs.get(1)?)?)?,
        "Concat" => concat(call, &inputs.iter().copied().collect::<Option<Vec<_>>>()?),
        "Slice" => slice(call, x),
        "Expand" => grown(expand(x, (*inputs.get(1)?)?))?,
        "Tile" => grown(tile(x, (*inputs.get(1)?)?))?,
        "ConstantOfShape" => grown(constant(call, x))?,
        "Range" => range([x, (*inputs.get(1)?)?, (*inputs.get(2)?)?], GROWN).transpose()?,
        "NonZero" => Ok(non_zero(x)),
        "Split" => return Some(split(call, x)),
        _ => return None,
    };
    Some(one.map(|array| vec![array]))
}

fn reshape(call: &Call, x: &Array) -> Result<Array> {
    let shape = new_shape(call, &x.shape)?;
    match count(&shape) == Some(x.count()) {
        true => Ok(x.reshaped(shape)),
        false => Err(fault(format!("{} elements do not fill the shape {shape:?}", x.count()))),
    }
}

/// A result that is made only if it is small: a shape, and what fills it.
type Grown<'a> = Result<(Vec<usize>, Box<dyn FnOnce(Vec<usize>) -> Array + 'a>)>;

fn grown(made: Grown) -> Option<Result<Array>> {
    match made {
        Ok((shape, fill)) => (count(&shape)? <= GROWN).then(|| Ok(fill(shape))),
        Err(error) => Some(Err(error)),
    }
}

fn shape(call: &Call, x: &Array) -> Result<Array> {
    super::super::ops::shape_values(call, &x.shape).map(Array::ints)
}

fn strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim] as isize;
    }
    strides
}

fn transpose(call: &Call, x: &Array) -> Result<Array> {
    let rank = x.shape.len();
    let dims = call.ints("perm").map_or(Ok((0..rank).rev().collect()), |perm| call.dims(&perm, rank))?;
    let mut seen = dims.clone();
    seen.sort_unstable();
    if seen != (0..rank).collect::<Vec<_>>() {
        return Err(fault(format!("{dims:?} is no permutation of {rank} dimensions")));
    }
    let strides = strides(&x.shape);
    let shape: Vec<usize> = dims.iter().map(|&dim| x.shape[dim]).collect();
    let by: Vec<isize> = dims.iter().map(|&dim| strides[dim]).collect();
    Ok(x.picked(shape.clone(), strided(&shape, by, 0)))
}

fn gather(call: &Call, x: &Array, index: &Array) -> Option<Result<Array>> {
    let dim = match call.axis(0, x.shape.len()) {
        Ok(dim) => dim,
        Err(error) => return Some(Err(error)),
    };
    let shape = [&x.shape[..dim], &index.shape, &x.shape[dim + 1..]].concat();
    if count(&shape)? > GROWN.max(x.count()) {
        return None;
    }
    let length = x.shape[dim];
    let place = |i: i64| {
        let from_start = if i < 0 { i.saturating_add(length as i64) } else { i };
        usize::try_from(from_start).ok().filter(|&i| i < length).ok_or_else(|| fault(format!("index {i} of {length}")))
    };
    let places: Vec<usize> = match index.to_ints().into_iter().map(place).collect() {
        Ok(places) => places,
        Err(error) => return Some(Err(error)),
    };
    let inner: usize = x.shape[dim + 1..].iter().product();
    let outer: usize = x.shape[..dim].iter().product();
    let positions = (0..outer)
        .flat_map(|o| places.iter().flat_map(move |&i| (0..inner).map(move |k| (o * length + i) * inner + k)));
    Some(Ok(x.picked(shape, positions)))
}

fn concat(call: &Call, arrays: &[&Array]) -> Result<Array> {
    let first = arrays[0];
    let dim = call.axis(i64::from(call.opset() < 4), first.shape.len())?;
    let mut shape = first.shape.clone();
    shape[dim] = 0;
    for array in arrays {
        let others =
            |shape: &[usize]| shape.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, &s)| s).collect::<Vec<_>>();
        if array.shape.len() != shape.len() || others(&array.shape) != others(&shape) {
            return Err(fault(format!(
                "shapes {:?} and {:?} do not join along dimension {dim}",
                first.shape, array.shape
            )));
        }
        shape[dim] += array.shape[dim];
    }
    let outer: usize = shape[..dim].iter().product();
    let blocks = |values: &dyn Fn(&Array, std::ops::Range<usize>)| {
        for o in 0..outer {
            for array in arrays {
                let block = array.shape[dim..].iter().product::<usize>();
                values(array, o * block..(o + 1) * block);
            }
        }
    };
    let elements = if arrays.iter().all(|array| matches!(array.elements, Elements::Ints(_))) {
        let all = std::cell::RefCell::new(Vec::new());
        blocks(&|array, range| all.borrow_mut().extend_from_slice(&array.to_ints()[range]));
        Elements::Ints(all.into_inner())
    } else {
        let all = std::cell::RefCell::new(Vec::new());
        blocks(&|array, range| all.borrow_mut().extend_from_slice(&array.to_floats()[range]));
        Elements::Floats(all.into_inner())
    };
    Ok(Array { shape, kind: first.kind, elements })
}

fn slice(call: &Call, x: &Array) -> Result<Array> {
    let mut shape = x.shape.clone();
    let mut by = strides(&x.shape);
    let mut first = 0;
    for Range { dim, start, count, step } in slice_range(call, &x.shape)? {
        first += start * by[dim].unsigned_abs();
        // A step that is taken is shorter than the dimension.
        by[dim] = if count > 1 { by[dim] * step as isize } else { 0 };
        shape[dim] = count;
    }
    if shape.contains(&0) {
        return Ok(x.picked(shape, std::iter::empty()));
    }
    Ok(x.picked(shape.clone(), strided(&shape, by, first)))
}

fn expand<'a>(x: &'a Array, wanted: &Array) -> Grown<'a> {
    let shape = broadcast(&x.shape, &sizes(&wanted.to_ints())?)?;
    Ok((shape, Box::new(|shape| x.picked(shape.clone(), positions(&shape, &x.shape)))))
}

fn tile<'a>(x: &'a Array, times: &Array) -> Grown<'a> {
    let times = sizes(&times.to_ints())?;
    if times.len() != x.shape.len() {
        return Err(fault(format!("{} repeats for {} dimensions", times.len(), x.shape.len())));
    }
    let shape: Vec<usize> = x.shape.iter().zip(&times).map(|(&size, &times)| size.saturating_mul(times)).collect();
    let fill = |shape: Vec<usize>| {
        let by = strides(&x.shape);
        let place = |mut at: usize| {
            let mut position = 0;
            for dim in (0..shape.len()).rev() {
                position += (at % shape[dim]) % x.shape[dim] * by[dim].unsigned_abs();
                at /= shape[dim];
            }
            position
        };
        let total = count(&shape).unwrap_or(0);
        x.picked(shape.clone(), (0..total).map(place))
    };
    Ok((shape, Box::new(fill)))
}

fn constant<'a>(call: &Call, shape: &Array) -> Grown<'a> {
    let value = match call.constant("value")? {
        Some(value) if value.count() == 1 => value,
        Some(_) => return Err(fault("the value has more than one element")),
        None => Array { shape: vec![1], kind: ElementType::Float, elements: Elements::Floats(vec![0.0]) },
    };
    let fill = move |shape: Vec<usize>| {
        let total = count(&shape).unwrap_or(0);
        value.picked(shape, (0..total).map(|_| 0))
    };
    Ok((sizes(&shape.to_ints())?, Box::new(fill)))
}

/// The indices of what is not zero, `[rank, count]`.
pub(in super::super) fn non_zero(x: &Array) -> Array {
    let found: Vec<usize> = match &x.elements {
        Elements::Ints(values) => (0..values.len()).filter(|&i| values[i] != 0).collect(),
        Elements::Floats(values) => (0..values.len()).filter(|&i| values[i] != 0.0).collect(),
    };
    let by = strides(&x.shape);
    let index = |dim: usize, at: usize| (at / by[dim].unsigned_abs() % x.shape[dim]) as i64;
    let values = (0..x.shape.len()).flat_map(|dim| found.iter().map(move |&at| index(dim, at))).collect();
    of_ints(vec![x.shape.len(), found.len()], ElementType::Int64, values)
}

fn split(call: &Call, x: &Array) -> Result<Vec<Array>> {
    let (dim, parts) = super::super::ops::split_sizes(call, &x.shape)?;
    let by = strides(&x.shape);
    let mut start = 0;
    let mut part = |size: usize| {
        let mut shape = x.shape.clone();
        shape[dim] = size;
        let first = start * by[dim].unsigned_abs();
        start += size;
        x.picked(shape.clone(), strided(&shape, by.clone(), first))
    };
    Ok(parts.into_iter().map(&mut part).collect())
}
