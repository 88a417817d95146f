//! Functions of one element, functions of two elements, and choices between elements.

pub(in crate::ops) mod binary;
pub(in crate::ops) mod cast;
mod close;
#[cfg(test)]
mod compile_tests;
pub(in crate::ops) mod masked_fill;
pub(crate) mod onnx;
pub(in crate::ops) mod promote;
pub(in crate::ops) mod unary;
pub(in crate::ops) mod where_cond;

use crate::device::gpu::{self, Operand, Pointwise, ShaderText};
use crate::ops::norm::pointwise::FORMULAS as NORMS;
use binary::{BinaryFn, FLOAT_PAIRS};
use unary::{INVERSE, MATH, SPECIAL, UnaryFn};

/// Returns a call of a formula, as a sample.
fn call(formula: &'static str, list: &[Operand]) -> Pointwise {
    let functions = &[MATH, SPECIAL, INVERSE, FLOAT_PAIRS];
    Pointwise { formula, functions, operands: gpu::operands(list), args: [0; 2], count: 4 }
}

const ELEMENT: Operand = Operand::Input(0, 0);

/// Returns calls of batch normalisation, with the channels' numbers in one input and the residual in another, as samples.
fn norms_of_samples(channels: usize, residual: usize) -> [Pointwise; 3] {
    let channel = |offset| Operand::Channel { index: channels, offset, channels: 4, span: 4 };
    let list = [ELEMENT, channel(0), channel(4), channel(8), channel(12), Operand::Input(residual, 4)];
    let [plain, relu, add_relu] = NORMS;
    [call(plain, &list[..5]), call(relu, &list[..5]), call(add_relu, &list)]
}

/// Returns calls of functions of an element and of something else, as samples.
fn pairs_of_samples(pairs: &[(BinaryFn, Operand)]) -> impl Iterator<Item = Pointwise> {
    pairs.iter().filter_map(|(function, operand)| Some(call(function.row().float_header()?, &[ELEMENT, *operand])))
}

/// Returns the names of the functions of the tables.
pub(super) fn elementwise_names() -> Vec<&'static str> {
    let singles = UnaryFn::ALL.iter().map(|function| function.name());
    singles.chain(BinaryFn::ALL.iter().map(|function| function.name())).collect()
}

/// Returns the text of a fused kernel of some functions, for tests of the texts that are made at run time.
pub(in crate::ops) fn chain_of_samples() -> String {
    let samples = [UnaryFn::Clamp, UnaryFn::Relu, UnaryFn::Gelu, UnaryFn::Softplus, UnaryFn::Asinh].map(UnaryFn::row);
    let forward = samples.iter().filter_map(|row| Some(call(row.header()?, &[ELEMENT])));
    let gradients = samples.iter().filter_map(|row| Some(call(row.gradient_header()?, &[ELEMENT; 3])));
    let row = Operand::Row(1, 0, 4);
    let pairs =
        [(BinaryFn::Add, row), (BinaryFn::Maximum, row), (BinaryFn::Pow, row), (BinaryFn::Mul, Operand::Number)];
    let pairs = pairs_of_samples(&pairs);
    gpu::chain_text(&forward.chain(gradients).chain(pairs).chain(norms_of_samples(2, 1)).collect::<Vec<_>>())
}

/// Returns the text of a product or a convolution with formulas that follow it, for the same tests. With the buffers of a
/// product, it has no more than every adapter can bind.
pub(in crate::ops) fn epilogue_of_samples(shader: &ShaderText, header: &str) -> String {
    let pairs = [(BinaryFn::Add, Operand::Row(1, 0, 4)), (BinaryFn::Mul, Operand::Number)];
    let [_, relu, add_relu] = norms_of_samples(1, 2);
    let calls: Vec<_> = pairs_of_samples(&pairs).chain([relu, add_relu]).collect();
    // The comment tells its specialisations from those without formulas.
    gpu::epilogue_text(shader, &format!("// with an epilogue\n{header}"), &calls)
}
