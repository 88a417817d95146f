//! Pooling.

use super::prelude::*;
use super::window::{self, Mean, WindowParams};
use crate::ops::Pool;

pub(super) fn cases() -> Vec<Case> {
    [pool2d(), max_pool2d_with_dilation(), pool1d(), adaptive_pool(), halves()].into_iter().flatten().collect()
}

/// Returns negative numbers only: with them, a padding of zeros would be a wrong maximum.
fn x(shape: &[usize]) -> Nd {
    uniform(shape, -5.0, -1.0, 24)
}

fn name(mean: Option<Mean>, dims: usize) -> String {
    format!("{}_pool{dims}d", if mean.is_some() { "avg" } else { "max" })
}

fn case(what: &str, input: Input, mean: Option<Mean>, kernel: [usize; 2], m: WindowParams, ceil: bool) -> Case {
    let pool = Pool::new(kernel).stride(m.stride).padding(m.padding).dilation(m.dilation).ceil_mode(ceil);
    let pool = pool.count_include_pad(mean != Some(Mean::ExcludePad));
    Case::new(
        format!("{} {what} {mean:?} kernel {kernel:?} {m:?} ceil {ceil}", name(mean, 2)),
        [input],
        move |t| if mean.is_some() { t[0].avg_pool2d(pool) } else { t[0].max_pool2d(pool) },
        move |x| window::pool2d(x[0], mean, kernel, m, ceil),
    )
}

const MEANS: [Option<Mean>; 3] = [None, Some(Mean::IncludePad), Some(Mean::ExcludePad)];

fn pool2d() -> Vec<Case> {
    let mut cases = Vec::new();
    for (image, kernel, stride, padding) in [
        ([1, 1, 1, 1], [1, 1], [1, 1], [0, 0]),
        ([2, 3, 6, 8], [2, 2], [2, 2], [0, 0]),
        ([2, 3, 7, 9], [2, 2], [2, 2], [0, 0]), // with ceil_mode, the last row and column are included
        ([2, 3, 7, 9], [3, 3], [1, 1], [0, 0]), // overlapping
        ([2, 3, 7, 9], [3, 3], [2, 2], [1, 1]),
        ([2, 3, 7, 9], [3, 2], [1, 2], [1, 0]),
        ([1, 2, 9, 9], [2, 2], [3, 4], [0, 0]), // pixels between the windows
        ([1, 2, 5, 4], [5, 4], [1, 1], [2, 2]),
        ([1, 1, 6, 5], [4, 4], [4, 3], [2, 2]), // a last window that would start in the padding
        ([33, 17, 4, 4], [2, 2], [2, 2], [0, 0]),
        ([1, 2, 33, 20], [17, 18], [3, 1], [8, 0]), // pooled along one dimension after the other
        ([0, 3, 4, 4], [2, 2], [2, 2], [0, 0]),
    ] {
        for (mean, ceil) in MEANS.into_iter().flat_map(|mean| [(mean, false), (mean, true)]) {
            let plain = WindowParams::new(stride, padding);
            if ceil
                && window::pool2d(&x(&image), mean, kernel, plain, true).shape
                    == window::pool2d(&x(&image), mean, kernel, plain, false).shape
            {
                continue;
            }
            let mut push = |what, input| cases.push(case(what, input, mean, kernel, plain, ceil));
            push("dense", dense(x(&image)));
            if !ceil && mean != Some(Mean::ExcludePad) {
                push("transposed", transposed(x(&image), 1, 2));
                push("narrowed", narrowed(x(&image), 0));
            }
        }
    }
    let repeated = broadcast(x(&[2, 1, 1, 7]), &[2, 3, 5, 7]); // no maxima: the oracle counts all equal ones
    let m = WindowParams::new([2, 2], [1, 0]);
    cases.push(case("broadcast", repeated, Some(Mean::IncludePad), [2, 3], m, false));
    cases
}

