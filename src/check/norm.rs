//! Layer, RMS, group and batch normalisation.

use super::prelude::*;
use crate::Device;

pub(super) fn cases() -> Vec<Case> {
    [layer(), rms(), group(), batch(), with_relu(), large(), merged()].into_iter().flatten().collect()
}

const EPS: f64 = 1e-3;

/// Computes (x − mean) / √(variance + eps), both over `dims`.
fn standard(x: &Nd, dims: &[usize], centre: bool) -> Nd {
    let mean = oracle::mean(x, dims, true);
    let d = if centre { oracle::binary(x, &mean, |x, m| x - m) } else { x.clone() };
    let variance = oracle::mean(&d.map(|v| v * v), dims, true);
    oracle::binary(&d, &variance, |d, v| d / (v + EPS).sqrt())
}

/// Applies a weight and a bias, both reshaped to `shape`.
fn affine(x: &Nd, weight: &Nd, bias: &Nd, shape: &[usize]) -> Nd {
    let (weight, bias) = (Nd::new(shape, weight.data.clone()), Nd::new(shape, bias.data.clone()));
    oracle::binary(&oracle::binary(x, &weight, |x, w| x * w), &bias, |x, b| x + b)
}

fn x(shape: &[usize]) -> Nd {
    signed(shape, 161).map(|v| 2.0 * v + 3.0)
}

fn layer() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut push = |what: &str, input: Input, own: &[usize]| {
        let rank = input.value.shape.len();
        let dims: Vec<usize> = (rank - own.len()..rank).collect();
        let (own, again, dims_again) = (own.to_vec(), own.to_vec(), dims.clone());
        let inputs = [input, dense(signed(&own, 162)), narrowed(signed(&own, 163), 0)];
        let shape = inputs[0].value.shape.clone();
        cases.push(Case::new(
            format!("layer_norm {what}"),
            inputs,
            move |t| t[0].layer_norm(&own, Some(&t[1]), Some(&t[2]), EPS as f32),
            move |x| affine(&standard(x[0], &dims, true), x[1], x[2], &again),
        ));
        let own = shape[dims_again[0]..].to_vec();
        cases.push(Case::new(
            format!("layer_norm plain {what}"),
            [dense(x(&shape))],
            move |t| t[0].layer_norm(&own, None, None, EPS as f32),
            move |x| standard(x[0], &dims_again, true),
        ));
    };
    for shape in [&[1, 2][..], &[3, 7], &[7, 33], &[2, 257], &[65, 17]] {
        push("dense", dense(x(shape)), &shape[1..]);
    }
    push("dense", dense(x(&[2, 3, 4, 5])), &[4, 5]);
    push("of one dimension", dense(x(&[17])), &[17]);
    push("transposed", transposed(x(&[7, 3, 5]), 0, 2), &[5]);
    push("narrowed", narrowed(x(&[7, 5]), 1), &[5]);
    push("broadcast", broadcast(x(&[1, 5]), &[4, 5]), &[5]);
    push("empty", dense(x(&[0, 5])), &[5]);
    for dtype in [DType::F16, DType::BF16] {
        let rtol = if dtype == DType::F16 { 3e-3 } else { 3e-2 };
        let inputs = [x(&[7, 33]), signed(&[33], 162), signed(&[33], 163)].map(|v| dense(v).of(dtype));
        let op = |t: &[Tensor]| t[0].layer_norm(&[33], Some(&t[1]), Some(&t[2]), EPS as f32);
        let oracle = |x: &[&Nd]| affine(&standard(x[0], &[1], true), x[1], x[2], &[33]);
        cases.push(Case::new(format!("layer_norm {dtype}"), inputs, op, oracle).result_dtype(dtype).within(rtol, rtol));
    }
    cases
}

