//! The replicas of one net that take a step together, one thread each: what they must know of each other half-way.
//!
//! A replica's thread is a [`Member`] while it works ([`Member::scope`]); an op that needs more than its own samples asks
//! [`member`]. Who fails, or ends early, releases those who wait for it: they get an error, never a deadlock.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::philox::Stream;
use crate::sync::lock;

thread_local! {
    static MEMBER: RefCell<Option<Member>> = const { RefCell::new(None) };
    /// The random blocks that this thread's member has drawn for its team.
    static DRAWN: Cell<u64> = const { Cell::new(0) };
    /// How long this thread's member has waited for others.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// One replica's place among the others.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    team: Arc<Team>,
    rank: usize,
}

#[derive(Debug)]
struct Team {
    /// How many samples of the batch each member has.
    samples: Vec<usize>,
    /// Where the team's random numbers begin, and how many blocks of them were drawn.
    stream: Stream,
    drawn: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What members have brought to the exchange that is going on.
    brought: Vec<Option<Vec<f32>>>,
    /// How many exchanges are over, and what the last one gave. Nobody can begin the next but one before all have it.
    done: u64,
    result: Arc<Vec<f32>>,
    /// Members that have ended, well or not.
    left: usize,
}

impl Member {
    /// The members of a team, in order: one for each number of samples. Random numbers are drawn from `stream`.
    pub fn team(samples: Vec<usize>, stream: Stream) -> Vec<Member> {
        let brought = samples.iter().map(|_| None).collect();
        let state = Mutex::new(State { brought, ..State::default() });
        let team = Arc::new(Team { samples, stream, drawn: AtomicU64::new(0), state, changed: Condvar::new() });
        (0..team.samples.len()).map(|rank| Member { team: team.clone(), rank }).collect()
    }

    /// Runs `work` as this member. At its end, however it ends, the member has left the team.
    pub fn scope<T>(self, work: impl FnOnce() -> T) -> T {
        struct Leave(Arc<Team>);
        impl Drop for Leave {
            fn drop(&mut self) {
                MEMBER.set(None);
                self.0.drawn.fetch_max(DRAWN.take(), Ordering::Relaxed);
                lock(&self.0.state).left += 1;
                self.0.changed.notify_all();
            }
        }
        let _leave = Leave(self.team.clone());
        MEMBER.set(Some(self));
        WAITED.set(Duration::ZERO);
        work()
    }

    /// What `count`, in proportion to this member's samples, is over all members.
    pub fn over_all(&self, count: usize) -> usize {
        (count as u128 * self.total() as u128 / self.team.samples[self.rank].max(1) as u128) as usize
    }

    /// The random words of this member's `count` elements, of those that the team draws at once: the stream, and how many
    /// words of its first block are the previous member's. Together the members draw what one device would.
    pub fn words(&self, count: usize) -> (Stream, usize) {
        let before: usize = self.team.samples[..self.rank].iter().sum();
        let at = (count as u128 * before as u128 / self.team.samples[self.rank].max(1) as u128) as u64;
        let drawn = DRAWN.get();
        DRAWN.set(drawn + (self.over_all(count) as u64).div_ceil(4));
        let Stream { seed, first } = self.team.stream;
        (Stream { seed, first: first.wrapping_add(drawn + at / 4) }, (at % 4) as usize)
    }

    /// How many random blocks the team has drawn, once all members have left.
    pub fn drawn(&self) -> u64 {
        self.team.drawn.load(Ordering::Relaxed)
    }

    fn total(&self) -> usize {
        self.team.samples.iter().sum::<usize>().max(1)
    }

