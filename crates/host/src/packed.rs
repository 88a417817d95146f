//! Products with a matrix of integers of 4 or 8 bits, several of them in a word, which are multiplied from their words: the matrix is
//! never widened as a whole.
//!
//! Neighbouring words are the elements of a vector. So a mask gives every eighth element of a row (every fourth,
//! for 8 bits), times a power of two: integers stay at their places in the word, which is shifted once, for its
//! upper half. The other factor is brought into that order once, divided by these powers of two.
//!
//! The products are computed with `integer − middle`, which costs nothing: converting an integer subtracts a number
//! anyway. For other zeros, each block adds `scale · (middle − zero)` times the sum of its elements of the other
//! factor, which are the same for all rows. (So an infinite element may give NaN.)

use pulp::{Simd, WithSimd};

use crate::matmul::plan::SMALL;
use crate::memory::{Result, scratch};
use crate::tasks::try_share_with;
use crate::vectors::{MOST_LANES, with_vectors};

/// The rows of the other factor that are multiplied at once.
const ROWS: usize = 8;

/// The rows of a matrix in a task.
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
    /// The zeros of a row; if left out, they are the middle of the integers, 8 or 128.
    pub zeros: Option<OfRow<'a>>,
}

/// Memory for the rows of a task: the scale and the zero of each block of one, and then of each word, the scales of all rows.
struct OfRows {
    scales: Vec<f32>,
    zeros: Vec<f32>,
    scales_of_words: Vec<f32>,
    zeros_of_words: Vec<f32>,
}

/// The other factor in the order of [`Order`], and the sums of its blocks if there are zeros.
struct Ordered<'a> {
    elements: &'a [f32],
    sums: &'a [f32],
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

    /// Returns the zero of blocks without one.
    fn middle(&self) -> f32 {
        (1u32 << (self.bits - 1)) as f32
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
        let mut elements = scratch(m * self.whole() * self.each())?;
        let mut sums = scratch(if self.zeros.is_some() { m * self.blocks } else { 0 })?;
        with_vectors(Order { packed: *self, x, out: &mut elements });
        if self.zeros.is_some() && self.depth > 0 {
            let rows = x.chunks_exact(self.depth).zip(sums.chunks_exact_mut(self.blocks));
            rows.for_each(|(x, sums)| {
                let blocks = x.chunks(self.block * self.each());
                sums.iter_mut().zip(blocks).for_each(|(sum, x)| *sum = x.iter().sum());
            });
        }
        let ordered = Ordered { elements: &elements, sums: &sums };
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
                with_vectors(Rows { packed: *self, first: i * OF_TASK, m, x: &ordered, memory, out });
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
                    let OfRows { scales, zeros, scales_of_words, zeros_of_words } = memory;
                    crate::vectorised!({
                        spread(scales, self.block, scales_of_words);
                        spread(zeros, self.block, zeros_of_words);
                        match self.bits {
                            4 => widened::<8>(words, 4, scales_of_words, zeros_of_words, out),
                            _ => widened::<4>(words, 8, scales_of_words, zeros_of_words, out),
                        }
                    });
                }
                Ok(())
            },
        )
    }

    fn memory(&self) -> Result<OfRows> {
        let numbers = |count: usize, value: f32| {
            let mut all = Vec::new();
            all.try_reserve_exact(count).map_err(crate::memory::Error::new)?;
            all.resize(count, value);
            Ok(all)
        };
        Ok(OfRows {
            scales: numbers(self.blocks, 0.0)?,
            zeros: numbers(self.blocks, self.middle())?,
            // The scales after the last word are never written.
            scales_of_words: numbers(OF_TASK * self.whole(), 0.0)?,
            zeros_of_words: numbers(self.whole(), 0.0)?,
        })
    }

    /// Reads the scale and the zero of each block of a row.
    fn read_blocks(&self, row: usize, memory: &mut OfRows) {
        (self.scales)(row, &mut memory.scales);
        if let Some(zeros) = self.zeros {
            zeros(row, &mut memory.zeros);
        }
    }
}

