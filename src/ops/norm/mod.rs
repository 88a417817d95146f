//! Normalisation: layer, RMS, group and batch norm are one op on `[A, C, B]`, with statistics over A and B for each c.
//!
//! The statistics are a separate op that is not recorded. The gradient of the normalisation includes the dependence of
//! the statistics on x (Ioffe and Szegedy, "Batch normalization", 2015, section 3), so only x and the statistics are
//! kept for it.

mod backward;
mod methods;
mod moment;

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, FOURS, Gpu, Kernel, KernelBuilder, Shader, params, shader, wgsl};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::inputs::{elements_each, neighbours_each};
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply};
use crate::process_group::Rank;
use crate::tensor::Tensor;
use backward::{GradientSums, NormaliseBackward};
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
        eps: f32,
    }
}
/// The text that precedes the shaders.
const PLACES: &str = wgsl!("norm_places");
shader!(SHADER: Params = "norm", after [PLACES]);
shader!(IN_FOURS: Params = "norm_fours", after [PLACES, FOURS]);

/// A shader with one of its entry points.
type Entry = (Shader<Params>, &'static str);

/// Elements that one invocation of an adapter adds to one part, if this makes no more than `PARTS` parts.
const PART: usize = 32;
const PARTS: usize = 1024;

/// The most elements that one invocation reads: twice this is half of what the strictest adapter allows.
const LONGEST: usize = 16 * 1024;

/// The sizes and the options of a normalisation.
#[derive(Clone, Copy, Debug)]
pub(super) struct NormShape {
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
}

/// x → `[2, C]`: means and variances (the mean square if the mean is not subtracted).
#[derive(Debug)]
pub(super) struct Moments(pub NormShape);

/// x, statistics, and the weight and the bias if given → x̂ · weight + bias. The statistics may be over the samples of
/// all ranks of a process group, each of which has its own x.
#[derive(Debug)]
pub(super) struct Normalise(pub NormShape, pub Option<Rank>);

impl NormShape {
    /// Returns a normalisation with the mean and without weight and bias.
    pub fn new(sizes: [usize; 3], [span, features]: [usize; 2], eps: f32) -> NormShape {
        NormShape { sizes, span, features, eps, centre: true, fixed: false, weight: false, bias: false }
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
        Ok(kernel.constant("FIXED", self.fixed).constant("WEIGHT", self.weight).constant("BIAS", self.bias))
    }

    /// Starts a kernel with x, the statistics, the weight if there is one, and `last`: the bias or a gradient.
    fn over<'a>(
        &self,
        entry: Entry,
        run: usize,
        [x, stats, last]: [&'a GpuIn<'a, Dense>; 3],
        weight: Option<&'a GpuIn<'a, Dense>>,
    ) -> Result<KernelBuilder> {
        let weight = weight.filter(|_| self.weight).unwrap_or(stats); // not read without a weight
        let (x_offset, stats_offset) = (x.offset(), stats.offset());
        let (w_offset, last_offset) = (weight.offset(), last.offset());
        let offsets = Params { run, x_offset, stats_offset, w_offset, last_offset, ..Params::default() };
        Ok(self.kernel(entry, offsets)?.input(x).input(stats).input(weight).input(last))
    }

    /// Starts a kernel that computes an element from an element, in vectors of four if they can be read so, and returns
    /// the number of its invocations.
    fn by_element<'a>(
        &self,
        gpu: &Gpu,
        entry: &'static str,
        [x, stats, last]: [&'a GpuIn<'a, Dense>; 3],
        weight: Option<&'a GpuIn<'a, Dense>>,
    ) -> Result<(KernelBuilder, usize)> {
        let aligned = [x, stats, last].into_iter().chain(weight).all(|operand| operand.offset().is_multiple_of(4));
        let in_fours = aligned && self.feature() != 0 && self.sizes[2].is_multiple_of(4);
        let each = if in_fours { elements_each(gpu, true) } else { neighbours_each(gpu, self.elements()) };
        let (shader, run) = if in_fours { (IN_FOURS, each / 4) } else { (SHADER, each) };
        let kernel = self.over((shader, entry), run, [x, stats, last], weight)?;
        Ok((kernel, self.elements().div_ceil(each)))
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

    /// Calls `f(row, range of features)` for the parts of row `i` of `[A · C, B]` whose elements have one feature each,
    /// or consecutive ones.
    fn runs(&self, row: usize, mut f: impl FnMut(std::ops::Range<usize>, usize)) {
        let inner = self.sizes[2];
        let step = if self.span == 1 { inner } else { self.span };
        for start in (0..inner).step_by(step.max(1)) {
            f(start..start + step, (row * inner + start) / self.span % self.features);
        }
    }

    /// Calls `f` for each value of a row with the weight or bias of its feature, if there is one.
    fn affine(&self, row: usize, values: &mut [f32], by_feature: Option<&[f32]>, f: impl Fn(&mut f32, f32)) {
        let Some(by_feature) = by_feature else { return };
        self.runs(row, |range, first| match self.span {
            1 => values[range].iter_mut().zip(&by_feature[first..]).for_each(|(v, &w)| f(v, w)),
            _ => values[range].iter_mut().for_each(|v| f(v, by_feature[first])),
        });
    }

    fn weigh(&self, row: usize, values: &mut [f32], weight: Option<&[f32]>) {
        self.affine(row, values, weight, |v, w| *v *= w);
    }

    /// Returns the mean of channel `c`, and 1 / √(variance + eps).
    fn statistics(&self, stats: &[f32], c: usize) -> (f32, f32) {
        (stats[c], 1.0 / (stats[self.sizes[1] + c] + self.eps).sqrt())
    }

    /// Returns the number of rows of `[A · C, B]` that make one task large enough.
    fn rows_per_task(&self) -> usize {
        (8192 / self.sizes[2].max(1)).max(1)
    }
}

