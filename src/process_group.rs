//! The group of replicas that compute one step together, one thread each, and the values that they exchange during it.
//!
//! A thread acts as a [`Rank`] of the group within [`Rank::scope`]. An op that needs values from other replicas calls
//! [`context::rank`]. If a rank fails or ends early, the ranks that wait for it get an error instead of a deadlock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::context;
use crate::error::{Error, Result};
use crate::philox::Stream;
use crate::sync::lock;
use crate::tensor::{Tensor, weighted_sum};

/// Threads that exchange values in rounds.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    /// The number of samples of each rank.
    samples: Vec<usize>,
    /// Whether the ranks compute at the same time, and exchange values.
    joint: bool,
    /// The position at which the group's random numbers begin.
    stream: Stream,
    progress: Vec<Progress>,
    exchange: Mutex<Exchange>,
    changed: Condvar,
}

/// The progress of one rank.
#[derive(Debug, Default)]
struct Progress {
    /// The number of random blocks that it has drawn for the group.
    drawn: AtomicU64,
    /// The time that it has waited for others, in nanoseconds.
    waited: AtomicU64,
}

#[derive(Debug, Default)]
struct Exchange {
    /// The values of each rank in the current round.
    brought: Vec<Option<Vec<f32>>>,
    /// The number of completed rounds, and the result of the last one. A rank starts round n + 2 only after all ranks
    /// have the result of round n.
    done: u64,
    result: Arc<Vec<f32>>,
    /// The number of ranks that have ended, with or without an error.
    left: usize,
}

/// One member of a group.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    group: Arc<ProcessGroup>,
    rank: usize,
}

impl ProcessGroup {
    /// Creates a group with one rank for each number of samples. Random numbers are drawn from `stream`.
    pub fn new(samples: Vec<usize>, stream: Stream) -> Arc<ProcessGroup> {
        ProcessGroup::of(samples, stream, true)
    }

    /// Creates a group whose ranks are parts of a batch that a net computes one after another, such as the micro-batches of a
    /// pipeline. Together, they draw the words that one device would draw, but they exchange nothing.
    pub fn in_turn(samples: Vec<usize>, stream: Stream) -> Arc<ProcessGroup> {
        ProcessGroup::of(samples, stream, false)
    }

    fn of(samples: Vec<usize>, stream: Stream, joint: bool) -> Arc<ProcessGroup> {
        let progress = samples.iter().map(|_| Progress::default()).collect();
        let brought = samples.iter().map(|_| None).collect();
        let exchange = Mutex::new(Exchange { brought, ..Exchange::default() });
        Arc::new(ProcessGroup { samples, joint, stream, progress, exchange, changed: Condvar::new() })
    }

    /// Returns the ranks, in order.
    pub fn ranks(self: &Arc<Self>) -> impl Iterator<Item = Rank> {
        let group = self.clone();
        (0..group.samples.len()).map(move |rank| Rank { group: group.clone(), rank })
    }

