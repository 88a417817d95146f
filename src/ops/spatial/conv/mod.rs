//! Convolution (cross-correlation, as in every deep-learning library) over one, two or three dimensions, and its transpose:
//! `y[n, o, i, j] = b[o] + Σ_{c, u, v} w[o, c, u, v] · x[n, c, i·s + u·d − p, j·s + v·d − p]`.
//!
//! `forward` is the convolution, `grad` its two gradients. On the host, `anygpu_host::conv` computes them. A convolution over one
//! dimension is one over two with a height of 1; `volumes` makes those over three of convolutions over two. `padding` has the zeros
//! around images.
//!
//! On hardware, `implicit` multiplies tiles that are read from the image, and `cooperative` panels of f16 where the adapter has
//! cooperative matrices. On software adapters, `registers` computes groups of few channels and results of few pixels, and
//! `winograd_products` most 3 × 3 kernels with many channels; for others `forward` and `grad` multiply panels of columns, or `blocked`
//! reads a padded copy of the image, where products share loads within subgroups.

mod blocked;
mod blocks;
mod cooperative;
mod direct;
mod forward;
mod geometry;
mod grad;
mod implicit;
mod implicit_variants;
mod padding;
mod plan;
mod registers;
mod then;
mod volumes;
mod winograd_products;

pub use padding::ConvPadding;
#[cfg(feature = "onnx")]
pub(crate) use then::Activation;

use anygpu_host::conv;
use anygpu_host::window::{Window, WindowParams};

use forward::Forward;
use geometry::Geometry;
use grad::InputGrad;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::apply;
use crate::ops::autocast::lowered;
use crate::ops::long::refuse;
use crate::ops::named;
use crate::ops::spatial::window::{Sizes, check, over, window_setters};
use crate::tensor::Tensor;

/// The options of a convolution over `D` dimensions, for [`Tensor::conv2d`] and similar methods.
///
/// Sizes are one number for all dimensions, or an array: `[vertical, horizontal]` for two dimensions,
/// `[depth, vertical, horizontal]` for three.
///
/// ```
/// use anygpu::{Conv, Tensor};
/// let (x, w) = (Tensor::ones([1, 4, 9, 9], None)?, Tensor::ones([8, 2, 3, 3], None)?);
/// let y = x.conv2d(&w, None, Conv::new().stride(2).padding([1, 0]).groups(2))?;
/// assert_eq!(y.shape(), [1, 8, 5, 4]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Conv<const D: usize> {
    /// The kernel size comes from the weight, and the padding from `padding`: see [`Conv::settled`].
    window: WindowParams<D>,
    padding: ConvPadding<D>,
    output_padding: [usize; D],
    groups: usize,
}

window_setters! {
    Conv {
        /// Sets the step from one window to the next.
        stride;
        /// Sets the distance between the pixels that neighbouring kernel elements read.
        dilation;
    }
}

impl<const D: usize> Conv<D> {
    /// Returns the defaults: stride 1, no padding, no dilation, one group.
    pub fn new() -> Self {
        let window = WindowParams { kernel: [1; D], stride: [1; D], padding: [0; D], dilation: [1; D] };
        Conv { window, padding: ConvPadding::Equal([0; D]), output_padding: [0; D], groups: 1 }
    }

    /// Sets the zeros around the image.
    ///
    /// In a transposed convolution, sets the elements that are removed there. One number, or an array with one number
    /// for each dimension, is for both sides. `[before, after]` for each dimension, or [`ConvPadding::Same`], sets each
    /// side.
    pub fn padding(mut self, padding: impl Into<ConvPadding<D>>) -> Self {
        self.padding = padding.into();
        self
    }

    /// Sets the number of groups of channels.
    ///
    /// Each output channel reads one group. With as many groups as channels, the convolution is depthwise.
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Sets the number of elements that a transposed convolution adds to the end of its result.
    ///
    /// It must be less than the stride or the dilation. With a stride, several input sizes of a convolution have the
    /// same output size; this number chooses one of them. Other convolutions return an error.
    pub fn output_padding(mut self, output_padding: impl Sizes<D>) -> Self {
        self.output_padding = output_padding.sizes();
        self
    }
}

impl<const D: usize> Default for Conv<D> {
    fn default() -> Self {
        Conv::new()
    }
}

impl Conv<1> {
    /// Returns the same options for images of height 1: they apply to the width.
    fn flat(self) -> Conv<2> {
        let [width] = self.output_padding;
        Conv {
            window: self.window.flat(),
            padding: self.padding.flat(),
            output_padding: [0, width],
            groups: self.groups,
        }
    }
}

