//! The bind groups of a device, so that kernels that are recorded again with the same buffers need no new ones.

use std::collections::HashMap;

/// The number of bind groups in a generation. At most twice as many are kept.
const GENERATION: usize = 512;

/// A pipeline, the bytes of its params, and its pages, each with the first byte and the number of bytes that are
/// bound.
pub(super) type Key = (u64, usize, Vec<(u64, (u64, u64))>);

/// Bind groups in two generations. The older one is dropped when the newer one is full: its bind groups are rarely
/// needed again. A bind group takes some kilobytes, and work with ever new shapes never uses one twice.
#[derive(Debug)]
pub(super) struct BindGroups<B> {
    newer: HashMap<Key, B>,
    older: HashMap<Key, B>,
}

impl<B> Default for BindGroups<B> {
    fn default() -> Self {
        BindGroups { newer: HashMap::new(), older: HashMap::new() }
    }
}

impl<B: Clone> BindGroups<B> {
    pub(super) fn get(&mut self, key: &Key) -> Option<B> {
        if let Some(found) = self.newer.get(key) {
            return Some(found.clone());
        }
        let (key, found) = self.older.remove_entry(key)?;
        self.insert(key, found.clone());
        Some(found)
    }

    pub(super) fn insert(&mut self, key: Key, bind_group: B) {
        if self.newer.len() >= GENERATION {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, bind_group);
    }

    /// Drops the bind groups of any of these pages.
    pub(super) fn forget(&mut self, pages: &[u64]) {
        let without = |key: &Key, _: &mut B| !key.2.iter().any(|(page, _)| pages.contains(page));
        self.newer.retain(without);
        self.older.retain(without);
    }

    pub(super) fn clear(&mut self) {
        self.newer.clear();
        self.older.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: usize) -> Key {
        (id as u64, 0, vec![(1, (0, 4))])
    }

    #[test]
    fn those_that_are_used_stay() {
        let mut all = BindGroups::default();
        for id in 0..10 * GENERATION {
            all.insert(key(id), id);
            assert_eq!(all.get(&key(0)), Some(0), "used every time");
            assert!(all.newer.len() + all.older.len() <= 2 * GENERATION);
        }
        // Of the others, only the last generation is there.
        let last = 10 * GENERATION - 1;
        assert_eq!([last, last - GENERATION + 2, 1].map(|id| all.get(&key(id)).is_some()), [true, true, false]);
        all.clear();
        assert_eq!(all.get(&key(last)), None);
    }

    #[test]
    fn those_of_a_page_are_forgotten() {
        let mut all = BindGroups::default();
        for id in 0..GENERATION + 10 {
            all.insert((id as u64, 0, vec![(id as u64 % 7, (0, 4)), (7 + id as u64 % 3, (0, 4))]), id);
        }
        all.forget(&[2, 9]);
        let kept = all.newer.keys().chain(all.older.keys()).map(|key| key.0).collect::<std::collections::BTreeSet<_>>();
        let expected = (0..GENERATION as u64 + 10).filter(|id| id % 7 != 2 && id % 3 != 2);
        assert!(kept.into_iter().eq(expected));
    }

    #[test]
    fn what_fits_into_a_generation_is_never_dropped() {
        let mut all = BindGroups::default();
        let mut made = 0;
        for id in (0..5).flat_map(|_| 0..GENERATION) {
            if all.get(&key(id)).is_none() {
                all.insert(key(id), id);
                made += 1;
            }
        }
        assert_eq!(made, GENERATION);
    }
}
