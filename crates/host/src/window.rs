//! Sliding windows over planes `[H, W]`, which convolutions and pooling share.

use std::ops::Range;

/// The parameters by which windows of one size move over `D` dimensions, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowParams<const D: usize = 2> {
    /// The size of a window in positions.
    pub kernel: [usize; D],
    /// The pixels from a window to the next.
    pub stride: [usize; D],
    /// The zeros on each side of the image.
    pub padding: [usize; D],
    /// The pixels from a position to the next.
    pub dilation: [usize; D],
}

impl WindowParams<1> {
    /// Returns the same windows for images of height 1: they move along the width.
    pub fn flat(self) -> WindowParams {
        let after = |first: usize, [second]: [usize; 1]| [first, second];
        WindowParams {
            kernel: after(1, self.kernel),
            stride: after(1, self.stride),
            padding: after(0, self.padding),
            dilation: after(1, self.dilation),
        }
    }
}

impl WindowParams<3> {
    /// Returns the windows' part within the planes `[H, W]` of a volume.
    pub fn planes(self) -> WindowParams {
        let after = |[_, height, width]: [usize; 3]| [height, width];
        let WindowParams { kernel, stride, padding, dilation } = self;
        WindowParams {
            kernel: after(kernel),
            stride: after(stride),
            padding: after(padding),
            dilation: after(dilation),
        }
    }

    /// Returns the windows' part along the depth of a volume, for planes `[D, H·W]`.
    pub fn depth(self) -> WindowParams {
        let first = |[depth, _, _]: [usize; 3], second: usize| [depth, second];
        let WindowParams { kernel, stride, padding, dilation } = self;
        WindowParams {
            kernel: first(kernel, 1),
            stride: first(stride, 1),
            padding: first(padding, 0),
            dilation: first(dilation, 1),
        }
    }
}

impl<const D: usize> WindowParams<D> {
    /// Returns the number of windows over `size` in each direction, `⌊(size + 2·padding − span) / stride⌋ + 1`, or the first direction
    /// in which the kernel is larger than that. With `ceil`, there is also the window that starts in the image or its first padding
    /// and extends past the end.
    pub fn counts(&self, size: [usize; D], ceil: bool) -> Result<[usize; D], usize> {
        let mut counts = [0; D];
        for (d, count) in counts.iter_mut().enumerate() {
            let room = (size[d] + 2 * self.padding[d]).checked_sub(self.span(d)).ok_or(d)?;
            let whole = room / self.stride[d] + 1;
            let more = ceil && room % self.stride[d] > 0 && whole * self.stride[d] < size[d] + self.padding[d];
            *count = whole + usize::from(more);
        }
        Ok(counts)
    }

    /// Returns the length that the kernel covers in one direction: `dilation · (kernel − 1) + 1`.
    pub fn span(&self, d: usize) -> usize {
        self.dilation[d].saturating_mul(self.kernel[d].saturating_sub(1)).saturating_add(1)
    }
}

impl WindowParams {
    /// Returns the windows over planes of one size, as [`WindowParams::counts`].
    pub fn over(self, size: [usize; 2], ceil: bool) -> Result<Window, usize> {
        Ok(Window { params: self, size, out: self.counts(size, ceil)? })
    }

    /// Returns the loop iterations of an invocation that visits every position of a kernel.
    pub fn loops(&self) -> usize {
        self.kernel[0].saturating_mul(self.kernel[1].saturating_add(1))
    }
}

/// The windows over planes of one size, and their number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// The windows.
    pub params: WindowParams,
    /// The size of a plane.
    pub size: [usize; 2],
    /// The number of windows.
    pub out: [usize; 2],
}

impl Window {
    /// Returns the number of positions in a kernel.
    pub fn taps(&self) -> usize {
        self.params.kernel[0] * self.params.kernel[1]
    }

    /// Returns the number of windows on a plane.
    pub fn pixels(&self) -> usize {
        self.out[0] * self.out[1]
    }

    /// Returns the number of pixels of a plane.
    pub fn plane(&self) -> usize {
        self.size[0] * self.size[1]
    }

    /// Returns the windows whose kernel position `k` reads within the image, in direction `d`.
    fn reach(&self, d: usize, k: usize) -> Range<usize> {
        let WindowParams { stride, padding, dilation, .. } = self.params;
        let end = (self.size[d] + padding[d]).saturating_sub(k * dilation[d]).div_ceil(stride[d]).min(self.out[d]);
        padding[d].saturating_sub(k * dilation[d]).div_ceil(stride[d]).min(end)..end
    }

    /// Returns each line of windows that reads a line of the image at line `at` of the kernel, and that line of the image.
    pub fn lines(&self, at: usize) -> impl Iterator<Item = [usize; 2]> {
        let WindowParams { stride, padding, dilation, .. } = self.params;
        self.reach(0, at).map(move |y| [y, y * stride[0] + at * dilation[0] - padding[0]])
    }

    /// Calls `f` for each row of windows whose kernel position `tap` (row-major) reads within the image, with the first
    /// window, the pixel that it reads, and the number of windows. The pixels are a stride apart.
    pub fn rows(&self, tap: usize, mut f: impl FnMut(usize, usize, usize)) {
        let WindowParams { kernel, stride, padding, dilation } = self.params;
        let (ky, kx) = (tap / kernel[1], tap % kernel[1]);
        let columns = self.reach(1, kx);
        if columns.is_empty() {
            return;
        }
        let x = columns.start * stride[1] + kx * dilation[1] - padding[1];
        for [oy, y] in self.lines(ky) {
            f(oy * self.out[1] + columns.start, y * self.size[1] + x, columns.len());
        }
    }

    /// Returns for each position of the kernel the windows, and the pixels that they read there.
    pub fn by_position(&self) -> Vec<Vec<[usize; 2]>> {
        self.by(self.taps(), |[tap, window, pixel]| (tap, [window, pixel]))
    }

    /// Returns for each window the positions of the kernel, and the pixels that they read.
    pub fn by_window(&self) -> Vec<Vec<[usize; 2]>> {
        self.by(self.pixels(), |[tap, window, pixel]| (window, [tap, pixel]))
    }

    /// Returns for each pixel of the image the positions of the kernel, and the windows that read it there.
    pub fn by_pixel(&self) -> Vec<Vec<[usize; 2]>> {
        self.by(self.plane(), |[tap, window, pixel]| (pixel, [tap, window]))
    }

    /// Returns the reads of the image `[position, window, pixel]` under the keys that `key` gives them, in the order of the positions.
    fn by(&self, keys: usize, key: impl Fn([usize; 3]) -> (usize, [usize; 2])) -> Vec<Vec<[usize; 2]>> {
        let mut all = vec![Vec::new(); keys];
        for tap in 0..self.taps() {
            self.rows(tap, |window, pixel, len| {
                for i in 0..len {
                    let (key, read) = key([tap, window + i, pixel + i * self.params.stride[1]]);
                    all[key].push(read);
                }
            });
        }
        all
    }
}
