//! Reading, writing and adding by index.

use super::prelude::*;
use crate::ScatterReduce;

pub(super) fn cases() -> Vec<Case> {
    [gather(), index_select(), scatter_add(), scatter(), index_add(), by_variant(), one_hot(), masked_fill()]
        .into_iter()
        .flatten()
        .collect()
}

fn x(shape: &[usize]) -> Nd {
    signed(shape, 91)
}

/// Returns indices below `size`, as u32.
fn ids(shape: &[usize], size: i32) -> Nd {
    whole(shape, 0, size, 92)
}

fn index(value: Nd) -> Input {
    dense(value).of(DType::U32)
}

/// Returns `index` with one position replaced.
fn with(index: &[usize], dim: usize, at: f64) -> Vec<usize> {
    let mut index = index.to_vec();
    index[dim] = at as usize;
    index
}

fn gather_oracle(dim: usize) -> impl Fn(&[&Nd]) -> Nd {
    move |x| Nd::from_fn(&x[1].shape, |i| x[0].at(&with(i, dim, x[1].at(i))))
}

fn gather() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dim, x, index) in [
        (0, dense(x(&[7])), index(ids(&[17], 7))),
        (1, dense(x(&[7, 5])), index(ids(&[7, 3], 5))),
        (0, transposed(x(&[7, 5]), 0, 1), transposed(ids(&[3, 5], 7), 0, 1).of(DType::U32)),
        (1, narrowed(x(&[3, 5, 2]), 1), narrowed(ids(&[3, 9, 2], 5), 1).of(DType::I32)),
        (2, broadcast(x(&[3, 1, 7]), &[3, 2, 7]), dense(ids(&[3, 2, 1], 7)).of(DType::U8)),
        (1, dense(x(&[7, 5, 3])), index(ids(&[4, 6, 2], 5))), // smaller in the other dimensions
        (1, dense(x(&[7, 5])), index(ids(&[7, 0], 5))),
        (0, dense(x(&[257])), index(ids(&[1000], 257))),
    ] {
        cases.push(
            Case::new("gather", [x, index], move |t| t[0].gather(dim, &t[1]), gather_oracle(dim)).within(0.0, 1e-6),
        );
    }
    for dtype in [DType::F16, DType::I32, DType::U32, DType::U8, DType::Bool] {
        let inputs = [dense(whole(&[7, 5], 0, 9, 93)).of(dtype), index(ids(&[7, 3], 5))];
        let case = Case::new(format!("gather {dtype}"), inputs, |t| t[0].gather(1, &t[1]), gather_oracle(1));
        cases.push(case.result_dtype(dtype).exact().no_gradient());
    }
    cases
}

fn select_oracle(dim: usize) -> impl Fn(&[&Nd]) -> Nd {
    move |x| {
        let mut shape = x[0].shape.clone();
        shape[dim] = x[1].data.len();
        Nd::from_fn(&shape, |i| x[0].at(&with(i, dim, x[1].data[i[dim]])))
    }
}

fn index_select() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dim, x, index) in [
        (0, dense(x(&[7])), index(ids(&[17], 7))),
        (0, dense(x(&[7, 5])), index(ids(&[33], 7))),
        (1, transposed(x(&[7, 5]), 0, 1), narrowed(ids(&[3], 5), 0).of(DType::I32)),
        (1, narrowed(x(&[3, 5, 2]), 2), index(ids(&[9], 5))),
        (0, dense(x(&[7, 5])), index(ids(&[0], 7))),
    ] {
        let op = move |t: &[Tensor]| t[0].index_select(dim, &t[1]);
        cases.push(Case::new("index_select", [x, index], op, select_oracle(dim)).within(0.0, 1e-6));
    }
    let embedded = |x: &[&Nd]| {
        let mut shape = x[1].shape.clone();
        shape.push(x[0].shape[1]);
        Nd::new(&shape, select_oracle(0)(x).data)
    };
    for (table, ids) in [(x(&[17, 5]), ids(&[3, 7], 17)), (x(&[3, 33]), ids(&[257], 3))] {
        cases.push(
            Case::new("embedding", [dense(table), index(ids)], |t| t[0].embedding(&t[1]), embedded).within(0.0, 1e-6),
        );
    }
    let inputs = [dense(x(&[17, 5])).of(DType::BF16), dense(ids(&[3, 7], 17)).of(DType::U8)];
    cases.push(
        Case::new("embedding bf16", inputs, |t| t[0].embedding(&t[1]), embedded)
            .result_dtype(DType::BF16)
            .exact()
            .no_gradient(),
    );
    cases
}

