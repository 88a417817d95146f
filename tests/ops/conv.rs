//! Convolution and pooling.

use crate::common::{Nd, oracle, signed, uniform};
use crate::table::{Case, Input, dense, narrowed, run, transposed};

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

#[test]
fn conv2d() {
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
    run(cases);
}

#[test]
fn conv2d_layouts() {
    let (image, weight) = ([2, 3, 6, 5], [4, 3, 3, 3]);
    let row = |what, x, w, b| conv(what, vec![x, w, b], [1, 1], [1, 0]);
    run(vec![
        row("transposed", transposed(x(image), 1, 3), transposed(w(weight), 0, 1), dense(bias(4))),
        row("narrowed batch", narrowed(x(image), 0), narrowed(w(weight), 0), narrowed(bias(4), 0)),
        row("narrowed image", narrowed(x(image), 3), narrowed(w(weight), 2), dense(bias(4))),
    ]);
}

/// More columns than one pass of an adapter holds (16 M): 520 · 9 · 60 · 60 = 16.8 M.
#[test]
fn conv2d_in_several_passes() {
    let inputs = vec![dense(x([520, 1, 62, 62])), dense(w([2, 1, 3, 3])), dense(bias(2))];
    let mut case = conv("several passes", inputs, [1, 1], [0, 0]).within(3e-4, 1e-4);
    case = case.only(&["cpu", "soft:0"]);
    run(vec![case.no_gradient()]);
}

/// Over several passes the weight's gradient is a sum of parts; for a conv of ones it can be told without an oracle.
#[test]
fn conv2d_gradient_in_several_passes() -> anygpu::Result<()> {
    use anygpu::Tensor;
    for device in crate::common::devices().iter().filter(|d| ["cpu", "soft:0"].contains(&d.name())) {
        let x = Tensor::ones([520, 1, 62, 62], device)?.requires_grad();
        let w = Tensor::ones([2, 1, 3, 3], device)?.requires_grad();
        let bias = Tensor::zeros([2], device)?.requires_grad();
        x.conv2d(&w, Some(&bias), [1, 1], [0, 0])?.mean_all()?.backward()?;
        // The mean of 2 · P results, each a sum of nine pixels: d/dw = P ones of weight 1 / 2P; the bias likewise.
        for grad in [w.grad(), bias.grad()] {
            let values = crate::common::values(&grad.expect("a gradient"))?;
            assert!(values.iter().all(|v| (v - 0.5).abs() < 1e-3), "{device}: {values:?}");
        }
        // An inner pixel is in nine windows, for both channels: 18 / 2P; a corner in one: 2 / 2P.
        let dx = crate::common::values(&x.grad().expect("a gradient"))?;
        let one = 1.0 / f64::from(520 * 60 * 60);
        for image in [0, 1, 259, 518, 519] {
            let at = |y: usize, x: usize| dx[(image * 62 + y) * 62 + x] / one;
            let got = [at(0, 0), at(0, 61), at(61, 0), at(61, 61), at(30, 30), at(0, 30)];
            let close = got.iter().zip([1.0, 1.0, 1.0, 1.0, 9.0, 3.0]).all(|(g, e)| (g - e).abs() < 1e-3);
            assert!(close, "{device}, image {image}: {got:?}");
        }
    }
    Ok(())
}

#[test]
fn pooling() {
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
    run(cases);
}

/// Of equal largest pixels the first gets the whole gradient, as in PyTorch.
#[test]
fn max_pool_of_equal_pixels() -> anygpu::Result<()> {
    for device in crate::common::devices() {
        let x = anygpu::Tensor::ones([1, 1, 2, 4], &device)?.requires_grad();
        x.max_pool2d([2, 2], [2, 2], [0, 0])?.sum_all()?.backward()?;
        let grad = x.grad().expect("a gradient").to_vec::<f32>()?;
        assert_eq!(grad, [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "{device}");
    }
    Ok(())
}
