//! The loops of normalisations on the host, over rows of `[A · C, B]`.

use std::ops::Range;

use super::moment::{BLOCK, Moment, SHORT};
use super::{NormShape, Then};
use crate::tasks::share;
use crate::vectorised;

/// The approximate number of elements of a task.
const TASK: usize = 8192;

impl NormShape {
    /// Calls `f(range, first feature)` for the parts of row `i` whose elements have one feature each, or consecutive ones.
    #[inline(always)]
    fn runs(&self, row: usize, mut f: impl FnMut(Range<usize>, usize)) {
        let inner = self.sizes[2];
        let step = if self.span == 1 { inner } else { self.span };
        for start in (0..inner).step_by(step.max(1)) {
            f(start..start + step, (row * inner + start) / self.span % self.features);
        }
    }

    /// Calls `f` for each value of a row with the weight or bias of its feature, if there is one.
    #[inline(always)]
    fn affine(&self, row: usize, values: &mut [f32], by_feature: Option<&[f32]>, f: impl Fn(&mut f32, f32)) {
        let Some(by_feature) = by_feature else { return };
        self.runs(row, |range, first| match self.span {
            1 => {
                for (v, &w) in values[range].iter_mut().zip(&by_feature[first..]) {
                    f(v, w);
                }
            }
            _ => {
                for v in &mut values[range] {
                    f(v, by_feature[first]);
                }
            }
        });
    }

    #[inline(always)]
    fn weigh(&self, row: usize, values: &mut [f32], weight: Option<&[f32]>) {
        self.affine(row, values, weight, |v, w| *v *= w);
    }

    /// Returns the numbers of each c, `of(c)`, if several rows have them; see [`NormShape::numbers_of`].
    fn table(&self, of: impl Fn(usize) -> [f32; 4]) -> Vec<[f32; 4]> {
        (0..if self.sizes[0] > 1 { self.sizes[1] } else { 0 }).map(of).collect()
    }

    /// Returns the numbers of a row's c, from the table if there is one.
    #[inline(always)]
    fn numbers_of(&self, row: usize, table: &[[f32; 4]], of: impl Fn(usize) -> [f32; 4]) -> [f32; 4] {
        let c = row % self.sizes[1];
        table.get(c).copied().unwrap_or_else(|| of(c))
    }

    /// Returns the number of elements of whole rows that make one task large enough.
    fn task(&self) -> usize {
        (TASK / self.sizes[2].max(1)).max(1) * self.sizes[2]
    }
}

/// Returns the part of an operand that belongs to task `i`.
fn part(values: &[f32], i: usize, task: usize) -> &[f32] {
    &values[i * task..values.len().min((i + 1) * task)]
}

/// Computes `out ← x̂ · weight + bias`, and what follows.
pub fn normalise(
    norm: &NormShape,
    [x, stats]: [&[f32]; 2],
    [weight, bias, residual]: [Option<&[f32]>; 3],
    out: &mut [f32],
) {
    let (task, by_channel) = (norm.task(), norm.by_channel());
    let numbers = |c: usize| {
        let (mean, scale) = norm.statistics(stats, c);
        let of = |values: Option<&[f32]>, default| values.filter(|_| by_channel).map_or(default, |values| values[c]);
        [mean, scale, of(weight, 1.0), of(bias, 0.0)]
    };
    let table = norm.table(numbers);
    share(out.chunks_mut(task).zip(x.chunks(task)).enumerate(), 1, |(i, (out, x))| {
        let residual = residual.map(|residual| part(residual, i, task));
        let inner = norm.sizes[2];
        vectorised!(for (r, (out, x)) in out.chunks_mut(inner).zip(x.chunks(inner)).enumerate() {
            let row = i * task / inner + r;
            let numbers = norm.numbers_of(row, &table, numbers);
            let residual = residual.map(|residual| &residual[r * inner..][..inner]);
            standardise(x, numbers, norm.then, residual, out);
            if !by_channel {
                norm.weigh(row, out, weight);
                norm.affine(row, out, bias, |v, b| *v += b);
            }
        });
    });
}

