//! The common part of the pools of all devices: size classes and the ledger of bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::MemoryStats;

/// Words of the smallest class: 256 bytes, the alignment that every API guarantees.
const SMALLEST: usize = 64;

/// The size, in words, of the buffer that a request of `words` words gets: the next of 4 steps between two powers of
/// two (64, 80, 96, 112, 128, 160, …), so that at most a quarter is unused and the shapes of a training step fall into
/// few classes.
pub(crate) fn class_of(words: usize) -> usize {
    if words <= SMALLEST {
        return SMALLEST;
    }
    let step = 1usize << (usize::BITS - 1 - (words - 1).leading_zeros()).saturating_sub(2);
    words.div_ceil(step).saturating_mul(step)
}

/// Counters of live, peak and reserved bytes.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    live: AtomicU64,
    peak: AtomicU64,
    reserved: AtomicU64,
}

impl Ledger {
    /// Counts bytes that the driver allocated.
    pub(crate) fn reserve(&self, bytes: u64) {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that were returned to the driver.
    pub(crate) fn unreserve(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts bytes of the reserve that a tensor now holds.
    pub(crate) fn take(&self, bytes: u64) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
    }

    /// Counts bytes that a tensor no longer holds.
    pub(crate) fn give(&self, bytes: u64) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Resets the peak to the live bytes.
    pub(crate) fn reset_peak(&self) {
        self.peak.store(self.live.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The bytes that are reserved and not live.
    pub(crate) fn free(&self) -> u64 {
        let stats = self.stats();
        stats.reserved.saturating_sub(stats.live)
    }

    /// The three counters.
    pub(crate) fn stats(&self) -> MemoryStats {
        MemoryStats {
            live: self.live.load(Ordering::Relaxed),
            peak: self.peak.load(Ordering::Relaxed),
            reserved: self.reserved.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_the_request_and_waste_at_most_a_quarter() {
        assert_eq!([0, 1, 64, 65, 80, 81, 128, 129].map(class_of), [64, 64, 64, 80, 80, 96, 128, 160]);
        for words in 1..100_000 {
            let class = class_of(words);
            assert!(class >= words && class_of(class) == class, "{words} → {class}");
            assert!(words < 64 || class * 4 <= words * 5 + 4, "{words} → {class}");
        }
        assert!(class_of(usize::MAX) >= usize::MAX - 3);
    }
}
