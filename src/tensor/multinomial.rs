//! Draws of positions by given weights.

use crate::device::cpu::with_room;
use crate::error::{Error, Result};
use crate::ops::named;
use crate::shape::checked_elem_count;
use crate::tensor::{Tensor, next_words};

const NAME: &str = "multinomial";

/// Returns a number in (0, 1), in odd multiples of 2⁻⁵³, from two words.
fn open_unit([high, low]: [u32; 2]) -> f64 {
    let bits = u64::from(high) << 20 | u64::from(low) >> 12;
    (2 * bits + 1) as f64 / (1u64 << 53) as f64
}

/// Draws positions with replacement: where each number falls within the running sums of the weights.
fn again(weights: &[f64], mut draw: impl FnMut() -> f64, out: &mut [u32]) {
    let mut sum = 0.0;
    let sums: Vec<f64> = weights
        .iter()
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect();
    // The number may round up to the sum of all: then the last position with a weight is meant.
    let last = weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0);
    for place in out {
        let at = draw() * sum;
        *place = sums.partition_point(|&sum| sum <= at).min(last) as u32;
    }
}

/// Draws different positions, by the order of exponentially distributed times with the weights as rates (Efraimidis & Spirakis,
/// 2006): the order in which draws one after the other would find them.
fn once(weights: &[f64], mut draw: impl FnMut() -> f64, out: &mut [u32]) {
    let mut times: Vec<(f64, u32)> = weights.iter().zip(0..).map(|(weight, i)| (-draw().ln() / weight, i)).collect();
    times.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    out.iter_mut().zip(times).for_each(|(place, (_, i))| *place = i);
}

impl Tensor {
    /// Draws positions with probabilities in proportion to these weights: `[n]` → `[count]`, or `[rows, n]` →
    /// `[rows, count]`.
    ///
    /// The positions are u32. With `replacement`, a position may be drawn several times. Without it, each row has
    /// `count` different positions, in the order in which they were drawn.
    ///
    /// The weights need not add up to 1. They are copied to the host, which computes the positions in f64 with the
    /// generator that [`manual_seed`](crate::manual_seed) seeds. So the same seed and the same weights give the same
    /// positions on every device (without replacement: on machines whose `ln` of f64 rounds identically). There is no
    /// gradient.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] unless the weights are floats. [`Error::InvalidArgument`] for another rank, for a
    /// weight that is negative or not finite, for a row without a positive weight, and, without replacement, for a row
    /// with fewer than `count` positive weights.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let weights = Tensor::new([[0.0, 3.0, 1.0], [1.0, 0.0, 0.0]], None)?;
    /// let drawn = weights.multinomial(4, true)?;
    /// assert_eq!(drawn.shape(), [2, 4]);
    /// assert_eq!(drawn.to_vec::<u32>()?[4..], [0; 4]);
    /// let mut both = weights.i(0)?.multinomial(2, false)?.to_vec::<u32>()?;
    /// both.sort();
    /// assert_eq!(both, [1, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn multinomial(&self, count: usize, replacement: bool) -> Result<Tensor> {
        if !self.dtype().is_float() {
            let got = self.dtype().to_string();
            return Err(Error::DTypeMismatch { op: NAME, expected: "a float type".into(), got });
        }
        let (rows, size) = match *self.shape() {
            [size] => (1, size),
            [rows, size] => (rows, size),
            _ => {
                let detail = format!("the weights are [n] or [rows, n], not {:?}", self.shape());
                return Err(Error::argument(NAME, detail));
            }
        };
        let drawn = checked_elem_count(NAME, &[rows, count])?;
        named(NAME, || {
            let weights = self.detach().to_vec_f64()?;
            for row in 0..rows {
                check(row, &weights[row * size..][..size], count, replacement)?;
            }
            let words = 2 * if replacement { drawn } else { weights.len() };
            let (stream, skip) = next_words(words);
            let mut words = stream.words().skip(skip);
            let mut draw = || open_unit([0; 2].map(|_: u32| words.next().unwrap_or_default()));
            let mut places = with_room(drawn)?;
            places.resize(drawn, 0u32);
            for row in 0..if count == 0 { 0 } else { rows } {
                let (weights, out) = (&weights[row * size..][..size], &mut places[row * count..][..count]);
                if replacement { again(weights, &mut draw, out) } else { once(weights, &mut draw, out) }
            }
            let shape = [&self.shape()[..self.rank() - 1], &[count]].concat();
            Tensor::from_vec(places, shape, self.device())
        })
    }
}

/// Returns an error for invalid weights, or for too few positive ones.
fn check(row: usize, weights: &[f64], count: usize, replacement: bool) -> Result<()> {
    let of_row = |what: String| Err(Error::argument(NAME, format!("row {row}: {what}")));
    if let Some(i) = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0) {
        return of_row(format!("weight {i} is {}, and must be finite and at least 0", weights[i]));
    }
    let positive = weights.iter().filter(|&&weight| weight > 0.0).count();
    if positive == 0 && count > 0 {
        return of_row("no weight is above 0".into());
    }
    if !replacement && count > positive {
        return of_row(format!("{count} different positions are to be drawn, but only {positive} weights are above 0"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_0_or_1() {
        let (least, most) = (open_unit([0; 2]), open_unit([u32::MAX; 2]));
        assert!(least > 0.0 && most < 1.0, "{least} {most}");
    }

    #[test]
    fn a_number_at_the_very_end_is_the_last_position_with_a_weight() {
        let mut out = [9; 2];
        again(&[1.0, 2.0, 0.0], || 1.0, &mut out);
        assert_eq!(out, [1; 2]);
        again(&[0.0, 2.0, 1.0], || 0.0, &mut out);
        assert_eq!(out, [1; 2]);
    }
}
