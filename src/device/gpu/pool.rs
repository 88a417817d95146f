//! Buffers by size class. A freed buffer can be reused at once by a kernel that is recorded later, because the one
//! queue of the device runs all work in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::Gpu;
use crate::device::memory_report::{Accounts, Entry};
use crate::device::pool::{Ledger, class_of};
use crate::device::{MemoryStats, cpu};
use crate::error::{Error, Result};
use crate::util::{sync, waiting};

/// The pool keeps at least this many bytes, and at least as many as tensors used at their peak.
const KEEP_BYTES: u64 = 1 << 30;

/// The most bytes that wgpu takes from the driver at once, to cut small buffers from them. Host memory must have room for
/// them before a software adapter is asked for more: lavapipe 25 does not notice that its `mmap` fails, and writes to the
/// address −1.
const DRIVER_BLOCK: u64 = 256 << 20;

/// A small free page is dropped after this many bind groups were made of it. wgpu's buffer keeps some 300 bytes for
/// each bind group that is gone: up to twice as many as were alive at once, and never fewer than before. A page
/// that the same kernels use again and again gets no new bind groups.
const MOST_BIND_GROUPS: u32 = 64;
/// The most bytes of such a page. Large pages would move within the blocks that wgpu has of the driver, and touch
/// more of them.
const RENEWED_BYTES: u64 = 256 << 10;

#[cfg(test)]
thread_local! {
    /// Takes the place of the adapter's [largest binding](Gpu::largest_binding) in tests of this thread.
    pub(crate) static LARGEST_BINDING: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

/// Lifts the limit of [`LARGEST_BINDING`] until it is dropped.
#[cfg(test)]
pub(super) struct Unlimited(Option<usize>);

#[cfg(test)]
impl Unlimited {
    pub fn new() -> Unlimited {
        Unlimited(LARGEST_BINDING.take())
    }
}

#[cfg(test)]
impl Drop for Unlimited {
    fn drop(&mut self) {
        LARGEST_BINDING.set(self.0);
    }
}

/// A part of a buffer begins at a multiple of this many words: 256 bytes, the largest alignment that WebGPU allows an adapter to
/// ask for.
pub(crate) const BINDING_ALIGNMENT: usize = 64;

/// A buffer of words on an adapter, or a [part](Buffer::part) of one. Clones share it; dropping the last one returns its memory
/// to the pool.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    whole: Arc<Inner>,
    /// The words that a kernel binds: first and number. `None`: all.
    part: Option<(usize, usize)>,
}

#[derive(Debug)]
struct Inner {
    page: Arc<Page>,
    words: usize,
    version: AtomicU64,
    pool: Arc<Pool>,
    _entry: Option<Entry>,
}

/// One wgpu buffer of a class's size.
#[derive(Debug)]
pub(super) struct Page {
    pub raw: wgpu::Buffer,
    /// A number that is unique on its device: the key of bind groups.
    pub id: u64,
    /// The number of the last batch that uses the page, or 0 if there is none yet.
    pub batch: AtomicU64,
    /// Whether it is memory of the pool, and not a buffer of the program.
    pub pooled: bool,
    /// Whether the program has had a handle of the buffer, by which it can destroy it at any time.
    shared: AtomicBool,
    /// Whether a browser had no memory for it, as it says after a while.
    refused: Arc<AtomicBool>,
    /// The bind groups that were made of it.
    pub bind_groups: AtomicU32,
}

