//! The gradient of a normalisation: two sums for each statistic, and the gradient of x, computed from them.

use std::sync::Arc;

use rayon::prelude::*;

use super::{NormShape, Normalise, SHADER};
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Op, Output, apply};
use crate::tensor::Tensor;

/// x, statistics, a gradient g, the weight if there is one → `[2, C]`: for each c, Σ t and Σ t · x̂ of
/// t = g · weight.
#[derive(Debug)]
pub(super) struct GradientSums(pub NormShape);

/// x, statistics, a gradient g, the gradient sums, the weight if there is one → the gradient of x.
#[derive(Debug)]
pub(super) struct NormaliseBackward(pub NormShape);

impl Normalise {
    /// Returns the gradient sums of t = g · weight over all ranks, from sums over g if `weight` is given (one weight
    /// for each channel). Each rank has the gradient of the mean over its own samples, and a step takes the mean of
    /// these gradients, weighted by the ranks' shares. The gradient sums are combined in the same way.
    pub(super) fn joined(&self, gradient_sums: &Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
        let gradient_sums = match weight {
            Some(weight) => gradient_sums.mul(&weight.reshape([self.0.sizes[1]])?)?,
            None => gradient_sums.clone(),
        };
        let Some(rank) = &self.1 else { return Ok(gradient_sums) };
        let sums = rank.weighted_sum(gradient_sums.to_vec()?)?;
        Tensor::from_slice(&sums, gradient_sums.shape(), gradient_sums.device())
    }

    /// Returns Σ g, or Σ g · x̂, for each feature.
    pub(super) fn by_feature(&self, [x, stats, g]: [&Tensor; 3], times_x: bool) -> Result<Tensor> {
        let norm = NormShape { weight: false, bias: false, ..self.0 };
        let product = match times_x {
            true => apply(Normalise(norm, None), &[x, stats])?.mul(g)?,
            false => g.clone(),
        };
        let rows = product.elem_count() / (norm.features * norm.span).max(1);
        product.reshape([rows, norm.features, norm.span])?.sum([0, 2], false)
    }
}

impl Op for GradientSums {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;

    fn name(&self) -> &'static str {
        "norm_gradient_sums"
    }

    fn output(&self, _inputs: &[&Tensor]) -> Result<Output> {
        Ok((vec![2, self.0.sizes[1]], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let norm = &self.0;
        let [outer, channels, inner] = norm.sizes;
        let (x, stats, g) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), inputs[2].slice::<f32>());
        let weight = norm.weight.then(|| inputs[3].slice::<f32>());
        let (sums, products) = out.slice::<f32>().split_at_mut(channels);
        let all = sums.par_iter_mut().zip(products).enumerate();
        all.with_min_len((4096 / norm.count().max(1)).max(1)).for_each(|(c, (sum, product))| {
            let (mean, scale) = norm.statistics(stats, c);
            let (mut total, mut weighed) = ([0f64; 2], Vec::new());
            for row in (0..outer).map(|a| a * channels + c) {
                let (mut t, x) = (&g[row * inner..][..inner], &x[row * inner..][..inner]);
                if weight.is_some() {
                    weighed.clear();
                    weighed.extend_from_slice(t);
                    norm.weigh(row, &mut weighed, weight);
                    t = &weighed;
                }
                add_gradient_sums(t, x, mean, &mut total);
            }
            (*sum, *product) = (total[0] as f32, (total[1] * f64::from(scale)) as f32);
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (norm, x, stats, g) = (&self.0, &inputs[0], &inputs[1], &inputs[2]);
        let parts = norm.sizes[1] * norm.chunks()?;
        let target = gpu.alloc(2 * parts)?;
        let kernel = norm.over((SHADER, "gradient_sums"), 1, [x, stats, g], inputs.get(3))?;
        let mut kernels = vec![kernel.output(&target).each(parts)];
        kernels.extend(sum_parts(gpu, &target, [2 * norm.sizes[1], norm.chunks()?, 1], out)?);
        Ok(kernels)
    }
}

impl Op for NormaliseBackward {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;

    fn name(&self) -> &'static str {
        "norm_backward"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((inputs[0].shape().to_vec(), DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let norm = &self.0;
        let [_, channels, inner] = norm.sizes;
        let [x, stats, g, gradient_sums] = [0, 1, 2, 3].map(|i| inputs[i].slice::<f32>());
        let weight = norm.weight.then(|| inputs[4].slice::<f32>());
        let count = norm.count() as f32;
        let rows =
            out.slice::<f32>().par_chunks_mut(inner).zip(x.par_chunks(inner).zip(g.par_chunks(inner))).enumerate();
        rows.with_min_len(norm.rows_per_task()).for_each(|(row, (out, (x, g)))| {
            let c = row % channels;
            let (mean, scale) = norm.statistics(stats, c);
            let [sum, product] = match norm.fixed {
                true => [0.0; 2],
                false => {
                    [if norm.centre { gradient_sums[c] / count } else { 0.0 }, gradient_sums[channels + c] / count]
                }
            };
            // dx = (t − sum − x̂ · product) · scale, with x̂ = (x − mean) · scale
            let steep = scale * product;
            let dx = |t: f32, x: f32| (t - sum - (x - mean) * steep) * scale;
            if norm.by_channel() {
                let weight = weight.map_or(1.0, |weight| weight[c]);
                out.iter_mut().zip(x.iter().zip(g)).for_each(|(out, (&x, &g))| *out = dx(g * weight, x));
            } else {
                out.copy_from_slice(g);
                norm.weigh(row, out, weight);
                out.iter_mut().zip(x).for_each(|(out, &x)| *out = dx(*out, x));
            }
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let norm = &self.0;
        let [x, stats, g, gradient_sums] = [0, 1, 2, 3].map(|i| &inputs[i]);
        let (kernel, count) = norm.by_element(gpu, "backward", [x, stats, g], inputs.get(4))?;
        // The gradient sums have offset 0: they are not a view.
        Ok(vec![kernel.input(gradient_sums).output(out).each(count)])
    }
}

/// Computes `totals ← totals + [Σ t, Σ t · (x − mean)]`, in one pass.
fn add_gradient_sums(t: &[f32], x: &[f32], mean: f32, totals: &mut [f64; 2]) {
    for (t, x) in t.chunks(512).zip(x.chunks(512)) {
        let (mut sums, mut products) = ([0f32; 16], [0f32; 16]);
        let (rows_t, rows_x) = (t.chunks_exact(16), x.chunks_exact(16));
        let rest = rows_t.remainder().iter().zip(rows_x.remainder());
        let tail = rest.fold([0f32; 2], |[sum, product], (t, x)| [sum + t, product + t * (x - mean)]);
        for (t, x) in rows_t.zip(rows_x) {
            for i in 0..16 {
                sums[i] += t[i];
                products[i] += t[i] * (x[i] - mean);
            }
        }
        totals[0] += f64::from(sums.iter().sum::<f32>() + tail[0]);
        totals[1] += f64::from(products.iter().sum::<f32>() + tail[1]);
    }
}
