//! Matrix products `[.., M, K] · [.., K, N] → [.., M, N]`.

use std::ops::Range;
use std::sync::Arc;

use anygpu_host::matmul::{self, Matrix, plan};

use crate::device::cpu::host_error;
use crate::device::gpu::{AsBuffer, Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::autocast::lowered;
use crate::ops::elementwise::cast::widening;
use crate::ops::inplace::fill_kernel;
use crate::ops::inputs::Walk;
use crate::ops::linalg::batched::{BatchedProduct, Factor};
use crate::ops::linalg::panels::IndexMap;
use crate::ops::linalg::plan::Matrices;
use crate::ops::long::product::product;
use crate::ops::long::unsupported;
use crate::ops::names::{Names, names};
use crate::ops::parts::{Part, broadcast, steps};
use crate::ops::reduction::reduce::{Reduction, joined_ranges};
use crate::ops::shape::copy::strided_kernel;
use crate::ops::traced::{Traced, is_traced};
use crate::ops::{
    Casting, CpuIn, CpuOut, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, Strided, apply, one_float_type,
    only_on_the_host,
};
use crate::shape::{Layout, broadcast_shapes};
use crate::tensor::Tensor;

#[derive(Debug)]
struct MatMul {
    /// The type of the result, if it is not the operands' type.
    result: Option<DType>,
    /// Whether the operands may be of different float types.
    mixes: bool,
    /// Whether there is a third input, `[n]`, that is added to every row: on the host.
    bias: bool,
}

/// The sizes of one product. `batch` has the batch dimensions of the output.
struct Sizes {
    batch: Vec<usize>,
    m: usize,
    k: usize,
    n: usize,
}

impl Sizes {
    fn of(a: &[usize], b: &[usize]) -> Result<Sizes> {
        let (Some((batch_a, &[m, k])), Some((batch_b, &[k2, n]))) = (a.split_last_chunk(), b.split_last_chunk()) else {
            return Err(Error::shapes("matmul", a, b, "both need at least two dimensions, [.., m, k] and [.., k, n]"));
        };
        if k != k2 {
            let detail = format!("[.., m, k] · [.., k, n]: k is {k} on the left and {k2} on the right");
            return Err(Error::shapes("matmul", a, b, detail));
        }
        let batch = broadcast_shapes("matmul", batch_a, batch_b)
            .map_err(|_| Error::shapes("matmul", a, b, "the batch dimensions must be equal, or one of them 1"))?;
        Ok(Sizes { batch, m, k, n })
    }

    fn stretched(&self, layout: &Layout) -> Layout {
        let mut shape = self.batch.clone();
        shape.extend(&layout.shape[layout.shape.len() - 2..]);
        layout.broadcast_to(&shape)
    }
}

/// Returns the last two strides.
fn matrix_strides(layout: &Layout) -> [usize; 2] {
    let rank = layout.strides.len();
    [layout.strides[rank - 2], layout.strides[rank - 1]]
}

/// Computes `A · B + bias`, with the bias in every row.
fn product_and_bias([a, b]: [&CpuIn<Strided>; 2], bias: &CpuIn<Strided>, out: &mut [f32]) -> Result<()> {
    let Sizes { m, k, n, .. } = Sizes::of(a.shape(), b.shape())?;
    let layout = bias.layout();
    let row: Vec<f32> = layout.positions().map(|at| bias.all::<f32>()[at]).collect();
    let matrix = |x: &CpuIn<Strided>| (x.layout().offset, matrix_strides(x.layout()));
    let ((at_a, of_a), (at_b, of_b)) = (matrix(a), matrix(b));
    let (a, b) = (Matrix::new(a.all::<f32>(), at_a, of_a), Matrix::new(b.all::<f32>(), at_b, of_b));
    let threads = plan::threads(out.len().saturating_mul(k));
    matmul::product(out, a, b, [m, k, n], Some(&row), threads).map_err(host_error)
}

/// Returns the batch part of a layout.
fn batch_layout(layout: &Layout) -> Layout {
    let rank = layout.shape.len() - 2;
    Layout { shape: layout.shape[..rank].to_vec(), strides: layout.strides[..rank].to_vec(), offset: layout.offset }
}

impl Op for MatMul {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Factors(Casting::Lower);
    const NAMES: Names = names!["matmul"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::MatMul)
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let Sizes { mut batch, m, n, .. } = Sizes::of(inputs[0].shape(), inputs[1].shape())?;
        batch.extend([m, n]);
        Ok((batch, self.result.unwrap_or(inputs[0].dtype())))
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let (a, b) = (inputs[0], inputs[1]);
        one_float_type(self.name(), inputs)?;
        // A result of f32 is one to which other terms are added in f32.
        if self.result.is_some() {
            return Err(unsupported(self.name(), a));
        }
        let Sizes { batch, m, k, n } = Sizes::of(a.shape(), b.shape())?;
        product(a, b, &batch, [m, k, n])
    }

    fn elements(&self) -> Elements {
        if self.mixes { Elements::MixedFactors(Casting::Lower) } else { Self::ELEMENTS }
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        let rank = shapes.iter().take(2).map(|shape| shape.len()).max()?;
        let [row, column] = [rank - 2, rank - 1].map(|d| d == dim);
        match (self.bias, row, column) {
            (true, ..) => None,
            (_, true, _) => Some(vec![Some(shapes[0].len() - 2), None]),
            (_, _, true) => Some(vec![None, Some(shapes[1].len() - 1)]),
            _ => broadcast(shapes, dim),
        }
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        if let [a, b, bias] = inputs {
            return product_and_bias([a, b], bias, out.slice::<f32>());
        }
        let sizes = Sizes::of(inputs[0].shape(), inputs[1].shape())?;
        let (a, b) = (sizes.stretched(inputs[0].layout()), sizes.stretched(inputs[1].layout()));
        let starts: Vec<_> = batch_layout(&a).positions().zip(batch_layout(&b).positions()).collect();
        let Sizes { m, k, n, .. } = sizes;
        let (x, y) = (inputs[0].all::<f32>(), inputs[1].all::<f32>());
        let (a, b) = (Matrix::new(x, 0, matrix_strides(&a)), Matrix::new(y, 0, matrix_strides(&b)));
        matmul::batch(out.slice::<f32>(), a, b, &starts, [m, k, n]).map_err(host_error)
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        let sizes = Sizes::of(inputs[0].shape(), inputs[1].shape())?;
        let batch: usize = sizes.batch.iter().product();
        let Sizes { m, k, n, .. } = sizes;
        if self.bias {
            return Err(only_on_the_host(self.name()));
        }
        if k == 0 {
            return Ok(vec![fill_kernel(out, 0, batch * m * n, 0)]);
        }
        let most = gpu.largest_binding();
        if k > 1 && inputs.iter().any(|x| x.buffer().len() > most) {
            return self.in_ranges_of_k(gpu, inputs, [batch * m * n, k], out);
        }
        let mut kernels = Vec::new();
        let a = Factor::new(gpu, &inputs[0], &sizes, &mut kernels)?;
        let b = Factor::new(gpu, &inputs[1], &sizes, &mut kernels)?;
        let product = BatchedProduct { batch, m, k, n, a, b };
        kernels.extend(product.kernels(gpu, out)?);
        Ok(kernels)
    }

    fn saves(&self) -> Saves {
        Saves::Inputs
    }

    fn gradient_changes_with(&self, input: usize) -> Saves {
        Saves::other_factor(input)
    }

    /// Computes dA [.., m, k] ← g · Bᵀ and dB [.., k, n] ← Aᵀ · g. For a transposed view, computes the gradient of the
    /// view's tensor. Otherwise it would be a copy with exchanged dimensions.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (a, b, g) = (&ctx.inputs[0], &ctx.inputs[1], ctx.grad);
        let transposed = |x: &Tensor| {
            let [row, column] = matrix_strides(x.layout());
            row < column
        };
        let product = |x: &Tensor, y: &Tensor, of: &Tensor| match transposed(of) {
            true => y.t()?.matmul_mixed(&x.t()?)?.t(),
            false => x.matmul_mixed(y),
        };
        // The gradient of `a` comes last, since the gradient of the op before this one often follows it, in the same
        // kernel.
        let db = ctx.needs[1].then(|| product(&a.t()?, g, b)).transpose()?;
        let da = ctx.needs[0].then(|| product(g, &b.t()?, a)).transpose()?;
        let of_bias = ctx.needs.get(2).map(|wanted| wanted.then(|| g.sum([0], false)).transpose()).transpose()?;
        Ok([da, db].into_iter().chain(of_bias).collect())
    }
}

