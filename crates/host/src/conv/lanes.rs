//! Planes of channels as vectors of channels on the host, and back: pixel by pixel, the values of the channels of a block,
//! which are as many as a panel of a product has columns.

use std::ops::Range;

use super::Sizes;
use crate::matmul::tiles::panel_width;
use crate::matmul::transpose::transpose;
use crate::memory::{Result, Scratch, scratch};
use crate::tasks::try_share;

/// The kernels that are copied to vectors at a time, of the channels of a block.
const KERNELS: usize = 16;

/// The planes of an image, or of a result.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub channels: usize,
    pub size: [usize; 2],
    /// The zeros above the planes, and left of them.
    pub padding: [usize; 2],
}

impl Sizes {
    /// Returns the planes of the input, and the planes of the result.
    pub(super) fn planes(&self) -> [Planes; 2] {
        let input = Planes { channels: self.channels, size: self.window.size, padding: self.window.params.padding };
        [input, Planes { channels: self.out_channels, size: self.window.out, padding: [0, 0] }]
    }

    /// Returns the planes that the convolution reads and the planes that it writes; if `backward`, for the gradient
    /// of its input. Also returns, for each pixel that is written, the positions of the kernel and the pixels that
    /// it adds up.
    pub(super) fn sides(&self, backward: bool) -> ([Planes; 2], Vec<Vec<[usize; 2]>>) {
        let [input, output] = self.planes();
        match backward {
            false => ([input, output], self.window.by_window()),
            true => ([output, input], self.window.by_pixel()),
        }
    }
}

impl Planes {
    pub fn plane(&self) -> usize {
        self.size[0] * self.size[1]
    }

    /// Returns the number of blocks of channels.
    pub fn blocks(&self) -> usize {
        self.channels.div_ceil(panel_width())
    }

    /// Returns the number of channels of a block.
    pub fn channels_of(&self, block: usize) -> usize {
        panel_width().min(self.channels - block * panel_width())
    }
}

/// Returns whether this many columns are at least four fifths of the vectors that they take.
pub(super) fn fills(columns: usize, vector: usize) -> bool {
    columns > 0 && columns.next_multiple_of(vector) * 4 <= columns.saturating_mul(5)
}

/// Copies these pixels of some channels, whose planes are `plane` apart, to vectors that are `step` apart. There are at most
/// as many channels as a vector has elements; the other elements become 0.
pub(super) fn to_lanes(
    x: &[f32],
    plane: usize,
    (channels, pixels): (usize, Range<usize>),
    to: &mut [f32],
    step: usize,
) {
    let width = panel_width();
    if channels < width {
        to.chunks_mut(step).take(pixels.len()).for_each(|to| to[channels..width].fill(0.0));
    }
    if channels > 0 && !pixels.is_empty() {
        transpose(&x[pixels.start..], plane, [channels, pixels.len()], to, step);
    }
}

/// Copies vectors, which are `step` apart, to these pixels of some channels.
pub(super) fn from_lanes(
    lanes: &[f32],
    step: usize,
    (channels, pixels): (usize, Range<usize>),
    to: &mut [f32],
    plane: usize,
) {
    if channels > 0 && !pixels.is_empty() {
        transpose(lanes, step, [pixels.len(), channels], &mut to[pixels.start..], plane);
    }
}

/// Returns the weights w `[OC, C, taps]` as `outputs.div_ceil(width)` equal blocks of vectors of output channels.
/// Each is written by `write(kernels, input, block)` for every input: `kernels` are `[taps, width]`. If `backward`,
/// the outputs are the channels of the image, and the inputs are the channels of the result.
pub(super) fn kernels(
    w: &[f32],
    taps: usize,
    [inputs, outputs]: [usize; 2],
    backward: bool,
    places: usize,
    write: impl Fn(&[f32], usize, &mut [f32]) + Sync,
) -> Result<Scratch> {
    let width = panel_width();
    let mut all = scratch(outputs.next_multiple_of(width) * places * inputs)?;
    try_share(all.chunks_mut((places * inputs * width).max(1)).enumerate(), 1, |(block, to)| {
        let first = block * width;
        let channels = width.min(outputs - first);
        let mut lanes = scratch(KERNELS * taps * width)?;
        for input in (0..inputs).step_by(KERNELS) {
            let count = KERNELS.min(inputs - input);
            if backward {
                for (i, to) in lanes.chunks_exact_mut(taps * width).take(count).enumerate() {
                    to_lanes(&w[((input + i) * outputs + first) * taps..], taps, (channels, 0..taps), to, width);
                }
            } else {
                let some = input * taps..(input + count) * taps;
                to_lanes(&w[first * inputs * taps..], inputs * taps, (channels, some), &mut lanes, width);
            }
            for (i, kernels) in lanes.chunks_exact(taps * width).take(count).enumerate() {
                write(kernels, input + i, to);
            }
        }
        Ok(())
    })?;
    Ok(all)
}
