//! A choice between two tensors by a third.

use std::sync::Arc;

use crate::device::gpu::{Buffer, Gpu, Kernel, shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::elementwise::binary::operand::{Operand, common_type};
use crate::ops::elementwise::unary::FEW_CHUNKS;
use crate::ops::inputs::{STRIDED, StridedParams, Walk};
use crate::ops::long::{of_pairs, pairs, untracked};
use crate::ops::names::{Names, names};
use crate::ops::parts::broadcast;
use crate::ops::traced::Traced;
use crate::ops::{
    CpuIn, CpuOut, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, Strided, apply, expect_dtype,
};
use crate::shape::broadcast_shapes;
use crate::tensor::Tensor;

shader!(SHADER: StridedParams = "elementwise/where_cond", after [STRIDED]);

/// The op of the inputs `[a, b, condition]`: a where the boolean condition is true, else b.
#[derive(Debug)]
struct WhereCond;

impl Op for WhereCond {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["where_cond"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Where)
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        self.output(inputs)?;
        untracked(self.name(), &inputs[..2])?;
        let words = [pairs(inputs[0]), pairs(inputs[1]), inputs[2].unsqueeze(-1)?];
        of_pairs(&apply(WhereCond, &words.each_ref())?, inputs[0].dtype())
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let [a, b, condition] = [0, 1, 2].map(|i| inputs[i]);
        expect_dtype(self.name(), b, a.dtype())?;
        let both = broadcast_shapes(self.name(), a.shape(), b.shape())?;
        Ok((broadcast_shapes(self.name(), condition.shape(), &both)?, a.dtype()))
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        broadcast(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let [a, b, condition] = [0, 1, 2].map(|i| inputs[i].all::<u32>());
        let layouts = [0, 1, 2].map(|i| inputs[i].layout());
        Walk::broadcast_rows(self.name(), layouts, out.0, FEW_CHUNKS, |at, step, out| {
            for (i, out) in out.iter_mut().enumerate() {
                let chosen = condition[at[2] + i * step[2]] != 0;
                *out = if chosen { a[at[0] + i * step[0]] } else { b[at[1] + i * step[1]] };
            }
        })
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        let [a, b, condition] = [0, 1, 2].map(|i| &inputs[i]);
        let walk = Walk::broadcast(self.name(), [a.layout(), b.layout(), condition.layout()])?;
        let params = walk.params(self.name())?;
        let kernel = Kernel::build(SHADER, if walk.is_dense() { "dense" } else { "strided" }, params);
        Ok(vec![kernel.input(a).input(b).input(condition).output(out).each(params.count)])
    }

    fn saves(&self) -> Saves {
        Saves::Input(2)
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (condition, zero) = (&ctx.inputs[2], 0f32);
        let side = |i: usize, a: Operand, b: Operand| ctx.needs[i].then(|| condition.where_cond(a, b)).transpose();
        Ok(vec![side(0, ctx.grad.into(), zero.into())?, side(1, zero.into(), ctx.grad.into())?, None])
    }
}

impl Tensor {
    /// Returns `a` where this tensor is true (or not 0), else `b`, like `torch.where(condition, a, b)`.
    ///
    /// All three are broadcast by NumPy's rule. `a` and `b` are tensors or numbers, and are converted to one type as in
    /// [`Tensor::add`].
    ///
    /// Elements that are not chosen have no effect on the result, even if they are NaN. Their gradient is 0.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) or
    /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) if the three cannot be combined.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([-4.0, 9.0], None)?;
    /// let root = Tensor::where_cond(&x.ge(0)?, &x.sqrt()?, 0.0)?;
    /// assert_eq!(root.to_vec::<f32>()?, [0.0, 3.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn where_cond<'a>(&self, a: impl Into<Operand<'a>>, b: impl Into<Operand<'a>>) -> Result<Tensor> {
        let op = WhereCond.name();
        let (a, b) = (a.into(), b.into());
        let dtype = common_type(op, a, b)?;
        let tensor = |operand| match operand {
            Operand::Tensor(x) => x.to_dtype(dtype),
            Operand::Scalar(s) => s.tensor(op, dtype, self.device()),
        };
        let condition = self.detach().to_dtype(DType::Bool)?;
        apply(WhereCond, &[&tensor(a)?, &tensor(b)?, &condition])
    }
}
