//! Pooling to a given number of parts: part `o` of `O` over `L` elements is `⌊o·L / O⌋ .. ⌈(o + 1)·L / O⌉`.

use std::ops::Range;

use crate::sums::{Sum, added};
use crate::tasks::share;

/// The fewest outer indices for a thread.
const FEWEST: usize = 16;

/// Parts of one dimension of `[outer, len, inner]`.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// The elements of the dimension.
    pub len: usize,
    /// The number of parts.
    pub count: usize,
}

impl Parts {
    /// Returns the elements of part `o`.
    pub fn part(&self, o: usize) -> Range<usize> {
        o * self.len / self.count..((o + 1) * self.len).div_ceil(self.count)
    }

    /// Returns the first largest element of part `o` of a column that starts at `x[0]`; neighbours are `inner` apart.
    fn largest(&self, x: &[f32], o: usize, inner: usize) -> usize {
        let better = |at: usize, i: usize| x[i * inner] > x[at * inner] || x[i * inner].is_nan();
        self.part(o).fold(self.part(o).start, |at, i| if better(at, i) { i } else { at })
    }

    /// Computes the largest element or the mean of each part: x `[outer, len, inner]` → `out [outer, count, inner]`.
    pub fn pool(&self, max: bool, inner: usize, x: &[f32], out: &mut [f32]) {
        share(out.chunks_mut(self.count * inner).zip(x.chunks(self.len * inner)), FEWEST, |(out, x)| {
            for (o, line) in out.chunks_mut(inner).enumerate() {
                let part = self.part(o);
                for (j, v) in line.iter_mut().enumerate() {
                    *v = match max {
                        true => x[self.largest(&x[j..], o, inner) * inner + j],
                        false => {
                            (part.clone().map(|i| f64::from(x[i * inner + j])).sum::<f64>() / part.len() as f64) as f32
                        }
                    };
                }
            }
        });
    }

    /// Computes x `[outer, len, inner]` and the gradient g `[outer, count, inner]` of the results → `dx [outer, len, inner]`.
    pub fn gradient(&self, max: bool, inner: usize, [x, g]: [&[f32]; 2], dx: &mut [f32]) {
        let (long, short) = (self.len * inner, self.count * inner);
        let all = dx.chunks_mut(long).zip(x.chunks(long)).zip(g.chunks(short));
        let terms = self.count / self.len + 2; // parts that hold one element
        share(all, FEWEST, |((dx, x), g)| {
            added(dx, terms, |dx| self.spread(max, [x, g], inner, dx), |dx| self.spread(max, [x, g], inner, dx));
        });
    }

    /// Adds the gradient of each part to its elements: to the largest one, or an equal share to each.
    fn spread(&self, max: bool, [x, g]: [&[f32]; 2], inner: usize, dx: &mut [impl Sum]) {
        for (at, &g) in g.iter().enumerate() {
            let (o, j) = (at / inner, at % inner);
            if max {
                dx[self.largest(&x[j..], o, inner) * inner + j].take(g);
                continue;
            }
            let part = self.part(o);
            let share = g / part.len() as f32;
            part.for_each(|i| dx[i * inner + j].take(share));
        }
    }
}