/// Applies every source in its order with `put`, which gets the element of the base and the source's value.
fn scattered(x: &[&Nd], dim: usize, put: impl Fn(&mut f64, f64)) -> Nd {
    let (mut out, index, src) = (x[0].clone(), x[1], x[2]);
    let positions = Nd::from_fn(&out.shape, {
        let mut next = -1.0;
        move |_| {
            next += 1.0;
            next
        }
    });
    Nd::from_fn(&index.shape, |i| {
        let at = positions.at(&with(i, dim, index.at(i))) as usize;
        put(&mut out.data[at], src.at(i));
        0.0
    });
    out
}

fn scatter_add() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dim, base, index, src) in scatter_inputs() {
        let op = move |t: &[Tensor]| t[0].scatter_add(dim, &t[1], &t[2]);
        cases.push(Case::new("scatter_add", [base, index, src], op, move |x| scattered(x, dim, |a, v| *a += v)));
    }
    for dtype in [DType::F16, DType::I32, DType::U32, DType::U8] {
        let inputs = [
            dense(whole(&[7, 5], 0, 9, 94)).of(dtype),
            index(ids(&[7, 3], 5)),
            dense(whole(&[7, 3], 0, 9, 95)).of(dtype),
        ];
        let op = |t: &[Tensor]| t[0].scatter_add(1, &t[1], &t[2]);
        let case = Case::new(format!("scatter_add {dtype}"), inputs, op, |x| scattered(x, 1, |a, v| *a += v));
        cases.push(case.result_dtype(dtype).exact().no_gradient());
    }
    cases
}

fn scatter_inputs() -> Vec<(usize, Input, Input, Input)> {
    vec![
        (0, dense(x(&[7])), index(ids(&[17], 7)), dense(signed(&[17], 96))),
        (1, dense(x(&[7, 5])), index(ids(&[7, 3], 5)), transposed(signed(&[7, 3], 96), 0, 1)),
        (0, transposed(x(&[7, 5]), 0, 1), transposed(ids(&[9, 5], 7), 0, 1).of(DType::U32), dense(signed(&[9, 5], 96))),
        (
            1,
            narrowed(x(&[3, 5, 2]), 1),
            narrowed(ids(&[3, 9, 2], 5), 1).of(DType::I32),
            narrowed(signed(&[3, 9, 2], 96), 0),
        ),
        // The index is smaller than the base and the source.
        (1, dense(x(&[4, 5, 3])), index(ids(&[2, 3, 2], 5)), dense(signed(&[3, 4, 2], 96))),
        (1, dense(x(&[7, 5])), index(ids(&[7, 0], 5)), dense(signed(&[7, 0], 96))),
        (0, dense(x(&[17])), index(ids(&[257], 17)), dense(signed(&[257], 96))),
    ]
}

fn scatter() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dim, base, index, src) in scatter_inputs() {
        let op = move |t: &[Tensor]| t[0].scatter(dim, &t[1], &t[2]);
        cases.push(
            Case::new("scatter", [base, index, src], op, move |x| scattered(x, dim, |a, v| *a = v)).within(0.0, 1e-6),
        );
    }
    cases
}

/// Applies every source of slices in its order.
fn added(dim: usize, put: fn(&mut f64, f64)) -> impl Fn(&[&Nd]) -> Nd {
    move |x| {
        let index = Nd::from_fn(&x[2].shape, |i| x[1].data[i[dim]]);
        scattered(&[x[0], &index, x[2]], dim, put)
    }
}

fn index_add_inputs() -> Vec<(usize, Input, Input, Input)> {
    vec![
        (0, dense(x(&[7, 5])), index(ids(&[17], 7)), dense(signed(&[17, 5], 97))),
        (1, transposed(x(&[7, 5]), 0, 1), index(ids(&[33], 5)), narrowed(signed(&[7, 33], 97), 1)),
        (
            1,
            dense(x(&[3, 5, 2])),
            narrowed(ids(&[4], 5), 0).of(DType::I32),
            broadcast(signed(&[3, 1, 2], 97), &[3, 4, 2]),
        ),
        (0, dense(x(&[7, 5])), index(ids(&[0], 7)), dense(signed(&[0, 5], 97))),
        // One element has more sources than one dispatch adds: integers, whose sums are exact in f32.
        (0, dense(whole(&[3, 1], 0, 9, 98)), index(ids(&[50_000], 2)), dense(whole(&[50_000, 1], -9, 9, 99))),
    ]
}

