//! Convolution.

use super::prelude::*;
use super::window::{self, WindowParams};
use crate::ops::Conv;

pub(super) fn cases() -> Vec<Case> {
    let plain = [conv2d(), conv2d_dilation_and_groups(), conv2d_layouts(), conv2d_of_great_depth()];
    let others = [conv2d_in_several_passes(), conv_transpose2d(), conv1d(), halves(), variants(), cooperative()];
    plain.into_iter().chain(others).flatten().collect()
}

fn options(m: WindowParams) -> Conv<2> {
    Conv::new().stride(m.stride).padding(m.padding).dilation(m.dilation).groups(m.groups)
}

/// Returns the number of products of a convolution: for each result, the size of its part of the kernel.
fn products(inputs: &[Input], m: WindowParams) -> usize {
    let (x, w) = (&inputs[0].value.shape, &inputs[1].value.shape);
    x[0] * m.windows(0, x[2], w[2]) * m.windows(1, x[3], w[3]) * w.iter().product::<usize>()
}

fn conv(what: &str, inputs: Vec<Input>, m: WindowParams) -> Case {
    let products = products(&inputs, m);
    Case::new(
        format!("conv2d {what} {m:?}"),
        inputs,
        move |t| t[0].conv2d(&t[1], t.get(2), options(m)),
        move |x| window::conv2d(x[0], x[1], x.get(2).copied(), m),
    )
    .within(3e-5, 1e-5)
    .operations(products)
}

fn transpose(what: &str, inputs: Vec<Input>, m: WindowParams, extra: [usize; 2]) -> Case {
    // For each pixel, the size of its channel's part of the kernel.
    let (pixels, kernel) = (inputs[0].value.data.len(), &inputs[1].value.shape);
    let products = pixels * kernel[1..].iter().product::<usize>();
    Case::new(
        format!("conv_transpose2d {what} {m:?} output padding {extra:?}"),
        inputs,
        move |t| t[0].conv_transpose2d(&t[1], t.get(2), options(m).output_padding(extra)),
        move |x| window::conv_transpose2d(x[0], x[1], x.get(2).copied(), m, extra),
    )
    .within(3e-5, 1e-5)
    .operations(products)
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

fn operands(image: [usize; 4], weight: [usize; 4], channels: usize) -> Vec<Input> {
    vec![dense(x(image)), dense(w(weight)), dense(bias(channels))]
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
        ([2, 0, 5, 5], [3, 0, 3, 3], [1, 1], [0, 0]), // no channels: the bias, or 0
        ([1, 1, 2, 2], [2, 1, 2, 2], [5, 5], [4, 4]), // most windows lie in the padding
        ([5, 6, 25, 20], [7, 6, 2, 3], [1, 1], [1, 0]), // a weight's gradient in parts
        ([4, 17, 15, 14], [19, 17, 3, 3], [1, 1], [0, 2]), // by Winograd's tiles on the host
        ([15, 16, 16, 17], [16, 16, 3, 3], [1, 1], [1, 1]), // the same, in several blocks
        ([10, 65, 9, 11], [66, 65, 3, 3], [1, 1], [1, 1]), // and on software adapters
    ] {
        let m = WindowParams::new(stride, padding);
        let all = || operands(image, weight, weight[0]);
        cases.push(conv("no bias", all().into_iter().take(2).collect(), m));
        cases.push(conv("bias", all(), m));
    }
    cases
}

/// Image, weight, then stride, padding, dilation and groups.
const MOVED: [([usize; 4], [usize; 4], WindowParams); 9] = {
    const fn m(stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2], groups: usize) -> WindowParams {
        WindowParams { stride, padding, dilation, groups }
    }
    [
        ([2, 3, 9, 8], [4, 3, 3, 3], m([1, 1], [0, 0], [2, 2], 1)),
        ([2, 3, 9, 8], [4, 3, 3, 2], m([2, 1], [3, 1], [3, 2], 1)),
        ([2, 3, 7, 9], [3, 1, 3, 3], m([1, 1], [1, 1], [1, 1], 3)), // depthwise
        ([3, 5, 7, 9], [10, 1, 3, 2], m([2, 3], [2, 0], [2, 1], 5)), // with two results per channel
        ([2, 6, 5, 5], [4, 3, 3, 3], m([1, 1], [1, 0], [1, 1], 2)), // few channels per group
        ([2, 10, 5, 5], [6, 5, 3, 3], m([1, 1], [1, 0], [1, 1], 2)), // matrices
        ([2, 10, 6, 5], [14, 5, 2, 3], m([2, 1], [1, 1], [1, 2], 2)),
        ([1, 9, 4, 4], [27, 3, 1, 1], m([1, 1], [0, 0], [1, 1], 3)),
        ([40, 2, 9, 9], [2, 1, 3, 3], m([1, 1], [1, 1], [1, 1], 2)), // a weight's gradient in parts
    ]
};

fn conv2d_dilation_and_groups() -> Vec<Case> {
    MOVED.map(|(image, weight, m)| conv("bias", operands(image, weight, weight[0]), m)).into()
}

