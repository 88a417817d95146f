//! Measures the variants of the matrix product on a device, for each class of sizes.

use web_time::{Duration, Instant};

use crate::device::gpu::{Buffer, Caps, Gpu};
use crate::error::Result;
use crate::ops::linalg::matmul_variants::{FAMILY, PanelVariant, order};
use crate::ops::linalg::panels::{A_WIDTH, B_WIDTH, Pack, Product, ProductParams, Target};

/// The most multiply-adds of an example on a software adapter; its class keeps the default where it has more.
const MOST_IN_SOFTWARE: usize = 1 << 26;
/// Rounds in which each variant runs; the fastest counts.
const ROUNDS: usize = 5;
/// A variant whose first run takes so many times as long as the fastest variant's is not measured further.
const HOPELESS: f64 = 3.0;
/// A variant that takes less than so many times the fastest time is measured twice as often.
const NEAR: f64 = 1.5;
/// The time that the runs of a round take at least, in seconds.
const ROUND: f64 = 0.01;
/// The most runs of a round.
const MOST_RUNS: f64 = 64.0;

/// The first and the last number of 64 × 64 tiles of the classes, in the order of [`EXAMPLES`].
const TILES: [(usize, usize); 5] = [(0, 8), (9, 48), (49, 191), (192, 767), (768, usize::MAX)];
/// Sizes m and n of each class of tiles: broad, and with a single tile of rows.
const EXAMPLES: [[(usize, usize); 2]; 5] = [
    [(128, 128), (64, 256)],
    [(256, 384), (64, 1536)],
    [(640, 640), (64, 6400)],
    [(1280, 1280), (64, 25_600)],
    [(2560, 2560), (64, 51_200)],
];
/// The largest k of a shallow product, and examples of shallow and deep ones.
const SHALLOW: usize = 128;
const DEPTHS: [usize; 2] = [64, 512];