fn rms() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[1, 1][..], &[3, 7], &[7, 33], &[2, 257], &[2, 3, 5]] {
        for weighted in [true, false] {
            let own = [*shape.last().unwrap_or(&1)];
            let dim = shape.len() - 1;
            cases.push(Case::new(
                "rms_norm",
                [dense(x(shape)), dense(signed(&own, 164))],
                move |t| {
                    let y = t[0].rms_norm(&own, Some(&t[1]).filter(|_| weighted), EPS as f32)?;
                    y.add(&t[1].mul_scalar(0.0)?)
                },
                move |x| {
                    let y = standard(x[0], &[dim], false);
                    if weighted { oracle::binary(&y, x[1], |y, w| y * w) } else { y }
                },
            ));
        }
    }
    cases
}

fn group() -> Vec<Case> {
    let mut cases = Vec::new();
    for (shape, groups) in
        [(&[2, 4][..], 2), (&[3, 6, 5], 3), (&[3, 6, 5], 1), (&[2, 6, 3, 5], 6), (&[2, 4, 7, 9], 2), (&[33, 2, 2], 1)]
    {
        let mut push = |what: &str, input: Input| {
            let shape = shape.to_vec();
            cases.push(Case::new(
                format!("group_norm {what} in {groups}"),
                [input, dense(signed(&shape[1..2], 165)), dense(signed(&shape[1..2], 166))],
                move |t| t[0].group_norm(groups, Some(&t[1]), Some(&t[2]), EPS as f32),
                move |x| {
                    let rows = shape[0] * groups;
                    let grouped = Nd::new(&[rows, x[0].data.len() / rows], x[0].data.clone());
                    let y = Nd::new(&shape, standard(&grouped, &[1], true).data);
                    let features: Vec<usize> = (1..shape.len()).map(|d| if d == 1 { shape[1] } else { 1 }).collect();
                    affine(&y, x[1], x[2], &features)
                },
            ));
        };
        push("dense", dense(x(shape)));
        push("transposed", transposed(x(shape), 0, 1));
    }
    cases
}

/// Returns all dimensions except the channels.
fn others(rank: usize) -> Vec<usize> {
    (0..rank).filter(|&d| d != 1).collect()
}

fn batch() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[2, 1][..], &[7, 3], &[33, 5], &[257, 2], &[3, 4, 7], &[2, 3, 5, 7], &[2, 33, 6, 6]] {
        let channels = shape[1];
        let features: Vec<usize> = (1..shape.len()).map(|d| if d == 1 { channels } else { 1 }).collect();
        let affine_inputs = || [dense(signed(&[channels], 167)), narrowed(signed(&[channels], 168), 0)];
        for (what, input) in [("dense", dense(x(shape))), ("transposed", transposed(x(shape), 0, 1))] {
            let (features, [weight, bias]) = (features.clone(), affine_inputs());
            cases.push(Case::new(
                format!("batch_norm {what}"),
                [input, weight, bias],
                |t| t[0].batch_norm(None, Some(&t[1]), Some(&t[2]), true, 0.1, EPS as f32),
                move |x| affine(&standard(x[0], &others(x[0].shape.len()), true), x[1], x[2], &features),
            ));
        }
        let running = [uniform(&[channels], -1.0, 1.0, 169), uniform(&[channels], 0.5, 2.0, 170)];
        let ([weight, bias], [mean, variance]) = (affine_inputs(), running.clone().map(dense));
        let shapes = features.clone();
        cases.push(Case::new(
            "batch_norm evaluated",
            [dense(x(shape)), weight, bias],
            move |t| {
                let [mean, variance] = [mean.tensor(t[0].device(), true)?, variance.tensor(t[0].device(), false)?];
                t[0].batch_norm(Some((&mean, &variance)), Some(&t[1]), Some(&t[2]), false, 0.1, EPS as f32)
            },
            move |x| {
                let [mean, variance] = running.clone().map(|r| Nd::new(&shapes, r.data));
                let d = oracle::binary(x[0], &mean, |x, m| x - m);
                let y = oracle::binary(&d, &variance, |d, v| d / (v + EPS).sqrt());
                affine(&y, x[1], x[2], &shapes)
            },
        ));
        cases.push(running_statistics(shape));
    }
    cases
}

