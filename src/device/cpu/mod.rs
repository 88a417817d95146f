//! The host as a device: memory and its accounting. The loops are beside their WGSL in `ops/`.
//!
//! Buffers are recycled by size class, because the operating system maps new memory page by page, with a page
//! fault each: for the 10 MB of a convolution's output that takes longer than the arithmetic.

mod budget;
mod copy;
mod huge_pages;
mod info;
mod notice;
mod scratch;
mod whole_file;

pub(crate) use budget::{Grant, available, collected, grant_driver, with_room};
pub(crate) use copy::{copied, copy};
pub(crate) use info::info;
pub(crate) use scratch::host_error;
pub(crate) use whole_file::read_whole;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::device::memory_report::{Accounts, Entry};
use crate::device::pool::{Ledger, class_of};
use crate::device::profile::Profiling;
use crate::device::{HeldMemory, MemoryStats};
use crate::error::Result;
use crate::util::sync;

/// The most bytes that the pool keeps free.
const KEEP_BYTES: u64 = 1 << 30;

/// The host device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cpu {
    /// The device's name.
    name: String,
    pool: Arc<Pool>,
    profiling: Arc<Profiling>,
}

#[derive(Debug, Default)]
struct Pool {
    /// By size. There are few sizes: a lookup in a tree takes less time than a hash.
    free: Mutex<BTreeMap<usize, Vec<Vec<u32>>>>,
    ledger: Ledger,
    accounts: Accounts,
}

/// The one host of the process.
pub(crate) fn host() -> &'static Cpu {
    static HOST: LazyLock<Cpu> = LazyLock::new(|| {
        anygpu_host::memory::provide(&scratch::HostMemory);
        Cpu { name: "cpu".into(), ..Cpu::default() }
    });
    &HOST
}

/// Returns a logical device of the host, with the same memory.
pub(crate) fn logical(name: &str) -> Cpu {
    Cpu { name: name.into(), pool: host().pool.clone(), profiling: Arc::default() }
}

impl Cpu {
    /// A buffer of `words` words of unspecified contents.
    pub(crate) fn alloc(&self, words: usize) -> Result<Arc<CpuBuffer>> {
        notice::count(words);
        Ok(self.wrap(self.words(words)?, words, true))
    }

    /// At least `words` words, from the pool or the system, not yet counted in the ledger.
    fn words(&self, words: usize) -> Result<Vec<u32>> {
        #[cfg(test)]
        crate::device::injected_faults::allocation("cpu")?;
        let class = class_of(words);
        let recycled = sync::lock(&self.pool.free).get_mut(&class).and_then(Vec::pop);
        recycled.map_or_else(|| self.fresh(class), Ok)
    }

    /// Returns a buffer that owns `data`. Its memory goes back to the system, not to the pool: if the pool kept
    /// memory that it never gave out, it would grow with every batch of data.
    #[expect(clippy::wrong_self_convention, reason = "the ledger that counts it is this one's")]
    pub(crate) fn from_words(&self, data: Vec<u32>) -> Arc<CpuBuffer> {
        self.pool.ledger.reserve(bytes(data.len()));
        let words = data.len();
        self.wrap(data, words, false)
    }

    /// Returns whether the device is profiled, and where its events go.
    pub(crate) fn profiling(&self) -> &Profiling {
        &self.profiling
    }

    /// Runs an op, whose time is recorded if the device is profiled.
    pub(crate) fn timed<T>(&self, op: &str, f: impl FnOnce() -> T) -> T {
        self.profiling.timed(&self.name, op, f)
    }

    /// Live, peak and reserved bytes.
    pub(crate) fn memory(&self) -> MemoryStats {
        self.pool.ledger.stats()
    }

    /// Returns the large tensors by who made them.
    pub(crate) fn held_memory(&self) -> Vec<HeldMemory> {
        self.pool.accounts.held()
    }

    /// Returns what holds the most, for errors.
    fn most_memory(&self) -> Vec<String> {
        self.pool.accounts.most()
    }

    /// Resets the peak to the live bytes.
    pub(crate) fn reset_peak(&self) {
        self.pool.ledger.reset_peak();
    }

    /// Releases all free buffers to the system.
    pub(crate) fn trim(&self) {
        self.pool.trim();
    }

    /// Memory from the system. If there is none, the pool's free buffers are released first.
    fn fresh(&self, class: usize) -> Result<Vec<u32>> {
        let data = zeroed(class).or_else(|_| {
            self.trim();
            zeroed(class)
        })?;
        self.pool.ledger.reserve(bytes(class));
        Ok(data)
    }

