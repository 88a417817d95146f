//! Long sums of f32 on the host. A sum of n terms in a single f32 has an error of up to n units in the last place.

/// The most terms that a single f32 sums up.
pub const LONG: usize = 256;

/// The number of terms that sixteen f32 sums take before their total is added in f64.
pub const PART: usize = 512;

/// Adds `values` to sixteen running results with `step`, and then joins these. For loops in
/// `vectorised!`, as all of this file that is inlined.
#[inline(always)]
pub fn fold_lanes<T: Copy>(mut lanes: [T; 16], values: &[T], step: impl Fn(T, T) -> T, join: impl Fn(T, T) -> T) -> T {
    let (rows, tail) = values.as_chunks::<16>();
    for row in rows {
        for (lane, &v) in lanes.iter_mut().zip(row) {
            *lane = step(*lane, v);
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(tail) {
        *lane = step(*lane, v);
    }
    // In halves: one after the other, fifteen joins would each wait for the one before.
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
    }
    lanes[0]
}

/// Computes Σ f(v) with sixteen f32 sums over short parts, to vectorise the loop and to limit the rounding error.
#[inline(always)]
pub fn total(values: &[f32], f: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0;
    for part in values.chunks(PART) {
        total += f64::from(fold_lanes([0.0; 16], part, |sum, v| sum + f(v), |a, b| a + b));
    }
    total
}

/// Computes `Σ a[i] · b[i · step]` like [`total`], or in f64 alone unless `step` is 1.
pub fn product(a: &[f32], b: &[f32], step: usize) -> f64 {
    if step != 1 {
        return a.iter().zip(b.iter().step_by(step)).map(|(a, b)| f64::from(a * b)).sum();
    }
    let part = |(a, b): (&[f32], &[f32])| {
        let mut lanes = [0f32; 16];
        let (rows_a, rows_b) = (a.chunks_exact(16), b.chunks_exact(16));
        let tail: f32 = rows_a.remainder().iter().zip(rows_b.remainder()).map(|(a, b)| a * b).sum();
        for (a, b) in rows_a.zip(rows_b) {
            (0..16).for_each(|i| lanes[i] += a[i] * b[i]);
        }
        f64::from(lanes.iter().sum::<f32>() + tail)
    };
    let b = &b[..a.len()];
    a.chunks(PART).zip(b.chunks(PART)).map(part).sum()
}

/// A running sum of f32 terms.
pub trait Sum: Copy + Send {
    /// Adds a term.
    fn take(&mut self, term: f32);
}

impl Sum for f32 {
    fn take(&mut self, term: f32) {
        *self += term;
    }
}

impl Sum for f64 {
    fn take(&mut self, term: f32) {
        *self += f64::from(term);
    }
}

/// Sets `out` to sums of `terms` terms each. If there are more than [`LONG`], `long` adds them to zeros in f64; else
/// `short` adds them to zeros in `out`.
pub fn added(out: &mut [f32], terms: usize, short: impl FnOnce(&mut [f32]), long: impl FnOnce(&mut [f64])) {
    if terms <= LONG {
        out.fill(0.0);
        return short(out);
    }
    let mut sums = vec![0f64; out.len()];
    long(&mut sums);
    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sums_are_right_to_the_last_bits() {
        let values: Vec<f32> = (0..100_003).map(|i| 0.1 + (i % 7) as f32).collect();
        let exact: f64 = values.iter().map(|&v| f64::from(v)).sum();
        assert!((total(&values, |v| v) / exact - 1.0).abs() < 1e-6);
        let squares: f64 = values.iter().map(|&v| f64::from(v).powi(2)).sum();
        assert!((product(&values, &values, 1) / squares - 1.0).abs() < 1e-6);
        let spread: Vec<f32> = values.iter().flat_map(|&v| [v, f32::NAN]).collect();
        assert!((product(&values, &spread, 2) / squares - 1.0).abs() < 1e-6);
        assert_eq!((total(&[], |v| v), product(&[], &[], 1)), (0.0, 0.0));
    }

    #[test]
    fn lanes_fold_every_value_once() {
        for count in [0, 1, 15, 16, 17, 48, 100] {
            let values: Vec<u32> = (1..=count).collect();
            assert_eq!(fold_lanes([0; 16], &values, |a, b| a + b, |a, b| a + b), count * (count + 1) / 2);
            assert_eq!(fold_lanes([0; 16], &values, u32::max, u32::max), count);
        }
    }

    #[test]
    fn many_terms_are_added_in_f64() {
        for terms in [LONG, LONG + 1] {
            let mut out = [7f32];
            added(&mut out, terms, |out| out[0] += 1.0, |out| out[0] += 2.0);
            assert_eq!(out[0], if terms > LONG { 2.0 } else { 1.0 });
        }
    }
}
