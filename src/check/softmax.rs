//! Softmax, its logarithm, and cross-entropy.

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [softmax_along_each_dimension(), long_rows(), cross_entropy()].into_iter().flatten().collect()
}

fn case(what: &str, input: Input, dim: usize, log: bool) -> Case {
    let op = move |t: &[Tensor]| if log { t[0].log_softmax(dim) } else { t[0].softmax(dim) };
    let name = format!("{}softmax {what} over {dim}", if log { "log_" } else { "" });
    Case::new(name, [input], op, move |x| oracle::softmax(x[0], dim, log))
}

fn x(shape: &[usize]) -> Nd {
    uniform(shape, -4.0, 4.0, 61)
}

fn softmax_along_each_dimension() -> Vec<Case> {
    let mut cases = Vec::new();
    for log in [false, true] {
        for dim in 0..3 {
            cases.push(case("dense", dense(x(&[3, 7, 5])), dim, log));
            cases.push(case("transposed", transposed(x(&[3, 7, 5]), 0, 2), dim, log));
            cases.push(case("narrowed", narrowed(x(&[3, 7, 5]), dim), dim, log));
        }
        for (shape, dim) in [(&[1][..], 0), (&[257, 10], 1), (&[10, 257], 0), (&[0, 3], 1), (&[70, 33], 1)] {
            cases.push(case("dense", dense(x(shape)), dim, log));
        }
        // e^100 is too large for f32: only differences may be used.
        cases.push(case("of large numbers", dense(x(&[3, 9]).map(|v| v + 100.0)), 1, log));
        cases.push(case("far apart", dense(Nd::new(&[3], vec![-1000.0, 0.0, 1000.0])), 0, log).no_gradient());
    }
    cases
}

/// Returns rows of 20 000, whose three loops in one invocation are 60 000 iterations, and of 40 000: more than Mesa
/// 22's adapters run.
fn long_rows() -> Vec<Case> {
    let mut cases = Vec::new();
    for log in [false, true] {
        for (shape, dim) in [(&[2, 20_000][..], 1), (&[20_000, 2], 0), (&[1, 40_000], 1), (&[1, 70_000], 1)] {
            cases.push(case("long", dense(x(shape)), dim, log).no_gradient().within(1e-4, 1e-4));
        }
    }
    cases
}

fn cross_entropy() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, classes) in [(1, 1), (1, 10), (7, 3), (33, 10), (257, 17)] {
        let labels = || dense(whole(&[n], 0, classes as i32, 62)).of(DType::U32);
        let mut push = |what: &str, scores: Input| {
            cases.push(Case::new(
                format!("cross_entropy {what}"),
                [scores, labels()],
                |t| t[0].cross_entropy(&t[1]),
                |x| oracle::cross_entropy(x[0], x[1]),
            ));
        };
        push("dense", dense(x(&[n, classes])));
        push("transposed", transposed(x(&[n, classes]), 0, 1));
        push("narrowed", narrowed(x(&[n, classes]), 1));
        push("of large scores", dense(x(&[n, classes]).map(|v| 10.0 * v)));
    }
    cases
}
