//! Replaces the elements where a mask is true by one value.

use std::sync::Arc;

use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::cast::number_word;
use crate::ops::names::{Names, names};
use crate::ops::parts::alike;
use crate::ops::traced::Traced;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Saves, apply, named, same_device};
use crate::shape::broadcast_shapes;
use crate::tensor::Tensor;

params! {
    struct Params { count: usize, x_offset: usize, mask_offset: usize, value: u32 }
}
shader!(SHADER: Params = "elementwise/masked_fill");

/// The op: the word `value` where the second input is not 0, else the element of the first input. Both have one shape.
#[derive(Debug)]
struct MaskedFill {
    value: u32,
}

impl Op for MaskedFill {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["masked_fill"];

    fn traced(&self, inputs: &[&Tensor]) -> Option<Traced> {
        let number = inputs[0].dtype().number(self.value);
        Some(Traced::MaskedFill(number))
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        alike(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (x, mask) = (inputs[0].slice::<u32>(), inputs[1].slice::<u32>());
        let elements = out.slice::<u32>().iter_mut().zip(x).zip(mask);
        elements.for_each(|((out, &x), &mask)| *out = if mask != 0 { self.value } else { x });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let [x, mask] = [&inputs[0], &inputs[1]];
        let params =
            Params { count: x.elem_count(), x_offset: x.offset(), mask_offset: mask.offset(), value: self.value };
        Ok(vec![Kernel::build(SHADER, "masked_fill", params).input(x).input(mask).output(out).each(params.count)])
    }

    fn saves(&self) -> Saves {
        Saves::Input(1)
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![Some(ctx.grad.masked_fill(&ctx.inputs[1], 0.0)?), None])
    }
}

impl Tensor {
    /// Replaces the elements where the mask is true (or not 0) by `value`, converted to this tensor's type. Returns a
    /// tensor of the same shape.
    ///
    /// The mask may be of any type and is broadcast to this tensor. The gradient of replaced elements is 0.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the mask does not broadcast to this tensor's shape; [`Error::DeviceMismatch`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let scores = Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?;
    /// let later = Tensor::new([[false, true], [false, false]], None)?;
    /// let weights = scores.masked_fill(&later, f32::NEG_INFINITY)?.softmax(1)?;
    /// assert_eq!(weights.to_vec::<f32>()?[..2], [1.0, 0.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn masked_fill(&self, mask: &Tensor, value: f32) -> Result<Tensor> {
        same_device("masked_fill", &[self, mask])?;
        if broadcast_shapes("masked_fill", self.shape(), mask.shape())? != self.shape() {
            let detail = "the mask must broadcast to the tensor";
            return Err(Error::shapes("masked_fill", self.shape(), mask.shape(), detail));
        }
        let mask = mask.detach().to_dtype(DType::Bool)?.broadcast_to(self.shape())?;
        match self.dtype() {
            DType::I64 => return named("masked_fill", || mask.where_cond(value as i64, self)),
            DType::F64 => return named("masked_fill", || mask.where_cond(value, self)),
            _ => {}
        }
        apply(MaskedFill { value: number_word(value.into(), self.dtype()) }, &[self, &mask])
    }
}
