//! Convolution and pooling over three dimensions, convolution with other paddings, and positions of maxima.

use super::prelude::*;
use super::window::{self, Along, Mean};
use crate::ops::{Conv, ConvPadding, Pool};

pub(super) fn cases() -> Vec<Case> {
    [conv3d(), conv_transpose3d(), paddings(), pool3d(), positions()].into_iter().flatten().collect()
}

fn along(stride: usize, padding: [usize; 2], dilation: usize) -> Along {
    Along { stride, padding, dilation }
}

fn options(m: [Along; 3], groups: usize) -> Conv<3> {
    let padding = m.map(|along| along.padding);
    Conv::new()
        .stride(m.map(|along| along.stride))
        .padding(padding)
        .dilation(m.map(|along| along.dilation))
        .groups(groups)
}

fn operands(image: [usize; 5], weight: [usize; 5], channels: usize) -> Vec<Input> {
    vec![dense(signed(&image, 41)), dense(signed(&weight, 42)), dense(signed(&[channels], 43))]
}

/// Image, weight, the windows along each dimension, groups.
type Convolution = ([usize; 5], [usize; 5], [Along; 3], usize);

fn convolutions() -> [Convolution; 6] {
    let plain = along(1, [0, 0], 1);
    [
        ([1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [plain; 3], 1),
        ([2, 3, 4, 5, 3], [4, 3, 3, 3, 2], [along(1, [1, 1], 1), along(1, [1, 1], 1), plain], 1),
        ([1, 2, 5, 4, 6], [3, 2, 2, 1, 3], [along(2, [0, 1], 2), along(1, [0, 0], 1), along(2, [2, 0], 2)], 1),
        ([2, 4, 3, 4, 3], [6, 2, 2, 3, 2], [along(1, [1, 0], 1), along(2, [1, 1], 1), plain], 2),
        ([1, 3, 6, 3, 3], [3, 1, 1, 2, 2], [along(3, [0, 0], 1), plain, plain], 3), // depthwise
        ([0, 2, 3, 3, 3], [3, 2, 2, 2, 2], [plain; 3], 1),
    ]
}

fn conv3d() -> Vec<Case> {
    let case = |what: &str, inputs: Vec<Input>, m: [Along; 3], groups: usize| {
        Case::new(
            format!("conv3d {what} {m:?} groups {groups}"),
            inputs,
            move |t| t[0].conv3d(&t[1], t.get(2), options(m, groups)),
            move |x| window::conv3d(x[0], x[1], x.get(2).copied(), m, groups),
        )
        .within(3e-5, 1e-5)
    };
    let mut cases = Vec::new();
    for (image, weight, m, groups) in convolutions() {
        cases.push(case("bias", operands(image, weight, weight[0]), m, groups));
    }
    let (image, weight, m, groups) = convolutions()[1];
    let [x, w] = [signed(&image, 41), signed(&weight, 42)];
    cases.push(case("transposed", vec![transposed(x.clone(), 1, 4), transposed(w.clone(), 0, 2)], m, groups));
    cases.push(case("narrowed", vec![narrowed(x, 2), narrowed(w, 3)], m, groups));
    let halves = operands(image, weight, weight[0]).into_iter().map(|input| input.of(DType::F16)).collect();
    cases.push(case("halves", halves, m, groups).within(1e-3, 1e-3).result_dtype(DType::F16));
    cases
}

fn conv_transpose3d() -> Vec<Case> {
    let case = |inputs: Vec<Input>, m: [Along; 3], groups: usize, extra: [usize; 3]| {
        Case::new(
            format!("conv_transpose3d {m:?} groups {groups} output padding {extra:?}"),
            inputs,
            move |t| t[0].conv_transpose3d(&t[1], t.get(2), options(m, groups).output_padding(extra)),
            move |x| window::conv_transpose3d(x[0], x[1], x.get(2).copied(), m, groups, extra),
        )
        .within(3e-5, 1e-5)
    };
    let plain = along(1, [0, 0], 1);
    let mut cases = Vec::new();
    for (image, weight, m, groups, extra) in [
        ([1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [plain; 3], 1, [0; 3]),
        ([2, 3, 2, 3, 2], [3, 2, 2, 2, 3], [along(2, [0, 0], 1), along(2, [0, 0], 1), plain], 1, [0; 3]),
        ([1, 2, 3, 2, 3], [2, 3, 3, 1, 2], [along(2, [1, 1], 1), along(3, [0, 0], 1), plain], 1, [1, 2, 0]),
        ([2, 4, 3, 2, 2], [4, 2, 2, 3, 2], [along(1, [0, 1], 2), along(2, [1, 0], 1), along(1, [1, 1], 2)], 2, [0; 3]),
    ] {
        let channels = weight[1] * groups;
        cases.push(case(operands(image, weight, channels), m, groups, extra));
        cases.push(case(operands(image, weight, channels).into_iter().take(2).collect(), m, groups, extra));
    }
    cases
}

/// Returns `[N, C, H, W]` or a weight as a volume of depth 1.
fn deep(x: &Nd) -> Nd {
    Nd::new(&[x.shape[0], x.shape[1], 1, x.shape[2], x.shape[3]], x.data.clone())
}

fn flat(y: Nd) -> Nd {
    Nd::new(&[y.shape[0], y.shape[1], y.shape[3], y.shape[4]], y.data)
}

/// Paddings that differ between the sides, in convolutions over two dimensions.
fn paddings() -> Vec<Case> {
    let inputs = |weight: [usize; 4], channels| {
        vec![dense(signed(&[2, 3, 6, 5], 44)), dense(signed(&weight, 45)), dense(signed(&[channels], 46))]
    };
    let still = along(1, [0, 0], 1);
    let mut cases = Vec::new();
    for (padding, kernel, [stride, dilation], each) in [
        (ConvPadding::Each([[2, 0], [0, 1]]), [3, 2], [2, 1], [[2, 0], [0, 1]]),
        (ConvPadding::Each([[1, 2], [1, 1]]), [2, 3], [1, 2], [[1, 2], [1, 1]]),
        (ConvPadding::Same, [3, 2], [1, 1], [[1, 1], [0, 1]]),
        (ConvPadding::Same, [4, 1], [1, 2], [[3, 3], [0, 0]]),
    ] {
        let m = [still, along(stride, each[0], dilation), along(stride, each[1], dilation)];
        let conv = Conv::new().stride(stride).padding(padding).dilation(dilation);
        let case = Case::new(
            format!("conv2d kernel {kernel:?} {padding:?}"),
            inputs([4, 3, kernel[0], kernel[1]], 4),
            move |t| t[0].conv2d(&t[1], t.get(2), conv),
            move |x| flat(window::conv3d(&deep(x[0]), &deep(x[1]), x.get(2).copied(), m, 1)),
        );
        cases.push(case.within(3e-5, 1e-5));
        if padding == ConvPadding::Same {
            continue;
        }
        let case = Case::new(
            format!("conv_transpose2d kernel {kernel:?} {padding:?}"),
            inputs([3, 4, kernel[0], kernel[1]], 4),
            move |t| t[0].conv_transpose2d(&t[1], t.get(2), conv),
            move |x| flat(window::conv_transpose3d(&deep(x[0]), &deep(x[1]), x.get(2).copied(), m, 1, [0; 3])),
        );
        cases.push(case.within(3e-5, 1e-5));
    }
    cases
}

/// Returns negative numbers only: with them, a padding of zeros would be a wrong maximum.
fn negative(shape: &[usize]) -> Nd {
    uniform(shape, -5.0, -1.0, 47)
}

fn pool3d() -> Vec<Case> {
    let mut cases = Vec::new();
    for (image, m, ceil) in [
        ([1, 1, 1, 1, 1], [[1, 1, 0, 1]; 3], false),
        ([2, 3, 4, 5, 6], [[2, 2, 0, 1]; 3], false),
        ([2, 3, 4, 5, 7], [[2, 2, 0, 1]; 3], true),
        ([1, 2, 5, 6, 4], [[3, 2, 1, 1], [2, 1, 1, 1], [3, 3, 1, 1]], false),
        ([1, 2, 6, 5, 7], [[3, 2, 1, 1], [2, 3, 1, 1], [4, 3, 2, 1]], true),
        ([2, 1, 5, 6, 7], [[2, 1, 1, 2], [2, 2, 0, 3], [3, 1, 1, 2]], false), // dilated: maxima only
    ] {
        for mean in [None, Some(Mean::IncludePad), Some(Mean::ExcludePad)] {
            if mean.is_some() && m.iter().any(|&[.., dilation]| dilation > 1) {
                continue;
            }
            let pool = Pool::new(m.map(|[kernel, ..]| kernel)).stride(m.map(|[_, stride, ..]| stride));
            let pool = pool.padding(m.map(|[.., padding, _]| padding)).dilation(m.map(|[.., dilation]| dilation));
            let pool = pool.ceil_mode(ceil).count_include_pad(mean != Some(Mean::ExcludePad));
            let name = if mean.is_some() { "avg_pool3d" } else { "max_pool3d" };
            cases.push(Case::new(
                format!("{name} {mean:?} {m:?} ceil {ceil}"),
                [transposed(negative(&image), 1, 3)],
                move |t| if mean.is_some() { t[0].avg_pool3d(pool) } else { t[0].max_pool3d(pool) },
                move |x| window::pool3d(x[0], mean, m, ceil),
            ));
        }
    }
    cases.push(
        Case::new(
            "avg_pool3d halves",
            [dense(negative(&[1, 2, 3, 4, 5])).of(DType::F16)],
            |t| t[0].avg_pool3d(2),
            |x| window::pool3d(x[0], Some(Mean::IncludePad), [[2, 2, 0, 1]; 3], false),
        )
        .within(1e-3, 1e-3)
        .result_dtype(DType::F16),
    );
    for (size, parts) in [([4, 6, 2], [[2, 2], [3, 2], [1, 2]]), ([3, 4, 5], [[3, 1], [2, 2], [5, 1]])] {
        // Parts of equal length are windows.
        let m = parts.map(|[_, length]| [length, length, 0, 1]);
        let out = parts.map(|[count, _]| count);
        let input = || [dense(negative(&[2, 3, size[0], size[1], size[2]]))];
        let oracle = move |mean| move |x: &[&Nd]| window::pool3d(x[0], mean, m, false);
        let average = oracle(Some(Mean::IncludePad));
        cases.push(Case::new(
            format!("adaptive_avg_pool3d to {out:?}"),
            input(),
            move |t| t[0].adaptive_avg_pool3d(out),
            average,
        ));
        let largest = oracle(None);
        let name = format!("adaptive_max_pool3d to {out:?}");
        cases.push(Case::new(name, input(), move |t| t[0].adaptive_max_pool3d(out), largest));
    }
    cases
}

/// Returns the place of the largest pixel of each window over planes `[H, W]`.
fn places(x: &Nd, m: [[usize; 4]; 2]) -> Nd {
    let [h, w] = [x.shape[2], x.shape[3]];
    let volume = deep(x);
    let mut place = flat(window::pool3d(&volume, None, [[1, 1, 0, 1], m[0], m[1]], false));
    let (oh, ow) = (place.shape[2], place.shape[3]);
    for (i, best) in place.data.iter_mut().enumerate() {
        let (plane, oy, ox) = (i / (oh * ow), i / ow % oh, i % ow);
        let holds = |[kernel, stride, padding, dilation]: [usize; 4], o: usize, at: usize| {
            (0..kernel).any(|k| o * stride + k * dilation == at + padding)
        };
        let pixels = (0..h * w).filter(|&at| holds(m[0], oy, at / w) && holds(m[1], ox, at % w));
        let first = pixels.into_iter().find(|&at| x.data[plane * h * w + at] == *best);
        *best = first.map_or(f64::from(u32::MAX), |at| at as f64);
    }
    place
}

fn positions() -> Vec<Case> {
    let mut cases = Vec::new();
    for (image, m) in [
        ([2, 3, 6, 8], [[2, 2, 0, 1], [2, 2, 0, 1]]),
        ([2, 3, 7, 20], [[3, 2, 1, 1], [3, 1, 1, 1]]),
        ([1, 2, 6, 9], [[2, 1, 1, 2], [3, 2, 0, 2]]),
        ([1, 1, 20, 20], [[17, 1, 0, 1], [18, 2, 0, 1]]), // a large window
    ] {
        let pool = Pool::new([m[0][0], m[1][0]]).stride([m[0][1], m[1][1]]).padding([m[0][2], m[1][2]]);
        let pool = pool.dilation([m[0][3], m[1][3]]);
        // Small whole numbers, so that several of a window are equal.
        let x = whole(&image, -9, -3, 48);
        let name = format!("max_pool2d_with_indices {m:?}");
        let case = Case::new(
            name,
            [narrowed(x, 3)],
            move |t| Ok(t[0].max_pool2d_with_indices(pool)?.1),
            move |x| places(x[0], m),
        );
        cases.push(case.result_dtype(DType::U32));
    }
    let line = whole(&[2, 3, 11], -9, -3, 49);
    let case = Case::new(
        "max_pool1d_with_indices",
        [dense(line)],
        |t| Ok(t[0].max_pool1d_with_indices(Pool::new(3).stride(2).padding(1))?.1),
        |x| {
            let image = Nd::new(&[2, 3, 1, 11], x[0].data.clone());
            let place = places(&image, [[1, 1, 0, 1], [3, 2, 1, 1]]);
            Nd::new(&[2, 3, place.shape[3]], place.data)
        },
    );
    cases.push(case.result_dtype(DType::U32));
    cases
}
