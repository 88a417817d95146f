//! Batched matrix products on an adapter: from the operands if there are few rows or columns, else from panels.
//!
//! Temporary buffers are small compared with the operands and the result: larger products are computed in blocks.

use std::ops::Range;

use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::choices::{FEW, Sizes};
use crate::ops::linalg::cooperative::{self, HalfVariant};
use crate::ops::linalg::matmul_variants;
use crate::ops::linalg::panels::{A_WIDTH, B_WIDTH, IndexMap, MAX_DEPTH, MAX_SOFTWARE_DEPTH, Pack, Product, Target};
use crate::ops::linalg::unpacked::{self, UnpackedParams, UnpackedVariant, Way};
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::stored::Stored;
use crate::ops::variants;

/// The number of products that one invocation of the direct kernel adds up.
const PART: usize = 256;
/// The number of elements of panels that is always allowed: if panels are read often, and if they are not.
pub(in crate::ops) const OFTEN: usize = 8 << 20;
const SELDOM: usize = 256 << 10;

/// A batch of matrices in a buffer.
pub(super) struct Factor {
    pub buffer: Buffer,
    pub dtype: DType,
    pub offset: usize,
    pub z: IndexMap,
    /// The distances from one row to the next, and from one column to the next.
    pub row: usize,
    pub column: usize,
}

impl Factor {
    fn stored(&self) -> Stored<'_> {
        Stored { buffer: &self.buffer, offset: self.offset, dtype: self.dtype }
    }

    /// Returns the number of different matrices in the batch: 1 if all elements share one matrix.
    fn distinct(&self, batch: usize) -> usize {
        if self.z.step == 0 && self.z.outer == 0 { 1 } else { batch }
    }
}

/// `[batch, m, k] · [batch, k, n] → [batch, m, n]`, with k > 0.
pub(super) struct BatchedProduct {
    pub batch: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: Factor,
    pub b: Factor,
}

/// One operand that is to be packed into panels.
struct Side<'a> {
    factor: &'a Factor,
    width: usize,
    across: usize,
    /// The distances from one index across to the next, from one k to the next, and from one index across to the next
    /// in the result.
    step: usize,
    k_step: usize,
    out_step: usize,
    /// The number of indices across in a block.
    block: usize,
    /// Whether the panels are those of cooperative matrices, of f16.
    cooperative: bool,
}

impl Side<'_> {
    fn padded(&self) -> usize {
        self.across.next_multiple_of(self.width)
    }

    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (across, block) = (self.across, self.block);
        (0..across).step_by(block).map(move |first| first..across.min(first + block))
    }

    /// Returns the words of the panels of one operand.
    fn words(&self, depth: usize, across: usize) -> usize {
        let size = Pack::size(self.width, depth, across);
        if self.cooperative { size / 2 } else { size }
    }

    /// Returns the kernel that writes panels of `depth` steps, of which those of `k` are not padding.
    fn pack(&self, across: &Range<usize>, k: &Range<usize>, depth: usize, z: Range<usize>, panels: &Buffer) -> Kernel {
        let across_count = across.len();
        let (k_map, j_map) = (IndexMap::even(k.len(), self.k_step), IndexMap::even(across_count, self.step));
        let pack = Pack { width: self.width, depth, across: across_count, k: k_map, j: j_map };
        let from = self.factor.stored().after(across.start * self.step + k.start * self.k_step);
        let batch = (self.factor.z, z);
        if self.cooperative {
            cooperative::pack(&pack, k.len(), from, batch, panels)
        } else {
            pack.batch(from, batch, panels)
        }
    }
}

impl BatchedProduct {
    pub fn kernels(&self, gpu: &Gpu, out: &Buffer) -> Result<Vec<Kernel>> {
        let &BatchedProduct { batch, m, k, n, ref a, ref b } = self;
        let halves = [a.dtype, b.dtype] == [DType::F16; 2];
        let cooperative = if halves { cooperative::chosen(gpu, &cooperative::FAMILY, [m, k, n])? } else { None };
        let sides = self.sides(cooperative.is_some());
        // Saturating, because the elements of shared operands take no memory, and their number may overflow.
        let depth = k.saturating_mul(batch);
        let panels = depth.saturating_mul(sides.iter().map(Side::padded).sum());
        let operands = k.saturating_mul(m * self.a.distinct(batch) + n * self.b.distinct(batch));
        let tenth = operands.saturating_add(batch * m * n) / 10;
        let variant = unpacked::chosen(gpu, &self.params(), [a.dtype, b.dtype])?;
        let padding = panels / 2 > depth.saturating_mul(m + n) && panels > SELDOM;
        let tiled = variant.way.suits_many() && !variants::asked_for(&matmul_variants::FAMILY);
        if cooperative.is_none() && (m.min(n) <= FEW || padding || tiled) {
            return self.unpacked(gpu, variant, tenth.max(SELDOM), out);
        }
        let floor = if m.min(n) >= B_WIDTH { OFTEN } else { SELDOM };
        // Panels are bound whole.
        let budget = floor.max(tenth).min(gpu.largest_binding() / 2);
        self.in_panels(gpu, sides, cooperative, budget, out)
    }

