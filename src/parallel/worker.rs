//! One thread per device. A submit to lavapipe blocks until the previous one is done, so a single host thread cannot
//! keep two such devices busy. Also, the failure of one device must not stop the others' work.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::Builder;

use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::util::sync::{lock, panic_message};
use crate::util::threads::THREADS;

type Job = Box<dyn FnOnce() + Send>;

/// Runs `work` for a device. An error, or a panic as an error, has the device's name.
pub(super) fn on_device<T>(device: &Device, work: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| match error {
            Error::Replica { .. } | Error::WorkerPanic { .. } => error, // that of a thread of the same device, with its name
            error => Error::Replica { device: device.to_string(), error: Box::new(error) },
        }),
        Err(panic) => Err(Error::WorkerPanic { device: device.to_string(), message: panic_message(panic.as_ref()) }),
    }
}

/// Returns the error for a thread of a device that did not start.
pub(super) fn not_started(device: &Device, error: &io::Error) -> Error {
    Error::DeviceUnavailable { device: device.to_string(), reason: format!("its thread could not be started: {error}") }
}

/// Threads of dropped workers, for the next ones. wgpu keeps an entry for each thread that ever used a device, so a
/// program that makes many nets must not have a new thread for each.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

/// A thread that runs jobs in order until the worker is dropped.
pub(super) struct Worker {
    device: Device,
    /// `None` while being dropped, and where there are no threads: there, the caller runs the parts of its call (`in_turn.rs`).
    jobs: Option<Sender<Job>>,
    /// Whether a job is running.
    busy: Arc<AtomicBool>,
}

impl Worker {
    pub(super) fn start(device: &Device) -> Result<Worker> {
        let idle = lock(&IDLE).pop();
        let jobs = match idle {
            Some(jobs) => Some(jobs),
            None if !THREADS => None,
            None => {
                let (jobs, inbox) = channel::<Job>();
                let thread =
                    Builder::new().name("anygpu worker".into()).spawn(move || inbox.into_iter().for_each(|job| job()));
                thread.map_err(|error| not_started(device, &error))?;
                Some(jobs)
            }
        };
        Ok(Worker { device: device.clone(), jobs, busy: Arc::new(AtomicBool::new(false)) })
    }

    /// Starts `work` on the worker's thread, with the context of this one. That thread then calls `then` with the result: an
    /// error, or a panic as an error, has the device's name.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
        then: impl FnOnce(Result<T>) + Send + 'static,
    ) {
        let device = self.device.clone();
        let context = Context::current();
        let work = move || context.run(work);
        self.busy.store(true, Ordering::Release);
        let busy = self.busy.clone();
        let job: Job = Box::new(move || {
            let result = on_device(&device, work);
            busy.store(false, Ordering::Release);
            then(result);
        });
        match &self.jobs {
            Some(jobs) => {
                if let Err(SendError(job)) = jobs.send(job) {
                    job(); // The thread has ended, which it does not while someone has its sender.
                }
            }
            None => job(),
        }
    }

    /// Returns whether a job is running.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }
}

/// Gives the thread to the next worker. If a job that was given up is still running, the thread ends after it.
impl Drop for Worker {
    fn drop(&mut self) {
        lock(&IDLE).extend(self.jobs.take().filter(|_| !self.is_busy()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait<T: Send + 'static>(worker: &Worker, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let (send, receive) = channel();
        worker.submit(work, move |result| send.send(result).unwrap());
        receive.recv().unwrap()
    }

    #[test]
    fn errors_and_panics_name_the_device_and_the_thread_lives_on() {
        let worker = Worker::start(&Device::cpu()).unwrap();
        let error = wait::<()>(&worker, || Err(Error::Autograd("no".into()))).unwrap_err();
        assert_eq!(error.to_string(), "replica on cpu: backward: no");
        let panic = wait::<()>(&worker, || panic!("bug {}", 7)).unwrap_err();
        assert_eq!(panic.to_string(), "worker thread of cpu panicked: bug 7");
        assert_eq!(wait(&worker, || Ok(5)), Ok(5));
        assert!(!worker.is_busy());
    }

    #[test]
    fn threads_are_used_again() {
        let ids: std::collections::HashSet<_> = (0..50)
            .map(|_| {
                let worker = Worker::start(&Device::cpu()).unwrap();
                wait(&worker, || Ok(std::thread::current().id())).unwrap()
            })
            .collect();
        // Other tests take and give threads meanwhile.
        assert!(ids.len() < 25, "{} threads", ids.len());
    }

    #[test]
    fn a_job_that_hangs_does_not_hold_up_the_drop() {
        let worker = Worker::start(&Device::cpu()).unwrap();
        let (end, ended) = channel::<()>();
        worker.submit(move || Ok(ended.recv().ok()), |_| ());
        assert!(worker.is_busy());
        drop(worker);
        drop(end);
    }
}
