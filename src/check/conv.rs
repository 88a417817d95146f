//! Convolution.

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [conv2d(), conv2d_layouts(), conv2d_in_several_passes()].into_iter().flatten().collect()
}

fn conv(what: &str, inputs: Vec<Input>, stride: [usize; 2], padding: [usize; 2]) -> Case {
    Case::new(
        format!("conv2d {what} stride {stride:?} padding {padding:?}"),
        inputs,
        move |t| t[0].conv2d(&t[1], t.get(2), stride, padding),
        move |x| oracle::conv2d(x[0], x[1], x.get(2).copied(), stride, padding),
    )
    .within(3e-5, 1e-5)
}

fn x(shape: [usize; 4]) -> Nd {
    signed(&shape, 21)
}

fn w(shape: [usize; 4]) -> Nd {
    signed(&shape, 22)
}

fn bias(n: usize) -> Nd {
    signed(&[n], 23)
}

fn conv2d() -> Vec<Case> {
    let mut cases = Vec::new();
    for (image, weight, stride, padding) in [
        ([1, 1, 1, 1], [1, 1, 1, 1], [1, 1], [0, 0]),
        ([2, 3, 7, 9], [4, 3, 3, 3], [1, 1], [0, 0]),
        ([2, 3, 7, 9], [4, 3, 3, 3], [1, 1], [1, 1]),
        ([2, 3, 7, 9], [5, 3, 3, 2], [2, 3], [0, 0]),
        ([2, 3, 7, 9], [5, 3, 3, 2], [2, 1], [2, 1]),
        ([3, 2, 5, 5], [7, 2, 5, 5], [1, 1], [0, 0]),
        ([2, 17, 6, 7], [33, 17, 1, 1], [1, 1], [0, 0]),
        ([1, 2, 4, 4], [2, 2, 2, 2], [3, 3], [0, 0]),
        ([2, 1, 28, 28], [20, 1, 3, 3], [1, 1], [0, 0]),
        ([65, 2, 3, 3], [9, 2, 2, 2], [1, 1], [0, 0]),
        ([0, 2, 5, 5], [3, 2, 3, 3], [1, 1], [0, 0]),
    ] {
        let operands = || vec![dense(x(image)), dense(w(weight))];
        cases.push(conv("no bias", operands(), stride, padding));
        let mut with_bias = operands();
        with_bias.push(dense(bias(weight[0])));
        cases.push(conv("bias", with_bias, stride, padding));
    }
    cases
}

fn conv2d_layouts() -> Vec<Case> {
    let (image, weight) = ([2, 3, 6, 5], [4, 3, 3, 3]);
    let row = |what, x, w, b| conv(what, vec![x, w, b], [1, 1], [1, 0]);
    vec![
        row("transposed", transposed(x(image), 1, 3), transposed(w(weight), 0, 1), dense(bias(4))),
        row("narrowed batch", narrowed(x(image), 0), narrowed(w(weight), 0), narrowed(bias(4), 0)),
        row("narrowed image", narrowed(x(image), 3), narrowed(w(weight), 2), dense(bias(4))),
    ]
}

/// More columns than one pass of an adapter holds (16 M): 520 · 9 · 60 · 60 = 16.8 M.
fn conv2d_in_several_passes() -> Vec<Case> {
    let inputs = vec![dense(x([520, 1, 62, 62])), dense(w([2, 1, 3, 3])), dense(bias(2))];
    let mut case = conv("several passes", inputs, [1, 1], [0, 0]).within(3e-4, 1e-4);
    case = case.only(&["cpu", "soft:0"]);
    vec![case.no_gradient()]
}
