//! Rows of neighbouring elements, by each variant of the kernels that compute them: sums, extremes, positions, softmax,
//! cross-entropy, and their gradients; and columns, of which sums and extremes are computed.

use super::prelude::*;
use super::sort::{order, scan};

pub(super) fn cases() -> Vec<Case> {
    ["shared", "alone"]
        .into_iter()
        .flat_map(|variant| of_variant(variant).into_iter().chain(columns(variant)))
        .collect()
}

/// Rows and their elements: one row and many, from one element to more than registers keep, in vectors of four and not, and so long that
/// several workgroups have parts.
const ROWS: [[usize; 2]; 14] = [
    [1, 1],
    [3, 3],
    [257, 10],
    [70, 33],
    [33, 64],
    [5, 100],
    [9, 256],
    [2, 1023],
    [3, 1300],
    [2, 4096],
    [3, 5000],
    [2, 20_001],
    [3, 50_257],
    [1, 1_000_000],
];

fn of_variant(variant: &'static str) -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in ROWS {
        // Above this, the other variant leaves rows to other ops.
        if variant == "alone" && shape[1] > 5000 {
            continue;
        }
        let named = |op: &str, what: &str| format!("{op}/{variant} {what} of {shape:?}");
        let mut push = |op: &str, what: &str, case: Case| {
            // What adds up to 1 is small in long rows.
            let of_one = op == "softmax" || (op, what) == ("cross_entropy", "gradients");
            let atol = match op {
                _ if of_one => 1e-4 / shape[1] as f64,
                "cumsum" => 1e-3, // a sum near 0 of large ones
                _ => 1e-4,
            };
            cases.push(case.named(named(op, what)).within(atol, 1e-5).variant("rows", variant));
        };
        let x = || dense(uniform(&shape, -4.0, 4.0, 301));
        let labels = || dense(whole(&shape[..1], 0, shape[1] as i32, 302)).of(DType::U32);
        for log in [false, true] {
            let op = move |t: &[Tensor]| if log { t[0].log_softmax(1) } else { t[0].softmax(1) };
            let name = if log { "log_softmax" } else { "softmax" };
            push(name, "rows", Case::new("", [x()], op, move |x| oracle::softmax(x[0], 1, log)));
            push(
                name,
                "gradients",
                Case::new(
                    "",
                    [x(), dense(signed(&shape, 303))],
                    move |t| slopes(&op, t),
                    move |x| softmax_slopes(x[0], x[1], log),
                ),
            );
        }
        push(
            "softmax",
            "narrowed rows",
            Case::new(
                "",
                [narrowed(uniform(&shape, -4.0, 4.0, 304), 1)],
                |t| t[0].softmax(1),
                |x| oracle::softmax(x[0], 1, false),
            ),
        );
        push(
            "cross_entropy",
            "rows",
            Case::new("", [x(), labels()], |t| t[0].cross_entropy(&t[1]), |x| oracle::cross_entropy(x[0], x[1])),
        );
        push(
            "cross_entropy",
            "gradients",
            Case::new(
                "",
                [x(), labels()],
                |t| {
                    let x = t[0].detach().requires_grad();
                    x.cross_entropy(&t[1])?.backward()?;
                    gradient_of(&x)
                },
                |x| {
                    let rows = x[1].data.len() as f64;
                    let mut slopes = oracle::softmax(x[0], 1, false);
                    let classes = x[0].shape[1];
                    x[1].data
                        .iter()
                        .enumerate()
                        .for_each(|(n, &label)| slopes.data[n * classes + label as usize] -= 1.0);
                    slopes.map(|slope| slope / rows)
                },
            ),
        );
        push(
            "sum",
            "rows",
            Case::new("", [dense(signed(&shape, 305))], |t| t[0].sum([1], false), |x| oracle::sum(x[0], &[1], false)),
        );
        push(
            "sum",
            "rows from an odd place",
            Case::new(
                "",
                [narrowed(signed(&[shape[0] + 1, shape[1]], 306), 0)],
                |t| t[0].sum([1], false),
                |x| oracle::sum(x[0], &[1], false),
            ),
        );
        push(
            "max",
            "rows",
            Case::new("", [dense(signed(&shape, 307))], |t| t[0].max([1], false), |x| oracle::max(x[0], &[1], false)),
        );
        push(
            "cumsum",
            "rows from an odd place",
            Case::new(
                "",
                [narrowed(signed(&[shape[0] + 1, shape[1]], 314), 0)],
                |t| t[0].cumsum(1),
                scan(1, |a, v| a + v),
            ),
        );
        for (what, descending) in [("rows", false), ("rows, descending", true)] {
            let case = Case::new(
                "",
                [dense(whole(&shape, 0, 500, 316))],
                move |t| t[0].argsort(1, descending),
                move |x| {
                    let rows = x[0].data.chunks(x[0].shape[1]);
                    Nd::new(&x[0].shape, rows.flat_map(|row| order(row, descending)).map(|at| at as f64).collect())
                },
            );
            cases.push(case.result_dtype(DType::U32).exact().named(named("argsort", what)).variant("rows", variant));
        }
        for (what, low, high) in [("rows", -100_000, 100_000), ("rows of equals", 0, 3)] {
            let case =
                Case::new("", [dense(whole(&shape, low, high, 308))], |t| t[0].argmax(1), |x| oracle::argmax(x[0], 1));
            cases.push(case.result_dtype(DType::U32).named(named("argmax", what)).variant("rows", variant));
        }
        for dtype in [DType::I32, DType::U32] {
            let case = Case::new(
                "",
                [dense(whole(&shape, 0, 50, 309)).of(dtype)],
                |t| t[0].sum([1], false),
                |x| oracle::sum(x[0], &[1], false),
            );
            cases.push(case.result_dtype(dtype).named(named("sum", "rows")).variant("rows", variant));
        }
    }
    cases
}

