//! Products of matrices with any strides, and of batches. [`plan`] says which way computes one.

pub(crate) mod dots;
mod few_rows;
mod gemm;
pub(crate) mod lane_sums;
mod large;
pub(crate) mod lines;
pub mod plan;
pub(crate) mod tiles;
pub(crate) mod transpose;

pub use gemm::{Factor, Matrix, Threads, gemm};
pub use tiles::panel_width;

use crate::memory::Result;
use crate::tasks::{share, try_share};

/// Computes `out [m, n] ← A [m, k] · B [k, n]`, with a bias for each column if there is one. `out` is row-major.
///
/// # Errors
/// If there is no memory for intermediate results.
///
/// # Panics
/// If a matrix reaches past its data.
pub fn product(
    out: &mut [f32],
    a: Matrix,
    b: Matrix,
    sizes: [usize; 3],
    bias: Option<&[f32]>,
    threads: Threads,
) -> Result<()> {
    let [m, k, n] = sizes;
    if m.min(n) == 0 {
        return Ok(());
    }
    let copied = |out: &mut [f32]| {
        if let Some(bias) = bias {
            out.chunks_exact_mut(n).for_each(|out| out.copy_from_slice(bias));
        }
    };
    match plan::product(a, b, sizes, threads) {
        plan::Way::FewRows(by) => {
            few_rows::product(out, a, b, sizes, by, threads)?;
            if let Some(bias) = bias {
                out.chunks_exact_mut(n).for_each(|out| out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias));
            }
        }
        plan::Way::Large => large::product(out, a, b, sizes, bias)?,
        plan::Way::Gemm { rows: Some(rows) } => {
            share(out[..m * n].chunks_mut(rows * n).enumerate(), 1, |(i, out)| {
                copied(out);
                gemm(out, a.from(i * rows), b, [out.len() / n, k, n], bias.is_some(), Threads::One);
            });
        }
        plan::Way::Gemm { rows: None } => {
            let out = &mut out[..m * n];
            copied(out);
            gemm(out, a, b, sizes, bias.is_some(), threads);
        }
    }
    Ok(())
}

/// Computes the products of a batch, `out [batch, m, n]`. `starts` has the first element of each pair of matrices within `a` and `b`,
/// whose own starts do not count.
///
/// # Errors
/// As [`product`].
///
/// # Panics
/// As [`product`].
pub fn batch(out: &mut [f32], a: Matrix, b: Matrix, starts: &[(usize, usize)], sizes: [usize; 3]) -> Result<()> {
    let [m, k, n] = sizes;
    let one = |out: &mut [f32], &(at_a, at_b): &(usize, usize), threads| {
        product(out, Matrix { start: at_a, ..a }, Matrix { start: at_b, ..b }, sizes, None, threads)
    };
    let pairs = || starts.iter();
    match plan::batch(starts.len(), out.len().saturating_mul(k)) {
        plan::Batch::EachBy(threads) => {
            out.chunks_mut(m * n).zip(pairs()).try_for_each(|(out, start)| one(out, start, threads))
        }
        plan::Batch::Shared => {
            try_share(out.chunks_mut(m * n).zip(pairs()), 1, |(out, start)| one(out, start, Threads::One))
        }
    }
}

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
