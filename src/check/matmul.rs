//! Products of matrices.

use super::prelude::*;
use super::window::{self, WindowParams};
use crate::ops::Conv;

pub(super) fn cases() -> Vec<Case> {
    [variants(), unpacked(), matmul(), batches(), halves(), cooperative(), a_long_inner_dimension()]
        .into_iter()
        .flatten()
        .collect()
}

fn case(what: &str, a: Input, b: Input) -> Case {
    let oracle = |x: &[&Nd]| oracle::matmul(x[0], x[1]);
    let (rows, columns) = (a.value.data.len(), b.value.shape.last().copied().unwrap_or(1));
    let case = Case::new(format!("matmul {what}"), [a, b], |t| t[0].matmul(&t[1]), oracle).within(3e-5, 1e-5);
    case.operations(rows * columns)
}

fn a(shape: &[usize]) -> Nd {
    signed(shape, 11)
}

fn b(shape: &[usize]) -> Nd {
    signed(shape, 12)
}

fn matmul() -> Vec<Case> {
    let mut cases = Vec::new();
    for [m, k, n] in [[1, 1, 1], [7, 17, 33], [1, 33, 7], [33, 7, 1], [64, 64, 64], [65, 3, 129], [257, 33, 65]] {
        cases.push(case("dense", dense(a(&[m, k])), dense(b(&[k, n]))));
    }
    for [m, k, n] in [[0, 3, 2], [3, 2, 0], [0, 0, 0]] {
        cases.push(case("empty", dense(a(&[m, k])), dense(b(&[k, n]))));
    }
    cases.push(case("over nothing: zeros", dense(a(&[3, 0])), dense(b(&[0, 2]))));
    cases.push(case("left transposed", transposed(a(&[7, 17]), 0, 1), dense(b(&[17, 33]))));
    cases.push(case("right transposed", dense(a(&[7, 17])), transposed(b(&[17, 33]), 0, 1)));
    cases.push(case("both transposed", transposed(a(&[17, 7]), 0, 1), transposed(b(&[7, 5]), 0, 1)));
    cases.push(case("narrowed rows", narrowed(a(&[7, 17]), 0), narrowed(b(&[17, 5]), 0)));
    cases.push(case("narrowed columns", narrowed(a(&[7, 17]), 1), narrowed(b(&[17, 5]), 1)));
    cases.push(case("strides of 0", broadcast(a(&[1, 17]), &[7, 17]), broadcast(b(&[17, 1]), &[17, 5])));
    cases
}

fn batches() -> Vec<Case> {
    let mut cases = Vec::new();
    for (left, right) in [
        (&[3, 7, 5][..], &[3, 5, 9][..]),
        (&[1, 7, 5], &[4, 5, 3]),
        (&[7, 5], &[4, 5, 3]),
        (&[4, 7, 5], &[5, 3]),
        (&[2, 1, 3, 5], &[3, 5, 2]),
        (&[0, 3, 2], &[0, 2, 3]),
        (&[70, 1, 2], &[70, 2, 1]),
    ] {
        cases.push(case("batched", dense(a(left)), dense(b(right))));
    }
    cases.push(case("batch last in memory", transposed(a(&[3, 7, 5]), 0, 2), dense(b(&[3, 5, 2]))));
    cases.push(case("batches narrowed", narrowed(a(&[3, 4, 5]), 0), narrowed(b(&[3, 5, 2]), 2)));
    cases
}

/// Returns cases of halves, which are read as they are stored, with sums of f32.
fn halves() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, rtol) in [(DType::F16, 2e-3), (DType::BF16, 1.6e-2)] {
        let mut push = |a: Input, b: Input| {
            cases.push(case("halves", a.of(dtype), b.of(dtype)).within(rtol, rtol).result_dtype(dtype));
        };
        push(dense(a(&[65, 70])), transposed(b(&[70, 67]), 0, 1));
        push(narrowed(a(&[3, 17]), 1), dense(b(&[17, 33])));
        push(dense(a(&[2, 33, 48])), dense(b(&[2, 48, 40])));
    }
    cases
}

