//! Products with a matrix of integers of 4 or 8 bits, several of them in a word, which are multiplied from their words: the matrix is
//! never widened as a whole.
//!
//! Neighbouring words are the elements of a vector, so that a shift and a mask give every eighth element of a row (every fourth, for 8
//! bits). The other factor is brought into that order once.

use pulp::{Simd, WithSimd};

use crate::matmul::plan::SMALL;
use crate::memory::{Result, scratch};
use crate::tasks::try_share_with;
use crate::vectors::{MOST_LANES, with_vectors};

/// The rows of the other factor that are multiplied at once.
const ROWS: usize = 4;

/// The rows of a matrix that are a task.
const OF_TASK: usize = 16;

/// Writes a number for each block of a row.
pub type OfRow<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

/// A matrix of integers, each row of which is blocks of whole words. Its elements are `scale · (integer − zero)`, with a scale and a zero
/// for each block. The first integer of a word is in its lowest bits.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    /// The words of all rows.
    pub words: &'a [u32],
    /// 4 or 8.
    pub bits: usize,
    /// The words of a block.
    pub block: usize,
    /// The blocks of a row.
    pub blocks: usize,
    /// The elements of a row; the last block may have more integers.
    pub depth: usize,
    /// The scales of a row.
    pub scales: OfRow<'a>,
    /// The zeros of a row.
    pub zeros: OfRow<'a>,
}

/// Memory for a row of the matrix: the scale and the zero of each block, and then of each word.
struct OfWords {
    blocks: Vec<f32>,
    scales: Vec<f32>,
    zeros: Vec<f32>,
}

impl Packed<'_> {
    /// Returns the words of a row.
    fn row(&self) -> usize {
        self.block * self.blocks
    }

    /// Returns the words of a row, rounded up to whole vectors.
    fn whole(&self) -> usize {
        self.row().next_multiple_of(MOST_LANES)
    }

    fn each(&self) -> usize {
        32 / self.bits
    }

    /// Computes `out [m, n] ← X [m, depth] · Wᵀ`, for a matrix of `n` rows.
    ///
    /// # Errors
    /// If there is no memory for intermediate results.
    ///
    /// # Panics
    /// If a slice is shorter than the sizes say.
    pub fn product(&self, out: &mut [f32], x: &[f32], [m, n]: [usize; 2]) -> Result<()> {
        if m.min(n) == 0 {
            return Ok(());
        }
        let whole = self.whole() * self.each();
        let mut ordered = scratch(m * whole)?;
        with_vectors(Order { packed: *self, x, out: &mut ordered });
        // A column of the result after the other: these are the parts of tasks.
        let mut columns = scratch(if m == 1 { 0 } else { m * n })?;
        let to = if m == 1 { &mut out[..n] } else { &mut columns[..] };
        let tasks = to.chunks_mut(OF_TASK * m).enumerate();
        let least = (SMALL / (OF_TASK * m * self.depth).max(1)).max(1);
        try_share_with(
            tasks,
            least,
            || self.memory(),
            |memory, (i, out)| {
                for (row, out) in (i * OF_TASK..).zip(out.chunks_exact_mut(m)) {
                    self.read_blocks(row, memory);
                    with_vectors(Row { packed: *self, row, x: &ordered, memory, out });
                }
                Ok(())
            },
        )?;
        if m > 1 {
            for (i, out) in out[..m * n].chunks_exact_mut(n).enumerate() {
                out.iter_mut().zip(columns.chunks_exact(m)).for_each(|(out, column)| *out = column[i]);
            }
        }
        Ok(())
    }

    /// Computes `out [count, depth]`: the elements of the rows from `first` on.
    ///
    /// # Errors
    /// If there is no memory for intermediate results.
    ///
    /// # Panics
    /// If a slice is shorter than the sizes say.
    pub fn widen(&self, first: usize, out: &mut [f32]) -> Result<()> {
        if self.depth == 0 {
            return Ok(());
        }
        let least = (SMALL / (OF_TASK * self.depth)).max(1);
        let tasks = out.chunks_mut(OF_TASK * self.depth).enumerate();
        try_share_with(
            tasks,
            least,
            || self.memory(),
            |memory, (i, out)| {
                for (row, out) in (first + i * OF_TASK..).zip(out.chunks_exact_mut(self.depth)) {
                    self.read_blocks(row, memory);
                    let words = &self.words[row * self.row()..][..self.row()];
                    let OfWords { scales, zeros, .. } = memory;
                    match self.bits {
                        4 => crate::vectorised!(widened::<8>(words, 4, scales, zeros, out)),
                        _ => crate::vectorised!(widened::<4>(words, 8, scales, zeros, out)),
                    }
                }
                Ok(())
            },
        )
    }

    fn memory(&self) -> Result<OfWords> {
        let numbers = |count: usize| {
            let mut all = Vec::new();
            all.try_reserve_exact(count).map_err(crate::memory::Error::new)?;
            all.resize(count, 0.0);
            Ok(all)
        };
        Ok(OfWords { blocks: numbers(self.blocks)?, scales: numbers(self.whole())?, zeros: numbers(self.whole())? })
    }

    /// Reads the scale and the zero of each word of a row. Those of words after the last one are 0.
    fn read_blocks(&self, row: usize, memory: &mut OfWords) {
        let OfWords { blocks, scales, zeros } = memory;
        for (read, to) in [(self.scales, scales), (self.zeros, zeros)] {
            read(row, blocks);
            for (words, value) in to.chunks_mut(self.block).zip(&*blocks) {
                words.fill(*value);
            }
            to[self.row()..].fill(0.0);
        }
    }
}