    /// Returns the number of random blocks that the group has drawn. Call it after all ranks have ended.
    pub fn drawn(&self) -> u64 {
        self.progress.iter().map(|progress| progress.drawn.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Returns whether a rank waits for others in an exchange.
    pub fn is_waiting(&self, rank: usize) -> bool {
        lock(&self.exchange).brought[rank].is_some()
    }

    /// Lets all exchanges fail from now on, as after the end of a rank.
    pub fn abandon(&self) {
        lock(&self.exchange).left += 1;
        self.changed.notify_all();
    }

    fn total(&self) -> usize {
        self.samples.iter().sum::<usize>().max(1)
    }
}

impl Rank {
    /// Runs `work` as this rank. The rank leaves the group when `work` ends, including by a panic.
    pub fn scope<T>(self, work: impl FnOnce() -> T) -> T {
        struct Leave(Arc<ProcessGroup>);
        impl Drop for Leave {
            fn drop(&mut self) {
                self.0.abandon();
            }
        }
        let _leave = Leave(self.group.clone());
        let _rank = context::set(|context| &mut context.rank, Some(self));
        work()
    }

    /// Returns whether this rank exchanges values with others.
    pub fn is_joint(&self) -> bool {
        self.group.joint
    }

    /// Scales `count`, a number proportional to this rank's samples, to all ranks.
    pub fn over_all(&self, count: usize) -> usize {
        (count as u128 * self.group.total() as u128 / self.samples() as u128) as usize
    }

    /// Returns the random words for `count` elements of this rank in a joint draw of the group: the stream, and the
    /// number of words of its first block that belong to the previous rank. Together, the ranks draw the same words as
    /// one device would.
    pub fn words(&self, count: usize) -> (Stream, usize) {
        let before: usize = self.group.samples[..self.rank].iter().sum();
        let at = (count as u128 * before as u128 / self.samples() as u128) as u64;
        let blocks = (self.over_all(count) as u64).div_ceil(4);
        let drawn = self.progress().drawn.fetch_add(blocks, Ordering::Relaxed);
        let Stream { seed, first } = self.group.stream;
        (Stream { seed, first: first.wrapping_add(drawn + at / 4) }, (at % 4) as usize)
    }

    /// Returns how long this rank has waited for others. This is subtracted when its speed is measured.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.progress().waited.load(Ordering::Relaxed))
    }

    /// Contributes `own` to an exchange and waits for the result. `merge` computes it from each rank's share of the
    /// samples and values, in order of the ranks. All ranks must take part in the same exchanges in the same order.
    ///
    /// # Errors
    /// [`Error::Abandoned`] if a rank has left or contributes a different number of values. The last rank to arrive
    /// also returns the errors of `merge`.
    pub fn exchange(
        &self,
        own: Vec<f32>,
        merge: impl FnOnce(&[(f64, Vec<f32>)]) -> Result<Vec<f32>>,
    ) -> Result<Arc<Vec<f32>>> {
        let mut exchange = lock(&self.group.exchange);
        let round = exchange.done;
        exchange.brought[self.rank] = Some(own);
        if exchange.brought.iter().all(Option::is_some) {
            let shares = self.group.samples.iter().map(|&n| n as f64 / self.group.total() as f64);
            let all: Vec<(f64, Vec<f32>)> = shares.zip(exchange.brought.iter_mut().filter_map(Option::take)).collect();
            if all.iter().any(|(_, values)| values.len() != all[0].1.len()) {
                return Err(Error::Abandoned); // this rank then leaves the group, which the others notice
            }
            exchange.result = Arc::new(merge(&all)?);
            exchange.done += 1;
            self.group.changed.notify_all();
        }
        let start = Instant::now();
        while exchange.done == round {
            if exchange.left > 0 {
                return Err(Error::Abandoned);
            }
            exchange = self.group.changed.wait(exchange).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        let waited = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.progress().waited.fetch_add(waited, Ordering::Relaxed);
        Ok(exchange.result.clone())
    }

    /// Returns Σ shareᵢ · valuesᵢ over the ranks, by an [`exchange`](Rank::exchange).
    pub fn weighted_sum(&self, own: Vec<f32>) -> Result<Arc<Vec<f32>>> {
        self.exchange(own, |all| {
            let tensors = all.iter().map(|(_, values)| Tensor::from_slice(values, values.len(), None));
            let shares: Vec<f64> = all.iter().map(|(share, _)| *share).collect();
            weighted_sum(&tensors.collect::<Result<Vec<_>>>()?, Some(&shares))?.to_vec()
        })
    }

    fn samples(&self) -> usize {
        self.group.samples[self.rank].max(1)
    }

    fn progress(&self) -> &Progress {
        &self.group.progress[self.rank]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const START: Stream = Stream { seed: 7, first: 1 << 40 };

    fn run<T: Send>(samples: &[usize], work: impl Fn(usize, &Rank) -> T + Sync) -> Vec<T> {
        let group = ProcessGroup::new(samples.to_vec(), START);
        thread::scope(|s| {
            let work = &work;
            let threads: Vec<_> = group
                .ranks()
                .enumerate()
                .map(|(i, rank)| s.spawn(move || rank.scope(|| work(i, &context::rank().expect("in a scope")))))
                .collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn every_rank_gets_each_weighted_sum() {
        let sums = run(&[1, 3], |i, rank| {
            (0..100).map(|round| rank.weighted_sum(vec![(i * round) as f32, 1.0]).unwrap().to_vec()).collect::<Vec<_>>()
        });
        assert_eq!(sums[0], sums[1]);
        assert_eq!(sums[0], (0..100).map(|round| vec![0.75 * round as f32, 1.0]).collect::<Vec<_>>());
        assert!(context::rank().is_none());
    }

    #[test]
    fn who_ends_early_is_not_waited_for() {
        let ends = run(&[1, 1, 1], |i, rank| match i {
            1 => Ok(Arc::default()),
            _ => rank.weighted_sum(vec![1.0]),
        });
        assert_eq!(ends[0], Err(Error::Abandoned));
        assert_eq!(ends[2], Err(Error::Abandoned));
        // A rank that has the last result keeps it when others leave.
        let all = run(&[1, 1], |_, rank| rank.weighted_sum(vec![2.0]).map(|v| v.to_vec()));
        assert_eq!(all, [Ok(vec![2.0]), Ok(vec![2.0])]);
    }

    #[test]
    fn unequal_values_are_an_error_for_all() {
        let ends = run(&[1, 1], |i, rank| rank.weighted_sum(vec![1.0; i + 1]));
        assert!(ends.iter().all(|end| *end == Err(Error::Abandoned)), "{ends:?}");
    }

    #[test]
    fn ranks_draw_what_one_would() {
        let parts = run(&[3, 1, 2], |_, rank| {
            let draw = |rows: usize| {
                let (stream, skip) = rank.words(rows * 5);
                stream.words().skip(skip).take(rows * 5).collect::<Vec<u32>>()
            };
            let rows = rank.group.samples[rank.rank];
            [draw(rows), draw(rows)]
        });
        for (draw, first) in [(0, START.first), (1, START.first + 8)] {
            let whole: Vec<u32> = parts.iter().flat_map(|part| part[draw].clone()).collect();
            assert_eq!(whole, Stream { first, ..START }.words().take(30).collect::<Vec<_>>());
        }
    }

    #[test]
    fn counts_grow_with_the_group() {
        let ranks: Vec<Rank> = ProcessGroup::new(vec![2, 6], START).ranks().collect();
        let [a, b] = &ranks[..] else { panic!("two ranks") };
        assert_eq!((a.over_all(20), b.over_all(60)), (80, 80));
    }
}
