//! One thread per device. A submit to lavapipe blocks until the previous one is done, so a single host thread cannot
//! keep two such devices busy. Also, the failure of one device must not stop the others' work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::sync::panic_message;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that runs jobs in order until the worker is dropped.
pub(super) struct Worker {
    device: Device,
    /// `None` only while being dropped.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// The result of a job that may still be running.
pub(super) struct Pending<T> {
    device: Device,
    answer: Receiver<Result<T>>,
}

impl Worker {
    pub(super) fn start(device: &Device) -> Result<Worker> {
        let (jobs, inbox) = channel::<Job>();
        let thread =
            Builder::new().name(format!("anygpu {device}")).spawn(move || inbox.into_iter().for_each(|job| job()));
        let thread = thread.map_err(|e| Error::DeviceUnavailable {
            device: device.to_string(),
            reason: format!("its thread could not be started: {e}"),
        })?;
        Ok(Worker { device: device.clone(), jobs: Some(jobs), thread: Some(thread) })
    }

    /// Starts `work` on the worker's thread, with the context of this one. [`Pending::wait`] returns its error, or its
    /// panic as an error, with the device's name.
    pub(super) fn submit<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Pending<T> {
        let (reply, answer) = channel();
        let device = self.device.clone();
        let context = Context::current();
        let work = move || context.run(work);
        let job = move || {
            let result = match catch_unwind(AssertUnwindSafe(work)) {
                Ok(result) => result.map_err(|e| Error::Replica { device: device.to_string(), error: Box::new(e) }),
                Err(panic) => {
                    Err(Error::WorkerPanic { device: device.to_string(), message: panic_message(panic.as_ref()) })
                }
            };
            let _ = reply.send(result); // an error means that the receiver was dropped
        };
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(Box::new(job)); // if the thread has ended, the reply is dropped, and `wait` returns an error
        }
        Pending { device: self.device.clone(), answer }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None; // ends the thread's loop
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its jobs catch their panics
        }
    }
}

impl<T> Pending<T> {
    /// Waits for the result.
    pub(super) fn wait(self) -> Result<T> {
        self.answer.recv().unwrap_or_else(|_| {
            Err(Error::internal(format!("the worker thread of {} ended before it returned a result", self.device)))
        })
    }
}

/// Waits for all jobs, so that none is still running when the caller returns. Returns the first error that is not a
/// consequence of another job's error.
pub(super) fn wait_all<T>(pending: Vec<Pending<T>>) -> Result<Vec<T>> {
    let answers: Vec<Result<T>> = pending.into_iter().map(Pending::wait).collect();
    match answers.iter().find_map(|answer| answer.as_ref().err().filter(|e| !e.is_abandoned())) {
        Some(cause) => Err(cause.clone()),
        None => answers.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_panics_name_the_device_and_the_thread_lives_on() {
        let worker = Worker::start(&Device::cpu()).unwrap();
        let error = worker.submit::<()>(|| Err(Error::Autograd("no".into()))).wait().unwrap_err();
        assert_eq!(error.to_string(), "replica on cpu: backward: no");
        let panic = worker.submit::<()>(|| panic!("bug {}", 7)).wait().unwrap_err();
        assert_eq!(panic.to_string(), "worker thread of cpu panicked: bug 7");
        assert_eq!(worker.submit(|| Ok(5)).wait(), Ok(5));
        drop(worker.submit(|| Ok(())));
    }

    #[test]
    fn all_are_waited_for_before_an_error_is_given() {
        let workers = [Worker::start(&Device::cpu()).unwrap(), Worker::start(&Device::cpu()).unwrap()];
        let slow = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let done = slow.clone();
        let failing = workers[0].submit(|| Err(Error::Autograd("early".into())));
        let finishing = workers[1].submit(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            done.store(true, std::sync::atomic::Ordering::SeqCst);
            Ok(())
        });
        assert!(wait_all(vec![failing, finishing]).is_err());
        assert!(slow.load(std::sync::atomic::Ordering::SeqCst));
    }
}
