//! Sorting along a dimension, cumulative sums and products, and triangles.

use std::cmp::Ordering;

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [argsort(), sort(), topk(), running(), triangles()].into_iter().flatten().collect()
}

fn x(shape: &[usize]) -> Nd {
    signed(shape, 101)
}

/// Replaces every line along `dim` by `f` of it, whose length is `len`.
fn lines(x: &Nd, dim: usize, len: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Nd {
    let mut shape = x.shape.clone();
    shape[dim] = len;
    let mut out = Nd::from_fn(&shape, |_| 0.0);
    let (size, inner) = (x.shape[dim], x.shape[dim + 1..].iter().product::<usize>());
    for a in 0..x.shape[..dim].iter().product::<usize>() {
        for b in 0..inner {
            let line: Vec<f64> = (0..size).map(|r| x.data[(a * size + r) * inner + b]).collect();
            f(&line).into_iter().take(len).enumerate().for_each(|(r, v)| out.data[(a * len + r) * inner + b] = v);
        }
    }
    out
}

/// Compares two numbers. NaN is the largest, and equals itself.
fn compare(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Returns the stable order of a line.
pub(super) fn order(line: &[f64], descending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..line.len()).collect();
    order.sort_by(|&a, &b| if descending { compare(line[b], line[a]) } else { compare(line[a], line[b]) });
    order
}

fn argsort() -> Vec<Case> {
    let mut cases = Vec::new();
    let odd = [3.0, f64::NAN, -0.0, f64::INFINITY, 0.0, -1e-40, f64::NEG_INFINITY, 1e-40, -0.0, f64::NAN, -3.0];
    for descending in [false, true] {
        for (dim, input) in [
            (0, dense(x(&[1]))),
            (0, dense(x(&[257]))),
            (0, transposed(x(&[7, 5]), 0, 1)),
            (1, narrowed(x(&[3, 17, 2]), 1)),
            (1, broadcast(x(&[3, 1]), &[3, 7])),
            (1, dense(x(&[0, 7]))),
            (0, dense(whole(&[1000], 0, 4, 102))), // many equal ones
            (0, dense(Nd::new(&[11], odd.to_vec()))),
            (1, dense(whole(&[7, 100], -50, 50, 103)).of(DType::I32)),
            (1, dense(whole(&[7, 65], 0, 50, 103)).of(DType::U32)),
            (0, dense(x(&[33])).of(DType::F16)),
            (0, dense(whole(&[200], 0, 255, 104)).of(DType::U8)),
        ] {
            let oracle = move |x: &[&Nd]| {
                lines(x[0], dim, x[0].shape[dim], |l| order(l, descending).into_iter().map(|i| i as f64).collect())
            };
            let name = if descending { "argsort descending" } else { "argsort" };
            cases.push(
                Case::new(name, [input], move |t| t[0].argsort(dim, descending), oracle).result_dtype(DType::U32),
            );
        }
    }
    let long = |x: &[&Nd]| Nd::new(&x[0].shape, order(&x[0].data, false).into_iter().map(|i| i as f64).collect());
    let input = dense(whole(&[70_001], -20_000, 20_000, 105));
    cases.push(Case::new("argsort a long row", [input], |t| t[0].argsort(0, false), long).result_dtype(DType::U32));
    cases
}

fn sort() -> Vec<Case> {
    let sorted = |dim: usize, descending: bool| {
        move |x: &[&Nd]| lines(x[0], dim, x[0].shape[dim], |l| order(l, descending).into_iter().map(|i| l[i]).collect())
    };
    let mut cases = Vec::new();
    for (dim, descending, input) in [
        (0, false, dense(x(&[33]))),
        (0, true, transposed(x(&[7, 5]), 0, 1)),
        (1, false, narrowed(x(&[3, 100]), 1)),
        (0, true, dense(Nd::new(&[4], vec![1.0, f64::NAN, -0.0, 0.0]))),
    ] {
        let nan = input.value.data.iter().any(|v| v.is_nan());
        let case =
            Case::new("sort", [input], move |t| Ok(t[0].sort(dim, descending)?.0), sorted(dim, descending)).exact();
        cases.push(if nan { case.no_gradient() } else { case.within(0.0, 1e-6) });
    }
    let input = dense(whole(&[7, 5], 0, 9, 106)).of(DType::U8);
    let case = Case::new("sort u8", [input], |t| Ok(t[0].sort(1, false)?.0), sorted(1, false));
    cases.push(case.result_dtype(DType::U8));
    cases
}

fn topk() -> Vec<Case> {
    let best = |k: usize, dim: usize, largest: bool| {
        move |x: &[&Nd]| lines(x[0], dim, k, |l| order(l, largest).into_iter().map(|i| l[i]).collect())
    };
    let mut cases = Vec::new();
    for (k, dim, largest, input) in [
        (1, 0, true, dense(x(&[17]))),
        (3, 1, false, dense(x(&[7, 33]))),
        (5, 0, true, transposed(x(&[7, 5]), 0, 1)),
        (0, 0, true, dense(x(&[7]))),
        (4, 1, true, narrowed(x(&[3, 100]), 1)),
    ] {
        let op = move |t: &[Tensor]| Ok(t[0].topk(k, dim, largest, true)?.0);
        cases.push(Case::new("topk", [input], op, best(k, dim, largest)).within(0.0, 1e-6));
    }
    cases
}

/// Returns a function that computes the cumulative results along each line.
/// Returns the running results along a dimension.
pub(super) fn scan(dim: usize, f: fn(f64, f64) -> f64) -> impl Fn(&[&Nd]) -> Nd {
    move |x| {
        lines(x[0], dim, x[0].shape[dim], |l| {
            let mut out = l.to_vec();
            (1..out.len()).for_each(|i| out[i] = f(out[i - 1], out[i]));
            out
        })
    }
}

fn running() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dim, input) in [
        (0, dense(x(&[1]))),
        (0, dense(x(&[257]))),
        (1, dense(x(&[7, 65]))),
        (0, transposed(x(&[17, 5]), 0, 1)),
        (1, narrowed(x(&[3, 17, 2]), 1)),
        (1, broadcast(x(&[3, 1]), &[3, 7])),
        (0, dense(x(&[0]))),
        (0, dense(whole(&[300, 300], -3, 4, 107))),
    ] {
        cases.push(Case::new("cumsum", [input], move |t| t[0].cumsum(dim), scan(dim, |a, b| a + b)));
    }
    for (from, to) in
        [(DType::I32, DType::I32), (DType::U32, DType::U32), (DType::U8, DType::I32), (DType::Bool, DType::I32)]
    {
        let input = dense(whole(&[7, 100], 0, 9, 108)).of(from);
        cases.push(
            Case::new(format!("cumsum {from}"), [input], |t| t[0].cumsum(1), scan(1, |a, b| a + b)).result_dtype(to),
        );
    }
    let halves = dense(whole(&[7, 17], -3, 4, 109)).of(DType::F16);
    cases.push(
        Case::new("cumsum f16", [halves], |t| t[0].cumsum(1), scan(1, |a, b| a + b))
            .result_dtype(DType::F16)
            .exact()
            .no_gradient(),
    );
    let zeros = Nd::new(&[3, 5], vec![2.0, 0.0, 3.0, 0.5, -1.0, 0.0, 1.5, 2.0, 0.0, 3.0, 1.0, -2.0, 0.5, 3.0, 0.0]);
    for (dim, input) in [
        (0, dense(uniform(&[257], 0.9, 1.1, 110))),
        (1, transposed(x(&[5, 7]), 0, 1)),
        (1, dense(zeros.clone())),
        (0, dense(zeros)),
        (1, narrowed(uniform(&[3, 70, 2], 0.8, 1.2, 111), 2)),
    ] {
        cases.push(Case::new("cumprod", [input], move |t| t[0].cumprod(dim), scan(dim, |a, b| a * b)));
    }
    cases
}

