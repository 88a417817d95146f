//! The turns of the calls of one net: a call computes with all of its devices, and the next one waits.

use std::sync::{Mutex, MutexGuard};

use crate::context::{Restore, slot};
use crate::error::{Error, Result};
use crate::util::sync::lock;

slot! {
    /// The nets ([`DataParallel`](crate::DataParallel), [`Pipeline`](crate::Pipeline)) in whose calls this thread takes
    /// part, by their addresses. A call holds the lock of its net. Another call of the same net inside it would wait
    /// for ever.
    NETS: Vec<usize> = Vec::new()
}

/// Waits until no other call of the net at the address `net` computes. Its turn lasts until the guards are dropped.
///
/// # Errors
/// [`Error::InvalidArgument`] if this thread works for a call of the same net, which would wait for ever.
pub(super) fn take_turn<'a, T>(
    kind: &'static str,
    call: &'static str,
    net: usize,
    state: &'a Mutex<T>,
) -> Result<(MutexGuard<'a, T>, Restore<Vec<usize>>)> {
    let mut nets = NETS.get();
    if nets.contains(&net) {
        let detail = format!(
            "called by a loss function or a layer of the same {kind}, while that is in the middle of a call: use the arguments \
             of the loss function, or another {kind}"
        );
        return Err(Error::argument(call, detail));
    }
    nets.push(net);
    let guard = lock(state);
    Ok((guard, NETS.set(nets)))
}
