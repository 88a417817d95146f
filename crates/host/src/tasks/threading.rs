//! The threads, locks and clock of the team. `tests/interleavings.rs` compiles the team with others, which try orders of execution.

use std::hint::spin_loop;
pub(super) use std::sync::Mutex;
use std::sync::MutexGuard;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(super) use std::thread::{self, Thread};
pub(super) use std::thread_local;

use web_time::Duration;
pub(super) use web_time::Instant;

/// How long a member looks for work before it sleeps, and the caller for the end of the others' work.
pub(super) const AWAKE: Duration = Duration::from_micros(200);

/// How often a waiting thread looks for what it waits for before it looks at the time and lets other threads run.
const LOOKS: usize = 32;

pub(super) fn number_of_threads() -> usize {
    rayon::current_num_threads()
}

/// Returns whether members go on: they end with the process.
pub(super) fn lives() -> bool {
    true
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    crate::lock(mutex)
}

/// Waits until something holds, for a moment from `start` on, and returns whether it does.
pub(super) fn waited(start: Instant, holds: impl Fn() -> bool) -> bool {
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
