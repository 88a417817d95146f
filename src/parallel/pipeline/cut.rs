//! Where a net is cut into stages, from the time and memory of its layers on each device.

use std::ops::Range;

/// The memory that a parameter takes in training, as a multiple of its size: value, gradient, and two tensors of an
/// optimiser's state (Adam's).
const COPIES_OF_PARAMETERS: u64 = 4;

/// The time and memory of a net's layers for one micro-batch. The first index is the device, the second the layer.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    /// The seconds of the forward and backward pass. Infinite if the device cannot compute the layer.
    pub compute: Vec<Vec<f64>>,
    /// The seconds that the device needs to exchange a layer's input, and the gradient of it, with the host.
    pub transfer: Vec<Vec<f64>>,
    /// The bytes of each layer's parameters.
    pub parameters: Vec<u64>,
    /// The bytes that each layer keeps between its passes.
    pub activations: Vec<u64>,
    /// The bytes that each device has, if that is known.
    pub limits: Vec<Option<u64>>,
}

impl Costs {
    fn layers(&self) -> usize {
        self.parameters.len()
    }

    /// Returns the seconds that a device needs for a stage, or `None` if it cannot compute it. A stage without layers takes none.
    fn stage(&self, device: usize, layers: Range<usize>) -> Option<f64> {
        if layers.is_empty() {
            return Some(0.0);
        }
        let fits = self.limits[device].is_none_or(|limit| self.bytes(device, layers.clone()) <= limit);
        let ends = [layers.start, layers.end].into_iter().filter(|&end| end > 0 && end < self.layers());
        let exchanged: f64 = ends.map(|end| self.transfer[device][end]).sum();
        let seconds = exchanged + self.compute[device][layers].iter().sum::<f64>();
        Some(seconds).filter(|seconds| fits && seconds.is_finite())
    }

    /// Returns the bytes that a stage takes. There are at most as many later stages as later devices. A stage keeps the
    /// activations of as many micro-batches as there are stages from itself on.
    fn bytes(&self, device: usize, layers: Range<usize>) -> u64 {
        let live = (self.limits.len() - device) as u64;
        let sum = |bytes: &[u64]| bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let parameters = sum(&self.parameters[layers.clone()]).saturating_mul(COPIES_OF_PARAMETERS);
        parameters.saturating_add(sum(&self.activations[layers]).saturating_mul(live))
    }

    /// Returns the best cut in which no stage takes more than `most` seconds, and its value. `join` adds the seconds of
    /// a stage to the value of the stages before. If several cuts are equal, the one with more layers on earlier
    /// devices is returned.
    fn best(&self, most: f64, join: fn(f64, f64) -> f64) -> Option<(f64, Vec<Range<usize>>)> {
        // The value of the first layers on the devices so far, by the number of layers.
        let mut values: Vec<Option<f64>> = vec![None; self.layers() + 1];
        values[0] = Some(0.0);
        // For each device, by the end of its stage, where that begins.
        let mut begins = Vec::new();
        for device in 0..self.limits.len() {
            let (mut next, mut begin_of) = (vec![None; values.len()], vec![0; values.len()]);
            for end in 0..values.len() {
                for begin in (0..=end).rev() {
                    let stage = || self.stage(device, begin..end).filter(|seconds| *seconds <= most);
                    let Some(value) = values[begin].and_then(|before| Some(join(before, stage()?))) else { continue };
                    if next[end].is_none_or(|best| value < best) {
                        (next[end], begin_of[end]) = (Some(value), begin);
                    }
                }
            }
            values = next;
            begins.push(begin_of);
        }
        let value = values[self.layers()]?;
        let (mut ranges, mut end) = (Vec::new(), self.layers());
        for begin_of in begins.iter().rev() {
            ranges.push(begin_of[end]..end);
            end = begin_of[end];
        }
        ranges.reverse();
        Some((value, ranges))
    }
}

