//! Functions of two elements, with broadcasting and PyTorch's promotion: runs and differentiates the rows of `pairs`.

use std::sync::Arc;

use rayon::prelude::*;

use super::operand::{Operand, Scalar, common_type};
use super::{Chain, Pair, TypedFunction};
use crate::device::gpu::{Buffer, Gpu, Kernel, KernelBuilder, Slots};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::binary as pairs;
use crate::ops::elementwise::unary::CHUNK;
use crate::ops::inputs::{StridedParams, Walk};
use crate::ops::{
    CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Strided, apply, expect_dtype, no_gradient,
};
use crate::shape::broadcast_shapes;
use crate::tensor::Tensor;

/// Computes a function of two operands, converted to their common type. Comparisons return booleans.
pub(in crate::ops) fn binary(pair: &'static Pair, a: Operand, b: Operand) -> Result<Tensor> {
    let dtype = common_type(pair.name, a, b)?;
    let dtype = if pair.for_type(dtype.wide()).is_some() { dtype } else { DType::F32 };
    let pair = if dtype == DType::Bool { of_booleans(pair)? } else { pair };
    let ready = |x: &Tensor| if pair.truth { x.detach().to_dtype(dtype) } else { x.to_dtype(dtype) };
    // Sums, differences and products of unsigned integers are correct modulo 2ⁿ for n bits, for any sign of the number.
    let wraps = [&pairs::ADD, &pairs::SUB, &pairs::MUL].iter().any(|p| std::ptr::eq(*p, pair));
    let with_number = |x: &Tensor, value: Scalar, left: bool| {
        let word = value.word(pair.name, dtype, wraps)?;
        apply(WithNumber { pair, value, word, left }, &[&ready(x)?])
    };
    match (a, b) {
        (Operand::Tensor(a), Operand::Tensor(b)) => apply(Binary { pair }, &[&ready(a)?, &ready(b)?]),
        (Operand::Tensor(a), Operand::Scalar(b)) => with_number(a, b, false),
        (Operand::Scalar(a), Operand::Tensor(b)) => with_number(b, a, true),
        (Operand::Scalar(_), Operand::Scalar(_)) => Err(Error::argument(pair.name, "needs a tensor")),
    }
}

/// Returns the function for booleans, which are added by `or` and multiplied by `and`. A function that has no meaning
/// for booleans is an error.
fn of_booleans(pair: &'static Pair) -> Result<&'static Pair> {
    let keeps = [&pairs::MUL, &pairs::MAXIMUM, &pairs::MINIMUM].iter().any(|p| std::ptr::eq(*p, pair));
    if std::ptr::eq(pair, &pairs::ADD) {
        Ok(&pairs::OR_ADD)
    } else if pair.truth || keeps {
        Ok(pair)
    } else {
        let got = "bool (for differences, use logical_xor)".into();
        Err(Error::DTypeMismatch { op: pair.name, expected: "numbers".into(), got })
    }
}

/// Computes a logical function of two tensors; an element is true if it is not 0.
pub(in crate::ops) fn logical(pair: &'static Pair, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let truth = |x: &Tensor| x.detach().to_dtype(DType::Bool);
    apply(Binary { pair }, &[&truth(a)?, &truth(b)?])
}

impl Pair {
    /// Returns the function for the type of an input. There is one for each pair and type that `binary` applies.
    fn of(&'static self, dtype: DType) -> Result<&'static TypedFunction> {
        let expected = || Error::DTypeMismatch { op: self.name, expected: "f32".into(), got: dtype.to_string() };
        self.for_type(dtype).ok_or_else(expected)
    }

    fn result(&self, shape: Vec<usize>, operand: &Tensor) -> Output {
        (shape, if self.truth { DType::Bool } else { operand.dtype() })
    }

    /// Returns the gradient of operand `side`.
    fn gradient_of(&self, side: usize, a: Operand, b: Operand, ctx: &Gradient) -> Result<Option<Tensor>> {
        match self.gradient {
            Some(gradient) => gradient[side](&Chain { g: ctx.grad, a, b, out: ctx.out }).map(Some),
            None => Err(no_gradient(self.name)),
        }
    }
}

impl TypedFunction {
    fn kernel(&self, entry: &'static str, params: StridedParams) -> KernelBuilder {
        Kernel::build(self.shader, entry, params).header(self.header)
    }
}

/// A function of two tensors of one type.
#[derive(Clone, Copy, Debug)]
struct Binary {
    pair: &'static Pair,
}

impl Op for Binary {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Any;

    fn name(&self) -> &'static str {
        self.pair.name
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let (a, b) = (inputs[0], inputs[1]);
        expect_dtype(self.name(), b, a.dtype())?;
        Ok(self.pair.result(broadcast_shapes(self.name(), a.shape(), b.shape())?, a))
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (each, x, y) = (self.pair.of(a.dtype())?.each, a.all(), b.all());
        Walk::broadcast_rows(self.name(), [a.layout(), b.layout()], out.0, |[i, j], steps, out| {
            each(&x[i..], steps[0], &y[j..], steps[1], out);
        })
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let walk = Walk::broadcast(self.name(), [a.layout(), b.layout()])?;
        let params = walk.params(self.name())?;
        let kernel = self.pair.of(a.dtype())?.kernel(if walk.is_dense() { "dense" } else { "strided" }, params);
        Ok(vec![kernel.input(a).input(b).output(out).each(params.count)])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (a, b) = (Operand::from(&ctx.inputs[0]), Operand::from(&ctx.inputs[1]));
        let side = |side: usize| if ctx.needs[side] { self.pair.gradient_of(side, a, b, ctx) } else { Ok(None) };
        Ok(vec![side(0)?, side(1)?])
    }
}

/// A function of a tensor and a number, which is on the left or on the right.
#[derive(Clone, Copy, Debug)]
struct WithNumber {
    pair: &'static Pair,
    value: Scalar,
    /// The number's bits in the tensor's type.
    word: u32,
    left: bool,
}

impl Op for WithNumber {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;

    fn name(&self) -> &'static str {
        self.pair.name
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok(self.pair.result(inputs[0].shape().to_vec(), inputs[0]))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (row, number) = (self.pair.of(inputs[0].dtype())?, &[self.word][..]);
        out.0.par_chunks_mut(CHUNK).zip(inputs[0].slice::<u32>().par_chunks(CHUNK)).for_each(|(out, x)| {
            if self.left { (row.each)(number, 0, x, 1, out) } else { (row.each)(x, 1, number, 0, out) }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, number) = (&inputs[0], self.word);
        let (offsets, dims) = ([x.offset(), 0, 0, 0], Slots::default());
        let params = StridedParams { count: x.elem_count(), rank: 0, number, offsets, dims };
        let kernel = self.pair.of(x.dtype())?.kernel(if self.left { "left" } else { "right" }, params);
        Ok(vec![kernel.input(x).input(x).output(out).each(params.count)])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (x, number) = (Operand::from(&ctx.inputs[0]), Operand::from(self.value));
        let (side, a, b) = if self.left { (1, number, x) } else { (0, x, number) };
        Ok(vec![self.pair.gradient_of(side, a, b, ctx)?])
    }
}
