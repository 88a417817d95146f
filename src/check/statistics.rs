//! Products, minima, variances and truth values: the reductions that are not in `reduce`.

use super::prelude::*;
use super::reduce::{Kind, MEAN, SUM, case};

pub(super) fn cases() -> Vec<Case> {
    [along_dimensions(), hard_to_round(), whole_numbers(), truths(), halves(), argmin(), norms()]
        .into_iter()
        .flatten()
        .collect()
}

const PROD: Kind =
    ("prod", |x, dims, keep| x.prod(dims, keep), |x, dims, keep| oracle::reduce(x, dims, keep, 1.0, |a, b| a * b));
const MIN: Kind =
    ("min", |x, dims, keep| x.min(dims, keep), |x, dims, keep| oracle::reduce(x, dims, keep, f64::INFINITY, f64::min));
const VAR: Kind = ("var", |x, dims, keep| x.var(dims, 1.0, keep), |x, dims, keep| variance(x, dims, keep, 1.0));
const VAR_BIASED: Kind = ("var", |x, dims, keep| x.var(dims, 0.0, keep), |x, dims, keep| variance(x, dims, keep, 0.0));
const STD: Kind =
    ("std", |x, dims, keep| x.std(dims, 0.5, keep), |x, dims, keep| variance(x, dims, keep, 0.5).map(f64::sqrt));
const LOGSUMEXP: Kind = (
    "logsumexp",
    |x, dims, keep| x.logsumexp(dims, keep),
    |x, dims, keep| {
        let m = oracle::max(x, dims, true);
        let sum = oracle::sum(&oracle::binary(x, &m, |x, m| (x - m).exp()), dims, keep);
        Nd::new(&sum.shape, sum.data.iter().zip(&m.data).map(|(s, m)| s.ln() + m).collect())
    },
);
const KINDS: [Kind; 6] = [PROD, MIN, VAR, VAR_BIASED, STD, LOGSUMEXP];

fn variance(x: &Nd, dims: &[usize], keep: bool, correction: f64) -> Nd {
    let mean = oracle::mean(x, dims, true);
    let squares = oracle::binary(x, &mean, |x, m| (x - m) * (x - m));
    let out = oracle::sum(&squares, dims, keep);
    let free = x.data.len() as f64 / out.data.len() as f64 - correction;
    out.map(|v| v / free)
}

fn along_dimensions() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        for dims in [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]] {
            cases.push(case(kind, dense(signed(&[3, 7, 5], 131)), dims, false));
            cases.push(case(kind, transposed(signed(&[3, 7, 5], 132), 0, 2), dims, true));
        }
        cases.push(case(kind, narrowed(signed(&[4, 17], 134), 1), &[0], false));
        cases.push(case(kind, narrowed(signed(&[33], 134), 0), &[0], false));
        cases.push(case(kind, broadcast(signed(&[7, 1], 136), &[7, 4]), &[0], false));
        cases.push(case(kind, dense(signed(&[257, 3], 137)), &[0], false));
        cases.push(case(kind, dense(signed(&[2, 70_000], 138)), &[1], false).within(1e-4, 1e-3).no_gradient());
        cases.push(case(kind, dense(signed(&[0, 3], 138)), &[1], true));
    }
    cases
}

/// Returns cases that are hard to compute: values that cancel unless the mean is subtracted first; zeros in a product,
/// whose gradient cannot be a quotient; infinities.
fn hard_to_round() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [VAR, VAR_BIASED] {
        cases.push(case(kind, dense(signed(&[300], 139).map(|v| v + 4096.0)), &[0], false).within(1e-4, 1e-3));
    }
    let zeros = Nd::from_fn(&[4, 6], |i| if i[1] < i[0] { 0.0 } else { 1.0 + (i[0] + i[1]) as f64 / 8.0 });
    cases.push(case(PROD, dense(zeros.clone()), &[1], false));
    cases.push(case(PROD, dense(zeros), &[0], false));
    let odd = Nd::new(&[3, 2], vec![1.0, f64::NEG_INFINITY, f64::NAN, 2.0, 3.0, f64::NEG_INFINITY]);
    let least = |x: &[&Nd]| Nd::new(&[3], vec![f64::NEG_INFINITY, x[0].data[2], f64::NEG_INFINITY]);
    cases.push(Case::new("min NaN wins", [dense(odd)], |t| t[0].min([1], false), least).exact().no_gradient());
    let infinite =
        Nd::new(&[3, 2], vec![f64::NEG_INFINITY, f64::NEG_INFINITY, f64::INFINITY, 2.0, 3.0, f64::NEG_INFINITY]);
    let ends = |_: &[&Nd]| Nd::new(&[3], vec![f64::NEG_INFINITY, f64::INFINITY, 3.0]);
    cases.push(
        Case::new("logsumexp of infinities", [dense(infinite)], |t| t[0].logsumexp([1], false), ends).no_gradient(),
    );
    cases
}

