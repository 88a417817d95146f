//! An allocator that counts, for tests of how much memory something takes at most. Include it with `#[path]` in a test
//! binary of one test, so that nothing else allocates meanwhile.
#![allow(unsafe_code, dead_code, reason = "an allocator is unsafe to declare; a test uses its own part of this file")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The system's allocator, and what is and was at most allocated through it.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Blocks of at least `LARGE` bytes are refused where more than this would be allocated with them.
static HOST: AtomicUsize = AtomicUsize::new(usize::MAX);
const LARGE: usize = 64 << 10;

fn refused(bytes: usize) -> bool {
    bytes >= LARGE && LIVE.load(Ordering::Relaxed).saturating_add(bytes) > HOST.load(Ordering::Relaxed)
}

fn more(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refused(layout.size()) {
            return std::ptr::null_mut();
        }
        more(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refused(layout.size()) {
            return std::ptr::null_mut();
        }
        more(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes that are allocated now.
pub fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// Lets large blocks fail that would make more than this number of bytes, as on a host that has no more.
pub fn set_host(bytes: usize) {
    HOST.store(bytes, Ordering::Relaxed);
}

/// Runs `f` on a host that has so many more bytes for large blocks.
pub fn with_host<T>(bytes: usize, f: impl FnOnce() -> T) -> T {
    set_host(live().saturating_add(bytes));
    let result = f();
    set_host(usize::MAX);
    result
}

/// A result, the time that it took, and the bytes that were allocated at most beyond what was allocated before.
pub fn measured<T>(f: impl FnOnce() -> T) -> (T, Duration, usize) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let result = f();
    (result, start.elapsed(), PEAK.load(Ordering::Relaxed).saturating_sub(before))
}
