//! The two gradients of a convolution, as ops of their own: with respect to the input and to the weight.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::conv::Geometry;
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn};
use crate::ops::matmul::{Operand, Pack, Product, Target, Threads, Walk, gemm};
use crate::ops::reduce::sum_parts;
use crate::ops::{Op, Spec};
use crate::tensor::Tensor;

/// The most output pixels that one invocation adds up for the weight's gradient.
const MAX_DEPTH: usize = 4096;

/// Tasks into which the CPU cuts a batch for the weight's gradient: a constant, so that the order of additions, and with
/// it the result, does not depend on the number of cores.
const CPU_PARTS: usize = 16;

/// dy `[N, OC, OH, OW]`, w `[OC, C, KH, KW]` → dx `[N, C, H, W]`: the columns' gradient `wᵀ · dy`, added back.
#[derive(Debug)]
pub(super) struct InputGrad(pub Geometry);

impl Op for InputGrad {
    fn name(&self) -> &'static str {
        "conv2d_input_grad"
    }

    fn output(&self, _inputs: &[&Tensor]) -> Result<Spec> {
        let Geometry { images, channels, size: [h, w], .. } = self.0;
        Ok(Spec::Fresh(vec![images, channels, h, w], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let g = &self.0;
        let (dy, w, out) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>());
        let (depth, pixels, oc) = (g.depth(), g.pixels(), g.out_channels);
        out.par_chunks_mut(g.image()).enumerate().for_each_init(
            || vec![0f32; depth * pixels],
            |cols, (n, dx)| {
                let (a, b) = (Operand::new(w, 0, [1, depth]), Operand::new(dy, n * oc * pixels, [pixels, 1]));
                gemm(cols, a, b, [depth, oc, pixels], false, Threads::One);
                dx.fill(0.0);
                g.col2im(cols, dx);
            },
        );
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let g = &self.0;
        let (dy, w) = (&inputs[0], &inputs[1]);
        let (depth, pixels, oc) = (g.depth(), g.pixels(), g.out_channels);
        let left = Pack::left(oc, depth, Walk::even(oc, depth), Walk::even(depth, 1));
        let weights = left.alloc(gpu)?;
        let mut kernels = vec![left.kernel(w.buffer, w.layout.offset, 1, 0, &weights)?];
        for (first, images) in g.passes() {
            let columns = images * pixels;
            let across = Walk { inner: pixels, step: 1, outer: g.out_image() };
            let right = Pack::right(oc, columns, Walk::even(oc, pixels), across);
            let grads = right.alloc(gpu)?;
            kernels.push(right.kernel(dy.buffer, dy.layout.offset + first * g.out_image(), 1, 0, &grads)?);
            let cols = gpu.alloc(depth * columns)?;
            let product = Product { m: depth, k: oc, n: columns, batch: 1, splits: 1, steps: [0, 0] };
            let to = Target { offset: 0, batch: 0, row: columns, inner: columns, outer: 0 };
            kernels.push(product.kernel([&weights, &grads], None, &cols, to)?);
            let place = (images * g.image(), images, first * g.image());
            kernels.push(g.kernel_of("col2im", place, &cols, out)?);
        }
        Ok(kernels)
    }
}

/// dy `[N, OC, OH, OW]`, x `[N, C, H, W]` → dw `[OC, C, KH, KW]`: `dy · colsᵀ`, summed over all images and pixels.
#[derive(Debug)]
pub(super) struct WeightGrad(pub Geometry);

impl Op for WeightGrad {
    fn name(&self) -> &'static str {
        "conv2d_weight_grad"
    }

    fn output(&self, _inputs: &[&Tensor]) -> Result<Spec> {
        let Geometry { out_channels, channels, kernel: [kh, kw], .. } = self.0;
        Ok(Spec::Fresh(vec![out_channels, channels, kh, kw], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let g = &self.0;
        let (dy, x, out) = (inputs[0].slice::<f32>(), inputs[1].slice::<f32>(), out.slice::<f32>());
        let (depth, pixels, oc) = (g.depth(), g.pixels(), g.out_channels);
        let part = |part: usize| {
            let mut dw = vec![0f32; oc * depth];
            let mut cols = vec![0f32; depth * pixels];
            for n in (part * g.images / CPU_PARTS)..((part + 1) * g.images / CPU_PARTS) {
                g.im2col(&x[n * g.image()..][..g.image()], &mut cols);
                let (a, b) = (Operand::new(dy, n * oc * pixels, [pixels, 1]), Operand::new(&cols, 0, [1, pixels]));
                gemm(&mut dw, a, b, [oc, pixels, depth], true, Threads::One);
            }
            dw
        };
        let parts: Vec<Vec<f32>> = (0..CPU_PARTS).into_par_iter().map(part).collect();
        out.fill(0.0);
        parts.iter().for_each(|part| out.iter_mut().zip(part).for_each(|(out, v)| *out += v));
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let g = &self.0;
        let (dy, x) = (&inputs[0], &inputs[1]);
        let (depth, pixels, oc) = (g.depth(), g.pixels(), g.out_channels);
        let len = oc * depth;
        let passes: Vec<(usize, usize)> = g.passes().collect();
        let splits = |images: usize| (images * pixels).div_ceil(MAX_DEPTH).max(1);
        let parts: usize = passes.iter().map(|&(_, images)| splits(images)).sum();
        let partial = gpu.alloc(parts * len)?;
        let mut kernels = vec![super::inplace::fill_kernel(&partial, 0, parts * len, 0)];
        let mut done = 0;
        for (first, images) in passes {
            let columns = images * pixels;
            let along = Walk { inner: pixels, step: 1, outer: g.out_image() };
            let left = Pack::left(columns, oc, along, Walk::even(oc, pixels));
            let grads = left.alloc(gpu)?;
            kernels.push(left.kernel(dy.buffer, dy.layout.offset + first * g.out_image(), 1, 0, &grads)?);
            let count = depth.next_multiple_of(64) * columns;
            let cols = gpu.alloc(count)?;
            let from = x.layout.offset + first * g.image();
            kernels.push(g.kernel_of("im2col_turned", (count, images, from), x.buffer, &cols)?);
            let product = Product { m: oc, k: columns, n: depth, batch: 1, splits: splits(images), steps: [0, 0] };
            let to = Target { offset: done * len, batch: len, row: depth, inner: depth, outer: 0 };
            kernels.push(product.kernel([&grads, &cols], None, &partial, to)?);
            done += splits(images);
        }
        kernels.extend(sum_parts(gpu, &partial, [1, parts, len], out)?);
        Ok(kernels)
    }
}
