//! The kernels of a convolution over blocks of four images or channels, see `shaders/spatial/conv/image_blocks.wgsl` and
//! `shaders/spatial/conv/conv_blocks.wgsl`. `blocked` says what they compute.

use anygpu_host::window::WindowParams;

use crate::device::gpu::{Buffer, Kernel, PUT, params, shader, wgsl};
use crate::ops::linalg::matmul_variants::SUBGROUP_SUMS;
use crate::ops::linalg::panels::row_tiles;
use crate::ops::spatial::window::{WINDOW, constants};
use crate::ops::stored::{HALVES, Stored};

params! {
    struct BlockParams {
        count: usize,
        offset: usize,
        inner: usize,
        outer_step: usize,
        inner_step: usize,
        part_step: usize,
        parts: usize,
        part_outer: usize,
        part_inner: usize,
        height: usize,
        width: usize,
        rows: usize,
        columns: usize,
        pad_y: u32,
        pad_x: u32,
    }
}
shader!(BLOCKS: BlockParams = "spatial/conv/image_blocks", after [HALVES]);

params! {
    #[derive(Default)]
    pub(super) struct SumParams {
        m: usize,
        n: usize,
        k: usize,
        m_tiles: usize,
        n_tiles: usize,
        k_split: usize,
        splits: usize,
        image_step: usize,
        plane_step: usize,
        width: usize,
        out_y: usize,
        out_x: usize,
        offset: usize,
        split: usize,
        row: usize,
        inner: usize,
        outer: usize,
        part: usize,
        parts: usize,
        bias_offset: usize,
    }
}
shader!(SUMS: SumParams = "spatial/conv/conv_blocks", after [WINDOW, wgsl!("spatial/conv/conv_places"), PUT, SUBGROUP_SUMS]);

/// Vectors that one invocation of `image_blocks.wgsl` writes.
const RUN: usize = 8;
/// Elements of a vector.
pub(super) const FOUR: usize = 4;
/// Vectors of one subgroup of `conv_blocks.wgsl`, and subgroups of a workgroup.
const VECTORS: usize = 8;
const SUBGROUPS: usize = 8;

/// The images that a convolution reads: the channels of one group, with `padding` zeros above and left of them. The
/// padding is less than 0 where lines are left out.
pub(super) struct Images<'a> {
    pub stored: Stored<'a>,
    /// Of one image, with all groups.
    pub image: usize,
    /// Of a group.
    pub channels: usize,
    pub size: [usize; 2],
    pub padding: [isize; 2],
    /// The planes with their padding.
    pub padded: [usize; 2],
}

impl Images<'_> {
    pub fn plane(&self) -> usize {
        self.size[0] * self.size[1]
    }

    pub fn padded_plane(&self) -> usize {
        self.padded[0] * self.padded[1]
    }

    /// Returns the kernel that writes `images` images, from number `first` on, in blocks of four images.
    pub fn of_images(&self, first: usize, images: usize, to: &Buffer) -> Kernel {
        let planes = images.div_ceil(FOUR) * self.channels;
        let steps = [FOUR * self.image, self.plane(), self.image];
        self.kernel(first, planes, (self.channels, steps), (images, [FOUR, 0]), to)
    }

    /// Returns the kernel that writes `images` images, from number `first` on, in blocks of four channels.
    pub fn of_channels(&self, first: usize, images: usize, to: &Buffer) -> Kernel {
        let blocks = self.channels.div_ceil(FOUR);
        let steps = [self.image, FOUR * self.plane(), self.plane()];
        self.kernel(first, images * blocks, (blocks, steps), (self.channels, [0, FOUR]), to)
    }

    fn kernel(
        &self,
        first: usize,
        planes: usize,
        (inner, [outer_step, inner_step, part_step]): (usize, [usize; 3]),
        (parts, [part_outer, part_inner]): (usize, [usize; 2]),
        to: &Buffer,
    ) -> Kernel {
        let [rows, columns] = self.padded;
        let count = planes * rows * columns.div_ceil(RUN);
        let [pad_y, pad_x] = self.padding.map(|padding| padding as u32);
        let params = BlockParams {
            count,
            offset: self.stored.offset + first * self.image,
            inner,
            outer_step,
            inner_step,
            part_step,
            parts,
            part_outer,
            part_inner,
            height: self.size[0],
            width: self.size[1],
            rows,
            columns,
            pad_y,
            pad_x,
        };
        let kernel = Kernel::build(BLOCKS, "image_blocks", params).constant("X_HALVES", self.stored.halves());
        kernel.input(&self.stored).output(to).each(count)
    }
}

/// What the kernel of `conv_blocks.wgsl` computes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sums {
    /// The convolution, from blocks of images and the weight.
    Forward,
    /// The gradient of the image: a convolution with the kernel turned by 180°.
    InputGrad,
    /// Parts of the gradient of the weight, from blocks of channels and the gradient of the result.
    WeightGrad,
}

impl Sums {
    /// Returns the kernel. `a` is in panels of `A_WIDTH`, `x` in blocks. The numbers of tiles are set here.
    pub fn kernel(
        self,
        window: WindowParams,
        params: SumParams,
        [a, x]: [&Buffer; 2],
        bias: Option<&Buffer>,
        out: &Buffer,
    ) -> Kernel {
        let (panels, m_tiles) = row_tiles(params.m);
        let params = SumParams { m_tiles, n_tiles: params.n.div_ceil(VECTORS), ..params };
        let tasks = params.m_tiles * params.n_tiles * params.splits;
        Kernel::build(SUMS, "conv_blocks", params)
            .constants(constants(&window))
            .constant("PANELS", panels)
            .constant("HAS_BIAS", bias.is_some())
            .constant("WEIGHT_GRAD", self == Sums::WeightGrad)
            .constant("TURNED", self == Sums::InputGrad)
            .input(a)
            .input(x)
            .input(bias.unwrap_or(a))
            .output(out)
            .workgroups(tasks.div_ceil(SUBGROUPS))
    }
}
