//! The batches of one epoch, made on request, or in advance by threads.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::collate::Stack;
use super::loader::{DataLoader, LoaderState};
use super::random::shuffle_epoch;
use super::shard::Shard;
use super::{Batch, Dataset, Random, Sample};
use crate::context::Context;
use crate::device::Device;
use crate::device::cpu::with_room;
use crate::error::{Error, Result};
use crate::nn::moved;
use crate::tensor::Tensor;
use crate::util::sync::panic_message;

type Map = Arc<dyn Fn(Sample, &mut Random) -> Result<Sample> + Send + Sync>;
type Collate = Arc<dyn Fn(Vec<Sample>) -> Result<Sample> + Send + Sync>;

/// The settings of a loader: its dataset, and how batches are made from it.
#[derive(Clone)]
pub(super) struct LoaderConfig {
    pub dataset: Arc<dyn Dataset>,
    pub batch_size: usize,
    pub shuffled: bool,
    pub seed: u64,
    pub drop_last: bool,
    pub maps: Vec<Map>,
    pub collate: Option<Collate>,
    /// The device on which batches are made, if it was set. Otherwise, they stay where the samples are.
    pub device: Option<Device>,
    /// The part of each batch that is made, if not the whole.
    pub shard: Option<Shard>,
}

/// The samples of an epoch in order.
pub(super) struct EpochOrder {
    epoch: u64,
    samples: usize,
    batches: usize,
    /// `None` for the order of the dataset, which needs no memory for any number of samples.
    order: Option<Result<Vec<usize>>>,
}

impl EpochOrder {
    pub(super) fn new(config: &LoaderConfig, epoch: u64) -> EpochOrder {
        let samples = config.dataset.len();
        let shuffled = || {
            let mut order = with_room(samples)?;
            order.extend(0..samples);
            shuffle_epoch(&mut order, config.seed, epoch);
            Ok(order)
        };
        EpochOrder { epoch, samples, batches: config.batches(), order: config.shuffled.then(shuffled) }
    }

    /// Returns the number of batch `k`, counted over all epochs.
    fn number(&self, k: usize) -> u64 {
        self.epoch.wrapping_mul(self.batches as u64).wrapping_add(k as u64)
    }

    /// Returns the number of the sample at position `i`.
    fn sample(&self, i: usize) -> Result<usize> {
        match &self.order {
            None => Ok(i),
            Some(Ok(order)) => Ok(order[i]),
            Some(Err(error)) => Err(error.clone()),
        }
    }
}

impl LoaderConfig {
    /// Returns the number of batches in an epoch.
    pub(super) fn batches(&self) -> usize {
        let samples = self.dataset.len();
        if self.drop_last { samples / self.batch_size } else { samples.div_ceil(self.batch_size) }
    }

    /// Returns batch `k` on its device. A panic in the dataset, a transform or a collate function becomes an error.
    fn batch(&self, order: &EpochOrder, k: usize, stop: &AtomicBool) -> Result<Vec<Tensor>> {
        let mut at = None;
        let made = catch_unwind(AssertUnwindSafe(|| self.assemble(order, k, stop, &mut at)));
        made.unwrap_or_else(|panic| {
            let place = at.map_or_else(|| format!("batch {k}"), |index: usize| format!("sample {index}"));
            let message = panic_message(panic.as_ref());
            Err(Error::DataPanic { place, message })
        })
    }

    /// Sets `at` to the number of the sample that is being made.
    fn assemble(&self, order: &EpochOrder, k: usize, stop: &AtomicBool, at: &mut Option<usize>) -> Result<Vec<Tensor>> {
        let start = k * self.batch_size;
        let whole = start..start.saturating_add(self.batch_size).min(order.samples);
        let places = self.shard.as_ref().map_or(whole.clone(), |shard| shard.part(order.number(k), whole));
        if places.is_empty() {
            // One sample determines the shapes.
            let batch = self.stacked(order, start..start + 1, stop, at)?;
            return batch.iter().map(|part| part.narrow(0, 0, 0)).collect();
        }
        self.stacked(order, places, stop, at)
    }

    /// Makes a batch from the samples at these positions.
    fn stacked(
        &self,
        order: &EpochOrder,
        places: Range<usize>,
        stop: &AtomicBool,
        at: &mut Option<usize>,
    ) -> Result<Vec<Tensor>> {
        if self.maps.is_empty() && self.collate.is_none() {
            let mut indices = with_room(places.len())?;
            places.clone().try_for_each(|i| order.sample(i).map(|index| indices.push(index)))?;
            if let Some(batch) = self.dataset.get_batch(&indices)? {
                return match &self.device {
                    Some(device) => moved(&batch.iter().collect::<Vec<_>>(), device),
                    None => Ok(batch),
                };
            }
        }
        let mut sample = |i: usize| {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::internal("a batch was made after its epoch was dropped"));
            }
            let index = order.sample(i)?;
            *at = Some(index);
            let mut random = Random::of_sample(self.seed, order.epoch, index);
            self.maps.iter().try_fold(self.dataset.get(index)?, |sample, map| map(sample, &mut random))
        };
        let stack = match &self.collate {
            Some(collate) => {
                let samples = places.map(&mut sample).collect::<Result<Vec<_>>>()?;
                *at = None;
                Stack::whole(&collate(samples)?)?
            }
            None => {
                // Each sample is copied into the block while it is in the cache.
                let first = sample(places.start)?;
                let mut stack = Stack::new(&first, places.len())?;
                stack.put(0, &first)?;
                for (i, place) in places.enumerate().skip(1) {
                    stack.put(i, &sample(place)?)?;
                }
                stack
            }
        };
        stack.finish(self.device.as_ref())
    }
}

