//! The cross-entropy of class scores, without their log-probabilities in memory, and its gradient.

use std::ops::Range;
use std::sync::Arc;

use anygpu_host::tasks::share;
use anygpu_host::vectorised;
use anygpu_host::vectors::with_vectors;
use pulp::{Simd, WithSimd};

use super::{Labelled, Nll, Params, Pass, SHADER, SHARED, SHARED_IN_FOURS};
use crate::autograd::is_recording;
use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::elementwise::unary::CHUNK;
use crate::ops::index::range::check_labels_on_adapter;
use crate::ops::names::{Names, names};
use crate::ops::reduction::plan::{Rows, Way, are_shared, way};
use crate::ops::reduction::softmax::{COLUMNS, MAX_ROW, columns, exponentials, largest};
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply, expect_dtype};
use crate::tensor::Tensor;

/// Scores `[A, C, B]`, labels `[A, B]`, the weights of the classes if there are any → `[A, B]`:
/// `w[label] · (log Σ exp(x) − x[label])`.
#[derive(Debug)]
struct CrossEntropy(Nll);

/// Its gradient, from the gradient of the result and the same inputs: `w[label] · g · (softmax(x) − [c = label])`.
#[derive(Debug)]
struct CrossEntropyGrad(Nll);

impl Labelled {
    /// Returns the loss `−w[label] · log softmax(x)[label]` of f32 scores: `[N, ..]`, 0 where the label is ignored.
    pub(crate) fn cross_entropy(&self, scores: &Tensor) -> Result<Tensor> {
        let long = self.op.classes > MAX_ROW && !scores.device().is_cpu();
        if long && !are_shared(scores.device(), self.op.rows(scores.shape(), 0))? {
            return self.losses(&scores.log_softmax(1)?);
        }
        apply(CrossEntropy(self.op), &[scores, &self.labels].into_iter().chain(&self.weights).collect::<Vec<_>>())
    }
}

impl Nll {
    /// Returns the division of the scores, the labels and the gradient, if there is one, into rows; the weights of the classes stay
    /// whole.
    fn by_rows(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        let weights = |i: usize| self.weighted && i == 2;
        (dim == 0).then(|| (0..shapes.len()).map(|i| (!weights(i)).then_some(0)).collect())
    }

    /// Returns the rows of scores of a shape `[N, C, ..]`, dense from an offset on.
    fn rows(&self, shape: &[usize], offset: usize) -> Rows {
        Rows::new([shape[0], self.classes, self.inner], offset)
    }

    /// Returns the weight of each label; `None` for one that is ignored.
    fn factors(&self, labels: &[u32], weights: Option<&[f32]>) -> Result<Vec<Option<f32>>> {
        labels.iter().enumerate().map(|(n, &label)| self.weight(n, label, weights)).collect()
    }

    /// Calls `f` with each part of some rows: its scores, its elements of `out`, and which labels are its own. A part has whole
    /// `[C, B]`.
    fn by_part(&self, x: &[f32], out: (&mut [f32], usize), f: impl Fn(&[f32], &mut [f32], Range<usize>) + Sync) {
        let block = self.classes * self.inner;
        let count = (CHUNK / block.max(1)).max(1);
        if block == 0 {
            return out.0.fill(0.0); // all labels are ignored, as none can be a class
        }
        let parts = out.0.chunks_mut(count * out.1).zip(x.chunks(count * block)).enumerate();
        share(parts, 1, |(i, (out, x))| {
            let first = i * count * self.inner;
            f(x, out, first..first + x.len() / block * self.inner);
        });
    }
}

/// Returns the shader whose workgroups share rows.
fn shared(rows: Rows) -> Shader<Params> {
    if rows.width == 4 { SHARED_IN_FOURS } else { SHARED }
}

