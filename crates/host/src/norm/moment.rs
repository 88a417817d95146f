//! Means and variances on the CPU.

use crate::sums::total;

/// Elements of one of the CPU's blocks, which fits in the first-level cache.
pub(super) const BLOCK: usize = 2048;

/// Rows of fewer elements are collected until there is a block.
pub(super) const SHORT: usize = BLOCK / 16;

/// The square of the mean, in variances, from which on it is computed again.
const FAR: f64 = 64.0;

/// The count and the mean of some elements, and the sum of their squared distances from it. Two moments combine to
/// the moment of all their elements (Chan et al., 1979). So elements that are read twice are still in the cache,
/// and large squares are not subtracted.
#[derive(Clone, Copy, Default)]
pub struct Moment {
    /// The number of elements.
    pub count: f64,
    /// Their mean.
    pub mean: f64,
    /// The sum of the squared distances from it.
    pub squares: f64,
}

impl Moment {
    /// Returns the moment of rows of one length; around 0 unless `centre`. Short rows are collected first. For loops in
    /// `vectorised!`.
    #[inline(always)]
    pub fn of_rows<'a>(rows: impl Iterator<Item = &'a [f32]>, centre: bool) -> Moment {
        let (mut all, mut short) = (Moment::default(), Vec::new());
        for row in rows {
            if row.len() >= SHORT {
                all = row.chunks(BLOCK).fold(all, |all, part| all.with(Moment::of(part, centre)));
            } else {
                short.extend_from_slice(row);
                if short.len() >= BLOCK {
                    all = all.with(Moment::of(&short, centre));
                    short.clear();
                }
            }
        }
        if short.is_empty() { all } else { all.with(Moment::of(&short, centre)) }
    }

    /// Returns the moment of a slice; around 0 unless `centre`.
    #[inline(always)]
    fn of(values: &[f32], centre: bool) -> Moment {
        let count = values.len() as f64;
        if !centre {
            return Moment::around(values, 0.0);
        }
        let moment = Moment::around(values, total(values, |v| v) / count);
        // Far from 0, sums of f32 lose what sums of differences keep.
        if moment.mean * moment.mean * count > FAR * moment.squares {
            let near = moment.mean as f32;
            return Moment::around(values, f64::from(near) + total(values, |v| v - near) / count);
        }
        moment
    }

    /// Returns the moment of a slice with this mean.
    #[inline(always)]
    fn around(values: &[f32], mean: f64) -> Moment {
        let (count, near) = (values.len() as f64, mean as f32);
        let squares = total(values, |v| (v - near) * (v - near));
        let rounded = mean - f64::from(near);
        Moment { count, mean, squares: squares - count * rounded * rounded }
    }

    /// Returns the moment of the elements of both.
    pub fn with(self, other: Moment) -> Moment {
        let count = self.count + other.count;
        let apart = other.mean - self.mean;
        let part = other.count / count;
        Moment {
            count,
            mean: self.mean + apart * part,
            squares: self.squares + other.squares + apart * apart * self.count * part,
        }
    }
}
