//! The group of replicas that compute one step together, one thread each, and the values that they exchange during it.
//!
//! A thread acts as a [`Rank`] of the group within [`Rank::scope`]. An op that needs values from other replicas calls
//! [`rank()`]. If a rank fails or ends early, the ranks that wait for it get an error instead of a deadlock.

mod batch_mean;
mod draws;
mod losses;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use web_time::{Duration, Instant};

use crate::context::slot;
use crate::error::{Error, Result};
use crate::philox::Stream;
use crate::tensor::{Tensor, weighted_sum};
use crate::util::sync::lock;
use crate::util::threads::THREADS;
use crate::util::waiting;

pub use batch_mean::batch_mean;
pub(crate) use draws::Draws;
pub(crate) use losses::{LossRecord, StepLosses, Totals, counts_are_alike, mean, sum, weighted_mean};

slot! {
    /// The rank of this thread in a process group, while it takes part in a joint step. It belongs to one thread, since the
    /// exchanges of a group are ordered.
    RANK: Option<Rank> = None, for this thread alone
}

/// Returns the rank of this thread, if it has one.
pub(crate) fn rank() -> Option<Rank> {
    RANK.get()
}

/// Runs `work` as if this thread were not in a group.
pub(crate) fn outside<T>(work: impl FnOnce() -> T) -> T {
    let _rank = RANK.set(None);
    work()
}

/// The exchange of values with the same step's groups in other processes.
pub(crate) trait Outside: std::fmt::Debug + Send + Sync {
    /// Contributes values to round `round` of the step, and returns those of all processes, in order of their ranks. Each
    /// process contributes a whole number of entries of `width` values; further entries of zeros may be in the result. If the
    /// round is over, because a part of the step is repeated, returns its values again.
    ///
    /// # Errors
    /// If the exchange is not possible.
    fn gather(&self, round: u64, width: usize, own: Vec<f64>) -> Result<Arc<Vec<f64>>>;

    /// Tells the other processes that this one has no more exchanges in this step.
    ///
    /// # Errors
    /// If another process has one.
    #[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "without MPI, there are no other processes"))]
    fn end(&self) -> Result<()>;
}

/// A group's place in a step of several processes.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "without MPI, there are no other processes"))]
pub(crate) struct Joint {
    /// The number of samples of the processes before this one.
    pub before: usize,
    /// The number of samples of all processes.
    pub total: usize,
    /// Whether the samples of this process do not count: it has none, and takes part in the exchanges only.
    pub empty: bool,
    pub outside: Arc<dyn Outside>,
}

/// Threads that exchange values in rounds.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    /// The number of samples of each rank.
    samples: Vec<usize>,
    /// Whether the ranks compute one after another, and exchange nothing but what their losses need.
    in_turn: bool,
    /// How the ranks' losses become those of the whole batch, if the group computes a step.
    losses: Option<StepLosses>,
    /// The other processes of the step, if there are any.
    joint: Option<Joint>,
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
    /// The number of rounds that it has come to.
    rounds: AtomicUsize,
    losses: Mutex<LossRecord>,
    /// The numbers of elements of its draws.
    draws: Mutex<Vec<usize>>,
}

#[derive(Debug, Default)]
struct Exchange {
    /// The values of each rank in the current round.
    brought: Vec<Option<Vec<f32>>>,
    /// The number of completed rounds, and the result of the last one. A rank starts round n + 2 only after all ranks
    /// have the result of round n.
    done: u64,
    result: Arc<Vec<f32>>,
    /// The results of all rounds, where the ranks run one after the other and may run again.
    earlier: Vec<Arc<Vec<f32>>>,
    /// The number of ranks that have ended, with or without an error.
    left: usize,
    /// Whether a rank exchanges the values of the current round with other processes.
    outside: bool,
}

/// One member of a group.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    group: Arc<ProcessGroup>,
    rank: usize,
    /// Whether losses that it computes are not those of the step.
    without_losses: bool,
}