impl<const D: usize> Conv<D> {
    fn check_groups(&self, op: &'static str, channels: [usize; 2]) -> Result<()> {
        if self.groups > 0 && channels.iter().all(|c| c % self.groups == 0) {
            return Ok(());
        }
        let [from, to] = channels;
        let detail = format!("{from} channels in and {to} out cannot be cut into {} equal groups", self.groups);
        Err(Error::argument(op, detail))
    }

    /// Checks the groups of a convolution of `[N, channels, ..]` by `[out_channels, depth, ..]`, and that there is no output
    /// padding.
    fn check_channels(&self, op: &'static str, x: &[usize], w: &[usize]) -> Result<()> {
        let (channels, [out_channels, depth]) = (x[1], [w[0], w[1]]);
        self.check_groups(op, [channels, out_channels])?;
        if depth.checked_mul(self.groups) != Some(channels) {
            let groups = if self.groups == 1 { String::new() } else { format!(" in each of {} groups", self.groups) };
            let detail = format!("the input has {channels} channels, the weight is for {depth}{groups}");
            return Err(Error::shapes(op, x, w, detail));
        }
        if self.output_padding != [0; D] {
            return Err(Error::argument(op, "output_padding is for transposed convolutions"));
        }
        check_pixels(op, x)
    }

    /// Returns the number of output channels of a transposed convolution of `[N, from, ..]` by `[from, OC / groups, ..]`.
    fn transposed_channels(&self, op: &'static str, x: &[usize], w: &[usize]) -> Result<usize> {
        let (from, [w_from, wide]) = (x[1], [w[0], w[1]]);
        if from != w_from {
            let detail = format!("the input has {from} channels, the weight is for {w_from}");
            return Err(Error::shapes(op, x, w, detail));
        }
        let Some(channels) = wide.checked_mul(self.groups) else {
            let detail = format!("{} groups of {wide} channels are more than there can be", self.groups);
            return Err(Error::argument(op, detail));
        };
        self.check_groups(op, [from, channels])?;
        check_pixels(op, x)?;
        Ok(channels)
    }

    /// Returns the size of the result of a transposed convolution whose windows, with their padding, are `params`.
    fn transposed_size(&self, op: &'static str, x: &[usize], params: &WindowParams<D>) -> Result<[usize; D]> {
        let (from, extra) = (std::array::from_fn(|d| x[2 + d]), self.output_padding);
        check(params, op, from)?;
        if (0..D).any(|d| extra[d] >= params.stride[d].max(params.dilation[d])) {
            let detail = format!("output_padding {extra:?} must be less than the stride or the dilation");
            return Err(Error::argument(op, detail));
        }
        let size = |d: usize| {
            let whole = (from[d] - 1).checked_mul(params.stride[d])?.checked_add(params.span(d) + extra[d])?;
            whole.checked_sub(2 * params.padding[d]).filter(|&size| size > 0)
        };
        let mut sizes = [0; D];
        for (d, to) in sizes.iter_mut().enumerate() {
            let Some(size) = size(d) else {
                let (padding, kernel) = (params.padding, params.kernel);
                let detail = format!("padding {padding:?} is too large: the result of {x:?} by {kernel:?} is empty");
                return Err(Error::argument(op, detail));
            };
            *to = size;
        }
        check(params, op, sizes)?;
        Ok(sizes)
    }
}

impl Conv<2> {
    /// Returns the convolution of x `[N, C, H, W]` by w `[OC, C / groups, KH, KW]`. Padding that is on one side only is
    /// already a part of x.
    fn geometry(&self, x: &[usize], w: &[usize]) -> Result<Geometry> {
        let (&[images, channels, h, wd], &[out_channels, _, kh, kw]) = (x, w) else {
            let detail = "the input is [N, C, H, W], the weight [OC, C / groups, KH, KW]";
            return Err(Error::shapes("conv2d", x, w, detail));
        };
        self.check_channels("conv2d", x, w)?;
        let (conv, _) = self.evened(self.margins("conv2d", [kh, kw])?);
        let window = over(WindowParams { kernel: [kh, kw], ..conv.window }, "conv2d", [h, wd], false)?;
        Ok(Geometry(conv::Sizes { images, channels, out_channels, groups: self.groups, window }))
    }