    /// Brings `own` to an exchange and waits for what `merge` makes of all members' values, in the order of the members
    /// and with their shares. All members must come to the same exchanges in the same order.
    ///
    /// # Errors
    /// [`Error::Abandoned`] when a member has left, or brings another number of values.
    pub fn exchange(&self, own: Vec<f32>, merge: impl FnOnce(&[(f64, Vec<f32>)]) -> Vec<f32>) -> Result<Arc<Vec<f32>>> {
        let mut state = lock(&self.team.state);
        let round = state.done;
        state.brought[self.rank] = Some(own);
        if state.brought.iter().all(Option::is_some) {
            let shares = self.team.samples.iter().map(|&n| n as f64 / self.total() as f64);
            let all: Vec<(f64, Vec<f32>)> = shares.zip(state.brought.iter_mut().filter_map(Option::take)).collect();
            if all.iter().any(|(_, values)| values.len() != all[0].1.len()) {
                return Err(Error::Abandoned); // as this member leaves, the others see it
            }
            state.result = Arc::new(merge(&all));
            state.done += 1;
            self.team.changed.notify_all();
        }
        let start = Instant::now();
        while state.done == round {
            if state.left > 0 {
                return Err(Error::Abandoned);
            }
            state = self.team.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        WAITED.set(WAITED.get() + start.elapsed());
        Ok(state.result.clone())
    }

    /// Σ shareᵢ · valuesᵢ over the members, as [`exchange`](Member::exchange).
    pub fn weighted_sum(&self, own: Vec<f32>) -> Result<Arc<Vec<f32>>> {
        self.exchange(own, |all| {
            let mut sums = vec![0.0f64; all[0].1.len()];
            for (share, values) in all {
                sums.iter_mut().zip(values).for_each(|(sum, &v)| *sum += share * f64::from(v));
            }
            sums.into_iter().map(|sum| sum as f32).collect()
        })
    }
}

/// The member that this thread works as, if it does.
pub(crate) fn member() -> Option<Member> {
    MEMBER.with_borrow(Clone::clone)
}

/// How long this thread's member has waited for others: no measure of its own speed.
pub(crate) fn waited() -> Duration {
    WAITED.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const START: Stream = Stream { seed: 7, first: 1 << 40 };

    fn run<T: Send>(samples: &[usize], work: impl Fn(usize, &Member) -> T + Sync) -> Vec<T> {
        let team = Member::team(samples.to_vec(), START);
        thread::scope(|s| {
            let work = &work;
            let threads: Vec<_> = team
                .into_iter()
                .enumerate()
                .map(|(i, m)| s.spawn(move || m.scope(|| work(i, &member().expect("in a scope")))))
                .collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn every_member_gets_each_weighted_sum() {
        let sums = run(&[1, 3], |i, member| {
            (0..100)
                .map(|round| member.weighted_sum(vec![(i * round) as f32, 1.0]).unwrap().to_vec())
                .collect::<Vec<_>>()
        });
        assert_eq!(sums[0], sums[1]);
        assert_eq!(sums[0], (0..100).map(|round| vec![0.75 * round as f32, 1.0]).collect::<Vec<_>>());
        assert!(member().is_none());
    }

    #[test]
    fn who_ends_early_is_not_waited_for() {
        let ends = run(&[1, 1, 1], |i, member| match i {
            1 => Ok(Arc::default()),
            _ => member.weighted_sum(vec![1.0]),
        });
        assert_eq!(ends[0], Err(Error::Abandoned));
        assert_eq!(ends[2], Err(Error::Abandoned));
        // Who got the last result before the others left has it.
        let all = run(&[1, 1], |_, member| member.weighted_sum(vec![2.0]).map(|v| v.to_vec()));
        assert_eq!(all, [Ok(vec![2.0]), Ok(vec![2.0])]);
    }

    #[test]
    fn unequal_values_are_an_error_for_all() {
        let ends = run(&[1, 1], |i, member| member.weighted_sum(vec![1.0; i + 1]));
        assert!(ends.iter().all(|end| *end == Err(Error::Abandoned)), "{ends:?}");
    }

    #[test]
    fn members_draw_what_one_would() {
        let parts = run(&[3, 1, 2], |_, member| {
            let draw = |rows: usize| {
                let (stream, skip) = member.words(rows * 5);
                stream.words().skip(skip).take(rows * 5).collect::<Vec<u32>>()
            };
            let rows = member.team.samples[member.rank];
            [draw(rows), draw(rows)]
        });
        for (draw, first) in [(0, START.first), (1, START.first + 8)] {
            let whole: Vec<u32> = parts.iter().flat_map(|part| part[draw].clone()).collect();
            assert_eq!(whole, Stream { first, ..START }.words().take(30).collect::<Vec<_>>());
        }
    }

    #[test]
    fn counts_grow_with_the_team() {
        let [a, b] = &Member::team(vec![2, 6], START)[..] else { panic!("two members") };
        assert_eq!((a.over_all(20), b.over_all(60)), (80, 80));
    }
}
