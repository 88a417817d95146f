//! Reductions by index, and indexing by tensors and masks.

use super::prelude::*;
use crate::ops::ScatterReduce;

const WAYS: [ScatterReduce; 5] =
    [ScatterReduce::Sum, ScatterReduce::Prod, ScatterReduce::Mean, ScatterReduce::Amax, ScatterReduce::Amin];

pub(super) fn cases() -> Vec<Case> {
    [scatter_reduce(), index_reduce(), index_copy(), index(), masks(), index_put()].into_iter().flatten().collect()
}

/// Returns numbers of which no two are close, so that a small step changes no maximum.
fn distinct(shape: &[usize], seed: u64) -> Nd {
    let (count, mut place) = (shape.iter().product::<usize>() as f64, seed as f64 / 1000.0);
    let signs = whole(shape, 0, 2, seed).map(|v| 1.0 - 2.0 * v);
    Nd::from_fn(shape, |at| {
        place += 1.0;
        f64::from((signs.at(at) * (0.3 + 0.7 * place / count)) as f32)
    })
}

fn ids(shape: &[usize], size: i32) -> Nd {
    whole(shape, 0, size, 121)
}

fn index_of(value: Nd) -> Input {
    dense(value).of(DType::U32)
}

/// Reduces `x[2]` into `x[0]` along `dim`; `at` returns the place of a source along `dim`.
fn reduced(x: &[&Nd], dim: usize, way: ScatterReduce, own: bool, at: impl Fn(&[usize]) -> usize) -> Nd {
    // Every element's terms, found by going through all sources.
    Nd::from_fn(&x[0].shape, |to| {
        let mut terms = Vec::new();
        Nd::from_fn(&x[2].shape, |from| {
            let same = (0..to.len()).all(|d| if d == dim { at(from) == to[d] } else { from[d] == to[d] });
            if same {
                terms.push(x[2].at(from));
            }
            0.0
        });
        if own || terms.is_empty() {
            terms.push(x[0].at(to));
        }
        let sum: f64 = terms.iter().sum();
        match way {
            ScatterReduce::Sum => sum,
            ScatterReduce::Prod => terms.iter().product(),
            ScatterReduce::Mean => sum / terms.len() as f64,
            ScatterReduce::Amax => terms.into_iter().fold(f64::NEG_INFINITY, f64::max),
            ScatterReduce::Amin => terms.into_iter().fold(f64::INFINITY, f64::min),
        }
    })
}

fn scatter_reduce() -> Vec<Case> {
    let mut cases = Vec::new();
    for (way, own) in WAYS.into_iter().flat_map(|way| [(way, true), (way, false)]) {
        let case = |dim: usize, inputs: [Input; 3], name: String| {
            let op = move |t: &[Tensor]| t[0].scatter_reduce(dim, &t[1], &t[2], way, own);
            Case::new(name, inputs, op, move |x| reduced(x, dim, way, own, |from| x[1].at(from) as usize))
        };
        let name = || format!("scatter_reduce {way:?} {own}");
        for (dim, inputs) in [
            (0, [dense(distinct(&[7], 122)), index_of(ids(&[17], 7)), dense(distinct(&[17], 123))]),
            (
                1,
                [
                    transposed(distinct(&[3, 5], 122), 0, 1),
                    narrowed(ids(&[3, 4], 5), 1).of(DType::I32),
                    transposed(distinct(&[3, 4], 123), 0, 1),
                ],
            ),
            (0, [dense(distinct(&[4, 2, 3], 122)), index_of(ids(&[9, 2, 3], 4)), dense(distinct(&[9, 2, 3], 123))]),
            (1, [dense(distinct(&[3, 5], 122)), index_of(ids(&[3, 0], 5)), dense(distinct(&[3, 0], 123))]),
        ] {
            cases.push(case(dim, inputs, name()));
        }
        for dtype in [DType::F16, DType::I32, DType::U32, DType::U8] {
            let small = |shape: &[usize], seed| dense(whole(shape, 1, 4, seed)).of(dtype);
            let inputs = [small(&[3, 5], 124), index_of(ids(&[3, 4], 5)), small(&[3, 4], 125)];
            let case = case(1, inputs, format!("{} {dtype}", name()));
            // The mean of integers is rounded down: for numbers that are not negative, it is their whole part.
            let case = if dtype.is_float() { case.within(1e-3, 1e-3) } else { case };
            if dtype.is_float() || way != ScatterReduce::Mean {
                cases.push(case.result_dtype(dtype).no_gradient());
            }
        }
    }
    cases.push(zeros_in_a_product());
    cases
}

