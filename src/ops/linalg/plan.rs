//! Which way computes a batch of matrix products on an adapter: [`way`], by the sizes, by where the operands lie, by their types,
//! and by what the adapter has.
//!
//! On hardware (discrete and integrated GPUs; their limits of size are estimates from what the compiler for AMD makes of the
//! kernels, and were never timed):
//!
//! | product `[m, k] · [k, n]`, of a batch | variant |
//! |---|---|
//! | f16 only, with `FEWEST_COOPERATIVE` rows, columns and steps of k, before all others: where the adapter has cooperative matrices | `matmul_cooperative/cooperative_16`, `_8` |
//! | at most [`FEW`] rows or columns, and the other operand has neighbouring steps of k side by side, at least [`SHORTEST_DOTS`] | `matmul_unpacked/dots` |
//! | other products with at most [`FEW`] rows or columns, or whose panels would be mostly padding | `matmul_unpacked/direct` |
//! | [`FEWEST_STRIDED`] to [`MOST_STRIDED`] rows or columns, and in each operand neighbours side by side in one direction | `matmul_unpacked/strided`, and with fewer than [`ENOUGH`] tiles of 64 × 64 and at least [`SHORTEST_SLICES`] steps of k `matmul_unpacked/slices` |
//! | [`ENOUGH`] tiles of 128 × 128, with little padding | `matmul/blocks_128` |
//! | [`ENOUGH`] tiles of 64 × 64 | `matmul/blocks_64` |
//! | fewer than [`FEW_TILES`] tiles of 64 × 64 | `matmul/tiles_32` |
//! | others | `matmul/tiles` |
//!
//! Sums of products in panels are split into [`Sizes::parts`] before this, if there are few tiles.
//!
//! On software adapters, products run as `matmul_unpacked/direct` if they have few rows or columns, else as
//! `matmul/subgroups` on lavapipe and as `matmul/panels` on others. On lavapipe, products of f32 with up to [`MOST_SHARED`] rows
//! or columns, and with neighbours side by side in one direction of each operand, run as `matmul_unpacked/shared`. The other
//! variants run there where the op table asks for them. A variant that was wrong in its trial runs nowhere: the next one does.

use std::ops::Range;

use crate::dtype::DType;
use crate::error::Result;
use crate::ops::linalg::cooperative::{self, HalfVariant};
use crate::ops::linalg::matmul_variants;
use crate::ops::linalg::pack_variants;
use crate::ops::linalg::panels::{A_WIDTH, B_WIDTH, IndexMap, MAX_DEPTH, MAX_SOFTWARE_DEPTH, Pack};
use crate::ops::linalg::unpacked::{self, UnpackedParams, UnpackedVariant};
use crate::ops::tiling::{ENOUGH, FEWEST_STEPS, Sizes};
use crate::ops::variants::{self, Adapter};

/// The most rows or columns of a product that never uses panels.
pub(super) const FEW: usize = 4;

/// The fewest steps for which a workgroup computes single elements.
const SHORTEST_DOTS: usize = 128;

/// The fewest and the most rows or columns for tiles that are read from the operands: with more, an element is read so often
/// that panels are worth it.
const MOST_STRIDED: usize = 256;
const FEWEST_STRIDED: usize = 17;

/// The fewest steps of k that are worth several invocations for each element: each has at least sixteen steps.
const SHORTEST_SLICES: usize = 64;

/// On software adapters, the most rows or columns for products that share loads and read the operands where they are: with
/// more, reading from panels is faster on newer drivers.
const MOST_SHARED: usize = 448;

/// Fewer workgroups of 256 invocations than these leave some processors of a large card without any: navi31 has 96.
const FEW_TILES: usize = 96;

/// The number of products that one invocation of the direct kernel adds up.
const PART: usize = 256;

/// The number of elements of panels that is always allowed: if panels are read often, and if they are not.
pub(in crate::ops) const OFTEN: usize = 8 << 20;
const SELDOM: usize = 256 << 10;

/// The ways to compute a batch of products.
#[derive(Debug)]
pub(super) enum Way {
    /// A variant of cooperative matrices multiplies panels of halves (`cooperative.rs`).
    Cooperative(&'static HalfVariant, Panels),
    /// A variant reads the operands where they lie (`unpacked.rs`). The params say in how many parts the sums are.
    Unpacked(&'static UnpackedVariant, UnpackedParams),
    /// Panels of f32, which the variant of `matmul_variants.rs` multiplies that is the fastest for what is in memory at a time.
    Panels(Panels),
}

/// A batch of matrices, where they lie in a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrices {
    pub dtype: DType,
    pub offset: usize,
    pub z: IndexMap,
    /// The distances from one row to the next, and from one column to the next.
    pub row: usize,
    pub column: usize,
}

impl Matrices {
    /// Returns the number of different matrices in the batch: 1 if all elements share one matrix.
    pub fn distinct(&self, batch: usize) -> usize {
        if self.z.step == 0 && self.z.outer == 0 { 1 } else { batch }
    }
}

/// `[batch, m, k] · [batch, k, n] → [batch, m, n]`, with k > 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Products {
    pub batch: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: Matrices,
    pub b: Matrices,
}

