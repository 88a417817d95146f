//! Copies of words within host memory, by all threads.

use anygpu_host::tasks::share;

use super::with_room;
use crate::error::Result;

/// The words that a thread copies at a time.
const PART: usize = 1 << 16;

/// Copies `from` to `to`, which is as long.
pub(crate) fn copy(from: &[u32], to: &mut [u32]) {
    share(to.chunks_mut(PART).zip(from.chunks(PART)), 1, |(to, from)| to.copy_from_slice(from));
}

/// Returns a copy in memory of its own. The system maps new memory at the first access to each page, which takes longer
/// than the copy: the threads share that, and nothing is written twice.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
pub(crate) fn copied(words: &[u32]) -> Result<Vec<u32>> {
    let mut out = with_room(words.len())?;
    share(out.spare_capacity_mut()[..words.len()].chunks_mut(PART).zip(words.chunks(PART)), 1, |(to, from)| {
        for (to, word) in to.iter_mut().zip(from) {
            to.write(*word);
        }
    });
    #[expect(unsafe_code, reason = "zeros would be written before the copy, by one thread")]
    // SAFETY: the loop above has written the first `words.len()` elements, which the capacity holds.
    unsafe {
        out.set_len(words.len());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_short_copies_have_every_word() -> Result<()> {
        for len in [0, 1, PART, PART + 1, 5 * PART + 3] {
            let words: Vec<u32> = (0..len as u32).collect();
            assert_eq!(copied(&words)?, words);
            let mut to = vec![0; len];
            copy(&words, &mut to);
            assert_eq!(to, words);
        }
        Ok(())
    }
}
