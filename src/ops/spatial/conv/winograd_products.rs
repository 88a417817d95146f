//! 3 × 3 convolutions with stride 1 on software adapters, by Winograd's minimal filtering (see `winograd`): tiles and kernels
//! are written in panels, as 16 matrix products, whose results are put together.

use anygpu_host::conv::plan::PLACES;

use super::geometry::Geometry;
use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel, PUT, params, shader};
use crate::error::Result;
use crate::ops::linalg::panels::{A_WIDTH, B_WIDTH, Pack, Product, Target};
use crate::ops::stored::{HALVES, Stored};
use crate::ops::{Dense, GpuIn};

params! {
    struct WeightParams {
        count: usize,
        rows: usize,
        depth: usize,
        offset: usize,
        row_step: usize,
        k_step: usize,
    }
}
shader!(WEIGHTS: WeightParams = "spatial/conv/winograd_weights", after [HALVES]);

params! {
    struct TileParams {
        count: usize,
        channels: usize,
        offset: usize,
        image: usize,
        first: usize,
        last: usize,
        tiles_y: usize,
        tiles_x: usize,
        height: usize,
        width: usize,
        pad_y: usize,
        pad_x: usize,
    }
}
shader!(TILES: TileParams = "spatial/conv/winograd_tiles", after [HALVES]);

params! {
    struct ResultParams {
        count: usize,
        tiles: usize,
        first: usize,
        tiles_y: usize,
        tiles_x: usize,
        height: usize,
        width: usize,
        image: usize,
        bias_offset: usize,
    }
}
shader!(RESULTS: ResultParams = "spatial/conv/winograd_results", after [PUT]);

/// Elements of the transformed tiles and of their products that are in memory at a time: 8 MiB, which stay in a cache.
const BLOCK: usize = 2 << 20;

/// The convolution of `images` images of one size to another.
struct Convolution<'a> {
    images: usize,
    from: Stored<'a>,
    channels: usize,
    size: [usize; 2],
    padding: [usize; 2],
    weight: Stored<'a>,
    /// The distance in the weight, in elements, from one kernel to the next: along the channels of the result, and
    /// along the channels that are read.
    steps: [usize; 2],
    /// Whether the kernels are turned by 180°.
    turned: bool,
    bias: Option<&'a GpuIn<'a, Dense>>,
    /// Channels of the result.
    rows: usize,
    out_size: [usize; 2],
}

impl Geometry {
    /// Returns the words of the largest operand of the products: the transformed kernels, or the tiles of one panel.
    pub fn winograd_words(&self) -> usize {
        let [from, to] = [self.channels, self.out_channels].map(|c| c.next_multiple_of(A_WIDTH));
        PLACES * (from.saturating_mul(to)).max(from.max(to) * B_WIDTH)
    }

    /// Returns the kernels of the convolution of x, or (`turned`) of the gradient of the image. The latter is the
    /// convolution of dy by the turned kernels, from the channels of the result to the channels of the image.
    pub fn by_winograd(
        &self,
        gpu: &Gpu,
        turned: bool,
        [from, weight]: [&GpuIn<Dense>; 2],
        bias: Option<&GpuIn<Dense>>,
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let taps = self.window.taps();
        let (mut channels, mut sizes) = ([self.channels, self.out_channels], [self.window.size, self.window.out]);
        let (mut steps, mut padding) = ([self.channels * taps, taps], self.window.params.padding);
        if turned {
            channels.reverse();
            sizes.reverse();
            steps.reverse();
            padding = padding.map(|padding| 2 - padding);
        }
        let convolution = Convolution {
            images: self.images,
            from: Stored::of(from),
            channels: channels[0],
            size: sizes[0],
            padding,
            weight: Stored::of(weight),
            steps,
            turned,
            bias,
            rows: channels[1],
            out_size: sizes[1],
        };
        convolution.kernels(gpu, BLOCK, out)
    }
}

