//! Operators whose number of results, or whose results by cases, depend on the elements, computed on the host. Also
//! operators of optional values.

use std::collections::HashMap;

use super::super::array::{Array, Elements};
use super::super::call::{Call, Operator};
use super::super::fault;
use super::super::value::Value;
use crate::device::cpu::with_room;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "Unique" => Operator::Values(unique),
        "Det" => Operator::Values(determinant),
        "AffineGrid" => Operator::One(affine_grid),
        "Optional" | "OptionalGetElement" => Operator::Values(|call| Ok(vec![call.needed(0)?.clone()])),
        "OptionalHasElement" => Operator::Values(|call| Ok(vec![Array::bool(call.value(0).is_some()).into()])),
        _ => return None,
    })
}

/// The distinct slices along an axis, or elements: sorted or in the order of their first places; where each was first, which one
/// each slice is, and how often each occurs.
fn unique(call: &Call) -> Result<Vec<Value>> {
    let x = call.needed(0)?.read()?;
    let (x, axis) = match call.has("axis") {
        true => {
            let axis = call.axis(0, x.shape.len())?;
            (x, axis)
        }
        false => {
            let count = x.count();
            (x.reshaped(vec![count]), 0)
        }
    };
    let (outer, length) = (x.shape[..axis].iter().product::<usize>(), x.shape[axis]);
    let inner: usize = x.shape[axis + 1..].iter().product();
    let places = |i: usize| (0..outer).flat_map(move |o| (0..inner).map(move |k| (o * length + i) * inner + k));
    // Bits of floats that sort as the floats do; −0 is 0, and every NaN is one of its own kind.
    let key: Vec<i64> = match &x.elements {
        Elements::Ints(values) => values.clone(),
        Elements::Floats(values) => values.iter().map(|&v| ordered(if v == 0.0 { 0.0 } else { v })).collect(),
    };
    let slices: Vec<Vec<i64>> = (0..length).map(|i| places(i).map(|at| key[at]).collect()).collect();
    let mut found: Vec<(usize, i64)> = Vec::new();
    let mut known: HashMap<&[i64], usize> = HashMap::new();
    let mut which = Vec::with_capacity(length);
    for (i, slice) in slices.iter().enumerate() {
        let at = *known.entry(slice).or_insert_with(|| {
            found.push((i, 0));
            found.len() - 1
        });
        found[at].1 += 1;
        which.push(at);
    }
    let mut order: Vec<usize> = (0..found.len()).collect();
    if call.int("sorted", 1) == 1 {
        order.sort_by(|&a, &b| slices[found[a].0].cmp(&slices[found[b].0]));
    }
    let mut rank = vec![0i64; order.len()];
    order.iter().enumerate().for_each(|(new, &old)| rank[old] = new as i64);
    let firsts: Vec<usize> = order.iter().map(|&old| found[old].0).collect();
    let mut shape = x.shape.clone();
    shape[axis] = firsts.len();
    let positions: Vec<usize> = (0..outer)
        .flat_map(|o| firsts.iter().flat_map(move |&i| (0..inner).map(move |k| (o * length + i) * inner + k)))
        .collect();
    Ok(vec![
        x.picked(shape, positions.into_iter()).into(),
        Array::ints(firsts.iter().map(|&i| i as i64).collect()).into(),
        Array::ints(which.iter().map(|&at| rank[at]).collect()).into(),
        Array::ints(order.iter().map(|&old| found[old].1).collect()).into(),
    ])
}

/// Bits of a float as an integer that is ordered as the floats are.
fn ordered(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    if bits < 0 { i64::MIN.wrapping_sub(bits) } else { bits }
}

/// By elimination with the largest pivots, in 64 bits.
fn determinant(call: &Call) -> Result<Vec<Value>> {
    let x = call.needed(0)?.read()?;
    let rank = x.shape.len();
    let n = x.shape.last().copied().unwrap_or(0);
    if rank < 2 || x.shape[rank - 2] != n {
        return Err(fault(format!("matrices of shape {:?}", x.shape)));
    }
    let values = x.to_floats();
    let matrices = x.shape[..rank - 2].iter().product::<usize>();
    let mut all = Vec::with_capacity(matrices);
    for m in 0..matrices {
        let mut a = values[m * n * n..][..n * n].to_vec();
        let mut product = 1.0;
        for column in 0..n {
            let pivot = (column..n)
                .max_by(|&i, &j| a[i * n + column].abs().total_cmp(&a[j * n + column].abs()))
                .unwrap_or(column);
            if pivot != column {
                (0..n).for_each(|j| a.swap(pivot * n + j, column * n + j));
                product = -product;
            }
            let head = a[column * n + column];
            product *= head;
            if head == 0.0 {
                break;
            }
            for row in column + 1..n {
                let factor = a[row * n + column] / head;
                (column..n).for_each(|j| a[row * n + j] -= factor * a[column * n + j]);
            }
        }
        all.push(product);
    }
    let shape = x.shape[..rank - 2].to_vec();
    Ok(vec![Array { shape, kind: x.kind, elements: Elements::Floats(all) }.cast(x.kind).into()])
}

/// The positions that affine maps give to pixels, from −1 to 1: `[N, H, W, 2]`, or `[N, D, H, W, 3]` in space.
fn affine_grid(call: &Call) -> Result<Tensor> {
    let theta = call.x(0)?;
    let shape = super::super::call::sizes(&call.whole(1)?.unwrap_or_default())?;
    let dims = shape.len().saturating_sub(2);
    let &[n, rows, columns] = theta.shape() else { return Err(fault(format!("maps of shape {:?}", theta.shape()))) };
    if !matches!(dims, 2 | 3) || rows != dims || columns != dims + 1 || n != shape[0] {
        return Err(fault(format!("maps of shape {:?} for images of {shape:?}", theta.shape())));
    }
    let image = &shape[2..];
    let pixels = image.iter().try_fold(1usize, |pixels, &size| pixels.checked_mul(size));
    let pixels = pixels.ok_or_else(|| fault(format!("images of {image:?} pixels")))?;
    let place = |i: usize, size: usize| match call.flag("align_corners") {
        true if size == 1 => 0.0,
        true => 2.0 * i as f64 / (size - 1) as f64 - 1.0,
        false => (2 * i + 1) as f64 / size as f64 - 1.0,
    };
    let mut values = with_room(pixels.saturating_mul(columns))?;
    for pixel in 0..pixels {
        let mut rest = pixel;
        // The last dimension is the first coordinate.
        for &size in image.iter().rev() {
            values.push(place(rest % size, size) as f32);
            rest /= size;
        }
        values.push(1.0);
    }
    let base = Tensor::from_vec(values, [pixels, columns], call.device)?;
    let grid = base.matmul(&theta.transpose(1, 2)?)?;
    grid.reshape([&[n], image, &[dims]].concat())
}