impl Op for CrossEntropy {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["cross_entropy"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        expect_dtype("cross_entropy", inputs[1], DType::U32)?;
        Ok((inputs[1].shape().to_vec(), DType::F32))
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        self.0.by_rows(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let Nll { classes, inner, .. } = self.0;
        let (x, labels) = (inputs[0].slice::<f32>(), inputs[1].slice::<u32>());
        let factors = self.0.factors(labels, inputs.get(2).map(CpuIn::slice::<f32>))?;
        self.0.by_part(x, (out.slice::<f32>(), inner), |x, out, own| {
            let (labels, factors) = (&labels[own.clone()], &factors[own]);
            let mut scratch = vec![0.0; classes * inner];
            if inner == 1 {
                return with_vectors(Losses { x, labels, factors, out, scratch: &mut scratch });
            }
            for (a, (x, out)) in x.chunks(classes * inner).zip(out.chunks_mut(inner)).enumerate() {
                let starts = (0..inner).step_by(COLUMNS);
                starts.for_each(|first| vectorised!(<M> columns::<M>(x, &mut scratch, (first, inner), true)));
                for (b, out) in out.iter_mut().enumerate() {
                    let n = a * inner + b;
                    *out = factors[n].map_or(0.0, |w| -w * scratch[labels[n] as usize * inner + b]);
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let labels = &inputs[1];
        let count = labels.elem_count();
        let rows = self.0.rows(inputs[0].shape(), inputs[0].offset());
        let start = |kernel, lanes| self.0.kernel(kernel, [&inputs[0], labels], inputs.get(2), None, (count, lanes));
        let kernel = match way(&**gpu, rows)? {
            Way::Alone => start((SHADER, "cross_entropy"), 1).output(out).each(count),
            Way::Shared { lanes, .. } => {
                let kernel = start((shared(rows), "losses"), lanes).output(out);
                kernel.workgroups(Way::workgroups(count, lanes))
            }
        };
        let Nll { classes, ignored, given, .. } = self.0;
        let check = check_labels_on_adapter(gpu, (self.name(), given), labels, classes, ignored)?;
        Ok(vec![check, kernel])
    }

    fn saves(&self) -> Saves {
        Saves::Inputs
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let inputs: Vec<&Tensor> = ctx.inputs.iter().chain([ctx.grad]).collect();
        let mut all = vec![None; ctx.inputs.len()];
        let slopes =
            if is_recording() { self.composed_gradient(ctx) } else { apply(CrossEntropyGrad(self.0), &inputs) };
        all[0] = Some(slopes?);
        Ok(all)
    }
}

impl CrossEntropy {
    /// Returns the gradient by ops that have gradients themselves.
    fn composed_gradient(&self, ctx: &Gradient) -> Result<Tensor> {
        let (x, labels, grad) = (&ctx.inputs[0], &ctx.inputs[1], ctx.grad);
        let weighted = |first| [first, labels].into_iter().chain(ctx.inputs.get(2)).collect::<Vec<_>>();
        let factors = apply(Nll { pass: Pass::Weights, ..self.0 }, &weighted(labels))?;
        let mut x = x.clone();
        if let Some(ignored) = self.0.ignored {
            // Their scores may be anything.
            let seen = labels.ne(&Tensor::full(labels.shape(), ignored, labels.device())?)?;
            x = seen.unsqueeze(1)?.where_cond(&x, 0.0)?;
        }
        let by_class = x.softmax(1)?.mul(&factors.mul(grad)?.unsqueeze(1)?)?;
        by_class.add(&apply(Nll { pass: Pass::Backward, ..self.0 }, &weighted(grad))?)
    }
}

impl Op for CrossEntropyGrad {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["cross_entropy"];

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        self.0.by_rows(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let Nll { classes, inner, weighted, .. } = self.0;
        let (x, labels) = (inputs[0].slice::<f32>(), inputs[1].slice::<u32>());
        let (weights, g) = (weighted.then(|| inputs[2].slice::<f32>()), inputs[inputs.len() - 1].slice::<f32>());
        let mut factors = self.0.factors(labels, weights)?;
        factors.iter_mut().zip(g).for_each(|(factor, g)| *factor = factor.map(|weight| weight * g));
        self.0.by_part(x, (out.slice::<f32>(), classes * inner), |x, out, own| {
            let (labels, factors) = (&labels[own.clone()], &factors[own]);
            if inner == 1 {
                return with_vectors(Slopes { x, labels, factors, out, classes });
            }
            for (a, (x, out)) in x.chunks(classes * inner).zip(out.chunks_mut(classes * inner)).enumerate() {
                let starts = (0..inner).step_by(COLUMNS);
                starts.for_each(|first| vectorised!(<M> columns::<M>(x, out, (first, inner), false)));
                for (c, out) in out.chunks_mut(inner).enumerate() {
                    for (b, out) in out.iter_mut().enumerate() {
                        let n = a * inner + b;
                        let own = if labels[n] as usize == c { 1.0 } else { 0.0 };
                        *out = factors[n].map_or(0.0, |factor| factor * (*out - own));
                    }
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, labels, weights) = (&inputs[0], &inputs[1], self.0.weighted.then(|| &inputs[2]));
        let count = labels.elem_count();
        let rows = self.0.rows(x.shape(), x.offset());
        let start = |kernel, lanes| self.0.kernel(kernel, [x, labels], weights, inputs.last(), (count, lanes));
        Ok(vec![match way(&**gpu, rows)? {
            Way::Alone => start((SHADER, "cross_entropy_grad"), 1).output(out).each(count),
            Way::Shared { lanes, .. } => {
                let kernel = start((shared(rows), rows.entry(lanes)), lanes).output(out);
                kernel.workgroups(Way::workgroups(count, lanes))
            }
        }])
    }
}

/// Computes losses on the host, of rows of scores that lie side by side.
struct Losses<'a> {
    x: &'a [f32],
    labels: &'a [u32],
    factors: &'a [Option<f32>],
    out: &'a mut [f32],
    scratch: &'a mut [f32],
}

impl WithSimd for Losses<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Losses { x, labels, factors, out, scratch } = self;
        let mut rows = x.chunks_exact(scratch.len()).peekable();
        let mut max = rows.peek().map_or(f32::NEG_INFINITY, |row| largest(simd, row));
        for ((out, &label), factor) in out.iter_mut().zip(labels).zip(factors) {
            let Some(row) = rows.next() else { return };
            let (sum, next) = exponentials(simd, row, max, scratch, rows.peek().unwrap_or(&row));
            *out = factor.map_or(0.0, |weight| -weight * ((row[label as usize] - max) - sum.ln() as f32));
            max = next;
        }
    }
}

/// Computes gradients on the host, of rows of scores that lie side by side.
struct Slopes<'a> {
    x: &'a [f32],
    labels: &'a [u32],
    factors: &'a [Option<f32>],
    out: &'a mut [f32],
    classes: usize,
}

impl WithSimd for Slopes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Slopes { x, labels, factors, out, classes } = self;
        let mut rows = x.chunks_exact(classes).peekable();
        let mut max = rows.peek().map_or(f32::NEG_INFINITY, |row| largest(simd, row));
        for ((out, &label), factor) in out.chunks_exact_mut(classes).zip(labels).zip(factors) {
            let Some(row) = rows.next() else { return };
            let (sum, next) = exponentials(simd, row, max, out, rows.peek().unwrap_or(&row));
            match factor {
                None => out.fill(0.0),
                Some(factor) => {
                    let scale = (f64::from(*factor) / sum) as f32;
                    out.iter_mut().for_each(|v| *v *= scale);
                    out[label as usize] -= factor;
                }
            }
            max = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::device::Device;
    use crate::error::Result;
    use crate::nn::{self, CrossEntropyLoss, Reduction};
    use crate::tensor::Tensor;

    /// More rows than one part of the host has, of few and of many classes, beside the log-probabilities.
    #[test]
    fn all_parts_are_those_of_the_log_probabilities() -> Result<()> {
        for device in Device::all() {
            for shape in [vec![40, 1000], vec![5000, 7], vec![3, 20_000], vec![70, 33, 9]] {
                let count: usize = shape.iter().product();
                let numbers = |i: usize| (i as f32 * 0.7).sin() * 4.0;
                let scores = || Tensor::from_vec((0..count).map(numbers).collect(), &shape[..], &device);
                let (a, b) = (scores()?.requires_grad(), scores()?.requires_grad());
                let places: Vec<usize> = [&shape[..1], &shape[2..]].concat();
                let labels = (0..places.iter().product()).map(|i: usize| (i * 7919 % shape[1]) as u32).collect();
                let labels = Tensor::from_vec::<u32>(labels, &places[..], &device)?;
                let (one, two) =
                    (a.cross_entropy(&labels)?, nn::nll_loss(&b.log_softmax(1)?, &labels, Reduction::Mean)?);
                assert!((one.item::<f32>()? - two.item::<f32>()?).abs() < 1e-5, "{device} {shape:?}");
                one.backward()?;
                two.backward()?;
                let (a, b) = (a.grad().unwrap().to_vec::<f32>()?, b.grad().unwrap().to_vec::<f32>()?);
                let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst * (places.iter().product::<usize>() as f32) < 1e-5, "{device} {shape:?}: {worst}");
            }
        }
        Ok(())
    }

    #[test]
    fn ignored_labels_give_zeros_whatever_the_scores() -> Result<()> {
        let loss = CrossEntropyLoss::new().ignore_index(-1).reduction(Reduction::None);
        for device in Device::all() {
            let scores = [f32::NAN, 1.0, 2.0, f32::NEG_INFINITY, 0.0, 0.0, f32::INFINITY, 0.0, 0.0];
            let scores = Tensor::from_slice(&scores, [3, 3], &device)?.requires_grad();
            let labels = Tensor::from_slice(&[-1, 1, -1], [3], &device)?;
            let losses = loss.forward(&scores, &labels)?;
            losses.sum_all()?.backward()?;
            let losses = losses.to_vec::<f32>()?;
            assert!(
                losses[0] == 0.0 && (losses[1] - 2f32.ln()).abs() < 1e-6 && losses[2] == 0.0,
                "{device}: {losses:?}"
            );
            let grad = scores.grad().map(|grad| grad.to_vec::<f32>()).transpose()?.unwrap_or_default();
            let expected = [0.0, 0.0, 0.0, 0.0, -0.5, 0.5, 0.0, 0.0, 0.0];
            let close = grad.iter().zip(expected).all(|(grad, expected)| (grad - expected).abs() < 1e-6);
            assert!(close && grad.len() == 9, "{device}: {grad:?}");

            let none = Tensor::zeros([2, 0], &device)?;
            let labels = Tensor::from_slice(&[-1, -1], [2], &device)?;
            assert_eq!(loss.forward(&none, &labels)?.to_vec::<f32>()?, [0.0; 2], "{device}");
        }
        Ok(())
    }
}
