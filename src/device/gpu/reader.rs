//! Reads that the caller does not wait for. A thread of the device takes what they bring.

use std::io;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use web_time::{Duration, Instant};

use super::transfer::{Mapped, Read};
use super::{Buffer, Gpu};
use crate::device::cpu::{Grant, with_room};
use crate::error::Result;
use crate::util::sync::{self, panic_message};
use crate::util::waiting;

type Job = Box<dyn FnOnce() + Send>;

/// A read that is submitted.
pub(super) struct Begun {
    reads: Vec<Read>,
    /// The fault of the work before it.
    fault: Option<Read>,
    /// Host memory of buffers that are written when it is done.
    _grants: Vec<Grant>,
}

/// The thread that ends the reads of a device, in their order. It starts with the first of them, and ends with the device.
#[derive(Debug, Default)]
pub(super) struct Reader(Mutex<Option<Sender<Job>>>);

impl Reader {
    fn sender(&self, device: &str) -> io::Result<Sender<Job>> {
        let mut started = sync::lock(&self.0);
        if let Some(sender) = &*started {
            return Ok(sender.clone());
        }
        let (sender, receiver) = channel::<Job>();
        thread::Builder::new().name(format!("reads of {device}")).spawn(move || {
            for job in receiver {
                // A panic of the caller's function must not end the reads of others.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
                    log::error!("a function that was given elements panicked: {}", panic_message(&*panic));
                }
            }
        })?;
        Ok(started.insert(sender).clone())
    }
}

/// A chunk of a buffer, in memory that the driver shares with the host.
#[derive(Debug)]
pub(crate) struct Chunk {
    gpu: Arc<Gpu>,
    staging: wgpu::Buffer,
    /// Absent while this is dropped.
    view: Option<wgpu::BufferView>,
}

impl Deref for Chunk {
    type Target = [u32];
    fn deref(&self) -> &[u32] {
        self.view.as_deref().map_or(&[], bytemuck::cast_slice)
    }
}

/// Gives the memory back, for later reads.
impl Drop for Chunk {
    fn drop(&mut self) {
        self.view = None;
        self.gpu.end_read(self.staging.clone());
    }
}

impl Gpu {
    /// Submits the recorded work and the copy of a range of a buffer, and returns. A thread of the device calls `each` with every
    /// chunk of [`CHUNK`](super::transfer::CHUNK) words, in order, where the driver has put it: nothing is copied on the host. An
    /// error is the last call.
    pub(crate) fn read_chunks_later(
        self: &Arc<Gpu>,
        buffer: &Buffer,
        offset: usize,
        len: usize,
        mut each: impl FnMut(Result<Chunk>) + Send + 'static,
    ) {
        if !waiting::CAN_BLOCK {
            let (gpu, begun) = (self.clone(), self.begin(buffer, offset, len));
            return waiting::run(async move {
                let ended = async { gpu.give_chunks(begun?, &mut each).await };
                if let Err(error) = ended.await {
                    each(Err(error));
                }
            });
        }
        let sender =
            self.reader.sender(&self.name).map_err(|error| self.error(format!("the thread for reads: {error}")));
        match sender.and_then(|sender| Ok((sender, self.begin(buffer, offset, len)?))) {
            Err(error) => each(Err(error)),
            Ok((sender, begun)) => {
                let gpu = self.clone();
                let job: Job = Box::new(move || {
                    let ended = catch_unwind(AssertUnwindSafe(|| waiting::wait_for(gpu.give_chunks(begun, &mut each))));
                    if let Err(error) = ended.unwrap_or_else(|panic| Err(gpu.error(panic_message(&*panic)))) {
                        each(Err(error));
                    }
                });
                if let Err(SendError(job)) = sender.send(job) {
                    job(); // The thread has ended: this one waits.
                }
            }
        }
    }

    async fn give_chunks(self: &Arc<Gpu>, begun: Begun, each: &mut impl FnMut(Result<Chunk>)) -> Result<()> {
        for mut read in begun.reads {
            let mapped = self.watch(&mut read).await?;
            let (staging, view) = self.mapped(read, mapped)?;
            each(Ok(Chunk { gpu: self.clone(), staging, view: Some(view) }));
        }
        self.finish_fault(begun.fault).await
    }

