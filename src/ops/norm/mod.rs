//! Normalisation: layer, RMS, group and batch norm are one op on `[A, C, B]`, with statistics over A and B for each c.
//!
//! The statistics are a separate op that is not recorded. The gradient of the normalisation includes the dependence of
//! the statistics on x (Ioffe and Szegedy, "Batch normalization", 2015, section 3), so only x and the statistics are
//! kept for it. What often follows batch norm, a sum and relu, may be part of the op: its elements are then read and written
//! once. On the host, a normalisation over rows and its statistics are one op (`rows`).

mod backward;
mod host;
mod methods;
mod moment;
pub(in crate::ops) mod pointwise;
mod rows;
mod running;

use std::sync::Arc;

use crate::device::cpu::tasks::share;
use crate::device::gpu::{Buffer, FOURS, Gpu, Kernel, KernelBuilder, Shader, params, shader, wgsl};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::inputs::{elements_each, neighbours_each};
use crate::ops::traced::Traced;
use crate::ops::vectorised::vectorised;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves};
use crate::process_group::Rank;
use crate::tensor::Tensor;

pub(super) use moment::Moment;

params! {
    #[derive(Default)]
    struct Params {
        outer: usize,
        channels: usize,
        inner: usize,
        chunks: usize,
        span: usize,
        features: usize,
        run: usize,
        x_offset: usize,
        stats_offset: usize,
        w_offset: usize,
        last_offset: usize,
        residual_offset: usize,
        eps: f32,
    }
}
/// The text that precedes the shaders.
const PLACES: &str = wgsl!("norm_places");
shader!(SHADER: Params = "norm", after [PLACES]);
shader!(SUMS: Params = "norm_sums", after [PLACES]);
shader!(IN_FOURS: Params = "norm_fours", after [PLACES, FOURS]);

/// A shader with one of its entry points.
type Entry = (Shader<Params>, &'static str);

/// Elements that one invocation of an adapter adds to one part, if this makes no more than `PARTS` parts.
const PART: usize = 32;
const PARTS: usize = 1024;

/// The most elements that one invocation reads: twice this is half of what the strictest adapter allows.
const LONGEST: usize = 16 * 1024;

/// What follows a normalisation; `RELU` in the shaders. The gradient is masked by the result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Then {
    #[default]
    Nothing,
    Relu,
    /// A tensor, the last input, is added; then relu.
    AddRelu,
}

/// The sizes and the options of a normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormShape {
    /// `[A, C, B]`
    pub sizes: [usize; 3],
    /// Element i has feature `(i / span) % features`: the index of its weight and bias.
    pub span: usize,
    pub features: usize,
    pub eps: f32,
    /// Whether the mean is subtracted.
    pub centre: bool,
    /// Whether the statistics are constants, not computed from x.
    pub fixed: bool,
    pub weight: bool,
    pub bias: bool,
    pub then: Then,
}

/// x → `[2, C]`: means and variances (the mean square if the mean is not subtracted).
#[derive(Debug)]
pub(super) struct Moments(pub NormShape);

/// x, statistics, the weight, the bias and the residual if given → x̂ · weight + bias, and what follows. The statistics may
/// be over the samples of all ranks of a process group, each of which has its own x.
#[derive(Debug)]
pub(super) struct Normalise(pub NormShape, pub Option<Rank>);

impl NormShape {
    /// Returns a normalisation with the mean and without weight and bias.
    pub fn new(sizes: [usize; 3], [span, features]: [usize; 2], eps: f32) -> NormShape {
        let then = Then::Nothing;
        NormShape { sizes, span, features, eps, centre: true, fixed: false, weight: false, bias: false, then }
    }

