//! Attention of one head on the host, for a panel of queries at a time.
//!
//! The scores of a panel are a matrix `[keys, queries of the panel]`. So a vector has one score of each of several
//! queries, and maxima and sums are over whole vectors. The matrix, as it lies, is the right factor of the product
//! with the values.

use pulp::{Simd, WithSimd};

use crate::matmul::tiles::{Left, Start, VECTORS, panel_width};
use crate::matmul::transpose::transpose;
use crate::memory::{Result, Scratch, scratch};
use crate::tasks::{try_share, try_share_with};
use crate::vectors::{exp_below_zero, larger, with_vectors};

/// The terms that are added up before their sum is added to the total, to limit the rounding error of many terms.
const BLOCK: usize = 32;

/// Rows of a matrix. The elements of a row are next to one another.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    data: &'a [f32],
    /// The distance between two rows.
    step: usize,
}

impl<'a> Rows<'a> {
    /// Returns rows that are `step` apart, the first of them at the beginning of `data`.
    pub fn new(data: &'a [f32], step: usize) -> Self {
        Rows { data, step }
    }

    /// Returns the rows from `first` on.
    fn from(&self, first: usize) -> Self {
        Rows { data: &self.data[first * self.step..], ..*self }
    }

    /// Writes the `[rows, columns]` elements to a panel `[columns, width]`, with zeros in the columns that are left.
    fn transposed(&self, [rows, columns]: [usize; 2], panel: &mut [f32]) {
        let width = panel_width();
        if rows < width {
            panel[..columns * width].fill(0.0);
        }
        transpose(self.data, self.step, [rows, columns], panel, width);
    }

    /// Writes the `[rows, columns]` elements to panels `[rows, width]` of columns.
    fn in_panels(&self, [rows, columns]: [usize; 2], panels: &mut [f32]) {
        let width = panel_width();
        for (panel, first) in panels.chunks_exact_mut(rows * width).zip((0..columns).step_by(width)) {
            let count = width.min(columns - first);
            for (i, to) in panel.chunks_exact_mut(width).enumerate() {
                to[..count].copy_from_slice(&self.data[i * self.step + first..][..count]);
            }
        }
    }
}

/// One head.
pub struct Head<'a> {
    /// The queries `[L, E]`.
    pub q: Rows<'a>,
    /// The keys `[S, E]`.
    pub k: Rows<'a>,
    /// The values `[S, V]`.
    pub v: Rows<'a>,
    /// The numbers of queries and of keys, and the elements of a key and of a value.
    pub sizes: [usize; 4],
    /// The factor of the scores.
    pub scale: f32,
    /// Whether query i attends to the keys 0 to i only.
    pub causal: bool,
}

/// A panel of queries.
#[derive(Clone, Copy)]
struct Panel {
    first: usize,
    count: usize,
    /// The number of keys that one of the queries or more attends to.
    seen: usize,
}

/// Memory for a panel.
struct Work {
    /// Queries or gradients, as columns.
    transposed: Scratch,
    /// The scores and then the weights.
    weights: Scratch,
    /// The reciprocal of each query's sum of weights.
    inverse: Scratch,
    /// A result, as columns.
    out: Scratch,
}

