//! Sliding windows over planes `[H, W]`: the code that convolution and pooling share.

use crate::device::gpu::wgsl;
use crate::error::{Error, Result};

/// The text that precedes the shaders with sliding windows: their settings as override constants.
pub(in crate::ops) const WINDOW: &str = wgsl!("window");

/// The largest size: the shaders add up to three sizes in 32 bits.
const MOST: usize = 1 << 30;

/// One size for each of `D` dimensions: an array, or one number for all of them.
///
/// ```
/// use anygpu::Conv;
/// assert_eq!(Conv::<2>::new().stride(2), Conv::new().stride([2, 2]));
/// ```
pub trait Sizes<const D: usize> {
    /// Returns the sizes, outermost dimension first.
    fn sizes(self) -> [usize; D];
}

impl<const D: usize> Sizes<D> for usize {
    fn sizes(self) -> [usize; D] {
        [self; D]
    }
}

impl<const D: usize> Sizes<D> for [usize; D] {
    fn sizes(self) -> [usize; D] {
        self
    }
}

/// The parameters by which windows of one size move over `D` dimensions, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowParams<const D: usize = 2> {
    pub kernel: [usize; D],
    pub stride: [usize; D],
    pub padding: [usize; D],
    pub dilation: [usize; D],
}

/// Defines methods of options that set one of the `window`'s parameters.
macro_rules! window_setters {
    ($options:ident { $($(#[$doc:meta])* $name:ident;)* }) => {
        impl<const D: usize> $options<D> {
            $(
                $(#[$doc])*
                pub fn $name(mut self, $name: impl Sizes<D>) -> Self {
                    self.window.$name = $name.sizes();
                    self
                }
            )*
        }
    };
}
pub(super) use window_setters;

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
    /// Returns the length that the kernel covers in one direction: `dilation · (kernel − 1) + 1`.
    pub fn span(&self, d: usize) -> usize {
        self.dilation[d].saturating_mul(self.kernel[d].saturating_sub(1)).saturating_add(1)
    }

    /// Checks that kernel, stride and dilation are not 0, and that all sizes fit in the shaders' integers.
    pub fn check(&self, op: &'static str, size: [usize; D]) -> Result<()> {
        let WindowParams { kernel, stride, padding, dilation } = *self;
        if kernel.contains(&0) || stride.contains(&0) || dilation.contains(&0) {
            let detail = format!("kernel {kernel:?}, stride {stride:?} and dilation {dilation:?} must not be 0");
            return Err(Error::argument(op, detail));
        }
        let numbers = [size, stride, padding, std::array::from_fn(|d| self.span(d))];
        match numbers.as_flattened().iter().max() {
            Some(&most) if most > MOST => Err(Error::argument(op, format!("a size of {most} is more than {MOST}"))),
            _ => Ok(()),
        }
    }

    /// Returns the number of windows in each direction, after [`WindowParams::check`]:
    /// `⌊(size + 2·padding − span) / stride⌋ + 1`. With `ceil`, there is also the window that starts in the image or its
    /// first padding and extends past the end.
    pub fn counts(&self, op: &'static str, size: [usize; D], ceil: bool) -> Result<[usize; D]> {
        self.check(op, size)?;
        let mut counts = [0; D];
        for (d, count) in counts.iter_mut().enumerate() {
            let Some(room) = (size[d] + 2 * self.padding[d]).checked_sub(self.span(d)) else {
                let WindowParams { kernel, padding, dilation, .. } = self;
                let dilated = if *dilation == [1; D] { String::new() } else { format!(" with dilation {dilation:?}") };
                let detail =
                    format!("kernel {kernel:?}{dilated} is larger than the image {size:?} with padding {padding:?}");
                return Err(Error::argument(op, detail));
            };
            let whole = room / self.stride[d] + 1;
            let more = ceil && room % self.stride[d] > 0 && whole * self.stride[d] < size[d] + self.padding[d];
            *count = whole + usize::from(more);
        }
        Ok(counts)
    }
}

impl WindowParams {
    /// Returns the loop iterations of an invocation that visits every position of a kernel.
    pub fn loops(&self) -> usize {
        self.kernel[0].saturating_mul(self.kernel[1].saturating_add(1))
    }

    /// Returns the constants of `window.wgsl`.
    pub fn constants(&self) -> impl Iterator<Item = (&'static str, usize)> + use<> {
        let WindowParams { kernel, stride, padding, dilation } = *self;
        let names =
            [["KERNEL_Y", "KERNEL_X"], ["STRIDE_Y", "STRIDE_X"], ["PAD_Y", "PAD_X"], ["DILATION_Y", "DILATION_X"]];
        names.into_iter().flatten().zip([kernel, stride, padding, dilation].into_iter().flatten())
    }

    /// Returns the windows over planes of one size, as many as [`WindowParams::counts`] says.
    pub fn over(self, op: &'static str, size: [usize; 2], ceil: bool) -> Result<Window> {
        Ok(Window { params: self, size, out: self.counts(op, size, ceil)? })
    }
}

/// The windows over planes of one size, and their number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Window {
    pub params: WindowParams,
    pub size: [usize; 2],
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
    fn reach(&self, d: usize, k: usize) -> std::ops::Range<usize> {
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
