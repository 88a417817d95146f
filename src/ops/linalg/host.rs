//! Matrix products of f32 on the host, each in the way that suits its sizes.

use super::gemm::{Matrix, Threads, gemm};
use super::{few_rows, large};
use crate::device::cpu::tasks::share;
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
    if m.min(n) == 0 {
        return Ok(());
    }
    let copied = |out: &mut [f32]| {
        if let Some(bias) = bias {
            out.chunks_exact_mut(n).for_each(|out| out.copy_from_slice(bias));
        }
    };
    let out = &mut out[..m * n];
    if let Some(rows) = rows_of_task(sizes, threads) {
        share(out.chunks_mut(rows * n).enumerate(), 1, |(i, out)| {
            copied(out);
            gemm(out, a.from(i * rows), b, [out.len() / n, k, n], bias.is_some(), Threads::One);
        });
    } else {
        copied(out);
        gemm(out, a, b, sizes, bias.is_some(), threads);
    }
    Ok(())
}

/// Returns the rows that each thread computes, unless `gemm` is to divide the product among threads itself. To wake them takes a good
/// part of the time of a small product; but threads of `gemm` share what is packed of the right operand.
fn rows_of_task([m, k, n]: [usize; 3], threads: Threads) -> Option<usize> {
    const FEW: usize = 16;
    const MANY: usize = 64;
    const SMALL: usize = 1 << 25;
    let least = if m.saturating_mul(k).saturating_mul(n) <= SMALL { FEW } else { MANY };
    let count = rayon::current_num_threads();
    let mut rows = m.div_ceil(count);
    if rows >= MANY {
        rows = rows.next_multiple_of(8);
    }
    // `gemm` adds the terms in another order for one row, and for few rows and columns: the number of threads is not to change the
    // sums.
    while m % rows == 1 {
        rows += 1;
    }
    let last = if m.is_multiple_of(rows) { rows } else { m % rows };
    let in_order = n > FEW_FOR_GEMM || last > FEW_FOR_GEMM;
    (threads == Threads::All && count > 1 && m / count >= least && in_order).then_some(rows)
}

/// The most rows and columns that are few for `gemm`.
const FEW_FOR_GEMM: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows and columns that are few and many for `gemm`, and a last row that is alone if five threads have 29 rows each.
    #[test]
    fn every_number_of_threads_has_the_same_sums() -> Result<()> {
        let numbers = |len: usize| -> Vec<f32> { (0..len).map(|i| ((i * 37 % 1009) as f32).sin()).collect() };
        for [m, k, n] in [[146, 700, 40], [146, 700, 200], [300, 600, 10], [130, 1300, 64], [700, 64, 700]] {
            let (left, right, bias) = (numbers(m * k), numbers(k * n), numbers(n));
            for of_a in [[k, 1], [1, m]] {
                let (a, b) = (Matrix::new(&left, 0, of_a), Matrix::new(&right, 0, [n, 1]));
                let mut sums = Vec::new();
                for count in [1, 2, 3, 5, 8] {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().expect("threads");
                    let mut out = vec![f32::NAN; m * n];
                    pool.install(|| product(&mut out, a, b, [m, k, n], Some(&bias), Threads::All))?;
                    sums.push(out);
                }
                assert!(sums.iter().all(|out| *out == sums[0]), "{m} × {k} × {n}, {of_a:?}");
            }
        }
        Ok(())
    }
}
