//! Times of single kernels, while a device is profiled. Each kernel then has a compute pass of its own, at whose begin and end
//! the adapter writes timestamps. Where it has none, the host submits each kernel by itself and measures until it is done.

use std::sync::{Arc, Mutex};

use web_time::{Duration, Instant};

use super::queue::Dispatch;
use super::{Buffer, Gpu};
use crate::device::profile::{Event, Profiling, Record};
use crate::error::Result;
use crate::util::sync;

/// The kernels of a query set, which may have 4096 queries.
const KERNELS: usize = 2048;
/// Another query set is begun when fewer kernels than this fit into the last one: threads that record at the same time each need
/// one.
const SPARE: usize = 64;
/// The query sets that may be full before their times are read. Drivers have few.
const MOST_FULL: usize = 3;

/// The state of a device's profile.
#[derive(Debug, Default)]
pub(super) struct Timestamps {
    profiling: Profiling,
    timer: Mutex<Option<Timer>>,
}

/// The timestamps of one profile.
#[derive(Debug)]
struct Timer {
    clock: Clock,
    /// The last one is being filled.
    sets: Vec<QuerySet>,
    /// Sets whose times were read.
    read: Vec<QuerySet>,
}

/// A time of the device that the host knows.
#[derive(Clone, Copy, Debug)]
struct Clock {
    ticks: u64,
    /// From the start of the profile.
    at: Duration,
    /// Seconds of a tick.
    tick: f64,
}

impl Clock {
    /// Returns begin and length of what happened between two timestamps; `None` if they were not written, or if the device's clock
    /// was set anew between them.
    fn times(&self, begin: u64, end: u64) -> Option<(Duration, Duration)> {
        if begin == 0 || end < begin {
            return None;
        }
        let time = |ticks: u64| Duration::from_secs_f64(ticks as f64 * self.tick);
        Some((self.at + time(begin.saturating_sub(self.ticks)), time(end - begin)))
    }
}