impl MatMul {
    /// Returns the kernels of a product whose operands cannot be bound: kernels of ranges of `k`, and of their sum.
    fn in_ranges_of_k(
        &self,
        gpu: &Arc<Gpu>,
        inputs: &[GpuIn<Strided>],
        [len, k]: [usize; 2],
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let operands = [Part::of(&inputs[0]), Part::of(&inputs[1])];
        let part = |i: usize, start: usize, len: usize| {
            let rank = operands[i].layout.shape.len();
            operands[i].narrow([rank - 1, rank - 2][i], start, len)
        };
        let fits = |range: usize| (0..2).all(|i| part(i, 0, range).words(gpu, false) <= gpu.largest_binding());
        let mut range = k;
        while range > 1 && !fits(range) {
            range = range.div_ceil(2);
        }
        let product = |range: Range<usize>, result: &Buffer| {
            let ready = |side: usize| part(side, range.start, range.len()).ready(gpu, false);
            self.gpu(gpu, &[ready(0)?.input(), ready(1)?.input()], result)
        };
        joined_ranges(gpu, (Reduction::Sum, DType::F32), steps(k, range), (out, len), product)
    }
}

impl Factor {
    /// Returns the operand `input` of a product. A batch that needs more than two strides is made dense first.
    fn new(gpu: &Gpu, input: &GpuIn<Strided>, sizes: &Sizes, kernels: &mut Vec<Kernel>) -> Result<Factor> {
        let layout = sizes.stretched(input.layout());
        let batch = batch_layout(&layout);
        let Walk { dims, strides: [strides], .. } = Walk::new([&batch]);
        let [row, column] = matrix_strides(&layout);
        let (buffer, dtype, offset) = (input.as_buffer().clone(), input.dtype(), layout.offset);
        let z = match (&dims[..], &strides[..]) {
            (&[count], &[step]) => IndexMap::even(count, step),
            (&[_, inner], &[outer, step]) => IndexMap { inner, step, outer },
            _ => {
                let dense = Layout::contiguous(&layout.shape);
                let buffer = gpu.alloc(dense.elem_count())?;
                let input = input.through(&layout);
                kernels.push(match dtype {
                    DType::F32 => strided_kernel(gpu, &input, &buffer, &dense)?,
                    _ => widening("matmul", &input, &buffer)?,
                });
                let [row, column] = matrix_strides(&dense);
                let z = IndexMap::even(batch.elem_count(), dense.shape[dense.shape.len() - 2] * row);
                return Ok(Factor { buffer, matrices: Matrices { dtype: DType::F32, offset: 0, z, row, column } });
            }
        };
        Ok(Factor { buffer, matrices: Matrices { dtype, offset, z, row, column } })
    }
}

