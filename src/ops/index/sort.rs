//! Sorting along a dimension: `argsort`, and `sort` and `topk`, which gather by its result.
//!
//! On adapters, blocks are sorted, by counting or in the memory of workgroups, then runs are merged by bisection:
//! ⌈log₂(n / block)⌉ + 1 dispatches for rows of n, of any length. On the host, key and column are sorted together as one u64. Both sorts are stable, so all
//! devices return the same order.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::names::{Names, names};
use crate::ops::reduction::plan::{Sharing, by_chunks};
use crate::ops::traced::Traced;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, apply, named};
use crate::shape::{Dim, dimension};
use crate::tensor::Tensor;

params! {
    struct Params { count: usize, n: usize, offset: usize, width: usize }
}
shader!(SHADER: Params = "index/sort");

/// Columns that one invocation compares; `BLOCK` in the shader.
const BLOCK: usize = 64;

/// Columns that one workgroup sorts; `TILE` in the shader.
const TILE: usize = 1024;

/// Each row of fewer columns is sorted by one thread of the host.
const SPLIT: usize = 1 << 16;

/// The sorted order of every row (the last dimension).
#[derive(Debug)]
struct Argsort {
    descending: bool,
}

impl Op for Argsort {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["argsort"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Argsort { descending: self.descending })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((inputs[0].shape().to_vec(), DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let x = &inputs[0];
        let n = x.shape().last().copied().unwrap_or(1);
        let (words, out) = (x.slice::<u32>(), out.slice::<u32>());
        let flip = if self.descending { u32::MAX } else { 0 };
        out.par_chunks_mut(n).zip(words.par_chunks(n)).for_each(|(out, row)| {
            let pair = |(i, &bits): (usize, &u32)| (u64::from(key(bits, x.dtype()) ^ flip) << 32) | i as u64;
            let mut pairs: Vec<u64> = row.iter().enumerate().map(pair).collect();
            if n < SPLIT {
                pairs.sort_unstable()
            } else {
                pairs.par_sort_unstable()
            }
            out.iter_mut().zip(pairs).for_each(|(out, pair)| *out = pair as u32);
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let n = x.shape().last().copied().unwrap_or(1);
        let elements = (x.as_buffer(), x.offset(), x.dtype());
        Ok(order(gpu, elements, [x.elem_count() / n, n], self.descending, None, out)?.0)
    }

    fn backward(&self, _ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![None]) // an order has no gradient
    }
}

/// Returns a number whose order is that of the elements; see `key_of` in the shader.
fn key(bits: u32, dtype: DType) -> u32 {
    const SIGN: u32 = 1 << 31;
    match dtype {
        DType::F32 if bits & !SIGN > 0x7f80_0000 => u32::MAX,
        DType::F32 if bits > SIGN => !bits,
        DType::F32 => bits | SIGN,
        DType::I32 => bits ^ SIGN,
        _ => bits,
    }
}

/// Returns the kernels that write the order of `x`, `[rows, n]` from an offset on, to `out`, and the buffer with the
/// sorted keys. The plan chooses the way unless one is given. For ascending u32 the keys are the sorted elements.
pub(in crate::ops) fn order(
    gpu: &Gpu,
    (x, offset, dtype): (&Buffer, usize, DType),
    [rows, n]: [usize; 2],
    descending: bool,
    given: Option<Sharing>,
    out: &Buffer,
) -> Result<(Vec<Kernel>, Buffer)> {
    let count = rows * n;
    let in_tiles = given.map_or_else(|| by_chunks(gpu, [rows, n, 1]), Ok)? == Sharing::Shared;
    let block = if in_tiles { TILE } else { BLOCK };
    let widths: Vec<usize> = std::iter::successors(Some(block), |w| Some(w * 2)).take_while(|w| *w < n).collect();
    let spare = |needed: bool| gpu.alloc(if needed { count } else { 1 });
    let keys = [spare(true)?, spare(!widths.is_empty())?];
    let orders = [spare(!widths.is_empty())?, spare(widths.len() > 1)?];
    // Pass i writes to the buffers of index i mod 2; the last pass writes the order to `out`.
    let order_of = |pass: usize| if pass == widths.len() { out } else { &orders[pass % 2] };
    let kernel = |entry, offset, width| {
        let kernel = Kernel::build(SHADER, entry, Params { count, n, offset, width });
        kernel.constant("OP", type_code(dtype)).constant("DESCENDING", descending)
    };
    let blocks = kernel(if in_tiles { "rank_tile" } else { "rank" }, offset, 0);
    let blocks = blocks.input(x).output(&keys[0]).output(order_of(0));
    let mut kernels = vec![if in_tiles { blocks.workgroups(rows * n.div_ceil(TILE)) } else { blocks.each(count) }];
    for (i, &width) in widths.iter().enumerate() {
        let kernel = kernel("merge", 0, width).input(&keys[i % 2]).input(order_of(i));
        kernels.push(kernel.output(&keys[(i + 1) % 2]).output(order_of(i + 1)).each(count));
    }
    Ok((kernels, keys[widths.len() % 2].clone()))
}

/// Returns the number that the shader uses for a type.
fn type_code(dtype: DType) -> u8 {
    match dtype {
        DType::F32 => 0,
        DType::I32 => 1,
        _ => 2,
    }
}

impl Tensor {
    /// Returns the positions along `dim` that sort the elements, as u32 in the same shape.
    ///
    /// Equal elements keep their order, even with `descending`. NaN counts as the largest value; −0 and 0 are equal.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([3.0, 1.0, f32::NAN, 1.0], None)?;
    /// assert_eq!(x.argsort(0, false)?.to_vec::<u32>()?, [1, 3, 0, 2]);
    /// assert_eq!(x.argsort(0, true)?.to_vec::<u32>()?, [2, 0, 1, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn argsort(&self, dim: impl Dim, descending: bool) -> Result<Tensor> {
        let dim = dimension("argsort", dim, self.shape())?;
        let last = self.rank() - 1;
        apply(Argsort { descending }, &[&self.detach().transpose(dim, last)?])?.transpose(dim, last)
    }

    /// Sorts the elements along `dim`.
    ///
    /// Returns the sorted elements, and their positions before sorting as u32. Both have this tensor's shape. The order
    /// is the same as for [`Tensor::argsort`]. The values have a gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let (values, positions) = Tensor::new([3.0, 1.0, 2.0], None)?.sort(0, false)?;
    /// assert_eq!(values.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
    /// assert_eq!(positions.to_vec::<u32>()?, [1, 2, 0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn sort(&self, dim: impl Dim, descending: bool) -> Result<(Tensor, Tensor)> {
        named("sort", || {
            let positions = self.argsort(dim, descending)?;
            Ok((self.gather(dim, &positions)?, positions))
        })
    }