/// Returns cases of statistics that are merged from several parts, by each variant of the kernels that do so: of rows, and of columns,
/// short and long images, of which neighbouring invocations read one channel or several.
fn merged() -> Vec<Case> {
    let mut cases = Vec::new();
    for variant in ["shared", "alone"] {
        for shape in [&[3, 5000][..], &[260, 100]] {
            let own = shape[1];
            let case = Case::new(
                format!("layer_norm/{variant} of {shape:?}"),
                [dense(x(shape))],
                move |t| t[0].layer_norm(&[own], None, None, EPS as f32),
                |x| standard(x[0], &[1], true),
            );
            cases.push(case.variant("rows", variant));
        }
        for shape in [&[300, 7][..], &[40, 5, 3, 3], &[32, 3, 4, 5], &[9, 300, 2, 4], &[2, 3, 40, 40], &[3, 2, 31]] {
            let case = Case::new(
                format!("batch_norm/{variant} of {shape:?}"),
                [dense(x(shape))],
                |t| t[0].batch_norm(None, None, None, true, 0.1, EPS as f32),
                |x| standard(x[0], &others(x[0].shape.len()), true),
            );
            cases.push(case.variant("rows", variant));
        }
    }
    cases
}

/// Returns numbers of two signs, whose normalised values are not near 0, where relu has a corner.
fn of_two_signs(shape: &[usize], seed: u64) -> Nd {
    let span: usize = shape[2..].iter().product();
    let mut x = uniform(shape, 2.0, 3.0, seed);
    let is_odd = |i: usize| (i / (shape[1] * span) + i % span) % 2 == 1;
    x.data.iter_mut().enumerate().filter(|(i, _)| is_odd(*i)).for_each(|(_, v)| *v = -*v);
    x.map(|v| f64::from(v as f32))
}

/// Returns cases of batch norm with relu, and with a residual and relu: in training and evaluation, of one element for each
/// channel, and of halves. Rows of 36 are read in vectors.
fn with_relu() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[2, 1][..], &[7, 3], &[257, 2], &[3, 4, 7], &[2, 3, 5, 7], &[2, 33, 6, 6], &[1, 5, 1, 1]] {
        let transposed_x = || transposed(of_two_signs(shape, 172), 0, 1);
        if shape.iter().product::<usize>() > shape[1] {
            cases.extend(relu_cases("in training", dense(of_two_signs(shape, 172)), true));
            cases.extend(relu_cases("in training, transposed", transposed_x(), true));
        }
        cases.extend(relu_cases("evaluated", dense(of_two_signs(shape, 172)), false));
    }
    for (dtype, tolerance) in [(DType::F16, 3e-3), (DType::BF16, 3e-2)] {
        let of_halves = relu_cases("of halves", dense(of_two_signs(&[4, 3, 2, 2], 172)).of(dtype), true);
        cases.extend(of_halves.into_iter().map(|case| case.result_dtype(dtype).within(tolerance, tolerance)));
    }
    cases
}

/// Returns the cases of both ops for one input.
fn relu_cases(what: &str, x: Input, training: bool) -> [Case; 2] {
    let (shape, dtype) = (x.value.shape.clone(), x.dtype);
    let channels = shape[1];
    let features: Vec<usize> = (1..shape.len()).map(|d| if d == 1 { channels } else { 1 }).collect();
    let inputs = [
        x,
        dense(signed(&[channels], 173).map(|v| v + 0.5 * v.signum())).of(dtype),
        narrowed(signed(&[channels], 174).map(|v| 0.2 * v), 0).of(dtype),
        dense(signed(&shape, 175).map(|v| v + 3.0 * v.signum())).of(dtype),
    ];
    let running = [uniform(&[channels], -0.1, 0.1, 176), uniform(&[channels], 0.5, 2.0, 177)];
    let statistics = running.clone().map(dense);
    let tensors = move |device: &Device| -> Result<[Tensor; 2]> {
        let [mean, variance] = &statistics;
        Ok([mean.tensor(device, true)?, variance.tensor(device, false)?])
    };
    let normalised = move |x: &[&Nd]| {
        let y = match training {
            true => standard(x[0], &others(x[0].shape.len()), true),
            false => {
                let [mean, variance] = running.clone().map(|r| Nd::new(&features, r.data));
                let d = oracle::binary(x[0], &mean, |x, m| x - m);
                oracle::binary(&d, &variance, |d, v| d / (v + EPS).sqrt())
            }
        };
        affine(&y, x[1], x[2], &features)
    };
    let (tensors_again, normalised_again) = (tensors.clone(), normalised.clone());
    let relu = Case::new(
        format!("batch_norm_relu {what}"),
        inputs[..3].to_vec(),
        move |t| {
            let [mean, variance] = tensors(t[0].device())?;
            let running = Some((&mean, &variance)).filter(|_| !training);
            t[0].batch_norm_relu(running, Some(&t[1]), Some(&t[2]), training, 0.1, EPS as f32)
        },
        move |x| normalised(x).map(|v| v.max(0.0)),
    );
    let add_relu = Case::new(
        format!("batch_norm_add_relu {what}"),
        inputs,
        move |t| {
            let [mean, variance] = tensors_again(t[0].device())?;
            let running = Some((&mean, &variance)).filter(|_| !training);
            t[0].batch_norm_add_relu(&t[3], running, Some(&t[1]), Some(&t[2]), training, 0.1, EPS as f32)
        },
        move |x| oracle::binary(&normalised_again(x), x[3], |y, r| (y + r).max(0.0)),
    );
    [relu, add_relu]
}

