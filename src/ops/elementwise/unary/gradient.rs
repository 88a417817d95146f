//! The gradients of functions of one element.

use std::fmt;
use std::sync::Arc;

use anygpu_host::tasks::share;

use super::{Bend, CHUNK, GRAD_SHADER, GradParams, INVERSE, MATH, Reads, SPECIAL, Slope, UnaryFn};
use crate::device::gpu::{Buffer, Gpu, Kernel, Operand, Pointwise, operands};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::inputs::elements_each;
use crate::ops::names::Names;
use crate::ops::parts::alike;
use crate::ops::{Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, apply};
use crate::tensor::Tensor;

/// The gradient of a row, from the gradient, the input and the result of the forward pass.
#[derive(Clone, Copy)]
pub(super) struct UnaryGrad {
    pub function: UnaryFn,
    pub slope: &'static Slope,
    pub args: [u32; 2],
}

impl fmt::Debug for UnaryGrad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnaryGrad({:?}, {:?})", self.function, self.args)
    }
}

impl Op for UnaryGrad {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = Names::OfTables;

    fn name(&self) -> &'static str {
        self.function.name()
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
            (self.slope.each)([&g[part.clone()], &x[part.clone()], &y[part]], out, self.args);
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
        let (formula, reads) = (self.slope.header, &self.slope.reads);
        let operand = |read, index, offset| if read { Operand::Input(index, offset) } else { Operand::Unused };
        let call = (each > 1).then_some(Pointwise {
            formula,
            functions: &[MATH, SPECIAL, INVERSE],
            operands: operands(&[
                Operand::Input(2, g_offset),
                operand(reads.x(), 0, x_offset),
                operand(reads.y(), 1, y_offset),
            ]),
            args: self.args,
            count,
        });
        let kernel = kernel.header(formula).input(x).input(y).input(g).output(out);
        Ok(vec![kernel.each(count.div_ceil(each)).pointwise(call)])
    }

    /// The gradient is linear in the result's gradient; the row has the derivative of its factor.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let ([g, x, y], args) = ([0, 1, 2].map(|i| &ctx.inputs[i]), self.args.map(f32::from_bits));
        let by_gradient = ctx.needs[0].then(|| apply(*self, &[ctx.grad, x, y])).transpose()?;
        let [needs_x, needs_y] = [1, 2].map(|i| ctx.needs[i]);
        let [by_x, by_y] = match &self.slope.reads {
            Reads::X(Bend::By(bend)) if needs_x => [Some(bend(x, args)?), None],
            Reads::Y(Bend::By(bend)) if needs_y => [None, Some(bend(y, args)?)],
            Reads::Both(bends) if needs_x || needs_y => bends(x, y, args)?,
            _ => [None, None],
        };
        let times = |factor: Option<Tensor>| factor.map(|factor| ctx.grad.mul(g)?.mul(&factor)).transpose();
        Ok(vec![by_gradient, times(by_x)?, times(by_y)?])
    }
}