impl Head<'_> {
    fn panel(&self, first: usize) -> Panel {
        let [queries, keys, ..] = self.sizes;
        let count = panel_width().min(queries - first);
        Panel { first, count, seen: if self.causal { keys.min(first + count) } else { keys } }
    }

    fn work(&self) -> Result<Work> {
        let ([_, keys, width, out], panel) = (self.sizes, panel_width());
        let transposed = width.max(out) * panel;
        Ok(Work {
            transposed: scratch(transposed)?,
            weights: scratch(keys * panel)?,
            inverse: scratch(panel)?,
            out: scratch(transposed)?,
        })
    }

    /// Computes the results of all queries.
    pub fn forward(&self, out: &mut [f32]) -> Result<()> {
        let [_, count, width, size] = self.sizes;
        let keys = Left::from(self.k.data, [self.k.step, 1], [count, width])?;
        let values = Left::from(self.v.data, [1, self.v.step], [size, count])?;
        let panels = out.chunks_mut(panel_width() * size).enumerate();
        try_share_with(
            panels,
            1,
            || self.work(),
            |work, (i, out)| {
                let panel = self.panel(i * panel_width());
                self.weigh(&keys, panel, work);
                values.multiply_part([size, panel.seen], &work.weights, &mut work.out);
                with_vectors(Scale { columns: &mut work.out[..size * panel_width()], factors: &work.inverse });
                transpose(&work.out, panel_width(), [size, panel.count], out, size);
                Ok(())
            },
        )
    }

    /// Computes the weights of a panel, not yet divided by their sums, and the reciprocals of the sums.
    fn weigh(&self, keys: &Left, Panel { first, count, seen }: Panel, work: &mut Work) {
        let ([_, _, width, _], panel) = (self.sizes, panel_width());
        let Work { transposed, weights, inverse, .. } = work;
        self.q.from(first).transposed([count, width], transposed);
        // Scales the queries instead of the scores: they usually have fewer elements.
        transposed[..width * panel].iter_mut().for_each(|v| *v *= self.scale);
        keys.multiply_part([seen, width], transposed, weights);
        let weights = &mut weights[..seen * panel];
        if self.causal {
            // Key `first + i` is hidden from the first i queries of the panel.
            for (i, row) in weights.chunks_exact_mut(panel).skip(first).enumerate() {
                row[..i].fill(f32::NEG_INFINITY);
            }
        }
        with_vectors(Exponentials { scores: weights, inverse });
    }

    /// Computes the gradients of the queries, keys and values, one after the other, from the gradient of the
    /// results. The panels are added up in `split` parts, or fewer.
    pub fn backward(&self, g: Rows, out: &mut [f32], split: usize) -> Result<()> {
        let [queries, keys, width, size] = self.sizes;
        let packed = Packed {
            keys: Left::from(self.k.data, [self.k.step, 1], [keys, width])?,
            turned_keys: Left::from(self.k.data, [1, self.k.step], [width, keys])?,
            values: Left::from(self.v.data, [self.v.step, 1], [keys, size])?,
        };
        let (of_queries, sums) = out.split_at_mut(queries * width);
        let rows = queries.div_ceil(panel_width()).div_ceil(split) * panel_width();
        let parts = queries.div_ceil(rows);
        if parts == 1 {
            sums.fill(0.0);
            return self.add_gradients(&packed, g, [0, queries], of_queries, sums);
        }
        let mut partial = scratch(parts * sums.len())?;
        partial.fill(0.0);
        let each = of_queries.chunks_mut(rows * width).zip(partial.chunks_mut(sums.len())).enumerate();
        try_share(each, 1, |(i, (of_queries, sums))| {
            self.add_gradients(&packed, g, [i * rows, queries.min((i + 1) * rows)], of_queries, sums)
        })?;
        sums.fill(0.0);
        for part in partial.chunks_exact(sums.len()) {
            sums.iter_mut().zip(part).for_each(|(sum, v)| *sum += v);
        }
        Ok(())
    }

    /// Writes the gradients of the queries `start..end`, and adds the parts of these queries in the gradients of the keys
    /// and of the values to `sums`.
    fn add_gradients(
        &self,
        packed: &Packed,
        g: Rows,
        [start, end]: [usize; 2],
        of_queries: &mut [f32],
        sums: &mut [f32],
    ) -> Result<()> {
        let ([_, keys, width, size], side) = (self.sizes, panel_width());
        let (of_keys, of_values) = sums.split_at_mut(keys * width);
        let mut work = self.work()?;
        let mut slopes = scratch(keys * side)?;
        let mut panels = scratch(width.max(size).next_multiple_of(side) * side)?;
        for first in (start..end).step_by(side) {
            let panel = self.panel(first);
            let Panel { count, seen, .. } = panel;
            self.weigh(&packed.keys, panel, &mut work);
            let g = g.from(first);
            g.transposed([count, size], &mut work.transposed);
            packed.values.multiply_part([seen, size], &work.transposed, &mut slopes);
            let weights = &mut work.weights[..seen * side];
            let slopes = &mut slopes[..seen * side];
            with_vectors(Slopes { weights, slopes, inverse: &work.inverse, scale: self.scale });
            packed.turned_keys.multiply_part([width, seen], slopes, &mut work.out);
            transpose(&work.out, side, [width, count], &mut of_queries[(first - start) * width..], width);
            // A row for each key, a term for each query.
            self.q.from(first).in_panels([count, width], &mut panels);
            Left::from(slopes, [side, 1], [seen, count])?.multiply(&panels, width, Start::Result, of_keys, width);
            g.in_panels([count, size], &mut panels);
            Left::from(weights, [side, 1], [seen, count])?.multiply(&panels, size, Start::Result, of_values, size);
        }
        Ok(())
    }
}

