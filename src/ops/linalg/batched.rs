//! Batched matrix products on an adapter: from the operands if there are few rows or columns, else from panels. `plan.rs` says which.
//!
//! Temporary buffers are small compared with the operands and the result: larger products are computed in blocks.

use std::ops::Range;

use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::error::Result;
use crate::ops::linalg::cooperative;
use crate::ops::linalg::panels::{IndexMap, Pack, Product, Target};
use crate::ops::linalg::plan::{Matrices, Operand, Panels, PanelsOf, Products, Side, Way, way};
use crate::ops::linalg::unpacked::{UnpackedParams, UnpackedVariant};
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::stored::Stored;

/// A batch of matrices in a buffer.
pub(super) struct Factor {
    pub buffer: Buffer,
    pub matrices: Matrices,
}

impl Factor {
    fn stored(&self) -> Stored<'_> {
        let Matrices { offset, dtype, .. } = self.matrices;
        Stored { buffer: &self.buffer, offset, dtype }
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

/// What multiplies panels.
type Multiply<'a> = &'a dyn Fn(Product, [&Buffer; 2], &Buffer, Target) -> Result<Kernel>;

impl BatchedProduct {
    pub fn kernels(&self, gpu: &Gpu, out: &Buffer) -> Result<Vec<Kernel>> {
        self.by(way(gpu, &self.products())?, gpu, out)
    }

    fn products(&self) -> Products {
        let &BatchedProduct { batch, m, k, n, ref a, ref b } = self;
        Products { batch, m, k, n, a: a.matrices, b: b.matrices }
    }

    /// Returns the kernels of one way.
    fn by(&self, way: Way, gpu: &Gpu, out: &Buffer) -> Result<Vec<Kernel>> {
        match way {
            Way::Cooperative(variant, panels) => {
                self.in_panels(gpu, &panels, &|product, of, out, to| product.of_halves(variant, of, None, out, to), out)
            }
            Way::Unpacked(variant, params) => self.unpacked(gpu, variant, params, out),
            Way::Panels(panels) => {
                self.in_panels(gpu, &panels, &|product, of, out, to| product.kernel(gpu, of, None, out, to), out)
            }
        }
    }

    /// Returns the kernels without panels.
    fn unpacked(
        &self,
        gpu: &Gpu,
        variant: &UnpackedVariant,
        params: UnpackedParams,
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let &BatchedProduct { batch, m, n, ref a, ref b, .. } = self;
        let partial = if params.parts == 1 { out.clone() } else { gpu.alloc(params.count)? };
        let mut kernels = vec![params.kernel(variant, [a.stored(), b.stored()], &partial)];
        if params.parts > 1 {
            kernels.extend(sum_parts(gpu, &partial, [batch, params.parts, m * n], out)?);
        }
        Ok(kernels)
    }

    /// Returns the kernel that writes panels of `depth` steps. Steps beyond `k` are padding.
    fn pack(
        &self,
        gpu: &Gpu,
        side: &Side,
        [across, k]: [&Range<usize>; 2],
        depth: usize,
        z: Range<usize>,
        panels: &Buffer,
    ) -> Result<Kernel> {
        let factor = match side.operand {
            Operand::A => &self.a,
            Operand::B => &self.b,
        };
        let across_count = across.len();
        let (k_map, j_map) = (IndexMap::even(k.len(), side.k_step), IndexMap::even(across_count, side.step));
        let pack = Pack { width: side.width, depth, across: across_count, k: k_map, j: j_map };
        let from = factor.stored().after(across.start * side.step + k.start * side.k_step);
        let batch = (factor.matrices.z, z);
        match side.of {
            PanelsOf::Floats => pack.batch(gpu, from, batch, panels),
            PanelsOf::Halves => Ok(cooperative::pack(&pack, k.len(), from, batch, panels)),
        }
    }

    /// Returns the kernels with panels.
    fn in_panels(&self, gpu: &Gpu, panels: &Panels, multiply: Multiply, out: &Buffer) -> Result<Vec<Kernel>> {
        let &BatchedProduct { batch, m, k, n, .. } = self;
        let &Panels { ref sides, splits, kernel_splits, depth, z_block } = panels;
        let products = self.products();
        let distinct = sides.each_ref().map(|side| products.distinct(side));
        let partial = if splits == 1 { out.clone() } else { gpu.alloc(batch * splits * m * n)? };
        let sizes = sides.each_ref().map(|side| side.words_at_a_time(depth));
        let counts = distinct.map(|count| if count == 1 { 1 } else { z_block });
        let panels = [gpu.alloc(sizes[0] * counts[0])?, gpu.alloc(sizes[1] * counts[1])?];
        let mut kernels = Vec::new();
        for z in (0..batch).step_by(z_block).map(|first| first..batch.min(first + z_block)) {
            for (part, first) in (0..k).step_by(depth).enumerate() {
                let k_range = first..k.min(first + depth);
                // Panels of halves have whole fragments.
                let deep = match sides[0].of {
                    PanelsOf::Floats => k_range.len(),
                    PanelsOf::Halves => depth,
                };
                let z_of = |i: usize| if distinct[i] == 1 { 0..1 } else { z.clone() };
                for columns in sides[1].blocks() {
                    kernels.push(self.pack(gpu, &sides[1], [&columns, &k_range], deep, z_of(1), &panels[1])?);
                    for rows in sides[0].blocks() {
                        kernels.push(self.pack(gpu, &sides[0], [&rows, &k_range], deep, z_of(0), &panels[0])?);
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
                        kernels.push(multiply(product, panels.each_ref(), &partial, to)?);
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
    use crate::dtype::DType;
    use crate::ops::linalg::cooperative::HalfVariant;
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
        let matrices = Matrices { dtype, offset: 0, z, row: 1, column: m };
        let a_side = Factor { buffer: left, matrices };
        let z = IndexMap::even(BATCH, 0);
        let matrices = Matrices { dtype, offset: 1, z, row: n, column: 1 };
        let b_side = Factor { buffer: right, matrices };
        let product = BatchedProduct { batch: BATCH, m, k, n, a: a_side, b: b_side };
        for budget in [1 << 22, 1 << 12] {
            let out = gpu.upload(&vec![f32::NAN.to_bits(); BATCH * m * n])?;
            let panels = product.products().in_panels(gpu, PanelsOf::Halves, budget);
            for kernel in product.by(Way::Cooperative(variant, panels), gpu, &out)? {
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