fn conv2d_layouts() -> Vec<Case> {
    let (image, weight) = ([2, 3, 6, 5], [4, 3, 3, 3]);
    let layout = |what, x, w, b| conv(what, vec![x, w, b], WindowParams::new([1, 1], [1, 0]));
    let depthwise = WindowParams { groups: 3, ..WindowParams::new([1, 1], [1, 0]) };
    let thin = || w([3, 1, 3, 3]);
    vec![
        layout("transposed", transposed(x(image), 1, 3), transposed(w(weight), 0, 1), dense(bias(4))),
        layout("narrowed batch", narrowed(x(image), 0), narrowed(w(weight), 0), narrowed(bias(4), 0)),
        layout("narrowed image", narrowed(x(image), 3), narrowed(w(weight), 2), dense(bias(4))),
        layout("broadcast", broadcast(x([1, 3, 6, 5]), &image), broadcast(w([1, 3, 1, 3]), &weight), dense(bias(4))),
        conv("narrowed", vec![narrowed(x(image), 0), narrowed(thin(), 0), narrowed(bias(3), 0)], depthwise),
        conv("transposed", vec![transposed(x(image), 1, 3), transposed(thin(), 2, 3), dense(bias(3))], depthwise),
    ]
}

fn conv_transpose2d() -> Vec<Case> {
    let mut cases = Vec::new();
    for (image, weight, m) in MOVED {
        // The results of those convolutions are the inputs of their transposes.
        let mut small = window::conv2d(&x(image), &w(weight), None, m).shape;
        small[0] = small[0].min(3);
        let small = [small[0], small[1], small[2], small[3]];
        for extra in [[0, 0], [0, 1], [1, 0]] {
            if (0..2).all(|d| extra[d] < m.stride[d].max(m.dilation[d])) {
                cases.push(transpose("bias", operands(small, weight, image[1]), m, extra));
            }
        }
    }
    let plain = WindowParams::new([2, 2], [0, 0]);
    let image = [2, 3, 4, 5];
    let inputs = vec![transposed(x(image), 1, 3), narrowed(w([3, 2, 3, 3]), 0)];
    cases.push(transpose("layouts", inputs, plain, [1, 1]));
    cases.push(transpose("empty", operands([0, 3, 4, 5], [3, 2, 3, 3], 2), plain, [0, 0]));
    cases.push(transpose("no channels", operands([2, 0, 4, 5], [0, 2, 3, 3], 2), plain, [0, 0]));
    cases
}

/// Returns the cases of one dimension, which is computed as two with a height of 1.
fn conv1d() -> Vec<Case> {
    let image = |x: &Nd| Nd::new(&[x.shape[0], x.shape[1], 1, x.shape[2]], x.data.clone());
    let line = |y: Nd| Nd::new(&[y.shape[0], y.shape[1], y.shape[3]], y.data);
    let m = WindowParams { dilation: [1, 2], groups: 2, ..WindowParams::new([1, 3], [0, 2]) };
    let options = Conv::new().stride(3).padding(2).dilation(2).groups(2);
    let inputs = |w: [usize; 3]| vec![dense(signed(&[2, 4, 17], 21)), narrowed(signed(&w, 22), 2), dense(bias(6))];
    vec![
        Case::new(
            "conv1d",
            inputs([6, 2, 3]),
            move |t| t[0].conv1d(&t[1], t.get(2), options),
            move |x| line(window::conv2d(&image(x[0]), &image(x[1]), Some(x[2]), m)),
        ),
        Case::new(
            "conv_transpose1d",
            inputs([4, 3, 3]),
            move |t| t[0].conv_transpose1d(&t[1], t.get(2), options.output_padding(2)),
            move |x| line(window::conv_transpose2d(&image(x[0]), &image(x[1]), Some(x[2]), m, [0, 2])),
        ),
    ]
}

/// Returns a case with more products per result than one pass adds: 5 · 7000 and 40 000.
fn conv2d_of_great_depth() -> Vec<Case> {
    let m = WindowParams::new([1, 1], [0, 0]);
    let grouped = WindowParams { groups: 2, ..m };
    let deep = |case: Case| case.within(1e-3, 1e-4).no_gradient();
    vec![
        deep(conv("deep", operands([2, 7000, 1, 7], [3, 7000, 1, 5], 3), m)),
        deep(conv("deep", operands([1, 66_000, 1, 3], [18, 33_000, 1, 1], 18), grouped)),
        deep(transpose("deep", operands([1, 40_000, 2, 1], [40_000, 2, 1, 2], 2), m, [0, 0])),
    ]
}

/// Returns a case with more columns than one pass of an adapter holds (16 M): 520 · 9 · 60 · 60 = 16.8 M.
fn conv2d_in_several_passes() -> Vec<Case> {
    let inputs = vec![dense(x([520, 1, 62, 62])), dense(w([2, 1, 3, 3])), dense(bias(2))];
    let case = conv("several passes", inputs, WindowParams::new([1, 1], [0, 0])).within(3e-4, 1e-4);
    vec![case.no_gradient()]
}

