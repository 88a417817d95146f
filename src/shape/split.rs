//! Parts of a number of samples.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Splits `n` samples into parts in proportion to `weights`.
///
/// Weights are positive numbers of any scale; all other values count as 0. The sizes add up to `n`. Each size is the
/// exact share, rounded up or down, with one exception: if there are enough samples, every part has at least one.
///
/// ```
/// use anygpu::parallel::split_sizes;
///
/// assert_eq!(split_sizes(5, &[1.0, 1.0]), [3, 2]);
/// assert_eq!(split_sizes(256, &[20.0, 3.0, 9.0]), [160, 24, 72]);
/// assert_eq!(split_sizes(10, &[1.0, 1e-9]), [9, 1]);
/// assert_eq!(split_sizes(1, &[1.0, 1.0]), [1, 0]);
/// ```
#[must_use]
pub fn split_sizes(n: usize, weights: &[f64]) -> Vec<usize> {
    let mut weights: Vec<f64> = weights.iter().map(|&w| if w.is_finite() && w > 0.0 { w } else { 0.0 }).collect();
    if weights.iter().all(|&w| w == 0.0) {
        weights.fill(1.0);
    }
    let sizes = if n as u64 <= MOST_IN_FLOATS { by_floats(n, &weights) } else { by_integers(n, &weights) };
    without_empty(sizes)
}

/// Up to here, shares are right to a small part of a sample as floats.
const MOST_IN_FLOATS: u64 = 1 << 32;

fn by_floats(n: usize, weights: &[f64]) -> Vec<usize> {
    let exact = |weights: &[f64]| -> Option<Vec<f64>> {
        let total: f64 = weights.iter().sum();
        let shares: Vec<f64> = weights.iter().map(|w| n as f64 * w / total).collect();
        (total.is_finite() && shares.iter().all(|share| share.is_finite())).then_some(shares)
    };
    // If the sum of the weights or its product with n is beyond f64, scale them down. A power of two changes no share.
    let small = || exact(&weights.iter().map(|w| w * 2f64.powi(-512)).collect::<Vec<_>>());
    let exact = exact(weights).or_else(small).unwrap_or_default();
    let sizes = exact.iter().map(|share| share.floor() as usize).collect();
    with_rest(n, sizes, |a, b| exact[b].fract().total_cmp(&exact[a].fract()))
}

