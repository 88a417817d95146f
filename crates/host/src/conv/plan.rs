//! Chooses the way to compute a convolution and its gradients on the device `cpu`: of several that suit, the first
//! one of a function here. `src/ops/spatial/conv/plan.rs` has the plan of adapters, including software adapters.

use super::Sizes;
use super::flat;
use super::image_lanes;
use super::lanes::fills;
use super::window_lanes;
pub use super::winograd::PLACES;
use super::winograd::TAPS;
use crate::matmul::lane_sums::blocks_of;
use crate::matmul::tiles::{VECTORS, panel_width};
use crate::sums::LONG;
use crate::vectors::MOST_LANES;

/// The ways to compute a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// Windows are copied to vectors, and multiplied by the weights as they lie (`few_windows.rs`).
    FewWindows,
    /// Products read the pixels where they lie (`flat.rs`).
    Flat,
    /// Winograd's method (`winograd.rs`).
    Winograd,
    /// Vectors of images (`image_lanes.rs`).
    ImageLanes,
    /// The pixels of the windows are copied into panels of a product (`columns.rs`).
    Columns,
    /// Plain sums (`direct.rs`).
    Direct,
}

/// The ways to compute the gradient of the images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputGrad {
    /// As [`Forward::Winograd`].
    Winograd,
    /// As [`Forward::ImageLanes`].
    ImageLanes,
    /// A product whose columns are added up to images (`columns.rs`, `images.rs`).
    Columns,
    /// As [`Forward::Direct`].
    Direct,
}

/// The ways to compute the gradient of the weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightGrad {
    /// Winograd's method (`winograd_grad.rs`).
    Winograd,
    /// Products read lines of windows where they lie (`line_grad.rs`).
    Lines,
    /// Vectors of neighbouring windows, with a vector of sums for each weight (`window_lanes.rs`).
    WindowLanes,
    /// As [`Forward::Columns`].
    Columns,
    /// As [`Forward::Direct`].
    Direct,
}

/// Returns the way to compute a convolution.
pub fn forward(g: &Sizes) -> Forward {
    if few_windows_suit(g) {
        Forward::FewWindows
    } else if flat_suits(g) {
        Forward::Flat
    } else if winograd_suits(g) {
        Forward::Winograd
    } else if image_lanes_suit(g, [g.channels, g.out_channels]) {
        Forward::ImageLanes
    } else if sums_suit(g) {
        Forward::Direct
    } else {
        Forward::Columns
    }
}

/// Returns the way to compute the gradient of the images.
pub fn input_grad(g: &Sizes) -> InputGrad {
    if winograd_suits(g) {
        InputGrad::Winograd
    } else if image_lanes_suit(g, [g.out_channels, g.channels]) {
        InputGrad::ImageLanes
    } else if sums_suit(g) {
        InputGrad::Direct
    } else {
        InputGrad::Columns
    }
}

/// Returns the way to compute the gradient of the weight.
pub fn weight_grad(g: &Sizes) -> WeightGrad {
    if winograd_grad_suits(g) {
        WeightGrad::Winograd
    } else if lines_suit(g) {
        WeightGrad::Lines
    } else if window_lanes_suit(g) {
        WeightGrad::WindowLanes
    } else if g.is_thin() {
        WeightGrad::Direct
    } else {
        WeightGrad::Columns
    }
}

/// From this many images on, the ways that put several of them in one product are faster.
const MANY_IMAGES: usize = 8;

/// Windows of an image up to `FEW_WINDOWS` fill no vectors. `FEW_PIXELS`: the most elements of all windows.
fn few_windows_suit(g: &Sizes) -> bool {
    const FEW_WINDOWS: usize = 8;
    const FEW_PIXELS: usize = 1 << 20;
    let pixels = g.window.pixels();
    let copied = (g.images * g.groups * pixels).saturating_mul(g.depth());
    let few = pixels <= FEW_WINDOWS && g.images < MANY_IMAGES && copied <= FEW_PIXELS;
    few && g.depth() > 0 && !sums_suit(g)
}