/// Computes `out ← x̂ · weight + bias` with the statistics of each row, one row after the other: each is in the cache when its
/// statistics are known.
pub fn normalise_rows(norm: &NormShape, x: &[f32], [weight, bias]: [Option<&[f32]>; 2], out: &mut [f32]) {
    let (task, inner) = (norm.task(), norm.sizes[2]);
    // One weight and one bias for each place of a row.
    let places = norm.span == 1 && norm.features == inner;
    share(out.chunks_mut(task).zip(x.chunks(task)).enumerate(), 1, |(i, (out, x))| {
        vectorised!(for (r, (out, x)) in out.chunks_mut(inner).zip(x.chunks(inner)).enumerate() {
            let total = Moment::of_rows(std::iter::once(x), norm.centre);
            let (mean, variance) = (total.mean as f32, (total.squares / total.count) as f32);
            let scale = norm.scale(variance);
            if let (Some(weight), Some(bias), true) = (weight, bias, places) {
                for (((out, &x), &w), &b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                    *out = (x - mean) * scale * w + b;
                }
                continue;
            }
            for (out, &x) in out.iter_mut().zip(x) {
                *out = (x - mean) * scale;
            }
            let row = i * task / inner + r;
            norm.weigh(row, out, weight);
            norm.affine(row, out, bias, |v, b| *v += b);
        });
    });
}

/// Computes a row of `(x − mean) · scale · weight + bias`, and what follows.
#[inline(always)]
fn standardise(
    x: &[f32],
    [mean, scale, weight, bias]: [f32; 4],
    then: Then,
    residual: Option<&[f32]>,
    out: &mut [f32],
) {
    let affine = |x: f32| (x - mean) * scale * weight + bias;
    let relu = |v: f32| if v <= 0.0 { 0.0 } else { v };
    match (then, residual) {
        (Then::Nothing, _) => {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = affine(x);
            }
        }
        (_, None) => {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = relu(affine(x));
            }
        }
        (_, Some(residual)) => {
            for ((out, &x), &residual) in out.iter_mut().zip(x).zip(residual) {
                *out = relu(affine(x) + residual);
            }
        }
    }
}

/// Computes Σ t, then Σ t · x̂, for each c, of t = g · weight. `y` is the result if relu follows.
pub fn gradient_sums(norm: &NormShape, [x, stats, g]: [&[f32]; 3], [weight, y]: [Option<&[f32]>; 2], out: &mut [f32]) {
    let (sums, products) = out.split_at_mut(norm.sizes[1]);
    share(sums.iter_mut().zip(products).enumerate(), 4096 / norm.count().max(1), |(c, (sum, product))| {
        let (mean, scale) = norm.statistics(stats, c);
        let total = vectorised!(sums_of(norm, (c, mean), [x, g], [weight, y]));
        (*sum, *product) = (total[0] as f32, (total[1] * f64::from(scale)) as f32);
    });
}

/// Computes Σ t and Σ t · (x − mean) of one c. Short rows are collected first, and rows with a weight of each element.
#[inline(always)]
fn sums_of(
    norm: &NormShape,
    (c, mean): (usize, f32),
    [x, g]: [&[f32]; 2],
    [weight, y]: [Option<&[f32]>; 2],
) -> [f64; 2] {
    let [outer, channels, inner] = norm.sizes;
    let (mut totals, mut terms, mut pixels) = ([0f64; 2], Vec::new(), Vec::new());
    for row in (0..outer).map(|a| a * channels + c) {
        let range = row * inner..(row + 1) * inner;
        let (g, x, y) = (&g[range.clone()], &x[range.clone()], y.map(|y| &y[range]));
        match y {
            Some(y) if inner >= SHORT => add_gradient_sums::<true>(g, x, y, mean, &mut totals),
            None if inner >= SHORT && weight.is_none() => add_gradient_sums::<false>(g, x, g, mean, &mut totals),
            _ => {
                let start = terms.len();
                terms.extend_from_slice(g);
                pixels.extend_from_slice(x);
                for (t, y) in terms[start..].iter_mut().zip(y.unwrap_or_default()) {
                    *t = if *y == 0.0 { 0.0 } else { *t };
                }
                norm.weigh(row, &mut terms[start..], weight);
            }
        }
        if terms.len() >= BLOCK {
            add_gradient_sums::<false>(&terms, &pixels, &terms, mean, &mut totals);
            terms.clear();
            pixels.clear();
        }
    }
    add_gradient_sums::<false>(&terms, &pixels, &terms, mean, &mut totals);
    totals
}