impl Buffer {
    /// Returns whether more than one handle shares the buffer.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.whole)
    }

    /// Returns the number of words that were requested, or that the part has.
    pub(crate) fn len(&self) -> usize {
        self.part.map_or(self.whole.words, |(_, len)| len)
    }

    /// Returns a part of the buffer for kernels, which find the word `start` at 0. The part has the identity of the
    /// whole buffer. `start` is a multiple of [`BINDING_ALIGNMENT`], and so is `len` of a part that is written,
    /// unless it is the last one: kernels may write the rest of its last vector of four words.
    pub(crate) fn part(&self, start: usize, len: usize) -> Buffer {
        let before = self.part.map_or(0, |(first, _)| first);
        debug_assert!(start.is_multiple_of(BINDING_ALIGNMENT) && start + len <= self.len());
        Buffer { whole: self.whole.clone(), part: Some((before + start, len)) }
    }

    /// Returns whether this is a part of a buffer.
    pub(super) fn is_part(&self) -> bool {
        self.part.is_some()
    }

    /// Returns the first byte that a kernel binds and the number of bytes: all of the page, or the bytes of the
    /// part as whole vectors of four words.
    pub(super) fn bound(&self) -> (u64, u64) {
        let page = self.page().raw.size();
        let Some((first, len)) = self.part else { return (0, page) };
        let first = first as u64 * 4;
        (first, (len.next_multiple_of(4).max(4) as u64 * 4).min(page - first))
    }

    /// Returns a number that identifies the allocation during its life.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.whole) as usize
    }

    /// Returns the number of in-place writes so far.
    pub(crate) fn version(&self) -> u64 {
        self.whole.version.load(Ordering::Acquire)
    }

    /// Counts an in-place write.
    pub(crate) fn bump(&self) {
        self.whole.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn downgrade(&self) -> WeakBuffer {
        WeakBuffer(Arc::downgrade(&self.whole))
    }

    pub(super) fn page(&self) -> &Page {
        &self.whole.page
    }

    /// Returns whether only this crate has had a handle of the buffer of wgpu, so that nobody else has destroyed it.
    pub(super) fn is_private(&self) -> bool {
        !self.page().shared.load(Ordering::Relaxed)
    }

    /// Returns the buffer of wgpu for the program, which can be longer.
    #[cfg(feature = "wgpu")]
    pub(crate) fn share(&self) -> &wgpu::Buffer {
        self.page().shared.store(true, Ordering::Relaxed);
        &self.page().raw
    }

    /// Returns whether the buffer was allocated by this device.
    pub(super) fn belongs_to(&self, gpu: &Gpu) -> bool {
        Arc::ptr_eq(&self.whole.pool, &gpu.pool)
    }
}

/// A buffer that may be dropped meanwhile.
#[derive(Clone, Debug)]
pub(super) struct WeakBuffer(Weak<Inner>);

