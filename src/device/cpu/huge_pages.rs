//! Pages of 2 MiB for large blocks of memory.

use std::mem::MaybeUninit;

/// The fewest bytes of a block that is worth the system call.
const LEAST: usize = 4 << 20;

/// The size of a page, and a multiple of smaller ones.
const PAGE: usize = 2 << 20;

/// Asks the system for large pages. Linux maps new memory page by page, with a fault each: for a copy of 64 MiB to a new
/// block, with pages of 4 KiB, the faults take four times as long as the copy. Pages that a block has only parts of stay
/// small.
pub(super) fn advise<T>(block: &mut [MaybeUninit<T>]) {
    let bytes = size_of_val(block);
    if bytes < LEAST {
        return;
    }
    let Some(first) = block.as_mut_ptr().addr().checked_next_multiple_of(PAGE) else { return };
    let end = (block.as_mut_ptr().addr() + bytes) / PAGE * PAGE;
    if first < end {
        let before = first - block.as_mut_ptr().addr();
        advise_pages(block.as_mut_ptr().cast::<u8>().wrapping_add(before), end - first);
    }
}

#[cfg(target_os = "linux")]
fn advise_pages(start: *mut u8, bytes: usize) {
    #[expect(unsafe_code, reason = "there is no safe call for it")]
    // SAFETY: the pages are whole ones of a block that this process owns, and the advice does not change their contents.
    let status = unsafe { libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) };
    if status != 0 {
        // A kernel without large pages: the small ones are right, too.
        log::trace!("the system has no large pages: {}", std::io::Error::last_os_error());
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_pages(_: *mut u8, _: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_any_size_keep_their_elements() {
        for count in [0, 1, LEAST - 1, LEAST, 3 * PAGE + 5] {
            let mut block: Vec<u8> = Vec::with_capacity(count);
            block.extend((0..count / 2).map(|i| i as u8));
            advise(block.spare_capacity_mut());
            block.extend((count / 2..count).map(|i| i as u8));
            assert!(block.iter().enumerate().all(|(i, v)| *v == i as u8));
        }
    }
}
