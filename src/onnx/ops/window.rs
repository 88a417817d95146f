//! How the windows of convolutions and pools move.

use super::super::call::{Call, sizes};
use super::super::fault;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::{Conv, Padding, Pool};

/// How a window moves over two dimensions; one dimension is given a second of size 1 before it.
pub(super) struct Window {
    flat: bool,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    pub begin: [usize; 2],
    pub end: [usize; 2],
    /// Whether the last window may begin within the image and end beyond it.
    ceil: bool,
    /// Whether `auto_pad` chose the padding, which leaves no part of a window.
    auto: bool,
}

impl Window {
    /// From the attributes, for `x` and the size of a kernel.
    pub fn of(call: &Call, x: &Tensor, kernel: &[usize]) -> Result<Window> {
        let rank = kernel.len();
        if x.rank() != rank + 2 {
            return Err(fault(format!("a window of {kernel:?} over a shape of {:?}", x.shape())));
        }
        let flat = match rank {
            1 => true,
            2 => false,
            rank => return call.refuse(format!("a window of {rank} dimensions")),
        };
        // A dimension before the only one: one step of one pixel.
        let both = |list: &[usize], before: usize| if flat { [before, list[0]] } else { [list[0], list[1]] };
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
        let (begin, end) = pads.split_at(rank);
        let (begin, end) = (both(begin, 0), both(end, 0));
        Ok(Window {
            flat,
            kernel: both(kernel, 1),
            stride: both(&stride, 1),
            dilation: both(&dilation, 1),
            begin,
            end,
            ceil: call.flag("ceil_mode"),
            auto: auto != "NOTSET",
        })
    }

    pub fn is_flat(&self) -> bool {
        self.flat
    }

    /// `[N, C, H, W]` for both ranks.
    pub fn image(&self, x: &Tensor) -> Result<Tensor> {
        if self.flat { x.unsqueeze(2) } else { Ok(x.clone()) }
    }

    pub fn back(&self, y: Tensor) -> Result<Tensor> {
        if self.flat { y.squeeze(2) } else { Ok(y) }
    }

    /// Whether the op can do the padding: pools refuse more than half a window.
    pub fn leaves_padding(&self, call: &Call) -> bool {
        self.begin == self.end && (call.op() == "Conv" || (0..2).all(|d| self.begin[d] <= self.kernel[d] / 2))
    }

    /// What is left for the op to pad, and the image, padded with `value` where the op does not do it.
    pub fn padded(&self, call: &Call, x: &Tensor, value: f64) -> Result<([usize; 2], Tensor)> {
        let image = self.image(x)?;
        if self.leaves_padding(call) {
            return Ok((self.begin, image));
        }
        let margins = [(0, 0), (0, 0), (self.begin[0], self.end[0]), (self.begin[1], self.end[1])];
        Ok(([0; 2], image.pad(&margins, Padding::Constant(value))?))
    }

    pub fn conv(&self, call: &Call) -> Result<Conv<2>> {
        let groups = super::super::call::size(call.int("group", 1))?;
        Ok(Conv::new().stride(self.stride).dilation(self.dilation).groups(groups))
    }

    pub fn pool(&self) -> Pool<2> {
        let pool = Pool::new(self.kernel).stride(self.stride).dilation(self.dilation);
        pool.ceil_mode(self.ceil && !self.auto)
    }
}
