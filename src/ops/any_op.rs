//! An op without its type: `apply`, and the division of large tensors, are compiled once, and not again for each op.

use std::sync::Arc;

use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::error::Result;
use crate::ops::inputs::{Guards, Reads};
use crate::ops::names::Names;
use crate::ops::parts::Part;
use crate::ops::{CpuIn, CpuOut, Differentiable, Elements, GpuIn, Op, Output};
use crate::tensor::Tensor;

/// What [`apply`](super::apply) asks an [`Op`], by the same names.
pub(super) trait AnyOp: Differentiable {
    fn names(&self) -> Names;

    fn elements(&self) -> Elements;

    /// Returns whether the op reads dense inputs only.
    fn reads_dense(&self) -> bool;

    fn output(&self, inputs: &[&Tensor]) -> Result<Output>;

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor>;

    fn cpu(&self, inputs: &[&Tensor], guards: &Guards, out: CpuOut) -> Result<()>;

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[&Tensor], out: &Buffer) -> Result<Vec<Kernel>>;

    /// As `gpu`, of parts of tensors.
    fn gpu_of_parts(&self, gpu: &Arc<Gpu>, inputs: &[Part], out: &Buffer) -> Result<Vec<Kernel>>;

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>>;
}

impl<O: Op> AnyOp for O {
    fn names(&self) -> Names {
        O::NAMES
    }

    fn elements(&self) -> Elements {
        Op::elements(self)
    }

    fn reads_dense(&self) -> bool {
        O::Layout::DENSE
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Op::output(self, inputs)
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        Op::long(self, inputs)
    }

    fn cpu(&self, inputs: &[&Tensor], guards: &Guards, out: CpuOut) -> Result<()> {
        Op::cpu(self, &of_host(inputs, guards)?, out)
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[&Tensor], out: &Buffer) -> Result<Vec<Kernel>> {
        Op::gpu(self, gpu, &of_adapter(inputs)?, out)
    }

    fn gpu_of_parts(&self, gpu: &Arc<Gpu>, inputs: &[Part], out: &Buffer) -> Result<Vec<Kernel>> {
        Op::gpu(self, gpu, &of_parts(inputs), out)
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        Op::along(self, shapes, dim)
    }
}

fn of_host<'a, L: Reads>(inputs: &[&'a Tensor], guards: &'a Guards<'_>) -> Result<Vec<CpuIn<'a, L>>> {
    inputs.iter().map(|x| CpuIn::new(x, guards)).collect()
}

fn of_adapter<'a, L: Reads>(inputs: &[&'a Tensor]) -> Result<Vec<GpuIn<'a, L>>> {
    inputs.iter().map(|x| GpuIn::new(x)).collect()
}

fn of_parts<L: Reads>(inputs: &[Part]) -> Vec<GpuIn<'_, L>> {
    inputs.iter().map(Part::input).collect()
}
