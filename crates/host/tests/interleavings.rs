//! The team of `src/tasks/team.rs` under many orders of execution of its threads, which shuttle chooses.
//!
//! The team is compiled here once more, with shuttle's threads and locks in the place of the standard library's. An order in which all
//! threads wait for each other fails as a deadlock.

#![expect(dead_code, reason = "the team's own entry points are for the library")]

#[path = "../src/tasks/team.rs"]
mod team;

/// What `src/tasks/threading.rs` has of the standard library.
mod threading {
    pub(super) use shuttle::sync::Mutex;
    use shuttle::sync::MutexGuard;
    pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(super) use shuttle::thread::{self, Thread};
    pub(super) use shuttle::thread_local;

    /// There is no time here: who waits looks a few times, and then sleeps.
    #[derive(Clone, Copy)]
    pub(super) struct Instant;

    impl Instant {
        pub fn now() -> Instant {
            Instant
        }
    }

    pub(super) fn number_of_threads() -> usize {
        3
    }

    std::thread_local! {
        /// Whether the test is over. All threads of an order are on one thread of the system.
        pub(super) static OVER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    pub(super) fn lives() -> bool {
        !OVER.get()
    }

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn waited(_: Instant, holds: impl Fn() -> bool) -> bool {
        (0..2).any(|_| {
            let held = holds();
            thread::yield_now();
            held
        })
    }
}

use std::panic::{AssertUnwindSafe, catch_unwind};

use team::{Team, Work};
use threading::{AtomicUsize, OVER, Ordering, thread};

/// How many orders each test tries.
const ORDERS: usize = 3_000;

/// Calls `test` with a team, whose members then end: shuttle takes threads that sleep when all others have ended for a deadlock.
fn with_team(test: impl Fn(&'static Team)) {
    OVER.set(false);
    let team = Box::leak(Box::default());
    test(team);
    OVER.set(true);
    assert!(team.run(2, Work::ForAll, &|_| ())); // wakes them
}

/// All tasks are done once when the call returns, over several pieces of work, between which members may fall asleep.
fn all_tasks_once(team: &'static Team) {
    for _ in 0..3 {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ran = team.run(2, Work::ForAll, &|_| {
            while next.fetch_add(1, Ordering::SeqCst) < 4 {
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
        // Here the borrow of both numbers ends: no member may be within the work any more.
        assert!(ran);
        assert_eq!(done.into_inner(), 4);
    }
}

/// Of two callers, one works with the team; the other one is told to work alone, or comes later.
fn two_callers(team: &'static Team) {
    let runs = |team: &'static Team| {
        let done = AtomicUsize::new(0);
        let ran = team.run(1, Work::ForSome, &|_| {
            done.fetch_add(1, Ordering::SeqCst);
        });
        let done = done.into_inner();
        assert!(if ran { (1..=2).contains(&done) } else { done == 0 });
        ran
    };
    let other = thread::spawn(move || runs(team));
    let (first, second) = (runs(team), other.join().expect("it returns"));
    assert!(first || second);
}

/// A panic of any thread is the caller's, after all have left, and the next piece of work is done.
fn a_panic(team: &'static Team) {
    let within = AtomicUsize::new(0);
    let failing = |place: usize| {
        within.fetch_add(1, Ordering::SeqCst);
        let result = (place != 1).then_some(());
        within.fetch_sub(1, Ordering::SeqCst);
        // `resume_unwind` writes nothing, where a panic would write for each order.
        if result.is_none() {
            std::panic::resume_unwind(Box::new("as the test wants"));
        }
    };
    let _ = catch_unwind(AssertUnwindSafe(|| team.run(2, Work::ForAll, &failing)));
    assert_eq!(within.load(Ordering::SeqCst), 0);
    all_tasks_once(team);
}

#[test]
fn all_tasks_are_done_once() {
    shuttle::check_random(|| with_team(all_tasks_once), ORDERS);
    shuttle::check_pct(|| with_team(all_tasks_once), ORDERS, 3);
}

#[test]
fn two_callers_do_not_meet() {
    shuttle::check_random(|| with_team(two_callers), ORDERS);
    shuttle::check_pct(|| with_team(two_callers), ORDERS, 3);
}

#[test]
fn a_panic_ends_the_work_of_all() {
    shuttle::check_random(|| with_team(a_panic), ORDERS);
}
