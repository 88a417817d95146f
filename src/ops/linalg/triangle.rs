//! The lower and the upper triangle of matrices.

use std::sync::Arc;

use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::error::{Error, Result};
use crate::ops::names::{Names, names};
use crate::ops::traced::Traced;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Saves, apply};
use crate::tensor::Tensor;

params! {
    struct Params { count: usize, rows: usize, columns: usize, offset: usize, diagonal: i32, fill: u32 }
}
shader!(SHADER: Params = "linalg/triangle");

/// Keeps one side of a diagonal of matrices, which are the last two dimensions, and sets the other elements.
#[derive(Clone, Copy, Debug)]
struct Triangle {
    upper: bool,
    /// The diagonal, limited to the sizes of the matrix.
    diagonal: i32,
    /// The word of the other elements: 0 unless the matrices are of f32.
    fill: u32,
}

impl Op for Triangle {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["triu", "tril"];

    fn name(&self) -> &'static str {
        if self.upper { "triu" } else { "tril" }
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        (self.fill == 0).then(|| Traced::Triangle { upper: self.upper, diagonal: self.diagonal.into() })
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs[0];
        let matrix = &x.shape()[x.rank() - 2..];
        apply(*self, &[&Tensor::full(matrix, true, x.device())?])?.where_cond(x, 0)
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let shape = inputs[0].shape();
        let [rows, columns] = [shape[shape.len() - 2], shape[shape.len() - 1]];
        let (x, out) = (inputs[0].slice::<u32>(), out.slice::<u32>());
        for (i, (out, x)) in out.chunks_mut(columns).zip(x.chunks(columns)).enumerate() {
            let first = (i % rows) as i64 + i64::from(self.diagonal); // the column of the diagonal in this row
            for (j, (out, &x)) in out.iter_mut().zip(x).enumerate() {
                let kept = if self.upper { j as i64 >= first } else { j as i64 <= first };
                *out = if kept { x } else { self.fill };
            }
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let [rows, columns] = [2, 1].map(|back| x.shape()[x.shape().len() - back]);
        let Triangle { diagonal, fill, .. } = *self;
        let params = Params { count: x.elem_count(), rows, columns, offset: x.offset(), diagonal, fill };
        let kernel = Kernel::build(SHADER, "triangle", params).constant("UPPER", self.upper);
        Ok(vec![kernel.input(x).output(out).each(params.count)])
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![Some(apply(Triangle { fill: 0, ..*self }, &[ctx.grad])?)])
    }
}

fn triangle(x: &Tensor, upper: bool, diagonal: i64, fill: u32) -> Result<Tensor> {
    let Some(first) = x.rank().checked_sub(2) else {
        let op = if upper { "triu" } else { "tril" };
        return Err(Error::argument(op, format!("shape {:?} is not a matrix", x.shape())));
    };
    // All diagonals outside the matrix on one side have the same result.
    let [rows, columns] = [0, 1].map(|d| i64::try_from(x.shape()[first + d]).unwrap_or(i64::MAX));
    let diagonal = i32::try_from(diagonal.clamp(-rows, columns)).unwrap_or(i32::MAX);
    apply(Triangle { upper, diagonal, fill }, &[x])
}

/// Returns matrices of f32 with this number above a diagonal: [`Tensor::tril`] has 0 there.
pub(in crate::ops) fn filled_above(x: &Tensor, diagonal: i64, number: f32) -> Result<Tensor> {
    triangle(x, false, diagonal, number.to_bits())
}

impl Tensor {
    /// Returns the lower triangle of matrices `[.., m, n]`, in the same shape: elements above the diagonal become 0.
    ///
    /// `diagonal` is 0 for the main diagonal, positive for one above it, negative for one below it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are fewer than two dimensions.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let mask = Tensor::ones([3, 3], None)?.tril(0)?; // what a causal transformer may look at
    /// assert_eq!(mask.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn tril(&self, diagonal: i64) -> Result<Tensor> {
        triangle(self, false, diagonal, 0)
    }

    /// Returns the upper triangle of matrices `[.., m, n]`, in the same shape: elements below the diagonal become 0.
    /// `diagonal` chooses the diagonal as in [`Tensor::tril`].
    ///
    /// # Errors
    /// Same as [`Tensor::tril`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::ones([2, 3], None)?.triu(1)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn triu(&self, diagonal: i64) -> Result<Tensor> {
        triangle(self, true, diagonal, 0)
    }
}