    fn wrap(&self, data: Vec<u32>, words: usize, pooled: bool) -> Arc<CpuBuffer> {
        self.pool.ledger.take(bytes(data.len()));
        let entry = self.pool.accounts.enter(bytes(data.len()));
        let (pool, version) = (self.pool.clone(), AtomicU64::new(0));
        Arc::new(CpuBuffer { words, data: RwLock::new(data), pooled, pool, _entry: entry, version })
    }
}

impl Pool {
    /// Releases all free buffers to the system.
    fn trim(&self) {
        let all = std::mem::take(&mut *sync::lock(&self.free));
        let freed = all.values().flatten().map(|data| bytes(data.len())).sum();
        self.ledger.unreserve(freed);
    }

    /// Takes back a buffer. If it came from the pool, and the pool is not full, it is kept for later.
    fn put(&self, data: Vec<u32>, pooled: bool) {
        self.ledger.give(bytes(data.len()));
        if pooled && self.ledger.free() <= KEEP_BYTES {
            sync::lock(&self.free).entry(data.len()).or_default().push(data);
        } else {
            self.ledger.unreserve(bytes(data.len()));
        }
    }
}

fn bytes(words: usize) -> u64 {
    words as u64 * 4
}

/// Returns `words` zeros.
fn zeroed(words: usize) -> Result<Vec<u32>> {
    let (mut data, _grant) = budget::granted(words)?;
    data.resize(words, 0);
    Ok(data)
}

/// Words in host memory, shared by the tensors that view them.
#[derive(Debug)]
pub(crate) struct CpuBuffer {
    words: usize,
    data: RwLock<Vec<u32>>,
    /// Whether `data` came from the pool.
    pooled: bool,
    pool: Arc<Pool>,
    _entry: Option<Entry>,
    version: AtomicU64,
}

/// Returns a buffer of no words.
pub(crate) fn nothing() -> Arc<CpuBuffer> {
    static NOTHING: LazyLock<Arc<CpuBuffer>> = LazyLock::new(|| host().from_words(Vec::new()));
    NOTHING.clone()
}

impl CpuBuffer {
    /// The number of words that were requested.
    pub(crate) fn len(&self) -> usize {
        self.words
    }

    /// The words, with access shared with other readers.
    pub(crate) fn read(&self) -> ReadGuard<'_> {
        ReadGuard { data: sync::read(&self.data), words: self.words }
    }

    /// The words, with exclusive access. Do not hold a `read` of the same buffer at the same time.
    pub(crate) fn write(&self) -> WriteGuard<'_> {
        WriteGuard { data: sync::write(&self.data), words: self.words }
    }

    /// In-place writes so far.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Counts an in-place write.
    pub(crate) fn bump(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        let data = std::mem::take(self.data.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()));
        self.pool.put(data, self.pooled);
    }
}

/// See [`CpuBuffer::read`].
pub(crate) struct ReadGuard<'a> {
    data: RwLockReadGuard<'a, Vec<u32>>,
    words: usize,
}

impl Deref for ReadGuard<'_> {
    type Target = [u32];
    fn deref(&self) -> &[u32] {
        &self.data[..self.words]
    }
}

/// See [`CpuBuffer::write`].
pub(crate) struct WriteGuard<'a> {
    data: RwLockWriteGuard<'a, Vec<u32>>,
    words: usize,
}

impl Deref for WriteGuard<'_> {
    type Target = [u32];
    fn deref(&self) -> &[u32] {
        &self.data[..self.words]
    }
}

impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u32] {
        &mut self.data[..self.words]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_serves_the_next_of_its_class() -> Result<()> {
        let cpu = Cpu::default();
        let first = cpu.alloc(1000)?;
        let place = first.read().as_ptr();
        drop(first);
        let second = cpu.alloc(1001)?;
        assert_eq!(second.read().as_ptr(), place);
        assert_eq!(second.len(), 1001);
        assert_eq!(second.read().len(), 1001);
        assert_eq!(cpu.memory().live, cpu.memory().peak);
        drop(second);
        assert_eq!(cpu.memory().live, 0);
        assert!(cpu.memory().reserved >= 4004);
        Ok(())
    }

    #[test]
    fn words_are_taken_over_and_not_kept() {
        let cpu = Cpu::default();
        let buffer = cpu.from_words(vec![1, 2, 3]);
        assert_eq!(&*buffer.read(), &[1, 2, 3]);
        buffer.write()[0] = 9;
        assert_eq!(buffer.read()[0], 9);
        drop(buffer);
        assert_eq!(cpu.memory().reserved, 0);
    }

    #[test]
    fn more_than_the_machine_has_is_an_error() {
        let error = Cpu::default().alloc(1 << 50).map(|_| ()).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
    }
}