/// Returns cases of f16 for the variants of cooperative matrices.
fn cooperative() -> Vec<Case> {
    let mut cases = Vec::new();
    for variant in ["cooperative_16", "cooperative_8"] {
        let mut push = |what: &str, a: Input, b: Input| {
            let case = case(what, a.of(DType::F16), b.of(DType::F16)).within(2e-3, 2e-3).result_dtype(DType::F16);
            cases.push(case.named(format!("matmul/{variant} {what}")).variant("matmul_cooperative", variant));
        };
        for [m, k, n] in [[1, 1, 1], [64, 16, 64], [65, 3, 129], [130, 200, 70]] {
            push("dense", dense(a(&[m, k])), dense(b(&[k, n])));
        }
        push("transposed", transposed(a(&[70, 37]), 0, 1), transposed(b(&[37, 67]), 0, 1));
        push("batched", dense(a(&[3, 70, 37])), dense(b(&[3, 37, 67])));
    }
    cases
}

fn long(m: usize, k: usize, n: usize) -> Case {
    case("long k", dense(a(&[m, k])), dense(b(&[k, n]))).within(5e-2, 1e-3)
}

/// Returns cases longer than the 65 535 iterations after which Mesa 22's software adapters leave a loop.
fn a_long_inner_dimension() -> Vec<Case> {
    vec![long(2, 70_000, 3), long(1, 200_001, 1).no_gradient()]
}

/// Returns cases for every variant of the kernel, even if the device would not choose it.
fn variants() -> Vec<Case> {
    let mut cases = Vec::new();
    for variant in ["subgroups", "tiles", "tiles_32", "blocks_64", "blocks_128", "panels", "plain"] {
        let mut push = |what: &str, a: Input, b: Input| {
            cases.push(case(what, a, b).named(format!("matmul/{variant} {what}")).variant("matmul", variant));
        };
        for [m, k, n] in [[1, 1, 1], [7, 17, 33], [64, 16, 64], [65, 3, 129], [257, 33, 65], [130, 70, 200]] {
            push("dense", dense(a(&[m, k])), dense(b(&[k, n])));
        }
        push("transposed", transposed(a(&[70, 37]), 0, 1), transposed(b(&[37, 67]), 0, 1));
        push("batched", dense(a(&[3, 70, 37])), dense(b(&[3, 37, 67])));
        push("batch of one matrix", dense(a(&[9, 37])), dense(b(&[4, 37, 67])));
        for (m, k) in [(2, 70_000), (32, 12_288)] {
            let case = long(m, k, 3).named(format!("matmul/{variant} long k, {m} rows"));
            cases.push(case.variant("matmul", variant));
        }
        // Two images: with more, some adapters compute a convolution without the product.
        let conv = [dense(a(&[2, 5, 9, 9])), dense(b(&[9, 5, 3, 3])), dense(b(&[9]))];
        let op = |t: &[Tensor]| t[0].conv2d(&t[1], Some(&t[2]), Conv::new().padding([1, 1]));
        let params = WindowParams::new([1, 1], [1, 1]);
        let oracle = move |x: &[&Nd]| window::conv2d(x[0], x[1], Some(x[2]), params);
        let name = format!("matmul/{variant} in a convolution");
        cases.push(Case::new(name, conv, op, oracle).within(1e-4, 1e-5).variant("matmul", variant));
    }
    // By each kernel that puts operands into panels.
    for variant in ["tiles", "runs"] {
        let mut push = |what: &str, a: Input, b: Input| {
            cases.push(case(what, a, b).named(format!("matmul/pack_{variant} {what}")).variant("pack", variant));
        };
        for [m, k, n] in [[7, 17, 33], [65, 3, 129], [130, 300, 200]] {
            push("dense", dense(a(&[m, k])), dense(b(&[k, n])));
            push("transposed", transposed(a(&[m, k]), 0, 1), transposed(b(&[k, n]), 0, 1));
        }
        push("batched", dense(a(&[3, 70, 37])), dense(b(&[3, 37, 67])));
        push("batch of one matrix", dense(a(&[9, 37])), dense(b(&[4, 37, 67])));
    }
    cases
}

