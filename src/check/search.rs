//! Counting, searching, repeating, grids and distances.

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [bincount(), searchsorted(), repeats(), meshgrid(), cdist()].into_iter().flatten().collect()
}

fn bincount() -> Vec<Case> {
    let counts = |x: &Nd, weights: Option<&Nd>, least: usize| {
        let length = x.data.iter().map(|&v| v as usize + 1).max().unwrap_or(0).max(least);
        let mut out = Nd::from_fn(&[length], |_| 0.0);
        x.data.iter().enumerate().for_each(|(i, &v)| out.data[v as usize] += weights.map_or(1.0, |w| w.data[i]));
        out
    };
    let numbers = || whole(&[100], 0, 17, 801);
    let mut cases = Vec::new();
    for (least, input) in [
        (0, dense(numbers()).of(DType::U32)),
        (30, narrowed(numbers(), 0).of(DType::I32)),
        (3, dense(numbers()).of(DType::U8)),
        (0, dense(whole(&[0], 0, 1, 801)).of(DType::I32)),
        (4, dense(whole(&[0], 0, 1, 801)).of(DType::U32)),
    ] {
        let op = move |t: &[Tensor]| t[0].bincount(None, least);
        cases.push(Case::new("bincount", [input], op, move |x| counts(x[0], None, least)).result_dtype(DType::U32));
    }
    for (least, weights) in [(0, dense(signed(&[100], 802))), (40, narrowed(signed(&[100], 802), 0))] {
        let inputs = [dense(numbers()).of(DType::I32), weights];
        let op = move |t: &[Tensor]| t[0].bincount(Some(&t[1]), least);
        cases.push(Case::new("bincount of weights", inputs, op, move |x| counts(x[0], Some(x[1]), least)));
    }
    cases
}

/// Sorts the rows along the last dimension.
fn sorted(mut x: Nd) -> Nd {
    let size = x.shape.last().copied().unwrap_or(1);
    x.data.chunks_mut(size.max(1)).for_each(|row| row.sort_by(f64::total_cmp));
    x
}

fn searchsorted() -> Vec<Case> {
    let mut cases = Vec::new();
    for right in [false, true] {
        let place = move |row: &[f64], v: f64| {
            row.iter().position(|&s| if right { s > v } else { s >= v }).unwrap_or(row.len()) as f64
        };
        let few = |shape: &[usize], seed| whole(shape, -9, 9, seed);
        for (edges, values) in [
            (dense(sorted(few(&[1], 803))), dense(few(&[7], 804))),
            (dense(sorted(few(&[8], 803))), dense(few(&[3, 7], 804))),
            (narrowed(sorted(few(&[13], 803)), 0), transposed(few(&[5, 7], 804), 0, 1)),
            (dense(sorted(few(&[100], 803))).of(DType::I32), dense(few(&[70], 804)).of(DType::I32)),
            (dense(sorted(few(&[9], 803))), dense(Nd::new(&[], vec![2.0]))),
            (dense(sorted(signed(&[257], 803))), dense(signed(&[300], 804))),
            (dense(few(&[0], 803)), dense(few(&[3], 804))),
            (dense(Nd::new(&[3], vec![-1.0, 2.0, f64::NAN])), dense(Nd::new(&[3], vec![f64::NAN, 5.0, 2.0]))),
        ] {
            let op = move |t: &[Tensor]| t[0].searchsorted(&t[1], right);
            let oracle = move |x: &[&Nd]| x[1].map(|v| place(&x[0].data, v));
            cases.push(Case::new("searchsorted", [edges, values], op, oracle).result_dtype(DType::U32));
        }
        let rows = [transposed(sorted(few(&[2, 3, 6], 805)), 0, 1), dense(few(&[2, 3, 5], 806))];
        let oracle = move |x: &[&Nd]| {
            Nd::from_fn(&x[1].shape, |i| {
                let row: Vec<f64> = (0..6).map(|k| x[0].at(&[i[0], i[1], k])).collect();
                place(&row, x[1].at(i))
            })
        };
        let op = move |t: &[Tensor]| t[0].searchsorted(&t[1], right);
        cases.push(Case::new("searchsorted rows", rows, op, oracle).result_dtype(DType::U32));
    }
    cases
}

