//! Functions whose ONNX operators leave extremes open, or round differently. They are written as several operators
//! that do not.

use super::elementwise::{chosen, with_number};
use super::graph::{Graph, Id, Source};
use crate::onnx::ElementType;

const FLOAT: ElementType = ElementType::Float;

/// Floats as integers of a type: cut off, and limited to its range; NaN is 0. ONNX's conversion of other floats is not defined.
pub(super) fn integer(g: &mut Graph, x: Id, kind: ElementType) -> Id {
    // The largest integers of 32 bits are no floats: these are the largest floats below the first ones that are too large.
    let (low, high) = match kind {
        ElementType::Uint8 => (0.0, f64::from(u8::MAX)),
        ElementType::Uint32 => (0.0, 2f64.powi(32) - 256.0),
        _ => (f64::from(i32::MIN), 2f64.powi(31) - 128.0),
    };
    let x = g.cast(x, FLOAT);
    let (nothing, zero) = (g.truth("IsNaN", &[x]), g.number(0.0, FLOAT));
    let x = chosen(g, nothing, zero, x);
    let [low, high] = [low, high].map(|bound| g.number(bound, FLOAT));
    let limited = g.simple("Clip", &[x, low, high]);
    let whole = g.cast(limited, kind);
    if kind == ElementType::Uint8 {
        return whole;
    }
    let beyond = g.truth("Greater", &[x, high]);
    let number = |g: &mut Graph, number: i32| g.number(number.into(), ElementType::Int32);
    if kind == ElementType::Uint32 {
        // Few runtimes choose between unsigned integers; all bits of −1 are 1.
        let (ones, zeros) = (number(g, -1), number(g, 0));
        let mask = chosen(g, beyond, ones, zeros);
        let mask = g.cast(mask, kind);
        return g.simple("BitwiseOr", &[whole, mask]);
    }
    let largest = number(g, i32::MAX);
    chosen(g, beyond, largest, whole)
}

/// The divisor of integers, with 1 for 0: x / 0 is x here, and its remainder 0.
pub(super) fn divisor(g: &mut Graph, x: Id) -> Id {
    if let Source::Number(number) = g.values[x].source
        && number != 0.0
    {
        return x;
    }
    let kind = g.kind(x);
    let [zero, one] = [0.0, 1.0].map(|number| g.number(number, kind));
    let none = g.truth("Equal", &[x, zero]);
    chosen(g, none, one, x)
}

/// The remainder of a division that is cut off.
pub(super) fn truncated_remainder(g: &mut Graph, a: Id, b: Id) -> Id {
    g.node("Mod", &[a.into(), b.into()], &[("fmod", true.into())])
}

/// The remainder of a cut-off division of floats, and whether it has not the sign of the divisor.
fn remainder_and_sign(g: &mut Graph, a: Id, b: Id) -> [Id; 2] {
    let rest = truncated_remainder(g, a, b);
    let zero = g.number(0.0, FLOAT);
    let signs = [rest, b].map(|x| g.truth("Less", &[x, zero]));
    let [unlike, none] = [g.truth("Xor", &signs), g.truth("Equal", &[rest, zero])];
    let some = g.truth("Not", &[none]);
    [rest, g.truth("And", &[unlike, some])]
}

/// The remainder of floats with the sign of the divisor.
pub(super) fn remainder(g: &mut Graph, a: Id, b: Id) -> Id {
    let [rest, unlike] = remainder_and_sign(g, a, b);
    let more = g.simple("Add", &[rest, b]);
    chosen(g, unlike, more, rest)
}

/// The quotient of floats, rounded down: the quotient of a without the remainder by b, which is whole except for
/// rounding.
pub(super) fn floor_quotient(g: &mut Graph, a: Id, b: Id) -> Id {
    let [rest, unlike] = remainder_and_sign(g, a, b);
    let taken = g.simple("Sub", &[a, rest]);
    let quotient = g.simple("Div", &[taken, b]);
    let quotient = g.simple("Round", &[quotient]);
    let below = g.cast(unlike, FLOAT);
    let quotient = g.simple("Sub", &[quotient, below]);
    let zero = g.number(0.0, FLOAT);
    let none = g.truth("Equal", &[b, zero]);
    let plain = g.simple("Div", &[a, b]);
    chosen(g, none, plain, quotient)
}

/// A function of numbers near 0 by one formula, of others by another.
fn near_zero(g: &mut Graph, x: Id, near: Id, far: Id) -> Id {
    let size = g.simple("Abs", &[x]);
    let bound = g.number(0.5, FLOAT);
    let small = g.truth("Less", &[size, bound]);
    chosen(g, small, near, far)
}

/// eˣ − 1, near 0 as 2 t / (1 − t) for t = tanh(x / 2).
pub(super) fn expm1(g: &mut Graph, x: Id) -> Id {
    let half = with_number(g, "Mul", x, 0.5);
    let tanh = g.simple("Tanh", &[half]);
    let one = g.number(1.0, FLOAT);
    let (twice, rest) = (with_number(g, "Mul", tanh, 2.0), g.simple("Sub", &[one, tanh]));
    let near = g.simple("Div", &[twice, rest]);
    let power = g.simple("Exp", &[x]);
    let far = with_number(g, "Sub", power, 1.0);
    near_zero(g, x, near, far)
}

/// log(1 + x), near 0 as 2 atanh(x / (2 + x)).
pub(super) fn log1p(g: &mut Graph, x: Id) -> Id {
    let more = with_number(g, "Add", x, 2.0);
    let share = g.simple("Div", &[x, more]);
    let half = g.simple("Atanh", &[share]);
    let near = with_number(g, "Mul", half, 2.0);
    let more = with_number(g, "Add", x, 1.0);
    let far = g.simple("Log", &[more]);
    near_zero(g, x, near, far)
}
