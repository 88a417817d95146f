//! Products of matrices of f64, by the crate `gemm` on the host.

use std::sync::Arc;

use anygpu_host::matmul::{Matrix, Threads, gemm};

use super::{Long, host_only, of_pairs, pairs, untracked};
use crate::device::cpu::with_room;
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::names::{Names, names};
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Op, Output, apply};
use crate::tensor::Tensor;

/// Pairs of words of f64: `[batch, m, k, 2] · [batch, k, n, 2] → [batch, m, n, 2]`.
#[derive(Debug)]
struct Product;

/// Returns the numbers, which begin where f64 may.
fn numbers(words: &[u32]) -> Result<Vec<f64>> {
    let mut all = with_room(words.len() / 2)?;
    all.extend(words.as_chunks().0.iter().map(|&pair| f64::of(pair)));
    Ok(all)
}

impl Op for Product {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["matmul"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let (&[batch, m, _, _], &[_, _, n, _]) = (inputs[0].shape(), inputs[1].shape()) else {
            return Err(Error::internal("matrices of 64-bit elements are [batch, m, k, 2]"));
        };
        Ok((vec![batch, m, n, 2], DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (a, b) = (inputs[0].shape(), inputs[1].shape());
        let (m, k, n) = (a[1], a[2], b[2]);
        let mut result: Vec<f64> = with_room(m * n)?;
        result.resize(m * n, 0.0);
        for (i, out) in out.0.chunks_mut(2 * m * n).enumerate() {
            let part = |x: &CpuIn<Dense>, len: usize| numbers(&x.slice::<u32>()[2 * i * len..][..2 * len]);
            let (a, b) = (part(&inputs[0], m * k)?, part(&inputs[1], k * n)?);
            let (a, b) = (Matrix::new(&a, 0, [k, 1]), Matrix::new(&b, 0, [n, 1]));
            gemm(&mut result, a, b, [m, k, n], false, Threads::All);
            out.as_chunks_mut().0.iter_mut().zip(&result).for_each(|(out, value)| *out = value.pair());
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn<Dense>], _out: &Buffer) -> Result<Vec<Kernel>> {
        host_only(self.name(), DType::F64)
    }
}

/// Computes the product of matrices of f64 whose batch dimensions are broadcast to `batch`.
pub(in crate::ops) fn product(a: &Tensor, b: &Tensor, batch: &[usize], [m, k, n]: [usize; 3]) -> Result<Tensor> {
    untracked("matmul", &[a, b])?;
    let count = batch.iter().product();
    let flat = |x: &Tensor, [rows, columns]: [usize; 2]| {
        let whole = x.detach().broadcast_to([batch, &[rows, columns]].concat())?.contiguous()?;
        pairs(&whole).reshape([count, rows, columns, 2])
    };
    let out = apply(Product, &[&flat(a, [m, k])?, &flat(b, [k, n])?])?;
    of_pairs(&out, DType::F64)?.reshape([batch, &[m, n]].concat())
}