/// Writes the value of each block for each of its words. The usual blocks have functions of their own: a fill of a few words whose number
/// is not known takes longer than their products.
#[inline(always)]
fn spread(values: &[f32], block: usize, to: &mut [f32]) {
    match block {
        1 => spread_by::<1>(values, to),
        2 => spread_by::<2>(values, to),
        4 => spread_by::<4>(values, to),
        8 => spread_by::<8>(values, to),
        16 => spread_by::<16>(values, to),
        _ => to.chunks_exact_mut(block).zip(values).for_each(|(to, value)| to.fill(*value)),
    }
}

#[inline(always)]
fn spread_by<const BLOCK: usize>(values: &[f32], to: &mut [f32]) {
    to.as_chunks_mut::<BLOCK>().0.iter_mut().zip(values).for_each(|(to, value)| *to = [*value; BLOCK]);
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

/// Brings rows into the order of integers that vectors of words have. Each element is divided by the power of two
/// by which its integers are multiplied; 0 follows the last element.
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
                    for (j, v) in x.iter().enumerate() {
                        out[j * lanes + lane] = *v * (1.0 / (1u32 << (packed.bits * (j % (each / 2)))) as f32);
                    }
                }
            }
        }
    }
}

/// The products of some rows of the matrix from `first` on and all rows of the other factor.
struct Rows<'a> {
    packed: Packed<'a>,
    first: usize,
    m: usize,
    x: &'a Ordered<'a>,
    memory: &'a mut OfRows,
    out: &'a mut [f32],
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.packed.bits {
            4 => self.of_bits::<S, 4, 8>(simd),
            _ => self.of_bits::<S, 8, 4>(simd),
        }
    }
}

impl Rows<'_> {
    #[inline(always)]
    fn of_bits<S: Simd, const BITS: usize, const EACH: usize>(self, simd: S) {
        let Rows { packed, first, m, x, memory, out } = self;
        let (whole, middle) = (packed.whole(), packed.middle());
        let step = whole * EACH;
        let count = out.len() / m;
        for i in 0..count {
            packed.read_blocks(first + i, memory);
            let OfRows { scales, zeros, scales_of_words, .. } = &mut *memory;
            spread(scales, packed.block, &mut scales_of_words[i * whole..][..whole]);
            if packed.zeros.is_some() {
                scales.iter_mut().zip(&*zeros).for_each(|(scale, zero)| *scale *= middle - zero);
                let sums = x.sums.chunks_exact(packed.blocks.max(1));
                out[i * m..][..m].iter_mut().zip(sums).for_each(|(out, sums)| *out = dot(simd, scales, sums));
            } else {
                out[i * m..][..m].fill(0.0);
            }
        }
        // A few rows of the other factor stay in the first-level cache for all rows of the matrix.
        for (some, x) in (0..m).step_by(ROWS).zip(x.elements.chunks(ROWS * step)) {
            for i in 0..count {
                let words = &packed.words[(first + i) * packed.row()..][..packed.row()];
                let scales = &memory.scales_of_words[i * whole..][..whole];
                let out = &mut out[i * m + some..(i * m + some + ROWS).min((i + 1) * m)];
                match out.len() {
                    1 => rows_of::<S, BITS, EACH, 1>(simd, words, x, step, scales, out),
                    2 => rows_of::<S, BITS, EACH, 2>(simd, words, x, step, scales, out),
                    3 => rows_of::<S, BITS, EACH, 3>(simd, words, x, step, scales, out),
                    4 => rows_of::<S, BITS, EACH, 4>(simd, words, x, step, scales, out),
                    5 => rows_of::<S, BITS, EACH, 5>(simd, words, x, step, scales, out),
                    6 => rows_of::<S, BITS, EACH, 6>(simd, words, x, step, scales, out),
                    7 => rows_of::<S, BITS, EACH, 7>(simd, words, x, step, scales, out),
                    _ => rows_of::<S, BITS, EACH, ROWS>(simd, words, x, step, scales, out),
                }
            }
        }
    }
}

/// Returns the sum of the products of two lists of the same length.
#[inline(always)]
fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let rest = simd.mul_f32s(simd.partial_load_f32s(a_rest), simd.partial_load_f32s(b_rest));
    simd.reduce_sum_f32s(a.iter().zip(b).fold(rest, |sum, (a, b)| simd.mul_add_e_f32s(*a, *b, sum)))
}

