//! Loops of the host over the widest vectors of the processor.

use std::sync::LazyLock;

use pulp::{Arch, Simd, WithSimd};

/// The highest level of vector instructions of this processor.
static LEVEL: LazyLock<Arch> = LazyLock::new(Arch::new);

/// Returns the level at which loops run.
#[inline(always)]
fn level() -> Arch {
    #[cfg(test)]
    if let Some(level) = levels::of_test() {
        return level;
    }
    *LEVEL
}

/// Other levels than the highest one, for tests.
#[cfg(test)]
pub(crate) mod levels {
    use std::cell::Cell;

    use super::{Arch, LEVEL};
    use crate::memory::Result;

    thread_local! {
        static OF_TEST: Cell<Option<Arch>> = const { Cell::new(None) };
    }

    pub fn of_test() -> Option<Arch> {
        OF_TEST.get()
    }

    /// Runs `f` with the loops of this thread at each level that the processor has. This compiles nothing again,
    /// unlike a call with its own level.
    pub fn each(f: impl Fn() -> Result<()>) -> Result<()> {
        #[cfg(target_arch = "x86_64")]
        let between = pulp::x86::V3::try_new().map(Arch::V3);
        #[cfg(not(target_arch = "x86_64"))]
        let between = None;
        for level in [Some(Arch::Scalar), between, Some(*LEVEL)].into_iter().flatten() {
            OF_TEST.set(Some(level));
            f()?;
        }
        OF_TEST.set(None);
        Ok(())
    }
}

/// Loops that are compiled for the levels at which a program can run. A module of WebAssembly cannot ask the processor: one with vectors
/// has no other level.
struct Possible<F>(F);

impl<F: WithSimd> WithSimd for Possible<F> {
    type Output = F::Output;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> F::Output {
        if S::IS_SCALAR && cfg!(target_feature = "simd128") {
            unreachable!("a module with vectors has a processor with vectors");
        }
        self.0.with_simd(simd)
    }
}

/// Runs `f`, which is compiled for each level of vector instructions, at the highest level of this processor; see
/// [`vectorised!`](crate::vectorised!). The bound has to be `FnOnce`: with it, the closure itself is inlined, and
/// not a call of it.
#[inline(always)]
pub fn at_highest_level<T>(f: impl FnOnce() -> T) -> T {
    level().dispatch(Possible(f))
}

/// Whether the highest level of this processor has an instruction for [`Fused::mul_add`].
#[inline(always)]
pub fn fuses() -> bool {
    struct Level;
    impl WithSimd for Level {
        type Output = bool;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> bool {
            !S::IS_SCALAR && !cfg!(target_family = "wasm")
        }
    }
    level().dispatch(Level)
}

/// How the sum of a product and a number is rounded. Formulas that take this have an equally small error in both ways.
pub trait MulAdd {
    /// Returns `a · b + c`.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;

    /// Returns `½ x²` in two parts: the second is what the first lacks of the exact value.
    fn half_square(x: f32) -> [f32; 2];
}

/// Rounds once, by one instruction where the processor [fuses] product and sum.
pub struct Fused;

/// Rounds the product, and then the sum.
pub struct Unfused;

impl MulAdd for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn half_square(x: f32) -> [f32; 2] {
        let half = 0.5 * x;
        let square = half * x;
        [square, half.mul_add(x, -square)]
    }
}

impl MulAdd for Unfused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }

    #[inline(always)]
    fn half_square(x: f32) -> [f32; 2] {
        let head = f32::from_bits(x.to_bits() & 0xffff_f000); // its square is exact
        [0.5 * head * head, 0.5 * (x + head) * (x - head)]
    }
}

/// The most elements of a vector, which are as many as in a line of the cache.
pub const MOST_LANES: usize = 16;

/// Runs loops that are written with vectors, as [`at_highest_level`] does. Their sums may be fused: the results may differ
/// between levels in the last bits.
#[inline(always)]
pub fn with_vectors<F: WithSimd>(f: F) -> F::Output {
    level().dispatch(Possible(f))
}

/// Runs `f`, in WebAssembly in a function of its own: all functions of a module have the same level there, and LLVM takes far longer for one
/// function of many tiles than for many functions. Elsewhere, only what is inlined keeps the level: `f` has to be `#[inline(always)]`.
#[cfg_attr(target_family = "wasm", inline(never))]
#[cfg_attr(not(target_family = "wasm"), inline(always))]
pub fn apart<T>(f: impl FnOnce() -> T) -> T {
    f()
}

/// Returns `[f(0), f(1), …]`. Unlike [`std::array::from_fn`], it is always inlined: inner loops then know the lengths of slices in it,
/// and check no bounds. `any` is any value.
#[inline(always)]
pub fn array<T: Copy, const N: usize>(any: T, f: impl Fn(usize) -> T) -> [T; N] {
    let mut all = [any; N];
    #[expect(clippy::needless_range_loop, reason = "the plainest loop, which the compiler unrolls early")]
    for i in 0..N {
        all[i] = f(i);
    }
    all
}

