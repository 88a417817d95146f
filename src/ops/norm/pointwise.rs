//! Normalisation by given statistics as a formula of each element, so that it becomes a part of the convolution before it.

use super::{NormShape, Then};
use crate::device::gpu::{Operand, Pointwise, operands};
use crate::ops::{Dense, GpuIn};

/// The formulas, by what follows: see `normalise` in `shaders/norm/norm_fours.wgsl`. Of an element, the mean, the variance, the
/// weight, the bias and the residual of its channel; `p.a` is eps.
pub(in crate::ops) const FORMULAS: [&str; 3] = [
    "fn norm(x: f32, mean: f32, variance: f32, w: f32, b: f32) -> f32 {
    return (x - mean) * (1.0 / sqrt(variance + p.a)) * w + b;
}
",
    "fn norm(x: f32, mean: f32, variance: f32, w: f32, b: f32) -> f32 {
    let v = (x - mean) * (1.0 / sqrt(variance + p.a)) * w + b;
    return select(v, 0.0, bitcast<u32>(v) - 0x80000000u <= 0x7f800000u);
}
",
    "fn norm(x: f32, mean: f32, variance: f32, w: f32, b: f32, residual: f32) -> f32 {
    let v = (x - mean) * (1.0 / sqrt(variance + p.a)) * w + b + residual;
    return select(v, 0.0, bitcast<u32>(v) - 0x80000000u <= 0x7f800000u);
}
",
];

/// Returns the formula if the statistics are given, and there is one weight and one bias for each channel. The inputs
/// of the kernel, in vectors of four, are x, the statistics, the weight, the bias and the residual.
pub(super) fn formula(
    norm: &NormShape,
    [x, stats]: [&GpuIn<Dense>; 2],
    [weight, bias, residual]: [Option<&GpuIn<Dense>>; 3],
) -> Option<Pointwise> {
    let [_, channels, span] = norm.sizes;
    let (weight, bias) = (weight?, bias?);
    if !(norm.fixed && norm.centre && norm.by_channel()) {
        return None;
    }
    let channel = |index, offset| Operand::Channel { index, offset, channels, span };
    let mut list = vec![
        Operand::Input(0, x.offset()),
        channel(1, stats.offset()),
        channel(1, stats.offset() + channels),
        channel(2, weight.offset()),
        channel(3, bias.offset()),
    ];
    list.extend(residual.map(|residual| Operand::Input(4, residual.offset())));
    let formula = FORMULAS[match norm.then {
        Then::Nothing => 0,
        Then::Relu => 1,
        Then::AddRelu => 2,
    }];
    let count = norm.sizes.iter().product();
    Some(Pointwise { formula, functions: &[], operands: operands(&list), args: [norm.eps.to_bits(), 0], count })
}
