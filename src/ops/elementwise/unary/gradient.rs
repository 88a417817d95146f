//! The gradients of functions of one element.

use std::sync::Arc;

use super::{CHUNK, EachGrad, GRAD_SHADER, GradParams, INVERSE, MATH, SPECIAL, second, uses};
use crate::device::gpu::{Buffer, Gpu, Kernel, Operand, Pointwise, operands};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::inputs::elements_each;
use crate::ops::parts::alike;
use crate::ops::{Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, apply};
use crate::tensor::Tensor;
use anygpu_host::tasks::share;

/// The gradient of a row, from the gradient, the input and the result of the forward pass.
#[derive(Debug)]
pub(super) struct UnaryGrad {
    pub name: &'static str,
    pub gradient: (&'static str, EachGrad),
    pub args: [u32; 2],
}

impl Op for UnaryGrad {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);

    fn name(&self) -> &'static str {
        self.name
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((inputs[0].shape().to_vec(), DType::F32))
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        alike(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let [g, x, y] = [0, 1, 2].map(|i| inputs[i].slice::<u32>());
        share(out.0.chunks_mut(CHUNK).enumerate(), 1, |(i, out)| {
            let part = i * CHUNK..i * CHUNK + out.len();
            (self.gradient.1)([&g[part.clone()], &x[part.clone()], &y[part]], out, self.args);
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let ([g, x, y], [a, b]) = ([0, 1, 2].map(|i| &inputs[i]), self.args.map(f32::from_bits));
        let (x_offset, y_offset, g_offset) = (x.offset(), y.offset(), g.offset());
        let each = elements_each(gpu, [x_offset, y_offset, g_offset].iter().all(|offset| offset % 4 == 0));
        let (count, run) = (x.elem_count(), each / 4);
        let params = GradParams { count, x_offset, y_offset, g_offset, run, a, b };
        let kernel = Kernel::build(GRAD_SHADER, if each > 1 { "fours" } else { "unary_grad" }, params);
        let formula = self.gradient.0;
        let operand =
            |name, index, offset| if uses(formula, name) { Operand::Input(index, offset) } else { Operand::Unused };
        let call = (each > 1).then_some(Pointwise {
            formula,
            functions: &[MATH, SPECIAL, INVERSE],
            operands: operands(&[Operand::Input(2, g_offset), operand("x", 0, x_offset), operand("y", 1, y_offset)]),
            args: self.args,
            count,
        });
        let kernel = kernel.header(formula).input(x).input(y).input(g).output(out);
        Ok(vec![kernel.each(count.div_ceil(each)).pointwise(call)])
    }

    /// The gradient is linear in that of the result; `second` has the derivative of its factor.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let [g, x, y] = [0, 1, 2].map(|i| &ctx.inputs[i]);
        let by_gradient = ctx.needs[0].then(|| apply(UnaryGrad { ..*self }, &[ctx.grad, x, y])).transpose()?;
        let reads = |i: usize, name| ctx.needs[i] && uses(self.gradient.0, name);
        if !reads(1, "x") && !reads(2, "y") {
            return Ok(vec![by_gradient, None, None]);
        }
        let both = ctx.grad.mul(g)?;
        let [by_x, by_y] = second::derivatives(self.name, x, y, self.args.map(f32::from_bits))?;
        let times = |factor: Option<Tensor>| factor.map(|factor| both.mul(&factor)).transpose();
        Ok(vec![by_gradient, times(by_x)?, times(by_y)?])
    }
}
