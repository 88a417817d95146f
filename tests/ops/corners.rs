//! Values and gradients where the pieces of functions meet, and at the ends of domains, by PyTorch 2.15 on the CPU:
//!
//! ```python
//! x = torch.full([64], point, requires_grad=True); y = f(x); y.sum().backward(); print(y[0], x.grad[0])
//! ```
//!
//! `infinities.txt` has more points of functions without arguments.

use std::f32::consts::{FRAC_PI_2, PI};

use anygpu::nn::{self, Reduction};
use anygpu::{Device, Result, Tensor};

use crate::common::devices;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

type Function = fn(&Tensor) -> Result<Tensor>;

fn same(got: f32, expected: f32) -> bool {
    (got.is_nan() && expected.is_nan()) || got == expected || (got - expected).abs() <= 1e-5 * expected.abs()
}

fn check(all: &[(&str, Function, &[[f32; 3]])], device: &Device, wrong: &mut Vec<String>) -> Result<()> {
    for (name, f, rows) in all {
        for &[point, value, slope] in *rows {
            let x = Tensor::full([64], point, device)?.requires_grad();
            let y = f(&x)?;
            y.sum_all()?.backward()?;
            let got = x.grad().expect("a gradient").to_vec::<f32>()?[0];
            let first = y.reshape([y.elem_count()])?.to_vec::<f32>()?[0];
            if !same(first, value) || !same(got, slope) {
                wrong.push(format!("{name} at {point} on {device}: {first}, slope {got}; not {value}, {slope}"));
            }
        }
    }
    Ok(())
}

fn to_zeros(x: &Tensor, loss: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    loss(x, &x.detach().zeros_like()?)
}

