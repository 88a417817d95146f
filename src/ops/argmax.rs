//! The position of the largest element along a dimension.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid};
use crate::ops::view::around;
use crate::ops::{Gradient, Op, Spec, apply, expect_dtype, shader};
use crate::shape::check_dim;
use crate::tensor::Tensor;

pub(super) const SHADER: Shader = shader!("argmax");

/// The most elements that one invocation compares.
const CHUNK: usize = 4096;

#[derive(Debug)]
struct Argmax {
    dim: usize,
}

impl Op for Argmax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        let x = inputs[0];
        expect_dtype("argmax", x, DType::F32)?;
        check_dim("argmax", self.dim, x.shape())?;
        if x.shape()[self.dim] == 0 {
            let detail = format!("no maximum over the empty dimension {} of {:?}", self.dim, x.shape());
            return Err(Error::argument("argmax", detail));
        }
        let mut shape = x.shape().to_vec();
        shape.remove(self.dim);
        Ok(Spec::Fresh(shape, DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let [_, reduced, inner] = around(inputs[0].layout, self.dim);
        let (x, out) = (inputs[0].slice::<f32>(), out.slice::<u32>());
        out.par_chunks_mut(inner).zip(x.par_chunks(reduced * inner)).with_min_len(64).for_each(|(out, x)| {
            for (b, out) in out.iter_mut().enumerate() {
                let mut best = (0, x[b]);
                for r in 1..reduced {
                    let v = x[r * inner + b];
                    if v > best.1 || (v.is_nan() && !best.1.is_nan()) {
                        best = (r, v);
                    }
                }
                *out = best.0 as u32;
            }
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let [outer, reduced, inner] = around(x.layout, self.dim);
        fits_u32("argmax", x.layout.elem_count())?;
        let mut kernels: Vec<Kernel> = Vec::new();
        let mut found: Option<(Buffer, usize)> = None;
        loop {
            let list = found.as_ref().map_or(reduced, |(_, count)| *count);
            let chunks = list.div_ceil(CHUNK);
            let target = if chunks == 1 { out.clone() } else { gpu.alloc(outer * chunks * inner)? };
            let numbers = [reduced, inner, chunks, CHUNK, list].map(|n| n as u32);
            let mut buffers = vec![x.buffer.clone()];
            buffers.extend(found.iter().map(|(buffer, _)| buffer.clone()));
            kernels.push(Kernel {
                shader: SHADER,
                entry: if found.is_some() { "merge" } else { "argmax" },
                header: "",
                constants: vec![],
                params: [x.offset(), outer as u32].into_iter().chain(numbers).collect(),
                inputs: buffers,
                outputs: vec![target.clone()],
                groups: grid(outer * chunks * inner),
            });
            if chunks == 1 {
                return Ok(kernels);
            }
            found = Some((target, chunks));
        }
    }

    fn backward(&self, _ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None]) // an index does not move with its elements
    }
}

impl Tensor {
    /// The position of the first largest element along `dim`, which goes: `[.., n, ..]` f32 → `[.., ..]` u32. NaN wins.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or it is empty; [`Error::DTypeMismatch`] unless f32.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([[1.0, 5.0, 5.0], [9.0, 0.0, 2.0]])?;
    /// assert_eq!(x.argmax(1)?.to_vec::<u32>()?, [1, 0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn argmax(&self, dim: usize) -> Result<Tensor> {
        apply(Argmax { dim }, &[&self.contiguous()?])
    }

    /// The position of the first largest of all elements, in row-major order: rank 0, u32. NaN wins.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no element; [`Error::DTypeMismatch`] unless f32.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::try_from([[1.0, 5.0], [9.0, 0.0]])?.argmax_all()?.item::<u32>()?, 2);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn argmax_all(&self) -> Result<Tensor> {
        self.reshape(self.elem_count())?.argmax(0)
    }
}