    /// Returns the `k` largest elements along `dim` and their positions: `[.., n, ..]` → two tensors `[.., k, ..]`.
    ///
    /// If `largest` is false, returns the smallest elements instead. The positions are u32.
    ///
    /// The elements are in order even if `sorted` is false. Of equal elements, the first ones are taken. NaN counts as
    /// the largest value. The values have a gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such dimension, or it has fewer than `k` elements.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let scores = Tensor::new([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], None)?;
    /// let (values, classes) = scores.topk(2, 1, true, true)?;
    /// assert_eq!(values.to_vec::<f32>()?, [0.7, 0.2, 0.5, 0.3]);
    /// assert_eq!(classes.to_vec::<u32>()?, [1, 2, 0, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn topk(&self, k: usize, dim: impl Dim, largest: bool, sorted: bool) -> Result<(Tensor, Tensor)> {
        let _ = sorted; // an unsorted result may be in any order
        let dim = dimension("topk", dim, self.shape())?;
        if k > self.shape()[dim] {
            let detail = format!("dimension {dim} of {:?} has fewer than {k} elements", self.shape());
            return Err(Error::argument("topk", detail));
        }
        let positions = self.argsort(dim, largest)?.narrow(dim, 0, k)?;
        Ok((self.gather(dim, &positions)?, positions))
    }
}