#[test]
fn corners_are_those_of_pytorch() -> Result<()> {
    let pieces: &[(&str, Function, &[[f32; 3]])] = &[
        ("clamp(-1, 1)", |x| x.clamp(Some(-1.0), Some(1.0)), &[[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [0.5, 0.5, 1.0]]),
        (
            "clamp(min 0)",
            |x| x.clamp(Some(0.0), None),
            &[[0.0, 0.0, 0.0], [-0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [INF, INF, 1.0], [-INF, 0.0, 0.0], [NAN, NAN, 0.0]],
        ),
        (
            "clamp(max 0)",
            |x| x.clamp(None, Some(0.0)),
            &[[0.0, 0.0, 0.0], [-1.0, -1.0, 1.0], [-INF, -INF, 1.0], [INF, 0.0, 0.0], [NAN, NAN, 0.0]],
        ),
        ("clamp(1, 1)", |x| x.clamp(Some(1.0), Some(1.0)), &[[0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [2.0, 1.0, 0.0]]),
        ("clamp(2, 1)", |x| x.clamp(Some(2.0), Some(1.0)), &[[1.0, 1.0, 0.0], [1.5, 1.0, 0.0], [2.0, 1.0, 0.0]]),
        ("maximum of 0", |x| x.maximum(0.0), &[[0.0, 0.0, 0.5], [1.0, 1.0, 1.0]]),
        ("minimum of 0", |x| x.minimum(0.0), &[[0.0, 0.0, 0.5], [-1.0, -1.0, 1.0]]),
        ("relu", Tensor::relu, &[[0.0, 0.0, 0.0]]),
        ("relu6", Tensor::relu6, &[[0.0, 0.0, 0.0], [6.0, 6.0, 0.0]]),
        ("abs", Tensor::abs, &[[0.0, 0.0, 0.0]]),
        ("sign", Tensor::sign, &[[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
        ("round", Tensor::round, &[[0.5, 0.0, 0.0], [1.5, 2.0, 0.0]]),
        ("hardtanh", |x| x.hardtanh(-1.0, 1.0), &[[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]),
        ("hardsigmoid", Tensor::hardsigmoid, &[[-3.0, 0.0, 0.0], [3.0, 1.0, 0.0]]),
        ("hardswish", Tensor::hardswish, &[[-3.0, 0.0, 0.0], [3.0, 3.0, 1.0]]),
        ("leaky_relu", |x| x.leaky_relu(0.1), &[[0.0, 0.0, 0.1]]),
        ("leaky_relu(-0.5)", |x| x.leaky_relu(-0.5), &[[0.0, 0.0, -0.5], [-1.0, 0.5, -0.5], [1.0, 1.0, 1.0]]),
        ("elu(0.7)", |x| x.elu(0.7), &[[0.0, 0.0, 0.7]]),
        (
            "softplus(2, 4)",
            |x| x.softplus(2.0, 4.0),
            &[[2.0, 2.009_075, 0.982_013_76], [1.9, 1.911_062_1, 0.978_118_7], [2.1, 2.1, 1.0]],
        ),
        (
            "smooth_l1_loss",
            |x| to_zeros(x, |x, y| nn::smooth_l1_loss(x, y, 1.0, Reduction::None)),
            &[[0.0, 0.0, 0.0], [1.0, 0.5, 1.0], [-1.0, 0.5, -1.0]],
        ),
        (
            "smooth_l1_loss(0)",
            |x| to_zeros(x, |x, y| nn::smooth_l1_loss(x, y, 0.0, Reduction::None)),
            &[[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]],
        ),
        (
            "huber_loss",
            |x| to_zeros(x, |x, y| nn::huber_loss(x, y, 1.0, Reduction::None)),
            &[[0.0, 0.0, 0.0], [1.0, 0.5, 1.0], [-1.0, 0.5, -1.0]],
        ),
        ("l1_loss", |x| to_zeros(x, |x, y| nn::l1_loss(x, y, Reduction::None)), &[[0.0, 0.0, 0.0], [-1.0, 1.0, -1.0]]),
    ];
    let ends: &[(&str, Function, &[[f32; 3]])] = &[
        ("sqrt", Tensor::sqrt, &[[0.0, 0.0, INF], [-1.0, NAN, NAN]]),
        ("rsqrt", Tensor::rsqrt, &[[0.0, INF, -INF]]),
        ("pow(0)", |x| x.pow(0), &[[0.0, 1.0, 0.0], [-1.0, 1.0, 0.0], [INF, 1.0, 0.0]]),
        ("pow(1)", |x| x.pow(1), &[[0.0, 0.0, 1.0], [-1.0, -1.0, 1.0], [INF, INF, 1.0]]),
        ("pow(2)", |x| x.pow(2), &[[0.0, 0.0, 0.0], [-1.0, 1.0, -2.0], [INF, INF, INF]]),
        ("pow(3)", |x| x.pow(3), &[[0.0, 0.0, 0.0], [-1.0, -1.0, 3.0]]),
        ("pow(0.5)", |x| x.pow(0.5), &[[0.0, 0.0, INF], [-1.0, NAN, NAN], [INF, INF, 0.0]]),
        ("pow(1.5)", |x| x.pow(1.5), &[[0.0, 0.0, 0.0], [-1.0, NAN, NAN], [INF, INF, INF]]),
        ("pow(-1)", |x| x.pow(-1), &[[0.0, INF, -INF], [-1.0, -1.0, -1.0], [INF, 0.0, 0.0]]),
        ("pow(-0.5)", |x| x.pow(-0.5), &[[0.0, INF, -INF], [INF, 0.0, 0.0]]),
        ("asin", Tensor::asin, &[[1.0, FRAC_PI_2, INF], [-1.0, -FRAC_PI_2, INF]]),
        ("acos", Tensor::acos, &[[1.0, 0.0, -INF], [-1.0, PI, -INF]]),
        ("acosh", Tensor::acosh, &[[1.0, 0.0, INF]]),
        ("atanh", Tensor::atanh, &[[1.0, INF, INF], [-1.0, -INF, INF]]),
        ("log1p", Tensor::log1p, &[[-1.0, -INF, INF]]),
        ("norm 1", |x| x.norm_all(1.0), &[[0.0, 0.0, 0.0]]),
        ("norm 2", |x| x.norm_all(2.0), &[[0.0, 0.0, 0.0]]),
        ("norm 3", |x| x.norm_all(3.0), &[[0.0, 0.0, 0.0]]),
        ("norm 0.5", |x| x.norm_all(0.5), &[[0.0, 0.0, 0.0]]),
        ("norm ∞", |x| x.norm_all(INF), &[[0.0, 0.0, 0.0], [1.0, 1.0, 0.015_625]]),
        ("norm −∞", |x| x.norm_all(-INF), &[[0.0, 0.0, 0.0], [1.0, 1.0, 0.015_625]]),
        ("std", |x| x.std([0], 1.0, false), &[[1.0, 0.0, 0.0]]),
        ("var", |x| x.var([0], 1.0, false), &[[1.0, 0.0, 0.0]]),
        ("max", |x| x.max_all(), &[[1.0, 1.0, 0.015_625]]),
        ("prod", |x| x.narrow(0, 0, 2)?.prod_all(), &[[0.0, 0.0, 0.0], [2.0, 4.0, 2.0]]),
        ("cumprod", |x| x.narrow(0, 0, 3)?.cumprod(0), &[[0.0, 0.0, 1.0]]),
        ("logsumexp", |x| x.logsumexp([0], false), &[[0.0, 4.158_883, 0.015_625]]),
    ];
    let mut wrong = Vec::new();
    for device in devices() {
        check(pieces, &device, &mut wrong)?;
        check(ends, &device, &mut wrong)?;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