    /// Returns the params of a product without panels, with whole sums.
    fn params(&self) -> UnpackedParams {
        let &BatchedProduct { batch, m, k, n, ref a, ref b } = self;
        UnpackedParams {
            count: batch * m * n,
            m,
            n,
            k,
            parts: 1,
            length: k,
            a_offset: a.offset,
            a_row: a.row,
            a_column: a.column,
            a_z: a.z.param(),
            b_offset: b.offset,
            b_row: b.row,
            b_column: b.column,
            b_z: b.z.param(),
        }
    }

    /// Returns the left operand, in narrow panels, and the right operand, in wide panels. The operands are exchanged if
    /// that saves much padding; the result is then written transposed. Panels of cooperative matrices have one width.
    fn sides(&self, cooperative: bool) -> [Side<'_>; 2] {
        let (a, b) = (&self.a, &self.b);
        let side = |factor, width, across, step, k_step, out_step| Side {
            factor,
            width,
            across,
            step,
            k_step,
            out_step,
            block: across,
            cooperative,
        };
        let of_a = |width| side(a, width, self.m, a.row, a.column, self.n);
        let of_b = |width| side(b, width, self.n, b.column, b.row, 1);
        if cooperative {
            return [of_a(cooperative::WIDTH), of_b(cooperative::WIDTH)];
        }
        let padding = |left: Side, right: Side| left.padded() + right.padded();
        let (plain, exchanged) = (padding(of_a(A_WIDTH), of_b(B_WIDTH)), padding(of_b(A_WIDTH), of_a(B_WIDTH)));
        if exchanged * 5 < plain * 4 { [of_b(A_WIDTH), of_a(B_WIDTH)] } else { [of_a(A_WIDTH), of_b(B_WIDTH)] }
    }

    /// Returns the kernels without panels. Long sums are split into parts, of at most about `budget` elements.
    fn unpacked(&self, gpu: &Gpu, variant: &UnpackedVariant, budget: usize, out: &Buffer) -> Result<Vec<Kernel>> {
        let &BatchedProduct { batch, m, k, n, ref a, ref b } = self;
        let whole = self.params();
        let wanted = match variant.way {
            Way::Direct => k.div_ceil(PART),
            Way::Dots => whole.sizes().parts_of_dots(k),
            Way::Strided => whole.sizes().parts(k),
            Way::Shared => 1,
        };
        let most = budget / whole.count.max(1);
        let params = whole.in_parts(wanted.min(most).max(k.div_ceil(MAX_DEPTH)));
        let partial = if params.parts == 1 { out.clone() } else { gpu.alloc(params.count)? };
        let mut kernels = vec![params.kernel(variant, [a.stored(), b.stored()], &partial)];
        if params.parts > 1 {
            kernels.extend(sum_parts(gpu, &partial, [batch, params.parts, m * n], out)?);
        }
        Ok(kernels)
    }

