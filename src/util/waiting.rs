//! Waiting for what is not there yet. The thread of a page may not wait: the browser would have no turn to bring
//! it. This file and `threads.rs` hold what differs between the platforms.
//!
//! Code that waits is written once, as an `async fn`; its blocking form is [`block_on`] of it. Outside a browser,
//! such a function waits within the driver, and its future is ready when it returns.

use std::pin::pin;

use crate::context::slot;
use crate::error::{Error, Result};

/// Whether a thread may wait.
pub(crate) const CAN_BLOCK: bool = cfg!(not(target_arch = "wasm32"));

/// Returns the value of a future, and waits for it.
///
/// # Errors
/// In a browser, [`Error::WouldBlock`] if the value is not there yet, and this is not within [`jspi`].
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output> {
    platform::block_on(pin!(future))
}

/// Returns the result of a future, and waits for it, as [`block_on`].
pub(crate) fn wait_for<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    block_on(future).flatten()
}

slot! {
    /// Whether this code is within [`jspi`].
    MAY_SUSPEND: bool = false, for this thread alone
}

/// Runs `f`, in which calls can wait in a browser too, by JS Promise Integration.
///
/// Elsewhere in a browser, such calls return [`Error::WouldBlock`]. While a call waits, the page goes on, and other
/// calls of this crate may run.
///
/// `f` must be called within an export that is marked `#[wasm_bindgen(jspi)]`; elsewhere the browser throws a
/// `SuspendError`. This needs the feature `jspi`; a module with it loads only in browsers that have JS Promise
/// Integration. Outside a browser, this only calls `f`.
///
/// ```
/// use anygpu::{Tensor, jspi, try_gpu};
///
/// // #[wasm_bindgen(jspi)]
/// pub fn total() -> f32 {
///     jspi(|| Tensor::ones([10], &try_gpu(0)).and_then(|x| x.sum_all()?.item()).unwrap_or(f32::NAN))
/// }
/// assert_eq!(total(), 10.0);
/// ```
pub fn jspi<R>(f: impl FnOnce() -> R) -> R {
    let _within = MAY_SUSPEND.set(true);
    f()
}

/// Runs a future to its end: in a browser while other code runs, elsewhere before this returns.
pub(crate) use platform::run;

/// Waits for a future for at most this long; in a browser, for no time.
pub(crate) use platform::within;

impl Error {
    /// Puts the names of the called method and of its asynchronous form into an error about a wait. The outermost
    /// name stays.
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

    #[cfg(not(feature = "jspi"))]
    pub(super) fn block_on<F: Future>(mut future: Pin<&mut F>) -> crate::Result<F::Output> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Ok(value),
            Poll::Pending => Err(super::would_block()),
        }
    }

    #[cfg(feature = "jspi")]
    pub(super) use super::suspend::block_on;

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

/// Waiting by JS Promise Integration: the browser suspends the calls within an export, and runs other code
/// meanwhile. That code may call this crate too. So a suspended call takes its state along (`SetAside`), and other
/// calls wait for the locks that it holds ([`until_free`]).
#[cfg(all(target_arch = "wasm32", feature = "jspi"))]
mod suspend {
    use std::pin::Pin;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
    use std::task::{Context, Poll, Wake, Waker};

    use futures_channel::oneshot;
    use js_sys::{Function, Promise, global};
    use wasm_bindgen::{JsCast, JsValue};

    use crate::context::SetAside;
    use crate::error::Result;

    /// Told when the future may have come further.
    struct Told(Mutex<Option<oneshot::Sender<()>>>);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            let told = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            let _ = told.map(|told| told.send(()));
        }
    }

    pub(in crate::util) fn block_on<F: Future>(mut future: Pin<&mut F>) -> Result<F::Output> {
        loop {
            let (told, waits) = oneshot::channel();
            let waker = Waker::from(Arc::new(Told(Mutex::new(Some(told)))));
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Ok(value);
            }
            suspend(&wasm_bindgen_futures::future_to_promise(async move {
                let _ = waits.await;
                Ok(JsValue::UNDEFINED)
            }))?;
        }
    }

    /// Runs other code until a promise is settled.
    fn suspend(promise: &Promise) -> Result<()> {
        if !super::MAY_SUSPEND.get() {
            return Err(super::would_block());
        }
        let aside = SetAside::all();
        #[expect(deprecated, reason = "wasm-bindgen calls it experimental")]
        let resumed = js_sys::futures::jspi_block_on_promise(promise);
        drop(aside);
        resumed.map(drop).map_err(|_| super::would_block())
    }

    /// Locks a mutex, which a suspended call may hold: then other code runs until it is free.
    pub(crate) fn until_free<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        loop {
            match mutex.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    let later = Promise::new(&mut |resolve, _| {
                        let timer = js_sys::Reflect::get(&global(), &"setTimeout".into());
                        let timer = timer.ok().and_then(|timer| timer.dyn_into::<Function>().ok());
                        let _ = timer.map(|timer| timer.call2(&JsValue::UNDEFINED, &resolve, &1.into()));
                    });
                    assert!(
                        suspend(&later).is_ok(),
                        "a call that waits holds this, and this call cannot wait: await one after the other"
                    );
                }
            }
        }
    }
}

#[cfg(all(target_arch = "wasm32", feature = "jspi"))]
pub(crate) use suspend::until_free;
