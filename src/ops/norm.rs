//! Normalisation: layer, RMS, group and batch norm are one op on `[A, C, B]`, with statistics over A and B for each c.
//!
//! The statistics are an op of their own, outside the graph: the gradient of the normalisation knows what they depend on
//! (Ioffe and Szegedy, "Batch normalization", 2015, section 3), so that only x and they are kept for it.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid};
use crate::ops::reduce::sum_parts;
use crate::ops::{Gradient, Op, Spec, apply, shader};
use crate::tensor::Tensor;

pub(super) const SHADER: Shader = shader!("norm");

/// Elements that one invocation of an adapter takes into one part, if there are no more than `PARTS` parts then.
const PART: usize = 32;
const PARTS: usize = 1024;

/// The most that an invocation walks: twice this is half of what the strictest adapter allows.
const LONGEST: usize = 16 * 1024;

/// How x is seen, and what is done to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// `[A, C, B]`
    pub sizes: [usize; 3],
    /// Element i has feature `(i / span) % features`: the index of its weight and bias.
    pub span: usize,
    pub features: usize,
    pub eps: f32,
    /// Whether the mean is taken off.
    pub centre: bool,
    /// Whether the statistics are constants, not those of x.
    pub fixed: bool,
    pub weight: bool,
    pub bias: bool,
}

/// x → `[2, C]`: means and variances (the mean square where the mean is not taken off).
#[derive(Debug)]
pub(super) struct Moments(pub Plan);

/// x, statistics, weight and bias where there are such → x̂ · weight + bias.
#[derive(Debug)]
pub(super) struct Normalise(pub Plan);

/// x, statistics, the gradient of `Normalise`, weight where there is one → the gradient of x.
#[derive(Debug)]
struct NormaliseBackward(Plan);

impl Plan {
    /// Elements behind each statistic.
    fn count(&self) -> usize {
        self.sizes[0] * self.sizes[2]
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

    fn kernel(&self, entry: &'static str, offsets: [u32; 4], inputs: Vec<Buffer>, out: &Buffer) -> Result<Kernel> {
        let [outer, channels, inner] = self.sizes;
        fits_u32("norm", outer * channels * inner)?;
        let chunks = self.chunks()?;
        let numbers = [outer, channels, inner, chunks, self.span, self.features].map(|n| n as u32);
        let flag = |on: bool| f64::from(u8::from(on));
        Ok(Kernel {
            shader: SHADER,
            entry,
            header: "",
            constants: vec![
                ("CENTRE", flag(self.centre)),
                ("FIXED", flag(self.fixed)),
                ("WEIGHT", flag(self.weight)),
                ("BIAS", flag(self.bias)),
            ],
            params: numbers.into_iter().chain(offsets).chain([self.eps.to_bits()]).collect(),
            inputs,
            outputs: vec![out.clone()],
            groups: grid(match entry {
                "moments" | "slopes" => channels * chunks,
                "merge" => channels,
                _ => outer * channels * inner,
            }),
        })
    }

    /// `f(row, range of features)` for the parts of row `i` of `[A · C, B]` whose elements have one feature each, or
    /// consecutive ones.
    fn runs(&self, row: usize, mut f: impl FnMut(std::ops::Range<usize>, usize)) {
        let inner = self.sizes[2];
        let step = if self.span == 1 { inner } else { self.span };
        for start in (0..inner).step_by(step) {
            f(start..start + step, (row * inner + start) / self.span % self.features);
        }
    }

    /// `row[j] ← row[j] · weight[feature of j]`
    fn weigh(&self, row: usize, values: &mut [f32], weight: Option<&[f32]>) {
        let Some(weight) = weight else { return };
        self.runs(row, |range, first| match self.span {
            1 => values[range].iter_mut().zip(&weight[first..]).for_each(|(v, w)| *v *= w),
            _ => values[range].iter_mut().for_each(|v| *v *= weight[first]),
        });
    }

    fn add_bias(&self, row: usize, values: &mut [f32], bias: Option<&[f32]>) {
        let Some(bias) = bias else { return };
        self.runs(row, |range, first| match self.span {
            1 => values[range].iter_mut().zip(&bias[first..]).for_each(|(v, b)| *v += b),
            _ => values[range].iter_mut().for_each(|v| *v += bias[first]),
        });
    }

    /// The mean of channel `c`, and 1 / √(variance + eps).
    fn statistics(&self, stats: &[f32], c: usize) -> (f32, f32) {
        (stats[c], 1.0 / (stats[self.sizes[1] + c] + self.eps).sqrt())
    }

    /// Rows of `[A · C, B]` that are worth a task.
    fn rows_per_task(&self) -> usize {
        (8192 / self.sizes[2].max(1)).max(1)
    }
}

/// Σ f(v), in sixteen running sums over short parts, so that the loop vectorises and little is rounded away.
fn total(values: &[f32], f: impl Fn(f32) -> f32) -> f64 {
    let part = |part: &[f32]| {
        let mut lanes = [0f32; 16];
        let rows = part.chunks_exact(16);
        let tail: f32 = rows.remainder().iter().map(|&v| f(v)).sum();
        rows.for_each(|row| lanes.iter_mut().zip(row).for_each(|(lane, &v)| *lane += f(v)));
        f64::from(lanes.iter().sum::<f32>() + tail)
    };
    values.chunks(512).map(part).sum()
}

impl Op for Moments {
    fn name(&self) -> &'static str {
        "moments"
    }