/// Queries of up to [`KERNELS`] kernels.
#[derive(Debug)]
struct QuerySet {
    raw: wgpu::QuerySet,
    /// What the queries are resolved to, and where the host reads it from.
    resolved: wgpu::Buffer,
    words: Buffer,
    /// What each pair of queries is of.
    kernels: Vec<Timed>,
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
        if !self.timestamps.profiling.reserve(record) {
            return Ok(false);
        }
        if self.has_timestamps() {
            match self.timer(record) {
                Ok(timer) => *sync::lock(&self.timestamps.timer) = Some(timer),
                Err(error) => {
                    self.timestamps.profiling.stop();
                    return Err(error);
                }
            }
        }
        self.timestamps.profiling.enable();
        Ok(true)
    }

    /// Lets the device write timestamps around an empty pass, while it does nothing else that this crate knows of. They are in the
    /// middle between the submit and the answer, to within half of the time between them.
    fn timer(&self, record: &Record) -> Result<Timer> {
        let set = self.query_set().ok_or_else(|| self.error("the driver makes no timestamps"))?;
        let mut recorder = self.recorder()?;
        recorder.timed_pass(&self.device, &PassQueries { set: set.raw.clone(), first: 0 });
        let submitted = record.since.elapsed();
        let submission = self.submit_for_wait(&mut recorder);
        drop(recorder);
        self.wait(&submission)?;
        let at = (submitted + record.since.elapsed()) / 2;
        let ticks = self.resolved(&set, 1)?[0];
        let tick = f64::from(self.queue.get_timestamp_period()) * 1e-9;
        Ok(Timer { clock: Clock { ticks, at, tick }, sets: vec![set], read: Vec::new() })
    }

    /// Returns how the next kernel is measured. Makes room for its queries.
    pub(super) fn timing(&self) -> Timing {
        let Some(record) = self.timestamps.profiling.record() else { return Timing::Off };
        if !self.has_timestamps() {
            return Timing::Host(record);
        }
        let full = |timer: &Timer| timer.sets.last().is_none_or(|set| set.kernels.len() + SPARE > KERNELS);
        if sync::lock(&self.timestamps.timer).as_ref().is_some_and(full) {
            let read = sync::lock(&self.timestamps.timer).as_mut().and_then(|timer| timer.read.pop());
            // Without a set, the times of the kernels are missed.
            let next = read.or_else(|| self.query_set());
            if let (Some(timer), Some(next)) = (&mut *sync::lock(&self.timestamps.timer), next) {
                timer.sets.push(next);
            }
        }
        Timing::Pass
    }

    /// Returns the queries for a kernel, which must then be recorded; `None` if there is no room.
    pub(super) fn queries(&self, dispatch: &Dispatch<'_>) -> Option<PassQueries> {
        let mut timer = sync::lock(&self.timestamps.timer);
        let set = timer.as_mut()?.sets.iter_mut().rev().find(|set| set.kernels.len() < KERNELS)?;
        let first = set.kernels.len() as u32 * 2;
        set.kernels.push(Timed::of(dispatch));
        Some(PassQueries { set: set.raw.clone(), first })
    }

    /// Reads the times of full query sets, if there are several. No lock may be held: this waits for the device.
    pub(super) fn collect_times(&self) {
        if !self.is_profiled() {
            return;
        }
        let full = match &mut *sync::lock(&self.timestamps.timer) {
            Some(timer) if timer.sets.len() > MOST_FULL => {
                let last = timer.sets.len() - 1;
                (timer.clock, timer.sets.drain(..last).collect::<Vec<_>>())
            }
            _ => return,
        };
        let Some(record) = self.timestamps.profiling.record() else { return };
        let (clock, mut sets) = full;
        for set in &mut sets {
            if let Err(error) = self.record_times(&record, clock, set) {
                self.health.keep(&error);
            }
        }
        if let Some(timer) = &mut *sync::lock(&self.timestamps.timer) {
            timer.read.extend(sets);
        }
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

    /// Returns a new query set; `None` if the driver does not make one.
    fn query_set(&self) -> Option<QuerySet> {
        const QUERIES: u32 = 2 * KERNELS as u32;
        const BYTES: u64 = QUERIES as u64 * 8;
        // Not `alloc`: a chain may be being recorded.
        let words = self.alloc_again(BYTES as usize / 4).ok()?;
        let _gl = self.gl.enter();
        let filters = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation];
        let scopes = filters.map(|filter| self.device.push_error_scope(filter));
        let (label, ty) = (Some("timestamps"), wgpu::QueryType::Timestamp);
        let raw = self.device.create_query_set(&wgpu::QuerySetDescriptor { label, ty, count: QUERIES });
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let resolved = wgpu::BufferDescriptor { label, size: BYTES, usage, mapped_at_creation: false };
        let resolved = self.device.create_buffer(&resolved);
        // The last scope ends first.
        let errors = scopes.into_iter().rev().filter_map(|scope| self.health.popped(scope)).count();
        (errors == 0).then_some(QuerySet { raw, resolved, words, kernels: Vec::new() })
    }

    /// Ends the measuring, and records the times of all kernels since its start.
    pub(crate) fn stop_profile(&self) -> Result<()> {
        let Some(record) = self.timestamps.profiling.record() else { return Ok(()) };
        let mut result = self.flush_chain();
        let timer = sync::lock(&self.timestamps.timer).take();
        self.timestamps.profiling.stop();
        if let Some(Timer { clock, mut sets, .. }) = timer {
            for set in &mut sets {
                let read = self.record_times(&record, clock, set);
                result = result.and(read);
            }
        }
        result
    }

    /// Records the times of the kernels of a set, and empties the set. Times that cannot be read are missed.
    fn record_times(&self, record: &Record, clock: Clock, set: &mut QuerySet) -> Result<()> {
        let times = self.resolved(set, set.kernels.len());
        let ticks = times.as_deref().unwrap_or_default();
        for (i, kernel) in set.kernels.drain(..).enumerate() {
            let pair = ticks.get(2 * i).zip(ticks.get(2 * i + 1));
            match pair.and_then(|(&begin, &end)| clock.times(begin, end)) {
                Some((start, duration)) => record.add(kernel.event(&self.name, start, duration)),
                None => record.miss(),
            }
        }
        times.map(drop)
    }

    /// Returns the timestamps of the first kernels of a set, two for each.
    fn resolved(&self, set: &QuerySet, kernels: usize) -> Result<Vec<u64>> {
        let queries = kernels as u32 * 2;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_become_times_of_the_profile() {
        let clock = Clock { ticks: 1000, at: Duration::from_micros(50), tick: 1e-6 };
        let micros = |begin, length| Some((Duration::from_micros(begin), Duration::from_micros(length)));
        assert_eq!(clock.times(1100, 1130), micros(150, 30));
        assert_eq!(clock.times(900, 900), micros(50, 0)); // before the first one, by another clock
        assert_eq!([clock.times(0, 5), clock.times(0, 0), clock.times(1200, 1100)], [None; 3]);
    }
}
