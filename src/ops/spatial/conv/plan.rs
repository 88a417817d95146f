//! The ways in which an adapter computes a convolution or a gradient of it, and which of them runs: the first one that suits the
//! adapter, the types of the operands and the sizes. The tables of the tests show it for common layers. What the device `cpu` does is
//! in `crates/host/src/conv/plan.rs`; a software adapter, a driver of GPUs that computes on the processor, is an adapter here.
//!
//! On hardware (discrete and integrated GPUs; their limits of size are estimates from what the compiler for AMD makes of the
//! kernels, and were never timed):
//!
//! | convolution: a product of m channels of the result and n pixels; gradients are products with other m and n | way, and its variant |
//! |---|---|
//! | groups of few channels (`is_thin`) | `Direct` |
//! | f16 only, with 32 rows, columns and steps of k of the product, where the adapter has cooperative matrices; not the gradient of an image under a stride | `Cooperative`: `cooperative_16`, `_8` |
//! | gradient of an image of fewer than 16 channels, or with more than 16 places between windows | `Columns` |
//! | gradient of a weight, without images or from such that one image fills a pass | `Columns` |
//! | m up to 32, or 65 to 96, or 129 to 160 | `Implicit`: `implicit_32` |
//! | [`ENOUGH`] tiles of 128 × 128, with little padding | `Implicit`: `implicit_128` |
//! | others | `Implicit`: `implicit_64` |
//!
//! On software adapters, `Registers` and `Direct` come first, then `Winograd`, `Blocks` (where products share loads within subgroups), and
//! `Columns`. `Implicit` runs there only where the op table asks for it: `implicit_variants.rs` lists its variants by the adapter's
//! class, and says which of them suits a product.
//!
//! [`ENOUGH`]: crate::ops::tiling::ENOUGH

use anygpu_host::conv::plan::winograd_suits;

use super::cooperative::{self, GradientParts, ROOM};
use super::geometry::{Geometry, PASS};
use super::implicit::{Tiles, Work};
use super::implicit_variants;
use super::registers::Registers;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::linalg::cooperative::{self as products, HalfVariant};
use crate::ops::linalg::matmul_variants;
use crate::ops::linalg::panels::{MAX_SOFTWARE_DEPTH, Product};
use crate::ops::variants::{self, Adapter};

