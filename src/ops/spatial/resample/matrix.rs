//! A sparse matrix along one dimension of a tensor: each element of the result is a weighted sum of some elements. Its
//! gradient is the transposed matrix.

use std::sync::Arc;

use anygpu_host::sums::{Sum, added};
use anygpu_host::tasks::share;

use crate::device::Device;
use crate::device::cpu::with_room;
use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::error::{Error, Result};
use crate::ops::inputs::{around, loops_within};
use crate::ops::names::Names;
use crate::ops::traced::Traced;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply, expect_float};
use crate::tensor::Tensor;

params! {
    struct Params { count: usize, inner: usize, size: usize, len: usize, offset: usize }
}
shader!(SHADER: Params = "spatial/resample");

/// The rows of a matrix one after the other, with their elements that are not 0.
#[derive(Debug)]
pub(super) struct Matrix {
    /// The number of columns: the size of the dimension that is read.
    columns: usize,
    /// Where each row begins in `places` and `weights`, and where the last one ends.
    starts: Vec<u32>,
    /// The column of each element.
    places: Vec<u32>,
    weights: Vec<f32>,
}

impl Matrix {
    /// Returns a matrix without rows that has memory for `rows` of them, with `each` elements.
    pub fn with_room(columns: usize, rows: usize, each: usize) -> Result<Matrix> {
        let count = rows.saturating_mul(each);
        let mut starts = with_room(rows.saturating_add(1))?;
        starts.push(0);
        Ok(Matrix { columns, starts, places: with_room(count)?, weights: with_room(count)? })
    }

    /// Adds a row with these columns and weights.
    pub fn push(&mut self, row: impl IntoIterator<Item = (u32, f64)>) {
        let kept = row.into_iter().filter(|(_, weight)| *weight != 0.0);
        kept.for_each(|(place, weight)| {
            self.places.push(place);
            self.weights.push(weight as f32);
        });
        self.starts.push(self.places.len() as u32);
    }

    fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the columns of a row with their weights.
    fn row(&self, row: usize) -> impl Iterator<Item = (usize, f32)> {
        let range = self.starts[row] as usize..self.starts[row + 1] as usize;
        self.places[range.clone()].iter().map(|&place| place as usize).zip(self.weights[range].iter().copied())
    }

    /// Returns the column of the first element of each row, or 0.
    pub fn first_places(&self) -> Vec<u32> {
        (0..self.rows()).map(|row| self.row(row).next().map_or(0, |(place, _)| place as u32)).collect()
    }

    /// Returns all elements of all rows, one row after the other.
    pub fn dense(&self) -> Vec<f32> {
        let mut all = vec![0.0; self.rows() * self.columns];
        for row in 0..self.rows() {
            self.row(row).for_each(|(column, weight)| all[row * self.columns + column] += weight);
        }
        all
    }

    /// Returns the number of elements of the longest row.
    fn longest(&self) -> usize {
        self.starts.windows(2).map(|pair| (pair[1] - pair[0]) as usize).max().unwrap_or(0)
    }

    fn transposed(&self) -> Matrix {
        let mut starts = vec![0u32; self.columns + 1];
        self.places.iter().for_each(|&place| starts[place as usize + 1] += 1);
        (0..self.columns).for_each(|i| starts[i + 1] += starts[i]);
        let mut next = starts.clone();
        let (mut places, mut weights) = (vec![0; self.places.len()], vec![0.0; self.places.len()]);
        for row in 0..self.rows() {
            for (column, weight) in self.row(row) {
                let at = next[column] as usize;
                (places[at], weights[at]) = (row as u32, weight);
                next[column] += 1;
            }
        }
        Matrix { columns: self.rows(), starts, places, weights }
    }

    /// Returns the tables that the kernel reads.
    fn tables(&self, device: &Device) -> Result<[Tensor; 3]> {
        let whole = |list: &[u32]| Tensor::from_slice(list, list.len(), device);
        let weights = Tensor::from_slice(&self.weights, self.weights.len(), device)?;
        Ok([whole(&self.starts)?, whole(&self.places)?, weights])
    }
}

