//! The sizes of one convolution, its images as columns, and the passes in which an adapter handles them.

use std::ops::Deref;

use anygpu_host::conv::Sizes;
use anygpu_host::window::{Window, WindowParams};

use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader, wgsl};
use crate::ops::inputs::run_of;
use crate::ops::linalg::panels::B_WIDTH;
use crate::ops::spatial::window::{WINDOW, constants};
use crate::ops::stored::{HALVES, Stored};

params! {
    struct Params {
        count: usize,
        columns: usize,
        first: usize,
        offset: usize,
        add: bool,
        channels: usize,
        depth: usize,
        run: usize,
        height: usize,
        width: usize,
        out_y: usize,
        out_x: usize,
    }
}
shader!(SHADER: Params = "spatial/conv/conv", after [WINDOW, HALVES, COLUMNS, IMAGE]);
shader!(FOURS: Params = "spatial/conv/conv_fours", after [WINDOW, HALVES, COLUMNS, IMAGE]);

/// What these shaders share.
const IMAGE: &str = wgsl!("spatial/conv/conv_image");

/// The text that precedes the shaders which write columns.
pub(super) const COLUMNS: &str = wgsl!("spatial/conv/conv_columns");

/// The most elements of the columns of one adapter pass: 64 MiB, which every adapter can bind.
pub(super) const PASS: usize = 16 << 20;

/// Rows or columns of a panel that one workgroup writes; `RUN` in `conv_image.wgsl`.
const RUN: usize = 8;

/// A kernel of `conv.wgsl` or `conv_fours.wgsl`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Columns {
    /// x → panels of the columns.
    Write,
    /// The same four columns at a time, see [`Geometry::columns_kernel`].
    WriteFours,
    /// x → panels of the transposed columns.
    WriteTurned,
    /// Columns → dx.
    Add,
}

/// All sizes of one convolution, with the kernels that compute it on adapters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Geometry(pub Sizes);

impl Deref for Geometry {
    type Target = Sizes;
    fn deref(&self) -> &Sizes {
        &self.0
    }
}

/// A part of all output pixels: some whole images, or a part of one image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pass {
    /// The first image, and the number of images.
    pub image: usize,
    pub images: usize,
    /// The first pixel of each image, and the number of pixels.
    pub pixel: usize,
    pub pixels: usize,
}

impl Pass {
    pub fn columns(&self) -> usize {
        self.images * self.pixels
    }
}

impl Geometry {
    /// Returns the passes of an adapter: each has as many whole images as fit, or a part of an image that does not fit.
    /// Also returns the number of columns of the widest pass, for buffers that all passes use in turn.
    pub fn passes(&self) -> (Vec<Pass>, usize) {
        // The gradients store a pixel's column, or the gradient of its channels, in whole panels.
        let column = self.depth().next_multiple_of(64).max(self.group_out().next_multiple_of(8));
        self.passes_of((PASS / column / 64 * 64).max(64))
    }

    /// As [`Geometry::passes`], with at most `most` columns.
    pub fn passes_of(&self, most: usize) -> (Vec<Pass>, usize) {
        let pixels = self.window.pixels();
        let step = (most / pixels.max(1)).max(1);
        let mut passes = Vec::new();
        for image in (0..self.images).step_by(step) {
            let images = step.min(self.images - image);
            if pixels <= most {
                passes.push(Pass { image, images, pixel: 0, pixels });
                continue;
            }
            for pixel in (0..pixels).step_by(most) {
                passes.push(Pass { image, images, pixel, pixels: most.min(pixels - pixel) });
            }
        }
        let widest = passes.iter().map(Pass::columns).max().unwrap_or(0);
        (passes, widest)
    }

    /// Returns the kernel that writes the columns of one group of a pass's images. On software adapters it writes four at a time,
    /// if they are neighbours in a row.
    pub fn columns_kernel(&self, gpu: &Gpu, (pass, group): (&Pass, usize), x: Stored, to: &Buffer) -> Kernel {
        // The pixels of a plane are one row where each window is a pixel.
        let pixels = self.window.pixels();
        let flat = Window { size: [1, pixels], out: [1, pixels], ..self.window };
        let WindowParams { stride, padding, .. } = self.window.params;
        let is_flat = self.window.taps() == 1 && stride == [1, 1] && padding == [0, 0];
        let flat = Geometry(Sizes { window: if is_flat { flat } else { self.window }, ..self.0.clone() });
        let in_fours = gpu.caps().software && flat.window.out[1].is_multiple_of(4) && pass.pixel.is_multiple_of(4);
        match in_fours {
            true => flat.kernel(Columns::WriteFours, (pass, group), (x, to)),
            false => self.kernel(Columns::Write, (pass, group), (x, to)),
        }
    }

    /// Returns a kernel of `conv.wgsl` or `conv_fours.wgsl` over one group of a pass's images: from x, or from columns of f32 to dx.
    pub fn kernel(&self, kernel: Columns, (pass, group): (&Pass, usize), (from, to): (Stored, &Buffer)) -> Kernel {
        let (rows, columns) = (self.depth(), pass.columns());
        let [height, width] = self.window.size;
        let [out_y, out_x] = self.window.out;
        let depth = self.group_channels();
        let run = run_of(pass.images * self.group_image(), self.window.params.loops());
        let count = pass.images * depth.div_ceil(run) * self.window.plane();
        let params = Params {
            count,
            columns,
            first: pass.pixel,
            offset: from.offset + pass.image * self.image() + group * self.group_image(),
            add: pass.pixel > 0,
            channels: self.channels,
            depth,
            run,
            height,
            width,
            out_y,
            out_x,
        };
        let (shader, entry) = match kernel {
            Columns::Write => (SHADER, "im2col"),
            Columns::WriteFours => (FOURS, "im2col_fours"),
            Columns::WriteTurned => (SHADER, "im2col_turned"),
            Columns::Add => (SHADER, "col2im"),
        };
        let built = Kernel::build(shader, entry, params).constants(constants(&self.window.params));
        let built = built.constant("X_HALVES", from.halves()).input(&from).output(to);
        let runs = columns.div_ceil(B_WIDTH) * rows.div_ceil(RUN);
        match kernel {
            Columns::Write => built.workgroups(runs),
            Columns::WriteFours => built.each(runs * (B_WIDTH / 4)),
            Columns::WriteTurned => built.workgroups(rows.div_ceil(B_WIDTH) * columns.div_ceil(RUN)),
            Columns::Add => built.each(count),
        }
    }
}
