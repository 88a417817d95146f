//! A choice between two tensors by a third.

use std::sync::Arc;

use crate::device::gpu::{Buffer, Gpu, Kernel, Slots, params, shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::elementwise::binary::operand::Operand;
use crate::ops::elementwise::promote::result_type;
use crate::ops::inputs::Walk;
use crate::ops::{
    CpuIn, CpuOut, Elements, GpuIn, Gradient, Gradients, Op, Output, Strided, apply, expect_dtype, same_device,
};
use crate::shape::{Layout, broadcast_shapes};
use crate::tensor::Tensor;

params! {
    struct Params {
        count: usize,
        rank: usize,
        a_offset: usize,
        b_offset: usize,
        condition_offset: usize,
        shape: Slots,
        a_strides: Slots,
        b_strides: Slots,
        condition_strides: Slots,
    }
}
shader!(SHADER: Params = "where_cond");

/// The op of the inputs `[a, b, condition]`: a where the boolean condition is true, else b.
#[derive(Debug)]
struct WhereCond;

impl Op for WhereCond {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Any;

    fn name(&self) -> &'static str {
        "where_cond"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let [a, b, condition] = [0, 1, 2].map(|i| inputs[i]);
        expect_dtype(self.name(), b, a.dtype())?;
        let both = broadcast_shapes(self.name(), a.shape(), b.shape())?;
        Ok((broadcast_shapes(self.name(), condition.shape(), &both)?, a.dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let (shape, layouts) = stretched([0, 1, 2].map(|i| inputs[i].layout()))?;
        let [a, b, condition] = [0, 1, 2].map(|i| inputs[i].all::<u32>());
        let walk = Walk::new(&shape, [0, 1, 2].map(|i| layouts[i].strides.as_slice()));
        walk.rows([0, 1, 2].map(|i| layouts[i].offset), out.0, |at, step, out| {
            for (i, out) in out.iter_mut().enumerate() {
                let chosen = condition[at[2] + i * step[2]] != 0;
                *out = if chosen { a[at[0] + i * step[0]] } else { b[at[1] + i * step[1]] };
            }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (shape, layouts) = stretched([0, 1, 2].map(|i| inputs[i].layout()))?;
        let strides = [0, 1, 2].map(|i| layouts[i].strides.as_slice());
        let (rank, slots, strides) = Walk::for_kernel(self.name(), &shape, strides)?;
        let [a_strides, b_strides, condition_strides] = strides;
        let params = Params {
            count: shape.iter().product(),
            rank,
            a_offset: layouts[0].offset,
            b_offset: layouts[1].offset,
            condition_offset: layouts[2].offset,
            shape: slots,
            a_strides,
            b_strides,
            condition_strides,
        };
        let entry = if layouts.iter().all(Layout::is_contiguous) { "dense" } else { "strided" };
        let [a, b, condition] = [0, 1, 2].map(|i| &inputs[i]);
        let kernel = Kernel::build(SHADER, entry, params).input(a).input(b).input(condition);
        Ok(vec![kernel.output(out).each(params.count)])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (condition, zero) = (&ctx.inputs[2], 0f32);
        let side = |i: usize, a: Operand, b: Operand| ctx.needs[i].then(|| condition.where_cond(a, b)).transpose();
        Ok(vec![side(0, ctx.grad.into(), zero.into())?, side(1, zero.into(), ctx.grad.into())?, None])
    }
}

/// Returns the common shape of the layouts, and all layouts broadcast to it.
fn stretched(layouts: [&Layout; 3]) -> Result<(Vec<usize>, [Layout; 3])> {
    let [a, b, condition] = layouts.map(|layout| layout.shape.as_slice());
    let shape = broadcast_shapes("where_cond", condition, &broadcast_shapes("where_cond", a, b)?)?;
    let stretched = layouts.map(|layout| layout.broadcast_to(&shape));
    Ok((shape, stretched))
}

impl Tensor {
    /// Returns `a` where this tensor is true (or not 0), else `b`, as `torch.where(condition, a, b)`. All three are
    /// broadcast by NumPy's rule. `a` and `b`, tensors or numbers, are converted to one type as in [`Tensor::add`].
    ///
    /// Elements that are not chosen have no effect on the result, even if they are NaN. Their gradient is 0.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) or
    /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) if the three cannot be combined.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([-4.0, 9.0])?;
    /// let root = Tensor::where_cond(&x.ge(0)?, &x.sqrt()?, 0.0)?;
    /// assert_eq!(root.to_vec::<f32>()?, [0.0, 3.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn where_cond<'a>(&self, a: impl Into<Operand<'a>>, b: impl Into<Operand<'a>>) -> Result<Tensor> {
        let op = WhereCond.name();
        let (a, b) = (a.into(), b.into());
        let dtype = match (a, b) {
            (Operand::Tensor(a), Operand::Tensor(b)) => {
                same_device(op, &[self, a, b])?;
                result_type(op, a, b)?
            }
            (Operand::Tensor(x), Operand::Scalar(s)) | (Operand::Scalar(s), Operand::Tensor(x)) => s.meets(x.dtype()),
            (Operand::Scalar(a), Operand::Scalar(b)) => b.meets(a.meets(DType::Bool)),
        };
        let tensor = |operand| match operand {
            Operand::Tensor(x) => x.to_dtype(dtype),
            Operand::Scalar(s) => s.tensor(op, dtype, self.device()),
        };
        let condition = self.detach().to_dtype(DType::Bool)?;
        apply(WhereCond, &[&tensor(a)?, &tensor(b)?, &condition])
    }
}
