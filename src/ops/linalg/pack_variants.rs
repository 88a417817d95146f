//! The kernels that put an operand of a product into panels: on hardware, workgroups move tiles through their memory, so that neighbouring
//! invocations read and write neighbouring words whatever the strides; on software adapters, where barriers are slow, each invocation
//! moves eight elements by itself.

use crate::device::gpu::{AnyFamily, Caps, Family, Gpu, Grid, Suits, Variant, shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::linalg::matmul_variants::numbers;
use crate::ops::linalg::panels::{A_WIDTH, B_WIDTH, INDEX_MAP, IndexMap, PACK_OPERAND, PACK_RUN, Pack, PackParams};
use crate::ops::stored::{self, HALVES, Stored};

shader!(RUNS_SHADER: PackParams = "linalg/pack", after [INDEX_MAP, HALVES, PACK_OPERAND]);
shader!(TILES_SHADER: PackParams = "linalg/pack_tiles", after [INDEX_MAP, HALVES, PACK_OPERAND]);

/// Who moves the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Each invocation a run.
    Runs,
    /// Each workgroup a tile.
    Tiles,
}

pub(super) type PackVariant = Variant<PackParams, Packing>;

const RUNS: PackVariant = Variant {
    name: "runs",
    way: Packing::Runs,
    shader: RUNS_SHADER,
    entry: "pack",
    fits: |_| true,
    suits: Suits::All,
    grid: Grid::Each(|p| p.count / PACK_RUN), // `Pack::by` sets the grid of both, which depends on the width of panels
};

const TILES: PackVariant = Variant {
    name: "tiles",
    way: Packing::Tiles,
    shader: TILES_SHADER,
    entry: "pack_tiles",
    fits: |caps| caps.max_invocations >= 256 && caps.workgroup_memory >= 9216,
    ..RUNS
};

pub(super) static FAMILY: Family<PackParams, Packing> = Family { name: "pack", order, attempt };
inventory::submit! { &FAMILY as &'static dyn AnyFamily }

static ON_HARDWARE: [&PackVariant; 2] = [&TILES, &RUNS];
static ON_SOFTWARE: [&PackVariant; 2] = [&RUNS, &TILES];

fn order(caps: &Caps) -> &'static [&'static PackVariant] {
    if caps.software { &ON_SOFTWARE } else { &ON_HARDWARE }
}

/// Operands of two batch elements from an offset on. In the first two, neighbours of k or of j are next to one another.
/// The next two have the taps of a channel, next to one another for each j or for each k. In the last one, images, j
/// counts the pixels of several.
fn trials() -> [Pack; 5] {
    let even = IndexMap::even;
    [
        Pack { width: A_WIDTH, depth: 300, across: 19, k: even(300, 1), j: even(19, 300) },
        Pack { width: B_WIDTH, depth: 37, across: 130, k: even(37, 130), j: even(130, 1) },
        Pack {
            width: B_WIDTH,
            depth: 9 * 7,
            across: 70,
            k: IndexMap { inner: 7, step: 9, outer: 1 },
            j: even(70, 9 * 7),
        },
        Pack {
            width: B_WIDTH,
            depth: 9 * 7,
            across: 70,
            k: IndexMap { inner: 7, step: 9 * 70, outer: 1 },
            j: even(70, 9),
        },
        Pack {
            width: B_WIDTH,
            depth: 5,
            across: 96,
            k: even(5, 24),
            j: IndexMap { inner: 24, step: 1, outer: 5 * 24 },
        },
    ]
}

/// Packs operands with a variant. Describes the first wrong element.
fn attempt(gpu: &Gpu, variant: &'static PackVariant) -> Result<Option<String>> {
    const OFFSET: usize = 3;
    for (i, pack) in trials().into_iter().enumerate() {
        let Pack { width, depth, across, k, j } = pack;
        let step = depth * across;
        for dtype in [DType::F32, DType::F16] {
            let mut x = numbers(OFFSET + 2 * step, 11);
            let src = gpu.upload(&stored::words(&mut x, dtype))?;
            let size = Pack::size(width, depth, across);
            let panels = gpu.alloc(2 * size)?;
            let batch = (IndexMap::even(2, step), 0..2);
            let params = pack.params(depth, OFFSET, batch);
            gpu.run(pack.by(variant, params, Stored { buffer: &src, offset: OFFSET, dtype }, &panels))?;
            for (at, got) in gpu.download(&panels, 0, 2 * size)?.into_iter().enumerate() {
                let (z, panel) = (at / size, at % size / (width * depth));
                let (step_k, column) = (at / width % depth, panel * width + at % width);
                let placed = |i: usize, map: IndexMap| i / map.inner * map.outer + i % map.inner * map.step;
                let from = OFFSET + z * step + placed(step_k, k) + placed(column, j);
                let expected = if column < across { x[from] } else { 0.0 };
                if f32::from_bits(got) != expected {
                    let got = f32::from_bits(got);
                    return Ok(Some(format!("element {at} of operand {i} of {dtype}: got {got}, expected {expected}")));
                }
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Backend, Device};

    #[test]
    fn each_kernel_packs_all_operands() -> Result<()> {
        for device in Device::all() {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            for variant in order(gpu.caps()).iter().filter(|variant| (variant.fits)(gpu.caps())) {
                assert_eq!(attempt(gpu, variant)?, None, "{device}, {}", variant.name);
            }
        }
        Ok(())
    }
}