impl Tensor {
    /// Returns the matrix product: `[.., m, k] · [.., k, n] → [.., m, n]`.
    ///
    /// Batch dimensions are broadcast. Halves are added up as f32. Unlike in `torch.matmul`, vectors are an error: use
    /// [`Tensor::mv`] or [`Tensor::dot`].
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the inner sizes differ or the batch dimensions cannot be broadcast;
    /// [`Error::DeviceMismatch`]; [`Error::DTypeMismatch`] unless both are of one float type.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let a = Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?;
    /// let b = Tensor::new([[1.0], [10.0]], None)?;
    /// assert_eq!(a.matmul(&b)?.to_vec::<f32>()?, [21.0, 43.0]);
    /// assert!(b.matmul(&a).is_err()); // [2, 1] · [2, 2]
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        apply(MatMul { result: None, mixes: false, bias: false }, &[self, other])
    }

    /// Returns the matrix product as f32 for every float type, so that other terms can be added before it is rounded.
    pub(crate) fn matmul_f32(&self, other: &Tensor) -> Result<Tensor> {
        apply(MatMul { result: Some(DType::F32), mixes: false, bias: false }, &[self, other])
    }

    /// Returns the matrix product of any two float types as f32.
    pub(in crate::ops) fn matmul_mixed(&self, other: &Tensor) -> Result<Tensor> {
        apply(MatMul { result: Some(DType::F32), mixes: true, bias: false }, &[self, other])
    }

    /// Returns `self · other + bias` of matrices, with a bias for each column: in f32, before it is rounded to the type of a
    /// product of `self`.
    pub(crate) fn matmul_and_bias(&self, other: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let plain = [self, other, bias].iter().all(|x| x.dtype() == DType::F32 && x.device().is_cpu());
        // A trace has the two ops, which do not depend on the device.
        if plain && bias.shape() == [other.shape()[1]] && lowered(DType::F32) == DType::F32 && !is_traced() {
            return apply(MatMul { result: None, mixes: false, bias: true }, &[self, other, bias]);
        }
        self.matmul_f32(other)?.add(&bias.to_dtype(DType::F32)?)?.to_dtype(lowered(self.dtype()))
    }
}