/// The gradient of a product with no zero, one, and two of them.
fn zeros_in_a_product() -> Case {
    let values = Nd::new(&[6], vec![0.0, 2.0, 0.0, 0.0, -3.0, 0.5]);
    let index = Nd::new(&[6], vec![0.0, 0.0, 2.0, 2.0, 1.0, 3.0]);
    let inputs = [dense(Nd::new(&[4], vec![2.0, 0.0, 1.5, 3.0])), index_of(index), dense(values)];
    let op = |t: &[Tensor]| t[0].scatter_reduce(0, &t[1], &t[2], ScatterReduce::Prod, true);
    Case::new("scatter_reduce zeros", inputs, op, |x| {
        reduced(x, 0, ScatterReduce::Prod, true, |from| x[1].at(from) as usize)
    })
}

fn index_reduce() -> Vec<Case> {
    let mut cases = Vec::new();
    for (way, own) in WAYS.into_iter().flat_map(|way| [(way, true), (way, false)]) {
        for (dim, inputs) in [
            (0, [dense(distinct(&[4, 3], 126)), index_of(ids(&[9], 4)), dense(distinct(&[9, 3], 127))]),
            (
                1,
                [
                    narrowed(distinct(&[3, 5, 2], 126), 1),
                    dense(ids(&[4], 5)).of(DType::I32),
                    transposed(distinct(&[3, 4, 2], 127), 0, 2),
                ],
            ),
        ] {
            let op = move |t: &[Tensor]| t[0].index_reduce(dim, &t[1], &t[2], way, own);
            let oracle = move |x: &[&Nd]| reduced(x, dim, way, own, |from| x[1].data[from[dim]] as usize);
            cases.push(Case::new(format!("index_reduce {way:?} {own}"), inputs, op, oracle));
        }
    }
    // One element has more sources than one dispatch takes.
    let inputs = [dense(whole(&[3, 1], 0, 9, 98)), index_of(ids(&[50_000], 2)), dense(distinct(&[50_000, 1], 99))];
    let op = |t: &[Tensor]| t[0].index_reduce(0, &t[1], &t[2], ScatterReduce::Amin, true);
    let oracle = |x: &[&Nd]| reduced(x, 0, ScatterReduce::Amin, true, |from| x[1].data[from[0]] as usize);
    cases.push(Case::new("index_reduce long", inputs, op, oracle).no_gradient());
    cases
}

fn index_copy() -> Vec<Case> {
    let oracle = |dim: usize| {
        move |x: &[&Nd]| {
            Nd::from_fn(&x[0].shape, |to| {
                let last = x[1].data.iter().rposition(|&id| id == to[dim] as f64);
                let mut from = to.to_vec();
                last.map_or_else(
                    || x[0].at(to),
                    |k| {
                        from[dim] = k;
                        x[2].at(&from)
                    },
                )
            })
        }
    };
    let mut cases = Vec::new();
    for (dim, inputs) in [
        (0, [dense(signed(&[7, 5], 128)), index_of(ids(&[9], 7)), dense(signed(&[9, 5], 129))]),
        (
            1,
            [
                transposed(signed(&[3, 5], 128), 0, 1),
                dense(ids(&[4], 5)).of(DType::I32),
                narrowed(signed(&[3, 4], 129), 1),
            ],
        ),
        (0, [dense(signed(&[7, 5], 128)), index_of(ids(&[0], 7)), dense(signed(&[0, 5], 129))]),
    ] {
        let op = move |t: &[Tensor]| t[0].index_copy(dim, &t[1], &t[2]);
        cases.push(Case::new("index_copy", inputs, op, oracle(dim)).within(0.0, 1e-6));
    }
    cases
}

