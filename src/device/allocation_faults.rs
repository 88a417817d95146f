//! Allocations that fail, for tests: the n-th one of this thread, on any device.

use std::cell::Cell;

use crate::error::{Error, Result};

thread_local! {
    /// Allocations until the one that fails.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Lets the allocation after the next `n` fail, once; `None` lets none fail. Returns whether one was still to fail.
pub(crate) fn fail_after(n: Option<usize>) -> bool {
    LEFT.replace(n).is_some()
}

/// Returns the error of an allocation that is to fail.
pub(super) fn next(device: &str) -> Result<()> {
    match LEFT.get() {
        Some(0) => {
            LEFT.set(None);
            Err(Error::OutOfMemory { device: device.into(), requested: 0, in_use: 0, available: None })
        }
        left => {
            LEFT.set(left.map(|left| left - 1));
            Ok(())
        }
    }
}