impl WeakBuffer {
    /// Returns whether this is that buffer.
    pub fn is(&self, buffer: &Buffer) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&buffer.whole))
    }

    /// Returns whether somebody holds the buffer.
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Returns the buffer, if somebody holds it.
    pub fn upgrade(&self) -> Option<Buffer> {
        self.0.upgrade().map(|whole| Buffer { whole, part: None })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.page.pooled {
            self.pool.put(self.page.clone());
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Mutex<BTreeMap<u64, Vec<Arc<Page>>>>,
    ids: AtomicU64,
    ledger: Ledger,
    accounts: Accounts,
    /// Pages that are dropped together with the bind groups that hold them.
    retired: Mutex<Vec<Arc<Page>>>,
    /// Host memory of pages that may not be written yet: kernels write them after the submit.
    unwritten: Mutex<Vec<cpu::Grant>>,
}

impl Pool {
    pub(super) fn memory(&self) -> MemoryStats {
        self.ledger.stats()
    }

    pub(super) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    pub(super) fn reset_peak(&self) {
        self.ledger.reset_peak();
    }

    /// Notes that a wait has ended: the work recorded before it is done.
    pub(super) fn all_written(&self) {
        sync::lock(&self.unwritten).clear();
    }

    /// Returns the host memory of pages that may not be written yet, to be kept until what is submitted now is done.
    pub(super) fn take_unwritten(&self) -> Vec<cpu::Grant> {
        std::mem::take(&mut sync::lock(&self.unwritten))
    }

    fn put(&self, page: Arc<Page>) {
        let bytes = page.raw.size();
        self.ledger.give(bytes);
        if bytes <= RENEWED_BYTES && page.bind_groups.load(Ordering::Relaxed) >= MOST_BIND_GROUPS {
            self.ledger.unreserve(bytes);
            sync::lock(&self.retired).push(page);
        } else {
            sync::lock(&self.free).entry(bytes).or_default().push(page);
        }
    }

    /// Takes a free page of a class that can still be used. The program may have destroyed a page of which it had a
    /// handle, and a browser may have had no memory for a page.
    fn take(&self, bytes: u64, is_usable: impl Fn(&Page) -> bool) -> Option<Arc<Page>> {
        loop {
            let page = sync::lock(&self.free).get_mut(&bytes).and_then(Vec::pop)?;
            let refused = page.refused.load(Ordering::Relaxed);
            if !refused && (!page.shared.load(Ordering::Relaxed) || is_usable(&page)) {
                return Some(page);
            }
            self.ledger.unreserve(bytes);
            sync::lock(&self.retired).push(page);
        }
    }

    /// Returns the pages that are to be dropped with the bind groups of them.
    pub(super) fn take_retired(&self) -> Vec<Arc<Page>> {
        std::mem::take(&mut sync::lock(&self.retired))
    }

    /// Drops all free pages; wgpu frees them once no submitted work uses them.
    fn trim(&self) {
        drop(self.take_retired());
        let all = std::mem::take(&mut *sync::lock(&self.free));
        if !waiting::CAN_BLOCK {
            // A browser keeps their memory until it collects its garbage.
            all.values()
                .flatten()
                .filter(|page| !page.shared.load(Ordering::Relaxed))
                .for_each(|page| page.raw.destroy());
        }
        self.ledger.unreserve(all.values().flatten().map(|page| page.raw.size()).sum());
    }
}

/// A new buffer of wgpu.
pub(super) struct Created {
    pub raw: wgpu::Buffer,
    /// The host memory that it takes when a software adapter writes it.
    pub grant: Option<cpu::Grant>,
    /// Set if a browser says later that it had no memory.
    refused: Arc<AtomicBool>,
}

impl Gpu {
    /// Allocates a buffer of `words` words with unspecified contents.
    ///
    /// # Errors
    ///
    /// [`Error::LimitExceeded`] if no buffer can be so long; [`Error::OutOfMemory`] if there is no memory even after all free
    /// buffers were released to the driver. A kernel may be able to bind only [parts](Gpu::largest_binding) of a long one.
    pub(crate) fn alloc(&self, words: usize) -> Result<Buffer> {
        self.check()?;
        #[cfg(test)]
        crate::device::injected_faults::allocation(&self.name)?;
        if self.chaos.run_out_of_memory() {
            return Err(self.short(words as u64 * 4, None));
        }
        if words > self.caps.max_buffer_words {
            let max = self.caps.max_buffer_words as u64 * 4;
            return Err(self.limit("max_buffer_size", words as u64 * 4, max));
        }
        self.release_inputs(words)?;
        self.buffer(words, |bytes| self.fresh_page(bytes))
    }

    /// Returns whether a free page has the size of a buffer of `words` words.
    pub(super) fn has_page(&self, words: usize) -> bool {
        let bytes = self.bytes_of(words);
        sync::lock(&self.pool.free).get(&bytes).is_some_and(|pages| !pages.is_empty())
    }

    /// Returns the bytes of the page of a buffer.
    fn bytes_of(&self, words: usize) -> u64 {
        let most = self.caps.max_binding_words;
        // Buffers that are bound in parts are few, and a class would waste much.
        let words = if words <= most { class_of(words).min(most) } else { words.next_multiple_of(BINDING_ALIGNMENT) };
        words.min(self.caps.max_buffer_words) as u64 * 4
    }

    /// Returns the words of the largest buffer, or part of a buffer, that a kernel can bind.
    pub(crate) fn largest_binding(&self) -> usize {
        #[cfg(test)]
        if let Some(words) = LARGEST_BINDING.get() {
            return words;
        }
        self.caps.max_binding_words
    }

    /// Allocates a buffer, for a chain that is being recorded. Unlike [`Gpu::alloc`], this never waits for the device.
    pub(super) fn alloc_again(&self, words: usize) -> Result<Buffer> {
        self.buffer(words, |bytes| {
            let page = match self.create_page(bytes)? {
                Ok(page) => page,
                Err(_) => {
                    self.forget_free_pages();
                    self.create_page(bytes)?.map_err(|available| self.short(bytes, available))?
                }
            };
            self.pool.ledger.reserve(bytes);
            Ok(page)
        })
    }

    /// Returns a buffer in a free page of its class, or in one that `fresh` makes.
    fn buffer(&self, words: usize, fresh: impl FnOnce(u64) -> Result<Arc<Page>>) -> Result<Buffer> {
        let bytes = self.bytes_of(words);
        let recycled = self.pool.take(bytes, |page| self.is_usable(&page.raw));
        let page = recycled.map_or_else(|| fresh(bytes), Ok)?;
        self.pool.ledger.take(bytes);
        let entry = self.pool.accounts.enter(bytes);
        Ok(self.handle(page, words, entry))
    }

    pub(super) fn short(&self, requested: u64, available: Option<u64>) -> Error {
        let held = self.pool.accounts.most();
        Error::OutOfMemory { device: self.name.clone(), requested, in_use: self.pool.memory().live, available, held }
    }

    fn fresh_page(&self, bytes: u64) -> Result<Arc<Page>> {
        if self.pool.ledger.free() > KEEP_BYTES.max(self.pool.memory().peak) {
            // The shapes have changed, and the free pages do not fit the new ones.
            self.forget_free_pages();
        }
        let page = match self.create_page(bytes)? {
            Ok(page) => page,
            Err(_) => {
                self.trim()?;
                if self.caps.software {
                    cpu::host().trim();
                }
                self.create_page(bytes)?.map_err(|available| self.short(bytes, available))?
            }
        };
        self.pool.ledger.reserve(bytes);
        Ok(page)
    }

    /// Creates a page, or returns that there is no memory; for a software adapter, with how much the host has.
    fn create_page(&self, bytes: u64) -> Result<Result<Arc<Page>, Option<u64>>> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let created = self.create_buffer(bytes, usage)?;
        Ok(created.map(|Created { raw, grant, refused }| {
            sync::lock(&self.pool.unwritten).extend(grant);
            self.page(raw, true, refused).into()
        }))
    }

    /// Creates a buffer, or returns as [`Gpu::create_page`] that there is no memory.
    pub(super) fn create_buffer(&self, size: u64, usage: wgpu::BufferUsages) -> Result<Result<Created, Option<u64>>> {
        let grant = match self.caps.software.then(|| cpu::grant_driver(size, DRIVER_BLOCK)).transpose() {
            Ok(grant) => grant,
            Err(available) => return Ok(Err(available)),
        };
        let gl = self.gl.enter();
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let raw = self.device.create_buffer(&descriptor);
        let refused_later = Arc::new(AtomicBool::new(false));
        let refused = refused_later.clone();
        let late = move || refused.store(true, Ordering::Relaxed);
        let short = self.health.popped_or(memory, late).is_some() | self.gl_out_of_memory();
        let refused = self.health.popped(validation);
        drop(gl);
        match refused {
            Some(error) => Err(self.failure(super::health::describe(&error))),
            None if short => Ok(Err(None)),
            None => Ok(Ok(Created { raw, grant, refused: refused_later })),
        }
    }

    fn page(&self, raw: wgpu::Buffer, pooled: bool, refused: Arc<AtomicBool>) -> Page {
        let id = self.pool.ids.fetch_add(1, Ordering::Relaxed);
        let shared = AtomicBool::new(!pooled);
        Page { raw, id, batch: AtomicU64::new(0), pooled, shared, refused, bind_groups: AtomicU32::new(0) }
    }

    /// Returns a buffer of the program, whose memory is not of the pool.
    #[cfg(feature = "wgpu")]
    pub(super) fn wrap(&self, raw: wgpu::Buffer, words: usize) -> Buffer {
        self.handle(self.page(raw, false, Arc::default()).into(), words, None)
    }

    fn handle(&self, page: Arc<Page>, words: usize, entry: Option<Entry>) -> Buffer {
        let version = AtomicU64::new(0);
        let whole = Inner { page, words, version, pool: self.pool.clone(), _entry: entry };
        Buffer { whole: whole.into(), part: None }
    }

    /// Releases all unused memory to the driver.
    pub(crate) fn trim(&self) -> Result<()> {
        let gl = self.gl.enter();
        self.staging.trim();
        drop(gl);
        self.flush_chain()?; // it holds buffers that nobody else may need
        self.forget_free_pages();
        // A browser frees them when it has done what uses them.
        if waiting::CAN_BLOCK { self.synchronize() } else { Ok(()) }
    }

    pub(super) fn forget_free_pages(&self) {
        self.forget_bind_groups();
        if !waiting::CAN_BLOCK {
            self.submit(&mut sync::lock(&self.recorder)); // it may use them, and they are destroyed
        }
        let _gl = self.gl.enter();
        self.pool.trim();
    }
}
