//! The ways in which the host computes a convolution, compared with the product of matrices.

use super::Sizes;
use super::plan::{self, Forward, InputGrad, WeightGrad};
use super::{columns, direct, few_windows, flat, image_lanes, line_grad, window_lanes, winograd, winograd_grad};
use crate::memory::Result;
use crate::window::{Window, WindowParams};

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 31) % 211) as f32 / 105.0 - 1.0).collect()
}

fn geometry([images, channels, out_channels]: [usize; 3], size: [usize; 2], params: WindowParams) -> Sizes {
    let out = [0, 1].map(|d| (size[d] + 2 * params.padding[d] - params.span(d)) / params.stride[d] + 1);
    Sizes { images, channels, out_channels, groups: 1, window: Window { params, size, out } }
}

/// Compares what `f` writes with what `wanted` writes.
#[track_caller]
fn compare(
    count: usize,
    f: impl FnOnce(&mut [f32]) -> Result<()>,
    wanted: impl FnOnce(&mut [f32]) -> Result<()>,
) -> Result<()> {
    let [mut found, mut right] = [vec![f32::NAN; count], vec![f32::NAN; count]];
    f(&mut found)?;
    wanted(&mut right)?;
    let size = right.iter().fold(0f32, |size, v| size.max(v.abs()));
    let wrong = found.iter().zip(&right).position(|(a, b)| (a - b).abs() > 1e-5 * size || a.is_nan());
    assert_eq!(wrong, None, "{:?}", wrong.map(|i| (found[i], right[i])));
    Ok(())
}

/// Several blocks of channels, several images in a strip and fewer in the last one; then several strips of an image, and
/// several steps of the weight's gradient.
#[test]
fn winograds_method_has_the_results_of_plain_products() -> Result<()> {
    for (sizes, size, padding) in
        [([23, 37, 70], [6, 5], [1, 1]), ([5, 40, 33], [38, 41], [0, 2]), ([50, 16, 16], [4, 4], [1, 1])]
    {
        let g = geometry(sizes, size, WindowParams { kernel: [3, 3], stride: [1, 1], padding, dilation: [1, 1] });
        assert!(plan::winograd_suits(&g) && plan::winograd_grad_suits(&g));
        let (x, dy) = (&numbers(g.images * g.image(), 1), &numbers(g.images * g.out_image(), 2));
        let (w, bias) = (&numbers(g.group_weights(), 3), &numbers(g.out_channels, 4));
        let (y, dx, dw) = (dy.len(), x.len(), w.len());
        compare(
            y,
            |out| winograd::forward(&g, x, w, Some(bias), out),
            |out| columns::forward(&g, x, w, Some(bias), out),
        )?;
        compare(dx, |out| winograd::input_grad(&g, dy, w, out), |out| columns::input_grad(&g, dy, w, out))?;
        compare(dw, |out| winograd_grad::weight_grad(&g, dy, x, out), |out| columns::weight_grad(&g, dy, x, out))?;
    }
    Ok(())
}

