//! Distances between all pairs of vectors of two sets.

use crate::error::{Error, Result};
use crate::ops::long::refuse;
use crate::ops::recomputed::{Cut, InParts, in_parts};
use crate::ops::reduction::statistics::wide;
use crate::ops::{named, of_sums, same_device};
use crate::shape::broadcast_shapes;
use crate::tensor::Tensor;

/// The number of differences that are in memory at a time.
const MOST: usize = 1 << 22;

const NAME: &str = "cdist";

/// Returns the norms of the differences: `[.., P, M]` and `[.., R, M]` → `[.., P, R]`.
fn distances(x: &Tensor, y: &Tensor, p: f32) -> Result<Tensor> {
    x.unsqueeze(-2)?.sub(&y.unsqueeze(-3)?)?.norm(p, -1, false)
}

/// Distances in blocks of rows of the first set.
struct Blocks {
    p: f32,
    rows: usize,
}

/// Returns the dimensions before the vectors of a set, and their number.
fn split_rows(x: &Tensor) -> (&[usize], usize) {
    let (vectors, batch) = (x.rank() - 2, x.shape());
    (&batch[..vectors], batch[vectors])
}

impl InParts for Blocks {
    fn cut(&self, inputs: &[Tensor]) -> Option<Cut> {
        let rank = inputs[0].rank().max(inputs[1].rank());
        let dim = inputs[0].rank() - 2;
        let cut = Cut { dim: rank - 2, each: self.rows, inputs: vec![Some(dim), None] };
        (inputs[0].shape()[dim] > self.rows).then_some(cut)
    }

    fn shape(&self, inputs: &[Tensor]) -> Result<Vec<usize>> {
        let [(x, rows), (y, columns)] = [0, 1].map(|i| split_rows(&inputs[i]));
        Ok([&broadcast_shapes(NAME, x, y)?[..], &[rows, columns]].concat())
    }

    fn part(&self, inputs: &[Tensor], _first: usize) -> Result<Tensor> {
        distances(&inputs[0], &inputs[1], self.p)
    }
}

impl Tensor {
    /// Returns the distances between the vectors of two tensors: `[.., P, M]` and `[.., R, M]` → `[.., P, R]`.
    ///
    /// Each vector of this tensor is compared with each vector of the other tensor. A distance is the p-norm of the
    /// difference. The leading dimensions are broadcast.
    ///
    /// A p of 2 is the Euclidean distance, 1 the sum of absolute differences, ∞ the largest absolute difference, and 0
    /// the number of elements that differ. The gradient at a distance of 0 is 0.
    ///
    /// Distances are computed from differences, like PyTorch's `compute_mode="donot_use_mm_for_euclid_dist"`, so the
    /// distances of close vectors are accurate. Large sets are computed in blocks, so the differences of all pairs are
    /// never in memory together (except for gradients of gradients).
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the shapes do not fit; [`Error::InvalidArgument`] if p is negative or NaN;
    /// [`Error::DTypeMismatch`] unless both are floats of at most 32 bits; [`Error::DeviceMismatch`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::new([[0.0, 0.0], [3.0, 0.0]], None)?;
    /// let b = Tensor::new([[3.0, 4.0]], None)?;
    /// assert_eq!(a.cdist(&b, 2.0)?.to_vec2::<f32>()?, [[5.0], [4.0]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn cdist(&self, other: &Tensor, p: f32) -> Result<Tensor> {
        named(NAME, || {
            same_device(NAME, &[self, other])?;
            refuse(NAME, [self, other])?;
            if p.is_nan() || p < 0.0 {
                return Err(Error::argument(NAME, format!("p is {p}, and must be at least 0")));
            }
            let ([.., rows, width], [.., columns, other_width]) = (self.shape(), other.shape()) else {
                let rule = "both are sets of vectors, [.., P, M] and [.., R, M]";
                return Err(Error::shapes(NAME, self.shape(), other.shape(), rule));
            };
            if width != other_width {
                let rule = "the vectors, along the last dimension, must have one length";
                return Err(Error::shapes(NAME, self.shape(), other.shape(), rule));
            }
            let (a, b) = (&self.shape()[..self.rank() - 2], &other.shape()[..other.rank() - 2]);
            let batch = broadcast_shapes(NAME, a, b)?;
            let (x, y, to) = (wide(NAME, self)?, wide(NAME, other)?, of_sums(self.dtype()));
            if *width == 0 {
                return Tensor::zeros([&batch[..], &[*rows, *columns]].concat(), self.device())?.to_dtype(to);
            }
            let each = batch.iter().chain([columns, width]).fold(1usize, |all, &size| all.saturating_mul(size));
            let fit = (MOST / each.max(1)).max(1);
            if fit >= *rows { distances(&x, &y, p) } else { in_parts(NAME, Blocks { p, rows: fit }, &[&x, &y]) }?
                .to_dtype(to)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::ops::linalg::matmul_variants::numbers;
    use crate::{GradOptions, grad};

    /// Returns the distances, their gradients by both sets, and the gradients of a product of these gradients.
    fn all_of(sets: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<Vec<Tensor>> {
        let leaves: Vec<Tensor> = sets.iter().map(Tensor::requires_grad).collect();
        let both: Vec<&Tensor> = leaves.iter().collect();
        let out = f(&leaves)?;
        let slopes = Tensor::from_vec(numbers(out.elem_count(), 9), out.shape(), out.device())?;
        let options = GradOptions::new().output_grad(&slopes).retain_graph();
        let firsts = grad(&out, &both, &options)?;
        let again = grad(&out, &both, &options.create_graph())?;
        let product = again[0].square()?.sum_all()?.mul(&again[1].square()?.sum_all()?)?;
        let seconds = grad(&product, &both, &GradOptions::new())?;
        Ok([vec![out.detach()], firsts, seconds].concat())
    }

    #[test]
    fn blocks_give_the_numbers_of_the_whole() -> Result<()> {
        for device in Device::all() {
            let shapes: [[&[usize]; 2]; 3] = [[&[7, 3], &[4, 3]], [&[2, 5, 3], &[4, 3]], [&[5, 3], &[2, 3, 4, 3]]];
            for (i, shapes) in shapes.into_iter().enumerate() {
                let set = |(seed, shape): (u32, &[usize])| {
                    Tensor::from_vec(numbers(shape.iter().product(), seed), shape, &device)
                };
                let sets: Vec<Tensor> = (1..).zip(shapes).map(set).collect::<Result<_>>()?;
                let expected = all_of(&sets, |x| distances(&x[0], &x[1], 2.0))?;
                let got = all_of(&sets, |x| in_parts(NAME, Blocks { p: 2.0, rows: 1 + i }, &[&x[0], &x[1]]))?;
                for (n, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    assert_eq!(got.shape(), expected.shape());
                    let (got, expected) = (got.to_vec::<f32>()?, expected.to_vec::<f32>()?);
                    let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4 * (1.0 + b.abs()); // false for NaN
                    let same = got.iter().zip(&expected).all(close);
                    assert!(same, "{device}: tensor {n} of {shapes:?}: {got:?}, not {expected:?}");
                }
            }
        }
        Ok(())
    }
}
