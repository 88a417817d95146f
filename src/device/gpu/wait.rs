//! Waiting for a device. Only this file waits within the driver.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use futures_channel::oneshot;
use web_time::{Duration, Instant};
use wgpu::{PollError, PollType, SubmissionIndex};

use super::transfer::{Mapped, Read};
use super::{Gpu, is_in_rerun};
use crate::error::{Error, Result};
use crate::util::waiting;

/// How long a device may take to answer before it is considered lost.
#[derive(Debug)]
pub(super) struct Patience(AtomicU64);

impl Default for Patience {
    fn default() -> Self {
        Patience(AtomicU64::new(600_000))
    }
}

impl Patience {
    pub(super) fn limit(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

impl Gpu {
    /// Sets how long waits may take before the device is considered lost.
    pub(crate) fn set_patience(&self, limit: Duration) {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.patience.0.store(millis.max(1), Ordering::Relaxed);
    }

    /// Submits the recorded work and waits until it is done. Work that [runs again](super::rerun) meets its errors where it reads.
    pub(crate) fn synchronize(&self) -> Result<()> {
        if is_in_rerun() { Ok(()) } else { waiting::wait_for(self.synchronized()) }
    }

    /// Asynchronous form of [`Gpu::synchronize`].
    pub(crate) async fn synchronized(&self) -> Result<()> {
        let submission = self.submitted()?;
        if waiting::CAN_BLOCK {
            self.wait(&submission)?;
        } else {
            self.done_in_browser().await?;
        }
        self.take_fault().await
    }

    /// Waits until the device has done all that was submitted, and returns any error that it had until then.
    async fn done_in_browser(&self) -> Result<()> {
        let (done, waits) = oneshot::channel();
        self.queue.on_submitted_work_done(move || {
            let _ = done.send(());
        });
        let _ = waits.await; // it is told of a device that is lost too
        self.known_in_browser().await
    }

    /// Waits until the errors of earlier calls are known, but not for what was submitted, and returns the first.
    pub(crate) async fn known(&self) -> Result<()> {
        self.health.all_known().await;
        let known = self.check();
        if !waiting::CAN_BLOCK && known.as_ref().is_err_and(Error::is_out_of_memory) {
            self.forget_free_pages(); // for another try
        }
        known
    }

    /// As [`Gpu::known`], after all that was submitted was done.
    async fn known_in_browser(&self) -> Result<()> {
        self.pool.all_written();
        self.known().await
    }

    /// Waits until the host can read what a read brings, and returns any error that the device had until then.
    pub(super) async fn arrived(&self, read: &mut Read) -> Result<Mapped> {
        if !waiting::CAN_BLOCK {
            let mapped = (&mut read.mapped).await;
            self.known_in_browser().await?;
            return mapped.map_err(|_| self.error("reading back: the browser dropped the read"));
        }
        self.wait(&read.submission)?;
        // Another thread that waits may have taken the callback without having called it yet.
        match waiting::within(&mut read.mapped, self.patience.limit()) {
            Some(Ok(mapped)) => Ok(mapped),
            Some(Err(_)) => Err(self.error("reading back: the driver dropped the read")),
            None => Err(self.error("reading back: no answer from the driver")),
        }
    }

    /// Submits the recorded work and waits for at most this long. Returns whether it is done.
    pub(crate) fn synchronize_timeout(&self, limit: Duration) -> Result<bool> {
        let submission = self.submitted()?;
        if !self.wait_until(&submission, Instant::now().checked_add(limit))? {
            return Ok(false);
        }
        self.pool.all_written();
        waiting::wait_for(self.take_fault())?;
        Ok(true)
    }

    fn submitted(&self) -> Result<SubmissionIndex> {
        let mut recorder = self.recorder()?;
        Ok(self.submit_for_wait(&mut recorder))
    }

    /// Waits for one submission, and returns any error that the device had until then. A device that takes longer than its
    /// limit is lost.
    pub(super) fn wait(&self, submission: &SubmissionIndex) -> Result<()> {
        self.wait_for_earlier(submission)?;
        self.pool.all_written();
        Ok(())
    }

    /// As `wait`, for a submission after which more was recorded: the memory of that later work is not written when
    /// this returns.
    pub(super) fn wait_for_earlier(&self, submission: &SubmissionIndex) -> Result<()> {
        let limit = self.patience.limit();
        if self.wait_until(submission, Instant::now().checked_add(limit))? {
            return Ok(());
        }
        Err(self.give_up(limit))
    }

    /// Loses the device, because it has not answered in time.
    fn give_up(&self, limit: Duration) -> Error {
        let message = format!("no answer for {} s", limit.as_secs_f64());
        self.health.lose(&message);
        self.error(message)
    }

    /// Returns an error, and loses the device, if a wait that began at `start` has lasted longer than it may.
    pub(super) fn within_patience(&self, start: Instant) -> Result<()> {
        let limit = self.patience.limit();
        if start.elapsed() > limit { Err(self.give_up(limit)) } else { Ok(()) }
    }

    /// Lets the driver say what it has done, without waiting for it. Returns an error if the device is lost.
    pub(super) fn poll_once(&self) -> Result<()> {
        let _ = self.poll(PollType::Poll);
        self.health.alive(&self.name)
    }

    /// Submits the recorded work.
    pub(crate) fn submit_recorded(&self) -> Result<()> {
        self.submitted()?;
        self.check()
    }

    /// Waits for one submission until a time, or without an end. Returns whether it is done, or any error that the device had
    /// until then.
    fn wait_until(&self, submission: &SubmissionIndex, end: Option<Instant>) -> Result<bool> {
        // A loss that the driver reports otherwise than to the wait is seen after some seconds.
        const LONGEST: Duration = Duration::from_secs(5);
        if !waiting::CAN_BLOCK {
            return waiting::wait_for(self.done_in_browser()).map(|()| true);
        }
        loop {
            let left = end.map_or(LONGEST, |end| end.saturating_duration_since(Instant::now()));
            let submission_index = Some(submission.clone());
            match self.poll(PollType::Wait { submission_index, timeout: Some(left.min(LONGEST)) }) {
                Ok(()) => {
                    self.check()?;
                    return Ok(true);
                }
                Err(PollError::Timeout) => {
                    self.check()?;
                    if end.is_some_and(|end| end <= Instant::now()) {
                        return Ok(false);
                    }
                }
                Err(error @ PollError::WrongSubmissionIndex(..)) => {
                    // A refused submit has left its error. If there is none, the device is lost.
                    self.check()?;
                    self.health.submission_failed();
                    return Err(self.failure(error.to_string()));
                }
            }
        }
    }

    /// Waits until the device has done all that was submitted, or until a time.
    #[cfg(target_os = "linux")]
    pub(super) fn wait_for_submitted(&self, end: Instant) {
        if self.health.alive(&self.name).is_ok() {
            let timeout = Some(end.saturating_duration_since(Instant::now()));
            let _ = self.poll(PollType::Wait { submission_index: None, timeout });
        }
    }

    /// Returns the error for something that the driver did not do: the loss of the device if that may be the cause,
    /// else an error with this message.
    pub(super) fn failure(&self, message: String) -> Error {
        // wgpu reports the loss of a device when all submitted work has ended, to whichever thread polls then.
        const LONGEST: Duration = Duration::from_secs(10);
        let error = Error::Gpu { device: self.name.clone(), message };
        if self.health.is_shared() && !self.takes_work() {
            self.health.submission_failed();
        }
        if self.caps.gl || self.health.is_shared() || !waiting::CAN_BLOCK {
            return self.health.alive(&self.name).err().unwrap_or(error);
        }
        let refuses_work = !self.takes_work();
        let _ = self.poll(PollType::Wait { submission_index: None, timeout: Some(LONGEST) });
        for _ in 0..10 {
            if let Err(lost) = self.alive() {
                return lost;
            }
            thread::sleep(Duration::from_millis(2));
        }
        if refuses_work {
            // Its work takes longer than that, or other threads go on submitting to it.
            self.health.lose("it takes no more work");
        }
        self.health.alive(&self.name).err().unwrap_or(error)
    }

    /// Returns whether the device accepts a submit of nothing.
    fn takes_work(&self) -> bool {
        let gl = self.gl.enter();
        let submission_index = Some(self.queue.submit([]));
        drop(gl);
        let polled = self.poll(PollType::Wait { submission_index, timeout: Some(Duration::ZERO) });
        !matches!(polled, Err(PollError::WrongSubmissionIndex(..)))
    }

    /// Returns an error if the device is lost, without waiting for it.
    pub(crate) fn alive(&self) -> Result<()> {
        // wgpu reports the loss of a device that was destroyed only when it is polled. OpenGL reports none, and its poll
        // can wait for another thread.
        if self.caps.gl { self.health.alive(&self.name) } else { self.poll_once() }
    }

    /// Loses the device, after it has done the recorded work.
    pub(crate) fn lose(&self) -> Result<()> {
        if waiting::CAN_BLOCK { self.synchronize() } else { self.submit_recorded() }?;
        self.destroy();
        Ok(())
    }

    /// Loses the device now, for tests. What wgpu says of it from here on is expected.
    pub(super) fn destroy(&self) {
        self.health.expect_loss();
        self.device.destroy();
    }

    /// Polls the device. If the driver says during this that the device is lost, wgpu calls our handler and panics.
    fn poll(&self, how: PollType) -> Result<(), PollError> {
        let _gl = self.gl.enter();
        let polled = catch_unwind(AssertUnwindSafe(|| self.device.poll(how)));
        if self.gl_out_of_memory() {
            self.health.run_out_of_memory();
        }
        match polled {
            Ok(status) => status.map(drop),
            Err(_) if self.health.alive(&self.name).is_err() => Ok(()),
            Err(panic) if is_overtaken(&*panic) => Err(PollError::Timeout),
            Err(panic) if self.health.lose_by_panic(&*panic) => Ok(()),
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// Returns whether wgpu panicked because another thread saw the end of all work after this thread's wait had timed out:
/// wgpu-core compares the state before the one with the state after the other. Nothing is lost, and the next wait succeeds.
fn is_overtaken(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref::<String>().is_some_and(|message| message.starts_with("If the queue is empty"))
}