/// Which of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    A,
    B,
}

/// The elements of panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PanelsOf {
    Floats,
    /// Of f16, for cooperative matrices.
    Halves,
}

/// One operand that is to be packed into panels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    pub operand: Operand,
    pub of: PanelsOf,
    pub width: usize,
    pub across: usize,
    /// The distances from one index across to the next, from one k to the next, and from one index across to the next
    /// in the result.
    pub step: usize,
    pub k_step: usize,
    pub out_step: usize,
    /// The number of indices across in a block.
    pub block: usize,
}

impl Side {
    fn padded(&self) -> usize {
        self.across.next_multiple_of(self.width)
    }

    /// Returns the indices across of each block.
    pub fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Side { across, block, .. } = *self;
        (0..across).step_by(block).map(move |first| first..across.min(first + block))
    }

    /// Returns the words of the panels of one matrix.
    pub fn words(&self, depth: usize, across: usize) -> usize {
        let size = Pack::size(self.width, depth, across);
        match self.of {
            PanelsOf::Floats => size,
            PanelsOf::Halves => size / 2,
        }
    }

    /// Returns the words of the panels that are in memory at a time, of one matrix.
    pub fn words_at_a_time(&self, depth: usize) -> usize {
        self.words(depth, self.block.min(self.padded()))
    }
}

/// The operands in panels, and what is in memory at a time.
#[derive(Clone, Debug)]
pub(super) struct Panels {
    /// The left operand of the kernels, and the right one.
    pub sides: [Side; 2],
    /// The parts of each sum, and the parts that one kernel computes: all of them or one.
    pub splits: usize,
    pub kernel_splits: usize,
    /// The steps of k that are in panels at a time.
    pub depth: usize,
    /// The elements of the batch at a time.
    pub z_block: usize,
}

/// Returns the way to compute a batch of products.
///
/// # Errors
///
/// The errors of the trials of variants.
pub(super) fn way(device: &impl Adapter, products: &Products) -> Result<Way> {
    let &Products { m, k, n, a, b, .. } = products;
    let (halves, budget) = ([a.dtype, b.dtype] == [DType::F16; 2], products.most_in_panels(device));
    let cooperative = if halves { cooperative::chosen(device, &cooperative::FAMILY, [m, k, n])? } else { None };
    if let Some(variant) = cooperative {
        return Ok(Way::Cooperative(variant, products.in_panels(device, PanelsOf::Halves, budget)));
    }
    let variant = unpacked::chosen(device, &products.unpacked(), [a.dtype, b.dtype])?;
    let panels_asked_for = variants::asked_for(&matmul_variants::FAMILY) || variants::asked_for(&pack_variants::FAMILY);
    let tiled = variant.way.suits_many() && !panels_asked_for;
    if m.min(n) <= FEW || products.panels_are_padding() || tiled {
        return Ok(Way::Unpacked(variant, products.unpacked_in_parts(variant)));
    }
    Ok(Way::Panels(products.in_panels(device, PanelsOf::Floats, budget)))
}

impl Products {
    /// Returns a tenth of the elements of the operands and the result.
    fn tenth(&self) -> usize {
        let &Products { batch, m, k, n, ref a, ref b } = self;
        // Saturating, because the elements of shared operands take no memory, and their number may overflow.
        let operands = k.saturating_mul(m * a.distinct(batch) + n * b.distinct(batch));
        operands.saturating_add(batch * m * n) / 10
    }

    /// Returns the most words of panels.
    fn most_in_panels(&self, device: &impl Adapter) -> usize {
        let floor = if self.m.min(self.n) >= B_WIDTH { OFTEN } else { SELDOM };
        // Panels are bound whole.
        floor.max(self.tenth()).min(device.largest_binding() / 2)
    }

    /// Returns whether most of the panels of f32 would be padding.
    fn panels_are_padding(&self) -> bool {
        let &Products { batch, m, k, n, .. } = self;
        let depth = k.saturating_mul(batch);
        let panels = depth.saturating_mul(self.sides(PanelsOf::Floats).iter().map(Side::padded).sum());
        panels / 2 > depth.saturating_mul(m + n) && panels > SELDOM
    }

