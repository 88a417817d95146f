//! What a profile records: the kernels of adapters and the ops of the host, with their times.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use web_time::{Duration, Instant};

use super::{Backend, Device};
use crate::error::{Error, Result};
use crate::util::sync;

/// The most events of a profile: about 200 MB of them.
const MOST_EVENTS: usize = 1 << 20;

/// One kernel of an adapter, or one op of the host, in a [`Profile`](crate::profiler::Profile).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// The device's name.
    pub device: String,
    /// The op, such as `conv2d`; several with `+` between them if one kernel computes them.
    pub op: String,
    /// The file and the entry point of the kernel, such as `conv.im2col`. For a user's kernel, its entry point. For
    /// ops of the host, `host`.
    pub kernel: String,
    /// The start of the event, counted from the start of the profile.
    pub start: Duration,
    /// How long it took.
    pub duration: Duration,
    /// Bytes of the tensors that a kernel binds, read and written; 0 for ops of the host.
    pub bytes: u64,
}

/// The events of one profile.
#[derive(Debug)]
pub(crate) struct Record {
    pub since: Instant,
    events: Mutex<Vec<Event>>,
    missed: AtomicU64,
}

impl Record {
    pub fn new() -> Record {
        Record { since: Instant::now(), events: Mutex::default(), missed: AtomicU64::new(0) }
    }

    pub fn add(&self, event: Event) {
        let mut events = sync::lock(&self.events);
        if events.len() < MOST_EVENTS {
            events.push(event);
        } else {
            drop(events);
            self.miss();
        }
    }

    /// Counts an event whose time is not known.
    pub fn miss(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the events, and the number of missed events.
    pub fn take(&self) -> (Vec<Event>, u64) {
        (std::mem::take(&mut *sync::lock(&self.events)), self.missed.swap(0, Ordering::Relaxed))
    }
}

/// Whether one device is profiled, and where its events go.
#[derive(Debug, Default)]
pub(crate) struct Profiling {
    /// Read for each op, without the lock.
    on: AtomicBool,
    record: Mutex<Option<Arc<Record>>>,
}

impl Profiling {
    /// Sets where events will go. Returns false if they go somewhere already.
    pub fn reserve(&self, record: &Arc<Record>) -> bool {
        let mut current = sync::lock(&self.record);
        if current.is_some() {
            return false;
        }
        *current = Some(record.clone());
        true
    }

    /// Begins to record events.
    pub fn enable(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    pub fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
        *sync::lock(&self.record) = None;
    }

    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub fn record(&self) -> Option<Arc<Record>> {
        if self.is_on() { sync::lock(&self.record).clone() } else { None }
    }

    /// Runs an op of the host, and records its time if the device is profiled.
    pub fn timed<T>(&self, device: &str, op: &str, f: impl FnOnce() -> T) -> T {
        let Some(record) = self.record() else { return f() };
        let start = record.since.elapsed();
        let result = f();
        let duration = record.since.elapsed() - start;
        let (device, op, kernel) = (device.to_owned(), op.to_owned(), "host".to_owned());
        record.add(Event { device, op, kernel, start, duration, bytes: 0 });
        result
    }
}

impl Device {
    /// Begins to record the times of the device's work. Work that is recorded already is done first.
    pub(crate) fn start_profile(&self, record: &Arc<Record>) -> Result<()> {
        let started = match self.backend()? {
            Backend::Cpu(cpu) => {
                let reserved = cpu.profiling().reserve(record);
                cpu.profiling().enable(); // another profiler has done so if not this one
                reserved
            }
            Backend::Gpu(gpu) => gpu.start_profile(record)?,
        };
        if started {
            return Ok(());
        }
        Err(Error::argument("Profiler::start", format!("{self} is profiled already: stop the other profiler first")))
    }

    /// Waits for the device's work, and ends the recording.
    pub(crate) fn stop_profile(&self) -> Result<()> {
        match self.backend()? {
            Backend::Cpu(cpu) => {
                cpu.profiling().stop();
                Ok(())
            }
            Backend::Gpu(gpu) => gpu.stop_profile(),
        }
    }
}