fn triangles() -> Vec<Case> {
    let mut cases = Vec::new();
    for (k, input) in [
        (0, || dense(x(&[7, 5]))),
        (2, || transposed(x(&[5, 7]), 0, 1)),
        (-3, || narrowed(x(&[2, 3, 17]), 1)),
        (-1, || broadcast(x(&[1, 5]), &[5, 5])),
        (i64::MAX, || dense(x(&[3, 3]))),
        (i64::MIN, || dense(x(&[3, 3]))),
        (0, || dense(x(&[0, 3]))),
    ] as [(i64, fn() -> Input); 7]
    {
        let side = |i: &[usize]| i[i.len() - 1] as i128 - i[i.len() - 2] as i128;
        let kept = move |x: &Nd, keep: &dyn Fn(i128) -> bool| {
            Nd::from_fn(&x.shape, |i| if keep(side(i)) { x.at(i) } else { 0.0 })
        };
        cases
            .push(Case::new("tril", [input()], move |t| t[0].tril(k), move |x| kept(x[0], &|s| s <= k.into())).exact());
        cases
            .push(Case::new("triu", [input()], move |t| t[0].triu(k), move |x| kept(x[0], &|s| s >= k.into())).exact());
    }
    let bools = || dense(Nd::from_fn(&[7, 7], |_| 1.0)).of(DType::Bool);
    let lower = |x: &[&Nd]| Nd::from_fn(&x[0].shape, |i| if i[1] <= i[0] { 1.0 } else { 0.0 });
    cases.push(Case::new("tril bool", [bools()], |t| t[0].tril(0), lower).result_dtype(DType::Bool));
    cases
}
