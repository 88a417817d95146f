//! Faults of the file system, for tests: a system call of a writer fails, or its process ends there.

use std::cell::RefCell;
use std::io;

use super::Call;

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// What happens at a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It returns an error.
    Fails,
    /// The process ends. This is simulated: the call and all later ones do nothing and return an error.
    Ends,
    /// All calls of one kind return an error, as on a file system without them.
    Lacks(Call),
}

struct Plan {
    fault: Fault,
    at: usize,
    calls: usize,
    done: Vec<Call>,
}

/// Runs `work` with a fault at its system call number `at`, from 0. Returns its result and the calls that took place.
pub(crate) fn with<T>(fault: Fault, at: usize, work: impl FnOnce() -> T) -> (T, Vec<Call>) {
    PLAN.set(Some(Plan { fault, at, calls: 0, done: Vec::new() }));
    let result = work();
    (result, PLAN.take().map(|plan| plan.done).unwrap_or_default())
}

pub(super) fn before(call: Call) -> io::Result<()> {
    PLAN.with_borrow_mut(|plan| {
        let Some(plan) = plan else { return Ok(()) };
        let number = plan.calls;
        plan.calls += 1;
        let fails = match plan.fault {
            Fault::Fails => number == plan.at,
            Fault::Ends => number >= plan.at,
            Fault::Lacks(kind) => call == kind,
        };
        if fails {
            return Err(io::Error::other(format!("a fault at call {number}, {call:?}")));
        }
        plan.done.push(call);
        Ok(())
    })
}
