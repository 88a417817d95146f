//! The names in errors: each is the method that the user called.

use crate::context::{Restore, slot};
use crate::device::gpu::EARLIER_WORK;
use crate::device::set_method;
use crate::error::{Error, Result};

slot! {
    /// The method that the user called, while it calls others: the name in their errors.
    CALLER: Option<&'static str> = None
}

/// Runs the body of a method that is composed of others. An error of theirs gets the name of this one.
///
/// Within another call of this function, the outer name counts. An error of earlier work, which a call that waits for a
/// device returns, keeps its name.
pub(crate) fn named<T>(op: &'static str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    // What does not depend on the types is compiled once.
    let outermost = begin(op);
    match (f(), outermost) {
        (Err(error), Some(_)) => Err(renamed(error, op)),
        (result, _) => result,
    }
}

/// Sets the name, unless this is within another call.
fn begin(op: &'static str) -> Option<(Restore<Option<&'static str>>, Method)> {
    CALLER.get().is_none().then(|| (CALLER.set(Some(op)), Method(set_method(Some(op)))))
}

/// The method before, in whose name tensors are allocated again when this is dropped.
struct Method(Option<&'static str>);

impl Drop for Method {
    fn drop(&mut self) {
        set_method(self.0);
    }
}

/// Returns the name for an error that a kernel will find: the method that the user called, or the op.
pub(in crate::ops) fn caller_or(op: &'static str) -> &'static str {
    CALLER.get().unwrap_or(op)
}

fn renamed(error: Error, op: &'static str) -> Error {
    match error {
        Error::InvalidArgument { ref detail, .. } if detail.ends_with(EARLIER_WORK) => error,
        Error::DeviceMismatch { left, right, .. } => Error::DeviceMismatch { op, left, right },
        Error::ShapeMismatch { left, right, detail, .. } => Error::ShapeMismatch { op, left, right, detail },
        Error::InvalidArgument { detail, .. } => Error::InvalidArgument { op, detail },
        Error::DTypeMismatch { expected, got, .. } => Error::DTypeMismatch { op, expected, got },
        // Ops whose results depend on values read them.
        Error::WouldBlock { .. } => Error::WouldBlock { call: op, instead: "Tensor::to_async, and this on cpu" },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_name_counts() {
        let inner = || -> Result<()> { Err(Error::argument("inner", "no")) };
        let name = |result: Result<()>| result.map_or_else(|error| error.to_string(), |()| String::new());
        assert_eq!(name(named("outer", inner)), "outer: no");
        assert_eq!(name(named("outer", || named("middle", inner))), "outer: no");
        assert_eq!(name(inner()), "inner: no");
        let earlier = || Err(Error::argument("inner", format!("no (found {EARLIER_WORK}")));
        assert_eq!(name(named("outer", earlier)), format!("inner: no (found {EARLIER_WORK}"));
        assert_eq!(caller_or("op"), "op");
        assert!(named("outer", || named("middle", || Ok(caller_or("op")))).is_ok_and(|name| name == "outer"));
    }
}
