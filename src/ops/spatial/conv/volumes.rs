//! Convolution over three dimensions, by convolutions over two. The planes under the kernel at one depth of the result become
//! channels of one image: `[N, C, D, H, W]` is `[N·OD, C·KD, H, W]`, and the weight `[OC, C / groups, KD, KH, KW]` is
//! `[OC, C / groups · KD, KH, KW]` without a copy. The transpose does the same backwards: the planes of its result are added
//! at the depths where they belong.

use anygpu_host::window::WindowParams;

use super::grad::InputGrad;
use super::{Conv, ConvPadding, check_bias};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::autocast::lowered;
use crate::ops::shape::pad::Padding;
use crate::ops::spatial::window::counts;
use crate::ops::{apply, named};
use crate::tensor::Tensor;

const ZEROS: Padding = Padding::Constant(0.0);

impl Conv<3> {
    /// Returns the options for the planes `[H, W]`.
    fn planes(&self, margins: [[usize; 2]; 3], [_, height, width]: [usize; 3]) -> Conv<2> {
        let [_, vertical, horizontal] = margins;
        Conv {
            window: self.window.planes(),
            padding: ConvPadding::Each([vertical, horizontal]),
            output_padding: [height, width],
            groups: self.groups,
        }
    }
}

/// Returns the planes that each window along the depth reads: `[N, D, C, H, W]` → `[N, OD, C, KD, H, W]`.
fn windows(x: &Tensor, window: &WindowParams<3>, count: usize) -> Result<Tensor> {
    let (stride, dilation) = (window.stride[0], window.dilation[0]);
    let tap = |k: usize| x.slice(1, k * dilation, k * dilation + (count - 1) * stride + 1, stride);
    match window.kernel[0] {
        1 => tap(0)?.unsqueeze(3),
        kernel => Tensor::stack(&(0..kernel).map(tap).collect::<Result<Vec<_>>>()?, 3),
    }
}

/// Adds planes where they belong: `[N, D, C, KD, H, W]` → `[N, C, (D − 1)·stride + dilation·(KD − 1) + 1 + extra, H, W]`.
fn added(planes: &Tensor, window: &WindowParams<3>, extra: usize) -> Result<Tensor> {
    let &[n, depth, c, kernel, h, w] = planes.shape() else {
        return Err(Error::argument("conv_transpose3d", "planes have six dimensions"));
    };
    let (stride, span) = (window.stride[0], (depth - 1) * window.stride[0] + 1);
    let whole = span + window.span(0) - 1 + extra;
    let still = [(0, 0); 3];
    let mut sum: Option<Tensor> = None;
    for k in 0..kernel {
        let mut tap = planes.select(3, k)?;
        if stride > 1 {
            let apart = tap.unsqueeze(2)?.pad(&[&[(0, stride - 1)][..], &still].concat(), ZEROS)?;
            tap = apart.reshape([n, depth * stride, c, h, w])?.narrow(1, 0, span)?;
        }
        let before = k * window.dilation[0];
        let tap = tap.pad(&[&[(before, whole - span - before)][..], &still].concat(), ZEROS)?;
        sum = Some(match sum {
            Some(sum) => sum.add(&tap)?,
            None => tap,
        });
    }
    sum.map_or_else(|| Err(Error::argument("conv_transpose3d", "the kernel has no depth")), |sum| sum.transpose(1, 2))
}

