//! Times of single kernels, while a device is profiled. Each kernel then has a compute pass of its own, at whose begin and end
//! the adapter writes timestamps. Where it has none, the host submits each kernel by itself and measures until it is done.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::queue::Dispatch;
use super::{Buffer, Gpu};
use crate::device::profile::{Event, Profiling, Record};
use crate::error::Result;
use crate::sync;

/// The kernels of a query set, which may have 4096 queries.
const KERNELS: usize = 2048;
/// A new query set is made when fewer kernels than this fit into the last one: threads that record at the same time each need
/// one.
const SPARE: usize = 64;

/// The state of a device's profile.
#[derive(Debug, Default)]
pub(super) struct Timestamps {
    profiling: Profiling,
    timer: Mutex<Option<Timer>>,
}

/// The timestamps of one profile.
#[derive(Debug)]
struct Timer {
    sets: Vec<QuerySet>,
    /// The time of the host, from the start of the profile, at which the device's first timestamp was written.
    first: Duration,
}

/// Queries of up to [`KERNELS`] kernels.
#[derive(Debug)]
struct QuerySet {
    raw: wgpu::QuerySet,
    /// What the queries are resolved to, and where the host reads it from.
    resolved: wgpu::Buffer,
    words: Buffer,
    /// What each pair of queries is of; the first of all is of an empty pass.
    kernels: Vec<Option<Timed>>,
}

/// A kernel whose time is measured.
#[derive(Clone, Debug)]
struct Timed {
    op: String,
    kernel: String,
    bytes: u64,
}

impl Timed {
    fn of(dispatch: &Dispatch<'_>) -> Timed {
        let bytes = dispatch.buffers.iter().map(|buffer| buffer.len() as u64 * 4).sum();
        let (kernel, op) = (&dispatch.pipeline.name, &*dispatch.op);
        Timed { op: if op.is_empty() { kernel } else { op }.into(), kernel: kernel.clone(), bytes }
    }

    fn event(self, device: &str, start: Duration, duration: Duration) -> Event {
        Event { device: device.into(), op: self.op, kernel: self.kernel, start, duration, bytes: self.bytes }
    }
}

/// How the time of a kernel is measured.
pub(super) enum Timing {
    /// It is not.
    Off,
    /// By timestamps of the adapter, in a pass of its own.
    Pass,
    /// By the host.
    Host(Arc<Record>),
}

/// The queries of one pass.
pub(super) struct PassQueries {
    set: wgpu::QuerySet,
    first: u32,
}

impl PassQueries {
    pub(super) fn writes(&self) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.set,
            beginning_of_pass_write_index: Some(self.first),
            end_of_pass_write_index: Some(self.first + 1),
        }
    }
}

impl Gpu {
    fn has_timestamps(&self) -> bool {
        self.device.features().contains(wgpu::Features::TIMESTAMP_QUERY)
    }

    /// Returns whether kernels are measured, for names that only profiles need.
    pub(super) fn is_profiled(&self) -> bool {
        self.timestamps.profiling.is_on()
    }

    /// Begins to measure kernels. Returns false if they are measured already.
    pub(crate) fn start_profile(&self, record: &Arc<Record>) -> Result<bool> {
        self.synchronize()?;
        if !self.timestamps.profiling.start(record) {
            return Ok(false);
        }
        if self.has_timestamps() {
            let first = self.first_timestamp(record);
            if first.is_err() {
                self.timestamps.profiling.stop();
            }
            first?;
        }
        Ok(true)
    }

    /// Lets the device write a timestamp whose time is known to the host: that of an empty pass, while the device does nothing
    /// else. It is in the middle between the submit and the answer, to within half of the time between them.
    fn first_timestamp(&self, record: &Arc<Record>) -> Result<()> {
        let set = self.query_set()?;
        *sync::lock(&self.timestamps.timer) = Some(Timer { sets: vec![set], first: Duration::ZERO });
        let mut recorder = sync::lock(&self.recorder);
        if let Some(queries) = self.queries(None) {
            recorder.timed_pass(&self.device, &queries);
        }
        let submitted = record.since.elapsed();
        let submission = self.submit_for_wait(&mut recorder);
        drop(recorder);
        self.wait(&submission)?;
        if let Some(timer) = &mut *sync::lock(&self.timestamps.timer) {
            timer.first = (submitted + record.since.elapsed()) / 2;
        }
        Ok(())
    }

