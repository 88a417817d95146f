//! How many tiles a result has, by which products (`linalg/plan.rs`) and convolutions (`spatial/conv/plan.rs`) choose among variants.

/// Workgroups that occupy a large card: navi31 has 192 SIMDs. With fewer, more invocations with fewer elements each are
/// better.
pub(super) const ENOUGH: usize = 192;

/// The fewest steps of a part of a sum that is split to have more workgroups.
pub(super) const FEWEST_STEPS: usize = 256;

/// The fewest rows, columns and steps of k for cooperative matrices: half of a tile of 64 × 64, and two fragments.
const FEWEST_COOPERATIVE: usize = 32;

/// The sizes of a result: rows, columns, and the number of results, which counts the parts of sums.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub m: usize,
    pub n: usize,
    pub batch: usize,
}

impl Sizes {
    /// Returns the number of tiles of `rows` × `columns`.
    pub fn tiles(self, rows: usize, columns: usize) -> usize {
        self.m.div_ceil(rows).saturating_mul(self.n.div_ceil(columns)).saturating_mul(self.batch)
    }

    /// Returns whether tiles of 128 × 128 are enough, and have little more padding than tiles of 64 × 64.
    pub fn suit_128(self) -> bool {
        let (large, small) = (self.tiles(128, 128), self.tiles(64, 64));
        large >= ENOUGH && large.saturating_mul(16) <= small.saturating_mul(5)
    }

    /// Returns whether half of the last tile's rows would be padding, where that is much of all rows.
    pub fn suit_half(self) -> bool {
        self.m <= 160 && self.m.div_ceil(32) % 2 == 1
    }

    /// Returns into how many parts sums of `depth` steps are split, so that more workgroups have a part of few tiles.
    pub fn parts(self, depth: usize) -> usize {
        (ENOUGH / self.tiles(64, 64).max(1)).min(depth / FEWEST_STEPS).max(1)
    }

    /// Returns whether a product of f16 with sums of `depth` steps takes cooperative matrices.
    pub fn suit_cooperative(self, depth: usize) -> bool {
        self.m.min(self.n).min(depth) >= FEWEST_COOPERATIVE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tiles_split_long_sums() {
        let parts = |m, n, depth| Sizes { m, n, batch: 1 }.parts(depth);
        assert_eq!(parts(64, 64, 100_000), 192);
        assert_eq!(parts(64, 64, 1024), 4);
        assert_eq!(parts(512, 512, 512), 2);
        assert_eq!(parts(512, 512, 511), 1);
        assert_eq!(parts(1024, 1024, 4096), 1);
        assert_eq!(parts(0, 64, 0), 1);
    }
}