impl Tensor {
    /// Computes a 3-D convolution: `[N, C, D, H, W]` → `[N, OC, OD, OH, OW]`.
    ///
    /// The weights are `[OC, C / groups, KD, KH, KW]`, and the optional bias is `[OC]`. The depth of the result is
    /// `OD = ⌊(D + 2·padding − dilation·(KD − 1) − 1) / stride⌋ + 1`. The same formula gives OH and OW.
    ///
    /// It is computed as a 2-D convolution with C·KD channels. The image of that convolution takes KD / stride times
    /// the memory of x.
    ///
    /// # Errors
    /// Same as [`Tensor::conv2d`].
    ///
    /// ```
    /// # use anygpu::{Conv, Tensor};
    /// let x = Tensor::ones([2, 3, 5, 8, 8], None)?;
    /// let w = Tensor::ones([4, 3, 3, 3, 3], None)?;
    /// let y = x.conv3d(&w, None, Conv::new().padding(1).stride([1, 2, 2]))?;
    /// assert_eq!(y.shape(), [2, 4, 5, 4, 4]);
    /// assert_eq!(x.conv3d(&w, None, Conv::new())?.to_vec::<f32>()?[0], 81.0);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn conv3d(&self, weight: &Tensor, bias: Option<&Tensor>, conv: Conv<3>) -> Result<Tensor> {
        const OP: &str = "conv3d";
        let (&[n, c, d, h, w], &[oc, deep, kd, kh, kw]) = (self.shape(), weight.shape()) else {
            let detail = "the input is [N, C, D, H, W], the weight [OC, C / groups, KD, KH, KW]";
            return Err(Error::shapes(OP, self.shape(), weight.shape(), detail));
        };
        conv.check_channels(OP, self.shape(), weight.shape())?;
        let window = WindowParams { kernel: [kd, kh, kw], ..conv.window };
        let margins = conv.margins(OP, window.kernel)?;
        let whole = |d: usize, size: usize| size.saturating_add(margins[d][0]).saturating_add(margins[d][1]);
        let size = [whole(0, d), whole(1, h), whole(2, w)];
        let [od, oh, ow] = counts(&WindowParams { padding: [0; 3], ..window }, OP, size, false)?;
        named(OP, || {
            let [(before, after), none] = [(margins[0][0], margins[0][1]), (0, 0)];
            let x = self.transpose(1, 2)?.pad(&[(before, after), none, none, none], ZEROS)?;
            let images = windows(&x, &window, od)?.reshape([n * od, c * kd, h, w])?;
            let weight = weight.reshape([oc, deep * kd, kh, kw])?;
            let y = images.conv2d(&weight, bias, conv.planes(margins, [0; 3]))?;
            y.reshape([n, od, oc, oh, ow])?.transpose(1, 2)
        })
    }

    /// Computes a transposed 3-D convolution ("deconvolution"): `[N, C, D, H, W]` → `[N, OC, OD, OH, OW]`.
    ///
    /// This is the gradient of [`Tensor::conv3d`] with respect to its input. The weights are
    /// `[C, OC / groups, KD, KH, KW]`, and the optional bias is `[OC]`. The depth of the result is
    /// `OD = (D − 1)·stride − 2·padding + dilation·(KD − 1) + output_padding + 1`. The same formula gives OH and OW.
    ///
    /// # Errors
    /// Same as [`Tensor::conv_transpose2d`].
    ///
    /// ```
    /// # use anygpu::{Conv, Tensor};
    /// let x = Tensor::ones([1, 4, 3, 5, 5], None)?;
    /// let w = Tensor::ones([4, 2, 2, 2, 2], None)?;
    /// assert_eq!(x.conv_transpose3d(&w, None, Conv::new().stride(2))?.shape(), [1, 2, 6, 10, 10]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn conv_transpose3d(&self, weight: &Tensor, bias: Option<&Tensor>, conv: Conv<3>) -> Result<Tensor> {
        const OP: &str = "conv_transpose3d";
        let (&[n, c, d, h, w], &[_, wide, kd, kh, kw]) = (self.shape(), weight.shape()) else {
            let detail = "the input is [N, C, D, H, W], the weight [C, OC / groups, KD, KH, KW]";
            return Err(Error::shapes(OP, self.shape(), weight.shape(), detail));
        };
        let oc = conv.transposed_channels(OP, self.shape(), weight.shape())?;
        check_bias(OP, weight, bias, oc)?;
        let (settled, cut) = conv.settled_transposed(OP, weight)?;
        let window = WindowParams { kernel: [kd, kh, kw], ..settled.window };
        let size = settled.transposed_size(OP, self.shape(), &window)?;
        cut.check(OP, size)?;
        // Planes are added, and the bias too, before the result is rounded to halves.
        let dtype = lowered(self.dtype());
        named(OP, || {
            let images = self.transpose(1, 2)?.reshape([n * d, c, h, w])?;
            let weight = weight.reshape([c, wide * kd, kh, kw])?;
            let mut flat = settled.planes([[0; 2]; 3], settled.output_padding);
            flat.window.padding = [window.padding[1], window.padding[2]];
            let geometry = flat.transposed(images.shape(), weight.shape())?;
            let planes = apply(InputGrad::transposed(&geometry, DType::F32), &[&images, &weight])?;
            let planes = planes.reshape([n, d, oc, kd, size[1], size[2]])?;
            let y = added(&planes, &window, settled.output_padding[0])?.narrow(2, window.padding[0], size[0])?;
            let y = cut.apply(&y)?;
            match bias {
                Some(bias) => y.add(&bias.to_dtype(DType::F32)?.reshape([oc, 1, 1, 1])?)?.to_dtype(dtype),
                None => y.to_dtype(dtype),
            }
        })
    }
}