#[inline(always)]
fn rows_of<S: Simd, const BITS: usize, const EACH: usize, const M: usize>(
    simd: S,
    words: &[u32],
    x: &[f32],
    step: usize,
    scales: &[f32],
    out: &mut [f32],
) {
    let (words, rest) = S::as_simd_u32s(words);
    let scales = S::as_simd_f32s(scales).0;
    let mut rows = [&[][..]; M];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = S::as_simd_f32s(&x[i * step..][..step]).0.as_chunks::<EACH>().0;
    }
    // An integer below 2²³ in the fraction of 2²³ is the sum of both. Half of a word has 16 bits, so any of its integers is one at its
    // place, times a power of two.
    let exponent = simd.transmute_u32s_f32s(simd.splat_f32s(8_388_608.0));
    let half = simd.splat_u32s(16);
    let mut masks = [half; EACH];
    let mut middles = [simd.splat_f32s(0.0); EACH];
    for j in 0..EACH / 2 {
        masks[j] = simd.splat_u32s(((1 << BITS) - 1) << (BITS * j));
        middles[j] = simd.splat_f32s((8_388_608 + (1u32 << (BITS - 1 + BITS * j))) as f32);
    }
    let mut sums = [simd.splat_f32s(0.0); M];
    let count = words.len() + usize::from(!rest.is_empty());
    for at in 0..count {
        let word = if at < words.len() { words[at] } else { simd.partial_load_u32s(rest) };
        let halves = [word, simd.wrapping_dyn_shr_u32s(word, half)];
        let mut products = [simd.splat_f32s(0.0); M];
        for j in 0..EACH {
            let place = j % (EACH / 2);
            let integer = simd.and_u32s(halves[j / (EACH / 2)], masks[place]);
            let weight = simd.sub_f32s(simd.transmute_f32s_u32s(simd.or_u32s(integer, exponent)), middles[place]);
            // With many rows, to scale the integers is as quick as to scale the sums of a word, and takes half the registers.
            if M > 4 {
                let weight = simd.mul_f32s(weight, scales[at]);
                for i in 0..M {
                    sums[i] = simd.mul_add_e_f32s(weight, rows[i][at][j], sums[i]);
                }
            } else {
                for i in 0..M {
                    products[i] = simd.mul_add_e_f32s(weight, rows[i][at][j], products[i]);
                }
            }
        }
        if M <= 4 {
            for i in 0..M {
                sums[i] = simd.mul_add_e_f32s(products[i], scales[at], sums[i]);
            }
        }
    }
    for i in 0..M {
        out[i] += simd.reduce_sum_f32s(sums[i]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::levels;

    /// Multiplies and compares with plain sums, which are exact here.
    fn check(bits: usize, block: usize, [m, n, depth]: [usize; 3], with_zeros: bool) -> Result<()> {
        let blocks = (depth * bits).div_ceil(32 * block);
        let each = 32 / bits;
        let words: Vec<u32> = (1..=(n * blocks * block) as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let scale = |row: usize, block: usize| [0.5, 1.0, 2.0][(row + 2 * block) % 3];
        let zero = |row: usize, block: usize| match with_zeros {
            true => ((row * 5 + block) % (1 << bits)) as f32,
            false => (1 << (bits - 1)) as f32,
        };
        let read = |of: &(dyn Fn(usize, usize) -> f32 + Sync), row: usize, out: &mut [f32]| {
            out.iter_mut().enumerate().for_each(|(block, out)| *out = of(row, block));
        };
        let (scales, zeros) =
            (|row: usize, out: &mut [f32]| read(&scale, row, out), |row: usize, out: &mut [f32]| read(&zero, row, out));
        let zeros: Option<OfRow> = if with_zeros { Some(&zeros) } else { None };
        let packed = Packed { words: &words, bits, block, blocks, depth, scales: &scales, zeros };
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
                for block in [1, 2, 3, 4, 8, 16] {
                    for sizes in [[1, 1, 1], [1, 37, 70], [4, 5, 128], [7, 33, 257], [2, 16, 1000], [13, 18, 70]] {
                        check(bits, block, sizes, true)?;
                        check(bits, block, sizes, false)?;
                    }
                }
            }
            Ok(())
        })
    }
}
