//! Loops of the host over the widest vectors of the processor.

use std::sync::LazyLock;

use pulp::Arch;

/// Runs `f`, which is compiled for each level of vector instructions (on x86-64: the level of the build, AVX2 and
/// AVX-512), at the highest level of this processor. Without it, loops use the level of the build, SSE2 by default.
///
/// The results have the same bits at every level, because the compiler neither reorders nor fuses operations of floats.
/// `f` and the functions that it calls are `#[inline(always)]`: a function that is not inlined keeps the level of the
/// build.
#[inline(always)]
pub(in crate::ops) fn wide<T>(f: impl FnOnce() -> T) -> T {
    static LEVEL: LazyLock<Arch> = LazyLock::new(Arch::new);
    LEVEL.dispatch(f)
}