    /// Returns the convolution whose input gradient is the transposed one of x `[N, C, H, W]` by w
    /// `[C, OC / groups, KH, KW]`.
    fn transposed(&self, x: &[usize], w: &[usize]) -> Result<Geometry> {
        const OP: &str = "conv_transpose2d";
        let (&[images, from, h, wd], &[_, _, kh, kw]) = (x, w) else {
            let detail = "the input is [N, C, H, W], the weight [C, OC / groups, KH, KW]";
            return Err(Error::shapes(OP, x, w, detail));
        };
        let channels = self.transposed_channels(OP, x, w)?;
        let params = WindowParams { kernel: [kh, kw], ..self.window };
        let size = self.transposed_size(OP, x, &params)?;
        let window = Window { params, size, out: [h, wd] };
        Ok(Geometry(conv::Sizes { images, channels, out_channels: from, groups: self.groups, window }))
    }
}

fn check_pixels(op: &'static str, x: &[usize]) -> Result<()> {
    if x[2..].contains(&0) {
        return Err(Error::argument(op, format!("the images of {x:?} have no pixels")));
    }
    Ok(())
}

/// Checks the bias of a transposed convolution.
fn check_bias(op: &'static str, weight: &Tensor, bias: Option<&Tensor>, channels: usize) -> Result<()> {
    refuse(op, bias)?;
    match bias.filter(|bias| bias.shape() != [channels]) {
        Some(bias) => {
            let detail = format!("the bias is [{channels}], one for each output channel");
            Err(Error::shapes(op, weight.shape(), bias.shape(), detail))
        }
        None => Ok(()),
    }
}

/// Returns `[.., L]` as `[.., 1, L]`, if it has the rank of a 1-D convolution's operands.
fn unflattened(op: &'static str, x: &Tensor, w: &Tensor) -> Result<[Tensor; 2]> {
    if x.rank() != 3 || w.rank() != 3 {
        let detail = "the input is [N, C, L], the weight has three dimensions too";
        return Err(Error::shapes(op, x.shape(), w.shape(), detail));
    }
    Ok([x.unsqueeze(2)?, w.unsqueeze(2)?])
}