/// Fewer images in the last group than fill it, or even a vector, windows without a pixel of the image, pixels without a window,
/// strides, dilations, and numbers of channels that fill no blocks.
#[test]
fn vectors_of_images_have_the_results_of_plain_products() -> Result<()> {
    let params = |kernel, stride, padding, dilation| WindowParams { kernel, stride, padding, dilation };
    for (sizes, size, params) in [
        ([64, 20, 50], [13, 13], params([5, 5], [1, 1], [0, 0], [1, 1])),
        ([33, 7, 9], [6, 5], params([5, 5], [1, 1], [2, 2], [1, 1])),
        ([1, 5, 1], [9, 11], params([3, 2], [2, 3], [3, 1], [1, 2])),
        ([60, 1, 19], [12, 13], params([4, 3], [3, 2], [2, 4], [2, 1])),
        ([100, 3, 17], [5, 40], params([1, 11], [1, 4], [0, 5], [1, 1])),
        ([70, 24, 90], [28, 30], params([5, 5], [1, 1], [2, 2], [1, 1])), // several steps
        ([1, 16, 24], [2, 700], params([1, 5], [1, 1], [0, 0], [1, 1])),  // lines that are too long for one sum
        ([9, 64, 20], [6, 6], params([3, 1], [1, 1], [1, 0], [1, 1])),    // lines that go on in the next one
        ([32, 300, 5], [3, 4], params([1, 3], [1, 1], [0, 0], [1, 1])),   // channels that are too many for one sum
        ([2, 3, 5], [2, 3], params([2, 2], [1, 1], [3, 1], [2, 1])),      // lines of the kernel that read no pixel
    ] {
        let g = geometry(sizes, size, params);
        let (x, dy) = (&numbers(g.images * g.image(), 1), &numbers(g.images * g.out_image(), 2));
        let w = &numbers(g.group_weights(), 3);
        let bias = &numbers(g.out_channels, 4);
        for bias in [None, Some(&bias[..])] {
            compare(
                dy.len(),
                |out| image_lanes::convolve(&g, false, (x, w, bias), out),
                |out| columns::forward(&g, x, w, bias, out),
            )?;
        }
        let (dx, dw) = (x.len(), w.len());
        compare(
            dx,
            |out| image_lanes::convolve(&g, true, (dy, w, None), out),
            |out| columns::input_grad(&g, dy, w, out),
        )?;
        if params.dilation[1] == 1 {
            compare(dw, |out| line_grad::weight_grad(&g, dy, x, out), |out| columns::weight_grad(&g, dy, x, out))?;
        }
    }
    Ok(())
}

/// One image and several parts of a batch, channels that fill no tile, lines with a last vector that is not full, paddings that are
/// wider than the kernel, and dilations.
#[test]
fn vectors_of_windows_have_the_results_of_plain_products() -> Result<()> {
    let params = |kernel, stride, padding, dilation| WindowParams { kernel, stride, padding, dilation };
    for (sizes, size, params) in [
        ([37, 1, 20], [28, 28], params([3, 3], [1, 1], [0, 0], [1, 1])),
        ([1, 2, 1], [1, 17], params([1, 2], [1, 1], [0, 0], [1, 1])),
        ([3, 3, 9], [9, 40], params([5, 4], [2, 1], [3, 5], [2, 3])),
        ([2, 1, 7], [12, 14], params([5, 5], [1, 1], [2, 2], [1, 1])),
        ([2, 2, 5], [3, 33], params([6, 6], [3, 1], [4, 1], [1, 2])),
        ([5, 3, 4], [40, 30], params([7, 7], [1, 1], [3, 3], [1, 1])),
        ([4, 1, 3], [2, 9000], params([1, 3], [1, 1], [0, 0], [1, 2])), // lines that are too long for one sum
    ] {
        let g = geometry(sizes, size, params);
        assert!(plan::window_lanes_suit(&g), "{g:?}");
        let (x, dy) = (&mut numbers(g.images * g.image(), 1), &numbers(g.images * g.out_image(), 2));
        let dw = g.group_weights();
        compare(dw, |out| window_lanes::weight_grad(&g, dy, x, out), |out| columns::weight_grad(&g, dy, x, out))?;
        // An infinite pixel at the end of a line is multiplied only where a window reads it.
        x[size[1] - 1] = f32::INFINITY;
        let [mut found, mut right] = [vec![0.0; dw], vec![0.0; dw]];
        window_lanes::weight_grad(&g, dy, x, &mut found)?;
        columns::weight_grad(&g, dy, x, &mut right)?;
        assert!(found.iter().zip(&right).all(|(a, b)| a.is_finite() == b.is_finite()), "{g:?}");
    }
    Ok(())
}

/// LeNet's second convolution, and convolutions of small planes of many channels, of a few images, and of a kernel
/// of one position.
#[test]
fn many_images_of_few_channels_take_vectors_of_images() {
    let plain = |kernel| WindowParams { kernel, stride: [1, 1], padding: [0, 0], dilation: [1, 1] };
    let taken = |sizes, size, kernel| {
        let g = geometry(sizes, size, plain(kernel));
        [[g.channels, g.out_channels], [g.out_channels, g.channels]].map(|sides| plan::image_lanes_suit(&g, sides))
    };
    assert_eq!(taken([256, 20, 50], [13, 13], [5, 5]), [true; 2]);
    assert_eq!(taken([5, 20, 50], [13, 13], [5, 5]), [false; 2]);
    assert_eq!(taken([256, 200, 50], [13, 13], [1, 1]), [false; 2]);
}

