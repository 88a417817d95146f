//! 2-D convolution (cross-correlation, as in every deep-learning library):
//! `y[n, o, i, j] = b[o] + Σ_{c, u, v} w[o, c, u, v] · x[n, c, i·s + u − p, j·s + v − p]`.
//!
//! Both backends turn images into matrices (im2col) and multiply: the CPU image by image, so that a matrix stays in its
//! cache; an adapter many images at once, straight into the panels of `matmul`.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::conv_grad::{InputGrad, WeightGrad};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid};
use crate::ops::matmul::{Operand, Pack, Product, Target, Threads, Walk, gemm};
use crate::ops::{Gradient, Op, Spec, apply, expect_dtype, shader};
use crate::tensor::Tensor;

pub(super) const SHADER: Shader = shader!("conv");

/// Columns that one adapter pass may hold, in elements: 64 MiB, within every adapter's binding.
const PASS: usize = 16 << 20;

/// All sizes of one convolution.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Geometry {
    pub images: usize,
    pub channels: usize,
    pub size: [usize; 2],
    pub out_channels: usize,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub out: [usize; 2],
}

impl Geometry {
    fn new(x: &[usize], w: &[usize], stride: [usize; 2], padding: [usize; 2]) -> Result<Geometry> {
        let (&[images, channels, h, wd], &[out_channels, w_channels, kh, kw]) = (x, w) else {
            return Err(Error::shapes("conv2d", x, w, "the input is [N, C, H, W], the weight [OC, C, KH, KW]"));
        };
        if channels != w_channels {
            let detail = format!("the input has {channels} channels, the weight is for {w_channels}");
            return Err(Error::shapes("conv2d", x, w, detail));
        }
        let out = output_size("conv2d", [h, wd], [kh, kw], stride, padding)?;
        let (size, kernel) = ([h, wd], [kh, kw]);
        Ok(Geometry { images, channels, size, out_channels, kernel, stride, padding, out })
    }