    fn output(&self, _inputs: &[&Tensor]) -> Result<Spec> {
        Ok(Spec::Fresh(vec![2, self.0.sizes[1]], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let (plan, x) = (&self.0, inputs[0].slice::<f32>());
        let [outer, channels, inner] = plan.sizes;
        let count = plan.count() as f64;
        let (means, variances) = out.slice::<f32>().split_at_mut(channels);
        let all = means.par_iter_mut().zip(variances).enumerate();
        all.with_min_len((4096 / plan.count().max(1)).max(1)).for_each(|(c, (mean, variance))| {
            let rows = || (0..outer).map(|a| &x[(a * channels + c) * inner..][..inner]);
            *mean = match plan.centre {
                true => (rows().map(|row| total(row, |v| v)).sum::<f64>() / count) as f32,
                false => 0.0,
            };
            let square = |v: f32| (v - *mean) * (v - *mean);
            *variance = (rows().map(|row| total(row, square)).sum::<f64>() / count) as f32;
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let (plan, x) = (&self.0, &inputs[0]);
        let parts = gpu.alloc(2 * plan.sizes[1] * plan.chunks()?)?;
        Ok(vec![
            plan.kernel("moments", [x.offset(), 0, 0, 0], vec![x.buffer.clone()], &parts)?,
            plan.kernel("merge", [0; 4], vec![parts], out)?,
        ])
    }
}

impl Op for Normalise {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        Ok(Spec::Fresh(inputs[0].shape().to_vec(), DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let plan = &self.0;
        let [_, channels, inner] = plan.sizes;
        let (x, stats) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>());
        let weight = plan.weight.then(|| inputs[2].slice::<f32>());
        let bias = plan.bias.then(|| inputs[2 + usize::from(plan.weight)].slice::<f32>());
        let rows = out.slice::<f32>().par_chunks_mut(inner).zip(x.par_chunks(inner)).enumerate();
        rows.with_min_len(plan.rows_per_task()).for_each(|(row, (out, x))| {
            let (mean, scale) = plan.statistics(stats, row % channels);
            out.iter_mut().zip(x).for_each(|(out, x)| *out = (x - mean) * scale);
            plan.weigh(row, out, weight);
            plan.add_bias(row, out, bias);
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let (plan, x, stats) = (&self.0, &inputs[0], &inputs[1]);
        let weight = if plan.weight { &inputs[2] } else { stats }; // the kernel looks at neither that is not there
        let bias = if plan.bias { &inputs[2 + usize::from(plan.weight)] } else { stats };
        let offsets = [x.offset(), stats.offset(), weight.offset(), bias.offset()];
        let buffers = [x, stats, weight, bias].map(|t| t.buffer.clone());
        Ok(vec![plan.kernel("normalise", offsets, buffers.into(), out)?])
    }

    /// d bias = Σ g, d weight = Σ g · x̂, both over the elements of a feature.
    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let plan = self.0;
        let (x, stats, g) = (ctx.inputs[0].detach(), &ctx.inputs[1], ctx.grad.contiguous()?);
        let weight = plan.weight.then(|| ctx.inputs[2].detach());
        let mut grads = vec![None, None];
        if ctx.needs[0] {
            let inputs: Vec<&Tensor> = [&x, stats, &g].into_iter().chain(&weight).collect();
            grads[0] = Some(apply(NormaliseBackward(plan), &inputs)?);
        }
        let by_feature = |t: &Tensor, like: &Tensor| {
            let rows = t.elem_count() / (plan.features * plan.span).max(1);
            t.reshape([rows, plan.features, plan.span])?.sum(&[0, 2], false)?.reshape(like.shape())
        };
        for (i, input) in ctx.inputs.iter().enumerate().skip(2) {
            let is_weight = plan.weight && i == 2;
            grads.push(match (ctx.needs[i], is_weight) {
                (false, _) => None,
                (true, false) => Some(by_feature(&g, input)?),
                (true, true) => {
                    let plain = Normalise(Plan { weight: false, bias: false, ..plan });
                    Some(by_feature(&apply(plain, &[&x, stats])?.mul(&g)?, input)?)
                }
            });
        }
        Ok(grads)
    }
}

impl Op for NormaliseBackward {
    fn name(&self) -> &'static str {
        "norm_backward"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        Ok(Spec::Fresh(inputs[0].shape().to_vec(), DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let plan = &self.0;
        let [outer, channels, inner] = plan.sizes;
        let (x, stats, g) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), inputs[2].slice::<f32>());
        let weight = plan.weight.then(|| inputs[3].slice::<f32>());
        // t = g · weight, from which dx is made in place.
        let out = out.slice::<f32>();
        let rows = out.par_chunks_mut(inner).zip(g.par_chunks(inner)).enumerate();
        rows.with_min_len(plan.rows_per_task()).for_each(|(row, (out, g))| {
            out.copy_from_slice(g);
            plan.weigh(row, out, weight);
        });
        let (t, count) = (&*out, plan.count() as f64);
        let slopes = |c: usize| {
            let (mean, scale) = plan.statistics(stats, c);
            let mut sums = [0f64; 2];
            for start in (0..outer).map(|a| (a * channels + c) * inner) {
                let (t, x) = (&t[start..][..inner], &x[start..][..inner]);
                sums[0] += total(t, |v| v);
                sums[1] += f64::from(scale) * dot(t, x, mean);
            }
            sums.map(|sum| if plan.fixed { 0.0 } else { (sum / count) as f32 })
        };
        let slopes: Vec<[f32; 2]> = (0..channels).into_par_iter().with_min_len(8).map(slopes).collect();
        let rows = out.par_chunks_mut(inner).zip(x.par_chunks(inner)).enumerate();
        rows.with_min_len(plan.rows_per_task()).for_each(|(row, (out, x))| {
            let (mean, scale) = plan.statistics(stats, row % channels);
            let [sum, product] = slopes[row % channels];
            let sum = if plan.centre { sum } else { 0.0 };
            out.iter_mut().zip(x).for_each(|(t, x)| *t = (*t - sum - (x - mean) * scale * product) * scale);
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let (plan, x, stats, g) = (&self.0, &inputs[0], &inputs[1], &inputs[2]);
        let weight = if plan.weight { &inputs[3] } else { stats };
        let offsets = [x.offset(), stats.offset(), weight.offset(), g.offset()];
        let mut buffers: Vec<Buffer> = [x, stats, weight, g].map(|t| t.buffer.clone()).into();
        let (channels, chunks) = (plan.sizes[1], plan.chunks()?);
        let mut kernels = Vec::new();
        if plan.fixed {
            buffers.push(stats.buffer.clone());
        } else {
            let (parts, sums) = (gpu.alloc(2 * channels * chunks)?, gpu.alloc(2 * channels)?);
            kernels.push(plan.kernel("slopes", offsets, buffers.clone(), &parts)?);
            kernels.extend(sum_parts(gpu, &parts, [channels, chunks, 2], &sums)?);
            buffers.push(sums);
        }
        kernels.push(plan.kernel("backward", offsets, buffers, out)?);
        Ok(kernels)
    }
}

/// Σ t · (x − mean)
fn dot(t: &[f32], x: &[f32], mean: f32) -> f64 {
    let part = |(t, x): (&[f32], &[f32])| {
        let mut lanes = [0f32; 16];
        let (rows_t, rows_x) = (t.chunks_exact(16), x.chunks_exact(16));
        let tail: f32 = rows_t.remainder().iter().zip(rows_x.remainder()).map(|(t, x)| t * (x - mean)).sum();
        for (t, x) in rows_t.zip(rows_x) {
            lanes.iter_mut().zip(t.iter().zip(x)).for_each(|(lane, (t, x))| *lane += t * (x - mean));
        }
        f64::from(lanes.iter().sum::<f32>() + tail)
    };
    t.chunks(512).zip(x.chunks(512)).map(part).sum()
}