/// Returns the layers of each device, in the order of the devices. A device that does not pay has none. The slowest
/// stage is as fast as possible. Of several such cuts, the one that takes the fewest seconds over all stages is
/// returned. `None` if no cut fits into memory.
pub(super) fn cut_points(costs: &Costs) -> Option<Vec<Range<usize>>> {
    let (slowest, _) = costs.best(f64::INFINITY, f64::max)?;
    let (_, ranges) = costs.best(slowest, |sum, stage| sum + stage)?;
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers without memory, with transfers of equal length.
    fn costs(compute: &[&[f64]], transfer: f64) -> Costs {
        let (devices, layers) = (compute.len(), compute[0].len());
        Costs {
            compute: compute.iter().map(|seconds| seconds.to_vec()).collect(),
            transfer: vec![vec![transfer; layers]; devices],
            parameters: vec![0; layers],
            activations: vec![0; layers],
            limits: vec![None; devices],
        }
    }

    #[test]
    fn equal_devices_get_equal_times() {
        let one = [1.0; 6];
        assert_eq!(cut_points(&costs(&[&one, &one, &one], 0.0)), Some(vec![0..2, 2..4, 4..6]));
        let uneven = [1.0, 1.0, 1.0, 3.0];
        assert_eq!(cut_points(&costs(&[&uneven, &uneven], 0.0)), Some(vec![0..3, 3..4]));
        let first = [5.0, 1.0, 1.0, 1.0];
        assert_eq!(cut_points(&costs(&[&first, &first], 0.0)), Some(vec![0..1, 1..4]));
    }

    #[test]
    fn unequal_devices_get_equal_times() {
        let (fast, slow) = ([1.0; 9], [2.0; 9]);
        assert_eq!(cut_points(&costs(&[&fast, &slow], 0.0)), Some(vec![0..6, 6..9]));
        assert_eq!(cut_points(&costs(&[&slow, &fast], 0.0)), Some(vec![0..3, 3..9]));
    }

    #[test]
    fn a_device_that_does_not_pay_has_no_stage() {
        let (fast, slow) = ([1.0; 4], [5.0; 4]);
        assert_eq!(cut_points(&costs(&[&fast, &slow], 0.0)), Some(vec![0..4, 4..4]));
        assert_eq!(cut_points(&costs(&[&slow, &fast], 0.0)), Some(vec![0..0, 0..4]));
        // Two equal devices whose link is slow; a third one between two others.
        assert_eq!(cut_points(&costs(&[&fast, &fast], 2.5)), Some(vec![0..4, 4..4]));
        assert_eq!(cut_points(&costs(&[&fast, &slow, &fast], 0.0)), Some(vec![0..2, 2..2, 2..4]));
        // More devices than layers.
        assert_eq!(cut_points(&costs(&[&[1.0], &[1.0]], 0.0)), Some(vec![0..1, 1..1]));
    }

    #[test]
    fn memory_decides_where_a_net_does_not_fit() {
        let layers = [1.0; 4];
        let mut costs = costs(&[&layers, &layers], 10.0);
        (costs.parameters, costs.activations) = (vec![100; 4], vec![10; 4]);
        assert_eq!(cut_points(&costs), Some(vec![0..4, 4..4]));
        // Three layers take 3 · 400 and 3 · 2 · 10 bytes on the first device, and 3 · 10 for activations on the second.
        costs.limits = vec![Some(1260), None];
        assert_eq!(cut_points(&costs), Some(vec![0..0, 0..4]));
        costs.limits = vec![Some(1260), Some(1230)];
        assert_eq!(cut_points(&costs), Some(vec![0..2, 2..4]));
        costs.limits = vec![Some(1260), Some(410)];
        assert_eq!(cut_points(&costs), Some(vec![0..3, 3..4]));
        costs.limits = vec![Some(1259), Some(410)];
        assert_eq!(cut_points(&costs), None);
        costs.limits = vec![None, None];
        costs.compute[0][1] = f64::INFINITY;
        assert_eq!(cut_points(&costs), Some(vec![0..0, 0..4]));
        costs.compute[1][3] = f64::INFINITY;
        assert_eq!(cut_points(&costs), None);
    }

    /// Against all cuts.
    #[test]
    fn no_cut_is_better() {
        let mut seed = 7u32;
        let mut number = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(seed >> 24)
        };
        for layers in 1..7 {
            let compute: Vec<Vec<f64>> = (0..3).map(|_| (0..layers).map(|_| number()).collect()).collect();
            let costs = costs(&compute.iter().map(Vec::as_slice).collect::<Vec<_>>(), number() / 4.0);
            let value = |cut: &[Range<usize>]| {
                let stages: Vec<f64> = (0..3).map(|d| costs.stage(d, cut[d].clone()).expect("no limit")).collect();
                (stages.iter().fold(0.0, |a: f64, b| a.max(*b)), stages.iter().sum::<f64>())
            };
            let all = (0..=layers).flat_map(|a| (a..=layers).map(move |b| [0..a, a..b, b..layers]));
            let best = all.map(|cut| value(&cut)).min_by(|a, b| a.partial_cmp(b).expect("no NaN")).expect("a cut");
            let got = value(&cut_points(&costs).expect("a cut"));
            assert!(got.0 == best.0 && (got.1 - best.1).abs() < 1e-9, "{costs:?}: {got:?}, not {best:?}");
        }
    }
}