fn index_add() -> Vec<Case> {
    let case = |(dim, base, index, src): (usize, Input, Input, Input)| {
        let op = move |t: &[Tensor]| t[0].index_add(dim, &t[1], &t[2]);
        Case::new("index_add", [base, index, src], op, added(dim, |a, v| *a += v))
    };
    index_add_inputs().into_iter().map(case).collect()
}

/// Sums and extremes by each kernel that computes them.
fn by_variant() -> Vec<Case> {
    let mut cases = Vec::new();
    for variant in ["shared", "alone"] {
        let named = |op: &str, number: usize| format!("{op}/{variant} {number}");
        for (number, (dim, base, index, src)) in scatter_inputs().into_iter().enumerate() {
            let op = move |t: &[Tensor]| t[0].scatter_add(dim, &t[1], &t[2]);
            let oracle = move |x: &[&Nd]| scattered(x, dim, |a, v| *a += v);
            cases.push(
                Case::new(named("scatter_add", number), [base, index, src], op, oracle).variant("scatter", variant),
            );
        }
        let wide = (0, dense(x(&[3, 70])), index(ids(&[700], 3)), dense(signed(&[700, 70], 100)));
        for (number, (dim, base, index, src)) in index_add_inputs().into_iter().chain([wide]).enumerate() {
            let op = move |t: &[Tensor]| t[0].index_add(dim, &t[1], &t[2]);
            let oracle = added(dim, |a, v| *a += v);
            cases.push(
                Case::new(named("index_add", number), [base, index, src], op, oracle).variant("scatter", variant),
            );
        }
        let inputs = [dense(x(&[7, 33])), index(ids(&[170], 7)), dense(signed(&[170, 33], 101))];
        let op = |t: &[Tensor]| t[0].index_reduce(0, &t[1], &t[2], ScatterReduce::Amax, true);
        let case = Case::new(named("index_reduce", 0), inputs, op, added(0, |a, v| *a = a.max(v)));
        cases.push(case.variant("scatter", variant));
    }
    cases
}

fn one_hot() -> Vec<Case> {
    let oracle = |x: &[&Nd]| {
        let shape = [&x[0].shape[..], &[5]].concat();
        Nd::from_fn(&shape, |i| if x[0].at(&i[..i.len() - 1]) == i[i.len() - 1] as f64 { 1.0 } else { 0.0 })
    };
    let input = |shape: &[usize]| ids(shape, 5);
    [
        index(input(&[17])),
        transposed(input(&[3, 7]), 0, 1).of(DType::I32),
        dense(input(&[])).of(DType::U8),
        index(input(&[0])),
    ]
    .into_iter()
    .map(|input| Case::new("one_hot", [input], |t| t[0].one_hot(5), oracle).result_dtype(DType::U32))
    .collect()
}

fn masked_fill() -> Vec<Case> {
    let oracle =
        |value: f64| move |x: &[&Nd]| oracle::binary(x[0], x[1], |x, mask| if mask != 0.0 { value } else { x });
    let mask = |shape: &[usize]| whole(shape, 0, 2, 112);
    let mut cases = Vec::new();
    for (x, mask) in [
        (dense(x(&[7, 5])), dense(mask(&[7, 5])).of(DType::Bool)),
        (transposed(x(&[257, 3]), 0, 1), transposed(mask(&[257, 3]), 0, 1).of(DType::U8)),
        (narrowed(x(&[3, 17]), 1), dense(mask(&[17])).of(DType::U32)),
        (broadcast(x(&[7, 1]), &[7, 5]), narrowed(mask(&[7, 1]), 0).of(DType::I32)),
        (dense(x(&[0, 3])), dense(mask(&[3])).of(DType::Bool)),
    ] {
        cases.push(Case::new("masked_fill", [x, mask], |t| t[0].masked_fill(&t[1], -2.5), oracle(-2.5)).exact());
    }
    for dtype in [DType::F16, DType::I32, DType::U32, DType::U8] {
        let inputs = [dense(whole(&[7, 5], 0, 9, 113)).of(dtype), dense(mask(&[7, 5])).of(DType::Bool)];
        let case = Case::new(format!("masked_fill {dtype}"), inputs, |t| t[0].masked_fill(&t[1], 3.0), oracle(3.0));
        cases.push(case.result_dtype(dtype).exact().no_gradient());
    }
    cases
}
