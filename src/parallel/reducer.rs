//! The mean of the gradients of all devices, computed on the host while the devices go on with backward.

use std::sync::Arc;

use super::gradient_buckets::BucketPlan;
use crate::device::cpu::with_room;
use crate::device::{Device, Storage};
use crate::error::{Error, Result};
use crate::ops::combine::{Combine, combine_floats};
use crate::tensor::Tensor;

/// The weighted mean of buckets, each computed when the last rank's part of it has arrived.
pub(super) struct Reducer {
    plan: Arc<BucketPlan>,
    /// The share of each rank.
    weights: Vec<f32>,
    /// The parts of each bucket, by rank.
    parts: Vec<Vec<Option<Tensor>>>,
    /// The means.
    block: Tensor,
    loss: f32,
    missing: usize,
}

impl Reducer {
    /// Creates the means of ranks with these shares, which add up to 1, or the sums of ranks whose shares are all 1.
    pub fn new(plan: &Arc<BucketPlan>, shares: &[f64]) -> Result<Reducer> {
        let parts = vec![vec![None; shares.len()]; plan.len()];
        let weights = shares.iter().map(|&share| share as f32).collect();
        let block = Tensor::zeros(plan.elements(), Device::cpu())?;
        Ok(Reducer { plan: plan.clone(), weights, parts, block, loss: 0.0, missing: plan.len() })
    }

    /// Takes a rank's part of a bucket. Returns whether it was the last one.
    ///
    /// # Errors
    /// [`Error::Internal`] if the part has another size than the bucket, or was already taken.
    pub fn take(&mut self, rank: usize, bucket: usize, part: Tensor) -> Result<bool> {
        let range = self.plan.range(bucket);
        let place = self.parts.get_mut(bucket).and_then(|parts| parts.get_mut(rank)).filter(|part| part.is_none());
        let Some(place) = place else {
            return Err(Error::internal(format!("bucket {bucket} of rank {rank} came twice")));
        };
        *place = Some(part);
        let parts: Vec<Tensor> = self.parts[bucket].iter().flatten().cloned().collect();
        if parts.len() < self.weights.len() {
            return Ok(false);
        }
        self.parts[bucket].clear();
        self.missing -= 1;
        let Storage::Cpu(block) = self.block.storage() else { return Err(self.block.misplaced()) };
        let mut words = block.write();
        let mean: &mut [f32] = bytemuck::cast_slice_mut(&mut words[range]);
        let mut guards = Vec::with_capacity(parts.len());
        for part in &parts {
            let Storage::Cpu(buffer) = part.storage() else { return Err(part.misplaced()) };
            guards.push((buffer.read(), part.layout().offset..part.layout().offset + part.elem_count()));
        }
        let terms: Vec<&[f32]> =
            guards.iter().map(|(words, range)| bytemuck::cast_slice(&words[range.clone()])).collect();
        weighted_mean(mean, &terms, &self.weights)?;
        if bucket == 0 {
            // The loss is in the slot after the gradients.
            let losses =
                terms.iter().zip(&self.weights).map(|(term, weight)| weight * term.last().copied().unwrap_or(f32::NAN));
            self.loss = losses.reduce(|sum, loss| sum + loss).unwrap_or(f32::NAN);
        }
        Ok(true)
    }

    /// Returns a copy of the means of a bucket, after its last part was taken, and after those of bucket 0 the mean loss.
    pub fn mean(&self, bucket: usize) -> Result<Vec<f32>> {
        let Storage::Cpu(block) = self.block.storage() else { return Err(self.block.misplaced()) };
        let range = self.plan.range(bucket);
        let mut means = with_room(range.len() + 1)?;
        means.extend_from_slice(bytemuck::cast_slice(&block.read()[range]));
        if bucket == 0 {
            means.push(self.loss);
        }
        Ok(means)
    }

    /// Returns the means and the mean loss.
    ///
    /// # Errors
    /// [`Error::Internal`] if a part is missing.
    pub fn finish(self) -> Result<(Tensor, f32)> {
        match self.missing {
            0 => Ok((self.block, self.loss)),
            missing => Err(Error::internal(format!("{missing} buckets of gradients are missing"))),
        }
    }
}

/// Overwrites `mean` with Σ wᵢ · termᵢ, summed in order. The terms may be longer, up to the next slot, or end at their last
/// element, before it.
fn weighted_mean(mean: &mut [f32], terms: &[&[f32]], weights: &[f32]) -> Result<()> {
    let len = terms.iter().map(|term| term.len()).min().unwrap_or(0).min(mean.len());
    if mean.len() - len >= 64 {
        return Err(Error::internal(format!("a bucket of {} elements has {len}", mean.len())));
    }
    combine_floats(Combine::Add, &mut mean[..len], terms, weights);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_those_of_a_loop() -> Result<()> {
        let sizes = [5000, 70, 1, 9000];
        let parameters: Vec<Tensor> = sizes.iter().map(|&size| Tensor::zeros(size, None)).collect::<Result<_>>()?;
        for bytes in [1, 20_000, usize::MAX] {
            let plan = Arc::new(BucketPlan::new(&parameters, bytes));
            let shares = [0.5, 0.2, 0.3];
            let mut reducer = Reducer::new(&plan, &shares)?;
            let value = |rank: usize, i: usize| ((i * 7 + rank * 3) % 101) as f32 - 50.0;
            for rank in [1, 0, 2] {
                for bucket in (0..plan.len()).rev() {
                    let mut part: Vec<f32> = plan.range(bucket).map(|i| value(rank, i)).collect();
                    if bucket == 0 {
                        part.push(rank as f32);
                    }
                    let last = reducer.take(rank, bucket, Tensor::from_slice(&part, part.len(), None)?)?;
                    assert_eq!(last, rank == 2);
                }
            }
            let copies = (0..plan.len()).rev().map(|bucket| reducer.mean(bucket)).collect::<Result<Vec<_>>>()?.concat();
            let (means, loss) = reducer.finish()?;
            assert_eq!((copies.last(), &copies[..plan.elements()]), (Some(&loss), &means.to_vec::<f32>()?[..]));
            let means = means.to_vec::<f32>()?;
            let expected = |i: usize| {
                shares.iter().enumerate().map(|(rank, share)| share * f64::from(value(rank, i))).sum::<f64>()
            };
            assert_eq!(means.len(), plan.elements());
            assert!(means.iter().enumerate().all(|(i, mean)| (f64::from(*mean) - expected(i)).abs() < 1e-5), "{bytes}");
            assert!((loss - 0.8).abs() < 1e-6, "{loss}");
        }
        Ok(())
    }

    #[test]
    fn what_is_missing_or_twice_is_an_error() -> Result<()> {
        let plan = Arc::new(BucketPlan::new(&[Tensor::zeros(300, None)?], 1));
        let mut reducer = Reducer::new(&plan, &[0.5, 0.5])?;
        reducer.take(0, 0, Tensor::zeros(321, None)?)?;
        assert!(reducer.take(0, 0, Tensor::zeros(321, None)?).is_err());
        assert!(reducer.take(1, 0, Tensor::zeros(100, None)?).is_err());
        let reducer = Reducer::new(&plan, &[1.0])?;
        assert!(reducer.finish().is_err());
        Ok(())
    }
}