/// Sums of as many equal terms as a line has windows.
#[test]
fn gradients_of_weights_of_long_lines_are_exact() -> Result<()> {
    fn check(g: &Sizes, f: impl Fn(&Sizes, &[f32], &[f32], &mut [f32]) -> Result<()>) -> Result<()> {
        let (x, dy) = (vec![0.1; g.images * g.image()], vec![0.1; g.images * g.out_image()]);
        let mut dw = vec![0.0; g.group_weights()];
        f(g, &dy, &x, &mut dw)?;
        let right = f64::from(0.1f32).powi(2) * (g.images * g.window.pixels()) as f64;
        let wrong = dw.iter().find(|v| (f64::from(**v) - right).abs() > 2e-5 * right);
        assert_eq!(wrong, None, "not {right}");
        Ok(())
    }
    let params = |kernel| WindowParams { kernel, stride: [1, 1], padding: [0, 0], dilation: [1, 1] };
    let lines = geometry([1, 16, 24], [1, 100_004], params([1, 5]));
    assert!(plan::lines_suit(&lines));
    check(&lines, line_grad::weight_grad)?;
    let windows = geometry([4, 1, 3], [2, 50_002], params([1, 3]));
    assert!(plan::window_lanes_suit(&windows));
    check(&windows, window_lanes::weight_grad)
}

/// Few and many rows and columns, with phases and without them, paddings that are wider than the image, dilations, groups of few
/// channels and of many, and images that are cut by lines, by rows and by groups.
#[test]
fn flat_windows_have_the_results_of_plain_products() -> Result<()> {
    let params = |kernel, stride, padding, dilation| WindowParams { kernel, stride, padding, dilation };
    for (sizes, groups, size, params) in [
        ([1, 1, 1], 1, [1, 1], params([1, 1], [1, 1], [0, 0], [1, 1])),
        ([1, 40, 37], 1, [9, 13], params([1, 1], [1, 1], [0, 0], [1, 1])),
        ([3, 70, 90], 1, [1, 45], params([1, 1], [1, 1], [0, 0], [1, 1])),
        ([1, 33, 65], 1, [40, 41], params([3, 3], [1, 1], [1, 1], [1, 1])),
        ([2, 65, 30], 1, [20, 19], params([3, 3], [2, 2], [1, 1], [1, 1])),
        ([1, 7, 300], 1, [5, 4], params([2, 3], [1, 1], [0, 0], [2, 1])),
        ([1, 50, 64], 1, [60, 1], params([5, 1], [1, 1], [0, 0], [1, 1])),
        ([2, 9, 20], 1, [17, 23], params([4, 3], [3, 2], [2, 5], [1, 3])),
        ([1, 3, 5], 1, [2, 1], params([1, 3], [2, 1], [3, 1], [1, 1])),
        ([2, 4, 3], 1, [30, 30], params([1, 1], [3, 4], [1, 0], [1, 1])),
        ([1, 2, 70], 1, [1, 700], params([1, 256], [1, 128], [0, 0], [1, 1])),
        ([1, 13, 13], 13, [30, 31], params([3, 3], [1, 1], [1, 1], [1, 1])),
        ([11, 6, 12], 6, [10, 12], params([5, 5], [2, 1], [2, 2], [1, 1])),
        ([1, 64, 64], 64, [24, 80], params([5, 5], [1, 1], [2, 2], [1, 1])),
        ([2, 12, 60], 2, [16, 17], params([3, 3], [1, 2], [1, 0], [1, 1])),
        ([1, 64, 128], 2, [33, 3], params([3, 3], [1, 1], [1, 1], [1, 1])),
    ] {
        let g = Sizes { groups, ..geometry(sizes, size, params) };
        let (x, w) = (&numbers(g.images * g.image(), 1), &numbers(groups * g.group_weights(), 3));
        let bias = &numbers(g.out_channels, 4);
        for bias in [None, Some(&bias[..])] {
            compare(
                g.images * g.out_image(),
                |out| flat::forward(&g, x, w, bias, None, out),
                |out| columns::forward(&g, x, w, bias, out),
            )?;
        }
    }
    Ok(())
}

