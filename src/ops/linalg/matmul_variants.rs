//! The variants of the matrix product, and the trial of a variant before its first use on a device.

use crate::device::gpu::{AnyFamily, Caps, Family, Gpu, Grid, PUT, Suits, Variant, shader, wgsl};
use crate::error::Result;
use crate::ops::linalg::panels::{A_WIDTH, B_WIDTH, Product, ProductParams, Target, row_tiles};
use crate::ops::tiling::Sizes;

/// The text before the source of each variant, and before the source of convolutions that are products in tiles.
pub(super) const PLACES: &str = wgsl!("linalg/matmul_places");
pub(in crate::ops) const PRODUCT: &str = wgsl!("linalg/matmul_product");
pub(in crate::ops) const TILE_PRODUCT: &str = wgsl!("linalg/tile_product");
pub(in crate::ops) const OF_64: &str = "const ROWS = 8u;\nconst COLUMNS = 8u;\nconst SLICES = 1u;\n";
pub(in crate::ops) const OF_128: &str = "const ROWS = 16u;\nconst COLUMNS = 16u;\nconst SLICES = 1u;\n";
pub(super) const OF_64_IN_SLICES: &str = "const ROWS = 8u;\nconst COLUMNS = 8u;\nconst SLICES = 4u;\n";
/// The text before the source of products whose subgroups share loads.
pub(in crate::ops) const SUBGROUP_SUMS: &str = wgsl!("linalg/subgroup_sums");
pub(super) const SUBGROUP_TILES: &str = wgsl!("linalg/subgroup_tiles");

shader!(SUBGROUPS_SHADER: ProductParams = "linalg/matmul_subgroups", after [PLACES, PRODUCT, PUT, SUBGROUP_SUMS, SUBGROUP_TILES]);
shader!(PANELS_SHADER: ProductParams = "linalg/matmul_panels", after [PLACES, PRODUCT, PUT]);
shader!(TILES_SHADER: ProductParams = "linalg/matmul_tiles", after [PLACES, PRODUCT, PUT, "const SIDE = 16u;\n"]);
shader!(TILES_32_SHADER: ProductParams = "linalg/matmul_tiles" named "matmul_tiles_32", after [PLACES, PRODUCT, PUT, "const SIDE = 8u;\n"]);
shader!(BLOCKS_64_SHADER: ProductParams = "linalg/matmul_blocks" named "matmul_blocks_64", after [PLACES, PRODUCT, PUT, OF_64, TILE_PRODUCT]);
shader!(BLOCKS_128_SHADER: ProductParams = "linalg/matmul_blocks" named "matmul_blocks_128", after [PLACES, PRODUCT, PUT, OF_128, TILE_PRODUCT]);
shader!(pub(in crate::ops) PLAIN_SHADER: ProductParams = "linalg/matmul_plain", after [PLACES, PRODUCT, PUT]);

impl ProductParams {
    pub(super) fn sizes(&self) -> Sizes {
        Sizes { m: self.m, n: self.n, batch: self.z_count }
    }
}

/// One workgroup for each 64 × 64 elements.
const TILED: Grid<ProductParams> = Grid::Workgroups(|p| p.sizes().tiles(64, 64));

/// Subgroups of a workgroup of `subgroup_tiles.wgsl`.
const SUBGROUPS_OF_WORKGROUP: usize = 4;

/// Returns the workgroups of a product with the tiles of `subgroup_tiles.wgsl`.
pub(super) fn workgroups_that_share(sizes: Sizes) -> usize {
    let (panels, _) = row_tiles(sizes.m);
    sizes.tiles(A_WIDTH * panels, B_WIDTH / 2).div_ceil(SUBGROUPS_OF_WORKGROUP)
}

/// How invocations load A, which the kernel must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Loads {
    /// Each invocation, or each workgroup, by itself.
    Own,
    /// The invocations of a subgroup together, for several panels of A: the constant `PANELS`.
    Shared,
}

/// A variant of the product of panels.
pub(in crate::ops) type PanelVariant = Variant<ProductParams, Loads>;

/// Shares the loads of A within a subgroup. It is the first choice on lavapipe, whose subgroups have 8 invocations.
static SUBGROUPS: PanelVariant = Variant {
    name: "subgroups",
    way: Loads::Shared,
    shader: SUBGROUPS_SHADER,
    entry: "matmul_subgroups",
    fits: |caps| caps.software && caps.subgroup == Some(8),
    suits: Suits::All,
    grid: Grid::Workgroups(|p| workgroups_that_share(p.sizes())),
};

/// Uses registers only. It is the fastest variant on other software adapters.
static PANELS: PanelVariant = Variant {
    name: "panels",
    way: Loads::Own,
    shader: PANELS_SHADER,
    entry: "matmul_panels",
    fits: |_| true,
    suits: Suits::All,
    grid: TILED,
};

