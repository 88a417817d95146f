//! Medians, quantiles, different elements, running extremes.

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [medians(), quantiles(), running(), unique()].into_iter().flatten().collect()
}

/// The rows along `dim`, each with its index, whose entry at `dim` is 0.
fn rows(x: &Nd, dim: usize) -> Vec<(Vec<usize>, Vec<f64>)> {
    let mut shape = x.shape.clone();
    let len = std::mem::replace(&mut shape[dim], 1);
    let mut all = Vec::new();
    Nd::from_fn(&shape, |at| {
        let mut from = at.to_vec();
        let row = (0..len).map(|i| {
            from[dim] = i;
            x.at(&from)
        });
        all.push((at.to_vec(), row.collect()));
        0.0
    });
    all
}

/// One number of each row along `dim`, which becomes size 1.
fn each_row(x: &Nd, dim: usize, f: impl Fn(&[f64]) -> f64) -> Nd {
    let mut shape = x.shape.clone();
    shape[dim] = 1;
    Nd::new(&shape, rows(x, dim).iter().map(|(_, row)| f(row)).collect())
}

fn sorted(row: &[f64]) -> Vec<f64> {
    let mut row = row.to_vec();
    row.sort_by(f64::total_cmp);
    row
}

fn inputs() -> Vec<(usize, Input)> {
    let x = |shape: &[usize]| signed(shape, 151);
    vec![
        (0, dense(x(&[1]))),
        (0, dense(x(&[100]))),
        (1, dense(x(&[3, 7]))),
        (0, transposed(x(&[6, 5]), 0, 1)),
        (1, narrowed(x(&[3, 4, 5]), 1)),
        (1, broadcast(x(&[1, 5]), &[3, 5])),
        (1, dense(x(&[0, 3]))),
    ]
}

fn medians() -> Vec<Case> {
    let lower = |row: &[f64]| if row.iter().any(|v| v.is_nan()) { f64::NAN } else { sorted(row)[(row.len() - 1) / 2] };
    let mut cases = Vec::new();
    for (dim, input) in inputs() {
        let value = move |x: &[&Nd]| each_row(x[0], dim, lower);
        cases.push(
            Case::new("median", [input.clone()], move |t| Ok(t[0].median(dim, true)?.0), value).within(0.0, 1e-6),
        );
        let place =
            move |x: &[&Nd]| each_row(x[0], dim, |row| row.iter().position(|&v| v == lower(row)).unwrap_or(0) as f64);
        let case = Case::new("median place", [input], move |t| Ok(t[0].median(dim, true)?.1), place);
        cases.push(case.result_dtype(DType::U32));
    }
    let nan = [dense(Nd::new(&[2, 3], vec![1.0, f64::NAN, 0.0, 3.0, 2.0, 1.0]))];
    let case = Case::new("median nan", nan, |t| Ok(t[0].median(1, true)?.0), move |x| each_row(x[0], 1, lower));
    cases.push(case.no_gradient());
    let squeezed = move |x: &[&Nd]| Nd::new(&[5], each_row(x[0], 0, lower).data);
    let case = Case::new(
        "median i32",
        [dense(whole(&[4, 5], -9, 9, 152)).of(DType::I32)],
        |t| Ok(t[0].median(0, false)?.0),
        squeezed,
    );
    cases.push(case.result_dtype(DType::I32));
    cases
}

fn quantiles() -> Vec<Case> {
    let mut cases = Vec::new();
    for q in [0.0, 0.3, 0.5, 1.0] {
        let between = move |row: &[f64]| {
            let (row, at) = (sorted(row), q * (row.len() - 1) as f64);
            let (below, above) = (row[at.floor() as usize], row[at.ceil() as usize]);
            below + (above - below) * (at - at.floor())
        };
        for (dim, input) in inputs() {
            let oracle = move |x: &[&Nd]| each_row(x[0], dim, between);
            cases.push(Case::new(format!("quantile {q}"), [input], move |t| t[0].quantile(q, dim, true), oracle));
        }
    }
    let halves = [dense(signed(&[7], 153)).of(DType::F16)];
    let oracle = |x: &[&Nd]| Nd::new(&[], vec![sorted(&x[0].data)[3]]);
    cases.push(Case::new("quantile f16", halves, |t| t[0].quantile(0.5, 0, false), oracle).result_dtype(DType::F16));
    cases
}