    /// Returns the inputs of the op after x and the statistics that there are: weight, bias, residual.
    pub fn further<'a, T>(&self, inputs: &'a [T]) -> [Option<&'a T>; 3] {
        let mut rest = inputs.iter().skip(2);
        [self.weight, self.bias, self.then == Then::AddRelu].map(|given| if given { rest.next() } else { None })
    }

    /// Returns the number of elements of each statistic.
    fn count(&self) -> usize {
        self.sizes[0] * self.sizes[2]
    }

    /// Returns whether each statistic has its own weight and bias, as in batch norm.
    fn by_channel(&self) -> bool {
        self.features == self.sizes[1] && self.span == self.sizes[2]
    }

    fn chunks(&self) -> Result<usize> {
        let count = self.count();
        let chunks = count.div_ceil(PART).clamp(1, PARTS).max(count.div_ceil(LONGEST / 2));
        if chunks <= LONGEST {
            return Ok(chunks);
        }
        let most = LONGEST * LONGEST / 2;
        Err(Error::argument("norm", format!("statistics over {count} elements: an adapter's kernel takes {most}")))
    }

    /// Starts a kernel of this normalisation. The offsets of operands that it does not read are 0.
    fn kernel(&self, (shader, entry): Entry, offsets: Params) -> Result<KernelBuilder> {
        let [outer, channels, inner] = self.sizes;
        let NormShape { span, features, eps, .. } = *self;
        let params = Params { outer, channels, inner, chunks: self.chunks()?, span, features, eps, ..offsets };
        let kernel = Kernel::build(shader, entry, params).constant("CENTRE", self.centre);
        let kernel = kernel.constant("FEATURE", self.feature());
        let kernel = kernel.constant("FIXED", self.fixed).constant("WEIGHT", self.weight).constant("BIAS", self.bias);
        Ok(kernel.constant("RELU", self.then as u8))
    }

    /// Starts a kernel with x, the statistics, the weight if there is one, and `last`: the bias or a gradient. The offset
    /// of the residual, if there is one, is that of `residual`.
    fn over<'a>(
        &self,
        entry: Entry,
        run: usize,
        [x, stats, last]: [&'a GpuIn<'a, Dense>; 3],
        [weight, residual]: [Option<&'a GpuIn<'a, Dense>>; 2],
    ) -> Result<KernelBuilder> {
        let weight = weight.filter(|_| self.weight).unwrap_or(stats); // not read without a weight
        let (x_offset, stats_offset) = (x.offset(), stats.offset());
        let (w_offset, last_offset) = (weight.offset(), last.offset());
        let residual_offset = residual.map_or(0, GpuIn::offset);
        let offsets =
            Params { run, x_offset, stats_offset, w_offset, last_offset, residual_offset, ..Params::default() };
        Ok(self.kernel(entry, offsets)?.input(x).input(stats).input(weight).input(last))
    }

    /// Starts a kernel that computes an element from an element, in vectors of four if they can be read so, and returns
    /// the number of its invocations, and whether it reads vectors.
    fn by_element<'a>(
        &self,
        gpu: &Gpu,
        entry: &'static str,
        [x, stats, last]: [&'a GpuIn<'a, Dense>; 3],
        further: [Option<&'a GpuIn<'a, Dense>>; 2],
    ) -> Result<(KernelBuilder, usize, bool)> {
        let mut operands = [x, stats, last].into_iter().chain(further.into_iter().flatten());
        let aligned = operands.all(|operand| operand.offset().is_multiple_of(4));
        let in_fours = aligned && self.feature() != 0 && self.sizes[2].is_multiple_of(4);
        let each = if in_fours { elements_each(gpu, true) } else { neighbours_each(gpu, self.elements()) };
        let (shader, run) = if in_fours { (IN_FOURS, each / 4) } else { (SHADER, each) };
        let kernel = self.over((shader, entry), run, [x, stats, last], further)?;
        Ok((kernel, self.elements().div_ceil(each), in_fours))
    }

    /// Returns where a weight's index is, see `shaders/norm_places.wgsl`.
    fn feature(&self) -> u8 {
        match self.sizes {
            _ if self.by_channel() || !(self.weight || self.bias) => 1,
            [_, _, inner] if self.span == 1 && self.features == inner => 2,
            _ => 0,
        }
    }

    fn elements(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Returns the mean of channel `c`, and 1 / √(variance + eps).
    fn statistics(&self, stats: &[f32], c: usize) -> (f32, f32) {
        (stats[c], self.scale(stats[self.sizes[1] + c]))
    }

    /// Returns 1 / √(variance + eps).
    fn scale(&self, variance: f32) -> f32 {
        1.0 / (variance + self.eps).sqrt()
    }
}

impl Op for Moments {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;

    fn name(&self) -> &'static str {
        "moments"
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Moments(self.0))
    }

    fn output(&self, _inputs: &[&Tensor]) -> Result<Output> {
        Ok((vec![2, self.0.sizes[1]], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (norm, x) = (&self.0, inputs[0].slice::<f32>());
        let [outer, channels, inner] = norm.sizes;
        let (means, variances) = out.slice::<f32>().split_at_mut(channels);
        share(means.iter_mut().zip(variances).enumerate(), 4096 / norm.count().max(1), |(c, (mean, variance))| {
            let rows = (0..outer).map(|a| &x[(a * channels + c) * inner..][..inner]);
            let total = vectorised!(Moment::of_rows(rows, norm.centre));
            (*mean, *variance) = (total.mean as f32, (total.squares / total.count) as f32);
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (norm, x) = (&self.0, &inputs[0]);
        let (channels, chunks) = (norm.sizes[1], norm.chunks()?);
        let parts = gpu.alloc(2 * channels * chunks)?;
        let moments = norm.kernel((SUMS, "moments"), Params { x_offset: x.offset(), ..Params::default() })?;
        let merge = norm.kernel((SUMS, "merge"), Params::default())?;
        Ok(vec![
            moments.input(x).output(&parts).each(channels * chunks),
            merge.input(&parts).output(out).each(channels),
        ])
    }
}

impl Op for Normalise {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;

    fn name(&self) -> &'static str {
        "norm"
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Normalise(self.0))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (x, stats) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>());
        let further = self.0.further(inputs).map(|input| input.map(CpuIn::slice::<f32>));
        host::normalise(&self.0, [x, stats], further, out.slice::<f32>());
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (norm, x, stats) = (&self.0, &inputs[0], &inputs[1]);
        let [weight, bias, residual] = norm.further(inputs);
        // Operands that there are not are not read.
        let (kernel, count, in_fours) =
            norm.by_element(gpu, "normalise", [x, stats, bias.unwrap_or(stats)], [weight, residual])?;
        let call = norm.pointwise([x, stats], [weight, bias, residual]).filter(|_| in_fours);
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
        let [weight, bias, residual] = self.0.further(ctx.needs).map(|wanted| wanted == Some(&true));
        let given = self.0.further(ctx.inputs);
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