    /// Submits the recorded work and the copy of a range of a buffer, and returns. A thread of the device calls `then` with the
    /// words, or with an error of the device, and with the time when the device had ended; this thread does if the error is known
    /// at once.
    pub(crate) fn read_later(
        self: &Arc<Gpu>,
        buffer: &Buffer,
        offset: usize,
        len: usize,
        then: impl FnOnce(Result<Vec<u32>>, Instant) + Send + 'static,
    ) {
        if !waiting::CAN_BLOCK {
            let (gpu, begun) = (self.clone(), self.begin(buffer, offset, len));
            return waiting::run(async move {
                let mut ended = None;
                let words = async { gpu.finish(begun?, len, &mut ended).await }.await;
                then(words, ended.unwrap_or_else(Instant::now));
            });
        }
        let sender = self.reader.sender(&self.name);
        let sender = sender.map_err(|error| self.error(format!("the thread for reads: {error}")));
        match sender.and_then(|sender| Ok((sender, self.begin(buffer, offset, len)?))) {
            Err(error) => then(Err(error), Instant::now()),
            Ok((sender, begun)) => {
                let gpu = self.clone();
                let job: Job = Box::new(move || {
                    // wgpu panics for some errors of drivers. Whoever waits for the words gets an error in any case.
                    let mut ended = None;
                    let words =
                        catch_unwind(AssertUnwindSafe(|| waiting::wait_for(gpu.finish(begun, len, &mut ended))));
                    let words = words.unwrap_or_else(|panic| Err(gpu.error(panic_message(&*panic))));
                    then(words, ended.unwrap_or_else(Instant::now));
                });
                if let Err(SendError(job)) = sender.send(job) {
                    job(); // The thread has ended: this one waits.
                }
            }
        }
    }

    /// Submits the recorded work and the reads, and returns any error that the work has had until now.
    pub(super) fn begin(&self, buffer: &Buffer, offset: usize, len: usize) -> Result<Begun> {
        let reads = self.start_reads(buffer, offset, len)?;
        let fault = self.start_fault()?;
        self.check()?;
        Ok(Begun { reads, fault, _grants: self.pool.take_unwritten() })
    }

    /// Returns the words, or the errors that belong to them: other calls get the errors of other work. `ended` is
    /// when the device had done what was recorded before.
    pub(super) async fn finish(&self, begun: Begun, len: usize, ended: &mut Option<Instant>) -> Result<Vec<u32>> {
        let mut words = with_room(len)?;
        for mut read in begun.reads {
            let mapped = self.watch(&mut read).await?;
            ended.get_or_insert_with(Instant::now);
            self.take_read(read, mapped, &mut |chunk: &[u32]| {
                words.extend_from_slice(chunk);
                Ok(())
            })?;
        }
        self.finish_fault(begun.fault).await?;
        Ok(words)
    }

    /// Returns the error that kernels found in the values of their inputs.
    async fn finish_fault(&self, fault: Option<Read>) -> Result<()> {
        let Some(mut read) = fault else { return Ok(()) };
        let mapped = self.watch(&mut read).await?;
        self.take_read(read, mapped, &mut |fault: &[u32]| fault.try_into().map_or(Ok(()), |fault| self.fault(fault)))
    }

    /// Asks the driver again and again whether a read has ended. A wait within the driver would keep other threads from freeing
    /// buffers and, on OpenGL, from everything.
    async fn watch(&self, read: &mut Read) -> Result<Mapped> {
        const LONGEST: Duration = Duration::from_millis(1);
        if !waiting::CAN_BLOCK {
            return self.arrived(read).await;
        }
        let start = Instant::now();
        loop {
            self.poll_once()?;
            // The longer it has taken, the less another moment matters.
            let pause = (start.elapsed() / 8).clamp(Duration::from_micros(20), LONGEST);
            match waiting::within(&mut read.mapped, pause) {
                Some(Ok(mapped)) => return Ok(mapped),
                Some(Err(_)) => return Err(self.failure("reading back: the driver dropped the read".into())),
                None => self.within_patience(start)?,
            }
        }
    }
}
