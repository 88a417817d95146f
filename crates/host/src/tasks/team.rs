//! Threads that work with the calling thread on one piece of work at a time, and stay awake for a moment after it.
//!
//! The ops of a step follow one another within microseconds, and many take less than a tenth of a millisecond.
//! Waking a sleeping thread takes a good part of that, once for each thread that helps and once for the caller, if
//! it sleeps meanwhile. So the caller works too, and members of the team look for further work before they sleep,
//! like the threads of OpenMP's runtimes.

use std::any::Any;
use std::cell::Cell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, TryLockError};
use std::thread::{self, Thread};

use web_time::{Duration, Instant};

use crate::lock;

/// How long a member looks for work before it sleeps, and the caller for the end of the others' work.
const AWAKE: Duration = Duration::from_micros(200);

/// How often a waiting thread looks for what it waits for before it looks at the time and lets other threads run.
const LOOKS: usize = 32;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Work {
    /// All threads have enough to do.
    ForAll,
    /// Others could help with parts of it.
    ForSome,
}

/// The work of the calling thread. It is borrowed from there: `Team::run` does not return before all members have left it.
type Call = &'static (dyn Fn(usize) + Sync);

#[derive(Default)]
struct Team {
    /// Held by the thread whose work it is.
    user: Mutex<()>,
    open: Mutex<Open>,
    /// Counts the pieces of work.
    number: AtomicU64,
    /// The members that the last piece is for.
    wanted: AtomicUsize,
    /// The members that are within the work.
    within: AtomicUsize,
    members: OnceLock<Vec<Member>>,
    /// The caller, if it sleeps until the members have left.
    waits: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The work that members may begin, and how many of them.
#[derive(Default)]
struct Open {
    call: Option<(Work, Call)>,
    places: usize,
}

struct Member {
    thread: Thread,
    sleeps: &'static AtomicBool,
}

static TEAM: OnceLock<Team> = OnceLock::new();

thread_local! {
    static AROUND: Cell<Option<Work>> = const { Cell::new(None) };
}

/// Returns the kind of the work of a team within which this is called, if it is.
pub(super) fn work_around() -> Option<Work> {
    AROUND.get()
}

/// Runs `call` on the calling thread and, at the same time, on at most `others` further ones. Returns when all have
/// returned. `call` is given the number of the thread, 0 for the caller. Further threads may come too late to run
/// it. Returns `false` without running it if the team works for another thread, or for this one.
///
/// # Panics
/// If `call` does, on any thread.
pub(super) fn work_together(others: usize, kind: Work, call: &(dyn Fn(usize) + Sync)) -> bool {
    TEAM.get_or_init(Team::default).run(others, kind, call)
}

impl Team {
    fn run(&'static self, others: usize, kind: Work, call: &(dyn Fn(usize) + Sync)) -> bool {
        let _user = match self.user.try_lock() {
            Ok(user) => user,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let members = self.members.get_or_init(|| self.start());
        drop(lock(&self.panic).take()); // of work whose caller panicked too
        #[expect(unsafe_code, reason = "threads that live on cannot borrow from the caller's stack otherwise")]
        // SAFETY: members call it only between `enter` and `leave`. `End` closes the work and waits until all that entered have
        // left, before the borrow ends, also if `call` panics here; none can enter when it is closed.
        let lasting = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Call>(call) };
        *lock(&self.open) = Open { call: Some((kind, lasting)), places: others };
        let end = End(self);
        self.wanted.store(others, Ordering::SeqCst);
        self.number.fetch_add(1, Ordering::SeqCst);
        for member in members.iter().take(others) {
            // A member that says that it sleeps looks at the number once more before it does.
            if member.sleeps.swap(false, Ordering::SeqCst) {
                member.thread.unpark();
            }
        }
        within(kind, || call(0));
        drop(end);
        if let Some(panic) = lock(&self.panic).take() {
            resume_unwind(panic);
        }
        true
    }

    /// Starts as many threads as rayon has, less one for the caller.
    fn start(&'static self) -> Vec<Member> {
        let start = |place| {
            let sleeps: &'static AtomicBool = Box::leak(Box::default());
            let thread = thread::Builder::new().name(format!("anygpu cpu {place}"));
            let handle = thread.spawn(move || self.live(place, sleeps)).ok()?;
            Some(Member { thread: handle.thread().clone(), sleeps })
        };
        (1..rayon::current_num_threads()).map_while(start).collect()
    }

    /// The life of a member. Pieces of work for at least `place` members are for it too.
    fn live(&self, place: usize, sleeps: &AtomicBool) {
        let (mut seen, mut idle) = (0, Instant::now());
        loop {
            let came = || self.number.load(Ordering::SeqCst) != seen;
            if !waited(idle, came) {
                sleeps.store(true, Ordering::SeqCst);
                if !came() {
                    thread::park();
                }
                sleeps.store(false, Ordering::SeqCst);
                idle = Instant::now();
                continue;
            }
            seen = self.number.load(Ordering::SeqCst);
            if place > self.wanted.load(Ordering::SeqCst) {
                continue;
            }
            if let Some((kind, call)) = self.enter() {
                let result = catch_unwind(AssertUnwindSafe(|| within(kind, || call(place))));
                if let Err(panic) = result {
                    *lock(&self.panic) = Some(panic);
                }
                self.leave();
            }
            idle = Instant::now();
        }
    }

    fn enter(&self) -> Option<(Work, Call)> {
        let mut open = lock(&self.open);
        let call = open.call.filter(|_| open.places > 0)?;
        open.places -= 1;
        self.within.fetch_add(1, Ordering::SeqCst);
        Some(call)
    }

    fn leave(&self) {
        if self.within.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(caller) = lock(&self.waits).take()
        {
            caller.unpark();
        }
    }
}

/// Calls `f` as a part of a team's work.
fn within(kind: Work, f: impl FnOnce()) {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            AROUND.set(None);
        }
    }
    AROUND.set(Some(kind));
    let _done = Done;
    f();
}

/// The end of a piece of work.
struct End<'a>(&'a Team);

impl Drop for End<'_> {
    fn drop(&mut self) {
        lock(&self.0.open).call = None;
        let left = || self.0.within.load(Ordering::SeqCst) == 0;
        while !waited(Instant::now(), left) {
            *lock(&self.0.waits) = Some(thread::current());
            // The last member looks for a caller that waits after it has left.
            if !left() {
                thread::park();
            }
            lock(&self.0.waits).take();
        }
    }
}

/// Waits until something holds, for a moment from `start` on, and returns whether it does.
fn waited(start: Instant, holds: impl Fn() -> bool) -> bool {
    loop {
        for _ in 0..LOOKS {
            if holds() {
                return true;
            }
            spin_loop();
        }
        if start.elapsed() > AWAKE {
            return false;
        }
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team() -> &'static Team {
        Box::leak(Box::default())
    }

    #[test]
    fn all_work_is_done_when_it_returns() {
        let team = team();
        for round in 0..2_000 {
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
}
