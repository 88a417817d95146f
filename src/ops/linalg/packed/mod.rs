//! Products `X · Wᵀ` with a matrix W of integers of 4 or 8 bits, as files of quantised models have it: [`Packed`]. W stays as it is
//! stored, in bytes, on the host and on adapters, and is never widened as a whole.
//!
//! Few rows of X are multiplied from the words of W ([`ops::Product`]); for more, [`PART`] elements of W are widened at a time
//! ([`ops::Widen`]), for products as all others. [`plan`] says how many are few.

mod gpu;
mod ops;
mod plan;

use std::fmt;

use crate::autograd::{no_grad, record};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{Differentiable, Gradient, Gradients, Saves, apply, expect_dtype, expect_float, named, same_device};
use crate::tensor::Tensor;

const OP: &str = "matmul_packed";

/// The most elements of W that are widened at a time: 16 MiB.
const PART: usize = 1 << 22;

/// How the rows of a matrix are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// The bits of an integer: 4 or 8.
    pub bits: usize,
    /// The integers of a block, which are whole words. The last block of a row may have more than the row has elements.
    pub block: usize,
    /// The elements of a row.
    pub k: usize,
}

impl Form {
    /// Returns whether there are products with a matrix of this form.
    pub fn is_known(self) -> bool {
        let words = self.block.checked_mul(self.bits).is_some_and(|bits| bits > 0 && bits.is_multiple_of(32));
        matches!(self.bits, 4 | 8) && words && self.k > 0
    }

    fn blocks(self) -> usize {
        self.k.div_ceil(self.block)
    }

    /// Returns the words of a block.
    fn words(self) -> usize {
        self.block * self.bits / 32
    }
}

/// A matrix `[N, K]` of integers of a few bits on a device. Its elements are `scale · (integer − zero)`, with a scale and a zero for each
/// block of neighbours in a row. The first integer of a byte is in its lower half.
#[derive(Clone)]
pub(crate) struct Packed {
    form: Form,
    /// Bytes, `[N, bytes of a row]`, from a whole word on.
    integers: Tensor,
    /// `[N, blocks]`.
    scales: Tensor,
    /// `[N, blocks]` of floats, or of bytes with packed integers, each row from a whole byte; the middle of the integers if left out.
    zeros: Option<Tensor>,
}

impl Packed {
    /// Returns the matrix of these tensors, in any shape of as many elements.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for sizes that do not fit; [`Error::DTypeMismatch`]; [`Error::DeviceMismatch`]; [`Error::Autograd`] if
    /// scales or zeros are tracked: they have no gradient.
    pub fn new(form: Form, n: usize, integers: &Tensor, scales: &Tensor, zeros: Option<&Tensor>) -> Result<Packed> {
        let Form { bits, block, k } = form;
        if !form.is_known() || n == 0 {
            let detail =
                format!("a matrix [{n}, {k}] of {bits} bits in blocks of {block} does not consist of whole words");
            return Err(Error::argument(OP, detail));
        }
        let all: Vec<&Tensor> = [integers, scales].into_iter().chain(zeros).collect();
        same_device(OP, &all)?;
        if all.iter().any(|x| x.is_tracked()) {
            return Err(Error::Autograd(format!("{OP} has no gradient of scales and zero points")));
        }
        // A row of zero points may have more bytes than it needs.
        let rows = |x: &Tensor, least: usize, most: usize, what: &str| {
            let (count, blocks) = (x.elem_count(), form.blocks());
            if !count.is_multiple_of(n) || !(least..=most).contains(&(count / n)) {
                let detail = format!("{count} {what} do not fit {n} rows of {blocks} blocks of {block}");
                return Err(Error::argument(OP, detail));
            }
            x.reshape([n, count / n])?.contiguous()
        };
        expect_dtype(OP, integers, DType::U8)?;
        expect_float(OP, scales)?;
        let (blocks, bytes) = (form.blocks(), form.blocks().saturating_mul(form.words() * 4));
        let integers = rows(integers, bytes, bytes, "bytes")?;
        // A view may begin within a word.
        let integers = if integers.layout().offset.is_multiple_of(4) { integers } else { integers.copy()? };
        let scales = rows(scales, blocks, blocks, "scales")?;
        let zeros = match zeros {
            Some(zeros) if zeros.dtype() == DType::U8 => {
                let least = blocks.saturating_mul(bits).div_ceil(8);
                Some(rows(zeros, least, usize::MAX, "bytes of zero points")?)
            }
            Some(zeros) => {
                expect_float(OP, zeros)?;
                Some(rows(zeros, blocks, blocks, "zero points")?)
            }
            None => None,
        };
        Ok(Packed { form, integers, scales, zeros })
    }