/// Uses workgroup memory, and 8 × 8 elements for each invocation. [`plan`](super::plan) says for which sizes this
/// and the next variants are.
static BLOCKS_128: PanelVariant = Variant {
    name: "blocks_128",
    way: Loads::Own,
    shader: BLOCKS_128_SHADER,
    entry: "matmul_blocks",
    fits: |caps| caps.max_invocations >= 256 && caps.workgroup_memory >= 8448,
    suits: Suits::Some(|p| p.sizes().suit_128()),
    grid: Grid::Workgroups(|p| p.sizes().tiles(128, 128)),
};

/// As [`BLOCKS_128`], in tiles of 64 × 64.
static BLOCKS_64: PanelVariant = Variant {
    name: "blocks_64",
    way: Loads::Own,
    shader: BLOCKS_64_SHADER,
    entry: "matmul_blocks",
    fits: |caps| caps.max_invocations >= 64 && caps.workgroup_memory >= 4224,
    suits: Suits::Some(|p| p.sizes().suit_64()),
    grid: TILED,
};

/// Uses workgroup memory, and 4 × 4 elements for each invocation, in tiles of 64 × 64.
static TILES: PanelVariant = Variant {
    name: "tiles",
    way: Loads::Own,
    shader: TILES_SHADER,
    entry: "matmul_tiles",
    fits: |caps| caps.max_invocations >= 256 && caps.workgroup_memory >= 8704,
    suits: Suits::All,
    grid: TILED,
};

/// As [`TILES`], in tiles of 32 × 32.
static TILES_32: PanelVariant = Variant {
    name: "tiles_32",
    way: Loads::Own,
    shader: TILES_32_SHADER,
    entry: "matmul_tiles",
    fits: |caps| caps.max_invocations >= 64 && caps.workgroup_memory >= 4608,
    suits: Suits::Some(|p| p.sizes().suit_32()),
    grid: Grid::Workgroups(|p| p.sizes().tiles(32, 32)),
};

/// Computes one element for each invocation.
pub(in crate::ops) static PLAIN: PanelVariant = Variant {
    name: "plain",
    way: Loads::Own,
    shader: PLAIN_SHADER,
    entry: "matmul_plain",
    fits: |_| true,
    suits: Suits::All,
    grid: Grid::Each(|p| p.m * p.n * p.z_count),
};

pub(in crate::ops) static FAMILY: Family<ProductParams, Loads> = Family { name: "matmul", order, attempt };
inventory::submit! { &FAMILY as &'static dyn AnyFamily }

/// The variants after the first two are used if both are wrong, and the op table tries all.
static ON_SOFTWARE: [&PanelVariant; 7] = [&SUBGROUPS, &PANELS, &TILES, &TILES_32, &BLOCKS_128, &BLOCKS_64, &PLAIN];
static ON_HARDWARE: [&PanelVariant; 6] = [&BLOCKS_128, &BLOCKS_64, &TILES_32, &TILES, &PANELS, &PLAIN];

pub(in crate::ops) fn order(caps: &Caps) -> &'static [&'static PanelVariant] {
    if caps.software { &ON_SOFTWARE } else { &ON_HARDWARE }
}

/// Returns whether an adapter has a variant that shares loads within subgroups.
pub(in crate::ops) fn may_share_loads(caps: &Caps) -> bool {
    (SUBGROUPS.fits)(caps)
}

/// Sizes that are no multiples of the sizes of panels, of tiles or of the parts of k, and more than one of the largest tiles.
const M: usize = 150;
const K: usize = 37;
const N: usize = 131;
const BATCH: usize = 2;
const SPLITS: usize = 2;
/// The value of elements that a product must not write.
pub(in crate::ops) const UNTOUCHED: f32 = -77.0;