fn max_pool2d_with_dilation() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kernel, stride, padding, dilation) in [
        ([2, 2], [1, 1], [0, 0], [2, 3]),
        ([3, 2], [2, 1], [1, 1], [2, 2]),
        ([2, 3], [2, 3], [1, 1], [3, 1]),
        ([17, 16], [1, 1], [8, 8], [1, 1]),
    ] {
        let m = WindowParams { dilation, ..WindowParams::new(stride, padding) };
        for ceil in [false, true] {
            cases.push(case("dense", dense(x(&[2, 3, 8, 9])), None, kernel, m, ceil));
        }
    }
    cases
}

fn pool1d() -> Vec<Case> {
    let image = |x: &Nd| Nd::new(&[x.shape[0], x.shape[1], 1, x.shape[2]], x.data.clone());
    let line = |y: Nd| Nd::new(&[y.shape[0], y.shape[1], y.shape[3]], y.data);
    let m = WindowParams::new([1, 2], [0, 1]);
    let pool = Pool::new(3).stride(2).padding(1);
    let both = |mean: Option<Mean>| {
        Case::new(
            name(mean, 1),
            [narrowed(x(&[2, 3, 17]), 2)],
            move |t| if mean.is_some() { t[0].avg_pool1d(pool) } else { t[0].max_pool1d(pool) },
            move |x| line(window::pool2d(&image(x[0]), mean, [1, 3], m, false)),
        )
    };
    vec![both(None), both(Some(Mean::IncludePad))]
}

fn adaptive_pool() -> Vec<Case> {
    let mut cases = Vec::new();
    for (image, size) in [
        ([1, 1, 1, 1], [1, 1]),
        ([2, 3, 7, 9], [1, 1]),
        ([2, 3, 7, 9], [3, 4]),
        ([2, 3, 8, 6], [4, 2]),
        ([2, 3, 4, 3], [7, 5]), // more parts than pixels
        ([0, 3, 4, 3], [2, 2]),
        ([3, 33, 5, 17], [5, 3]),
    ] {
        for average in [false, true] {
            let mut push = |what: &str, input: Input| {
                cases.push(Case::new(
                    format!("adaptive_{} {what} to {size:?}", name(average.then_some(Mean::IncludePad), 2)),
                    [input],
                    move |t| if average { t[0].adaptive_avg_pool2d(size) } else { t[0].adaptive_max_pool2d(size) },
                    move |x| window::adaptive_pool2d(x[0], average, size),
                ));
            };
            push("dense", dense(x(&image)));
            push("transposed", transposed(x(&image), 2, 3));
            push("narrowed", narrowed(x(&image), 0));
        }
    }
    let image = |x: &Nd| Nd::new(&[x.shape[0], 1, x.shape[1], x.shape[2]], x.data.clone());
    let line = |y: Nd| Nd::new(&[y.shape[0], y.shape[2], y.shape[3]], y.data);
    let input = || [dense(x(&[2, 3, 17]))];
    let oracle = move |average| move |x: &[&Nd]| line(window::adaptive_pool2d(&image(x[0]), average, [3, 5]));
    cases.push(Case::new("adaptive_avg_pool1d", input(), |t| t[0].adaptive_avg_pool1d(5), oracle(true)));
    cases.push(Case::new("adaptive_max_pool1d", input(), |t| t[0].adaptive_max_pool1d(5), oracle(false)));
    cases
}

/// Returns the cases that are computed in f32 and stored as halves.
fn halves() -> Vec<Case> {
    let m = WindowParams::new([2, 1], [1, 0]);
    let rows = [(DType::F16, 1e-3), (DType::BF16, 8e-3)].map(|(dtype, rtol)| {
        [None, Some(Mean::IncludePad)]
            .map(|mean| case("halves", dense(x(&[2, 3, 5, 7])).of(dtype), mean, [3, 2], m, false))
            .map(|case| case.within(rtol, rtol).result_dtype(dtype).no_gradient()) // the maxima are rounded
    });
    rows.into_iter().flatten().collect()
}
