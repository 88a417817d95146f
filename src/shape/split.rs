//! Parts of a number of samples.

/// Splits `n` samples into parts in proportion to `weights` (positive numbers of any scale). If there are enough
/// samples, every part has at least one.
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
    let positive = |w: f64| if w.is_finite() && w > 0.0 { w } else { 0.0 };
    let total: f64 = weights.iter().copied().map(positive).sum();
    let exact: Vec<f64> = match total > 0.0 {
        true => weights.iter().map(|&w| n as f64 * positive(w) / total).collect(),
        false => vec![n as f64 / weights.len().max(1) as f64; weights.len()],
    };
    let mut sizes: Vec<usize> = exact.iter().map(|e| e.floor() as usize).collect();
    // The parts with the largest remainders get the samples left over from rounding down. Of equal remainders, the
    // first gets one (the sort is stable).
    let mut by_remainder: Vec<usize> = (0..sizes.len()).collect();
    by_remainder.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let left = n.saturating_sub(sizes.iter().sum());
    by_remainder.iter().cycle().take(if sizes.is_empty() { 0 } else { left }).for_each(|&i| sizes[i] += 1);
    // No part is empty while another has two samples.
    while let Some(idle) = sizes.iter().position(|&size| size == 0) {
        let Some(busiest) = (0..sizes.len()).rev().max_by_key(|&i| sizes[i]).filter(|&i| sizes[i] > 1) else { break };
        sizes[busiest] -= 1;
        sizes[idle] += 1;
    }
    sizes
}
