//! Pooling.

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (image, kernel, stride, padding) in [
        ([1, 1, 1, 1], [1, 1], [1, 1], [0, 0]),
        ([2, 3, 6, 8], [2, 2], [2, 2], [0, 0]),
        ([2, 3, 7, 9], [2, 2], [2, 2], [0, 0]), // the last row and column are left out
        ([2, 3, 7, 9], [3, 3], [1, 1], [0, 0]), // overlapping
        ([2, 3, 7, 9], [3, 3], [2, 2], [1, 1]),
        ([2, 3, 7, 9], [3, 2], [1, 2], [1, 0]),
        ([1, 2, 9, 9], [2, 2], [3, 4], [0, 0]), // pixels between the windows
        ([1, 2, 5, 4], [5, 4], [1, 1], [2, 2]),
        ([33, 17, 4, 4], [2, 2], [2, 2], [0, 0]),
        ([0, 3, 4, 4], [2, 2], [2, 2], [0, 0]),
    ] {
        for average in [false, true] {
            let mut row = |what: &str, input: Input| {
                let name = if average { "avg_pool2d" } else { "max_pool2d" };
                cases.push(Case::new(
                    format!("{name} {what} kernel {kernel:?} stride {stride:?} padding {padding:?}"),
                    [input],
                    move |t| match average {
                        true => t[0].avg_pool2d(kernel, stride, padding),
                        false => t[0].max_pool2d(kernel, stride, padding),
                    },
                    move |x| oracle::pool2d(x[0], average, kernel, stride, padding),
                ));
            };
            let x = uniform(&image, -5.0, -1.0, 24); // all negative: a padding of zeros must not win
            row("dense", dense(x.clone()));
            row("transposed", transposed(x.clone(), 1, 2));
            row("narrowed", narrowed(x, 0));
        }
    }
    cases
}