fn whole_numbers() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, sum) in
        [(DType::I32, DType::I32), (DType::U32, DType::U32), (DType::U8, DType::I32), (DType::Bool, DType::I32)]
    {
        let x = |shape: &[usize], hi| whole(shape, if dtype == DType::I32 { -4 } else { 0 }, hi, 40);
        cases.push(case(MIN, dense(x(&[7, 33], 50)).of(dtype), &[0], false).result_dtype(dtype));
        for dim in [0, 1] {
            cases.push(case(PROD, dense(x(&[7, 5], 6)).of(dtype), &[dim], false).result_dtype(sum));
        }
        cases.push(case(SUM, transposed(x(&[7, 300], 50), 0, 1).of(dtype), &[1], true).result_dtype(sum));
        cases.push(case(SUM, narrowed(x(&[7], 50), 0).of(dtype), &[0], true).result_dtype(sum));
    }
    cases
}

fn truths() -> Vec<Case> {
    let any: Kind = (
        "any",
        |x, dims, keep| x.any(dims, keep),
        |x, dims, keep| oracle::reduce(x, dims, keep, 0.0, |a, v| f64::from(u8::from(a != 0.0 || v != 0.0))),
    );
    let all: Kind = (
        "all",
        |x, dims, keep| x.all(dims, keep),
        |x, dims, keep| oracle::reduce(x, dims, keep, 1.0, |a, v| f64::from(u8::from(a != 0.0 && v != 0.0))),
    );
    let mut cases = Vec::new();
    for (kind, size) in [(any, 9), (all, 40)] {
        // About half of the rows have one element that differs.
        let x = |shape: &[usize], seed| {
            let odd = whole(shape, 0, size, seed);
            odd.map(|v| f64::from(u8::from((v == 0.0) == (size == 9))))
        };
        for dtype in [DType::F32, DType::I32, DType::U8, DType::Bool] {
            for dims in [&[0][..], &[1], &[0, 2]] {
                cases.push(case(kind, dense(x(&[3, 7, 5], 141)).of(dtype), dims, false).result_dtype(DType::Bool));
                cases.push(
                    case(kind, transposed(x(&[3, 7, 5], 142), 0, 2).of(dtype), dims, true).result_dtype(DType::Bool),
                );
            }
        }
        cases.push(case(kind, dense(x(&[3, 0], 143)), &[1], false).result_dtype(DType::Bool));
        cases.push(case(kind, dense(x(&[3000], 144)), &[0], false).result_dtype(DType::Bool));
    }
    cases
}

/// Returns cases of halves, among them a sum of 3 000 ones: added in f16, it would stop at 2 048.
fn halves() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, rtol) in [(DType::F16, 6e-4), (DType::BF16, 5e-3)] {
        for kind in KINDS {
            let x = dense(signed(&[5, 33, 3], 145)).of(dtype);
            cases.push(case(kind, x, &[0, 2], false).result_dtype(dtype).within(rtol, rtol).no_gradient());
        }
        for kind in [SUM, MEAN] {
            let x = || dense(Nd::from_fn(&[3000, 3], |i| 1.0 + i[1] as f64 / 128.0)).of(dtype);
            cases.push(case(kind, x(), &[0], false).result_dtype(dtype).within(rtol, rtol));
            let transposed = transposed(signed(&[7, 9, 5], 146), 0, 2).of(dtype);
            cases.push(case(kind, transposed, &[0, 2], true).result_dtype(dtype).within(rtol, rtol));
        }
    }
    cases
}

