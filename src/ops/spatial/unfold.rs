//! The pixels under windows as columns, and back: `im2col` and `col2im`. Each is the gradient of the other.

use std::sync::Arc;

use anygpu_host::tasks::share;
use anygpu_host::window::{Window, WindowParams};

use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::error::{Error, Result};
use crate::ops::inputs::{SCALAR_HEADERS, loops_within, scalar_header};
use crate::ops::names::{Names, names};
use crate::ops::spatial::window::{Sizes, over, window_setters};
use crate::ops::traced::Traced;
use crate::ops::{Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply};
use crate::tensor::Tensor;

params! {
    struct Params {
        count: usize, height: usize, width: usize, rows: usize, columns: usize, offset: usize, kernel_y: usize, kernel_x: usize,
        stride_y: usize, stride_x: usize, pad_y: usize, pad_x: usize, dilation_y: usize, dilation_x: usize,
    }
}
shader!(SHADER: Params = "spatial/unfold", headers || SCALAR_HEADERS.to_vec());

/// The windows of [`Tensor::unfold`] and [`Tensor::fold`].
///
/// Sizes are one number for both directions, or `[vertical, horizontal]`. The stride is 1 unless it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Unfold<const D: usize> {
    window: WindowParams<D>,
}

window_setters! {
    Unfold {
        /// Sets the step from one window to the next.
        stride;
        /// Sets the zeros around the image.
        padding;
        /// Sets the distance between neighbouring pixels of a window.
        dilation;
    }
}

impl<const D: usize> Unfold<D> {
    /// Returns windows of size `kernel`, one at each pixel, without padding and dilation.
    pub fn new(kernel: impl Sizes<D>) -> Self {
        let window = WindowParams { kernel: kernel.sizes(), stride: [1; D], padding: [0; D], dilation: [1; D] };
        Unfold { window }
    }
}

fn params(window: &Window, count: usize, offset: usize) -> Params {
    let Window { params: WindowParams { kernel, stride, padding, dilation }, size, out } = *window;
    let ([height, width], [rows, columns]) = (size, out);
    let ([kernel_y, kernel_x], [stride_y, stride_x]) = (kernel, stride);
    let ([pad_y, pad_x], [dilation_y, dilation_x]) = (padding, dilation);
    Params {
        count,
        height,
        width,
        rows,
        columns,
        offset,
        kernel_y,
        kernel_x,
        stride_y,
        stride_x,
        pad_y,
        pad_x,
        dilation_y,
        dilation_x,
    }
}

/// `[N, C, H, W]` → `[N, C · kernel, windows]`
#[derive(Clone, Copy, Debug)]
struct ToColumns(Window);