/// Multiplies a batch of two with a variant and compares the result with the host. Describes the first wrong element.
pub(in crate::ops) fn attempt(gpu: &Gpu, variant: &'static PanelVariant) -> Result<Option<String>> {
    let (a, b, bias) = (numbers(BATCH * M * K, 1), numbers(BATCH * K * N, 2), numbers(M + 1, 3));
    let a_panels = panels(&a, [M, K], 8, |matrix, j, k| matrix[j * K + k]);
    let b_panels = panels(&b, [N, K], 64, |matrix, j, k| matrix[k * N + j]);
    let steps = [a_panels.len() / BATCH, b_panels.len() / BATCH];
    let upload = |x: &[f32]| gpu.upload(bytemuck::cast_slice(x));
    let (left, right, summand) = (upload(&a_panels)?, upload(&b_panels)?, upload(&bias)?);
    // Rows with gaps, after an offset.
    let to = Target { offset: 3, batch: M * (N + 2), row: N + 2, inner: N, outer: 0 };
    let mut expected = vec![UNTOUCHED; to.offset + BATCH * SPLITS * to.batch];
    let out = upload(&expected)?;
    let product = Product { m: M, k: K, n: N, batch: BATCH, splits: SPLITS, steps };
    gpu.run(product.variant(variant, [&left, &right], Some((&summand, 1)), &out, to)?)?;
    let got = gpu.download(&out, 0, expected.len())?;
    for (z, m) in (0..BATCH * SPLITS).flat_map(|z| (0..M).map(move |m| (z, m))) {
        let (batch, part) = (z / SPLITS, z % SPLITS);
        let range = part * K.div_ceil(SPLITS)..((part + 1) * K.div_ceil(SPLITS)).min(K);
        for n in 0..N {
            let terms = range.clone().map(|k| a[(batch * M + m) * K + k] * b[(batch * K + k) * N + n]);
            expected[to.offset + z * to.batch + m * to.row + n] = terms.sum::<f32>() + bias[m + 1];
        }
    }
    let close = |got: u32, expected: f32| (f32::from_bits(got) - expected).abs() <= 1e-4; // false for NaN
    let wrong = got.iter().zip(&expected).position(|(&got, &expected)| !close(got, expected));
    Ok(wrong.map(|i| {
        let (got, expected) = (f32::from_bits(got[i]), expected[i]);
        let at = i.saturating_sub(to.offset);
        let index = [at / to.batch, at % to.batch / to.row, at % to.row];
        format!("element {index:?} of [{BATCH}·{SPLITS}, {M}, {N}], k = {K}: got {got}, expected {expected}")
    }))
}

/// Returns numbers between −1 and 1 in no particular order, the same on every call.
pub(in crate::ops) fn numbers(count: usize, seed: u32) -> Vec<f32> {
    (0..count as u32).map(|i| ((i + 1000 * seed).wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0).collect()
}

/// Returns a batch of operands in the layout of `shaders/linalg/pack.wgsl`: panels of `width` indices j, k by k, padded with
/// zeros.
fn panels(x: &[f32], [count, depth]: [usize; 2], width: usize, at: impl Fn(&[f32], usize, usize) -> f32) -> Vec<f32> {
    let mut all = Vec::new();
    for matrix in x.chunks(count * depth) {
        for panel in 0..count.div_ceil(width) {
            for (k, j) in (0..depth).flat_map(|k| (0..width).map(move |j| (k, panel * width + j))) {
                all.push(if j < count { at(matrix, j, k) } else { 0.0 });
            }
        }
    }
    all
}

#[cfg(test)]
pub(in crate::ops) mod tests {
    use super::*;
    use crate::ops::linalg::panels::MOST_PANELS;

    /// Returns the params of a dense product of these sizes.
    pub(in crate::ops) fn sized(m: usize, n: usize, batch: usize) -> ProductParams {
        let (m_tiles, n_tiles) = (m.div_ceil(64), n.div_ceil(64));
        let [a_batch, b_batch] = [m_tiles, n_tiles].map(|tiles| if batch > 1 { tiles * 64 * 16 } else { 0 });
        ProductParams {
            m,
            n,
            k: 64,
            m_tiles,
            n_tiles,
            a_batch,
            b_batch,
            k_split: 64,
            splits: 1,
            offset: 0,
            batch: m * n,
            row: n,
            inner: n,
            outer: 0,
            bias_offset: 0,
            z_count: batch,
        }
    }

    #[test]
    fn the_shaders_have_the_same_constants() {
        assert!(SUBGROUP_SUMS.contains(&format!("const MOST_PANELS = {MOST_PANELS}u;")));
        assert!(SUBGROUP_TILES.contains(&format!("const SUBGROUPS = {SUBGROUPS_OF_WORKGROUP}u;")));
    }

    #[test]
    fn the_sizes_choose_the_variant_of_hardware() {
        for (sizes, expected) in [
            ((4096, 4096, 1), "blocks_128"),
            ((2000, 2000, 1), "blocks_128"),
            ((64, 32768, 1), "blocks_64"), // tiles of 128 rows would be half empty
            ((1024, 1024, 1), "blocks_64"),
            ((100, 100, 256), "blocks_128"),
            ((150, 150, 256), "blocks_64"),
            ((640, 640, 1), "tiles"),
            ((512, 512, 1), "tiles_32"),
            ((1, 1, 1), "tiles_32"),
        ] {
            let (m, n, batch) = sizes;
            let params = sized(m, n, batch);
            let suits = |variant: &&&PanelVariant| variant.suits.accepts(Some(&params));
            let first = ON_HARDWARE.iter().find(suits).map(|variant| variant.name);
            assert_eq!(first, Some(expected), "{sizes:?}");
        }
    }
}
