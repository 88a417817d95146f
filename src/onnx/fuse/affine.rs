//! Scales and shifts of channels become part of the convolution before or after them.

use super::super::element_type::ElementType;
use super::super::node::{Node, Source};
use super::super::proto::AttributeProto;
use super::super::value::Value;
use super::super::weights::{Stored, Weight};
use super::Fuser;
use crate::device::Device;
use crate::tensor::Tensor;

/// One scale and one shift for each channel: y = scale · x + shift.
struct Affine {
    scale: Vec<f32>,
    shift: Vec<f32>,
}

impl Fuser<'_> {
    /// The shape and the elements of a weight of 32-bit floats, which has at least one.
    pub(super) fn floats(&self, source: Option<Source>) -> Option<(Vec<usize>, Vec<f32>)> {
        let Some(Source::Weight(weight)) = source else { return None };
        let value = self.weights[weight].value().ok()?;
        if value.kind() != ElementType::Float {
            return None;
        }
        let tensor = value.tensor(&Device::cpu()).ok()?;
        Some((tensor.shape().to_vec(), tensor.to_vec::<f32>().ok().filter(|values| !values.is_empty())?))
    }

    /// The numbers of a weight for each of `channels`, if it has one for all or one for each; `spatial` dimensions follow.
    fn of_channels(&self, source: Option<Source>, channels: usize, spatial: usize) -> Option<Vec<f32>> {
        let (shape, values) = self.floats(source)?;
        match values[..] {
            [one] if shape.len() <= spatial + 2 => Some(vec![one; channels]),
            _ if values.len() == channels => {
                let place = shape.len().checked_sub(spatial + 1)?;
                (shape.get(place) == Some(&channels) && shape.len() <= spatial + 2).then_some(values)
            }
            _ => None,
        }
    }

    /// What a node does to each channel of its only computed input.
    fn affine(&self, node: &Node, channels: usize, spatial: usize) -> Option<(usize, Affine)> {
        let ones = || vec![1.0; channels];
        let zeros = || vec![0.0; channels];
        if node.op_type == "BatchNormalization" {
            let [Some(Source::Slot(x)), scale, bias, mean, variance] = node.inputs[..] else { return None };
            if node.attribute("training_mode").is_some_and(|attribute| attribute.i != 0) || node.outputs.len() > 1 {
                return None;
            }
            let of = |source| self.floats(source).map(|(_, values)| values).filter(|values| values.len() == channels);
            let (scale, bias, mean, variance) = (of(scale)?, of(bias)?, of(mean)?, of(variance)?);
            let epsilon = node.attribute("epsilon").map_or(1e-5, |attribute| f64::from(attribute.f));
            let factor = |c: usize| f64::from(scale[c]) / (f64::from(variance[c]) + epsilon).sqrt();
            let shift = (0..channels).map(|c| (f64::from(bias[c]) - f64::from(mean[c]) * factor(c)) as f32).collect();
            return Some((x, Affine { scale: (0..channels).map(|c| factor(c) as f32).collect(), shift }));
        }
        let (x, weight) = self.computed_and_weight(node)?;
        if node.opset < 7 {
            return None;
        }
        let first = matches!(node.inputs[0], Some(Source::Slot(_)));
        let values = || self.of_channels(weight, channels, spatial);
        let affine = match node.op_type.as_str() {
            "Mul" => Affine { scale: values()?, shift: zeros() },
            "Add" => Affine { scale: ones(), shift: values()? },
            "Sub" if first => Affine { scale: ones(), shift: values()?.into_iter().map(|v| -v).collect() },
            "Div" if first => Affine { scale: values()?.into_iter().map(f32::recip).collect(), shift: zeros() },
            _ => return None,
        };
        Some((x, affine))
    }

    /// The weights of a convolution: their shape and elements, and the bias.
    fn convolution(&self, node: &Node) -> Option<(Vec<usize>, Vec<f32>, Vec<f32>)> {
        if node.op_type != "Conv" {
            return None;
        }
        let (shape, values) = self.floats(*node.inputs.get(1)?)?;
        let channels = *shape.first().filter(|_| shape.len() > 2)?;
        let bias = match node.inputs.get(2).copied().flatten() {
            Some(bias) => self.floats(Some(bias))?.1,
            None => vec![0.0; channels],
        };
        (bias.len() == channels).then_some((shape, values, bias))
    }

    /// Gives a convolution other weights. Weights that no other node reads are replaced under their names.
    fn put(&mut self, at: usize, shape: Vec<usize>, values: Vec<f32>, bias: Vec<f32>) -> Option<()> {
        let channels = bias.len();
        let new = [Tensor::from_vec(values, shape, None).ok()?, Tensor::from_vec(bias, channels, None).ok()?];
        let mut names = Vec::new();
        let inputs = self.node(at)?.inputs.clone();
        for i in 1..3 {
            names.push(match inputs.get(i).copied().flatten() {
                Some(Source::Weight(weight)) => self.weights[weight].name.clone(),
                _ => format!("{}.bias", names.first().map_or("", String::as_str)),
            });
        }
        for source in inputs.iter().skip(1).flatten() {
            if let Source::Weight(old) = *source
                && old >= self.own
            {
                self.weights[old].stored = Stored::Unused;
            }
        }
        let places = self.weights.len();
        for (name, tensor) in names.into_iter().zip(new) {
            let value = Value::natural(tensor);
            self.weights.push(Weight { name, stored: Stored::Constant(value) });
        }
        let node = self.nodes[at].as_mut()?;
        node.inputs.truncate(1);
        node.inputs.extend([Some(Source::Weight(places)), Some(Source::Weight(places + 1))]);
        Some(())
    }

    /// Scales and shifts that follow a convolution become part of it.
    pub(super) fn affine_after(&mut self, at: usize) {
        while self.absorb_next(at).is_some() {}
    }

    fn absorb_next(&mut self, at: usize) -> Option<()> {
        let (shape, mut values, mut bias) = self.convolution(self.node(at)?)?;
        let (slot, next) = self.only_user(at)?;
        let (x, affine) = self.affine(self.node(next)?, shape[0], shape.len() - 2)?;
        if x != slot {
            return None;
        }
        let each = values.len() / shape[0];
        for (channel, row) in values.chunks_exact_mut(each).enumerate() {
            row.iter_mut().for_each(|value| *value *= affine.scale[channel]);
            bias[channel] = bias[channel] * affine.scale[channel] + affine.shift[channel];
        }
        self.put(at, shape, values, bias)?;
        let removed = self.nodes[next].take()?;
        self.forget(next, &removed);
        removed.outputs.iter().flatten().for_each(|&slot| _ = self.makers.insert(slot, at));
        self.nodes[at].as_mut()?.outputs = removed.outputs;
        Some(())
    }

    /// Scales and shifts that only a convolution reads become part of it: shifts only where no padding is, which they would shift
    /// too.
    pub(super) fn affine_before(&mut self, at: usize) {
        while self.absorb_last(at).is_some() {}
    }

    fn absorb_last(&mut self, at: usize) -> Option<()> {
        let node = self.node(at)?;
        let (shape, mut values, mut bias) = self.convolution(node)?;
        let Some(Source::Slot(slot)) = node.inputs[0] else { return None };
        let groups = node.attribute("group").map_or(1, |attribute| attribute.i);
        let divides = |groups: &usize| *groups > 0 && shape[0].is_multiple_of(*groups);
        let (groups, each) = (usize::try_from(groups).ok().filter(divides)?, shape[1]);
        let pads = |attribute: &AttributeProto| attribute.ints.iter().any(|&pad| pad != 0);
        let auto =
            node.attribute("auto_pad").is_some_and(|attribute| !matches!(&attribute.s[..], b"NOTSET" | b"VALID" | b""));
        let padded = node.attribute("pads").is_some_and(pads) || auto;
        let before = *self.makers.get(&slot)?;
        self.only_user(before).filter(|(_, user)| *user == at)?;
        let maker = self.node(before)?;
        let (x, affine) = self.affine(maker, each * groups, shape.len() - 2)?;
        // A vector or a tensor could give its input more channels or dimensions than it has.
        let keeps_shape = maker.op_type == "BatchNormalization" || self.is_scalar(self.computed_and_weight(maker)?.1);
        if !keeps_shape {
            return None;
        }
        if padded && affine.shift.iter().any(|&shift| shift != 0.0) {
            return None;
        }
        let (outputs, taps) = (shape[0] / groups, shape[2..].iter().product::<usize>());
        for (output, row) in values.chunks_exact_mut(each * taps).enumerate() {
            let first = output / outputs.max(1) * each;
            for (channel, kernel) in row.chunks_exact_mut(taps).enumerate() {
                bias[output] += affine.shift[first + channel] * kernel.iter().sum::<f32>();
                kernel.iter_mut().for_each(|value| *value *= affine.scale[first + channel]);
            }
        }
        self.put(at, shape, values, bias)?;
        let removed = self.nodes[before].take()?;
        self.forget(before, &removed);
        self.nodes[at].as_mut()?.inputs[0] = Some(Source::Slot(x));
        self.users.entry(x).or_default().push(at);
        Some(())
    }
}