/// Windows within the image, partly and wholly in the padding, of one pixel and of long signals, in groups.
#[test]
fn few_windows_have_the_results_of_plain_products() -> Result<()> {
    let params = |kernel, stride, padding, dilation| WindowParams { kernel, stride, padding, dilation };
    for (sizes, groups, size, params) in [
        ([1, 1, 1], 1, [1, 1], params([1, 1], [1, 1], [0, 0], [1, 1])),
        ([3, 190, 301], 1, [1, 1], params([1, 1], [1, 1], [0, 0], [1, 1])),
        ([2, 1, 258], 1, [1, 640], params([1, 256], [1, 128], [0, 0], [1, 1])),
        ([2, 129, 65], 1, [1, 4], params([1, 3], [1, 2], [0, 1], [1, 1])),
        ([1, 40, 30], 2, [3, 2], params([3, 2], [2, 3], [3, 2], [1, 2])),
        ([1, 90, 120], 3, [2, 2], params([3, 3], [1, 1], [1, 1], [1, 1])),
        ([5, 17, 7], 1, [1, 1], params([1, 3], [2, 1], [1, 2], [1, 1])),
    ] {
        let g = Sizes { groups, ..geometry(sizes, size, params) };
        assert_eq!(plan::forward(&g), Forward::FewWindows, "{g:?}");
        let (x, w) = (&numbers(g.images * g.image(), 1), &numbers(groups * g.group_weights(), 3));
        let bias = &numbers(g.out_channels, 4);
        for bias in [None, Some(&bias[..])] {
            compare(
                g.images * g.out_image(),
                |out| few_windows::forward(&g, x, w, bias, out),
                |out| columns::forward(&g, x, w, bias, out),
            )?;
        }
    }
    Ok(())
}