    /// Rows of the column matrix: C·KH·KW.
    pub fn depth(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// Output pixels of an image and channel.
    pub fn pixels(&self) -> usize {
        self.out[0] * self.out[1]
    }

    /// Elements of one input image.
    pub fn image(&self) -> usize {
        self.channels * self.size[0] * self.size[1]
    }

    /// Elements of one output image.
    pub fn out_image(&self) -> usize {
        self.out_channels * self.pixels()
    }

    /// Ranges of images whose columns fit into one pass on an adapter: first image and count.
    pub fn passes(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        // The gradients lay a pixel's column, or its channels' gradient, out in whole panels.
        let column = self.depth().next_multiple_of(64).max(self.out_channels.next_multiple_of(8));
        let most = (PASS / (column * self.pixels()).max(1)).max(1);
        let images = self.images;
        (0..images).step_by(most).map(move |first| (first, most.min(images - first)))
    }

    /// The constants that the kernels of `conv.wgsl` are compiled with.
    fn constants(&self) -> Vec<(&'static str, f64)> {
        let mut constants = window_constants(self.size, self.kernel, self.stride, self.padding, self.out);
        constants.push(("CHANNELS", self.channels as f64));
        constants
    }

    /// A kernel of `conv.wgsl`.
    pub fn kernel_of(
        &self,
        entry: &'static str,
        (count, images, offset): (usize, usize, usize),
        from: &Buffer,
        to: &Buffer,
    ) -> Result<Kernel> {
        Ok(Kernel {
            shader: SHADER,
            entry,
            header: "",
            constants: self.constants(),
            params: vec![fits_u32("conv2d", count)?, images as u32, offset as u32],
            inputs: vec![from.clone()],
            outputs: vec![to.clone()],
            groups: grid(count),
        })
    }

    /// One image `[C, H, W]` as columns `[C·KH·KW, OH·OW]` on the host.
    pub fn im2col(&self, x: &[f32], cols: &mut [f32]) {
        let [h, w] = self.size;
        let [oh, ow] = self.out;
        for (row, cols) in cols.chunks_mut(oh * ow).enumerate() {
            let [c, ky, kx] = self.row(row);
            for (oy, line) in cols.chunks_mut(ow).enumerate() {
                let Some(y) = (oy * self.stride[0] + ky).checked_sub(self.padding[0]).filter(|&y| y < h) else {
                    line.fill(0.0);
                    continue;
                };
                let source = &x[(c * h + y) * w..][..w];
                if self.stride[1] == 1 && self.padding[1] == 0 {
                    line.copy_from_slice(&source[kx..kx + ow]);
                    continue;
                }
                for (ox, v) in line.iter_mut().enumerate() {
                    let at = (ox * self.stride[1] + kx).checked_sub(self.padding[1]);
                    *v = at.and_then(|at| source.get(at)).copied().unwrap_or(0.0);
                }
            }
        }
    }

    /// Adds columns back to the pixels that [`Geometry::im2col`] took them from.
    pub fn col2im(&self, cols: &[f32], dx: &mut [f32]) {
        let [h, w] = self.size;
        let [oh, ow] = self.out;
        for (row, cols) in cols.chunks(oh * ow).enumerate() {
            let [c, ky, kx] = self.row(row);
            for (oy, line) in cols.chunks(ow).enumerate() {
                let Some(y) = (oy * self.stride[0] + ky).checked_sub(self.padding[0]).filter(|&y| y < h) else {
                    continue;
                };
                let target = &mut dx[(c * h + y) * w..][..w];
                if self.stride[1] == 1 && self.padding[1] == 0 {
                    target[kx..kx + ow].iter_mut().zip(line).for_each(|(t, v)| *t += v);
                    continue;
                }
                for (ox, v) in line.iter().enumerate() {
                    let at = (ox * self.stride[1] + kx).checked_sub(self.padding[1]);
                    if let Some(t) = at.and_then(|at| target.get_mut(at)) {
                        *t += v;
                    }
                }
            }
        }
    }

    /// The channel and kernel position of a row of the column matrix.
    fn row(&self, row: usize) -> [usize; 3] {
        let [kh, kw] = self.kernel;
        [row / (kh * kw), row / kw % kh, row % kw]
    }
}

/// The geometry of sliding windows as the shaders' override constants.
pub(super) fn window_constants(
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    out: [usize; 2],
) -> Vec<(&'static str, f64)> {
    let names = [
        ["HEIGHT", "WIDTH"],
        ["KERNEL_Y", "KERNEL_X"],
        ["STRIDE_Y", "STRIDE_X"],
        ["PAD_Y", "PAD_X"],
        ["OUT_Y", "OUT_X"],
    ];
    let values = [size, kernel, stride, padding, out];
    names.into_iter().flatten().zip(values.into_iter().flatten().map(|v| v as f64)).collect()
}

/// The size of a sliding window's output: `⌊(size + 2·padding − kernel) / stride⌋ + 1` in each direction.
pub(super) fn output_size(
    op: &'static str,
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
) -> Result<[usize; 2]> {
    if kernel.contains(&0) || stride.contains(&0) {
        return Err(Error::argument(op, format!("kernel {kernel:?} and stride {stride:?} must not be 0")));
    }
    let fit = |d: usize| {
        let padded = size[d].checked_add(padding[d].checked_mul(2)?)?;
        padded.checked_sub(kernel[d]).map(|room| room / stride[d] + 1)
    };
    match (fit(0), fit(1)) {
        (Some(h), Some(w)) => Ok([h, w]),
        _ => Err(Error::argument(
            op,
            format!("kernel {kernel:?} is larger than the image {size:?} with padding {padding:?}"),
        )),
    }
}

#[derive(Debug)]
struct Conv2d {
    stride: [usize; 2],
    padding: [usize; 2],
}

impl Conv2d {
    fn geometry(&self, x: &[usize], w: &[usize]) -> Result<Geometry> {
        Geometry::new(x, w, self.stride, self.padding)
    }
}

impl Op for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        inputs.iter().try_for_each(|t| expect_dtype("conv2d", t, DType::F32))?;
        let g = self.geometry(inputs[0].shape(), inputs[1].shape())?;
        if let Some(bias) = inputs.get(2).filter(|b| b.shape() != [g.out_channels]) {
            let detail = format!("the bias is [{}], one for each output channel", g.out_channels);
            return Err(Error::shapes("conv2d", inputs[1].shape(), bias.shape(), detail));
        }
        Ok(Spec::Fresh(vec![g.images, g.out_channels, g.out[0], g.out[1]], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let g = self.geometry(&inputs[0].layout.shape, &inputs[1].layout.shape)?;
        let (x, w, out) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>());
        let bias = inputs.get(2).map(|b| b.slice::<f32>());
        let (depth, pixels) = (g.depth(), g.pixels());
        out.par_chunks_mut(g.out_image()).enumerate().for_each_init(
            || vec![0f32; depth * pixels],
            |cols, (n, y)| {
                g.im2col(&x[n * g.image()..][..g.image()], cols);
                if let Some(bias) = bias {
                    y.chunks_mut(pixels).zip(bias).for_each(|(y, b)| y.fill(*b));
                }
                let (a, b) = (Operand::new(w, 0, [depth, 1]), Operand::new(cols, 0, [pixels, 1]));
                gemm(y, a, b, [g.out_channels, depth, pixels], bias.is_some(), Threads::One);
            },
        );
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let g = self.geometry(&inputs[0].layout.shape, &inputs[1].layout.shape)?;
        let (x, w, bias) = (&inputs[0], &inputs[1], inputs.get(2));
        let (depth, pixels, oc) = (g.depth(), g.pixels(), g.out_channels);
        if depth == 0 {
            return Err(Error::argument("conv2d", "the weight has no elements"));
        }
        let left = Pack::left(depth, oc, Walk::even(depth, 1), Walk::even(oc, depth));
        let weights = left.alloc(gpu)?;
        let mut kernels = vec![left.kernel(w.buffer, w.layout.offset, 1, 0, &weights)?];
        for (first, images) in g.passes() {
            let columns = images * pixels;
            let count = columns.next_multiple_of(64) * depth;
            let cols = gpu.alloc(count)?;
            let from = x.layout.offset + first * g.image();
            kernels.push(g.kernel_of("im2col", (count, images, from), x.buffer, &cols)?);
            let product = Product { m: oc, k: depth, n: columns, batch: 1, splits: 1, steps: [0, 0] };
            let to =
                Target { offset: first * g.out_image(), batch: 0, row: pixels, inner: pixels, outer: g.out_image() };
            let bias = bias.map(|b| (b.buffer, b.layout.offset));
            kernels.push(product.kernel([&weights, &cols], bias, out, to)?);
        }
        Ok(kernels)
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let (x, w, grad) = (ctx.inputs[0].detach(), ctx.inputs[1].detach(), ctx.grad.contiguous()?);
        let g = self.geometry(x.shape(), w.shape())?;
        let dx = ctx.needs[0].then(|| apply(InputGrad(g.clone()), &[&grad, &w])).transpose()?;
        let dw = ctx.needs[1].then(|| apply(WeightGrad(g.clone()), &[&grad, &x])).transpose()?;
        let mut all = vec![dx, dw];
        if let Some(&wanted) = ctx.needs.get(2) {
            all.push(wanted.then(|| grad.sum(&[0, 2, 3], false)).transpose()?);
        }
        Ok(all)
    }
}

