//! Functions of one element, functions of two elements, and choices between elements.

pub(in crate::ops) mod binary;
pub(in crate::ops) mod cast;
mod close;
pub(in crate::ops) mod masked_fill;
pub(in crate::ops) mod promote;
pub(in crate::ops) mod unary;
pub(in crate::ops) mod where_cond;

use crate::device::gpu::{self, Operand, Pointwise};
use binary::{FLOAT_PAIRS, Pair};
use unary::{Function, MATH, SPECIAL};

/// Returns the text of a fused kernel of some functions, for tests of the texts that are made at run time.
pub(in crate::ops) fn chain_of_samples() -> String {
    let samples: [&Function; 4] = [&unary::CLAMP, &unary::RELU, &unary::GELU, &unary::SOFTPLUS];
    let call = |formula, operands| Pointwise {
        formula,
        functions: &[MATH, SPECIAL, FLOAT_PAIRS],
        operands,
        args: [0; 2],
        count: 4,
    };
    let element = Some(Operand::Input(0, 0));
    let forward = samples.iter().map(|row| call(row.header(), [element, None, None]));
    let gradients = samples.iter().filter_map(|row| Some(call(row.gradient_header()?, [element, element, element])));
    let pairs: [&Pair; 3] = [&binary::ADD, &binary::MAXIMUM, &binary::POW];
    let pairs =
        pairs.iter().filter_map(|pair| Some(call(pair.float_header()?, [element, Some(Operand::Row(1, 0, 4)), None])));
    let number = binary::MUL.float_header().map(|formula| call(formula, [element, Some(Operand::Number), None]));
    gpu::chain_text(&forward.chain(gradients).chain(pairs).chain(number).collect::<Vec<_>>())
}
