//! Activations that follow a convolution, and their scales and shifts by one number, become an attribute and inputs of the
//! convolution.

use super::super::element_type::ElementType;
use super::super::node::Source;
use super::super::proto::AttributeProto;
use super::Fuser;

/// The attribute with the operator of the activation, and the inputs that are numbers.
pub(in crate::onnx) const ACTIVATION: &str = "anygpu.activation";
pub(in crate::onnx) const SCALE: usize = 3;
pub(in crate::onnx) const SHIFT: usize = 4;

impl Fuser<'_> {
    /// Makes the activation after a convolution a part of it.
    pub(super) fn activation_after(&mut self, at: usize) {
        let Some(node) = self.node(at).filter(|node| node.op_type == "Conv" && node.attribute(ACTIVATION).is_none())
        else {
            return;
        };
        let rank = node.inputs.get(1).and_then(|source| self.floats(*source)).map_or(0, |(shape, _)| shape.len());
        let Some((_, next)) = self.only_user(at).filter(|_| rank == 3 || rank == 4) else { return };
        let Some(name) = self.node(next).filter(|node| node.inputs.len() == 1 && node.attributes.is_empty()) else {
            return;
        };
        let name = name.op_type.clone();
        if !matches!(name.as_str(), "Relu" | "Sigmoid" | "Swish" | "HardSwish") {
            return;
        }
        self.absorb(at, next);
        if let Some(node) = self.nodes[at].as_mut() {
            node.attributes.push(AttributeProto { name: ACTIVATION.into(), s: name.into(), ..Default::default() });
        }
        for (op, input) in [("Mul", SCALE), ("Add", SHIFT)] {
            let number = || {
                let (slot, next) = self.only_user(at)?;
                let node = self.node(next).filter(|node| node.op_type == op && node.opset >= 7)?;
                let (x, weight) = self.computed_and_weight(node)?;
                let Some(Source::Weight(place)) = weight else { return None };
                let is_float = self.weights[place].value().is_ok_and(|value| value.kind() == ElementType::Float);
                let fits = x == slot && is_float && self.is_scalar(weight);
                fits.then_some((next, weight))
            };
            let Some((next, weight)) = number() else { continue };
            self.absorb(at, next);
            if let Some(node) = self.nodes[at].as_mut() {
                node.inputs.resize(input, None);
                node.inputs.push(weight);
            }
        }
    }

    /// Removes the only user of a node, whose outputs become the node's outputs.
    fn absorb(&mut self, at: usize, next: usize) {
        let Some(removed) = self.nodes[next].take() else { return };
        self.forget(next, &removed);
        removed.outputs.iter().flatten().for_each(|&slot| _ = self.makers.insert(slot, at));
        if let Some(node) = self.nodes[at].as_mut() {
            node.outputs = removed.outputs;
        }
    }
}