fn by_integers(n: usize, weights: &[f64]) -> Vec<usize> {
    // The products with n take 127 bits.
    let bits = (n as u128).leading_zeros().min(96) as i32 - 1;
    // Powers of two round nothing; the factor alone could be beyond f64.
    let most = weights.iter().copied().fold(0.0, f64::max);
    let exponent = ((most.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let whole = |w: &f64| (w * 2f64.powi(-exponent) * 2f64.powi(bits - 1)) as u128;
    let weights: Vec<u128> = weights.iter().map(whole).collect();
    let total = weights.iter().sum::<u128>().max(1);
    let (sizes, rests): (Vec<usize>, Vec<u128>) =
        weights.iter().map(|w| ((n as u128 * w / total) as usize, n as u128 * w % total)).unzip();
    with_rest(n, sizes, |a, b| rests[b].cmp(&rests[a]))
}

/// Gives the samples left over from rounding down to the parts with the largest remainders, which come first in
/// `order`. Of equal remainders, the first gets one (the sort is stable).
fn with_rest(n: usize, mut sizes: Vec<usize>, order: impl Fn(usize, usize) -> std::cmp::Ordering) -> Vec<usize> {
    let mut parts: Vec<usize> = (0..sizes.len()).collect();
    parts.sort_by(|&a, &b| order(a, b));
    let left = n.saturating_sub(sizes.iter().sum());
    parts.iter().take(left).for_each(|&i| sizes[i] += 1);
    sizes
}

/// Lets no part be empty while another has two samples: the largest part gives one, the first of equal ones.
fn without_empty(mut sizes: Vec<usize>) -> Vec<usize> {
    if sizes.iter().all(|&size| size > 0) {
        return sizes;
    }
    let mut largest: BinaryHeap<(usize, Reverse<usize>)> =
        sizes.iter().enumerate().map(|(i, &size)| (size, Reverse(i))).collect();
    for idle in 0..sizes.len() {
        if sizes[idle] > 0 {
            continue;
        }
        let Some((size, Reverse(busiest))) = largest.pop().filter(|(size, _)| *size > 1) else { break };
        sizes[busiest] = size - 1;
        sizes[idle] = 1;
        largest.push((size - 1, Reverse(busiest)));
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The sizes as they were computed before extremes were: for ordinary inputs, they are these.
    fn plain(n: usize, weights: &[f64]) -> Vec<usize> {
        let total: f64 = weights.iter().sum();
        let exact: Vec<f64> = weights.iter().map(|&w| n as f64 * w / total).collect();
        let mut sizes: Vec<usize> = exact.iter().map(|e| e.floor() as usize).collect();
        let mut by_remainder: Vec<usize> = (0..sizes.len()).collect();
        by_remainder.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
        let left = n.saturating_sub(sizes.iter().sum());
        by_remainder.iter().cycle().take(if sizes.is_empty() { 0 } else { left }).for_each(|&i| sizes[i] += 1);
        while let Some(idle) = sizes.iter().position(|&size| size == 0) {
            let Some(busiest) = (0..sizes.len()).rev().max_by_key(|&i| sizes[i]).filter(|&i| sizes[i] > 1) else {
                break;
            };
            sizes[busiest] -= 1;
            sizes[idle] += 1;
        }
        sizes
    }

    #[test]
    fn extreme_weights_and_counts_are_split() {
        assert_eq!(split_sizes(1000, &[1e306, 1e306]), [500, 500]);
        assert_eq!(split_sizes(1000, &[f64::MAX; 4]), [250; 4]);
        assert_eq!(split_sizes(1000, &[f64::MAX, f64::MAX / 3.0, 1e-300]), [749, 250, 1]);
        assert_eq!(split_sizes(10, &[5e-324, 5e-324]), [5, 5]);
        assert_eq!(split_sizes(10, &[5e-324, f64::MAX]), [1, 9]);
        assert_eq!(split_sizes(usize::MAX, &[1.0]), [usize::MAX]);
        assert_eq!(split_sizes(usize::MAX, &[3.0, 3.0]), [usize::MAX / 2 + 1, usize::MAX / 2]);
        assert_eq!(split_sizes(usize::MAX, &[f64::MAX; 3]), [usize::MAX / 3; 3]);
        assert_eq!(split_sizes(1 << 60, &[0.0, -1.0, f64::NAN, f64::INFINITY]), [1 << 58; 4]);
        assert_eq!(split_sizes(1 << 60, &[1.0, 0.0]), [(1 << 60) - 1, 1]);
        assert_eq!(split_sizes(usize::MAX, &[]), [0; 0]);
        let mut weights = vec![0.0; 100_000];
        weights[7] = 1.0;
        let sizes = split_sizes(1_000_000, &weights);
        assert!(sizes[7] == 900_001 && sizes.iter().sum::<usize>() == 1_000_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn sizes_add_up(
            n in prop_oneof![0usize..300, 0usize..1 << 34, any::<usize>()],
            weights in prop::collection::vec(any::<f64>(), 1..9),
        ) {
            let sizes = split_sizes(n, &weights);
            prop_assert_eq!(sizes.len(), weights.len());
            prop_assert_eq!(sizes.iter().map(|&size| size as u128).sum::<u128>(), n as u128);
            prop_assert!(n < weights.len() || sizes.iter().all(|&size| size > 0));
        }

        #[test]
        fn ordinary_sizes_are_as_they_were(n in 0usize..1 << 24, weights in prop::collection::vec(1e-6f64..1e6, 1..9)) {
            prop_assert_eq!(split_sizes(n, &weights), plain(n, &weights));
        }

        #[test]
        fn each_is_the_share_rounded(n in 0usize..1 << 62, weights in prop::collection::vec(1u32..1000, 1..9)) {
            let total: u128 = weights.iter().map(|&w| u128::from(w)).sum();
            let sizes = split_sizes(n, &weights.iter().map(|&w| f64::from(w) * 2f64.powi(900)).collect::<Vec<_>>());
            prop_assert_eq!(sizes.iter().sum::<usize>(), n);
            let exact = |w: &u32| n as u128 * u128::from(*w) / total;
            if weights.iter().all(|w| exact(w) > 0) {
                for (size, w) in sizes.iter().zip(&weights) {
                    prop_assert!([exact(w), exact(w) + 1].contains(&(*size as u128)), "{} of {:?}: {:?}", n, weights, sizes);
                }
            }
        }
    }
}
