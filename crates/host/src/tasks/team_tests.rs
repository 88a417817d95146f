//! What a team promises, with real threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::team::{Team, Work};
use super::threading::{AWAKE, AtomicBool, AtomicUsize, Instant, Ordering, thread};

fn team() -> &'static Team {
    Box::leak(Box::default())
}

#[test]
fn all_work_is_done_when_it_returns() {
    let team = team();
    // Miri would take minutes for all of them.
    let rounds = if cfg!(miri) { 20 } else { 2_000 };
    for round in 0..rounds {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ran = team.run(3, Work::ForAll, &|_| {
            while next.fetch_add(1, Ordering::Relaxed) < 20 {
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(ran && done.into_inner() == 20);
        if round % 500 == 0 {
            thread::sleep(2 * AWAKE); // until the members sleep
        }
    }
}

#[test]
fn a_caller_that_sleeps_is_woken() {
    let team = team();
    let caller = thread::current().id();
    for _ in 0..20 {
        let (start, members) = (Instant::now(), AtomicUsize::new(0));
        team.run(1, Work::ForAll, &|_| {
            if thread::current().id() != caller {
                members.fetch_add(1, Ordering::SeqCst);
                thread::sleep(10 * AWAKE);
                return;
            }
            while members.load(Ordering::SeqCst) == 0 && start.elapsed() < 50 * AWAKE {
                thread::yield_now();
            }
        });
        assert!(members.into_inner() == 0 || start.elapsed() >= 10 * AWAKE);
    }
}

#[test]
fn others_take_part() {
    let team = team();
    let before = Instant::now();
    // The caller waits for another thread, which needs a processor of its own.
    let (inside, both) = (AtomicUsize::new(0), AtomicBool::new(false));
    team.run(1, Work::ForAll, &|_| {
        inside.fetch_add(1, Ordering::SeqCst);
        let alone = rayon::current_num_threads() == 1;
        while !both.load(Ordering::SeqCst) && !alone && before.elapsed() < Duration::from_secs(10) {
            if inside.load(Ordering::SeqCst) == 2 {
                both.store(true, Ordering::SeqCst);
            }
            thread::yield_now();
        }
    });
    assert!(both.into_inner() || rayon::current_num_threads() == 1);
}

#[test]
fn work_within_work_is_left_to_the_caller() {
    let team = team();
    assert!(team.run(2, Work::ForAll, &|_| assert!(!team.run(2, Work::ForAll, &|_| unreachable!()))));
}

#[test]
fn a_panic_of_a_thread_is_that_of_the_caller_and_the_team_goes_on() {
    let team = team();
    let caller = thread::current().id();
    for of_caller in [true, false] {
        let came = AtomicBool::new(false);
        let panics = |_: usize| {
            if (thread::current().id() == caller) == of_caller {
                came.store(true, Ordering::SeqCst);
                panic!("as the test wants");
            }
            let start = Instant::now();
            while !came.load(Ordering::SeqCst) && start.elapsed() < Duration::from_millis(200) {
                thread::yield_now();
            }
        };
        let result = catch_unwind(AssertUnwindSafe(|| team.run(1, Work::ForAll, &panics)));
        assert_eq!(result.is_err(), came.into_inner());
    }
    let ran = AtomicUsize::new(0);
    assert!(team.run(1, Work::ForAll, &|_| {
        ran.fetch_add(1, Ordering::Relaxed);
    }));
    assert!(ran.into_inner() >= 1);
}
