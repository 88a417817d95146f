//! Threads that work with the calling thread on one piece of work at a time, and stay awake for a moment after it.
//!
//! The ops of a step follow one another within microseconds, and many take less than a tenth of a millisecond.
//! Waking a sleeping thread takes a good part of that, once for each thread that helps and once for the caller, if
//! it sleeps meanwhile. So the caller works too, and members of the team look for further work before they sleep,
//! like the threads of OpenMP's runtimes.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{OnceLock, TryLockError};

use super::threading::{
    AtomicBool, AtomicU64, AtomicUsize, Instant, Mutex, Ordering, Thread, lives, lock, number_of_threads, thread,
    thread_local, waited,
};

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
pub(super) struct Team {
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
    AROUND.with(Cell::get)
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
    pub(super) fn run(&'static self, others: usize, kind: Work, call: &(dyn Fn(usize) + Sync)) -> bool {
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
        (1..number_of_threads()).map_while(start).collect()
    }

    /// The life of a member. Pieces of work for at least `place` members are for it too.
    fn live(&self, place: usize, sleeps: &AtomicBool) {
        let (mut seen, mut idle) = (0, Instant::now());
        while lives() {
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
            AROUND.with(|around| around.set(None));
        }
    }
    AROUND.with(|around| around.set(Some(kind)));
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