/// Computes `totals ← totals + [Σ t, Σ t · (x − mean)]`, in one pass; t is 0 where y is 0 if `MASKED`.
#[inline(always)]
fn add_gradient_sums<const MASKED: bool>(t: &[f32], x: &[f32], y: &[f32], mean: f32, totals: &mut [f64; 2]) {
    let term = |t: f32, y: f32| if MASKED && y == 0.0 { 0.0 } else { t };
    for ((t, x), y) in t.chunks(512).zip(x.chunks(512)).zip(y.chunks(512)) {
        let (mut sums, mut products) = ([0f32; 16], [0f32; 16]);
        let [(rows_t, rest_t), (rows_x, rest_x), (rows_y, rest_y)] = [t, x, y].map(|values| values.as_chunks::<16>());
        for ((t, x), y) in rows_t.iter().zip(rows_x).zip(rows_y) {
            for i in 0..16 {
                let t = term(t[i], y[i]);
                sums[i] += t;
                products[i] += t * (x[i] - mean);
            }
        }
        for (i, ((t, x), y)) in rest_t.iter().zip(rest_x).zip(rest_y).enumerate() {
            let t = term(*t, *y);
            sums[i] += t;
            products[i] += t * (x - mean);
        }
        totals[0] += f64::from(sums.iter().sum::<f32>());
        totals[1] += f64::from(products.iter().sum::<f32>());
    }
}

/// Computes the gradient of x from the gradient sums, and after it the gradient of the residual if there is one.
/// `y` is the result if relu follows.
pub fn backward(norm: &NormShape, [x, stats, g, sums]: [&[f32]; 4], [weight, y]: [Option<&[f32]>; 2], out: &mut [f32]) {
    let (task, by_channel, count) = (norm.task(), norm.by_channel(), norm.count() as f32);
    let numbers = |c: usize| {
        let (mean, scale) = norm.statistics(stats, c);
        let [sum, product] = match norm.fixed {
            true => [0.0; 2],
            false => [if norm.centre { sums[c] / count } else { 0.0 }, sums[norm.sizes[1] + c] / count],
        };
        let weight = weight.filter(|_| by_channel).map_or(1.0, |weight| weight[c]);
        [mean, sum, scale * product, scale * weight]
    };
    let table = norm.table(numbers);
    let (out, masked) = out.split_at_mut(x.len());
    let mut masked = masked.chunks_mut(task);
    let tasks: Vec<_> = out.chunks_mut(task).map(|out| (out, masked.next())).collect();
    share(tasks.into_iter().enumerate(), 1, |(i, (out, mut masked))| {
        let (x, g, y) = (part(x, i, task), part(g, i, task), y.map(|y| part(y, i, task)));
        let inner = norm.sizes[2];
        vectorised!(for (r, out) in out.chunks_mut(inner).enumerate() {
            let (row, at) = (i * task / inner + r, r * inner..r * inner + inner);
            let numbers = norm.numbers_of(row, &table, numbers);
            let (x, mut g) = (&x[at.clone()], &g[at.clone()]);
            let fixed = norm.fixed;
            if let (Some(y), Some(masked)) = (y, masked.as_deref_mut()) {
                let masked = &mut masked[at];
                for ((masked, g), y) in masked.iter_mut().zip(g).zip(&y[r * inner..]) {
                    *masked = if *y == 0.0 { 0.0 } else { *g };
                }
                g = masked;
                steps(x, g, numbers, fixed, out);
            } else if let Some(y) = y {
                masked_steps(x, g, &y[at], numbers, fixed, out);
            } else if by_channel || weight.is_none() {
                steps(x, g, numbers, fixed, out);
            } else {
                out.copy_from_slice(g);
                norm.weigh(row, out, weight);
                let [mean, sum, steep, scale] = numbers;
                for (out, &x) in out.iter_mut().zip(x) {
                    *out = (*out - sum - (x - mean) * steep) * scale;
                }
            }
        });
    });
}

/// Computes a row of `(g − sum − (x − mean) · steep) · scale`, or of `g · scale` if the statistics are `fixed`.
#[inline(always)]
fn steps(x: &[f32], g: &[f32], [mean, sum, steep, scale]: [f32; 4], fixed: bool, out: &mut [f32]) {
    if fixed {
        for (out, &g) in out.iter_mut().zip(g) {
            *out = g * scale;
        }
        return;
    }
    for ((out, &x), &g) in out.iter_mut().zip(x).zip(g) {
        *out = (g - sum - (x - mean) * steep) * scale;
    }
}

/// Computes a row as [`steps`] does, with a gradient of 0 where the result is 0.
#[inline(always)]
fn masked_steps(x: &[f32], g: &[f32], y: &[f32], numbers: [f32; 4], fixed: bool, out: &mut [f32]) {
    let [mean, sum, steep, scale] = numbers;
    for (((out, &x), &g), &y) in out.iter_mut().zip(x).zip(g).zip(y) {
        let g = if y == 0.0 { 0.0 } else { g };
        *out = if fixed { g * scale } else { (g - sum - (x - mean) * steep) * scale };
    }
}
