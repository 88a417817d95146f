//! The zeros around the image of a convolution, on each side. Kernels know paddings that are equal on both sides: what one
//! side has more is added to the image before, or removed from the result of a transposed convolution after.

use super::Conv;
use crate::error::{Error, Result};
use crate::ops::shape::pad::Padding;
use crate::tensor::Tensor;

/// The zeros around the image of a convolution over `D` dimensions, for [`Conv::padding`] and the layers.
///
/// ```
/// use anygpu::{Conv, ConvPadding, Tensor};
/// let (x, w) = (Tensor::ones([1, 1, 5, 6], None)?, Tensor::ones([1, 1, 3, 2], None)?);
/// let shape = |conv| Ok::<_, anygpu::Error>(x.conv2d(&w, None, conv)?.shape().to_vec());
/// assert_eq!(shape(Conv::new().padding(1))?, [1, 1, 5, 7]);
/// assert_eq!(shape(Conv::new().padding([1, 0]))?, [1, 1, 5, 5]);
/// assert_eq!(shape(Conv::new().padding([[2, 0], [0, 1]]))?, [1, 1, 5, 6]); // above, below; left, right
/// assert_eq!(shape(Conv::new().padding(ConvPadding::Same))?, [1, 1, 5, 6]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvPadding<const D: usize> {
    /// The same number on both sides, for each dimension.
    Equal([usize; D]),
    /// The numbers before and after the image, for each dimension.
    Each([[usize; 2]; D]),
    /// As many zeros as make the result as large as the image, like PyTorch's `padding="same"`: `dilation · (K − 1)` in
    /// all. If this is odd, the end has one more. The stride must be 1, and the convolution must not be transposed.
    Same,
}

impl<const D: usize> From<usize> for ConvPadding<D> {
    fn from(padding: usize) -> Self {
        ConvPadding::Equal([padding; D])
    }
}

impl<const D: usize> From<[usize; D]> for ConvPadding<D> {
    fn from(padding: [usize; D]) -> Self {
        ConvPadding::Equal(padding)
    }
}

impl<const D: usize> From<[[usize; 2]; D]> for ConvPadding<D> {
    fn from(padding: [[usize; 2]; D]) -> Self {
        ConvPadding::Each(padding)
    }
}

impl ConvPadding<1> {
    /// Returns the same padding for images of height 1.
    pub(super) fn flat(self) -> ConvPadding<2> {
        match self {
            ConvPadding::Equal([width]) => ConvPadding::Equal([0, width]),
            ConvPadding::Each([width]) => ConvPadding::Each([[0, 0], width]),
            ConvPadding::Same => ConvPadding::Same,
        }
    }
}

/// What a transposed convolution removes from its result beside the padding of both sides.
pub(super) struct Cut<const D: usize>([[usize; 2]; D]);

impl<const D: usize> Cut<D> {
    /// Checks that something of a result of this size is left.
    pub fn check(&self, op: &'static str, size: [usize; D]) -> Result<()> {
        if (0..D).all(|d| self.0[d][0].saturating_add(self.0[d][1]) < size[d]) {
            return Ok(());
        }
        let detail =
            format!("the padding is too large: {:?} more elements are to be removed from the result {size:?}", self.0);
        Err(Error::argument(op, detail))
    }

    /// Returns the result `[N, C, ..]` without what is removed.
    pub fn apply(&self, out: &Tensor) -> Result<Tensor> {
        let mut out = out.clone();
        for (d, [before, after]) in self.0.into_iter().enumerate() {
            if before + after > 0 {
                out = out.narrow(2 + d, before, out.shape()[2 + d] - before - after)?;
            }
        }
        Ok(out)
    }
}

impl<const D: usize> Conv<D> {
    /// Returns the padding before and after the image in each dimension.
    pub(super) fn margins(&self, op: &'static str, kernel: [usize; D]) -> Result<[[usize; 2]; D]> {
        match self.padding {
            ConvPadding::Equal(padding) => Ok(padding.map(|padding| [padding; 2])),
            ConvPadding::Each(each) => Ok(each),
            ConvPadding::Same if self.window.stride == [1; D] => Ok(std::array::from_fn(|d| {
                let all = self.window.dilation[d].saturating_mul(kernel[d].saturating_sub(1));
                [all / 2, all - all / 2]
            })),
            ConvPadding::Same => {
                let stride = self.window.stride;
                Err(Error::argument(op, format!("padding Same needs a stride of 1, and the stride is {stride:?}")))
            }
        }
    }

    /// Returns the image with the padding that is on one side only, and options whose `window` has the rest of the
    /// padding. Operands of another rank are refused later.
    pub(super) fn settled(self, op: &'static str, x: &Tensor, w: &Tensor) -> Result<(Tensor, Self)> {
        let Some(&kernel) = w.shape().last_chunk::<D>().filter(|_| x.rank() == D + 2 && w.rank() == D + 2) else {
            return Ok((x.clone(), self));
        };
        let (conv, rest) = self.evened(self.margins(op, kernel)?);
        let rest = rest.map(|[before, after]| (before, after));
        let x = crate::ops::named(op, || x.pad(&rest, Padding::Constant(0.0)))?;
        Ok((x, conv))
    }

    /// Returns options whose `window` has the padding that is removed on both sides, and what is removed beside it.
    pub(super) fn settled_transposed(self, op: &'static str, w: &Tensor) -> Result<(Self, Cut<D>)> {
        if self.padding == ConvPadding::Same {
            return Err(Error::argument(op, "padding Same is not for transposed convolutions"));
        }
        let kernel = w.shape().last_chunk::<D>().copied().unwrap_or([1; D]);
        let (conv, rest) = self.evened(self.margins(op, kernel)?);
        Ok((conv, Cut(rest)))
    }

    /// Splits margins into the padding of both sides, which the options get, and the rest of each side.
    pub(super) fn evened(mut self, margins: [[usize; 2]; D]) -> (Self, [[usize; 2]; D]) {
        self.window.padding = margins.map(|[before, after]| before.min(after));
        let padding = self.window.padding;
        (self, std::array::from_fn(|d| margins[d].map(|margin| margin - padding[d])))
    }
}
