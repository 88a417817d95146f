//! Loops of the host over the widest vectors of the processor.

use std::sync::LazyLock;

use pulp::Arch;

/// Runs `f`, which is compiled for each level of vector instructions, at the highest level of this processor; see
/// [`vectorised!`].
#[inline(always)]
pub(in crate::ops) fn at_highest_level<T>(f: impl FnOnce() -> T) -> T {
    static LEVEL: LazyLock<Arch> = LazyLock::new(Arch::new);
    LEVEL.dispatch(f)
}

/// Evaluates an expression with loops that the compiler vectorises. On x86-64 it is compiled for the instructions of the
/// build (SSE2 by default), for AVX2 and for AVX-512, and this processor's highest level runs.
///
/// The results have the same bits at every level, because the compiler neither reorders nor fuses operations of floats.
/// Functions in the expression must be `#[inline(always)]`, or small: a function that is not inlined keeps the level of
/// the build. So does the body of a closure that an iterator's method calls, if it is long: write a `for` loop.
macro_rules! vectorised {
    ($loops:expr) => {
        $crate::ops::vectorised::at_highest_level(
            #[inline(always)]
            || $loops,
        )
    };
}
pub(in crate::ops) use vectorised;
