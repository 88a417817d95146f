//! How the windows of convolutions and pools move.

use super::super::call::{Call, sizes};
use super::super::fault;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::{Conv, ConvPadding, Padding, Pool};

/// How a window moves over one, two or three dimensions. One dimension is computed as two, of which the first has size 1.
pub(super) struct Window {
    pub rank: usize,
    pub kernel: Vec<usize>,
    pub stride: Vec<usize>,
    pub dilation: Vec<usize>,
    pub begin: Vec<usize>,
    pub end: Vec<usize>,
    /// Whether the last window may end beyond the image, where windows of whole steps leave some of it out.
    pub ceil: bool,
}

/// A list for `D` dimensions, with `fill` before the only one of two.
pub(super) fn lifted<const D: usize>(list: &[usize], fill: usize) -> [usize; D] {
    let before = D.saturating_sub(list.len());
    std::array::from_fn(|d| d.checked_sub(before).and_then(|i| list.get(i)).copied().unwrap_or(fill))
}

impl Window {
    /// From the attributes, for `x` and the size of a kernel.
    pub fn of(call: &Call, x: &Tensor, kernel: &[usize]) -> Result<Window> {
        let rank = kernel.len();
        if x.rank() != rank + 2 {
            return Err(fault(format!("a window of {kernel:?} over a shape of {:?}", x.shape())));
        }
        if rank == 0 || rank > 3 {
            return call.refuse(format!("a window of {rank} dimensions"));
        }
        let list = |name: &str, count: usize, default: usize| -> Result<Vec<usize>> {
            let given = call
                .ints(name)
                .filter(|list| !list.is_empty())
                .map_or(Ok(vec![default; count]), |list| sizes(&list))?;
            if given.len() == count {
                Ok(given)
            } else {
                Err(fault(format!("{name} of {given:?} for {rank} dimensions")))
            }
        };
        let (stride, dilation) = (list("strides", rank, 1)?, list("dilations", rank, 1)?);
        if stride.contains(&0) || dilation.contains(&0) || kernel.contains(&0) {
            return Err(fault("a kernel, a stride or a dilation of 0"));
        }
        let mut pads = list("pads", 2 * rank, 0)?;
        let auto = call.text("auto_pad", "NOTSET");
        if auto == "VALID" {
            pads.fill(0);
        }
        for d in (0..rank).filter(|_| auto.starts_with("SAME")) {
            let (size, span) = (x.shape()[2 + d], dilation[d].saturating_mul(kernel[d] - 1).saturating_add(1));
            let steps = size.div_ceil(stride[d]).saturating_sub(1);
            let total = steps.saturating_mul(stride[d]).saturating_add(span).saturating_sub(size);
            let less = total / 2;
            (pads[d], pads[rank + d]) = if auto == "SAME_UPPER" { (less, total - less) } else { (total - less, less) };
        }
        let end = pads.split_off(rank);
        let ceil = call.flag("ceil_mode") && auto == "NOTSET";
        Ok(Window { rank, kernel: kernel.to_vec(), stride, dilation, begin: pads, end, ceil })
    }

    /// `[N, C, H, W]` for one dimension.
    pub fn image(&self, x: &Tensor) -> Result<Tensor> {
        if self.rank == 1 { x.unsqueeze(2) } else { Ok(x.clone()) }
    }

    pub fn back(&self, y: Tensor) -> Result<Tensor> {
        if self.rank == 1 { y.squeeze(2) } else { Ok(y) }
    }

    /// Whether a pool can do the padding: the same on both sides, and no more than half a window.
    pub fn pool_pads(&self) -> bool {
        self.begin == self.end && self.begin.iter().zip(&self.kernel).all(|(&pad, &kernel)| pad <= kernel / 2)
    }

    /// `x` with the window's padding.
    pub fn padded(&self, x: &Tensor, value: f64) -> Result<Tensor> {
        let margins: Vec<(usize, usize)> = self.begin.iter().copied().zip(self.end.iter().copied()).collect();
        x.pad(&margins, Padding::Constant(value))
    }

    /// A convolution without padding.
    pub fn conv<const D: usize>(&self, groups: usize) -> Conv<D> {
        Conv::new().stride(lifted(&self.stride, 1)).dilation(lifted(&self.dilation, 1)).groups(groups)
    }

    /// The padding of a convolution.
    pub fn padding<const D: usize>(&self) -> ConvPadding<D> {
        let (begin, end): ([usize; D], [usize; D]) = (lifted(&self.begin, 0), lifted(&self.end, 0));
        if begin == end {
            ConvPadding::Equal(begin)
        } else {
            ConvPadding::Each(std::array::from_fn(|d| [begin[d], end[d]]))
        }
    }

    /// A pool; with its own padding if that is possible and wanted.
    pub fn pool<const D: usize>(&self, pads: bool) -> Pool<D> {
        let pool =
            Pool::new(lifted(&self.kernel, 1)).stride(lifted(&self.stride, 1)).dilation(lifted(&self.dilation, 1));
        let pool = pool.ceil_mode(self.ceil);
        if pads { pool.padding(lifted(&self.begin, 0)) } else { pool }
    }
}