    /// Returns the params of a product without panels, with whole sums.
    fn unpacked(&self) -> UnpackedParams {
        let &Products { batch, m, k, n, ref a, ref b } = self;
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

    /// Returns the same with long sums in parts, if those have not many more elements than the operands.
    fn unpacked_in_parts(&self, variant: &UnpackedVariant) -> UnpackedParams {
        let (whole, k) = (self.unpacked(), self.k);
        let wanted = match variant.way {
            unpacked::Way::Direct => k.div_ceil(PART),
            unpacked::Way::Dots => whole.sizes().parts_of_dots(k),
            unpacked::Way::Strided => whole.sizes().parts(k),
            unpacked::Way::Shared => 1,
        };
        let most = self.tenth().max(SELDOM) / whole.count.max(1);
        whole.in_parts(wanted.min(most).max(k.div_ceil(MAX_DEPTH)))
    }

    /// Returns the left operand, in narrow panels, and the right operand, in wide panels. The operands are exchanged if
    /// that saves much padding; the result is then written transposed. Panels of halves have one width.
    fn sides(&self, of: PanelsOf) -> [Side; 2] {
        let (a, b) = (&self.a, &self.b);
        let of_a = |width| Side {
            operand: Operand::A,
            of,
            width,
            across: self.m,
            step: a.row,
            k_step: a.column,
            out_step: self.n,
            block: self.m,
        };
        let of_b = |width| Side {
            operand: Operand::B,
            of,
            width,
            across: self.n,
            step: b.column,
            k_step: b.row,
            out_step: 1,
            block: self.n,
        };
        if of == PanelsOf::Halves {
            return [of_a(cooperative::WIDTH), of_b(cooperative::WIDTH)];
        }
        let padding = |left: Side, right: Side| left.padded() + right.padded();
        let (plain, exchanged) = (padding(of_a(A_WIDTH), of_b(B_WIDTH)), padding(of_b(A_WIDTH), of_a(B_WIDTH)));
        if exchanged * 5 < plain * 4 { [of_b(A_WIDTH), of_a(B_WIDTH)] } else { [of_a(A_WIDTH), of_b(B_WIDTH)] }
    }

    /// Returns the number of different matrices of a side.
    pub fn distinct(&self, side: &Side) -> usize {
        match side.operand {
            Operand::A => self.a.distinct(self.batch),
            Operand::B => self.b.distinct(self.batch),
        }
    }

    /// Returns the operands in panels of at most about `budget` words.
    pub fn in_panels(&self, device: &impl Adapter, of: PanelsOf, budget: usize) -> Panels {
        let &Products { batch, m, k, n, .. } = self;
        let mut sides = self.sides(of);
        let whole: usize = sides.iter().map(|side| side.words(k, side.across) * self.distinct(side)).sum();
        // Long sums are split into parts: all in one kernel, or one kernel each if the panels would be too large. Hardware
        // also splits the sums of few tiles.
        let in_blocks = whole > budget;
        let software = device.caps().software;
        let most = if in_blocks || software { 1 } else { (budget - whole) / (batch * m * n).max(1) };
        let wanted = Sizes { m, n, batch }.parts(k).min(most);
        let (steps, elements_of_word) = match of {
            PanelsOf::Floats => (1, 1),
            PanelsOf::Halves => (cooperative::STEPS, 2),
        };
        let deepest = if software { MAX_SOFTWARE_DEPTH } else { MAX_DEPTH };
        let part = k.div_ceil(wanted.max(k.div_ceil(deepest))).next_multiple_of(steps);
        let splits = k.div_ceil(part);
        // With cooperative matrices, every part has whole fragments.
        let (depth, kernel_splits) = match of {
            _ if in_blocks => (part, 1),
            PanelsOf::Halves => (part * splits, splits),
            PanelsOf::Floats => (k, splits),
        };
        let mut z_block = batch;
        if in_blocks {
            let widths = sides.map(|side| side.width);
            let most = (elements_of_word * budget / depth).max(widths[0] + widths[1]);
            let [left, right] = sides.map(|side| side.padded());
            z_block = (most / (left + right)).clamp(1, batch);
            if left + right > most {
                let small = left.min(right).min(most / 2);
                let [l, r] = if left < right { [small, most - small] } else { [most - small, small] };
                sides[0].block = (l / widths[0]).max(1) * widths[0];
                sides[1].block = (r / widths[1]).max(1) * widths[1];
            }
        }
        Panels { sides, splits, kernel_splits, depth, z_block }
    }
}

/// The sizes that variants of products are for.
impl Sizes {
    /// Returns whether a product has few rows or columns, and sums long enough for whole workgroups.
    pub fn suit_dots(self, depth: usize) -> bool {
        self.m.min(self.n) <= FEW && depth >= SHORTEST_DOTS
    }

