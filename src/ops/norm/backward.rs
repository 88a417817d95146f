//! The gradient of a normalisation: two sums for each statistic, and the gradient of x, computed from them.

use std::sync::Arc;

use anygpu_host::norm;

use super::{NormShape, Normalise, Then, further, gpu};
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::names::{Names, names};
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Op, Output, apply};
use crate::tensor::Tensor;

/// x, statistics, a gradient g, the weight if there is one, the result if relu follows → `[2, C]`: for each c, Σ t and
/// Σ t · x̂ of t = g · weight.
#[derive(Debug)]
pub(super) struct GradientSums(pub NormShape);

/// x, statistics, a gradient g, the gradient sums, the weight if there is one, the result if relu follows → the
/// gradient of x; `[2, ..]` with the residual's gradient if there is a residual. If each c has one weight, the gradient
/// sums are over g.
#[derive(Debug)]
pub(super) struct NormaliseBackward(pub NormShape);

impl Normalise {
    /// Returns the gradient sums if a gradient needs them: of g if each c has one weight, whose gradient is one of these
    /// sums; else of g · weight.
    pub(super) fn gradient_sums(&self, ctx: &Gradient, needs_affine: bool) -> Result<Option<Tensor>> {
        let (norm, by_channel) = (self.0, self.0.by_channel());
        if !(ctx.needs[0] && !norm.fixed || needs_affine && by_channel) {
            return Ok(None);
        }
        let weight = further(&norm, ctx.inputs)[0].filter(|_| !by_channel);
        let result = Some(ctx.out).filter(|_| norm.then != Then::Nothing);
        let inputs: Vec<&Tensor> =
            [&ctx.inputs[0], &ctx.inputs[1], ctx.grad].into_iter().chain(weight).chain(result).collect();
        apply(GradientSums(NormShape { weight: weight.is_some(), ..norm }), &inputs).map(Some)
    }

    /// Returns the gradients of x and of the residual, if they are wanted.
    pub(super) fn by_element(
        &self,
        ctx: &Gradient,
        sums: Option<&Tensor>,
        [x, residual]: [bool; 2],
    ) -> Result<[Option<Tensor>; 2]> {
        if !x && !residual {
            return Ok([None, None]);
        }
        let sums = match sums {
            Some(sums) if x && !self.0.fixed => self.joined(sums)?,
            _ => ctx.inputs[1].clone(), // not read, or for a gradient that is not wanted
        };
        let weight = further(&self.0, ctx.inputs)[0];
        let gradient = |then, g: &Tensor| {
            let result = Some(ctx.out).filter(|_| then != Then::Nothing);
            let inputs = [&ctx.inputs[0], &ctx.inputs[1], g, &sums].into_iter().chain(weight).chain(result);
            apply(NormaliseBackward(NormShape { then, ..self.0 }), &inputs.collect::<Vec<_>>())
        };
        match self.0.then {
            then @ (Then::Nothing | Then::Relu) => Ok([Some(gradient(then, ctx.grad)?), None]),
            Then::AddRelu if !residual => Ok([Some(gradient(Then::Relu, ctx.grad)?), None]),
            Then::AddRelu if x && two_fit(ctx.grad) => {
                let both = gradient(Then::AddRelu, ctx.grad)?;
                let half = |i| both.narrow(0, i, 1)?.squeeze(0).map(Some);
                Ok([half(0)?, half(1)?])
            }
            Then::AddRelu => {
                let masked = ctx.grad.masked_fill(&ctx.out.eq(0.0)?, 0.0)?;
                let dx = x.then(|| gradient(Then::Nothing, &masked)).transpose()?;
                Ok([dx, Some(masked)])
            }
        }
    }

    /// Returns the gradient sums over all ranks. Each rank has the gradient of the mean over its own samples, and a step
    /// takes the mean of these gradients, weighted by the ranks' shares. The gradient sums are combined in the same way.
    fn joined(&self, gradient_sums: &Tensor) -> Result<Tensor> {
        let Some(rank) = &self.1 else { return Ok(gradient_sums.clone()) };
        let sums = rank.weighted_sum(gradient_sums.to_vec()?)?;
        Tensor::from_slice(&sums, gradient_sums.shape(), gradient_sums.device())
    }

    /// Returns Σ g, or Σ g · x̂, for each feature.
    pub(super) fn by_feature(&self, [x, stats, g]: [&Tensor; 3], times_x: bool) -> Result<Tensor> {
        let norm = NormShape { weight: false, bias: false, then: Then::Nothing, ..self.0 };
        let product = match times_x {
            true => apply(Normalise(norm, None), &[x, stats])?.mul(g)?,
            false => g.clone(),
        };
        let rows = product.elem_count() / (norm.features * norm.span).max(1);
        product.reshape([rows, norm.features, norm.span])?.sum([0, 2], false)
    }
}

/// Returns whether a kernel can bind a buffer of twice the size of a tensor.
fn two_fit(x: &Tensor) -> bool {
    let bytes = x.elem_count() as u64 * 8;
    x.device().is_cpu() || bytes <= x.device().info().limits.max_binding
}

/// Returns which of these inputs of a gradient's op are the weight and the result.
fn weight_and_result<'a, T>(norm: &NormShape, inputs: &'a [T]) -> [Option<&'a T>; 2] {
    let mut rest = inputs.iter();
    [norm.weight, norm.then != Then::Nothing].map(|given| if given { rest.next() } else { None })
}

impl Op for GradientSums {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["norm_gradient_sums"];

    fn output(&self, _inputs: &[&Tensor]) -> Result<Output> {
        Ok((vec![2, self.0.sizes[1]], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let norm = &self.0;
        let [x, stats, g] = [0, 1, 2].map(|i| inputs[i].slice::<f32>());
        let [weight, y] = weight_and_result(norm, &inputs[3..]).map(|input| input.map(CpuIn::slice::<f32>));
        norm::gradient_sums(norm, [x, stats, g], [weight, y], out.slice::<f32>());
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let further = weight_and_result(&self.0, &inputs[3..]);
        gpu::gradient_sums(&self.0, gpu, [&inputs[0], &inputs[1], &inputs[2]], further, out)
    }
}

impl Op for NormaliseBackward {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["norm_backward"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let (halves, shape) = (self.0.then == Then::AddRelu, inputs[0].shape());
        Ok((halves.then_some(2).into_iter().chain(shape.iter().copied()).collect(), DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let norm = &self.0;
        let [x, stats, g, sums] = [0, 1, 2, 3].map(|i| inputs[i].slice::<f32>());
        let [weight, y] = weight_and_result(norm, &inputs[4..]).map(|input| input.map(CpuIn::slice::<f32>));
        norm::backward(norm, [x, stats, g, sums], [weight, y], out.slice::<f32>());
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let norm = &self.0;
        let [x, stats, g, gradient_sums] = [0, 1, 2, 3].map(|i| &inputs[i]);
        let [weight, y] = weight_and_result(norm, &inputs[4..]);
        let (kernel, count, _) = gpu::by_element(norm, gpu, "backward", [x, stats, g], [weight, None])?;
        // The gradient sums and the result have offset 0: they are not views.
        Ok(vec![kernel.input(gradient_sums).input(y.unwrap_or(g)).output(out).each(count)])
    }
}