impl Op for ToColumns {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["unfold"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Columns(self.0))
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let (shape, window) = (inputs[0].shape(), &self.0);
        Ok((vec![shape[0], shape[1] * window.taps(), window.pixels()], inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (x, window) = (inputs[0].slice::<u32>(), &self.0);
        // Each item is one position of the kernel on one plane.
        share(out.0.chunks_mut(window.pixels()).enumerate(), 1, |(i, out)| {
            let plane = &x[i / window.taps() * window.plane()..][..window.plane()];
            out.fill(0);
            window.rows(i % window.taps(), |first, pixel, count| {
                let pixels = plane[pixel..].iter().step_by(window.params.stride[1]);
                out[first..][..count].iter_mut().zip(pixels).for_each(|(out, &v)| *out = v);
            });
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, window) = (&inputs[0], &self.0);
        let count = x.shape()[0] * x.shape()[1] * window.taps() * window.pixels();
        let kernel =
            Kernel::build(SHADER, "unfold", params(window, count, x.offset())).header(scalar_header(x.dtype()));
        Ok(vec![kernel.input(x).output(out).each(count)])
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![Some(apply(ToPlanes(self.0), &[ctx.grad])?)])
    }
}

/// `[N, C · kernel, windows]` → `[N, C, H, W]`
#[derive(Clone, Copy, Debug)]
struct ToPlanes(Window);

impl Op for ToPlanes {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = names!["fold"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Planes(self.0))
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let (shape, [h, w]) = (inputs[0].shape(), self.0.size);
        Ok((vec![shape[0], shape[1] / self.0.taps(), h, w], inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (x, out, window) = (inputs[0].slice::<f32>(), out.slice::<f32>(), &self.0);
        let lines = window.taps() * window.pixels();
        share(out.chunks_mut(window.plane()).zip(x.chunks(lines)), 1, |(out, x)| {
            out.fill(0.0);
            for (tap, line) in x.chunks(window.pixels()).enumerate() {
                window.rows(tap, |first, pixel, count| {
                    let pixels = out[pixel..].iter_mut().step_by(window.params.stride[1]);
                    pixels.zip(&line[first..][..count]).for_each(|(out, v)| *out += v);
                });
            }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, window) = (&inputs[0], &self.0);
        loops_within("fold", window.params.loops(), || format!("a kernel of {:?}", window.params.kernel))?;
        let count = x.shape()[0] * x.shape()[1] / window.taps() * window.plane();
        let kernel = Kernel::build(SHADER, "fold", params(window, count, x.offset())).header(SCALAR_HEADERS[0]);
        Ok(vec![kernel.input(x).output(out).each(count)])
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![Some(apply(ToColumns(self.0), &[ctx.grad])?)])
    }
}

impl Tensor {
    /// Returns the pixels under windows as columns: `[N, C, H, W]` → `[N, C · kh · kw, L]` with L windows, in rows.
    ///
    /// This is `torch.nn.functional.unfold` (im2col), not `torch.Tensor.unfold`. Pixels in the padding are 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if this is not `[N, C, H, W]`, the windows do not fit, or a size of them is 0.
    ///
    /// ```
    /// # use anygpu::{Tensor, Unfold};
    /// let x = Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], None)?.reshape([1, 1, 2, 3])?;
    /// let columns = x.unfold(Unfold::new(2))?;
    /// assert_eq!(columns.squeeze(0)?.to_vec2::<f32>()?, [[1.0, 2.0], [2.0, 3.0], [4.0, 5.0], [5.0, 6.0]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn unfold(&self, windows: Unfold<2>) -> Result<Tensor> {
        let &[_, _, h, w] = self.shape() else {
            return Err(Error::argument("unfold", format!("the input is [N, C, H, W], not {:?}", self.shape())));
        };
        apply(ToColumns(over(windows.window, "unfold", [h, w], false)?), &[self])
    }

    /// Adds columns up to images of size `size`, the reverse of [`Tensor::unfold`]: `[N, C · kh · kw, L]` →
    /// `[N, C, h, w]`.
    ///
    /// A pixel under several windows is the sum of their columns. This is `torch.nn.functional.fold` (col2im).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the columns do not match these windows on an image of that size;
    /// [`Error::DTypeMismatch`] unless the type is a float.
    ///
    /// ```
    /// # use anygpu::{Tensor, Unfold};
    /// let x = Tensor::ones([1, 1, 2, 3], None)?;
    /// let windows = Unfold::new([2, 2]);
    /// let counts = x.unfold(windows)?.fold([2, 3], windows)?;
    /// assert_eq!(counts.to_vec::<f32>()?, [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn fold(&self, size: impl Sizes<2>, windows: Unfold<2>) -> Result<Tensor> {
        let window = over(windows.window, "fold", size.sizes(), false)?;
        match *self.shape() {
            [_, lines, count] if lines % window.taps() == 0 && count == window.pixels() => {}
            _ => {
                let (taps, count) = (window.taps(), window.pixels());
                let detail = format!("the input is [N, C · {taps}, {count}] for these windows, not {:?}", self.shape());
                return Err(Error::argument("fold", detail));
            }
        }
        apply(ToPlanes(window), &[self])
    }
}