    /// Returns into how many parts such sums are split.
    fn parts_of_dots(self, depth: usize) -> usize {
        let lines = self.m.max(self.n).saturating_mul(self.batch);
        (4 * ENOUGH / lines.max(1)).min(depth / (4 * FEWEST_STEPS)).max(1)
    }

    /// Returns whether tiles are read from the operands, if those lie well for it.
    pub fn suit_strided(self) -> bool {
        (FEWEST_STRIDED..=MOST_STRIDED).contains(&self.m.min(self.n))
    }

    /// Returns whether several invocations add up each element of such tiles: if they are few, and the sums are long.
    pub fn suit_slices(self, depth: usize) -> bool {
        self.suit_strided() && self.tiles(64, 64) < ENOUGH && depth >= SHORTEST_SLICES
    }

    /// Returns whether products that share loads read the operands, if those lie well for it.
    pub fn suit_shared(self) -> bool {
        (FEW + 1..=MOST_SHARED).contains(&self.m.min(self.n))
    }

    pub fn suit_64(self) -> bool {
        self.tiles(64, 64) >= ENOUGH
    }

    /// Returns whether tiles of 32 × 32 occupy more processors than larger ones.
    pub fn suit_32(self) -> bool {
        self.tiles(64, 64) < FEW_TILES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gpu::Caps;
    use crate::ops::linalg::panels::{Product, Target};
    use crate::ops::variants::classes::{HARDWARE, LAVAPIPE, SWIFTSHADER, WITH_COOPERATIVE};

    /// Returns dense operands of one type. With [`F32_T`] and [`F16_T`], the right operand's steps of k lie side by
    /// side.
    fn products(of: (DType, bool), [batch, m, k, n]: [usize; 4]) -> Products {
        let (dtype, transposed) = of;
        let [row, column] = if transposed { [1, k] } else { [n, 1] };
        let a = Matrices { dtype, offset: 0, z: IndexMap::even(batch, m * k), row: k, column: 1 };
        let b = Matrices { dtype, offset: 0, z: IndexMap::even(batch, k * n), row, column };
        Products { batch, m, k, n, a, b }
    }

    const F32: (DType, bool) = (DType::F32, false);
    const F32_T: (DType, bool) = (DType::F32, true);
    const F16: (DType, bool) = (DType::F16, false);
    const F16_T: (DType, bool) = (DType::F16, true);
    const BF16: (DType, bool) = (DType::BF16, false);

    /// Returns a way as the tables say it: the variant, the parts of sums, and whether operands are exchanged or in blocks.
    fn described(device: &Caps, products: &Products) -> String {
        let parts = |parts: usize| if parts == 1 { String::new() } else { format!(", {parts} parts") };
        let how = |panels: &Panels| {
            let exchanged = if panels.sides[0].operand == Operand::A { "" } else { ", exchanged" };
            let whole = panels.sides.iter().all(|side| side.block >= side.across) && panels.z_block == products.batch;
            format!("{}{exchanged}{}", parts(panels.splits), if whole { "" } else { ", blocks" })
        };
        match way(device, products).expect("a way") {
            Way::Cooperative(variant, panels) => format!("{}{}", variant.name, how(&panels)),
            Way::Unpacked(variant, params) => format!("unpacked/{}{}", variant.name, parts(params.parts)),
            Way::Panels(panels) => {
                let &Panels { ref sides, kernel_splits, depth, z_block, .. } = &panels;
                let [m, n] = sides.map(|side| side.block.min(side.across));
                let product = Product { m, k: depth, n, batch: z_block, splits: kernel_splits, steps: [0; 2] };
                let to = Target { offset: 0, batch: 0, row: n, inner: n, outer: 0 };
                let params = product.sized(to).expect("a product of one pass");
                let variant = device.chosen(&matmul_variants::FAMILY, &params).expect("one for all sizes");
                format!("panels/{}{}", variant.name, how(&panels))
            }
        }
    }

    /// Types of the operands, `[batch, m, k, n]` → the way.
    type Row = ((DType, bool), [usize; 4], &'static str);

    fn check(device: &Caps, table: &[Row]) {
        for &(of, sizes, expected) in table {
            assert_eq!(described(device, &products(of, sizes)), expected, "{of:?} {sizes:?}");
        }
    }

    #[test]
    fn the_ways_of_hardware() {
        let table: [Row; 22] = [
            (F32, [1, 1, 1024, 1024], "unpacked/direct, 4 parts"),
            (F32_T, [1, 1, 1024, 1024], "unpacked/dots"),
            (F32, [1, 1024, 1024, 1], "unpacked/dots"),
            (F32, [1, 10, 100000, 3], "unpacked/dots, 76 parts"),
            (F32, [1, 4, 64, 1000], "unpacked/direct"),
            (F32, [10000, 5, 8, 5], "unpacked/direct"),
            (F32, [1, 17, 512, 17], "unpacked/slices, 2 parts"),
            (F32, [1, 1024, 256, 256], "unpacked/slices"),
            (F32, [1, 256, 4096, 4096], "unpacked/strided"),
            (F32, [256, 100, 64, 100], "unpacked/strided"),
            (F32, [1, 64, 300, 10], "panels/tiles_32, exchanged"),
            (F32, [1, 10, 300, 64], "panels/tiles_32"),
            (F32, [1, 300, 300, 300], "panels/tiles_32"),
            (F32, [1, 512, 4096, 512], "panels/blocks_64, 3 parts"),
            (F32, [1, 640, 640, 640], "panels/tiles"),
            (F32, [1, 1024, 1024, 1024], "panels/blocks_64"),
            (F32, [1, 2048, 2048, 2048], "panels/blocks_128"),
            (F32, [16, 512, 512, 512], "panels/blocks_128"),
            (F32, [1, 8192, 8192, 8192], "panels/blocks_64, blocks"),
            (F32, [1, 300, 100000, 300], "panels/tiles_32, 4 parts, blocks"),
            (F16, [1, 512, 512, 512], "panels/tiles, 2 parts"),
            (F16_T, [1, 4, 512, 512], "unpacked/dots"),
        ];
        check(&HARDWARE, &table);
    }

    #[test]
    fn the_ways_of_hardware_with_cooperative_matrices() {
        let table: [Row; 9] = [
            (F32, [1, 512, 512, 512], "panels/tiles, 2 parts"),
            (BF16, [1, 512, 512, 512], "panels/tiles, 2 parts"),
            (F16, [1, 512, 512, 512], "cooperative_16, 2 parts"),
            (F16, [1, 64, 4096, 64], "cooperative_16, 16 parts"),
            (F16, [1, 32, 32, 32], "cooperative_16"),
            (F16, [1, 31, 512, 512], "unpacked/slices, 2 parts"),
            (F16, [1, 512, 31, 512], "panels/tiles_32"),
            (F16, [1, 8192, 8192, 8192], "cooperative_16, blocks"),
            (F16_T, [1, 4, 512, 512], "unpacked/dots"),
        ];
        check(&WITH_COOPERATIVE, &table);
    }

    #[test]
    fn the_ways_of_lavapipe() {
        let table: [Row; 11] = [
            (F32, [1, 1, 1024, 1024], "unpacked/direct, 4 parts"),
            (F32_T, [1, 1, 1024, 1024], "unpacked/direct, 4 parts"),
            (F32, [1, 5, 512, 5], "unpacked/shared"),
            (F32, [1, 448, 448, 448], "unpacked/shared"),
            (F32_T, [1, 64, 512, 4096], "unpacked/shared"),
            (F32, [1, 449, 449, 449], "panels/subgroups"),
            (F32, [1, 64, 20000, 64], "panels/subgroups, 2 parts"),
            (F32, [1, 512, 512, 512], "panels/subgroups"),
            (F16, [1, 64, 512, 64], "panels/subgroups"),
            (F16, [1, 4, 512, 64], "unpacked/direct, 2 parts"),
            (F32, [1, 4096, 4096, 4096], "panels/subgroups, blocks"),
        ];
        check(&LAVAPIPE, &table);
    }

    #[test]
    fn the_ways_of_other_software_adapters() {
        let table: [Row; 5] = [
            (F32, [1, 1, 1024, 1024], "unpacked/direct, 4 parts"),
            (F32, [1, 64, 512, 64], "panels/panels"),
            (F32, [1, 64, 300, 10], "panels/panels, exchanged"),
            (F32, [1, 512, 512, 512], "panels/panels"),
            (F16, [1, 512, 512, 512], "panels/panels"),
        ];
        check(&SWIFTSHADER, &table);
    }

    #[test]
    fn few_rows_split_long_sums() {
        let parts = |m, n, depth| Sizes { m, n, batch: 1 }.parts_of_dots(depth);
        assert_eq!(parts(1, 1, 1 << 20), 768);
        assert_eq!(parts(1, 4096, 4096), 1);
        assert_eq!(parts(1, 10, 4096), 4);
    }
}