    fn rows(&self) -> usize {
        self.integers.shape()[0]
    }

    /// Calls an op with tensors before the matrix's tensors.
    fn with<R>(&self, first: Option<&Tensor>, f: impl FnOnce(&[&Tensor]) -> R) -> R {
        let own = [&self.integers, &self.scales].into_iter().chain(&self.zeros);
        f(&first.into_iter().chain(own).collect::<Vec<_>>())
    }

    /// Calls `f` with the elements of some rows at a time, and the number of the first.
    fn in_parts(&self, mut f: impl FnMut(usize, &Tensor) -> Result<()>) -> Result<()> {
        let n = self.rows();
        let most = (PART / self.form.k).clamp(1, n);
        for first in (0..n).step_by(most) {
            let count = most.min(n - first);
            let some = |x: &Tensor| x.narrow(0, first, count);
            let part = Packed {
                form: self.form,
                integers: some(&self.integers)?,
                scales: some(&self.scales)?,
                zeros: self.zeros.as_ref().map(some).transpose()?,
            };
            f(first, &part.with(None, |inputs| apply(ops::Widen(self.form), inputs))?)?;
        }
        Ok(())
    }

    /// Returns `X · Wᵀ` of f32, `[m, K]` → `[m, N]`.
    fn times(&self, x: &Tensor) -> Result<Tensor> {
        if plan::multiplies_words(x.device(), self.form, [x.shape()[0], self.rows()])? {
            return self.with(Some(x), |inputs| apply(ops::Product(self.form), inputs));
        }
        let mut columns = Vec::new();
        self.in_parts(|_, part| {
            columns.push(x.matmul(&part.t()?)?.to_dtype(DType::F32)?);
            Ok(())
        })?;
        if columns.len() == 1 { Ok(columns.remove(0)) } else { Tensor::cat(&columns, 1) }
    }

    /// Returns `G · W`, `[m, N]` → `[m, K]`, the gradient of [`times`](Packed::times).
    fn gradient(&self, g: &Tensor) -> Result<Tensor> {
        let mut sum: Option<Tensor> = None;
        self.in_parts(|first, part| {
            let product = g.narrow(1, first, part.shape()[0])?.matmul(part)?;
            sum = Some(match sum.take() {
                Some(sum) => sum.add(&product)?,
                None => product,
            });
            Ok(())
        })?;
        sum.ok_or_else(|| Error::internal("a packed matrix has rows"))
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed").field("form", &self.form).field("rows", &self.rows()).finish_non_exhaustive()
    }
}

/// The node of a product. Its gradient is the gradient of a product with the elements of the matrix, a part at a time.
impl Differentiable for Packed {
    fn op_name(&self) -> &'static str {
        OP
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn gradients(&self, ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![Some(self.gradient(ctx.grad)?)])
    }
}

impl Tensor {
    /// Returns `X · Wᵀ`, `[.., K] → [.., N]`, with sums of f32. The result has the type of X.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] unless X has K columns; [`Error::DTypeMismatch`] unless it is of a float type; [`Error::DeviceMismatch`].
    pub(crate) fn matmul_packed(&self, weights: &Packed) -> Result<Tensor> {
        named(OP, || {
            expect_float(OP, self)?;
            same_device(OP, &[self, &weights.integers])?;
            let k = weights.form.k;
            let Some((_, outer)) = self.shape().split_last().filter(|(last, _)| **last == k) else {
                let matrix = [weights.rows(), k];
                return Err(Error::shapes(OP, self.shape(), &matrix, format!("the first one needs {k} columns")));
            };
            let shape = [outer, &[weights.rows()]].concat();
            let rows = self.reshape([outer.iter().product(), k])?.to_dtype(DType::F32)?;
            let product = no_grad(|| weights.times(&rows.detach()))?;
            record(weights.clone(), &[&rows], product).reshape(shape)?.to_dtype(self.dtype())
        })
    }
}
