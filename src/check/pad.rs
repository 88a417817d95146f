//! Padding.

use super::prelude::*;
use crate::ops::Padding;

type Margins = &'static [(usize, usize)];

/// Returns the position of the element that padding puts `i` places after the first of `size`; `None` for the constant.
fn walked(i: isize, size: usize, padding: Padding) -> Option<usize> {
    let last = size as isize - 1;
    let at = match padding {
        _ if (0..=last).contains(&i) => i,
        Padding::Constant(_) => return None,
        Padding::Reflect if i < 0 => -i,
        Padding::Reflect => last - (i - last),
        Padding::Replicate => i.clamp(0, last),
        Padding::Circular => i.rem_euclid(size as isize),
    };
    usize::try_from(at).ok()
}

fn padded(x: &Nd, margins: Margins, padding: Padding) -> Nd {
    let lead = x.shape.len() - margins.len();
    let margin = |d: usize| d.checked_sub(lead).map_or((0, 0), |d| margins[d]);
    let shape: Vec<usize> = x.shape.iter().enumerate().map(|(d, size)| margin(d).0 + size + margin(d).1).collect();
    Nd::from_fn(&shape, |index| {
        let place = |(d, &i): (usize, &usize)| walked(i as isize - margin(d).0 as isize, x.shape[d], padding);
        let from: Option<Vec<usize>> = index.iter().enumerate().map(place).collect();
        match (from, padding) {
            (Some(from), _) => x.at(&from),
            (None, Padding::Constant(value)) => value,
            (None, _) => f64::NAN,
        }
    })
}

fn case(what: &str, input: Input, margins: Margins, padding: Padding) -> Case {
    Case::new(
        format!("pad {what} {padding:?} {margins:?}"),
        [input],
        move |t| t[0].pad(margins, padding),
        move |x| padded(x[0], margins, padding),
    )
}

const ALL: [Padding; 4] = [Padding::Constant(-2.5), Padding::Reflect, Padding::Replicate, Padding::Circular];

pub(super) fn cases() -> Vec<Case> {
    let x = |shape: &[usize]| signed(shape, 71);
    let mut cases = Vec::new();
    for padding in ALL {
        let mut push = |what: &str, input, margins| cases.push(case(what, input, margins, padding));
        push("dense", dense(x(&[7])), &[(3, 5)]);
        push("dense", dense(x(&[2, 3, 5, 7])), &[(1, 2), (3, 0)]);
        push("everywhere", dense(x(&[3, 2, 4, 3])), &[(2, 1), (1, 0), (0, 3), (1, 2)]);
        push("transposed", transposed(x(&[4, 5, 3]), 0, 2), &[(0, 2), (2, 1)]);
        push("narrowed", narrowed(x(&[4, 5, 3]), 1), &[(3, 1), (0, 0), (2, 2)]);
        push("broadcast", broadcast(x(&[1, 5]), &[4, 5]), &[(1, 1), (4, 4)]);
        push("long", dense(x(&[3, 257])), &[(256, 200)]);
        push("empty", dense(x(&[0, 3])), &[(1, 1)]);
        push("not at all", dense(x(&[2, 3])), &[]);
    }
    for padding in [Padding::Constant(f64::NEG_INFINITY), Padding::Constant(f64::NAN), Padding::Replicate] {
        let single = case("one element", dense(x(&[1, 1])), &[(2, 0), (1, 3)], padding);
        // The difference of two infinities is not a number.
        cases.push(if padding == Padding::Replicate { single } else { single.no_gradient() });
    }
    cases.push(case("of nothing", dense(x(&[0])), &[(2, 1)], Padding::Constant(1.5)));
    for (dtype, value) in [(DType::I32, -5.0), (DType::U32, 4e9), (DType::U8, 200.0), (DType::Bool, 1.0)] {
        let input = || dense(whole(&[3, 5], 0, if dtype == DType::Bool { 2 } else { 9 }, 72)).of(dtype);
        cases.push(case("words", input(), &[(1, 0), (2, 3)], Padding::Constant(value)).result_dtype(dtype));
        cases.push(case("words", input(), &[(1, 0), (2, 3)], Padding::Reflect).result_dtype(dtype));
    }
    for dtype in [DType::F16, DType::BF16] {
        let input = || dense(x(&[3, 5])).of(dtype);
        // Only the gradients are rounded.
        let value = case("halves", input(), &[(1, 0), (2, 3)], Padding::Constant(0.5));
        cases.push(value.within(5e-4, 5e-4).result_dtype(dtype));
        let edges = case("halves", input(), &[(1, 0), (2, 3)], Padding::Replicate);
        cases.push(edges.within(2e-3, 2e-3).result_dtype(dtype));
    }
    cases
}