/// Returns cases for every variant of the kernels without columns in memory, even if the device would not choose it: the
/// convolution, its transpose, which is the gradient of the image, and the gradient of the weight.
fn variants() -> Vec<Case> {
    let mut cases = Vec::new();
    for variant in ["implicit_32", "implicit_64", "implicit_128"] {
        let mut push = |what: &str, case: Case| {
            cases.push(case.named(format!("conv2d/{variant} {what}")).variant("conv2d", variant));
        };
        for (image, weight, m) in [
            ([2, 3, 9, 8], [40, 3, 3, 2], WindowParams { dilation: [3, 2], ..WindowParams::new([2, 1], [3, 1]) }),
            ([3, 20, 7, 9], [70, 20, 3, 3], WindowParams::new([1, 1], [1, 1])),
            ([2, 48, 6, 5], [36, 16, 2, 3], WindowParams { groups: 3, ..WindowParams::new([2, 3], [1, 0]) }),
            ([2, 17, 6, 7], [33, 17, 1, 1], WindowParams::new([1, 1], [0, 0])),
            ([1, 64, 4, 4], [9, 64, 3, 3], WindowParams::new([1, 1], [1, 1])), // a sum in parts
        ] {
            push("convolution", conv("", operands(image, weight, weight[0]), m));
            let y = window::conv2d(&x(image), &w(weight), None, m).shape;
            let small = operands([y[0], y[1], y[2], y[3]], weight, image[1]);
            push("transposed", transpose("", small, m, [0, 0]).within(1e-4, 1e-5));
            push("weight's gradient", weight_grad(image, weight, m));
        }
    }
    cases
}

/// Returns cases of f16 for the variants of cooperative matrices: the convolution and, without stride, its transpose.
fn cooperative() -> Vec<Case> {
    let mut cases = Vec::new();
    for variant in ["cooperative_16", "cooperative_8"] {
        let mut push = |what: &str, case: Case| {
            let case = case.within(4e-3, 2e-3).result_dtype(DType::F16);
            cases.push(case.named(format!("conv2d/{variant} {what}")).variant("conv2d_cooperative", variant));
        };
        let halves = |inputs: Vec<Input>| inputs.into_iter().map(|input| input.of(DType::F16)).collect::<Vec<_>>();
        for (image, weight, m) in [
            ([3, 20, 7, 9], [70, 20, 3, 3], WindowParams::new([1, 1], [1, 1])),
            ([2, 48, 6, 5], [36, 16, 2, 3], WindowParams { groups: 3, ..WindowParams::new([2, 3], [1, 0]) }),
            ([2, 17, 6, 7], [33, 17, 1, 1], WindowParams::new([1, 1], [0, 0])),
            ([1, 40, 9, 8], [40, 40, 3, 2], WindowParams { dilation: [3, 2], ..WindowParams::new([1, 1], [3, 1]) }),
        ] {
            push("convolution", conv("", halves(operands(image, weight, weight[0])), m));
            if m.stride == [1, 1] {
                let y = window::conv2d(&x(image), &w(weight), None, m).shape;
                let small = operands([y[0], y[1], y[2], y[3]], weight, image[1]);
                push("transposed", transpose("", halves(small), m, [0, 0]));
            }
        }
    }
    cases
}

/// Returns a case of the gradient of the weight.
fn weight_grad(image: [usize; 4], weight: [usize; 4], m: WindowParams) -> Case {
    let inputs = operands(image, weight, weight[0]).into_iter().take(2).collect::<Vec<_>>();
    let work = products(&inputs, m);
    let gradient = move |t: &[Tensor]| {
        let weight = t[1].detach().requires_grad();
        let y = t[0].conv2d(&weight, None, options(m))?;
        y.mul(&signed(y.shape(), 24).tensor(DType::F32, y.device())?)?.sum_all()?.backward()?;
        weight.grad().map_or_else(|| Tensor::zeros(t[1].shape(), y.device()), Ok)
    };
    let oracle = move |x: &[&Nd]| {
        let shape = &window::conv2d(x[0], x[1], None, m).shape;
        let dy = signed(shape, 24);
        window::conv2d_weight_grad(x[0], &dy, &x[1].shape, m)
    };
    Case::new("", inputs, gradient, oracle).within(1e-4, 1e-5).operations(2 * work)
}

/// Returns the cases that are computed in f32 and stored as halves.
fn halves() -> Vec<Case> {
    let m = WindowParams::new([1, 2], [1, 0]);
    let rows = [(DType::F16, 1e-3), (DType::BF16, 8e-3)].map(|(dtype, rtol)| {
        let inputs = || operands([2, 3, 5, 7], [4, 3, 3, 3], 4).into_iter().map(|i| i.of(dtype)).collect();
        let small = || operands([2, 4, 3, 4], [4, 3, 3, 3], 3).into_iter().map(|i| i.of(dtype)).collect();
        // The bias is added to a result that has been rounded already.
        let twice = transpose("halves", small(), m, [0, 1]).within(4.0 * rtol, 2.0 * rtol);
        [conv("halves", inputs(), m).within(rtol, rtol).result_dtype(dtype), twice.result_dtype(dtype)]
    });
    rows.into_iter().flatten().collect()
}
