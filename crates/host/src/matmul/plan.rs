//! Which way computes a product of matrices.

pub use super::few_rows::By;
use super::gemm::{Matrix, Threads};
use super::{few_rows, large};

/// Products that one thread computes in the time that it takes to wake another one.
pub(crate) const SMALL: usize = 1 << 18;

/// The ways to compute a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The right factor is read where it lies (`few_rows.rs`, by `dots.rs` or `lines.rs`).
    FewRows(By),
    /// Each task packs its own columns of the right factor (`large/`).
    Large,
    /// The crate `gemm`. With `rows`, each thread computes this many by itself; without, `gemm` divides the
    /// product.
    Gemm {
        /// The rows of a task.
        rows: Option<usize>,
    },
}

/// Who computes the products of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// One product after the other, each by these threads.
    EachBy(Threads),
    /// Each thread computes some of the products.
    Shared,
}

/// Returns the way to compute a product `[m, k] · [k, n]`, where neither m nor n is 0.
pub fn product(a: Matrix, b: Matrix, sizes: [usize; 3], threads: Threads) -> Way {
    if let Some(by) = few_rows::suits(a, b, sizes) {
        return Way::FewRows(by);
    }
    match threads {
        Threads::All if large::suits(a, b, sizes) => Way::Large,
        _ => Way::Gemm { rows: rows_of_task(sizes, threads) },
    }
}

/// Returns who computes `count` products that have this many multiplications in all.
pub fn batch(count: usize, products: usize) -> Batch {
    match threads(products) {
        Threads::One => Batch::EachBy(Threads::One),
        Threads::All if count < 2 * rayon::current_num_threads() => Batch::EachBy(Threads::All),
        Threads::All => Batch::Shared,
    }
}

/// Returns the threads for a product of this many multiplications.
pub fn threads(products: usize) -> Threads {
    if products <= SMALL { Threads::One } else { Threads::All }
}

/// Returns the rows that each thread computes, unless `gemm` is to divide the product among threads itself. Waking
/// them takes a good part of the time of a small product. But the threads of `gemm` share the packed parts of the
/// right operand.
fn rows_of_task([m, k, n]: [usize; 3], threads: Threads) -> Option<usize> {
    const FEW: usize = 16;
    const MANY: usize = 64;
    const SHORT: usize = 1 << 25;
    let least = if m.saturating_mul(k).saturating_mul(n) <= SHORT { FEW } else { MANY };
    let count = rayon::current_num_threads();
    let mut rows = m.div_ceil(count);
    if rows >= MANY {
        rows = rows.next_multiple_of(8);
    }
    // `gemm` adds the terms in another order for one row, and for few rows and columns: the number of threads must
    // not change the sums.
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

    /// Sizes `[m, k, n]`, whether the left and the right factor are transposed → the way.
    #[test]
    fn the_ways_of_products() {
        let gemm = |way| matches!(way, Way::Gemm { .. });
        type Row<'a> = ([usize; 3], [bool; 2], &'a dyn Fn(Way) -> bool);
        let table: [Row; 8] = [
            ([1, 1024, 1024], [false, false], &|way| way == Way::FewRows(By::Lines)),
            ([1, 1024, 1024], [false, true], &|way| way == Way::FewRows(By::Dots)),
            ([32, 256, 256], [false, false], &|way| way == Way::FewRows(By::Lines)),
            ([32, 256, 256], [false, true], &gemm),
            ([512, 512, 512], [false, false], &gemm),
            ([512, 512, 512], [false, true], &|way| way == Way::Large),
            ([2048, 2048, 2048], [false, false], &|way| way == Way::Large),
            ([64, 4096, 4096], [false, false], &|way| way == Way::Large),
        ];
        for ([m, k, n], [turned_a, turned_b], right) in table {
            let data = vec![0.0; m * k.max(n).max(m) + k * n];
            let a = Matrix::new(&data, 0, if turned_a { [1, m] } else { [k, 1] });
            let b = Matrix::new(&data, 0, if turned_b { [1, k] } else { [n, 1] });
            let way = product(a, b, [m, k, n], Threads::All);
            assert!(right(way), "[{m}, {k}] · [{k}, {n}], {turned_a}, {turned_b}: {way:?}");
        }
    }
}