/// Asks the processor for the lines of its cache in which `data` lies. It is to be written some time later, and
/// need not be waited for then. Does nothing on processors other than x86-64: Rust has no stable function for ARM.
#[inline(always)]
pub fn prefetch(data: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in data.chunks(MOST_LANES).filter_map(|line| line.first()).chain(data.last()) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        #[expect(unsafe_code, reason = "the intrinsic takes a pointer")]
        // SAFETY: it changes nothing but caches.
        unsafe {
            _mm_prefetch::<_MM_HINT_ET0>(std::ptr::from_ref(line).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = data;
}

/// Returns the larger elements. Where one of the two is NaN, returns the element of `a`.
#[inline(always)]
pub fn larger<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
    simd.select_f32s(simd.greater_than_f32s(b, a), b, a)
}

/// P of `eʳ ≈ 1 + r + r² P(r)` for |r| ≤ ½ ln 2, highest power first: minimax coefficients, with a relative error of 4e-9.
pub const EXPONENTIAL: [f32; 5] = [1.381_455_3e-3, 8.368_744_5e-3, 4.166_839e-2, 1.666_652_1e-1, 0.499_999_94];

/// Computes e^x of numbers that are not above 0, or NaN, with an error of about one unit in the last place, as
/// the function of single numbers does.
#[inline(always)]
pub fn exp_below_zero<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    // 1.5 · 2^23, and two biases of an exponent: a number added to it is rounded to a whole number in the last bits.
    let whole = simd.splat_f32s(12_582_912.0 + 254.0);
    // What is rounded to 0 is computed of another number: processors take far longer for results that are not normal numbers.
    let zero = simd.splat_f32s(0.0);
    let vanishes = simd.less_than_f32s(x, simd.splat_f32s(-104.0)); // false for NaN
    let x = simd.select_f32s(vanishes, zero, x);
    let shifted = simd.mul_add_e_f32s(x, simd.splat_f32s(std::f32::consts::LOG2_E), whole);
    let n = simd.sub_f32s(shifted, whole);
    let r = simd.mul_add_e_f32s(n, simd.splat_f32s(-0.693_359_4), x);
    let r = simd.mul_add_e_f32s(n, simd.splat_f32s(2.121_944_4e-4), r);
    let one = simd.splat_f32s(1.0);
    let mut p = simd.splat_f32s(EXPONENTIAL[0]);
    for c in &EXPONENTIAL[1..] {
        p = simd.mul_add_e_f32s(p, r, simd.splat_f32s(*c));
    }
    p = simd.mul_add_e_f32s(simd.mul_add_e_f32s(p, r, one), r, one);
    // 2^n in two factors, since the result may be subnormal: see `exp`.
    let exponent = |bits| simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(bits, simd.splat_u32s(23)));
    let both = simd.transmute_u32s_f32s(shifted);
    let half = simd.wrapping_dyn_shr_u32s(both, simd.splat_u32s(1));
    let product = simd.mul_f32s(simd.mul_f32s(p, exponent(half)), exponent(simd.sub_u32s(both, half)));
    simd.select_f32s(vanishes, zero, product)
}

/// Evaluates an expression with loops that the compiler vectorises. On x86-64 it is compiled for the instructions of the
/// build (SSE2 by default), for AVX2 and for AVX-512, and this processor's highest level runs.
///
/// The results have the same bits at every level, because the compiler neither reorders nor fuses operations of floats.
/// Functions in the expression must be `#[inline(always)]`, or small: a function that is not inlined keeps the level of
/// the build. So does the body of a closure that an iterator's method calls, if it is long: write a `for` loop.
///
/// After `<M>`, the expression may use a type M, which is [`Fused`] where the highest level [fuses], and else
/// [`Unfused`]. These results have the same bits only on processors that agree in that. Code that is not inlined
/// calls a function of the C library for each product.
#[macro_export]
macro_rules! vectorised {
    (<$m:ident> $loops:expr) => {
        if $crate::vectors::fuses() {
            #[allow(dead_code, reason = "not every formula of a table has products and sums")]
            type $m = $crate::vectors::Fused;
            $crate::vectorised!($loops)
        } else {
            #[allow(dead_code, reason = "not every formula of a table has products and sums")]
            type $m = $crate::vectors::Unfused;
            $crate::vectorised!($loops)
        }
    };
    ($loops:expr) => {
        $crate::vectors::at_highest_level(
            #[inline(always)]
            || $loops,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Result;

    /// The exponentials of numbers.
    struct Exponentials<'a>(&'a mut [f32]);

    impl WithSimd for Exponentials<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            S::as_mut_simd_f32s(self.0).0.iter_mut().for_each(|v| *v = exp_below_zero(simd, *v));
        }
    }

    /// Compares every 97th number with f64, in units of the last place.
    #[test]
    fn exponentials_are_right_to_about_one_unit() -> Result<()> {
        let bits = |v: f32| v.to_bits();
        let values: Vec<f32> = (bits(-0.0)..=bits(f32::NEG_INFINITY)).step_by(97).map(f32::from_bits).collect();
        let values = &values[..values.len() / 16 * 16];
        levels::each(|| {
            let mut all = values.to_vec();
            with_vectors(Exponentials(&mut all));
            for (x, got) in values.iter().zip(&all) {
                let expected = f64::from(*x).exp();
                let near = expected as f32;
                let unit = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
                assert!((f64::from(*got) - expected).abs() <= 1.2 * unit, "exp({x}) = {got}, not {near}");
            }
            Ok(())
        })?;
        let mut edges = [f32::NAN; 32];
        edges[1..5].copy_from_slice(&[0.0, -0.0, f32::NEG_INFINITY, -1e30]);
        with_vectors(Exponentials(&mut edges));
        assert!(edges[0].is_nan());
        assert_eq!(edges[1..5], [1.0, 1.0, 0.0, 0.0]);
        Ok(())
    }
}
