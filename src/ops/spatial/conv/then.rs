//! An activation that follows a convolution, computed by the host while the results are in a cache.

#![cfg_attr(not(feature = "onnx"), expect(dead_code, reason = "only models of ONNX name an activation"))]

use anygpu_host::vectorised;

use super::Conv;
use super::forward::Forward;
use crate::autograd::is_recording;
use crate::error::Result;
use crate::ops::apply;
use crate::ops::elementwise::unary::{Function, UnaryFn};
use crate::ops::traced::is_traced;
use crate::tensor::Tensor;

/// The functions that may follow a convolution in one op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Relu,
    Sigmoid,
    Silu,
    HardSwish,
}

/// An activation, whose results are multiplied by a scale, and added to a shift.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Then {
    activation: Activation,
    scale: f32,
    shift: f32,
}

impl Activation {
    /// Computes this by an op of its own.
    fn of(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Relu => x.relu(),
            Activation::Sigmoid => x.sigmoid(),
            Activation::Silu => x.silu(),
            Activation::HardSwish => x.hardswish(),
        }
    }
}

impl Then {
    fn function(&self) -> &'static Function {
        let function = match self.activation {
            Activation::Relu => UnaryFn::Relu,
            Activation::Sigmoid => UnaryFn::Sigmoid,
            Activation::Silu => UnaryFn::Silu,
            Activation::HardSwish => UnaryFn::Hardswish,
        };
        function.row()
    }

    /// Computes this of some elements.
    pub(super) fn write(&self, x: &[f32], out: &mut [f32]) {
        self.function().run(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out));
        let Then { scale, shift, .. } = *self;
        if (scale, shift) != (1.0, 0.0) {
            vectorised!(out.iter_mut().for_each(|v| *v = *v * scale + shift));
        }
    }
}

/// Returns whether a convolution of these tensors and what follows it may be one op, which has no gradient and no translation.
fn may_be_one<'a>(mut inputs: impl Iterator<Item = &'a Tensor>) -> bool {
    let (recording, traced) = (is_recording(), is_traced());
    !traced && inputs.all(|x| x.device().is_cpu() && !(recording && x.is_tracked()))
}

impl Tensor {
    /// Computes a 2-D convolution and an activation, whose results are multiplied by the first tensor `after` it, and added to the
    /// second one; both have one element.
    pub(crate) fn conv2d_then(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        conv: Conv<2>,
        activation: Activation,
        after: [Option<&Tensor>; 2],
    ) -> Result<Tensor> {
        let all = [self, weight].into_iter().chain(bias).chain(after.into_iter().flatten());
        if !may_be_one(all) {
            let y = activation.of(&self.conv2d(weight, bias, conv)?)?;
            let y = after[0].map_or(Ok(y.clone()), |scale| y.mul(scale))?;
            return after[1].map_or(Ok(y.clone()), |shift| y.add(shift));
        }
        let number = |x: Option<&Tensor>, default| x.map_or(Ok(default), |x| x.reshape(())?.item::<f32>());
        let then = Then { activation, scale: number(after[0], 1.0)?, shift: number(after[1], 0.0)? };
        let (x, conv) = conv.settled("conv2d", self, weight)?;
        let geometry = conv.geometry(x.shape(), weight.shape())?;
        let inputs: Vec<&Tensor> = [&x, weight].into_iter().chain(bias).collect();
        apply(Forward(geometry, false, Some(then)), &inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autograd::no_grad;

    /// In one op, by ops of their own, and with a gradient.
    #[test]
    fn activations_after_convolutions_are_those_of_ops() -> Result<()> {
        let numbers = |count: usize| (0..count).map(|i| (i * 7919 % 211) as f32 / 30.0 - 3.5);
        let x = Tensor::from_vec(numbers(2 * 20 * 13 * 9).collect::<Vec<_>>(), [2, 20, 13, 9], None)?;
        let [half, quarter] = [Tensor::from_vec(vec![0.5f32], [1], None)?, Tensor::scalar(-0.25f32, None)?];
        // Products over the image, few windows, and a plain product of many images.
        let many = Tensor::cat(&[&x; 8], 0)?;
        let cases = [(&x, [3, 3], 1), (&x, [13, 9], 1), (&x, [3, 3], 20), (&many, [1, 1], 1), (&many, [3, 3], 1)];
        for (x, [height, width], groups) in cases {
            let shape = [40, 20 / groups, height, width];
            let w = Tensor::from_vec(numbers(shape.iter().product()).collect::<Vec<_>>(), shape, None)?;
            let bias = Tensor::from_vec(numbers(40).collect::<Vec<_>>(), [40], None)?;
            let conv = Conv::new().groups(groups);
            let all = [Activation::Relu, Activation::Sigmoid, Activation::Silu, Activation::HardSwish];
            for activation in all {
                for after in [[None, None], [Some(&half), None], [Some(&half), Some(&quarter)]] {
                    let plain = activation.of(&x.conv2d(&w, Some(&bias), conv)?)?;
                    let wanted = match after {
                        [Some(_), Some(_)] => plain.mul_scalar(0.5)?.add_scalar(-0.25)?,
                        [Some(_), _] => plain.mul_scalar(0.5)?,
                        _ => plain,
                    };
                    let found = no_grad(|| x.conv2d_then(&w, Some(&bias), conv, activation, after))?;
                    assert_eq!(found.shape(), wanted.shape());
                    assert_eq!(found.to_vec::<f32>()?, wanted.to_vec::<f32>()?, "{activation:?}");
                    let leaf = x.requires_grad();
                    leaf.conv2d_then(&w, Some(&bias), conv, activation, after)?.sum_all()?.backward()?;
                    assert!(leaf.grad().is_some());
                }
            }
        }
        Ok(())
    }
}