/// `[A, R, B]` of reductions along R: with fewer elements than invocations and with more, in vectors of four and not, and in parts.
const COLUMNS: [[usize; 3]; 8] =
    [[1, 4, 2], [3, 5, 12], [2, 70, 37], [1, 301, 8], [1, 33, 400], [4, 260, 10], [1, 4500, 6], [1, 9001, 64]];

fn columns(variant: &'static str) -> impl Iterator<Item = Case> {
    COLUMNS.into_iter().flat_map(move |shape| {
        let push = |op: &str, what: &str, case: Case| {
            case.named(format!("{op}/{variant} {what} of {shape:?}")).within(1e-4, 1e-5).variant("rows", variant)
        };
        let whole = Case::new(
            "",
            [dense(whole(&shape, 0, 50, 310)).of(DType::I32)],
            |t| t[0].sum([1], false),
            |x| oracle::sum(x[0], &[1], false),
        );
        [
            push(
                "sum",
                "columns",
                Case::new(
                    "",
                    [dense(signed(&shape, 311))],
                    |t| t[0].sum([1], false),
                    |x| oracle::sum(x[0], &[1], false),
                ),
            ),
            push(
                "sum",
                "columns from an odd place",
                Case::new(
                    "",
                    [narrowed(signed(&shape, 312), 0)],
                    |t| t[0].sum([1], false),
                    |x| oracle::sum(x[0], &[1], false),
                ),
            ),
            push(
                "max",
                "columns",
                Case::new(
                    "",
                    [dense(signed(&shape, 313))],
                    |t| t[0].max([1], false),
                    |x| oracle::max(x[0], &[1], false),
                ),
            ),
            push("sum", "columns", whole.result_dtype(DType::I32)),
        ]
    })
}

/// Returns the gradient of `Σ g · f(x)` by x, of the tensors `[x, g]`.
fn slopes(f: &impl Fn(&[Tensor]) -> Result<Tensor>, tensors: &[Tensor]) -> Result<Tensor> {
    let x = tensors[0].detach().requires_grad();
    f(std::slice::from_ref(&x))?.mul(&tensors[1])?.sum_all()?.backward()?;
    gradient_of(&x)
}

fn gradient_of(x: &Tensor) -> Result<Tensor> {
    x.grad().ok_or_else(|| crate::error::Error::internal("no gradient"))
}

fn softmax_slopes(x: &Nd, g: &Nd, log: bool) -> Nd {
    let y = oracle::softmax(x, 1, false);
    let terms = if log { g.clone() } else { oracle::binary(g, &y, |g, y| g * y) };
    let total = oracle::sum(&terms, &[1], true);
    if log {
        oracle::binary(g, &oracle::binary(&y, &total, |y, total| y * total), |g, part| g - part)
    } else {
        oracle::binary(&y, &oracle::binary(g, &total, |g, total| g - total), |y, part| y * part)
    }
}
