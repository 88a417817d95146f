//! The result of a collective that goes on while the program does other work.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::util::sync::{lock, panic_message};

/// The result of a collective that was started, such as by [`all_reduce_async`](super::all_reduce_async).
///
/// The collective continues even if nobody waits for it. Dropping the handle ignores the result and any error.
#[must_use = "the collective is done, and its error known, after wait()"]
pub struct Handle<T>(Arc<Place<T>>);

/// Where the result is put.
struct Place<T> {
    result: Mutex<Option<Result<T>>>,
    done: Condvar,
}

impl<T> Handle<T> {
    /// Returns whether [`wait`](Handle::wait) would return immediately.
    #[must_use]
    pub fn is_done(&self) -> bool {
        lock(&self.0.result).is_some()
    }

    /// Waits for the end of the collective, and returns what the blocking function returns.
    ///
    /// # Errors
    /// The errors of the blocking function.
    pub fn wait(self) -> Result<T> {
        let mut result = lock(&self.0.result);
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            result = self.0.done.wait(result).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

impl<T: Send + 'static> Handle<T> {
    /// Runs `work` on a thread of its own, with the context of this one.
    pub(super) fn start(op: &'static str, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Handle<T>> {
        let handle = Handle(Arc::new(Place { result: Mutex::new(None), done: Condvar::new() }));
        let (place, context) = (handle.0.clone(), Context::current());
        let job = move || {
            let result = catch_unwind(AssertUnwindSafe(|| context.run(work)));
            *lock(&place.result) =
                Some(result.unwrap_or_else(|panic| {
                    Err(Error::internal(format!("{op} panicked: {}", panic_message(&*panic))))
                }));
            place.done.notify_all();
        };
        match Builder::new().name(op.into()).spawn(job) {
            Ok(_) => Ok(handle),
            Err(error) => Err(Error::argument(op, format!("a thread could not be started: {error}"))),
        }
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("done", &self.is_done()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_result_an_error_and_a_panic_arrive() {
        let (go, wait) = channel::<()>();
        let slow = Handle::start("slow", move || Ok(wait.recv().is_ok())).unwrap();
        assert!(!slow.is_done() && format!("{slow:?}").contains("false"));
        go.send(()).unwrap();
        assert_eq!(slow.wait(), Ok(true));
        assert_eq!(Handle::start("bad", || Err::<(), _>(Error::Abandoned)).unwrap().wait(), Err(Error::Abandoned));
        let error = Handle::<()>::start("worse", || panic!("a bug")).unwrap().wait().unwrap_err().to_string();
        assert!(error.contains("worse panicked: a bug"), "{error}");
    }
}