/// `[A, L, B]` → `[A, O, B]`; `dim` is the middle dimension. An adapter gets the matrix as further inputs.
#[derive(Clone, Debug)]
struct Product {
    op: &'static str,
    dim: usize,
    matrix: Arc<Matrix>,
}

impl Op for Product {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = Names::OfCaller;

    fn name(&self) -> &'static str {
        self.op
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Along { dim: self.dim, rows: self.matrix.dense() })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        expect_float(self.op, inputs[0])?;
        let mut shape = inputs[0].shape().to_vec();
        shape[self.dim] = self.matrix.rows();
        Ok((shape, inputs[0].dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let [_, len, inner] = around(inputs[0].shape(), self.dim);
        let (x, out, matrix) = (inputs[0].slice::<f32>(), out.slice::<f32>(), &*self.matrix);
        let rows = matrix.rows();
        share(out.chunks_mut(inner).enumerate(), 4096 / inner, |(i, line)| {
            let x = &x[i / rows * len * inner..][..len * inner];
            let terms = (matrix.starts[i % rows + 1] - matrix.starts[i % rows]) as usize;
            let each = || matrix.row(i % rows).map(|(place, weight)| (&x[place * inner..][..inner], weight));
            added(line, terms, |line| weighted(each(), line), |line| weighted(each(), line));
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let [outer, len, inner] = around(inputs[0].shape(), self.dim);
        let size = self.matrix.rows();
        loops_within(self.op, self.matrix.longest(), || format!("a sum along a dimension of {len} for one of {size}"))?;
        let params = Params { count: outer * size * inner, inner, size, len, offset: inputs[0].offset() };
        let kernel = inputs.iter().fold(Kernel::build(SHADER, "resample", params), |kernel, input| kernel.input(input));
        Ok(vec![kernel.output(out).each(params.count)])
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let grad = product(self.op, ctx.grad, self.dim, Arc::new(self.matrix.transposed()))?;
        Ok([Some(grad)].into_iter().chain(ctx.inputs[1..].iter().map(|_| None)).collect())
    }
}

/// Adds rows, each multiplied by its weight, to `out`.
fn weighted<'a>(rows: impl Iterator<Item = (&'a [f32], f32)>, out: &mut [impl Sum]) {
    for (row, weight) in rows {
        out.iter_mut().zip(row).for_each(|(out, v)| out.take(weight * v));
    }
}

/// Applies a matrix along a dimension of its number of columns.
pub(super) fn product(op: &'static str, x: &Tensor, dim: usize, matrix: Arc<Matrix>) -> Result<Tensor> {
    expect_float(op, x)?;
    if x.shape()[dim] != matrix.columns {
        return Err(Error::internal(format!("a matrix of {} columns for {:?}", matrix.columns, x.shape())));
    }
    if x.device().is_cpu() {
        return apply(Product { op, dim, matrix }, &[x]);
    }
    let [starts, places, weights] = matrix.tables(x.device())?;
    apply(Product { op, dim, matrix }, &[x, &starts, &places, &weights])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transposed_matrix_has_every_element_in_its_column() {
        let mut matrix = Matrix::with_room(3, 3, 2).unwrap();
        matrix.push([(0, 1.0), (2, 2.0)]);
        matrix.push([(1, 0.0)]);
        matrix.push([(2, 3.0), (0, 4.0)]);
        let transposed = matrix.transposed();
        let rows: Vec<Vec<_>> = (0..transposed.rows()).map(|row| transposed.row(row).collect()).collect();
        assert_eq!((transposed.columns, transposed.longest()), (3, 2));
        assert_eq!(rows, [vec![(0, 1.0), (2, 4.0)], vec![], vec![(0, 2.0), (2, 3.0)]]);
    }
}