fn repeats() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dim, times, input) in [
        (0usize, 3, dense(signed(&[5], 807))),
        (0, 2, transposed(signed(&[3, 4], 807), 0, 1)),
        (1, 4, narrowed(signed(&[3, 4, 2], 807), 1)),
        (2, 1, broadcast(signed(&[1, 4, 2], 807), &[3, 4, 2])),
        (1, 0, dense(signed(&[3, 4], 807))),
    ] {
        let oracle = move |x: &[&Nd]| {
            let mut shape = x[0].shape.clone();
            shape[dim] *= times;
            Nd::from_fn(&shape, |i| {
                let mut from = i.to_vec();
                from[dim] /= times;
                x[0].at(&from)
            })
        };
        let op = move |t: &[Tensor]| t[0].repeat_interleave(times, dim);
        cases.push(Case::new("repeat_interleave", [input], op, oracle).exact().within(0.0, 1e-6));
    }
    for (dim, counts, input) in [
        (0usize, vec![2.0, 0.0, 1.0], dense(signed(&[3], 808))),
        (1, vec![0.0, 3.0, 1.0, 1.0], transposed(signed(&[2, 4], 808), 0, 1)),
        (0, vec![0.0, 0.0], dense(signed(&[2, 3], 808))),
    ] {
        let size = counts.len();
        let oracle = move |x: &[&Nd]| {
            let places: Vec<usize> =
                x[1].data.iter().enumerate().flat_map(|(i, &n)| std::iter::repeat_n(i, n as usize)).collect();
            let mut shape = x[0].shape.clone();
            shape[dim] = places.len();
            Nd::from_fn(&shape, |i| {
                let mut from = i.to_vec();
                from[dim] = places[i[dim]];
                x[0].at(&from)
            })
        };
        let inputs = [input, dense(Nd::new(&[size], counts)).of(DType::I32)];
        let op = move |t: &[Tensor]| t[0].repeat_interleave_by(&t[1], dim);
        cases.push(Case::new("repeat_interleave_by", inputs, op, oracle).within(0.0, 1e-6));
    }
    cases
}

fn meshgrid() -> Vec<Case> {
    let mut cases = Vec::new();
    for dim in 0..3 {
        let inputs = [dense(signed(&[4], 809)), narrowed(signed(&[3], 810), 0), dense(signed(&[], 811))];
        // The factor makes the result depend on all inputs.
        let op = move |t: &[Tensor]| {
            let factor = t[0].sum_all()?.mul(&t[1].sum_all()?)?.mul(&t[2])?;
            Tensor::meshgrid(t)?.swap_remove(dim).mul(&factor)
        };
        let oracle = move |x: &[&Nd]| {
            let factor = x[0].data.iter().sum::<f64>() * x[1].data.iter().sum::<f64>() * x[2].data[0];
            Nd::from_fn(&[4, 3, 1], |i| x[dim].data[i[dim]] * factor)
        };
        cases.push(Case::new("meshgrid", inputs, op, oracle));
    }
    let inputs = [dense(whole(&[4], 0, 9, 809)).of(DType::I32), dense(whole(&[0], 0, 9, 809)).of(DType::I32)];
    let op = |t: &[Tensor]| Ok(Tensor::meshgrid(t)?.swap_remove(0));
    cases.push(Case::new("meshgrid empty", inputs, op, |_| Nd::new(&[4, 0], vec![])).result_dtype(DType::I32));
    cases
}

fn cdist() -> Vec<Case> {
    let distance = |p: f64, pairs: &mut dyn Iterator<Item = (f64, f64)>| {
        let all = pairs.map(|(a, b)| (a - b).abs());
        match p {
            0.0 => all.filter(|&d| d != 0.0).count() as f64,
            f64::INFINITY => all.fold(0.0, f64::max),
            _ => all.map(|d| d.powf(p)).sum::<f64>().powf(1.0 / p),
        }
    };
    let between = move |p: f64, x: &Nd, y: &Nd| {
        let (rows, columns, width) = (x.shape[1], y.shape[1], x.shape[2]);
        Nd::from_fn(&[x.shape[0].max(y.shape[0]), rows, columns], |i| {
            let of = |x: &Nd, row: usize, k: usize| x.at(&[i[0].min(x.shape[0] - 1), row, k]);
            distance(p, &mut (0..width).map(|k| (of(x, i[1], k), of(y, i[2], k))))
        })
    };
    let mut cases = Vec::new();
    for p in [0.0f32, 1.0, 1.5, 2.0, 3.0, f32::INFINITY] {
        for (x, y) in [
            (dense(signed(&[2, 5, 3], 812)), dense(signed(&[2, 4, 3], 813))),
            (transposed(signed(&[3, 7, 2], 812), 0, 1), narrowed(signed(&[1, 4, 2], 813), 1)),
        ] {
            let op = move |t: &[Tensor]| t[0].cdist(&t[1], p);
            let case = Case::new(format!("cdist {p}"), [x, y], op, move |x| between(f64::from(p), x[0], x[1]));
            cases.push(if p == 0.0 { case.no_gradient() } else { case });
        }
    }
    let halves = [dense(signed(&[1, 5, 3], 814)), dense(signed(&[1, 4, 3], 815))].map(|x| x.of(DType::F16));
    let case = Case::new("cdist halves", halves, |t| t[0].cdist(&t[1], 2.0), move |x| between(2.0, x[0], x[1]));
    cases.push(case.result_dtype(DType::F16).within(1e-3, 1e-3).no_gradient());
    let none = [dense(signed(&[1, 2, 0], 816)), dense(signed(&[1, 3, 0], 816))];
    cases.push(
        Case::new("cdist nothing", none, |t| t[0].cdist(&t[1], 2.0), |_| Nd::from_fn(&[1, 2, 3], |_| 0.0))
            .no_gradient(),
    );
    cases
}
