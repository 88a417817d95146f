//! Normalisation over rows as one op of the host, which reads a row from memory once: layer, RMS and group norm. On adapters
//! they are two ops, `Moments` and `Normalise`.

use std::sync::Arc;

use anygpu_host::norm;

use super::{Moments, NormShape, Normalise, Then};
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::error::Result;
use crate::ops::names::{Names, names};
use crate::ops::traced::is_traced;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Saves, apply, only_on_the_host};
use crate::tensor::Tensor;

/// x, the weight and the bias if given → x̂ · weight + bias. The gradient computes the statistics again.
#[derive(Debug)]
pub(super) struct NormaliseRows(NormShape);

impl NormaliseRows {
    /// Returns the op if it computes a normalisation of `x`, whose statistics are over one row each. A trace has the two ops:
    /// what is written down does not depend on the device.
    pub fn of(norm: NormShape, x: &Tensor) -> Option<NormaliseRows> {
        let over_rows = norm.sizes[0] == 1 && !norm.fixed && norm.then == Then::Nothing;
        let traced = is_traced();
        (over_rows && x.device().is_cpu() && !traced).then_some(NormaliseRows(norm))
    }
}

impl Op for NormaliseRows {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["norm_rows"];

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let mut further = inputs[1..].iter();
        let [weight, bias] = [self.0.weight, self.0.bias]
            .map(|given| if given { further.next().map(CpuIn::slice::<f32>) } else { None });
        norm::normalise_rows(&self.0, inputs[0].slice::<f32>(), [weight, bias], out.slice::<f32>());
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn<Dense>], _out: &Buffer) -> Result<Vec<Kernel>> {
        Err(only_on_the_host(self.name()))
    }

    fn saves(&self) -> Saves {
        Saves::Inputs
    }

    /// Like the gradient of [`Normalise`], with the statistics as its second input.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let stats = apply(Moments(self.0), &[&ctx.inputs[0].detach()])?;
        let (mut inputs, mut needs) = (ctx.inputs.to_vec(), ctx.needs.to_vec());
        inputs.insert(1, stats);
        needs.insert(1, false);
        let mut grads = Normalise(self.0, None).backward(&Gradient {
            inputs: &inputs,
            needs: &needs,
            out: ctx.out,
            grad: ctx.grad,
        })?;
        grads.remove(1);
        Ok(grads)
    }
}