/// The elements of a row, of words with `EACH` integers.
#[inline(always)]
fn widened<const EACH: usize>(words: &[u32], bits: usize, scales: &[f32], zeros: &[f32], out: &mut [f32]) {
    let mask = (1u32 << bits) - 1;
    let (whole, rest) = out.as_chunks_mut::<EACH>();
    let all = words.iter().zip(scales.iter().zip(zeros));
    let count = whole.len();
    for (out, (word, (scale, zero))) in whole.iter_mut().zip(all.clone()) {
        for (j, out) in out.iter_mut().enumerate() {
            *out = ((word >> (bits * j) & mask) as i32 as f32 - zero) * scale;
        }
    }
    for (out, (word, (scale, zero))) in rest.chunks_mut(EACH).zip(all.skip(count)) {
        for (j, out) in out.iter_mut().enumerate() {
            *out = ((word >> (bits * j) & mask) as i32 as f32 - zero) * scale;
        }
    }
}

/// Brings rows into the order of integers that vectors of words have; 0 after the last element.
struct Order<'a> {
    packed: Packed<'a>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Order<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Order { packed, x, out } = self;
        let (each, depth, lanes) = (packed.each(), packed.depth, S::F32_LANES);
        out.fill(0.0);
        for (x, out) in x.chunks_exact(depth.max(1)).zip(out.chunks_exact_mut(packed.whole() * each)) {
            for (x, out) in x.chunks(lanes * each).zip(out.chunks_exact_mut(lanes * each)) {
                for (lane, x) in x.chunks(each).enumerate() {
                    x.iter().enumerate().for_each(|(j, v)| out[j * lanes + lane] = *v);
                }
            }
        }
    }
}

/// The products of a row of the matrix and all rows of the other factor, which are in the order of [`Order`].
struct Row<'a> {
    packed: Packed<'a>,
    row: usize,
    x: &'a [f32],
    memory: &'a OfWords,
    out: &'a mut [f32],
}

impl WithSimd for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.packed.bits {
            4 => self.of_bits::<S, 4, 8>(simd),
            _ => self.of_bits::<S, 8, 4>(simd),
        }
    }
}

impl Row<'_> {
    #[inline(always)]
    fn of_bits<S: Simd, const BITS: usize, const EACH: usize>(self, simd: S) {
        let Row { packed, row, x, memory, out } = self;
        let words = &packed.words[row * packed.row()..][..packed.row()];
        let step = packed.whole() * EACH;
        for (x, out) in x.chunks(ROWS * step).zip(out.chunks_mut(ROWS)) {
            match out.len() {
                1 => rows_of::<S, BITS, EACH, 1>(simd, words, x, step, memory, out),
                2 => rows_of::<S, BITS, EACH, 2>(simd, words, x, step, memory, out),
                3 => rows_of::<S, BITS, EACH, 3>(simd, words, x, step, memory, out),
                _ => rows_of::<S, BITS, EACH, ROWS>(simd, words, x, step, memory, out),
            }
        }
    }
}

