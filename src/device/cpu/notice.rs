//! Says once that this crate was compiled without optimisation, when there is enough work on the CPU for it to matter.
//!
//! `build.rs` passes on the optimisation level of this crate. `debug_assertions` would not do: a `dev` profile that
//! optimises its dependencies has them as well.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::util::notice::warn;

/// The words of the results of ops after which the notice is due: 32 MiB, about one step of LeNet.
const ENOUGH: usize = 8 << 20;

const NOTICE: &str = "anygpu is compiled without optimisation, as dependencies of debug builds are. It computes \
                      thirty times as slowly or more on `cpu`. Add these lines to Cargo.toml, or build with --release:\n\n\
                      [profile.dev.package.\"*\"]\nopt-level = 3\n";

/// Counts the words of a result.
pub(super) fn count(words: usize) {
    static SO_FAR: AtomicUsize = AtomicUsize::new(0);
    if is_unoptimised(env!("ANYGPU_OPT_LEVEL")) && is_due(SO_FAR.fetch_add(words, Ordering::Relaxed), words) {
        warn(NOTICE);
    }
}

const fn is_unoptimised(level: &str) -> bool {
    matches!(level.as_bytes(), b"0")
}

/// Whether these words complete [`ENOUGH`]; true once, unless the sum overflows.
fn is_due(before: usize, words: usize) -> bool {
    before < ENOUGH && before.saturating_add(words) >= ENOUGH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notice_comes_once_and_after_enough_work() {
        let mut before = 0;
        let due = [1, ENOUGH / 2, ENOUGH / 2, 1, ENOUGH, usize::MAX - 2 * ENOUGH - 2].map(|words| {
            let due = is_due(before, words);
            before += words;
            due
        });
        assert_eq!(due, [false, false, true, false, false, false]);
        assert!(is_due(0, usize::MAX));
    }

    #[test]
    fn only_level_0_is_unoptimised() {
        assert_eq!(["", "0", "1", "3", "s"].map(is_unoptimised), [false, true, false, false, false]);
        assert!(!is_unoptimised(env!("ANYGPU_OPT_LEVEL")), "the tests of this crate are to be quiet");
    }
}