/// The threads that make the batches of an epoch in advance. Thread w of n makes batches w, w + n, …, so that the order
/// is fixed. Each thread holds at most one finished batch and one that it is making, so that memory is bounded.
pub(super) struct WorkerPool {
    inboxes: Vec<Receiver<Result<Vec<Tensor>>>>,
    threads: Vec<JoinHandle<()>>,
    first: usize,
    stop: Arc<AtomicBool>,
}

impl WorkerPool {
    /// Starts the threads, beginning with batch `first`.
    pub(super) fn start(config: &LoaderConfig, order: &Arc<EpochOrder>, first: usize, threads: usize) -> WorkerPool {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = threads.min(order.batches.saturating_sub(first)).max(1);
        let mut running = Vec::with_capacity(threads);
        let mut begin = |worker: usize| {
            let (outbox, inbox) = sync_channel(1);
            let (config, order, stop) = (config.clone(), order.clone(), stop.clone());
            let (failed, context) = (outbox.clone(), Context::current());
            let batches = (first + worker..order.batches).step_by(threads);
            let work = move || context.run(|| run(&config, &order, batches, &stop, &outbox));
            match Builder::new().name(format!("anygpu data {worker}")).spawn(work) {
                Ok(thread) => running.push(thread),
                Err(error) => {
                    let reason = Error::argument("DataLoader", format!("no thread for worker {worker}: {error}"));
                    let _ = failed.try_send(Err(reason)); // succeeds: the channel is empty, and its receiver is alive
                }
            }
            inbox
        };
        let inboxes = (0..threads).map(&mut begin).collect();
        WorkerPool { inboxes, threads: running, first, stop }
    }

    /// Waits for batch `k`. Batches are requested in order.
    fn receive(&self, k: usize) -> Result<Vec<Tensor>> {
        let inbox = &self.inboxes[(k - self.first) % self.inboxes.len()];
        inbox.recv().unwrap_or_else(|_| {
            Err(Error::internal(format!("a thread of the data loader ended before it made batch {k}")))
        })
    }
}

fn run(
    config: &LoaderConfig,
    order: &EpochOrder,
    batches: impl Iterator<Item = usize>,
    stop: &AtomicBool,
    outbox: &SyncSender<Result<Vec<Tensor>>>,
) {
    for k in batches {
        if stop.load(Ordering::Relaxed) || outbox.send(config.batch(order, k, stop)).is_err() {
            return; // the epoch was dropped before its end
        }
    }
}

/// Waits until each thread has finished its current sample: a thread that still uploads while the process exits would
/// use the driver after its memory is freed.
impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.inboxes.clear(); // wakes the threads that wait to send a batch
        self.threads.drain(..).for_each(|thread| drop(thread.join())); // their panics are caught
    }
}

/// An iterator over the batches of one epoch, by default `(images [N, ..], labels [N])`.
///
/// If a batch cannot be made, the item is an error, and the iterator continues with the next batch.
pub struct Epoch<'a, B = (Tensor, Tensor)> {
    loader: &'a DataLoader<B>,
    order: Arc<EpochOrder>,
    pool: Option<WorkerPool>,
    next: usize,
    /// Whether the state of the loader is updated.
    tracked: bool,
}

impl<'a, B> Epoch<'a, B> {
    pub(super) fn new(
        loader: &'a DataLoader<B>,
        order: Arc<EpochOrder>,
        pool: Option<WorkerPool>,
        next: usize,
        tracked: bool,
    ) -> Epoch<'a, B> {
        Epoch { loader, order, pool, next, tracked }
    }

    /// Returns the number of the epoch, from 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.order.epoch
    }

    fn track(&self, state: LoaderState, ended: bool) {
        if self.tracked {
            self.loader.reached(state, ended);
        }
    }
}

impl<B: Batch> Iterator for Epoch<'_, B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        let (k, epoch) = (self.next, self.order.epoch);
        if k >= self.order.batches {
            if self.pool.take().is_some() || k != usize::MAX {
                self.next = usize::MAX; // the end is recorded once
                self.track(LoaderState { epoch: epoch + 1, batches: 0 }, true);
            }
            return None;
        }
        if let Some(shard) = &self.loader.config().shard {
            shard.reached(self.order.number(k));
        }
        let parts = match &self.pool {
            Some(pool) => pool.receive(k),
            None => self.loader.config().batch(&self.order, k, &AtomicBool::new(false)),
        };
        self.next = k + 1;
        self.track(LoaderState { epoch, batches: k + 1 }, false);
        Some(parts.and_then(B::from_parts))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.order.batches.saturating_sub(self.next);
        (left, Some(left))
    }
}

impl<B: Batch> ExactSizeIterator for Epoch<'_, B> {}

impl<B> std::fmt::Debug for Epoch<'_, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoch").field("number", &self.order.epoch).field("next", &self.next).finish_non_exhaustive()
    }
}
