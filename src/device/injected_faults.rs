//! Faults for tests. The n-th allocation or the n-th submit of this thread fails, on any device. Or its
//! compilations of the kernels of chains wait while a test holds a lock.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::util::sync;

/// The lock that compilations wait for: see [`hold_compilations`].
pub(crate) static COMPILES: Mutex<()> = Mutex::new(());
/// How many compilations have come to the lock.
pub(crate) static COMPILATIONS: AtomicUsize = AtomicUsize::new(0);

/// What can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An allocation of a tensor's memory.
    Allocation,
    /// A submit of recorded work: the driver refuses it, and nothing of it is done.
    Submit,
}

thread_local! {
    static HOLDS_COMPILATIONS: Cell<bool> = const { Cell::new(false) };
    /// The fault, and how many calls succeed before.
    static NEXT: Cell<Option<(Fault, usize)>> = const { Cell::new(None) };
}

/// Lets the call after the next `n` fail, once; `None` lets none fail. Returns whether one was still to fail.
pub(crate) fn fail_after(next: Option<(Fault, usize)>) -> bool {
    NEXT.replace(next).is_some()
}

/// Returns whether this call is to fail.
pub(in crate::device) fn fails(this: Fault) -> bool {
    match NEXT.get() {
        Some((fault, 0)) if fault == this => NEXT.take().is_some(),
        Some((fault, n)) if fault == this => {
            NEXT.set(Some((fault, n - 1)));
            false
        }
        _ => false,
    }
}

/// Lets compilations of chains' kernels by this thread wait for the lock.
pub(crate) fn hold_compilations() {
    HOLDS_COMPILATIONS.set(true);
}

/// Waits until no test holds the lock, if this thread's compilations do.
pub(in crate::device) fn compilation() {
    if HOLDS_COMPILATIONS.get() {
        COMPILATIONS.fetch_add(1, Ordering::SeqCst);
        drop(sync::lock(&COMPILES));
    }
}

/// Returns the error of an allocation that is to fail.
pub(in crate::device) fn allocation(device: &str) -> crate::Result<()> {
    match fails(Fault::Allocation) {
        true => {
            let (device, held) = (device.into(), Vec::new());
            Err(crate::Error::OutOfMemory { device, requested: 0, in_use: 0, available: None, held })
        }
        false => Ok(()),
    }
}
