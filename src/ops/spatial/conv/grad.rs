//! The two gradients of a convolution, each of them an op. The gradient with respect to the input is also the
//! transposed convolution.

use std::sync::Arc;

use anygpu_host::conv;

use super::direct;
use super::direct::Direct;
use super::forward::Forward;
use super::geometry::{Columns, Geometry, Pass};
use super::plan;
use crate::device::cpu::host_error;
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::inplace::fill_kernel;
use crate::ops::inputs::loops_within;
use crate::ops::linalg::panels::{A_WIDTH, ALONE, B_WIDTH, IndexMap, MAX_SOFTWARE_DEPTH, Pack, Product, Target};
use crate::ops::names::{Names, names};
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::stored::Stored;
use crate::ops::traced::Traced;
use crate::ops::{Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply};
use crate::tensor::Tensor;

/// dy `[N, OC, OH, OW]`, w `[OC, C / groups, KH, KW]` → dx `[N, C, H, W]`: `wᵀ · dy`, added as an image.
#[derive(Debug)]
pub(super) struct InputGrad {
    g: Geometry,
    /// Whether it is a transposed convolution, an op of its own.
    transposed: bool,
    /// The type of the result.
    dtype: DType,
}

impl InputGrad {
    pub fn gradient(g: &Geometry) -> InputGrad {
        InputGrad { g: g.clone(), transposed: false, dtype: DType::F32 }
    }

    /// Returns the op as a transposed convolution, with its own name.
    pub fn transposed(g: &Geometry, dtype: DType) -> InputGrad {
        InputGrad { g: g.clone(), transposed: true, dtype }
    }

    /// Returns the kernels that multiply the weight by the gradient of the result, and add the columns of the product as images.
    fn by_columns(&self, gpu: &Gpu, [dy, w]: [&GpuIn<Dense>; 2], out: &Buffer) -> Result<Vec<Kernel>> {
        let g = &self.g;
        let (depth, pixels, wide) = (g.depth(), g.window.pixels(), g.group_out());
        let splits = wide.div_ceil(MAX_SOFTWARE_DEPTH);
        let left = Pack {
            width: A_WIDTH,
            depth: wide,
            across: depth,
            k: IndexMap::even(wide, depth),
            j: IndexMap::even(depth, 1),
        };
        let (passes, widest) = g.passes();
        let (weights, grads) = (Pack::size(A_WIDTH, wide, depth), Pack::size(B_WIDTH, wide, widest));
        let (weights, grads, cols) = (gpu.alloc(weights)?, gpu.alloc(grads)?, gpu.alloc(depth * widest)?);
        let target = if splits == 1 { cols.clone() } else { gpu.alloc(splits * depth * widest)? };
        let mut kernels = Vec::new();
        for group in 0..g.groups {
            kernels.push(left.batch(gpu, Stored::of(w).after(group * g.group_weights()), ALONE, &weights)?);
            for pass in &passes {
                let columns = pass.columns();
                let j = IndexMap { inner: pass.pixels, step: 1, outer: g.out_image() };
                let right = Pack { width: B_WIDTH, depth: wide, across: columns, k: IndexMap::even(wide, pixels), j };
                let from = Stored::of(dy).after((pass.image * g.out_channels + group * wide) * pixels + pass.pixel);
                kernels.push(right.batch(gpu, from, ALONE, &grads)?);
                let product = Product { m: depth, k: wide, n: columns, batch: 1, splits, steps: [0, 0] };
                let to = Target { offset: 0, batch: depth * columns, row: columns, inner: columns, outer: 0 };
                kernels.push(product.kernel(gpu, [&weights, &grads], None, &target, to)?);
                if splits > 1 {
                    kernels.extend(sum_parts(gpu, &target, [1, splits, depth * columns], &cols)?);
                }
                kernels.push(g.kernel(Columns::Add, (pass, group), (Stored::words(&cols), out)));
            }
        }
        Ok(kernels)
    }
}

impl Op for InputGrad {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Factors(Casting::Lower);
    const NAMES: Names = names!["conv_transpose2d", "conv2d_input_grad"];

    fn name(&self) -> &'static str {
        if self.transposed { "conv_transpose2d" } else { "conv2d_input_grad" }
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        let conv::Sizes { groups, window, .. } = self.g.0;
        self.transposed.then_some(Traced::ConvTranspose { groups, window })
    }

    fn output(&self, _inputs: &[&Tensor]) -> Result<Output> {
        let conv::Sizes { images, channels, window, .. } = self.g.0;
        Ok((vec![images, channels, window.size[0], window.size[1]], self.dtype))
    }

    fn elements(&self) -> Elements {
        if self.transposed { Self::ELEMENTS } else { Elements::MixedFactors(Casting::Lower) }
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let g = &self.g;
        let (dy, w, out) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>());
        conv::input_grad(g, dy, w, out).map_err(host_error)
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let g = &self.g;
        let (dy, w) = (&inputs[0], &inputs[1]);
        let operands = [Stored::of(dy), Stored::of(w)];
        let plan = plan::input_grad(&**gpu, g, [dy.dtype(), w.dtype()])?;
        if !matches!(plan, plan::InputGrad::Nothing | plan::InputGrad::Direct) {
            let window = &g.window.params;
            loops_within(self.name(), window.loops(), || format!("a kernel of {:?}", window.kernel))?;
        }
        match plan {
            plan::InputGrad::Nothing => Ok(vec![fill_kernel(out, 0, g.images * g.image(), 0)]),
            plan::InputGrad::Direct => Ok(vec![g.direct_kernel(Direct::InputGrad, [dy, w], None, out)]),
            plan::InputGrad::Cooperative(variant, turned) => {
                g.input_grad_cooperative(gpu, (variant, &turned), operands, out)
            }
            plan::InputGrad::Implicit(tiles) => g.input_grad_implicit(gpu, tiles, operands, out),
            plan::InputGrad::Winograd => g.by_winograd(gpu, true, [dy, w], None, out),
            plan::InputGrad::Blocks => g.input_grad_in_blocks(gpu, [dy, w], out),
            plan::InputGrad::Columns => self.by_columns(gpu, [dy, w], out),
        }
    }

    fn saves(&self) -> Saves {
        Saves::Inputs
    }

    fn gradient_changes_with(&self, input: usize) -> Saves {
        Saves::other_factor(input)
    }

    /// Computes the gradients of a transposed convolution. The gradient with respect to its input is the convolution.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (x, w, grad) = (&ctx.inputs[0], &ctx.inputs[1], ctx.grad);
        let dx = ctx.needs[0].then(|| apply(Forward(self.g.clone(), true, None), &[grad, w])).transpose()?;
        let dw = ctx.needs[1].then(|| apply(WeightGrad(self.g.clone()), &[x, grad])).transpose()?;
        Ok(vec![dx, dw])
    }
}

