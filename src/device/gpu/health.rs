//! Errors that the driver raised outside of any error scope. They are kept, and the next host call reports them. wgpu's
//! own handler would panic.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_channel::oneshot;

use crate::error::{Error, Result};
use crate::util::{sync, waiting};

#[derive(Debug, Default)]
pub(super) struct Health {
    /// Whether `trouble` holds an error. It is outside of the lock because every call reads it.
    raised: AtomicBool,
    trouble: Mutex<Trouble>,
    /// Whether the device is to be lost, for a test.
    expected: AtomicBool,
    /// Whether the handlers of the device belong to the program that opened it.
    is_shared: bool,
    /// Scopes that have ended, and whose errors are not known yet.
    unknown: Mutex<Vec<oneshot::Receiver<()>>>,
}

#[derive(Debug, Default)]
struct Trouble {
    lost: Option<String>,
    out_of_memory: bool,
    message: Option<String>,
}

impl Health {
    /// Replaces wgpu's handlers of a device by a new `Health`.
    pub(super) fn watch(device: &wgpu::Device) -> Arc<Health> {
        let health = Arc::new(Health::default());
        let watcher = health.clone();
        device.on_uncaptured_error(Arc::new(move |error| watcher.report(error)));
        let watcher = health.clone();
        device.set_device_lost_callback(move |reason, message| watcher.lose(&format!("{reason:?}: {message}")));
        health
    }

    /// Returns the state of a device whose handlers are not this crate's.
    #[cfg(feature = "wgpu")]
    pub(super) fn without_handlers() -> Health {
        Health { is_shared: true, ..Health::default() }
    }

    /// Ends a scope and returns its error. In a browser, the error is not known yet: [`Health::all_known`] waits until this has it.
    pub(super) fn popped(self: &Arc<Self>, scope: wgpu::ErrorScopeGuard) -> Option<wgpu::Error> {
        self.popped_or(scope, || ())
    }

    /// As [`Health::popped`], and calls `late` if there is an error that is known later.
    pub(super) fn popped_or(
        self: &Arc<Self>,
        scope: wgpu::ErrorScopeGuard,
        late: impl FnOnce() + 'static,
    ) -> Option<wgpu::Error> {
        let error = scope.pop();
        if waiting::CAN_BLOCK {
            return waiting::block_on(error).ok().flatten();
        }
        let (health, (known, waits)) = (self.clone(), oneshot::channel());
        sync::lock(&self.unknown).push(waits);
        waiting::run(async move {
            if let Some(error) = error.await {
                late();
                health.report(error);
            }
            let _ = known.send(());
        });
        None
    }

    /// Waits until the errors of all scopes that have ended are known.
    pub(super) async fn all_known(&self) {
        let unknown = std::mem::take(&mut *sync::lock(&self.unknown));
        for known in unknown {
            let _ = known.await;
        }
    }

    /// Calls `f`, and keeps the errors of its commands that would otherwise go to the program's handler.
    pub(super) fn observe<R>(self: &Arc<Self>, device: &wgpu::Device, f: impl FnOnce() -> R) -> R {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};

        if !self.is_shared {
            return f();
        }
        let scopes = [Validation, OutOfMemory, Internal].map(|filter| device.push_error_scope(filter));
        let result = f();
        // The innermost one first.
        scopes.into_iter().rev().filter_map(|scope| self.popped(scope)).for_each(|error| self.report(error));
        result
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Marks a device without handlers of this crate as lost, since wgpu panicked when it was polled: so it reports what it would
    /// report to a handler. Returns whether the device is one.
    pub(super) fn lose_by_panic(&self, panic: &(dyn Any + Send)) -> bool {
        if self.is_shared {
            self.lose(&sync::panic_message(panic));
        }
        self.is_shared
    }

    /// Keeps that a submission failed, which is how a device without handlers of this crate shows that it is lost.
    pub(super) fn submission_failed(&self) {
        if self.is_shared {
            self.lose("it takes no more work");
        }
    }

    /// Keeps an error of the driver. Only the first message is kept: later errors are its consequences.
    pub(super) fn report(&self, error: wgpu::Error) {
        let mut trouble = sync::lock(&self.trouble);
        match error {
            wgpu::Error::OutOfMemory { .. } => trouble.out_of_memory = true,
            other => {
                let message = describe(&other);
                // What wgpu refuses on a device that is lost follows from that, and says nothing new.
                let lost = trouble.lost.is_some() || self.expected.load(Ordering::Acquire);
                log::log!(if lost { log::Level::Debug } else { log::Level::Error }, "{message}");
                trouble.message.get_or_insert(message);
            }
        }
        self.raised.store(true, Ordering::Release);
    }

    /// Keeps an error that the call which found it cannot return.
    pub(super) fn keep(&self, error: &Error) {
        let message = match error {
            Error::OutOfMemory { .. } => return self.run_out_of_memory(),
            Error::Gpu { message, .. } => message.clone(),
            other => other.to_string(),
        };
        sync::lock(&self.trouble).message.get_or_insert(message);
        self.raised.store(true, Ordering::Release);
    }

    /// Keeps that the driver had no memory for something.
    pub(super) fn run_out_of_memory(&self) {
        sync::lock(&self.trouble).out_of_memory = true;
        self.raised.store(true, Ordering::Release);
    }

    /// Keeps the error of a submit that a test lets fail.
    #[cfg(test)]
    pub(super) fn refuse(&self, what: &str) {
        let source = Box::from(what);
        self.report(wgpu::Error::Internal { source, description: what.into() });
    }

    /// Says that the device will be lost, for a test: the errors that follow from it are not news.
    pub(super) fn expect_loss(&self) {
        self.expected.store(true, Ordering::Release);
    }

    /// Marks the device as lost.
    pub(super) fn lose(&self, reason: &str) {
        sync::lock(&self.trouble).lost.get_or_insert_with(|| reason.trim_end_matches([':', ' ']).into());
        self.raised.store(true, Ordering::Release);
    }

    /// Returns an error if the device is lost.
    pub(super) fn alive(&self, device: &str) -> Result<()> {
        if !self.raised.load(Ordering::Acquire) {
            return Ok(());
        }
        let lost = sync::lock(&self.trouble).lost.clone();
        lost.map_or(Ok(()), |reason| Err(Error::DeviceLost { device: device.into(), reason }))
    }

    /// Returns what was raised since the last call, once; `short` is the error of a lack of memory.
    pub(super) fn check(&self, device: &str, short: impl FnOnce() -> Error) -> Result<()> {
        if !self.raised.load(Ordering::Acquire) {
            return Ok(());
        }
        self.alive(device)?;
        let mut trouble = sync::lock(&self.trouble);
        self.raised.store(false, Ordering::Release);
        let message = trouble.message.take();
        if std::mem::take(&mut trouble.out_of_memory) {
            return Err(short());
        }
        message.map_or(Ok(()), |message| Err(Error::Gpu { device: device.into(), message }))
    }
}

/// Returns an error and its causes as one line.
pub(super) fn describe(error: &wgpu::Error) -> String {
    match error {
        wgpu::Error::OutOfMemory { .. } => "out of memory".into(),
        wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
            description.trim().to_string()
        }
    }
}