    /// Returns how the next kernel is measured. Makes room for its queries.
    pub(super) fn timing(&self) -> Result<Timing> {
        let Some(record) = self.timestamps.profiling.record() else { return Ok(Timing::Off) };
        if !self.has_timestamps() {
            return Ok(Timing::Host(record));
        }
        let full = |timer: &Timer| timer.sets.last().is_none_or(|set| set.kernels.len() + SPARE > KERNELS);
        if sync::lock(&self.timestamps.timer).as_ref().is_some_and(full) {
            let set = self.query_set()?;
            if let Some(timer) = &mut *sync::lock(&self.timestamps.timer) {
                timer.sets.push(set);
            }
        }
        Ok(Timing::Pass)
    }

    /// Returns the queries for a kernel, or for an empty pass, which must then be recorded; `None` if there is no room.
    pub(super) fn queries(&self, dispatch: Option<&Dispatch<'_>>) -> Option<PassQueries> {
        let mut timer = sync::lock(&self.timestamps.timer);
        let timer = timer.as_mut()?;
        let set = timer.sets.iter_mut().rev().find(|set| set.kernels.len() < KERNELS)?;
        let first = set.kernels.len() as u32 * 2;
        set.kernels.push(dispatch.map(Timed::of));
        Some(PassQueries { set: set.raw.clone(), first })
    }

    /// Counts a kernel whose time is not known.
    pub(super) fn miss_time(&self) {
        if let Some(record) = self.timestamps.profiling.record() {
            record.miss();
        }
    }

    /// Waits for a kernel that was submitted by itself at `start`, and records its time.
    pub(super) fn time_on_host(
        &self,
        record: &Record,
        dispatch: &Dispatch<'_>,
        start: Instant,
        submission: &wgpu::SubmissionIndex,
    ) -> Result<()> {
        self.wait(submission)?;
        let since = start.saturating_duration_since(record.since);
        record.add(Timed::of(dispatch).event(&self.name, since, start.elapsed()));
        Ok(())
    }

    fn query_set(&self) -> Result<QuerySet> {
        const QUERIES: u32 = 2 * KERNELS as u32;
        const BYTES: u64 = QUERIES as u64 * 8;
        // Not `alloc`: a chain may be being recorded.
        let words = self.alloc_again(BYTES as usize / 4)?;
        let _gl = self.gl.enter();
        let label = Some("timestamps");
        let raw = self.device.create_query_set(&wgpu::QuerySetDescriptor {
            label,
            ty: wgpu::QueryType::Timestamp,
            count: QUERIES,
        });
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let resolved = wgpu::BufferDescriptor { label, size: BYTES, usage, mapped_at_creation: false };
        let resolved = self.device.create_buffer(&resolved);
        Ok(QuerySet { raw, resolved, words, kernels: Vec::new() })
    }

    /// Ends the measuring, and records the times of all kernels since its start.
    pub(crate) fn stop_profile(&self) -> Result<()> {
        let Some(record) = self.timestamps.profiling.record() else { return Ok(()) };
        let recorded = self.flush_chain();
        self.timestamps.profiling.stop();
        let timer = sync::lock(&self.timestamps.timer).take();
        recorded?;
        let Some(timer) = timer else { return Ok(()) };
        let period = f64::from(self.queue.get_timestamp_period()) * 1e-9;
        let time = |ticks: u64| Duration::from_secs_f64(ticks as f64 * period);
        let mut origin = None;
        for set in timer.sets {
            let times = self.resolved(&set)?;
            for (kernel, pair) in set.kernels.into_iter().zip(times.chunks_exact(2)) {
                let (start, end) = (pair[0], pair[1]);
                let origin = *origin.get_or_insert(start);
                let Some(kernel) = kernel else { continue };
                // A device whose clock was set anew in between writes an end before the start.
                match end.checked_sub(start) {
                    Some(ticks) => {
                        let at = timer.first + time(start.saturating_sub(origin));
                        record.add(kernel.event(&self.name, at, time(ticks)));
                    }
                    None => record.miss(),
                }
            }
        }
        Ok(())
    }

    /// Returns the timestamps of a set.
    fn resolved(&self, set: &QuerySet) -> Result<Vec<u64>> {
        let queries = set.kernels.len() as u32 * 2;
        if queries == 0 {
            return Ok(Vec::new());
        }
        let mut recorder = self.recorder()?;
        recorder.touch(&set.words);
        let encoder = recorder.encoder(&self.device);
        encoder.resolve_query_set(&set.raw, 0..queries, &set.resolved, 0);
        encoder.copy_buffer_to_buffer(&set.resolved, 0, &set.words.page().raw, 0, u64::from(queries) * 8);
        drop(recorder);
        let words = self.download(&set.words, 0, queries as usize * 2)?;
        Ok(words.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).collect())
    }
}