/// Few images, thin groups, or short sums (up to `TERMS`), if the copies of the images are not much larger than the images, and
/// Winograd's method does not save more than its transforms take: with many channels, or many tiles.
fn flat_suits(g: &Sizes) -> bool {
    const TERMS: usize = 160;
    const CHANNELS: usize = 64;
    const TILES: usize = 512;
    let tiles = g.images * g.window.out[0].div_ceil(2) * g.window.out[1].div_ceil(2);
    let channels = g.channels.min(g.out_channels);
    let gains = channels >= 2 * CHANNELS || channels >= CHANNELS && tiles >= TILES;
    let few = g.images < MANY_IMAGES || sums_suit(g) || g.depth() <= TERMS;
    few && flat::copies_are_small(g) && !(gains && winograd_suits(g)) && g.depth() > 0
}

/// 3 × 3 kernels (9 taps) with stride 1, by tiles of 16 places. With fewer channels, or fewer tiles in a batch, the
/// transforms take more time than they save. Software adapters use this function too.
pub fn winograd_suits(g: &Sizes) -> bool {
    const CHANNELS: usize = 16;
    const TILES: usize = 192;
    let params = &g.window.params;
    let plain = params.kernel == [3, 3] && params.stride == [1, 1] && params.dilation == [1, 1] && g.groups == 1;
    if !plain || params.padding.iter().any(|&p| p > 2) || g.channels.min(g.out_channels) < CHANNELS {
        return false;
    }
    // In both directions, forward and backward, the tiles must not be much larger than the planes.
    [g.window.out, g.window.size].iter().all(|out| {
        let tiles = out[0].div_ceil(2) * out[1].div_ceil(2);
        g.images * tiles >= TILES && PLACES * tiles * 5 <= TAPS * out[0] * out[1] * 3
    })
}

/// `SUMS`: the most elements of the sums, which all steps add to.
pub(super) fn winograd_grad_suits(g: &Sizes) -> bool {
    const SUMS: usize = 8 << 20;
    winograd_suits(g) && PLACES * g.out_channels * g.channels.next_multiple_of(panel_width()) <= SUMS
}

/// Many images, of which vectors are at most a fifth unused. Groups of channels, and kernels of one pixel, are left
/// to others.
///
/// With fewer than `TERMS` terms of a product, copying the images and the results takes longer than multiplying.
/// With fewer than `PRODUCTS` products of a position of the kernel at a pixel, listing what the pixels read takes
/// too long. `READS`: the most pairs of a pixel and a position that reads it. `TASKS`: the fewest blocks of output
/// channels of all groups. `ELEMENTS`: the most elements of the images of a group; more would not stay in a cache.
pub(super) fn image_lanes_suit(g: &Sizes, [inputs, outputs]: [usize; 2]) -> bool {
    const TERMS: usize = 128;
    const PRODUCTS: usize = 8 << 10;
    const READS: usize = 256 << 10;
    const TASKS: usize = 4;
    const ELEMENTS: usize = 384 << 10;
    let (taps, width) = (g.window.taps(), panel_width());
    let pixels = g.window.pixels().max(g.window.plane());
    g.groups == 1
        && taps > 1
        && taps.saturating_mul(inputs) >= TERMS
        && taps.saturating_mul(pixels) <= READS
        && g.images.saturating_mul(inputs).saturating_mul(outputs) >= PRODUCTS
        && fills(g.images, width)
        && g.images.div_ceil(width) * blocks_of(outputs).0.len() >= TASKS
        && g.planes().iter().all(|planes| image_lanes::elements(planes) <= ELEMENTS)
}

/// Thin groups, whose sums are short: the host adds their terms in sequence.
pub(super) fn sums_suit(g: &Sizes) -> bool {
    let longest = g.group_channels().max(g.group_out()) * g.window.taps();
    g.is_thin() && longest <= 2 * LONG
}