/// The ways to compute a convolution.
#[derive(Debug)]
pub(super) enum Forward {
    /// There is nothing to add up: each result is the bias, or 0.
    Nothing,
    /// Sums in registers, on software adapters: `registers.rs`.
    Registers(Registers),
    /// A sum for each result, for groups of few channels: `direct.rs`.
    Direct,
    /// Columns of halves, and products by cooperative matrices: `cooperative.rs`.
    Cooperative(&'static HalfVariant),
    /// Products in tiles that read the pixels under the windows from the images: `implicit.rs`.
    Implicit(Tiles),
    /// Winograd's method, on software adapters: `winograd_products.rs`.
    Winograd,
    /// Products that read blocks of images, on software adapters with subgroups: `blocked.rs`.
    Blocks,
    /// Columns in memory, and products of panels: `by_columns` beside the op, in `forward.rs`, and in `grad.rs` for gradients.
    Columns,
}

/// The ways to compute the gradient of the images, in the files of the ways of a convolution that have the same names.
#[derive(Debug)]
pub(super) enum InputGrad {
    Nothing,
    Direct,
    /// With the convolution whose result is the gradient.
    Cooperative(&'static HalfVariant, Box<Geometry>),
    Implicit(Tiles),
    Winograd,
    Blocks,
    Columns,
}

/// The ways to compute the gradient of the weight, in the files of the ways of a convolution that have the same names.
#[derive(Debug)]
pub(super) enum WeightGrad {
    Direct,
    Cooperative(&'static HalfVariant, GradientParts),
    Implicit(Tiles),
    Blocks,
    Columns,
}

/// Returns the way to compute a convolution of images and a weight of these types.
pub(super) fn forward(adapter: &impl Adapter, g: &Geometry, types: [DType; 2]) -> Result<Forward> {
    let (rows, depth, columns) = (g.group_out(), g.depth(), g.images * g.window.pixels());
    if depth == 0 {
        return Ok(Forward::Nothing);
    }
    // Where the op table asks for a variant, ways without variants are left out.
    if adapter.caps().software
        && !variants::any_asked_for()
        && let Some(registers) = g.registers()
    {
        return Ok(Forward::Registers(registers));
    }
    if g.is_thin() {
        return Ok(Forward::Direct);
    }
    if let Some(matrices) = matrices(adapter, types, [rows, depth, columns])?
        && g.columns_are_short()
    {
        return Ok(Forward::Cooperative(matrices));
    }
    if let Some(tiles) = tiles(adapter, Some(g.forward_work()))? {
        return Ok(Forward::Implicit(tiles));
    }
    if winograd(adapter, g)? {
        return Ok(Forward::Winograd);
    }
    if g.images >= FEWEST_IMAGES && blocks(adapter, [rows, depth, g.group_channels()], g.reached())? {
        return Ok(Forward::Blocks);
    }
    Ok(Forward::Columns)
}

/// Returns the way to compute the gradient of the images, from a gradient of the result and a weight of these types.
pub(super) fn input_grad(adapter: &impl Adapter, g: &Geometry, types: [DType; 2]) -> Result<InputGrad> {
    if g.group_out() == 0 {
        return Ok(InputGrad::Nothing);
    }
    if g.is_thin() {
        return Ok(InputGrad::Direct);
    }
    if let Some(turned) = g.turned()
        && let sizes = [turned.group_out(), turned.depth(), turned.images * turned.window.pixels()]
        && let Some(matrices) = matrices(adapter, types, sizes)?
        && turned.columns_are_short()
    {
        return Ok(InputGrad::Cooperative(matrices, Box::new(turned)));
    }
    if let Some(tiles) = tiles(adapter, g.input_grad_work())? {
        return Ok(InputGrad::Implicit(tiles));
    }
    if winograd(adapter, g)? {
        return Ok(InputGrad::Winograd);
    }
    // With a stride, most of what a convolution of dy multiplies would be zeros.
    let plain = g.window.params.stride == [1, 1] && g.window.plane() <= MOST_ENLARGED * g.window.pixels();
    let sizes = [g.group_channels(), g.group_out() * g.window.taps(), g.group_out()];
    if plain && g.images >= FEWEST_IMAGES && blocks(adapter, sizes, g.enlarged())? {
        return Ok(InputGrad::Blocks);
    }
    Ok(InputGrad::Columns)
}

/// Returns the way to compute the gradient of the weight, from a gradient of the result and images of these types.
pub(super) fn weight_grad(adapter: &impl Adapter, g: &Geometry, types: [DType; 2]) -> Result<WeightGrad> {
    let (rows, depth, columns) = (g.group_out(), g.depth(), g.images * g.window.pixels());
    if g.is_thin() && g.images > 0 {
        return Ok(WeightGrad::Direct);
    }
    let run = run(g);
    if let Some(matrices) = matrices(adapter, types, [rows, columns, depth])?
        && let Some(parts) = g.gradient_parts(run, ROOM)
    {
        return Ok(WeightGrad::Cooperative(matrices, parts));
    }
    if let Some(tiles) = tiles(adapter, g.weight_grad_work(run))? {
        return Ok(WeightGrad::Implicit(tiles));
    }
    let fits = g.images > 0 && g.left_words() <= PASS;
    if fits && blocks(adapter, [rows, depth, g.group_channels()], g.reached())? {
        return Ok(WeightGrad::Blocks);
    }
    Ok(WeightGrad::Columns)
}

/// The fewest and the most output pixels that one invocation adds for the weight's gradient.
const RUN: [usize; 2] = [4096, MAX_SOFTWARE_DEPTH];

/// The most elements of the weight gradient's partial sums in an adapter's memory, unless this would need longer runs
/// than `RUN` allows.
pub(super) const MOST_PARTIAL: usize = 16 << 20;

/// Returns the output pixels that one invocation adds for the weight's gradient: more if there are many weights, so that the partial
/// sums are fewer.
pub(super) fn run(g: &Geometry) -> usize {
    let pixels = g.images * g.window.pixels();
    let weights = g.groups * g.group_weights();
    pixels.saturating_mul(weights).div_ceil(MOST_PARTIAL).clamp(RUN[0], RUN[1])
}

/// Returns the variant of cooperative matrices for a product `[m, k] · [k, n]` of operands of these types, unless the op table asks for one
/// of tiles.
fn matrices(adapter: &impl Adapter, types: [DType; 2], sizes: [usize; 3]) -> Result<Option<&'static HalfVariant>> {
    if types != [DType::F16; 2] || variants::asked_for(&implicit_variants::FAMILY) {
        return Ok(None);
    }
    products::chosen(adapter, &cooperative::FAMILY, sizes)
}

/// Returns the variant of tiles for some work, unless the op table asks for one of the products of columns.
fn tiles(adapter: &impl Adapter, work: Option<Work>) -> Result<Option<Tiles>> {
    match work {
        Some(work) if !variants::asked_for(&matmul_variants::FAMILY) => {
            Tiles::of(&work, |params| adapter.chosen(&implicit_variants::FAMILY, params))
        }
        _ => Ok(None),
    }
}

/// Returns whether Winograd's method saves time, and its operands can be bound. With few channels, the transforms take more time than the
/// products save. Where products share loads within subgroups, blocks are the alternative, which has no columns in memory.
fn winograd(adapter: &impl Adapter, g: &Geometry) -> Result<bool> {
    const LEAST_CHANNELS: usize = 16;
    const LEAST_CHANNELS_IN_BLOCKS: usize = 64;
    let channels = [g.channels, g.out_channels];
    if !adapter.caps().software || !winograd_suits(g) || channels.iter().any(|&c| c > MAX_SOFTWARE_DEPTH) {
        return Ok(false);
    }
    if g.winograd_words() > adapter.largest_binding() {
        return Ok(false);
    }
    let least = if Product::shares_loads(adapter)? { LEAST_CHANNELS_IN_BLOCKS } else { LEAST_CHANNELS };
    Ok(channels.iter().all(|&c| c >= least))
}

/// Fewer images would leave half of each vector of images empty. Vectors of channels do not depend on the images.
const FEWEST_IMAGES: usize = 3;

/// The most pixels of an image for each pixel of its result: the gradient of the image is a convolution over `dy` with
/// zeros around it, and multiplies all of them.
const MOST_ENLARGED: usize = 3;

/// Returns whether products over blocks have sums that are not too long, and images of so many channels, with their padding, that
/// are not too large. With fewer than `ROWS` rows, most sums of a subgroup would be empty.
fn blocks(adapter: &impl Adapter, [rows, depth, channels]: [usize; 3], padded: [usize; 2]) -> Result<bool> {
    const ROWS: usize = 5;
    let elements = padded.into_iter().fold(channels, usize::saturating_mul).saturating_mul(super::blocks::FOUR);
    let suits = elements <= PASS && (1..=MAX_SOFTWARE_DEPTH).contains(&depth) && rows >= ROWS;
    Ok(suits && Product::shares_loads(adapter)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gpu::Caps;
    use crate::ops::spatial::conv::Conv;
    use crate::ops::variants::classes::{HARDWARE, LAVAPIPE, SWIFTSHADER, WITH_COOPERATIVE};

    /// Images, channels, output channels, groups; size; kernel, stride, padding.
    type Layer = ([usize; 4], usize, [usize; 3]);

    /// The first layer of LeNet, its second one; the first one of ResNet-18, and one of each of its kinds; a depthwise layer; few pixels.
    const LAYERS: [Layer; 9] = [
        ([256, 1, 6, 1], 28, [5, 1, 2]),
        ([256, 6, 16, 1], 14, [5, 1, 0]),
        ([64, 1, 64, 1], 96, [7, 2, 3]),
        ([64, 64, 64, 1], 24, [3, 1, 1]),
        ([64, 64, 128, 1], 24, [3, 2, 1]),
        ([64, 64, 128, 1], 24, [1, 2, 0]),
        ([64, 512, 512, 1], 3, [3, 1, 1]),
        ([1, 32, 32, 32], 112, [3, 1, 1]),
        ([1, 512, 1000, 1], 1, [1, 1, 0]),
    ];

    fn ways(caps: &Caps, dtype: DType) -> Vec<[String; 3]> {
        let layer =
            |&([images, channels, rows, groups], size, [kernel, stride, padding]): &Layer| -> Result<[String; 3]> {
                let conv = Conv::<2>::new().stride(stride).padding(padding).groups(groups);
                let g = conv.geometry(&[images, channels, size, size], &[rows, channels / groups, kernel, kernel])?;
                let types = [dtype; 2];
                let forward = match forward(caps, &g, types)? {
                    Forward::Cooperative(variant) => variant.name.to_owned(),
                    Forward::Implicit(tiles) => tiles.variant.name.to_owned(),
                    other => format!("{other:?}"),
                };
                let input_grad = match input_grad(caps, &g, types)? {
                    InputGrad::Cooperative(variant, _) => variant.name.to_owned(),
                    InputGrad::Implicit(tiles) => tiles.variant.name.to_owned(),
                    other => format!("{other:?}"),
                };
                let weight_grad = match weight_grad(caps, &g, types)? {
                    WeightGrad::Cooperative(variant, _) => variant.name.to_owned(),
                    WeightGrad::Implicit(tiles) => tiles.variant.name.to_owned(),
                    other => format!("{other:?}"),
                };
                Ok([forward, input_grad, weight_grad])
            };
        LAYERS.iter().map(|each| layer(each).expect("a convolution")).collect()
    }

    #[test]
    fn hardware_reads_the_images() {
        let expected = [
            ["implicit_32", "Columns", "implicit_32"],
            ["implicit_32", "Columns", "implicit_32"],
            ["implicit_64", "Columns", "implicit_64"],
            ["implicit_64", "implicit_64", "implicit_64"],
            ["implicit_64", "implicit_64", "implicit_64"],
            ["implicit_64", "implicit_64", "implicit_64"],
            ["implicit_64", "implicit_64", "implicit_64"],
            ["Direct", "Direct", "Direct"],
            ["implicit_64", "implicit_64", "implicit_64"],
        ];
        assert_eq!(ways(&HARDWARE, DType::F32), expected);
    }

    /// Few channels or pixels are none for cooperative matrices, nor are gradients of images under a stride.
    #[test]
    fn cooperative_matrices_multiply_halves() {
        let expected = [
            ["implicit_32", "Columns", "implicit_32"],
            ["implicit_32", "Columns", "implicit_32"],
            ["cooperative_16", "Columns", "cooperative_16"],
            ["cooperative_16", "cooperative_16", "cooperative_16"],
            ["cooperative_16", "implicit_64", "cooperative_16"],
            ["cooperative_16", "implicit_64", "cooperative_16"],
            ["cooperative_16", "cooperative_16", "cooperative_16"],
            ["Direct", "Direct", "Direct"],
            ["implicit_64", "implicit_64", "implicit_64"],
        ];
        assert_eq!(ways(&WITH_COOPERATIVE, DType::F16), expected);
        assert_eq!(ways(&WITH_COOPERATIVE, DType::F32), ways(&HARDWARE, DType::F32));
    }

    #[test]
    fn lavapipe_reads_blocks_of_images() {
        let expected = [
            ["Blocks", "Columns", "Blocks"],
            ["Blocks", "Blocks", "Blocks"],
            ["Blocks", "Columns", "Blocks"],
            ["Winograd", "Winograd", "Blocks"],
            ["Blocks", "Columns", "Blocks"],
            ["Blocks", "Columns", "Blocks"],
            ["Blocks", "Blocks", "Blocks"],
            ["Registers(Tiles)", "Direct", "Direct"],
            ["Registers(Points)", "Columns", "Blocks"],
        ];
        assert_eq!(ways(&LAVAPIPE, DType::F32), expected);
    }

    #[test]
    fn other_software_adapters_write_columns() {
        let expected = [
            ["Columns", "Columns", "Columns"],
            ["Columns", "Columns", "Columns"],
            ["Columns", "Columns", "Columns"],
            ["Winograd", "Winograd", "Columns"],
            ["Columns", "Columns", "Columns"],
            ["Columns", "Columns", "Columns"],
            ["Columns", "Columns", "Columns"],
            ["Registers(Tiles)", "Direct", "Direct"],
            ["Registers(Points)", "Columns", "Columns"],
        ];
        assert_eq!(ways(&SWIFTSHADER, DType::F32), expected);
    }
}