impl ProcessGroup {
    /// Creates a group with one rank for each number of samples. Random numbers are drawn from `stream`. `joint` is its place
    /// among the groups of other processes, if there are any. `losses` is for a step.
    pub fn new(
        mut samples: Vec<usize>,
        stream: Stream,
        joint: Option<Joint>,
        losses: Option<StepLosses>,
    ) -> Arc<ProcessGroup> {
        if joint.as_ref().is_some_and(|joint| joint.empty) {
            samples.fill(0);
        }
        ProcessGroup::of(samples, stream, false, joint, losses)
    }

    /// Creates a group whose ranks are parts of a batch that a net computes one after another, such as the micro-batches of a
    /// pipeline. Together, they draw the words that one device would draw, but they exchange nothing but what their losses need.
    pub fn in_turn(samples: Vec<usize>, stream: Stream, losses: Option<StepLosses>) -> Arc<ProcessGroup> {
        ProcessGroup::of(samples, stream, true, None, losses)
    }

    fn of(
        samples: Vec<usize>,
        stream: Stream,
        in_turn: bool,
        joint: Option<Joint>,
        losses: Option<StepLosses>,
    ) -> Arc<ProcessGroup> {
        let progress = samples.iter().map(|_| Progress::default()).collect();
        let brought = samples.iter().map(|_| None).collect();
        let exchange = Mutex::new(Exchange { brought, ..Exchange::default() });
        Arc::new(ProcessGroup { samples, in_turn, losses, joint, stream, progress, exchange, changed: Condvar::new() })
    }

    /// Returns the ranks, in order.
    pub fn ranks(self: &Arc<Self>) -> impl Iterator<Item = Rank> {
        let group = self.clone();
        (0..group.samples.len()).map(move |rank| Rank { group: group.clone(), rank, without_losses: false })
    }