/// The slices of `x[0]` by the indices that follow, of one shape.
fn picked(x: &[&Nd]) -> Nd {
    let ids = &x[1..];
    let shape = [&ids[0].shape[..], &x[0].shape[ids.len()..]].concat();
    Nd::from_fn(&shape, |to| {
        let (at, rest) = to.split_at(ids[0].shape.len());
        let from_start = |id: f64, size: usize| if id < 0.0 { size - (-id) as usize } else { id as usize };
        let leading: Vec<usize> =
            ids.iter().zip(&x[0].shape).map(|(ids, &size)| from_start(ids.at(at), size)).collect();
        x[0].at(&[&leading, rest].concat())
    })
}

fn index() -> Vec<Case> {
    let x = |shape: &[usize]| signed(shape, 131);
    let mut cases = Vec::new();
    for inputs in [
        vec![dense(x(&[7])), index_of(ids(&[17], 7))],
        vec![dense(x(&[7, 5])), index_of(ids(&[2, 3], 7))],
        vec![transposed(x(&[7, 5]), 0, 1), index_of(ids(&[4, 3], 7)), transposed(ids(&[4, 3], 5), 0, 1).of(DType::I32)],
        vec![narrowed(x(&[3, 4, 5]), 2), index_of(ids(&[9], 3)), dense(ids(&[9], 4)).of(DType::U8)],
        vec![
            dense(x(&[3, 4, 5])),
            index_of(ids(&[9], 3)),
            index_of(whole(&[9], 0, 4, 7)),
            index_of(whole(&[9], 0, 5, 8)),
        ],
        vec![dense(x(&[3, 4])), index_of(ids(&[0], 3)), index_of(ids(&[0], 4))],
        vec![
            dense(x(&[7, 5, 2])),
            dense(whole(&[3, 9], -7, 7, 9)).of(DType::I64),
            transposed(whole(&[3, 9], -5, 5, 10), 0, 1).of(DType::I32),
        ],
    ] {
        let op = |t: &[Tensor]| t[0].index(&t[1..].iter().collect::<Vec<_>>());
        cases.push(Case::new("index", inputs, op, picked).within(0.0, 1e-6));
    }
    let grid =
        |x: &[&Nd]| Nd::from_fn(&[2, 3, 2], |i| x[0].at(&[x[1].data[i[0]] as usize, x[2].data[i[1]] as usize, i[2]]));
    let inputs = [dense(x(&[5, 4, 2])), index_of(ids(&[2, 1], 5)), index_of(ids(&[3], 4))];
    cases.push(Case::new("index broadcast", inputs, |t| t[0].index(&[&t[1], &t[2]]), grid).within(0.0, 1e-6));
    cases
}

fn mask(shape: &[usize]) -> Input {
    dense(whole(shape, 0, 2, 132)).of(DType::Bool)
}

/// The indices of a mask's true elements.
fn truths(mask: &Nd) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    Nd::from_fn(&mask.shape, |at| {
        if mask.at(at) != 0.0 {
            all.push(at.to_vec());
        }
        0.0
    });
    all
}