impl Convolution<'_> {
    /// Returns the kernels of the convolution, with at most about so many elements in memory at a time.
    fn kernels(&self, gpu: &Gpu, block: usize, out: &Buffer) -> Result<Vec<Kernel>> {
        let [tiles_y, tiles_x] = self.out_size.map(|size| size.div_ceil(2));
        let (tiles, column) = (self.images * tiles_y * tiles_x, PLACES * (self.channels + self.rows));
        let step = (block / column / B_WIDTH * B_WIDTH).clamp(B_WIDTH, tiles.next_multiple_of(B_WIDTH));
        let weight = Pack::size(A_WIDTH, self.channels, self.rows);
        let weights = gpu.alloc(PLACES * weight)?;
        let panels = gpu.alloc(PLACES * self.channels * step)?;
        let products = gpu.alloc(PLACES * self.rows * step.min(tiles))?;
        let mut kernels = vec![self.transformed_weights(weight, &weights)];
        for first in (0..tiles).step_by(step) {
            let count = step.min(tiles - first);
            let padded = self.channels * count.next_multiple_of(B_WIDTH);
            let [height, width] = self.size;
            let [pad_y, pad_x] = self.padding;
            let params = TileParams {
                count: padded,
                channels: self.channels,
                offset: self.from.offset,
                image: self.channels * height * width,
                first,
                last: first + count - 1,
                tiles_y,
                tiles_x,
                height,
                width,
                pad_y,
                pad_x,
            };
            let kernel = Kernel::build(TILES, "winograd_tiles", params).constant("X_HALVES", self.from.halves());
            kernels.push(kernel.input(&self.from).output(&panels).each(padded));
            let steps = [weight, padded];
            let product = Product { m: self.rows, k: self.channels, n: count, batch: PLACES, splits: 1, steps };
            let to = Target { offset: 0, batch: self.rows * count, row: count, inner: count, outer: 0 };
            kernels.push(product.kernel(gpu, [&weights, &panels], None, &products, to)?);
            let [height, width] = self.out_size;
            let params = ResultParams {
                count: self.rows * count,
                tiles: count,
                first,
                tiles_y,
                tiles_x,
                height,
                width,
                image: self.rows * height * width,
                bias_offset: self.bias.map_or(0, |bias| bias.offset()),
            };
            let bias = self.bias.map_or(&products, AsBuffer::as_buffer);
            let kernel = Kernel::build(RESULTS, "winograd_results", params).constant("HAS_BIAS", self.bias.is_some());
            kernels.push(kernel.input(&products).input(bias).output(out).each(params.count));
        }
        Ok(kernels)
    }

    /// Returns the kernel that writes the transformed kernels, in panels of so many elements for each place.
    fn transformed_weights(&self, count: usize, to: &Buffer) -> Kernel {
        let [row_step, k_step] = self.steps;
        let (rows, depth, offset) = (self.rows, self.channels, self.weight.offset);
        let params = WeightParams { count, rows, depth, offset, row_step, k_step };
        let kernel = Kernel::build(WEIGHTS, "winograd_weights", params).constant("X_HALVES", self.weight.halves());
        kernel.constant("TURNED", self.turned).input(&self.weight).output(to).each(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Backend, Device};

    /// Every number of blocks has the same results, which are the results of the definition.
    #[test]
    fn blocks_of_tiles_meet() -> Result<()> {
        const CHANNELS: usize = 3;
        const ROWS: usize = 9;
        const IMAGES: usize = 5;
        const SIZE: [usize; 2] = [14, 11];
        let [height, width] = SIZE;
        let x: Vec<f32> = (0..IMAGES * CHANNELS * height * width).map(|i| (i * 7 % 23) as f32 - 11.0).collect();
        let w: Vec<f32> = (0..ROWS * CHANNELS * 9).map(|i| (i * 5 % 17) as f32 - 8.0).collect();
        for padding in [[0, 2], [1, 1]] {
            let out_size = [height + 2 * padding[0] - 2, width + 2 * padding[1] - 2];
            let expected = convolved([&x, &w], [IMAGES, CHANNELS, ROWS], SIZE, padding);
            for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
                let Backend::Gpu(gpu) = device.backend()? else { continue };
                let [from, weight] = [&x, &w].map(|v| gpu.upload(bytemuck::cast_slice(v)));
                let (from, weight) = (from?, weight?);
                for block in [0, 16 * (CHANNELS + ROWS) * 128, BLOCK] {
                    let out = gpu.upload(&vec![f32::NAN.to_bits(); expected.len()])?;
                    let convolution = Convolution {
                        images: IMAGES,
                        from: Stored::words(&from),
                        channels: CHANNELS,
                        size: SIZE,
                        padding,
                        weight: Stored::words(&weight),
                        steps: [CHANNELS * 9, 9],
                        turned: false,
                        bias: None,
                        rows: ROWS,
                        out_size,
                    };
                    for kernel in convolution.kernels(gpu, block, &out)? {
                        gpu.run(kernel)?;
                    }
                    // Small integers: all sums are exact, in any order.
                    let got = gpu.download(&out, 0, expected.len())?.into_iter().map(f32::from_bits);
                    assert_eq!(got.collect::<Vec<_>>(), expected, "{device}, blocks of {block}");
                }
            }
        }
        Ok(())
    }

    /// Returns the convolution by its definition.
    fn convolved(
        [x, w]: [&[f32]; 2],
        [images, channels, rows]: [usize; 3],
        [height, width]: [usize; 2],
        padding: [usize; 2],
    ) -> Vec<f32> {
        let [out_y, out_x] = [height + 2 * padding[0] - 2, width + 2 * padding[1] - 2];
        let mut out = vec![0.0; images * rows * out_y * out_x];
        for (i, sum) in out.iter_mut().enumerate() {
            let (image, row, y, column) =
                (i / (rows * out_y * out_x), i / (out_y * out_x) % rows, i / out_x % out_y, i % out_x);
            for (channel, ky, kx) in (0..channels * 9).map(|k| (k / 9, k / 3 % 3, k % 3)) {
                let (iy, ix) = ((y + ky).wrapping_sub(padding[0]), (column + kx).wrapping_sub(padding[1]));
                if iy < height && ix < width {
                    let at = ((image * channels + channel) * height + iy) * width + ix;
                    *sum += w[(row * channels + channel) * 9 + ky * 3 + kx] * x[at];
                }
            }
        }
        out
    }
}
