//! The part of each batch that one of several processes loads.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::shape::split_sizes;
use crate::util::sync::lock;

/// The number of batches after the current one from which new weights hold. The threads of a loader, at most
/// [`MOST_WORKERS`], may already have made the batches before that, each two in advance. All processes must split a
/// batch the same way.
#[cfg(any(test, feature = "mpi"))]
const AHEAD: u64 = 32;
/// The most threads of a loader that makes parts of batches.
pub(super) const MOST_WORKERS: usize = 15;
/// The change of a weight that justifies new weights.
#[cfg(any(test, feature = "mpi"))]
const NOTICEABLE: f64 = 0.02;

/// The rank of a process among the processes that train one net together, for
/// [`DataLoader::shard`](super::DataLoader::shard).
///
/// All processes go through the batches in the same order. Each loads one part of each batch. The parts are
/// consecutive, in the order of the processes. A new shard has equal parts.
/// [`DataParallel::shard`](crate::DataParallel::shard) returns a shard whose parts follow the measured speeds of the
/// processes.
#[derive(Clone, Debug)]
pub struct Shard {
    rank: usize,
    schedule: Arc<Mutex<Schedule>>,
}

/// Which weights hold for which batches.
#[derive(Debug)]
struct Schedule {
    /// The first batch of each list of weights, in rising order; the first is 0.
    weights: Vec<(u64, Vec<f64>)>,
    /// The last batch that was requested, counted over all epochs.
    reached: u64,
}

impl Shard {
    /// Creates the shard of process `rank` of `world_size` processes. Clones share their weights.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `rank` is less than `world_size`.
    pub fn new(rank: usize, world_size: usize) -> Result<Shard> {
        if rank >= world_size {
            let detail = format!("rank {rank} of {world_size} processes: ranks count from 0");
            return Err(Error::argument("Shard", detail));
        }
        Ok(Shard::equal(rank, world_size))
    }

    pub(crate) fn equal(rank: usize, world_size: usize) -> Shard {
        let schedule = Schedule { weights: vec![(0, vec![1.0 / world_size as f64; world_size])], reached: 0 };
        Shard { rank, schedule: Arc::new(Mutex::new(schedule)) }
    }

    /// Returns the fraction of later batches that each process gets. The fractions add up to 1.
    #[must_use]
    pub fn weights(&self) -> Vec<f64> {
        lock(&self.schedule).weights.last().map(|(_, weights)| weights.clone()).unwrap_or_default()
    }

    /// Returns this process's part of batch number `batch`, which has the samples `whole`.
    pub(super) fn part(&self, batch: u64, whole: Range<usize>) -> Range<usize> {
        let schedule = lock(&self.schedule);
        let next = schedule.weights.partition_point(|(first, _)| *first <= batch);
        let sizes = split_sizes(whole.len(), &schedule.weights[next.saturating_sub(1)].1);
        let start = whole.start + sizes[..self.rank].iter().sum::<usize>();
        start..start + sizes[self.rank]
    }

    /// Notes that a batch was requested.
    pub(super) fn reached(&self, batch: u64) {
        let mut schedule = lock(&self.schedule);
        schedule.reached = schedule.reached.max(batch);
    }

    /// Returns the greatest number of a batch that was requested.
    #[cfg(feature = "mpi")]
    pub(crate) fn position(&self) -> u64 {
        lock(&self.schedule).reached
    }

    /// Sets the weights of the batches that no loader has begun. All processes must do so at the same position.
    #[cfg(any(test, feature = "mpi"))]
    pub(crate) fn set_weights(&self, weights: Vec<f64>) {
        let mut schedule = lock(&self.schedule);
        let from = schedule.reached.saturating_add(AHEAD);
        let Some((last, now)) = schedule.weights.last_mut() else { return };
        let changed = now.iter().zip(&weights).any(|(now, new)| (now - new).abs() > NOTICEABLE * now.max(0.01));
        match *last == from {
            _ if !changed || weights.len() != now.len() => {}
            true => *now = weights,
            false => schedule.weights.push((from, weights)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_whole_in_order() {
        for world_size in 1..5 {
            for samples in 0..20 {
                let mut next = 100;
                for rank in 0..world_size {
                    let part = Shard::new(rank, world_size).unwrap().part(3, 100..100 + samples);
                    assert_eq!(part.start, next);
                    next = part.end;
                }
                assert_eq!(next, 100 + samples);
            }
        }
        assert!(Shard::new(2, 2).is_err() && Shard::new(0, 0).is_err());
    }

    #[test]
    fn new_weights_hold_for_batches_that_are_not_made_yet() {
        let shard = Shard::new(1, 2).unwrap();
        shard.reached(10);
        shard.set_weights(vec![0.75, 0.25]);
        assert_eq!((shard.part(41, 0..8), shard.part(42, 0..8)), (4..8, 6..8));
        shard.reached(3); // an earlier epoch again
        shard.set_weights(vec![0.749, 0.251]);
        assert_eq!(shard.weights(), [0.75, 0.25]);
        shard.set_weights(vec![0.5, 0.5]);
        shard.reached(70);
        shard.set_weights(vec![0.25, 0.75]);
        assert_eq!((shard.part(43, 0..8), shard.part(102, 0..8), shard.part(0, 0..8)), (4..8, 2..8, 4..8));
        assert!(AHEAD > 2 * MOST_WORKERS as u64);
    }
}