fn argmin() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut push = |what: &str, input: Input, dim: usize| {
        let oracle = move |x: &[&Nd]| oracle::argmax(&x[0].map(|v| -v), dim);
        cases.push(
            Case::new(format!("argmin {what}"), [input], move |t| t[0].argmin(dim), oracle).result_dtype(DType::U32),
        );
    };
    for dim in 0..3 {
        push("dense", dense(signed(&[3, 7, 5], 43)), dim);
        push("of equals", dense(whole(&[3, 7, 5], 0, 3, 44)).of(DType::I32), dim);
        push("transposed", transposed(signed(&[3, 7, 5], 45), 0, 2), dim);
        push("narrowed", narrowed(whole(&[3, 7, 5], 0, 200, 46), 1).of(DType::U8), dim);
        push("halves", dense(signed(&[3, 7, 5], 47)).of(DType::F16), dim);
    }
    push("long, falling", dense(Nd::from_fn(&[70_000], |i| -(i[0] as f64))), 0);
    push("negative", dense(whole(&[300], -90, -1, 48)).of(DType::I32), 0);
    for (dtype, seed) in [(DType::I32, 49), (DType::U32, 50), (DType::U8, 51), (DType::Bool, 52)] {
        let oracle = |x: &[&Nd]| oracle::argmax(x[0], 1);
        let input = [dense(whole(&[5, 40], 0, if dtype == DType::Bool { 2 } else { 9 }, seed)).of(dtype)];
        cases.push(Case::new(format!("argmax {dtype}"), input, |t| t[0].argmax(1), oracle).result_dtype(DType::U32));
    }
    cases
}

fn norms() -> Vec<Case> {
    let mut cases = Vec::new();
    for p in [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -2.0, f32::INFINITY, f32::NEG_INFINITY] {
        let mut push = |what: &str, input: Input, dims: &'static [usize], keep: bool| {
            let p64 = f64::from(p);
            let oracle = move |x: &[&Nd]| {
                let x = x[0].map(f64::abs);
                match p64 {
                    0.0 => oracle::sum(&x.map(|v| f64::from(u8::from(v != 0.0))), dims, keep),
                    f64::INFINITY => oracle::max(&x, dims, keep),
                    f64::NEG_INFINITY => oracle::reduce(&x, dims, keep, f64::INFINITY, f64::min),
                    _ => oracle::sum(&x.map(|v| v.powf(p64)), dims, keep).map(|v| v.powf(1.0 / p64)),
                }
            };
            let op = move |t: &[Tensor]| t[0].norm(p, dims, keep);
            let case = Case::new(format!("norm {p} {what}"), [input], op, oracle).within(2e-5, 2e-5);
            cases.push(if p == 0.0 { case.no_gradient() } else { case });
        };
        for dims in [&[0][..], &[1, 2], &[0, 2]] {
            push("dense", dense(signed(&[3, 7, 5], 151)), dims, false);
            push("transposed", transposed(signed(&[3, 7, 5], 152), 0, 2), dims, true);
        }
        push("narrowed", narrowed(signed(&[4, 17], 153), 1), &[1], false);
        push("single", dense(signed(&[1], 154)), &[0], false);
    }
    // All elements are zero: the gradient is 0 by convention (the norm is not differentiable there).
    let zeros = |_: &[&Nd]| Nd::new(&[2, 3], vec![0.0; 6]);
    for p in [0.5, 1.0, 2.0, 3.0] {
        let slope = move |t: &[Tensor]| {
            let x = t[0].detach().requires_grad();
            x.norm(p, [1], false)?.sum_all()?.backward()?;
            Ok(x.grad().unwrap_or(x))
        };
        cases.push(Case::new("norm of zeros", [dense(Nd::new(&[2, 3], vec![0.0; 6]))], slope, zeros).no_gradient());
    }
    cases
}
