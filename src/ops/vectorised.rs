//! Loops of the host over the widest vectors of the processor.

use std::sync::LazyLock;

use pulp::{Arch, WithSimd};

/// The highest level of vector instructions of this processor.
static LEVEL: LazyLock<Arch> = LazyLock::new(Arch::new);

/// Runs `f`, which is compiled for each level of vector instructions, at the highest level of this processor; see
/// [`vectorised!`]. The bound has to be `FnOnce`: with it, the closure itself is inlined, and not a call of it.
#[inline(always)]
pub(in crate::ops) fn at_highest_level<T>(f: impl FnOnce() -> T) -> T {
    LEVEL.dispatch(f)
}

/// Runs loops that are written with vectors, as [`at_highest_level`] does. Their sums may be fused: the results may differ
/// between levels in the last bits.
#[inline(always)]
pub(in crate::ops) fn with_vectors<F: WithSimd>(f: F) -> F::Output {
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
