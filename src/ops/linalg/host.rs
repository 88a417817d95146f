//! Matrix products of f32 on the host, each in the way that suits its sizes.

use rayon::prelude::*;

use super::gemm::{Matrix, Threads, gemm};
use super::{few_rows, large};
use crate::error::Result;

/// Returns the threads for a product of this many multiplications.
pub(super) fn threads(products: usize) -> Threads {
    if products <= few_rows::SMALL { Threads::One } else { Threads::All }
}

/// Computes `out [m, n] ← A [m, k] · B [k, n]`, with a bias for each column if there is one. `out` is row-major.
pub(super) fn product(
    out: &mut [f32],
    a: Matrix,
    b: Matrix,
    sizes: [usize; 3],
    bias: Option<&[f32]>,
    threads: Threads,
) -> Result<()> {
    let [m, k, n] = sizes;
    if few_rows::product(out, a, b, sizes, threads)? {
        if let Some(bias) = bias {
            out.chunks_exact_mut(n).for_each(|out| out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias));
        }
        return Ok(());
    }
    if threads == Threads::All && large::suits(a, b, sizes) {
        return large::product(out, a, b, sizes, bias);
    }
    if let (Some(bias), 1..) = (bias, m.min(n)) {
        let copied = |out: &mut [f32]| out.chunks_exact_mut(n).for_each(|out| out.copy_from_slice(bias));
        match threads {
            Threads::One => copied(out),
            Threads::All => out.par_chunks_mut((8192 / n).max(1) * n).for_each(copied),
        }
    }
    gemm(out, a, b, [m, k, n], bias.is_some(), threads);
    Ok(())
}
