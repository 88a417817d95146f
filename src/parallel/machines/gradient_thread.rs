//! The thread that adds up gradients over all processes while the devices go on with backward.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use web_time::{Duration, Instant};

use super::communicator::Channel;
use crate::error::{Error, Result};

/// Values that are to be combined with the other processes' values.
struct Job {
    values: Vec<f32>,
    how: Combine,
    result: Sender<Combined>,
}

/// The combined values, and how long the messages took.
pub(super) type Combined = Result<(Vec<f32>, Duration)>;

/// How values are combined.
#[derive(Clone, Copy, Debug)]
pub(super) enum Combine {
    Sum,
    Max,
}

/// A thread with a channel of its own. All processes must give it the same jobs in the same order.
pub(super) struct GradientThread {
    /// `None` only while being dropped.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl GradientThread {
    /// # Errors
    /// If the system has no thread.
    pub fn start(messages: Channel) -> std::io::Result<GradientThread> {
        let (jobs, inbox) = channel::<Job>();
        let run = move || {
            for Job { values, how, result } in inbox {
                let begin = Instant::now();
                let combined = match how {
                    Combine::Sum => messages.sum(&values),
                    Combine::Max => messages.max(&values),
                };
                let _ = result.send(combined.map(|values| (values, begin.elapsed()))); // an error means that the step has ended with one
            }
        };
        let thread = Builder::new().name("anygpu gradients".into()).spawn(run)?;
        Ok(GradientThread { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Starts to combine `values`. The results come in the order of the calls.
    pub fn submit(&self, values: Vec<f32>, how: Combine, result: &Sender<Combined>) {
        let job = Job { values, how, result: result.clone() };
        if self.jobs.as_ref().is_none_or(|jobs| jobs.send(job).is_err()) {
            let _ = result.send(Err(Error::internal("the thread for gradients of other processes has ended")));
        }
    }
}

impl Drop for GradientThread {
    fn drop(&mut self) {
        self.jobs = None; // ends the thread's loop
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the next result.
pub(super) fn receive(results: &Receiver<Combined>) -> Combined {
    results.recv().unwrap_or_else(|_| Err(Error::internal("gradients of other processes are missing")))
}