    /// Returns the number of random blocks that the group has drawn. Call it after all ranks have ended.
    pub fn drawn(&self) -> u64 {
        self.progress.iter().map(|progress| progress.drawn.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Returns the number of rounds that are complete, where the ranks run one after the other.
    pub fn exchanges(&self) -> usize {
        lock(&self.exchange).earlier.len()
    }

    /// Lets a rank, which gave up, begin again.
    pub fn begin_again(&self, rank: usize) {
        let Progress { drawn, waited, rounds, losses, draws } = &self.progress[rank];
        drawn.store(0, Ordering::Relaxed);
        waited.store(0, Ordering::Relaxed);
        rounds.store(0, Ordering::Relaxed);
        *lock(losses) = LossRecord::default();
        lock(draws).clear();
    }

    /// Returns whether a rank waits for others in an exchange.
    pub fn is_waiting(&self, rank: usize) -> bool {
        let exchange = lock(&self.exchange);
        exchange.outside || exchange.brought[rank].is_some()
    }

    /// Returns whether the ranks wait for other processes.
    pub fn is_waiting_outside(&self) -> bool {
        lock(&self.exchange).outside
    }

    /// Lets all exchanges fail from now on, as after the end of a rank.
    pub fn abandon(&self) {
        lock(&self.exchange).left += 1;
        self.changed.notify_all();
    }

    fn total(&self) -> usize {
        let own = || self.samples.iter().sum::<usize>();
        self.joint.as_ref().map_or_else(own, |joint| joint.total).max(1)
    }

    /// Returns the share and the values of each rank of all processes, from those of this one.
    fn of_all(&self, round: u64, own: Vec<(f64, Vec<f32>)>) -> Result<Vec<(f64, Vec<f32>)>> {
        let Some(joint) = &self.joint else { return Ok(own) };
        let width = 1 + own.first().map_or(0, |(_, values)| values.len());
        let entry = |(share, values): (f64, Vec<f32>)| [share].into_iter().chain(values.into_iter().map(f64::from));
        let all = joint.outside.gather(round, width, own.into_iter().flat_map(entry).collect())?;
        let entries = all.chunks_exact(width).filter(|entry| entry[0] > 0.0); // others have no samples
        Ok(entries.map(|entry| (entry[0], entry[1..].iter().map(|&value| value as f32).collect())).collect())
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
        self.within(work)
    }

    /// Returns the same rank for code other than the loss function: losses that layers compute are left as they are.
    pub fn without_losses(&self) -> Rank {
        Rank { without_losses: true, ..self.clone() }
    }

    /// Leaves the group: the others do not wait for it.
    pub fn leave(&self) {
        self.group.abandon();
    }

    /// Runs `work` as this rank, which stays in the group.
    pub fn within<T>(self, work: impl FnOnce() -> T) -> T {
        let _rank = RANK.set(Some(self));
        work()
    }

    /// Returns whether this rank exchanges values with others.
    pub fn is_joint(&self) -> bool {
        !self.group.in_turn
    }

    /// Notes that it takes statistics of its own samples, where others exchange them.
    pub fn note_statistics(&self) {
        if THREADS {
            self.progress().rounds.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns numbers that change when this rank exchanges values or takes statistics, draws random numbers, or notes a loss.
    pub fn traces(&self) -> [usize; 4] {
        let Progress { rounds, losses, draws, .. } = self.progress();
        let losses = lock(losses);
        [rounds.load(Ordering::Relaxed), lock(draws).len(), losses.totals.len(), losses.counts.len()]
    }

    /// Scales `count`, a number proportional to this rank's samples, to all ranks.
    pub fn over_all(&self, count: usize) -> usize {
        (count as u128 * self.group.total() as u128 / self.samples() as u128) as usize
    }

    /// Returns how long this rank has waited for others. This is subtracted when its speed is measured.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.progress().waited.load(Ordering::Relaxed))
    }

    /// Contributes `own` to an exchange and waits for the result. `merge` computes it from the share of the samples and
    /// the values of each rank, in order of the ranks. All ranks must take part in the same exchanges in the same
    /// order.
    ///
    /// # Errors
    /// [`Error::Abandoned`] if a rank has left or contributes a different number of values. The last rank to arrive
    /// also returns the errors of `merge`.
    pub fn exchange(
        &self,
        own: Vec<f32>,
        merge: impl FnOnce(&[(f64, Vec<f32>)]) -> Result<Vec<f32>>,
    ) -> Result<Arc<Vec<f32>>> {
        let start = Instant::now();
        let mut exchange = lock(&self.group.exchange);
        let round = self.progress().rounds.fetch_add(1, Ordering::Relaxed);
        if !THREADS && let Some(known) = exchange.earlier.get(round) {
            return Ok(known.clone());
        }
        if exchange.left > 0 {
            return Err(Error::Abandoned);
        }
        let round = exchange.done;
        exchange.brought[self.rank] = Some(own);
        if exchange.brought.iter().all(Option::is_some) {
            let shares = self.group.samples.iter().map(|&n| n as f64 / self.group.total() as f64);
            let all: Vec<(f64, Vec<f32>)> = shares.zip(exchange.brought.iter_mut().filter_map(Option::take)).collect();
            if all.iter().any(|(_, values)| values.len() != all[0].1.len()) {
                return Err(Error::Abandoned); // this rank then leaves the group, which the others notice
            }
            exchange.outside = self.group.joint.is_some();
            drop(exchange); // others may ask what this group waits for
            let result = self.group.of_all(round, all).and_then(|all| merge(&all));
            exchange = lock(&self.group.exchange);
            exchange.outside = false;
            exchange.result = Arc::new(result?);
            exchange.done += 1;
            if !THREADS {
                let result = exchange.result.clone();
                exchange.earlier.push(result);
            }
            self.group.changed.notify_all();
        }
        if !THREADS && exchange.done == round {
            return Err(waiting::would_block()); // this rank runs again when the others have come so far
        }
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

    /// Returns the number of samples of this rank, at least 1.
    pub fn samples(&self) -> usize {
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

    use crate::autograd::{NoGrad, is_recording};
    use crate::context::Context;
    use crate::dtype::DType;
    use crate::ops::{KEEP_LONGS, lowered, products};

    const START: Stream = Stream { seed: 7, first: 1 << 40 };

    fn run<T: Send>(samples: &[usize], work: impl Fn(usize, &Rank) -> T + Sync) -> Vec<T> {
        let group = ProcessGroup::new(samples.to_vec(), START, None, None);
        thread::scope(|s| {
            let work = &work;
            let threads: Vec<_> = group
                .ranks()
                .enumerate()
                .map(|(i, rank)| s.spawn(move || rank.scope(|| work(i, &super::rank().expect("in a scope")))))
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
        assert!(rank().is_none());
    }

    #[test]
    fn a_thread_takes_over_the_state_of_the_one_that_it_works_for_but_not_its_rank() {
        let only = ProcessGroup::new(vec![1], START, None, None).ranks().next().expect("one rank");
        only.scope(|| {
            let _guards = (NoGrad::new(), products(Some(DType::BF16)), KEEP_LONGS.set(false));
            fn state() -> (bool, DType, bool, bool) {
                (is_recording(), lowered(DType::F32), KEEP_LONGS.get(), rank().is_some())
            }
            assert_eq!(state(), (false, DType::BF16, false, true));
            let context = Context::current();
            let there = thread::spawn(move || (context.run(state), state()));
            let (within, after) = there.join().expect("no panic");
            assert_eq!(within, (false, DType::BF16, false, false));
            assert_eq!(after, (true, DType::F32, true, false));
        });
        assert!(rank().is_none());
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
        let ranks: Vec<Rank> = ProcessGroup::new(vec![2, 6], START, None, None).ranks().collect();
        let [a, b] = &ranks[..] else { panic!("two ranks") };
        assert_eq!((a.over_all(20), b.over_all(60)), (80, 80));
    }

    /// What two processes have in an exchange, without the processes.
    #[derive(Debug)]
    struct Other(Vec<f64>);

    impl Outside for Other {
        fn gather(&self, _: u64, width: usize, own: Vec<f64>) -> Result<Arc<Vec<f64>>> {
            assert!(self.0.len().is_multiple_of(width) && own.len().is_multiple_of(width));
            Ok(Arc::new([&self.0[..], &own].concat()))
        }

        fn end(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_group_is_a_part_of_a_step_of_several_processes() {
        // The other process has 5 of 8 samples, and an entry without samples.
        let outside = Arc::new(Other(vec![5.0 / 8.0, 2.0, 0.0, f64::NAN]));
        for (samples, empty) in [(vec![1, 2], false), (vec![1], true)] {
            let total = if empty { 5 } else { 8 };
            let other = Arc::new(Other(vec![5.0 / f64::from(total), 2.0, 0.0, f64::NAN]));
            let joint =
                Joint { before: 5, total: total as usize, empty, outside: if empty { other } else { outside.clone() } };
            let group = ProcessGroup::new(samples.clone(), START, Some(joint), None);
            let sums: Vec<f32> = thread::scope(|s| {
                let work = |rank: Rank| rank.scope(|| super::rank().expect("in a scope").weighted_sum(vec![4.0]));
                let threads: Vec<_> = group.ranks().map(|rank| s.spawn(move || work(rank))).collect();
                threads.into_iter().map(|t| t.join().expect("no panic").unwrap()[0]).collect()
            });
            let expected = if empty { 2.0 } else { 2.0 * 5.0 / 8.0 + 4.0 * 3.0 / 8.0 };
            assert!(sums.iter().all(|sum| *sum == expected), "{sums:?}");
            // Words come after those of the other process, and all processes draw as many.
            let last = group.ranks().last().expect("a rank");
            let rows = if empty { 1 } else { samples[1] };
            let (stream, skip) = last.words(rows * 5);
            let at = if empty { 25 } else { 30 };
            assert_eq!((stream.first - START.first, skip), (at / 4, (at % 4) as usize));
            assert_eq!(group.drawn(), (total as u64 * 5).div_ceil(4));
        }
    }
}