/// dy `[N, OC, OH, OW]`, x `[N, C, H, W]` → dw `[OC, C / groups, KH, KW]`: the sum of `dy · colsᵀ`
/// over all images and pixels.
#[derive(Debug)]
pub(super) struct WeightGrad(pub Geometry);

impl WeightGrad {
    /// Returns the kernels that multiply the gradient of the result by the columns of the images.
    fn by_columns(&self, gpu: &Gpu, [dy, x]: [&GpuIn<Dense>; 2], out: &Buffer) -> Result<Vec<Kernel>> {
        let (g, run) = (&self.0, plan::run(&self.0));
        let (depth, pixels, wide) = (g.depth(), g.window.pixels(), g.group_out());
        let len = g.groups * g.group_weights();
        let (passes, widest) = g.passes();
        let splits = |pass: &Pass| pass.columns().div_ceil(run).max(1);
        let parts: usize = passes.iter().map(splits).sum();
        let partial = gpu.alloc(parts * len)?;
        let grads = gpu.alloc(Pack::size(A_WIDTH, widest, wide))?;
        let cols = gpu.alloc(depth.next_multiple_of(64) * widest)?;
        let mut kernels = vec![fill_kernel(&partial, 0, parts * len, 0)];
        for group in 0..g.groups {
            let mut done = 0;
            for pass in &passes {
                let columns = pass.columns();
                let k = IndexMap { inner: pass.pixels, step: 1, outer: g.out_image() };
                let left = Pack { width: A_WIDTH, depth: columns, across: wide, k, j: IndexMap::even(wide, pixels) };
                let from = Stored::of(dy).after((pass.image * g.out_channels + group * wide) * pixels + pass.pixel);
                kernels.push(left.batch(gpu, from, ALONE, &grads)?);
                kernels.push(g.kernel(Columns::WriteTurned, (pass, group), (Stored::of(x), &cols)));
                let splits = splits(pass);
                let product = Product { m: wide, k: columns, n: depth, batch: 1, splits, steps: [0, 0] };
                let offset = done * len + group * g.group_weights();
                let to = Target { offset, batch: len, row: depth, inner: depth, outer: 0 };
                kernels.push(product.kernel(gpu, [&grads, &cols], None, &partial, to)?);
                done += splits;
            }
        }
        kernels.extend(sum_parts(gpu, &partial, [1, parts, len], out)?);
        Ok(kernels)
    }
}

impl Op for WeightGrad {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::MixedFactors(Casting::Keep);
    const NAMES: Names = names!["conv2d_weight_grad"];

    fn output(&self, _inputs: &[&Tensor]) -> Result<Output> {
        let [kh, kw] = self.0.window.params.kernel;
        Ok((vec![self.0.out_channels, self.0.group_channels(), kh, kw], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let g = &self.0;
        let (dy, x, out) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>());
        conv::weight_grad(g, dy, x, out).map_err(host_error)
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let g = &self.0;
        let (dy, x) = (&inputs[0], &inputs[1]);
        let operands = [Stored::of(dy), Stored::of(x)];
        match plan::weight_grad(&**gpu, g, [dy.dtype(), x.dtype()])? {
            plan::WeightGrad::Direct => direct::weight_grad(gpu, g, dy, x, out),
            plan::WeightGrad::Cooperative(variant, parts) => {
                g.weight_grad_cooperative(gpu, variant, &parts, operands, out)
            }
            plan::WeightGrad::Implicit(tiles) => g.weight_grad_implicit(gpu, tiles, operands, out),
            plan::WeightGrad::Blocks => g.weight_grad_in_blocks(gpu, [dy, x], plan::run(g), out),
            plan::WeightGrad::Columns => self.by_columns(gpu, [dy, x], out),
        }
    }

    fn saves(&self) -> Saves {
        Saves::Inputs
    }

    fn gradient_changes_with(&self, input: usize) -> Saves {
        Saves::other_factor(input)
    }

    /// The result is linear in both inputs: in the gradient of the convolution, and in its image.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (dy, x, grad) = (&ctx.inputs[0], &ctx.inputs[1], ctx.grad);
        let by_dy = ctx.needs[0].then(|| apply(Forward(self.0.clone(), true, None), &[x, grad])).transpose()?;
        let by_x = ctx.needs[1].then(|| apply(InputGrad::gradient(&self.0), &[dy, grad])).transpose()?;
        Ok(vec![by_dy, by_x])
    }
}