/// The keys and values as left factors, for the gradients.
struct Packed {
    keys: Left,
    turned_keys: Left,
    values: Left,
}

/// Replaces the scores of each column by e^(score − maximum), and writes the reciprocals of their sums. A NaN in a column
/// makes its sum NaN.
struct Exponentials<'a> {
    scores: &'a mut [f32],
    inverse: &'a mut [f32],
}

impl WithSimd for Exponentials<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let rows = S::as_mut_simd_f32s(self.scores).0.as_chunks_mut::<VECTORS>().0;
        let (zero, mut max) = (simd.splat_f32s(0.0), [simd.splat_f32s(f32::NEG_INFINITY); VECTORS]);
        for row in rows.iter() {
            for j in 0..VECTORS {
                max[j] = larger(simd, max[j], row[j]);
            }
        }
        let mut totals = [zero; VECTORS];
        for rows in rows.chunks_mut(BLOCK) {
            let mut sums = [zero; VECTORS];
            for row in rows {
                for j in 0..VECTORS {
                    row[j] = exp_below_zero(simd, simd.sub_f32s(row[j], max[j]));
                    sums[j] = simd.add_f32s(sums[j], row[j]);
                }
            }
            for j in 0..VECTORS {
                totals[j] = simd.add_f32s(totals[j], sums[j]);
            }
        }
        for (inverse, total) in S::as_mut_simd_f32s(self.inverse).0.iter_mut().zip(totals) {
            *inverse = simd.div_f32s(simd.splat_f32s(1.0), total);
        }
    }
}

/// Multiplies each column by its factor.
struct Scale<'a> {
    columns: &'a mut [f32],
    factors: &'a [f32],
}

impl WithSimd for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let factors = S::as_simd_f32s(self.factors).0;
        for row in S::as_mut_simd_f32s(self.columns).0.as_chunks_mut::<VECTORS>().0 {
            row.iter_mut().zip(factors).for_each(|(v, factor)| *v = simd.mul_f32s(*v, *factor));
        }
    }
}

/// Divides the weights w by their sums. Replaces the gradients d of the weights by the gradients of the scores
/// before they are scaled: `w · (d − Σ w d) · scale`, with the sum over a column.
struct Slopes<'a> {
    weights: &'a mut [f32],
    slopes: &'a mut [f32],
    inverse: &'a [f32],
    scale: f32,
}

impl WithSimd for Slopes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let weights = S::as_mut_simd_f32s(self.weights).0.as_chunks_mut::<VECTORS>().0;
        let slopes = S::as_mut_simd_f32s(self.slopes).0.as_chunks_mut::<VECTORS>().0;
        let (zero, scale) = (simd.splat_f32s(0.0), simd.splat_f32s(self.scale));
        let mut inverse = [zero; VECTORS];
        inverse.iter_mut().zip(S::as_simd_f32s(self.inverse).0).for_each(|(to, from)| *to = *from);
        let mut means = [zero; VECTORS];
        for (weights, slopes) in weights.chunks_mut(BLOCK).zip(slopes.chunks(BLOCK)) {
            let mut sums = [zero; VECTORS];
            for (weights, slopes) in weights.iter_mut().zip(slopes) {
                for j in 0..VECTORS {
                    weights[j] = simd.mul_f32s(weights[j], inverse[j]);
                    sums[j] = simd.mul_add_e_f32s(weights[j], slopes[j], sums[j]);
                }
            }
            for j in 0..VECTORS {
                means[j] = simd.add_f32s(means[j], sums[j]);
            }
        }
        for (weights, slopes) in weights.iter().zip(slopes) {
            for j in 0..VECTORS {
                let off = simd.mul_f32s(simd.sub_f32s(slopes[j], means[j]), scale);
                slopes[j] = simd.mul_f32s(weights[j], off);
            }
        }
    }
}