/// Long lines of windows, of which vectors are at most a fifth unused. `WINDOWS`: the fewest windows of a line of
/// the result, which are the terms between two jumps in memory. `WIDTH`: the fewest elements of a line of a window.
/// `TERMS`: the most terms of a window. With more, a product of columns is faster, as it is for many images under a
/// stride. `PANELS`: the fewest panels of all blocks and lines.
pub(super) fn lines_suit(g: &Sizes) -> bool {
    const WIDTH: usize = 16;
    const TERMS: usize = 1024;
    const WINDOWS: usize = 6;
    const PANELS: usize = 8;
    let ([lines, kernel], vector) = (g.window.params.kernel, panel_width() / VECTORS);
    let window = g.channels.saturating_mul(kernel); // of a line
    g.groups == 1
        && g.window.taps() > 1
        && g.window.params.dilation[1] == 1
        && (g.window.params.stride[1] == 1 || g.images < MANY_IMAGES)
        && g.window.out[1] >= WINDOWS
        && g.images > 0
        && window >= WIDTH
        && g.depth() <= TERMS
        && fills(window, vector)
        && blocks_of(g.out_channels).0.len() * lines * window.div_ceil(panel_width()) >= PANELS
        && !g.mostly_padding()
}

/// Few weights, whose vectors of sums stay in a cache, and vectors of windows of which at most a third is unused. `IMAGES`: the fewest
/// if one has more windows than a part, since only whole images are divided among parts.
pub(super) fn window_lanes_suit(g: &Sizes) -> bool {
    const WEIGHTS: usize = 1024;
    const IMAGES: usize = 4;
    let (params, width) = (&g.window.params, g.window.out[1]);
    g.groups == 1
        && g.images > 0
        && (2..=window_lanes::LONGEST).contains(&params.kernel[1])
        && params.stride[1] == 1
        && g.out_channels.saturating_mul(g.depth()) <= WEIGHTS
        && (g.images >= IMAGES || g.window.pixels() <= window_lanes::PART)
        && !g.mostly_padding()
        && width.next_multiple_of(MOST_LANES) * 2 <= width * 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::WindowParams;

    fn plan(g: &Sizes) -> (Forward, InputGrad, WeightGrad) {
        (forward(g), input_grad(g), weight_grad(g))
    }

    /// Images, channels, output channels, groups; size; kernel, stride, padding → the ways. Layers of LeNet, ResNet-18 and nets of
    /// separable convolutions, as batches and as single images.
    #[test]
    fn the_ways_of_layers() {
        use Forward as F;
        use InputGrad as I;
        use WeightGrad as W;
        let table = [
            ([256, 1, 6, 1], 28, [5, 1, 2], F::Flat, I::Columns, W::WindowLanes),
            ([256, 6, 16, 1], 14, [5, 1, 0], F::Flat, I::ImageLanes, W::Lines),
            ([64, 1, 64, 1], 96, [7, 2, 3], F::Flat, I::Columns, W::Columns),
            ([64, 64, 64, 1], 24, [3, 1, 1], F::Winograd, I::Winograd, W::Winograd),
            ([64, 64, 128, 1], 24, [3, 2, 1], F::Columns, I::Columns, W::Columns),
            ([64, 64, 128, 1], 24, [1, 2, 0], F::Flat, I::Columns, W::Columns),
            ([256, 20, 50, 1], 13, [5, 1, 0], F::ImageLanes, I::ImageLanes, W::Lines),
            ([64, 512, 512, 1], 3, [3, 1, 1], F::ImageLanes, I::ImageLanes, W::Columns),
            ([1, 64, 64, 1], 56, [3, 1, 1], F::Winograd, I::Winograd, W::Winograd),
            ([1, 64, 64, 1], 20, [3, 1, 1], F::Flat, I::Columns, W::Lines),
            ([1, 32, 32, 32], 112, [3, 1, 1], F::Flat, I::Direct, W::Direct),
            ([64, 32, 32, 32], 112, [3, 2, 1], F::Flat, I::Direct, W::Direct),
            ([1, 512, 1000, 1], 1, [1, 1, 0], F::FewWindows, I::Columns, W::Columns),
        ];
        for (sizes, size, [kernel, stride, padding], forward, input, weight) in table {
            let [images, channels, out_channels, groups] = sizes;
            let params =
                WindowParams { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2], dilation: [1; 2] };
            let window = params.over([size; 2], false).expect("a kernel within the image");
            let g = Sizes { images, channels, out_channels, groups, window };
            assert_eq!(plan(&g), (forward, input, weight), "{g:?}");
        }
    }
}
