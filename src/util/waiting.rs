//! Waiting for what is not there yet, which the thread of a page may not: there, the browser would have no turn to bring it. This file
//! and `threads.rs` hold what differs between the platforms.
//!
//! What waits is written once, as an `async fn`. Its blocking form is [`block_on`] of it. On other platforms than a browser, such a function
//! waits within the driver, and its future is ready when it returns.

use std::pin::pin;

use crate::error::{Error, Result};

/// Whether a thread may wait.
pub(crate) const CAN_BLOCK: bool = cfg!(not(target_arch = "wasm32"));

/// Returns the value of a future, and waits for it.
///
/// # Errors
/// In a browser, [`Error::WouldBlock`] if the value is not there yet, and this is not within an export of `wasm_bindgen` that may suspend
/// (feature `jspi`).
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output> {
    platform::block_on(pin!(future))
}

/// Returns the result of a future, and waits for it, as [`block_on`].
pub(crate) fn wait_for<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    block_on(future).flatten()
}

/// Runs a future to its end: in a browser while other code runs, elsewhere before this returns.
pub(crate) use platform::run;

/// Waits for a future for at most this long; in a browser, for no time.
pub(crate) use platform::within;

impl Error {
    /// Gives an error about a wait the names of the method that was called and of its asynchronous form. The outermost name stays.
    pub(crate) fn instead(self, call: &'static str, instead: &'static str) -> Error {
        if let Error::WouldBlock { .. } = self { Error::WouldBlock { call, instead } } else { self }
    }
}

/// Returns the error of a wait that nothing named.
pub(crate) fn would_block() -> Error {
    Error::WouldBlock { call: "this call", instead: "Tensor::to_async for the tensors that it reads on the host" }
}

#[cfg(not(target_arch = "wasm32"))]
mod platform {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread::{self, Thread};
    use std::time::{Duration, Instant};

    use crate::error::Result;

    pub(super) fn block_on<F: Future>(future: Pin<&mut F>) -> Result<F::Output> {
        Ok(pollster::block_on(future))
    }

    pub(crate) fn run(future: impl Future<Output = ()> + 'static) {
        pollster::block_on(future);
    }

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    pub(crate) fn within<F: Future + Unpin>(future: &mut F, limit: Duration) -> Option<F::Output> {
        let end = Instant::now().checked_add(limit);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(value) = Pin::new(&mut *future).poll(&mut context) {
                return Some(value);
            }
            match end.map(|end| end.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(Duration::ZERO) => return None,
                Some(left) => thread::park_timeout(left),
            }
        }
    }
}

#[cfg(target_arch = "wasm32")]
mod platform {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use crate::error::Result;

    pub(super) fn block_on<F: Future>(mut future: Pin<&mut F>) -> Result<F::Output> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Ok(value),
            Poll::Pending => Err(super::would_block()),
        }
    }

    pub(crate) fn run(future: impl Future<Output = ()> + 'static) {
        wasm_bindgen_futures::spawn_local(future);
    }

    pub(crate) fn within<F: Future + Unpin>(future: &mut F, _: Duration) -> Option<F::Output> {
        match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }
}
