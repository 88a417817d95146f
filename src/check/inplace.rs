//! Writes in place, through views.

use super::prelude::*;

/// The name of the method, the method, and its result for an element and the other operand's element.
type Write = (&'static str, fn(&Tensor, &Tensor) -> Result<()>, fn(f64, f64) -> f64);

const WRITES: [Write; 7] = [
    ("copy_", |x, y| x.copy_(y), |_, y| y),
    ("fill_", |x, _| x.fill_(3.0), |_, _| 3.0),
    ("zero_", |x, _| x.zero_(), |_, _| 0.0),
    ("add_", |x, y| x.add_(y), |x, y| x + y),
    ("sub_", |x, y| x.sub_(y), |x, y| x - y),
    ("mul_", |x, y| x.mul_(y), |x, y| x * y),
    ("div_", |x, y| x.div_(y), |x, y| x / y),
];

/// The part of a `[7, 5]` that is written: its name, the view, the size of the view's last dimension, and a function
/// from an element's index to its place in that dimension, if the view shows the element.
type Target = (&'static str, fn(&Tensor) -> Result<Tensor>, usize, fn(&[usize]) -> Option<usize>);

const TARGETS: [Target; 5] = [
    ("columns", |x| x.narrow(1, 1, 3), 3, |i| i[1].checked_sub(1).filter(|&j| j < 3)),
    ("stepped", |x| x.slice(0, 1, 7, 2), 5, |i| Some(i[1]).filter(|_| i[0] % 2 == 1)),
    ("whole", |x| Ok(x.clone()), 5, |i| Some(i[1])),
    ("transposed", |x| x.t(), 7, |i| Some(i[0])),
    ("nothing", |x| x.narrow(0, 2, 0), 5, |_| None),
];

/// Returns whether the result of a write has the type of the tensor that is written.
fn takes(name: &str, dtype: DType) -> bool {
    match (name, dtype) {
        ("div_", dtype) => dtype.is_float(),
        ("add_" | "sub_" | "mul_", DType::Bool) => false,
        _ => true,
    }
}

fn case((name, write, f): Write, (target, view, size, place): Target, dtype: DType) -> Case {
    // Small enough for every type, with differences that are not below 0.
    let inputs = [dense(whole(&[7, 5], 8, 16, 221)).of(dtype), dense(whole(&[size], 1, 8, 222)).of(dtype)];
    let op = move |t: &[Tensor]| {
        // Writes into a copy, since the operand may be a view whose elements repeat.
        let x = t[0].zeros_like()?;
        x.copy_(&t[0])?;
        write(&view(&x)?, &t[1])?;
        Ok(x)
    };
    let oracle = move |x: &[&Nd]| {
        let written = |i: &[usize]| place(i).map_or(x[0].at(i), |j| f(x[0].at(i), x[1].data[j]));
        Nd::from_fn(&[7, 5], written).rounded(dtype)
    };
    let case = Case::new(format!("{name} {target} {dtype}"), inputs, op, oracle).result_dtype(dtype).exact();
    let case = if name == "div_" { case.within(0.0, if dtype == DType::F32 { 1e-6 } else { 1e-2 }) } else { case };
    case.no_gradient()
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for write in WRITES {
        for dtype in DType::COMPUTED.into_iter().filter(|&dtype| takes(write.0, dtype)) {
            // Packed elements share words with elements that are not written.
            let targets = if dtype.is_packed() || dtype == DType::F32 { &TARGETS[..] } else { &TARGETS[..2] };
            cases.extend(targets.iter().map(|&target| case(write, target, dtype)));
        }
    }
    cases
}
