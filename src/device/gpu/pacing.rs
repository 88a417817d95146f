//! Submits of a limited time, so that others get their turns on the adapter: the frames of a window, for instance.
//!
//! A batch is submitted when the one before it is done, and has as many kernels as took the limit then. Without a limit, batches
//! have a number of kernels that does not depend on their time, and wait for nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::Gpu;
use super::queue::{LAST_BATCH, Recorder};
use crate::error::Result;
use crate::sync;

/// A wait that is shorter found the device idle, so that the time since the submit says little about its work.
const IDLE: Duration = Duration::from_micros(50);

/// The limit of a device, and what its last batch took.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// Nanoseconds; 0 if there is no limit.
    limit: AtomicU64,
    /// Kernels of the next batch.
    kernels: AtomicUsize,
    last: Mutex<Option<Batch>>,
}

/// A batch that was submitted while nothing else was in flight.
#[derive(Debug)]
struct Batch {
    submission: wgpu::SubmissionIndex,
    kernels: usize,
    begin: Instant,
}

impl Pacing {
    fn limit(&self) -> Option<Duration> {
        let nanos = self.limit.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Returns the most kernels of the next batch, of which there are `otherwise` without a limit.
    pub(super) fn most_kernels(&self, otherwise: usize) -> usize {
        if self.limit().is_some() { self.kernels.load(Ordering::Relaxed).max(1) } else { otherwise }
    }
}

/// Returns how many kernels take the limit, if so many took `time`.
fn kernels_within(limit: Duration, kernels: usize, time: Duration) -> usize {
    let each = time.as_secs_f64() / kernels.max(1) as f64;
    (limit.as_secs_f64() / each.max(1e-9)).clamp(1.0, LAST_BATCH as f64) as usize
}

impl Gpu {
    /// Sets about how long a submit may take; `None` for no limit.
    pub(crate) fn set_submit_time(&self, limit: Option<Duration>) {
        let nanos = limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.pacing.kernels.store(1, Ordering::Relaxed); // until it is known how long they take
        *sync::lock(&self.pacing.last) = None;
        self.pacing.limit.store(nanos, Ordering::Relaxed);
    }

    /// Submits the open batch, which is full.
    pub(super) fn submit_full(&self, recorder: &mut Recorder) -> Result<()> {
        let Some(limit) = self.pacing.limit() else {
            self.submit(recorder);
            return Ok(());
        };
        let mut last = sync::lock(&self.pacing.last);
        if let Some(Batch { submission, kernels, begin }) = last.take() {
            let waits = Instant::now();
            self.wait(&submission)?;
            let next = if waits.elapsed() > IDLE {
                kernels_within(limit, kernels, begin.elapsed())
            } else {
                (2 * kernels).min(LAST_BATCH)
            };
            self.pacing.kernels.store(next, Ordering::Relaxed);
        }
        let (kernels, begin) = (recorder.kernels(), Instant::now());
        *last = Some(Batch { submission: self.submit(recorder), kernels, begin });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Backend, Device};
    use crate::tensor::Tensor;

    #[test]
    fn a_batch_has_the_kernels_of_its_time() {
        let of =
            |millis, kernels, took| kernels_within(Duration::from_millis(millis), kernels, Duration::from_millis(took));
        assert_eq!([of(10, 4, 8), of(10, 1, 30), of(10, 16, 1), of(10, 0, 0)], [5, 1, 160, LAST_BATCH]);
    }

    /// Products of some milliseconds each: without a limit they are a few batches, with one they are many.
    #[test]
    fn long_work_is_cut_into_submits() -> Result<()> {
        const PRODUCTS: usize = 40;
        for adapter in Device::all().into_iter().filter(|device| !device.is_cpu() && device.info().api != "GL") {
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
            // A product is several kernels on some adapters.
            assert!(cut >= PRODUCTS as u64 && free < cut / 4, "{device}: {free} batches, {cut} with a limit");
            gpu.set_submit_time(None);
            assert_eq!(batches()?, free, "{device}");
        }
        Ok(())
    }
}