/// Returns cases for every variant of products that read the operands where they are.
fn unpacked() -> Vec<Case> {
    let mut cases = Vec::new();
    for variant in ["dots", "slices", "strided", "direct"] {
        let mut push = |what: &str, a: Input, b: Input| {
            let case = case(what, a, b).named(format!("matmul/{variant} {what}"));
            cases.push(case.variant("matmul_unpacked", variant));
        };
        let (few, many) =
            ([[1, 1, 1], [1, 65, 70], [3, 300, 5], [4, 64, 4], [70, 129, 2], [300, 2000, 1]], [[65, 70, 130]]);
        for [m, k, n] in few.into_iter().chain(many.into_iter().filter(|_| ["slices", "strided"].contains(&variant))) {
            push("dense", dense(a(&[m, k])), dense(b(&[k, n])));
            push("right transposed", narrowed(a(&[m, k]), 1), transposed(b(&[k, n]), 0, 1));
            push("left transposed", transposed(a(&[m, k]), 0, 1), dense(b(&[k, n])));
        }
        push("batched", dense(a(&[3, 2, 150])), dense(b(&[3, 150, 9])));
        push("batch of one matrix", dense(a(&[70, 150])), dense(b(&[4, 150, 3])));
        push("strides of 0", broadcast(a(&[1, 150]), &[3, 150]), broadcast(b(&[150, 1]), &[150, 40]));
        let long = long(2, 70_000, 3).named(format!("matmul/{variant} long k"));
        cases.push(long.variant("matmul_unpacked", variant));
    }
    let mut push = |what: &str, a: Input, b: Input| {
        let case = case(what, a, b).named(format!("matmul/shared {what}"));
        cases.push(case.variant("matmul_unpacked", "shared"));
    };
    // Sizes that are multiples of four, and others; with each number of panels in a tile.
    let in_fours = [[8, 4, 8], [12, 36, 20], [20, 8, 132], [72, 100, 36], [300, 512, 64]];
    let others =
        [[5, 1, 6], [7, 2, 9], [12, 35, 21], [17, 3, 33], [30, 18, 31], [33, 37, 65], [131, 67, 70], [61, 513, 258]];
    for [m, k, n] in in_fours {
        push("in fours", narrowed(a(&[m, k]), 0), narrowed(b(&[k, n]), 0));
        push("right transposed, in fours", narrowed(a(&[m, k]), 0), transposed(b(&[k, n]), 0, 1));
        push("left transposed, in fours", transposed(a(&[m, k]), 0, 1), narrowed(b(&[k, n]), 0));
    }
    for [m, k, n] in in_fours.into_iter().chain(others) {
        push("dense", dense(a(&[m + 1, k])), dense(b(&[k, n])));
        push("right transposed", dense(a(&[m, k])), transposed(b(&[k, n + 1]), 0, 1));
        push("left transposed", transposed(a(&[m, k]), 0, 1), dense(b(&[k, n])));
        push("both transposed", transposed(a(&[m, k]), 0, 1), transposed(b(&[k, n]), 0, 1));
    }
    for [m, k, n] in [[17, 40, 24], [17, 41, 23]] {
        push("batched", dense(a(&[3, m, k])), dense(b(&[3, k, n])));
        push("batch of one matrix", dense(a(&[m, k])), dense(b(&[4, k, n])));
        push("strides of 0", broadcast(a(&[1, k]), &[m, k]), dense(b(&[k, n])));
        push("narrowed", narrowed(a(&[24, k]), 0), narrowed(b(&[k, 60]), 0));
        push("narrowed along k", narrowed(a(&[m, k]), 1), narrowed(b(&[k, n]), 0));
        push("two batches", dense(a(&[2, 1, 5, k])), dense(b(&[3, k, n])));
    }
    let long = long(32, 12_288, 8).named("matmul/shared long k".to_owned());
    cases.push(long.variant("matmul_unpacked", "shared"));
    cases
}