/// Returns a case of the running mean and variance after two steps of training.
fn running_statistics(shape: &[usize]) -> Case {
    let channels = shape[1];
    let op = move |t: &[Tensor]| {
        let (mean, variance) = (Tensor::zeros([channels], t[0].device())?, Tensor::ones([channels], t[0].device())?);
        for _ in 0..2 {
            t[0].batch_norm(Some((&mean, &variance)), None, None, true, 0.25, EPS as f32)?;
        }
        crate::ops::cat(&[&mean, &variance], 0)
    };
    let oracle = |x: &[&Nd]| {
        let dims = others(x[0].shape.len());
        let mean = oracle::mean(x[0], &dims, true);
        let squares = oracle::binary(x[0], &mean, |x, m| (x - m) * (x - m));
        let count = (x[0].data.len() / mean.data.len()) as f64;
        let variance = oracle::sum(&squares, &dims, true).map(|v| v / (count - 1.0));
        let kept = 0.75 * 0.75;
        let means = mean.data.iter().map(|v| v * (1.0 - kept));
        let all: Vec<f64> = means.chain(variance.data.iter().map(|v| kept + v * (1.0 - kept))).collect();
        Nd::new(&[all.len()], all)
    };
    Case::new("batch_norm running statistics", [dense(x(shape))], op, oracle).no_gradient()
}

/// Returns cases far from 0, where squares cancel; long ones; and more rows than invocations in a row of workgroups.
fn large() -> Vec<Case> {
    let far = |shape: &[usize]| signed(shape, 171).map(|v| f64::from((v + 1000.0) as f32));
    let plain = |t: &[Tensor]| t[0].layer_norm(&t[0].shape()[1..], None, None, EPS as f32);
    let norm = |x: &[&Nd]| standard(x[0], &[1], true);
    let batched = |t: &[Tensor]| t[0].batch_norm(None, None, None, true, 0.1, EPS as f32);
    let over_others = |x: &[&Nd]| standard(x[0], &others(x[0].shape.len()), true);
    vec![
        Case::new("layer_norm far from 0", [dense(far(&[5, 300]))], plain, norm).within(1e-3, 1e-3).no_gradient(),
        Case::new("batch_norm far from 0", [dense(far(&[50, 3, 4, 4]))], batched, over_others)
            .within(1e-3, 1e-3)
            .no_gradient(),
        Case::new("layer_norm long", [dense(x(&[2, 70_000]))], plain, norm).within(1e-4, 1e-4).no_gradient(),
        Case::new("layer_norm of many rows", [dense(x(&[70_000, 3]))], plain, norm).within(1e-4, 1e-4).no_gradient(),
        Case::new("batch_norm of many rows", [dense(x(&[70_000, 3]))], batched, over_others)
            .within(1e-4, 1e-4)
            .no_gradient(),
    ]
}