fn running() -> Vec<Case> {
    type Call = fn(&Tensor, usize) -> Result<(Tensor, Tensor)>;
    let calls: [(&str, Call, bool); 2] =
        [("cummax", |t, dim| t.cummax(dim), true), ("cummin", |t, dim| t.cummin(dim), false)];
    let mut cases = Vec::new();
    for (name, call, largest) in calls {
        // The place of the last extreme up to each element.
        let place = move |x: &Nd, dim: usize| {
            let rows = rows(x, dim);
            Nd::from_fn(&x.shape, |at| {
                let mut first = at.to_vec();
                first[dim] = 0;
                let row = rows.iter().find(|(index, _)| *index == first).map_or(&[][..], |(_, row)| &row[..]);
                (0..=at[dim]).fold(0, |best, i| {
                    let better = if largest { row[i] >= row[best] } else { row[i] <= row[best] };
                    if better { i } else { best }
                }) as f64
            })
        };
        for (dim, input) in inputs() {
            let value = move |x: &[&Nd]| {
                let places = place(x[0], dim);
                Nd::from_fn(&x[0].shape, |at| {
                    let mut from = at.to_vec();
                    from[dim] = places.at(at) as usize;
                    x[0].at(&from)
                })
            };
            cases.push(Case::new(name, [input.clone()], move |t| Ok(call(&t[0], dim)?.0), value).within(0.0, 1e-6));
            let case = Case::new(
                format!("{name} place"),
                [input],
                move |t| Ok(call(&t[0], dim)?.1),
                move |x| place(x[0], dim),
            );
            cases.push(case.result_dtype(DType::U32));
        }
        for dtype in [DType::I32, DType::U8] {
            let input = [dense(whole(&[3, 300], 0, 9, 154)).of(dtype)];
            let case =
                Case::new(format!("{name} {dtype}"), input, move |t| Ok(call(&t[0], 1)?.1), move |x| place(x[0], 1));
            cases.push(case.result_dtype(DType::U32));
        }
    }
    cases
}

fn unique() -> Vec<Case> {
    fn different(x: &Nd) -> Vec<f64> {
        let mut all = sorted(&x.data);
        all.dedup();
        all
    }
    let mut cases = Vec::new();
    for (input, dtype) in [
        (dense(whole(&[7, 9], -5, 5, 155)), DType::F32),
        (transposed(whole(&[7, 9], 0, 50, 155), 0, 1), DType::U8),
        (narrowed(whole(&[300], -400, 400, 156), 0), DType::I32),
        (dense(Nd::new(&[1], vec![3.0])), DType::U32),
        (dense(Nd::new(&[0, 2], vec![])), DType::F32),
        (dense(Nd::new(&[], vec![3.0])), DType::F16),
    ] {
        let input = [input.of(dtype)];
        let values = |x: &[&Nd]| Nd::new(&[different(x[0]).len()], different(x[0]));
        cases.push(Case::new("unique", input.clone(), |t| t[0].unique(), values).result_dtype(dtype).no_gradient());
        let part = |t: &[Tensor], i: usize| t[0].unique_with_counts().map(|(a, b, c)| [a, b, c][i].clone());
        let name = "unique_with_counts";
        let case = Case::new(name, input.clone(), move |t| part(t, 0), values);
        cases.push(case.result_dtype(dtype).no_gradient());
        let inverse = |x: &[&Nd]| {
            let all = different(x[0]);
            x[0].map(|v| all.iter().position(|&other| other == v).unwrap_or(0) as f64)
        };
        cases.push(Case::new(name, input.clone(), move |t| part(t, 1), inverse).result_dtype(DType::U32));
        let counts = |x: &[&Nd]| {
            let of = |&value: &f64| x[0].data.iter().filter(|&&v| v == value).count() as f64;
            let counts: Vec<f64> = different(x[0]).iter().map(of).collect();
            Nd::new(&[counts.len()], counts)
        };
        cases.push(Case::new(name, input, move |t| part(t, 2), counts).result_dtype(DType::U32));
    }
    cases
}
