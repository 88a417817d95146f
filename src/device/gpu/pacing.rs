//! Submits of a limited time, so that others get their turns on the adapter: the frames of a window, for instance.
//!
//! A batch has as many kernels as took the limit before. At most two batches are in flight: before a thread records
//! a kernel, it waits for the older one, while it holds no lock. Without a limit, the number of kernels in a batch
//! does not depend on their time, and nothing waits.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use web_time::{Duration, Instant};

use super::Gpu;
use super::queue::LAST_BATCH;
use crate::error::Result;
use crate::util::{sync, waiting};

/// If a wait is shorter than this, the batch was done already: its time is at most the time since its submit.
const DONE: Duration = Duration::from_micros(50);
/// The most full batches in flight: one that the device computes, and one for when it is done.
const IN_FLIGHT: usize = 2;

/// The limit of a device, and its full batches in flight.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// Nanoseconds; 0 if there is no limit.
    limit: AtomicU64,
    /// Kernels of the next batch.
    kernels: AtomicUsize,
    batches: Mutex<Batches>,
}

#[derive(Debug, Default)]
struct Batches {
    in_flight: VecDeque<Batch>,
    /// When the last wait for one of them ended.
    last_done: Option<Instant>,
}

#[derive(Debug)]
struct Batch {
    submission: wgpu::SubmissionIndex,
    kernels: usize,
    submitted: Instant,
}

impl Pacing {
    fn limit(&self) -> Option<Duration> {
        let nanos = self.limit.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Returns the most kernels of the next batch; `otherwise` if there is no limit.
    pub(super) fn most_kernels(&self, otherwise: usize) -> usize {
        if self.limit().is_some() { self.kernels.load(Ordering::Relaxed).max(1) } else { otherwise }
    }

    /// Keeps a full batch that was submitted.
    pub(super) fn submitted(&self, submission: wgpu::SubmissionIndex, kernels: usize) {
        if self.limit().is_some() {
            let batch = Batch { submission, kernels, submitted: Instant::now() };
            sync::lock(&self.batches).in_flight.push_back(batch);
        }
    }

    /// Returns the oldest batch, if the most allowed batches are in flight. In a browser, nothing may wait, so
    /// there may be any number of them.
    fn too_many(&self) -> Option<Batch> {
        let mut batches = sync::lock(&self.batches);
        if !waiting::CAN_BLOCK {
            batches.in_flight.clear();
        }
        if batches.in_flight.len() >= IN_FLIGHT { batches.in_flight.pop_front() } else { None }
    }
}

/// Returns how many kernels take the limit, if `kernels` of them took `time`; less than `time` if `or_less`, when
/// the device was done before it was asked.
fn kernels_within(limit: Duration, kernels: usize, time: Duration, or_less: bool) -> usize {
    let each = time.as_secs_f64() / kernels.max(1) as f64;
    let fitting = (limit.as_secs_f64() / each.max(1e-9)).clamp(1.0, LAST_BATCH as f64) as usize;
    match or_less {
        false => fitting,
        // No more than is known to fit, except after a batch that took less than half of the limit in all.
        true => fitting.max(kernels).min(2 * kernels).min(LAST_BATCH),
    }
}

impl Gpu {
    /// Sets about how long a submit may take; `None` for no limit.
    pub(crate) fn set_submit_time(&self, limit: Option<Duration>) {
        let nanos = limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.pacing.kernels.store(1, Ordering::Relaxed); // until it is known how long they take
        *sync::lock(&self.pacing.batches) = Batches::default();
        self.pacing.limit.store(nanos, Ordering::Relaxed);
    }

    /// Waits until another batch may be submitted, if there is a limit. No lock may be held.
    pub(super) fn pace(&self) -> Result<()> {
        let Some(limit) = self.pacing.limit() else { return Ok(()) };
        while let Some(Batch { submission, kernels, submitted }) = self.pacing.too_many() {
            let begin = Instant::now();
            self.wait_for_earlier(&submission)?;
            let mut batches = sync::lock(&self.pacing.batches);
            // The device began with it when the one before was done.
            let began = batches.last_done.map_or(submitted, |done| done.max(submitted));
            let next = kernels_within(limit, kernels, began.elapsed(), begin.elapsed() < DONE);
            batches.last_done = Some(Instant::now());
            self.pacing.kernels.store(next, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Backend, Device, DeviceKind};
    use crate::tensor::Tensor;

    #[test]
    fn a_batch_has_the_kernels_of_its_time() {
        let of = |kernels, took, or_less| {
            kernels_within(Duration::from_millis(10), kernels, Duration::from_millis(took), or_less)
        };
        assert_eq!([of(4, 8, false), of(1, 30, false), of(16, 1, false), of(0, 0, false)], [5, 1, 160, LAST_BATCH]);
        // The device was idle: twice as many at most, and no fewer.
        assert_eq!([of(4, 3, true), of(4, 6, true), of(4, 30, true), of(200, 1, true)], [8, 6, 4, LAST_BATCH]);
    }

    /// Products of up to some milliseconds each: without a limit they are a few batches, with one they are many.
    #[test]
    fn long_work_is_cut_into_submits() -> Result<()> {
        const PRODUCTS: usize = 40;
        // On software adapters, where a product takes part of a millisecond or more.
        let software = |device: &Device| device.info().kind == DeviceKind::Software && device.info().api != "GL";
        for adapter in Device::all().into_iter().filter(software) {
            // A device of its own: other tests would submit too.
            let device = Device::new(&format!("{adapter}/13"))?;
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            let x = Tensor::full([192, 192], 1.0 / 192.0, &device)?;
            let batches = || -> Result<u64> {
                device.synchronize()?;
                let before = sync::lock(&gpu.recorder).batch;
                let mut y = x.clone();
                for _ in 0..PRODUCTS {
                    y = y.matmul(&x)?;
                }
                let after = sync::lock(&gpu.recorder).batch;
                assert!((y.sum_all()?.item::<f32>()? - 192.0).abs() < 0.1, "{device}");
                Ok(after - before)
            };
            batches()?; // compiles, and tries variants
            let free = batches()?;
            gpu.set_submit_time(Some(Duration::from_nanos(1)));
            let cut = batches()?;
            // A product is several kernels on some adapters. Where it is one, the last may wait for a later submit.
            assert!(cut + 1 >= PRODUCTS as u64 && free < cut / 4, "{device}: {free} batches, {cut} with a limit");
            gpu.set_submit_time(None);
            assert_eq!(batches()?, free, "{device}");
        }
        Ok(())
    }
}