impl Tensor {
    /// 2-D convolution: `[N, C, H, W]` with weights `[OC, C, KH, KW]` and an optional bias `[OC]` →
    /// `[N, OC, (H + 2p − KH) / s + 1, (W + 2p − KW) / s + 1]`. `stride` and `padding` are `[vertical, horizontal]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if channels or ranks do not go together; [`Error::InvalidArgument`] if the kernel is
    /// larger than the padded image or the stride is 0; [`Error::DeviceMismatch`]; [`Error::DTypeMismatch`] unless f32.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::arange(0.0, 9.0, 1.0, None)?.reshape([1, 1, 3, 3])?;
    /// let w = Tensor::ones([1, 1, 2, 2], None)?;
    /// let y = x.conv2d(&w, None, [1, 1], [0, 0])?;
    /// assert_eq!(y.to_vec::<f32>()?, [8.0, 12.0, 20.0, 24.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn conv2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        stride: [usize; 2],
        padding: [usize; 2],
    ) -> Result<Tensor> {
        let (x, w) = (self.contiguous()?, weight.contiguous()?);
        let bias = bias.map(Tensor::contiguous).transpose()?;
        let mut inputs = vec![&x, &w];
        inputs.extend(&bias);
        apply(Conv2d { stride, padding }, &inputs)
    }
}