impl Tensor {
    /// Computes a 2-D convolution: `[N, C, H, W]` → `[N, OC, OH, OW]`.
    ///
    /// The weights are `[OC, C / groups, KH, KW]`, and the optional bias is `[OC]`. The height of the result is
    /// `OH = ⌊(H + 2·padding − dilation·(KH − 1) − 1) / stride⌋ + 1`. The same formula with W and KW gives OW.
    ///
    /// With several groups, output channels `g·OC/groups ..` read only the input channels `g·C/groups ..`.
    ///
    /// On `cpu` and on software adapters, 3 × 3 kernels with stride 1 and many channels use Winograd's method: it
    /// computes results in tiles of 2 × 2 from 4 × 4 pixels. If a pixel is infinite or NaN, so are all four results of
    /// a tile that reads it, not only the results whose windows contain it. On adapters, the gradient of the input may
    /// multiply the weight by zeros around the gradient of the result. An infinite weight then makes pixels at the
    /// edges NaN, even if no window multiplies them by it.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if channels or ranks do not match; [`Error::InvalidArgument`] if the kernel is larger
    /// than the padded image, an image has no pixels, a stride or dilation is 0, or the groups do not divide the
    /// channels; [`Error::DeviceMismatch`]; [`Error::DTypeMismatch`] unless the types are floats. On adapters, the
    /// gradient of the input returns an error for kernels of more than 60 000 positions.
    ///
    /// ```
    /// # use anygpu::{Conv, Tensor};
    /// let x = Tensor::arange(0.0, 9.0, 1.0, None)?.reshape([1, 1, 3, 3])?;
    /// let w = Tensor::ones([1, 1, 2, 2], None)?;
    /// let y = x.conv2d(&w, None, Conv::new())?;
    /// assert_eq!(y.to_vec::<f32>()?, [8.0, 12.0, 20.0, 24.0]);
    /// assert_eq!(x.conv2d(&w, None, Conv::new().dilation(2))?.to_vec::<f32>()?, [0.0 + 2.0 + 6.0 + 8.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, conv: Conv<2>) -> Result<Tensor> {
        let (x, conv) = conv.settled("conv2d", self, weight)?;
        let geometry = conv.geometry(x.shape(), weight.shape())?;
        let inputs: Vec<&Tensor> = [&x, weight].into_iter().chain(bias).collect();
        apply(Forward(geometry, false, None), &inputs)
    }

    /// Computes a 1-D convolution: `[N, C, L]` → `[N, OC, OL]`.
    ///
    /// The weights are `[OC, C / groups, K]`, and the optional bias is `[OC]`. The length of the result is
    /// `OL = ⌊(L + 2·padding − dilation·(K − 1) − 1) / stride⌋ + 1`.
    ///
    /// # Errors
    /// Same as [`Tensor::conv2d`] with a height of 1; the messages show that height.
    ///
    /// ```
    /// # use anygpu::{Conv, Tensor};
    /// let x = Tensor::arange(0.0, 5.0, 1.0, None)?.reshape([1, 1, 5])?;
    /// let w = Tensor::new([1.0, 10.0], None)?.reshape([1, 1, 2])?;
    /// assert_eq!(x.conv1d(&w, None, Conv::new().stride(3))?.to_vec::<f32>()?, [10.0, 43.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, conv: Conv<1>) -> Result<Tensor> {
        let [x, w] = unflattened("conv1d", self, weight)?;
        named("conv1d", || x.conv2d(&w, bias, conv.flat())?.squeeze(2))
    }

    /// Computes a transposed 2-D convolution ("deconvolution"): `[N, C, H, W]` → `[N, OC, OH, OW]`.
    ///
    /// This is the gradient of [`Tensor::conv2d`] with respect to its input. The weights are
    /// `[C, OC / groups, KH, KW]`, and the optional bias is `[OC]`. The height of the result is
    /// `OH = (H − 1)·stride − 2·padding + dilation·(KH − 1) + output_padding + 1`. The same formula with W and KW gives
    /// OW.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if channels or ranks do not match; [`Error::InvalidArgument`] if the result would be
    /// empty, a stride or dilation is 0, the groups do not divide the channels, `output_padding` is not less than the
    /// stride or the dilation, or, on adapters, the kernel has more than 60 000 positions; [`Error::DeviceMismatch`];
    /// [`Error::DTypeMismatch`] unless the types are floats.
    ///
    /// ```
    /// # use anygpu::{Conv, Tensor};
    /// let x = Tensor::new([[1.0, 2.0]], None)?.reshape([1, 1, 1, 2])?;
    /// let w = Tensor::ones([1, 1, 1, 2], None)?;
    /// assert_eq!(x.conv_transpose2d(&w, None, Conv::new())?.to_vec::<f32>()?, [1.0, 3.0, 2.0]);
    /// assert_eq!(x.conv_transpose2d(&w, None, Conv::new().stride([1, 2]))?.to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn conv_transpose2d(&self, weight: &Tensor, bias: Option<&Tensor>, conv: Conv<2>) -> Result<Tensor> {
        const OP: &str = "conv_transpose2d";
        let (conv, cut) = conv.settled_transposed(OP, weight)?;
        let geometry = conv.transposed(self.shape(), weight.shape())?;
        let channels = geometry.channels;
        check_bias(OP, weight, bias, channels)?;
        cut.check(OP, geometry.window.size)?;
        // The bias is added before the result is rounded to halves.
        let dtype = lowered(self.dtype());
        let result = if bias.is_some() { DType::F32 } else { dtype };
        named(OP, || {
            let out = cut.apply(&apply(InputGrad::transposed(&geometry, result), &[self, weight])?)?;
            match bias {
                Some(bias) => out.add(&bias.to_dtype(DType::F32)?.reshape([channels, 1, 1])?)?.to_dtype(dtype),
                None => Ok(out),
            }
        })
    }

    /// Computes a transposed 1-D convolution: `[N, C, L]` → `[N, OC, OL]`.
    ///
    /// The weights are `[C, OC / groups, K]`, and the optional bias is `[OC]`. The length of the result is
    /// `OL = (L − 1)·stride − 2·padding + dilation·(K − 1) + output_padding + 1`.
    ///
    /// # Errors
    /// Same as [`Tensor::conv_transpose2d`] with a height of 1; the messages show that height.
    ///
    /// ```
    /// # use anygpu::{Conv, Tensor};
    /// let x = Tensor::ones([1, 3, 5], None)?;
    /// let w = Tensor::ones([3, 2, 4], None)?;
    /// let doubled = Conv::new().stride(2).padding(1);
    /// assert_eq!(x.conv_transpose1d(&w, None, doubled)?.shape(), [1, 2, 10]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn conv_transpose1d(&self, weight: &Tensor, bias: Option<&Tensor>, conv: Conv<1>) -> Result<Tensor> {
        let [x, w] = unflattened("conv_transpose1d", self, weight)?;
        named("conv_transpose1d", || x.conv_transpose2d(&w, bias, conv.flat())?.squeeze(2))
    }
}