/// Prints the times of all ways that can compute layers of common nets, in milliseconds, with a star at the one that [`plan`] chooses:
///
/// ```sh
/// cargo test --release -p anygpu-host times_of_ways -- --ignored --nocapture
/// ```
#[test]
#[ignore = "a measurement"]
fn times_of_ways() {
    type Way<'a> = (&'a str, bool, Box<dyn Fn(&mut [f32]) -> Result<()> + 'a>);
    fn row(what: &str, name: &str, count: usize, ways: Vec<Way>) {
        let mut out = vec![0.0; count];
        let mut line = format!("{name:34} {what:8}");
        for (way, chosen, run) in ways {
            let mut best = f64::INFINITY;
            let begin = std::time::Instant::now();
            while begin.elapsed().as_secs_f64() < 0.25 || best.is_infinite() {
                let start = std::time::Instant::now();
                run(&mut out).expect("memory");
                best = best.min(start.elapsed().as_secs_f64());
            }
            line += &format!("  {way}{} {:.3}", if chosen { "*" } else { "" }, best * 1e3);
        }
        println!("{line}");
    }
    // Images, channels, output channels, groups; size; kernel, stride, padding.
    let layers = [
        ("LeNet 1", [256, 1, 6, 1], 28, [5, 1, 2]),
        ("LeNet 2", [256, 6, 16, 1], 14, [5, 1, 0]),
        ("MNIST CNN 1", [256, 1, 20, 1], 28, [3, 1, 0]),
        ("MNIST CNN 2", [256, 20, 50, 1], 13, [5, 1, 0]),
        ("ResNet-18 stem", [32, 1, 64, 1], 96, [7, 2, 3]),
        ("ResNet-18 1", [32, 64, 64, 1], 24, [3, 1, 1]),
        ("ResNet-18 2 down", [32, 64, 128, 1], 24, [3, 2, 1]),
        ("ResNet-18 2 skip", [32, 64, 128, 1], 24, [1, 2, 0]),
        ("ResNet-18 2", [32, 128, 128, 1], 12, [3, 1, 1]),
        ("ResNet-18 3", [32, 256, 256, 1], 6, [3, 1, 1]),
        ("ResNet-18 4 down", [32, 256, 512, 1], 6, [3, 2, 1]),
        ("ResNet-18 4", [32, 512, 512, 1], 3, [3, 1, 1]),
        ("image of 224, stem", [1, 3, 64, 1], 224, [7, 2, 3]),
        ("image of 224, 1", [1, 64, 64, 1], 56, [3, 1, 1]),
        ("image of 224, 3", [1, 256, 256, 1], 14, [3, 1, 1]),
        ("image of 224, 4", [1, 512, 512, 1], 7, [3, 1, 1]),
        ("MobileNet, depthwise", [1, 96, 96, 96], 56, [3, 1, 1]),
        ("MobileNet, pointwise", [1, 96, 24, 1], 56, [1, 1, 0]),
        ("MobileNet, batch", [32, 96, 96, 96], 28, [3, 2, 1]),
        ("pooled image", [1, 512, 128, 1], 1, [1, 1, 0]),
    ];
    for (name, [images, channels, out_channels, groups], size, [kernel, stride, padding]) in layers {
        let params = WindowParams { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2], dilation: [1; 2] };
        let window = params.over([size; 2], false).expect("a kernel within the image");
        let g = &Sizes { images, channels, out_channels, groups, window };
        let (x, dy) = (&numbers(g.images * g.image(), 1), &numbers(g.images * g.out_image(), 2));
        let w = &numbers(g.groups * g.group_weights(), 3);
        let winograd = plan::winograd_suits(g);
        let name = &format!("{name} [{images} {channels} {out_channels} {groups}] {size}");

        let way = plan::forward(g);
        let mut ways: Vec<Way> = vec![
            ("columns", way == Forward::Columns, Box::new(|out| columns::forward(g, x, w, None, out))),
            ("flat", way == Forward::Flat, Box::new(|out| flat::forward(g, x, w, None, None, out))),
        ];
        if window.pixels() <= 64 {
            let run = |out: &mut [f32]| few_windows::forward(g, x, w, None, out);
            ways.push(("few windows", way == Forward::FewWindows, Box::new(run)));
        }
        if groups > 1 {
            let run = |out: &mut [f32]| {
                direct::forward(g, x, w, None, out);
                Ok(())
            };
            ways.push(("direct", way == Forward::Direct, Box::new(run)));
        } else {
            let run = |out: &mut [f32]| image_lanes::convolve(g, false, (x, w, None), out);
            ways.push(("image lanes", way == Forward::ImageLanes, Box::new(run)));
        }
        if winograd {
            let run = |out: &mut [f32]| winograd::forward(g, x, w, None, out);
            ways.push(("winograd", way == Forward::Winograd, Box::new(run)));
        }
        row("forward", name, dy.len(), ways);

        let way = plan::input_grad(g);
        let mut ways: Vec<Way> =
            vec![("columns", way == InputGrad::Columns, Box::new(|out| columns::input_grad(g, dy, w, out)))];
        if groups > 1 {
            let run = |out: &mut [f32]| {
                direct::input_grad(g, dy, w, out);
                Ok(())
            };
            ways.push(("direct", way == InputGrad::Direct, Box::new(run)));
        } else {
            let run = |out: &mut [f32]| image_lanes::convolve(g, true, (dy, w, None), out);
            ways.push(("image lanes", way == InputGrad::ImageLanes, Box::new(run)));
        }
        if winograd {
            let run = |out: &mut [f32]| winograd::input_grad(g, dy, w, out);
            ways.push(("winograd", way == InputGrad::Winograd, Box::new(run)));
        }
        row("image", name, x.len(), ways);

        let way = plan::weight_grad(g);
        let mut ways: Vec<Way> =
            vec![("columns", way == WeightGrad::Columns, Box::new(|out| columns::weight_grad(g, dy, x, out)))];
        if groups > 1 {
            ways.push(("direct", way == WeightGrad::Direct, Box::new(|out| direct::weight_grad(g, dy, x, out))));
        } else {
            let run = |out: &mut [f32]| line_grad::weight_grad(g, dy, x, out);
            ways.push(("lines", way == WeightGrad::Lines, Box::new(run)));
            if stride == 1 && (2..=window_lanes::LONGEST).contains(&kernel) {
                let run = |out: &mut [f32]| window_lanes::weight_grad(g, dy, x, out);
                ways.push(("window lanes", way == WeightGrad::WindowLanes, Box::new(run)));
            }
        }
        if winograd {
            let run = |out: &mut [f32]| winograd_grad::weight_grad(g, dy, x, out);
            ways.push(("winograd", way == WeightGrad::Winograd, Box::new(run)));
        }
        row("weight", name, w.len(), ways);
    }
}