fn masks() -> Vec<Case> {
    let x = |shape: &[usize]| signed(shape, 133);
    let select = |x: &[&Nd]| {
        let found = truths(&oracle::broadcast(x[1], &x[0].shape));
        Nd::new(&[found.len()], found.iter().map(|at| x[0].at(at)).collect())
    };
    let mut cases = Vec::new();
    for inputs in [
        [dense(x(&[7, 5])), mask(&[7, 5])],
        [transposed(x(&[3, 257]), 0, 1), dense(whole(&[3, 257], 0, 2, 134)).of(DType::I32)],
        [narrowed(x(&[3, 5]), 1), mask(&[5])],
        [dense(x(&[3])), dense(Nd::new(&[3], vec![0.0; 3])).of(DType::Bool)],
        [dense(x(&[0, 3])), mask(&[0, 3])],
        [dense(x(&[])), dense(Nd::new(&[], vec![1.0])).of(DType::Bool)],
    ] {
        let op = |t: &[Tensor]| t[0].masked_select(&t[1]);
        cases.push(Case::new("masked_select", inputs, op, select).within(0.0, 1e-6));
    }
    let rows = |x: &[&Nd]| {
        let found = truths(x[1]);
        let rest = &x[0].shape[x[1].shape.len()..];
        Nd::from_fn(&[&[found.len()], rest].concat(), |i| x[0].at(&[&found[i[0]], &i[1..]].concat()))
    };
    for inputs in [[dense(x(&[17, 3])), mask(&[17])], [dense(x(&[3, 4, 5])), mask(&[3, 4])]] {
        cases.push(Case::new("index mask", inputs, |t| t[0].index(&[&t[1]]), rows).within(0.0, 1e-6));
    }
    let both = |x: &[&Nd]| {
        let found = truths(x[1]);
        Nd::from_fn(&[found.len()], |i| x[0].at(&[&found[i[0]], &[x[2].data[0] as usize][..]].concat()))
    };
    let inputs = [dense(x(&[3, 4, 5])), mask(&[3, 4]), index_of(Nd::new(&[1], vec![3.0]))];
    cases.push(Case::new("index mask and index", inputs, |t| t[0].index(&[&t[1], &t[2]]), both).within(0.0, 1e-6));
    let places = |x: &[&Nd]| {
        let found = truths(x[0]);
        let data = found.iter().flatten().map(|&i| i as f64).collect();
        Nd::new(&[found.len(), x[0].shape.len()], data)
    };
    for (shape, dtype) in [
        (&[17][..], DType::F32),
        (&[5, 7], DType::Bool),
        (&[3, 4, 5], DType::I32),
        (&[0, 2], DType::U8),
        (&[], DType::F16),
    ] {
        let input = [dense(whole(shape, 0, 2, 135)).of(dtype)];
        cases.push(Case::new("nonzero", input, |t| t[0].nonzero(), places).result_dtype(DType::U32));
    }
    let long = [narrowed(whole(&[70_001], 0, 2, 136), 0)];
    cases.push(Case::new("nonzero long", long, |t| t[0].nonzero(), places).result_dtype(DType::U32));
    cases
}

fn index_put() -> Vec<Case> {
    let put = |accumulate: bool| {
        move |x: &[&Nd]| {
            let (values, ids) = (x[1], &x[2..]);
            let mut out = x[0].clone();
            let places = Nd::from_fn(&out.shape, {
                let mut next = -1.0;
                move |_| {
                    next += 1.0;
                    next
                }
            });
            Nd::from_fn(&[&ids[0].shape[..], &out.shape.clone()[ids.len()..]].concat(), |from| {
                let (at, rest) = from.split_at(ids[0].shape.len());
                let leading: Vec<usize> = ids.iter().map(|ids| ids.at(at) as usize).collect();
                let place = places.at(&[&leading, rest].concat()) as usize;
                let value = values.at(&from[from.len() - values.shape.len()..]);
                out.data[place] = if accumulate { out.data[place] + value } else { value };
                0.0
            });
            out
        }
    };
    let mut cases = Vec::new();
    for accumulate in [false, true] {
        for inputs in [
            vec![dense(signed(&[7], 137)), dense(signed(&[17], 138)), index_of(ids(&[17], 7))],
            vec![
                transposed(signed(&[7, 5], 137), 0, 1),
                narrowed(signed(&[4, 3], 138), 1),
                index_of(ids(&[4, 3], 7)),
                index_of(whole(&[4, 3], 0, 5, 139)),
            ],
            vec![
                dense(signed(&[3, 4, 5], 137)),
                dense(signed(&[5], 138)),
                index_of(ids(&[6], 3)),
                index_of(ids(&[6], 4)),
            ],
        ] {
            let op = move |t: &[Tensor]| t[0].index_put(&t[2..].iter().collect::<Vec<_>>(), &t[1], accumulate);
            cases.push(Case::new(format!("index_put {accumulate}"), inputs, op, put(accumulate)));
        }
    }
    let inputs = [dense(signed(&[7, 5], 137)), mask(&[7, 5]), dense(Nd::new(&[], vec![2.5]))];
    let masked = |x: &[&Nd]| Nd::from_fn(&x[0].shape, |i| if x[1].at(i) != 0.0 { x[2].data[0] } else { x[0].at(i) });
    cases.push(Case::new("index_put mask", inputs, |t| t[0].index_put(&[&t[1]], &t[2], false), masked));
    cases
}