impl Op for Moments {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;

    fn name(&self) -> &'static str {
        "moments"
    }

    fn output(&self, _inputs: &[&Tensor]) -> Result<Output> {
        Ok((vec![2, self.0.sizes[1]], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (norm, x) = (&self.0, inputs[0].slice::<f32>());
        let [outer, channels, inner] = norm.sizes;
        let (means, variances) = out.slice::<f32>().split_at_mut(channels);
        let all = means.par_iter_mut().zip(variances).enumerate();
        all.with_min_len((4096 / norm.count().max(1)).max(1)).for_each(|(c, (mean, variance))| {
            let rows = (0..outer).map(|a| &x[(a * channels + c) * inner..][..inner]);
            let total = Moment::of_rows(rows, norm.centre);
            (*mean, *variance) = (total.mean as f32, (total.squares / total.count) as f32);
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (norm, x) = (&self.0, &inputs[0]);
        let (channels, chunks) = (norm.sizes[1], norm.chunks()?);
        let parts = gpu.alloc(2 * channels * chunks)?;
        let moments = norm.kernel((SHADER, "moments"), Params { x_offset: x.offset(), ..Params::default() })?;
        let merge = norm.kernel((SHADER, "merge"), Params::default())?;
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

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let norm = &self.0;
        let [_, channels, inner] = norm.sizes;
        let (x, stats) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>());
        let weight = norm.weight.then(|| inputs[2].slice::<f32>());
        let bias = norm.bias.then(|| inputs[2 + usize::from(norm.weight)].slice::<f32>());
        let rows = out.slice::<f32>().par_chunks_mut(inner).zip(x.par_chunks(inner)).enumerate();
        rows.with_min_len(norm.rows_per_task()).for_each(|(row, (out, x))| {
            let (mean, scale) = norm.statistics(stats, row % channels);
            out.iter_mut().zip(x).for_each(|(out, x)| *out = (x - mean) * scale);
            norm.weigh(row, out, weight);
            norm.affine(row, out, bias, |v, b| *v += b);
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (norm, x, stats) = (&self.0, &inputs[0], &inputs[1]);
        let bias = if norm.bias { &inputs[2 + usize::from(norm.weight)] } else { stats };
        let (kernel, count) = norm.by_element(gpu, "normalise", [x, stats, bias], inputs.get(2))?;
        Ok(vec![kernel.output(out).each(count)])
    }

    /// Computes the gradients: d bias = Σ g, d weight = Σ g · x̂, both over the elements of a feature.
    fn saves(&self) -> Saves {
        Saves::Inputs
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let norm = self.0;
        if ctx.grad.elem_count() == 0 && self.1.is_none() {
            // The sums are over no elements, so they are 0; the statistics are NaN and must not be used. In a process
            // group, other ranks may have elements.
            let zeros = ctx.inputs.iter().zip(ctx.needs).map(|(input, &wanted)| wanted.then(|| input.zeros_like()));
            return zeros.map(Option::transpose).collect();
        }
        let (x, stats, g) = (&ctx.inputs[0], &ctx.inputs[1], ctx.grad);
        let weight = norm.weight.then(|| &ctx.inputs[2]);
        let by_channel = norm.by_channel();
        let needs_x = ctx.needs[0];
        let needs_affine = ctx.needs[2..].contains(&true);
        let gradient_sums = if (needs_x && !norm.fixed) || (needs_affine && by_channel) {
            // If each channel has one weight, these sums are also those of the gradient of the weight.
            let weight = weight.filter(|_| !by_channel);
            let inputs: Vec<&Tensor> = [x, stats, g].into_iter().chain(weight).collect();
            Some(apply(GradientSums(NormShape { weight: weight.is_some(), ..norm }), &inputs)?)
        } else {
            None
        };
        let mut grads = vec![None, None];
        if needs_x {
            let gradient_sums = match &gradient_sums {
                Some(gradient_sums) if !norm.fixed => self.joined(gradient_sums, weight.filter(|_| by_channel))?,
                _ => stats.clone(), // not read
            };
            let inputs: Vec<&Tensor> = [x, stats, g, &gradient_sums].into_iter().chain(weight).collect();
            grads[0] = Some(apply(NormaliseBackward(norm), &inputs)?);
        }
        for (i, input) in ctx.inputs.iter().enumerate().skip(2) {
            let is_weight = norm.weight && i == 2;
            grads.push(match &gradient_sums {
                _ if !ctx.needs[i] => None,
                Some(gradient_sums) if by_channel => {
                    Some(gradient_sums.narrow(0, usize::from(is_weight), 1)?.reshape(input.shape())?)
                }
                _ => Some(self.by_feature([x, stats, g], is_weight)?.reshape(input.shape())?),
            });
        }
        Ok(grads)
    }
}
