//! Sums, means, maxima and their positions.

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [
        every_combination_of_dimensions(),
        nothing_to_sum_is_zero(),
        long_reductions(),
        whole_numbers(),
        argmax_finds_the_first(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A reduction along dimensions: its name, op and oracle.
pub(super) type Kind = (&'static str, fn(&Tensor, &[usize], bool) -> Result<Tensor>, fn(&Nd, &[usize], bool) -> Nd);

pub(super) const SUM: Kind = ("sum", |x, dims, keep| x.sum(dims, keep), oracle::sum);
pub(super) const MEAN: Kind = ("mean", |x, dims, keep| x.mean(dims, keep), oracle::mean);
const MAX: Kind = ("max", |x, dims, keep| x.max(dims, keep), oracle::max);
const KINDS: [Kind; 3] = [SUM, MEAN, MAX];

pub(super) fn case((name, op, oracle): Kind, input: Input, dims: &[usize], keep: bool) -> Case {
    let (d, e) = (dims.to_vec(), dims.to_vec());
    let name = format!("{name} over {dims:?}{}", if keep { ", kept" } else { "" });
    Case::new(name, [input], move |t| op(&t[0], &d, keep), move |x| oracle(x[0], &e, keep))
}

fn every_combination_of_dimensions() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        for subset in 0..8usize {
            let dims: Vec<usize> = (0..3).filter(|d| subset >> d & 1 == 1).collect();
            cases.push(case(kind, dense(signed(&[3, 7, 5], 31)), &dims, false));
            cases.push(case(kind, transposed(signed(&[3, 7, 5], 32), 0, 2), &dims, true));
        }
        cases.push(case(kind, dense(signed(&[2, 3, 4, 5], 33)), &[3, 0], false)); // in any order
        cases.push(case(kind, narrowed(signed(&[4, 17], 34), 1), &[0], false));
        cases.push(case(kind, narrowed(signed(&[257], 34), 0), &[0], false));
        cases.push(case(kind, dense(signed(&[1], 35)), &[0], false));
    }
    let repeated = || broadcast(signed(&[7, 1], 36), &[7, 4]);
    cases.push(case(SUM, repeated(), &[0], false));
    cases.push(case(MEAN, repeated(), &[1], false));
    cases
}

fn nothing_to_sum_is_zero() -> Vec<Case> {
    vec![
        case(SUM, dense(signed(&[3, 0], 38)), &[1], false),
        case(SUM, dense(signed(&[0], 38)), &[0], false),
        case(SUM, dense(signed(&[0, 3], 38)), &[1], true),
        case(MAX, dense(signed(&[0, 3], 38)), &[1], false), // an empty row has no maximum, but there is no row
    ]
}

/// Returns cases longer than the 65 535 iterations after which Mesa 22's software adapters leave a loop, in every
/// place of the shape.
fn long_reductions() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        for (shape, dims) in [
            (&[200_000][..], &[0][..]),
            (&[2, 70_000], &[1]),
            (&[70_000, 2], &[0]),
            (&[70_000, 2], &[1]),
            (&[1_500, 300], &[0]),
        ] {
            let case = case(kind, dense(signed(shape, 39)), dims, false).within(5e-3, 1e-4);
            cases.push(if shape[0] == 200_000 { case } else { case.no_gradient() });
        }
    }
    cases
}

fn whole_numbers() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, low) in [(DType::I32, -50), (DType::U32, 0)] {
        for kind in [SUM, MAX] {
            cases.push(case(kind, dense(whole(&[7, 33], low, 50, 40)).of(dtype), &[0], false).result_dtype(dtype));
            cases.push(case(kind, dense(whole(&[70_001], low, 50, 41)).of(dtype), &[0], true).result_dtype(dtype));
        }
        // Negative numbers only: a maximum must not start from 0.
        cases.push(
            case(MAX, dense(whole(&[300], low - 9, low - 1, 42).map(f64::abs)).of(dtype), &[0], false)
                .result_dtype(dtype),
        );
    }
    cases.push(case(MAX, dense(whole(&[300], -9, -1, 42)).of(DType::I32), &[0], false).result_dtype(DType::I32));
    cases
}

fn argmax(what: &str, input: Input, dim: usize) -> Case {
    let oracle = move |x: &[&Nd]| oracle::argmax(x[0], dim);
    Case::new(format!("argmax {what} over {dim}"), [input], move |t| t[0].argmax(dim), oracle).result_dtype(DType::U32)
}

fn argmax_finds_the_first() -> Vec<Case> {
    let mut cases = Vec::new();
    for dim in 0..3 {
        cases.push(argmax("dense", dense(signed(&[3, 7, 5], 43)), dim));
        cases.push(argmax("of equals", dense(whole(&[3, 7, 5], 0, 3, 44)), dim));
        cases.push(argmax("transposed", transposed(signed(&[3, 7, 5], 45), 0, 2), dim));
        cases.push(argmax("narrowed", narrowed(signed(&[3, 7, 5], 46), 1), dim));
    }
    cases.push(argmax("single", dense(signed(&[1], 47)), 0));
    cases.push(argmax("no row", dense(signed(&[0, 3], 47)), 1));
    cases.push(argmax("long", dense(signed(&[70_000], 48)), 0));
    cases.push(argmax("long", dense(signed(&[2, 70_000], 49)), 1));
    cases.push(argmax("long columns", dense(signed(&[70_000, 2], 50)), 0));
    cases.push(argmax("long, all equal", dense(Nd::new(&[70_000], vec![1.0; 70_000])), 0));
    cases.push(argmax("long, equals in several parts", dense(whole(&[70_000], 0, 9, 51)), 0));
    // The last element is the largest: a loop that ends too early would miss it.
    cases.push(argmax("long, rising", dense(Nd::from_fn(&[70_000], |i| i[0] as f64)), 0));
    cases
}
