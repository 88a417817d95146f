//! Normalisation: layer, RMS, group and batch norm are one op on `[A, C, B]`, with statistics over A and B for each c.
//!
//! The statistics are a separate op that is not recorded. The gradient of the normalisation includes the dependence of
//! the statistics on x (Ioffe and Szegedy, "Batch normalization", 2015, section 3), so only x and the statistics are
//! kept for it. What often follows batch norm, a sum and relu, may be part of the op: its elements are then read and written
//! once. On the host, a normalisation over rows and its statistics are one op (`rows`).

mod backward;
mod gpu;
mod methods;
pub(in crate::ops) mod pointwise;
mod rows;
mod running;

use std::sync::Arc;

use anygpu_host::norm;
pub(super) use anygpu_host::norm::Moment;
pub(crate) use anygpu_host::norm::{NormShape, Then};

use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::names::{Names, names};
use crate::ops::traced::Traced;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves};
use crate::process_group::Rank;
use crate::tensor::Tensor;

/// x → `[2, C]`: means and variances (the mean square if the mean is not subtracted).
#[derive(Debug)]
pub(super) struct Moments(pub NormShape);

/// x, statistics, the weight, the bias and the residual if given → x̂ · weight + bias, and what follows. The statistics may
/// be over the samples of all ranks of a process group, each of which has its own x.
#[derive(Debug)]
pub(super) struct Normalise(pub NormShape, pub Option<Rank>);

/// Returns the inputs of the op after x and the statistics that there are: weight, bias, residual.
pub(crate) fn further<'a, T>(norm: &NormShape, inputs: &'a [T]) -> [Option<&'a T>; 3] {
    let mut rest = inputs.iter().skip(2);
    [norm.weight, norm.bias, norm.then == Then::AddRelu].map(|given| if given { rest.next() } else { None })
}

impl Op for Moments {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["moments"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Moments(self.0))
    }

    fn output(&self, _inputs: &[&Tensor]) -> Result<Output> {
        Ok((vec![2, self.0.sizes[1]], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (means, variances) = out.slice::<f32>().split_at_mut(self.0.sizes[1]);
        norm::moments(&self.0, inputs[0].slice::<f32>(), [means, variances]);
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        gpu::moments(&self.0, gpu, &inputs[0], out)
    }
}

impl Op for Normalise {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["norm"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Normalise(self.0))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (x, stats) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>());
        let further = further(&self.0, inputs).map(|input| input.map(CpuIn::slice::<f32>));
        norm::normalise(&self.0, [x, stats], further, out.slice::<f32>());
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (norm, x, stats) = (&self.0, &inputs[0], &inputs[1]);
        let [weight, bias, residual] = further(norm, inputs);
        // Operands that there are not are not read.
        let (kernel, count, in_fours) =
            gpu::by_element(norm, gpu, "normalise", [x, stats, bias.unwrap_or(stats)], [weight, residual])?;
        let call = pointwise::formula(norm, [x, stats], [weight, bias, residual]).filter(|_| in_fours);
        Ok(vec![kernel.input(residual.unwrap_or(x)).output(out).each(count).pointwise(call)])
    }

    fn saves(&self) -> Saves {
        match self.0.then {
            Then::Nothing => Saves::Inputs,
            // x, the statistics and the weight; the residual may be large.
            Then::Relu | Then::AddRelu => Saves::OutputAnd(if self.0.weight { 0b111 } else { 0b11 }),
        }
    }

    /// Computes the gradients: d bias = Σ g, d weight = Σ g · x̂, both over the elements of a feature, and d residual = g,
    /// of the g that relu leaves.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        if ctx.grad.elem_count() == 0 && self.1.is_none() {
            // The sums are over no elements, so they are 0; the statistics are NaN and must not be used. In a process
            // group, other ranks may have elements.
            let zeros = ctx.inputs.iter().zip(ctx.needs).map(|(input, &wanted)| wanted.then(|| input.zeros_like()));
            return zeros.map(Option::transpose).collect();
        }
        let [weight, bias, residual] = further(&self.0, ctx.needs).map(|wanted| wanted == Some(&true));
        let given = further(&self.0, ctx.inputs);
        let sums = self.gradient_sums(ctx, weight || bias)?;
        let [dx, masked] = self.by_element(ctx, sums.as_ref(), [ctx.needs[0], residual])?;
        let mut grads = vec![dx, None];
        for (i, (wanted, input)) in [weight, bias].into_iter().zip(given).enumerate() {
            let Some(input) = input else { continue };
            grads.push(match &sums {
                _ if !wanted => None,
                Some(sums) if self.0.by_channel() => Some(sums.narrow(0, 1 - i, 1)?.reshape(input.shape())?),
                _ => Some(self.by_feature([&ctx.inputs[0], &ctx.inputs[1], ctx.grad], i == 0)?.reshape(input.shape())?),
            });
        }
        grads.extend(given[2].map(|_| masked));
        Ok(grads)
    }
}
