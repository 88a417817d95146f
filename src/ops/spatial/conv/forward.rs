//! The convolution itself.
//!
//! Both engines turn images into matrices and multiply them. An adapter handles many images at once and writes them directly into
//! the panels of `matmul`.

use std::sync::Arc;

use anygpu_host::conv;

use super::direct::Direct;
use super::geometry::Geometry;
use super::grad::{InputGrad, WeightGrad};
use super::plan;
use super::then::Then;
use crate::device::cpu::host_error;
use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::inplace::fill_kernel;
use crate::ops::linalg::panels::{A_WIDTH, ALONE, IndexMap, MAX_SOFTWARE_DEPTH, Pack, Product, Target};
use crate::ops::names::{Names, names};
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::shape::copy::strided_kernel;
use crate::ops::stored::Stored;
use crate::ops::traced::Traced;
use crate::ops::{Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply};
use crate::shape::Layout;
use crate::tensor::Tensor;

/// x `[N, C, H, W]`, w `[OC, C / groups, KH, KW]`, optional bias `[OC]` → y `[N, OC, OH, OW]`.
/// If the second field is true, it is part of a gradient: x and w may be of different float types, and y is f32. With the third,
/// the op is for the host only, and has no gradient.
#[derive(Debug)]
pub(super) struct Forward(pub Geometry, pub bool, pub Option<Then>);

impl Forward {
    fn shape(&self) -> [usize; 4] {
        [self.0.images, self.0.out_channels, self.0.window.out[0], self.0.window.out[1]]
    }

    /// Returns the kernel that writes each channel's bias, or 0, to one part of `out`.
    fn bias_kernel(&self, gpu: &Gpu, bias: Option<&GpuIn<Dense>>, out: &Buffer, offset: usize) -> Result<Kernel> {
        let layout = Layout { offset, ..Layout::contiguous(&self.shape()) };
        let Some(bias) = bias else { return Ok(fill_kernel(out, offset, layout.elem_count(), 0)) };
        let spread = Layout { strides: vec![0, 1, 0, 0], offset: bias.offset(), ..Layout::contiguous(&self.shape()) };
        strided_kernel(gpu, &bias.through(&spread), out, &layout)
    }

    /// Returns the kernels that write the columns of the images in panels, and multiply the weight by them.
    fn by_columns(
        &self,
        gpu: &Gpu,
        [x, w]: [&GpuIn<Dense>; 2],
        bias: Option<&GpuIn<Dense>>,
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let g = &self.0;
        let (depth, pixels, wide) = (g.depth(), g.window.pixels(), g.group_out());
        // Sums that are too long for one pass are split: each part is a whole result, and the parts are added at the
        // end. The bias is one of them.
        let splits = depth.div_ceil(MAX_SOFTWARE_DEPTH);
        let (parts, total) = (if splits > 1 { splits + 1 } else { 1 }, g.images * g.out_image());
        let target = if splits > 1 { gpu.alloc(parts * total)? } else { out.clone() };
        let left =
            Pack { width: A_WIDTH, depth, across: wide, k: IndexMap::even(depth, 1), j: IndexMap::even(wide, depth) };
        let (passes, widest) = g.passes();
        let (weights, cols) =
            (gpu.alloc(Pack::size(A_WIDTH, depth, wide))?, gpu.alloc(widest.next_multiple_of(64) * depth)?);
        let mut kernels = Vec::new();
        for group in 0..g.groups {
            kernels.push(left.batch(gpu, Stored::of(w).after(group * g.group_weights()), ALONE, &weights)?);
            for pass in &passes {
                let columns = pass.columns();
                kernels.push(g.columns_kernel(gpu, (pass, group), Stored::of(x), &cols));
                let product = Product { m: wide, k: depth, n: columns, batch: 1, splits, steps: [0, 0] };
                let offset = (pass.image * g.out_channels + group * wide) * pixels + pass.pixel;
                let to = Target { offset, batch: total, row: pixels, inner: pixels, outer: g.out_image() };
                let bias = bias.filter(|_| splits == 1).map(|b| (b.as_buffer(), b.offset() + group * wide));
                kernels.push(product.kernel(gpu, [&weights, &cols], bias, &target, to)?);
            }
        }
        if splits > 1 {
            kernels.push(self.bias_kernel(gpu, bias, &target, splits * total)?);
            kernels.extend(sum_parts(gpu, &target, [1, parts, total], out)?);
        }
        Ok(kernels)
    }
}

impl Op for Forward {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Factors(Casting::Lower);
    const NAMES: Names = names!["conv2d"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        (!self.1).then_some(Traced::Conv { groups: self.0.groups, window: self.0.window })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        if let Some(bias) = inputs.get(2).filter(|b| b.shape() != [self.0.out_channels]) {
            let detail = format!("the bias is [{}], one for each output channel", self.0.out_channels);
            return Err(Error::shapes("conv2d", inputs[1].shape(), bias.shape(), detail));
        }
        Ok((self.shape().to_vec(), if self.1 { DType::F32 } else { inputs[0].dtype() }))
    }

    fn elements(&self) -> Elements {
        if self.1 { Elements::MixedFactors(Casting::Lower) } else { Self::ELEMENTS }
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let g = &self.0;
        let (x, w, out) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>());
        let bias = inputs.get(2).map(|b| b.slice::<f32>());
        let then = self.2.map(|then| move |x: &[f32], out: &mut [f32]| then.write(x, out));
        conv::forward(g, x, w, bias, then.as_ref().map(|then| then as conv::Activation), out).map_err(host_error)
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let g = &self.0;
        let (x, w, bias) = (&inputs[0], &inputs[1], inputs.get(2));
        let (operands, summand) = ([Stored::of(x), Stored::of(w)], bias.map(Stored::of));
        match plan::forward(&**gpu, g, [x.dtype(), w.dtype()])? {
            plan::Forward::Nothing => Ok(vec![self.bias_kernel(gpu, bias, out, 0)?]),
            plan::Forward::Registers(registers) => Ok(vec![g.forward_in_registers(registers, [x, w], bias, out)]),
            plan::Forward::Direct => Ok(vec![g.direct_kernel(Direct::Forward, [x, w], bias, out)]),
            plan::Forward::Cooperative(variant) => g.forward_cooperative(gpu, variant, operands, summand, out),
            plan::Forward::Implicit(tiles) => g.forward_implicit(gpu, tiles, operands, summand, out),
            plan::Forward::Winograd => g.by_winograd(gpu, false, [x, w], bias, out),
            plan::Forward::Blocks => g.forward_in_blocks(gpu, [x, w], bias, out),
            plan::Forward::Columns => self.by_columns(gpu, [x, w], bias, out),
        }
    }

    fn saves(&self) -> Saves {
        Saves::Inputs
    }

    fn gradient_changes_with(&self, input: usize) -> Saves {
        Saves::other_factor(input)
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (x, w, grad) = (&ctx.inputs[0], &ctx.inputs[1], ctx.grad);
        // The gradient of x comes last, since the gradient of the op before this one often follows it, in the same
        // kernel.
        let bias = |wanted: &bool| wanted.then(|| grad.to_dtype(DType::F32)?.sum([0, 2, 3], false)).transpose();
        let dbias = ctx.needs.get(2).map(bias).transpose()?;
        let dw = ctx.needs[1].then(|| apply(WeightGrad(self.0.clone()), &[grad, x])).transpose()?;
        let dx = ctx.needs[0].then(|| apply(InputGrad::gradient(&self.0), &[grad, w])).transpose()?;
        Ok([dx, dw].into_iter().chain(dbias).collect())
    }
}