/// What was measured for a class.
pub(crate) struct Measured {
    pub class: String,
    /// m, k and n of the product.
    pub sizes: [usize; 3],
    /// The variant that is used without tuning.
    pub default: &'static str,
    /// The variants and their times, in the order of their preference.
    pub times: Vec<(&'static str, Duration)>,
}

/// The name of the family.
pub(crate) const NAME: &str = FAMILY.name;

/// Returns the class of a product: sizes for which one variant is the best.
pub(super) fn class(p: &ProductParams) -> String {
    let tiles = p.m_tiles.saturating_mul(p.n_tiles).saturating_mul(p.z_count);
    let (first, last) = TILES.into_iter().find(|(_, last)| tiles <= *last).unwrap_or((0, 0));
    let count = if last == usize::MAX { format!("{first} tiles or more") } else { format!("{first}-{last} tiles") };
    let shape = if p.m_tiles.min(p.n_tiles) <= 1 { "narrow" } else { "broad" };
    let depth = if p.k_split <= SHALLOW { "shallow" } else { "deep" };
    format!("{count}, {shape}, {depth}")
}

/// Returns the sizes to measure on an adapter: m, k and n.
fn examples(caps: &Caps) -> Vec<[usize; 3]> {
    let sizes = EXAMPLES.as_flattened().iter().flat_map(|&(m, n)| DEPTHS.map(|k| [m, k, n]));
    sizes.filter(|[m, k, n]| !caps.software || m * k * n <= MOST_IN_SOFTWARE).collect()
}

/// Measures every correct variant that the adapter can run. `progress` is called with the number of classes that are done,
/// and of all.
///
/// # Errors
///
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::DeviceLost`](crate::Error::DeviceLost), or
/// [`Error::Gpu`](crate::Error::Gpu) if no variant is correct.
pub(crate) fn measure(gpu: &Gpu, mut progress: impl FnMut(usize, usize)) -> Result<Vec<Measured>> {
    let examples = examples(gpu.caps());
    let mut measured = Vec::new();
    for sizes in &examples {
        progress(measured.len(), examples.len());
        measured.push(Example::new(gpu, *sizes)?.measure(gpu)?);
    }
    progress(examples.len(), examples.len());
    Ok(measured)
}

/// A product with its operands in panels.
struct Example {
    product: Product,
    to: Target,
    panels: [Buffer; 2],
    out: Buffer,
}

impl Example {
    fn new(gpu: &Gpu, [m, k, n]: [usize; 3]) -> Result<Example> {
        let sizes = [Pack::size(A_WIDTH, k, m), Pack::size(B_WIDTH, k, n)];
        // Not zeros, for which some chips need less power and run faster.
        let words = |count: usize| -> Vec<u32> { (0..count).map(|i| (1.0 / (i % 61 + 1) as f32).to_bits()).collect() };
        let panels = [gpu.upload(&words(sizes[0]))?, gpu.upload(&words(sizes[1]))?];
        let product = Product { m, k, n, batch: 1, splits: 1, steps: [0; 2] };
        let to = Target { offset: 0, batch: m * n, row: n, inner: n, outer: 0 };
        Ok(Example { product, to, panels, out: gpu.alloc(m * n)? })
    }

    /// Returns the time of one of `runs` products.
    fn time(&self, gpu: &Gpu, variant: &PanelVariant, runs: usize) -> Result<Duration> {
        let began = Instant::now();
        for _ in 0..runs {
            let [a, b] = &self.panels;
            gpu.run(self.product.variant(variant, [a, b], None, &self.out, self.to)?)?;
        }
        gpu.synchronize()?;
        Ok(began.elapsed() / u32::try_from(runs).unwrap_or(1).max(1))
    }

    /// Measures the default and the variants that take less than `within` times the fastest time.
    fn repeat(
        &self,
        gpu: &Gpu,
        times: &mut [(&'static PanelVariant, Duration)],
        default: &str,
        within: f64,
    ) -> Result<()> {
        let fastest = times.iter().map(|(_, time)| time.as_secs_f64()).fold(f64::INFINITY, f64::min);
        for _ in 0..ROUNDS {
            for (variant, best) in &mut *times {
                if variant.name == default || best.as_secs_f64() < fastest * within {
                    let runs = (ROUND / best.as_secs_f64().max(1e-9)).clamp(1.0, MOST_RUNS);
                    *best = self.time(gpu, variant, runs as usize)?.min(*best);
                }
            }
        }
        Ok(())
    }

    fn measure(&self, gpu: &Gpu) -> Result<Measured> {
        let params = self.product.sized(self.to)?;
        let default = gpu.variant(&FAMILY, &params)?.name;
        let mut times = Vec::new();
        for variant in order(gpu.caps()) {
            if let Some(variant) = gpu.variant_named(&FAMILY, variant.name)? {
                self.time(gpu, variant, 1)?; // compiles
                times.push((variant, self.time(gpu, variant, 1)?));
            }
        }
        self.repeat(gpu, &mut times, default, HOPELESS)?;
        // Once more for those that are near, so that one quiet moment decides nothing.
        self.repeat(gpu, &mut times, default, NEAR)?;
        let Product { m, k, n, .. } = self.product;
        let times = times.into_iter().map(|(variant, time)| (variant.name, time)).collect();
        Ok(Measured { class: class(&params), sizes: [m, k, n], default, times })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::linalg::matmul_variants::tests::sized;
    use std::collections::BTreeSet;

    #[test]
    fn every_class_has_an_example() {
        let all = EXAMPLES.as_flattened().iter().flat_map(|&(m, n)| DEPTHS.map(|k| (m, n, k)));
        let classes: BTreeSet<String> = all
            .map(|(m, n, k)| {
                let (m_tiles, n_tiles) = (m.div_ceil(64), n.div_ceil(64));
                class(&ProductParams { k, k_split: k, m_tiles, n_tiles, ..sized(m, n, 1) })
            })
            .collect();
        assert_eq!(classes.len(), TILES.len() * 4, "{classes:?}");
        assert!(classes.contains("768 tiles or more, broad, deep"), "{classes:?}");
    }
}