    /// Returns the kernels with panels of at most about `budget` words, multiplied by a variant of cooperative matrices or by
    /// one that is chosen here.
    fn in_panels(
        &self,
        gpu: &Gpu,
        mut sides: [Side; 2],
        cooperative: Option<&'static HalfVariant>,
        budget: usize,
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let &BatchedProduct { batch, m, k, n, .. } = self;
        let distinct = sides.each_ref().map(|side| side.factor.distinct(batch));
        let whole: usize = sides.iter().zip(distinct).map(|(side, count)| side.words(k, side.across) * count).sum();
        // Long sums are split into parts: all in one kernel, or one kernel each if the panels would be too large. Hardware
        // also splits the sums of few tiles.
        let in_blocks = whole > budget;
        let most = if in_blocks || gpu.caps().software { 1 } else { (budget - whole) / (batch * m * n).max(1) };
        let wanted = Sizes { m, n, batch }.parts(k).min(most);
        let steps = if cooperative.is_some() { cooperative::STEPS } else { 1 };
        let deepest = if gpu.caps().software { MAX_SOFTWARE_DEPTH } else { MAX_DEPTH };
        let part = k.div_ceil(wanted.max(k.div_ceil(deepest))).next_multiple_of(steps);
        let splits = k.div_ceil(part);
        // With cooperative matrices, every part has whole fragments.
        let (depth, kernel_splits) = match cooperative {
            _ if in_blocks => (part, 1),
            Some(_) => (part * splits, splits),
            None => (k, splits),
        };
        let mut z_block = batch;
        if in_blocks {
            let elements = if cooperative.is_some() { 2 * budget } else { budget };
            let widths = sides.each_ref().map(|side| side.width);
            let most = (elements / depth).max(widths[0] + widths[1]);
            let [left, right] = sides.each_ref().map(Side::padded);
            z_block = (most / (left + right)).clamp(1, batch);
            if left + right > most {
                let small = left.min(right).min(most / 2);
                let [l, r] = if left < right { [small, most - small] } else { [most - small, small] };
                sides[0].block = (l / widths[0]).max(1) * widths[0];
                sides[1].block = (r / widths[1]).max(1) * widths[1];
            }
        }
        let partial = if splits == 1 { out.clone() } else { gpu.alloc(batch * splits * m * n)? };
        let sizes = [0, 1].map(|i| sides[i].words(depth, sides[i].block.min(sides[i].padded())));
        let counts = distinct.map(|count| if count == 1 { 1 } else { z_block });
        let panels = [gpu.alloc(sizes[0] * counts[0])?, gpu.alloc(sizes[1] * counts[1])?];
        let mut kernels = Vec::new();
        for z in (0..batch).step_by(z_block).map(|first| first..batch.min(first + z_block)) {
            for (part, first) in (0..k).step_by(depth).enumerate() {
                let k_range = first..k.min(first + depth);
                let deep = if cooperative.is_some() { depth } else { k_range.len() };
                let z_of = |i: usize| if distinct[i] == 1 { 0..1 } else { z.clone() };
                for columns in sides[1].blocks() {
                    kernels.push(sides[1].pack(&columns, &k_range, deep, z_of(1), &panels[1]));
                    for rows in sides[0].blocks() {
                        kernels.push(sides[0].pack(&rows, &k_range, deep, z_of(0), &panels[0]));
                        let step = |i: usize, across: usize| match distinct[i] {
                            1 => 0,
                            _ => sides[i].words(deep, across),
                        };
                        let product = Product {
                            m: rows.len(),
                            k: deep,
                            n: columns.len(),
                            batch: z.len(),
                            splits: kernel_splits,
                            steps: [step(0, rows.len()), step(1, columns.len())],
                        };
                        let start = rows.start * sides[0].out_step + columns.start * sides[1].out_step;
                        let offset = z.start * splits * m * n + part * m * n + start;
                        let batch_step = splits / kernel_splits * m * n;
                        let (row, column) = (sides[0].out_step, sides[1].out_step);
                        let (inner, outer) = if column == 1 { (n, 0) } else { (1, column) };
                        let to = Target { offset, batch: batch_step, row, inner, outer };
                        let panels = panels.each_ref();
                        kernels.push(match cooperative {
                            Some(variant) => product.of_halves(variant, panels, None, &partial, to)?,
                            None => product.kernel(gpu, panels, None, &partial, to)?,
                        });
                    }
                }
            }
        }
        if splits > 1 {
            kernels.extend(sum_parts(gpu, &partial, [batch, splits, m * n], out)?);
        }
        Ok(kernels)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ops::linalg::matmul_variants::numbers;
    use crate::ops::stored::words;

    /// Multiplies a batch of f16 by a variant of cooperative matrices, in one pass and in small blocks, and compares the results
    /// with the host. Describes the first wrong element.
    pub fn compare_cooperative(
        gpu: &Gpu,
        variant: &'static HalfVariant,
        [m, k, n]: [usize; 3],
    ) -> Result<Option<String>> {
        const BATCH: usize = 2;
        // The left operand is transposed, and the right one begins in the middle of a word; all share it.
        let (mut a, mut b) = (numbers(BATCH * m * k, 1), numbers(k * n + 1, 2));
        let (left, right) = (gpu.upload(&words(&mut a, DType::F16))?, gpu.upload(&words(&mut b, DType::F16))?);
        let dtype = DType::F16;
        let z = IndexMap::even(BATCH, m * k);
        let a_side = Factor { buffer: left, dtype, offset: 0, z, row: 1, column: m };
        let z = IndexMap::even(BATCH, 0);
        let b_side = Factor { buffer: right, dtype, offset: 1, z, row: n, column: 1 };
        let product = BatchedProduct { batch: BATCH, m, k, n, a: a_side, b: b_side };
        for budget in [1 << 22, 1 << 12] {
            let out = gpu.upload(&vec![f32::NAN.to_bits(); BATCH * m * n])?;
            for kernel in product.in_panels(gpu, product.sides(true), Some(variant), budget, &out)? {
                gpu.run(kernel)?;
            }
            for (at, got) in gpu.download(&out, 0, BATCH * m * n)?.into_iter().map(f32::from_bits).enumerate() {
                let (z, i, j) = (at / (m * n), at / n % m, at % n);
                let expected: f32 = (0..k).map(|k_at| a[(z * k + k_at) * m + i] * b[1 + k_at * n + j]).sum();
                let close = (got - expected).abs() <= 1e-3; // false for NaN
                if !close {
                    return Ok(Some(format!("{m} × {k} × {n}, element {at}: got {got}, expected {expected}")));
                }
            }
        }
        Ok(None)
    }
}
