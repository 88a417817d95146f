//! Activations that exporters write as several operators.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::super::element_type::ElementType;
use super::super::node::Source;
use super::super::ops;
use super::super::proto::AttributeProto;
use super::{Fused, Fuser, MOST_DIMENSIONS};

/// The attribute with the most dimensions of the numbers of a formula: its result has at least as many.
pub(in crate::onnx) const LEAST_RANK: &str = "anygpu.least_rank";

/// The deepest nesting of operators in a polynomial.
const DEEPEST: usize = 6;

/// The factors of 1, x, x² and x³, and those of t, t x, t x² and t x³.
type Polynomial = [[f64; 4]; 2];

/// What was met in a formula.
#[derive(Default)]
struct Met {
    nodes: Vec<usize>,
    /// The most dimensions of a number.
    rank: usize,
    /// The rounding of the numbers, relative to their size.
    rounding: f64,
}

impl Fuser<'_> {
    /// Makes node `at` an activation of `x`, and removes the others of the pattern.
    fn activate(&mut self, at: usize, op: &'static str, x: usize, attributes: Vec<AttributeProto>, parts: &[usize]) {
        let Some(operator) = ops::find("", op) else { return };
        let inputs = vec![Some(Source::Slot(x))];
        self.replace(at, Fused { op_type: op, operator, opset: 22, inputs, attributes }, parts);
    }

    /// x · clip(x + 3, 0, 6) / 6, the quotient before or after the product, from the addition on.
    pub(super) fn hardswish(&mut self, at: usize) {
        let find = || {
            let add = self.node(at).filter(|node| node.op_type == "Add")?;
            let (x, three) = self.computed_and_weight(add)?;
            if self.number(three)? != 3.0 {
                return None;
            }
            let (clipped, clip) = self.only_user(at)?;
            let node = self
                .node(clip)
                .filter(|node| node.op_type == "Clip" && node.inputs.first() == Some(&Some(Source::Slot(clipped))))?;
            let bound = |name: &str, i: usize| match node.attribute(name) {
                Some(attribute) => Some(f64::from(attribute.f)),
                None => self.number(*node.inputs.get(i)?),
            };
            if (bound("min", 1)?, bound("max", 2)?) != (0.0, 6.0) {
                return None;
            }
            let (after, next) = self.only_user(clip)?;
            let product = |at: usize, slot: usize| {
                let node = self.node(at).filter(|node| node.op_type == "Mul")?;
                let both = [Some(Source::Slot(x)), Some(Source::Slot(slot))];
                (node.inputs == both || node.inputs == [both[1], both[0]]).then_some(())
            };
            let sixth = |at: usize| {
                let node = self.node(at)?;
                let (_, number) = self.computed_and_weight(node)?;
                match node.op_type.as_str() {
                    "Div" => {
                        (matches!(node.inputs[1], Some(Source::Weight(_))) && self.number(number)? == 6.0).then_some(())
                    }
                    "Mul" => ((self.number(number)? - 1.0 / 6.0).abs() < 1e-7).then_some(()),
                    _ => None,
                }
            };
            if product(next, after).is_some() {
                let (_, last) = self.only_user(next)?;
                sixth(last)?;
                return Some((last, x, [at, clip, next]));
            }
            sixth(next)?;
            let (quotient, last) = self.only_user(next)?;
            product(last, quotient)?;
            Some((last, x, [at, clip, next]))
        };
        if let Some((last, x, parts)) = find() {
            self.activate(last, "HardSwish", x, Vec::new(), &parts);
        }
    }

    /// x · sigmoid(x), from the sigmoid on.
    pub(super) fn swish(&mut self, at: usize) {
        let find = || {
            let node = self.node(at).filter(|node| node.op_type == "Sigmoid")?;
            let Some(Source::Slot(x)) = *node.inputs.first()? else { return None };
            let (gate, product) = self.only_user(at)?;
            let node = self.node(product).filter(|node| node.op_type == "Mul")?;
            let both = [Some(Source::Slot(x)), Some(Source::Slot(gate))];
            (node.inputs == both || node.inputs == [both[1], both[0]]).then_some((product, x))
        };
        if let Some((product, x)) = find() {
            self.activate(product, "Swish", x, Vec::new(), &[at]);
        }
    }

    /// x / 2 · (1 + t), from t on, which is erf(x / √2) or tanh(√(2 / π) (x + 0.044715 x³)), in any form of these polynomials.
    pub(super) fn gelu(&mut self, at: usize) {
        let find = || {
            let node = self.node(at).filter(|node| matches!(node.op_type.as_str(), "Erf" | "Tanh"))?;
            let argument = (*node.inputs.first()?)?;
            let root = FRAC_2_SQRT_PI * FRAC_1_SQRT_2; // √(2 / π)
            let (inner, approximate) = match node.op_type.as_str() {
                "Erf" => ([0.0, FRAC_1_SQRT_2, 0.0, 0.0], "none"),
                _ => ([0.0, root, 0.0, 0.044715 * root], "tanh"),
            };
            let half = [0.0, 0.5, 0.0, 0.0];
            let candidates = self.slots_below(argument);
            let (t, _) = self.only_user(at)?;
            let mut last = at;
            for _ in 0..4 {
                last = self.only_user(last)?.1;
                let [Some(result)] = self.node(last)?.outputs[..] else { return None };
                for &x in &candidates {
                    let mut met = Met { nodes: vec![at], ..Met::default() };
                    let mut is = |source: Source, wanted: Polynomial| {
                        let found = self.polynomial(source, [x, t], DEEPEST, &mut met);
                        found.is_some_and(|found| alike(found, wanted, met.rounding))
                    };
                    if is(argument, [inner, [0.0; 4]]) && is(Source::Slot(result), [half, half]) {
                        met.nodes.retain(|&node| node != last);
                        return (self.closed(&met.nodes, last, &[Some(Source::Slot(x))])
                            && met.rank <= MOST_DIMENSIONS)
                            .then_some((x, last, approximate, met));
                    }
                }
            }
            None
        };
        if let Some((x, last, approximate, met)) = find() {
            let approximate =
                AttributeProto { name: "approximate".into(), s: approximate.into(), ..Default::default() };
            let rank = AttributeProto { name: LEAST_RANK.into(), i: met.rank as i64, ..Default::default() };
            self.activate(last, "Gelu", x, vec![approximate, rank], &met.nodes);
        }
    }

    /// The slots that a value is computed from by at most four of the operators of polynomials.
    fn slots_below(&self, source: Source) -> Vec<usize> {
        let mut all = Vec::new();
        let mut level = vec![source];
        for _ in 0..4 {
            let slots =
                level.iter().filter_map(|source| if let Source::Slot(slot) = source { Some(*slot) } else { None });
            let slots: Vec<usize> = slots.filter(|slot| !all.contains(slot)).collect();
            let makers = slots.iter().filter_map(|slot| self.node(*self.makers.get(slot)?));
            let makers = makers.filter(|node| matches!(node.op_type.as_str(), "Add" | "Sub" | "Mul" | "Div" | "Pow"));
            level = makers.flat_map(|node| node.inputs.iter().flatten().copied()).collect();
            all.extend(slots);
        }
        all
    }

    /// A value as a polynomial of the slots x and t.
    fn polynomial(&self, source: Source, [x, t]: [usize; 2], depth: usize, met: &mut Met) -> Option<Polynomial> {
        let mut whole = [[0.0; 4]; 2];
        let slot = match source {
            Source::Slot(slot) if slot == x => {
                whole[0][1] = 1.0;
                return Some(whole);
            }
            Source::Slot(slot) if slot == t => {
                whole[1][0] = 1.0;
                return Some(whole);
            }
            Source::Slot(slot) => slot,
            Source::Weight(_) => {
                let number = self.constant(source)?;
                met.rank = met.rank.max(number.rank);
                met.rounding = met.rounding.max(rounding(number.kind));
                whole[0][0] = number.value;
                return Some(whole);
            }
        };
        let at = *self.makers.get(&slot)?;
        let node = self.node(at).filter(|node| node.opset >= 7 && depth > 0)?;
        let [Some(first), Some(second)] = node.inputs[..] else { return None };
        let a = self.polynomial(first, [x, t], depth - 1, met)?;
        let b = self.polynomial(second, [x, t], depth - 1, met)?;
        let number = (b[0][1..] == [0.0; 3] && b[1] == [0.0; 4]).then_some(b[0][0]);
        let scaled = |a: Polynomial, factor: f64| a.map(|row| row.map(|value| value * factor));
        let plus = |a: Polynomial, b: Polynomial| [0, 1].map(|j| [0, 1, 2, 3].map(|i| a[j][i] + b[j][i]));
        met.nodes.push(at);
        match (node.op_type.as_str(), number) {
            ("Add", _) => Some(plus(a, b)),
            ("Sub", _) => Some(plus(a, scaled(b, -1.0))),
            ("Mul", _) => product(a, b),
            ("Div", Some(number)) => Some(scaled(a, 1.0 / number)),
            ("Pow", Some(2.0)) => product(a, a),
            ("Pow", Some(3.0)) => product(a, product(a, a)?),
            _ => None,
        }
    }
}

/// The product, if it has no higher powers than a [`Polynomial`].
fn product(a: Polynomial, b: Polynomial) -> Option<Polynomial> {
    let mut out = [[0.0; 4]; 2];
    for (j, i, k, l) in (0..64).map(|n| (n / 32, n / 8 % 4, n / 4 % 2, n % 4)) {
        let term = a[j][i] * b[k][l];
        if term != 0.0 {
            *out.get_mut(j + k)?.get_mut(i + l)? += term;
        }
    }
    Some(out)
}

fn alike(a: Polynomial, b: Polynomial, rounding: f64) -> bool {
    a.as_flattened().iter().zip(b.as_flattened()).all(|(a, b)| (a - b).abs() <= rounding * b.abs())
}

/// The largest relative difference between a product of a few numbers of a type and the product of the exact
/// numbers.
fn rounding(kind: ElementType) -> f64 {
    match kind {
        ElementType::Float | ElementType::Double => 1e-6,
        ElementType::Float16 => 1.0 / 512.0,
        ElementType::Bfloat16 => 1.0 / 128.0,
        _ => 0.0,
    }
}