#[inline(always)]
fn rows_of<S: Simd, const BITS: usize, const EACH: usize, const M: usize>(
    simd: S,
    words: &[u32],
    x: &[f32],
    step: usize,
    memory: &OfWords,
    out: &mut [f32],
) {
    let (words, rest) = S::as_simd_u32s(words);
    let scales = S::as_simd_f32s(&memory.scales).0;
    let zeros = S::as_simd_f32s(&memory.zeros).0;
    let mut rows = [&[][..]; M];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = S::as_simd_f32s(&x[i * step..][..step]).0.as_chunks::<EACH>().0;
    }
    // An integer below 2²³ in the fraction of 2²³, which is the sum of both.
    let (large, mask) = (simd.splat_f32s(8_388_608.0), simd.splat_u32s((1 << BITS) - 1));
    let exponent = simd.transmute_u32s_f32s(large);
    let mut sums = [simd.splat_f32s(0.0); M];
    let count = words.len() + usize::from(!rest.is_empty());
    for at in 0..count {
        let word = if at < words.len() { words[at] } else { simd.partial_load_u32s(rest) };
        let mut products = [simd.splat_f32s(0.0); M];
        #[expect(clippy::needless_range_loop, reason = "as the loops over rows, which the compiler unrolls")]
        for j in 0..EACH {
            let shift = simd.splat_u32s((BITS * j) as u32);
            let integer = simd.and_u32s(simd.wrapping_dyn_shr_u32s(word, shift), mask);
            let float = simd.sub_f32s(simd.transmute_f32s_u32s(simd.or_u32s(integer, exponent)), large);
            let weight = simd.sub_f32s(float, zeros[at]);
            for i in 0..M {
                products[i] = simd.mul_add_e_f32s(weight, rows[i][at][j], products[i]);
            }
        }
        for i in 0..M {
            sums[i] = simd.mul_add_e_f32s(products[i], scales[at], sums[i]);
        }
    }
    for i in 0..M {
        out[i] = simd.reduce_sum_f32s(sums[i]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::levels;

    /// Multiplies and compares with plain sums, which are exact here.
    fn check(bits: usize, block: usize, [m, n, depth]: [usize; 3]) -> Result<()> {
        let blocks = (depth * bits).div_ceil(32 * block);
        let each = 32 / bits;
        let words: Vec<u32> = (1..=(n * blocks * block) as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let scale = |row: usize, block: usize| [0.5, 1.0, 2.0][(row + 2 * block) % 3];
        let zero = |row: usize, block: usize| ((row * 5 + block) % (1 << bits)) as f32;
        let read = |of: &(dyn Fn(usize, usize) -> f32 + Sync), row: usize, out: &mut [f32]| {
            out.iter_mut().enumerate().for_each(|(block, out)| *out = of(row, block));
        };
        let (scales, zeros) =
            (|row: usize, out: &mut [f32]| read(&scale, row, out), |row: usize, out: &mut [f32]| read(&zero, row, out));
        let packed = Packed { words: &words, bits, block, blocks, depth, scales: &scales, zeros: &zeros };
        let weight = |row: usize, k: usize| {
            let at = k / each;
            let integer = words[row * blocks * block + at] >> (bits * (k % each)) & ((1 << bits) - 1);
            (integer as f32 - zero(row, at / block)) * scale(row, at / block)
        };
        let x: Vec<f32> = (0..m * depth).map(|i| (i % 7) as f32 - 3.0).collect();
        let mut out = vec![f32::NAN; m * n];
        packed.product(&mut out, &x, [m, n])?;
        for (at, got) in out.iter().enumerate() {
            let (i, row) = (at / n, at % n);
            let expected: f32 = (0..depth).map(|k| x[i * depth + k] * weight(row, k)).sum();
            assert_eq!(*got, expected, "{bits} bits, blocks of {block} words, {m} × {depth} × {n} at {i}, {row}");
        }
        let mut wide = vec![f32::NAN; (n - n / 2) * depth];
        packed.widen(n / 2, &mut wide)?;
        for (at, got) in wide.iter().enumerate() {
            assert_eq!(*got, weight(n / 2 + at / depth, at % depth), "{bits} bits, blocks of {block} words at {at}");
        }
        Ok(())
    }

    #[test]
    fn products_of_any_size_are_right() -> Result<()> {
        levels::each(|| {
            for bits in [4, 8] {
                for block in [1, 2, 3, 4, 16] {
                    for sizes in [[1, 1, 1], [1, 37, 70], [4, 5, 128], [7, 33, 257], [2, 16, 1000]] {
                        check(bits, block, sizes)?;
                    }
                }
            }
            Ok(())
        })
    }
}
