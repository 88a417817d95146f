//! Functions of two elements, with broadcasting and PyTorch's promotion: runs and differentiates the rows of `pairs`.
//!
//! Comparisons compute words, and pack them into bytes in a second dispatch.

use std::sync::Arc;

use anygpu_host::tasks::share;

use super::operand::{Operand, Scalar, common_type};
use super::{A, B, BinaryFn, Chain, TypedFunction};
use crate::device::gpu::{self, AsBuffer, Buffer, Gpu, Kernel, Pointwise, Slots};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::unary::{CHUNK, FEW_CHUNKS};
use crate::ops::inputs::{StridedParams, Walk, elements_each};
use crate::ops::long::pair;
use crate::ops::names::Names;
use crate::ops::parts::{alike, broadcast};
use crate::ops::traced::Traced;
use crate::ops::{
    CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, Strided, apply, expect_dtype,
    no_gradient, same_device,
};
use crate::shape::{Layout, broadcast_shapes};
use crate::tensor::Tensor;

/// Computes a function of two operands, converted to their common type. Comparisons return booleans.
pub(in crate::ops) fn binary(function: BinaryFn, a: Operand, b: Operand) -> Result<Tensor> {
    let (pair, op) = (function.row(), function.name());
    if let (true, Operand::Tensor(a), Operand::Tensor(b)) = (pair.types.truth, a, b) {
        match (a.dtype(), b.dtype()) {
            (DType::I32, DType::U32) => {
                let [a, b] = comparable(op, a, b)?;
                return apply(Binary { function }, &[&a, &b]);
            }
            (DType::U32, DType::I32) => {
                let [b, a] = comparable(op, b, a)?;
                return apply(Binary { function }, &[&a, &b]);
            }
            _ => {}
        }
    }
    let dtype = common_type(op, a, b)?;
    if pair.types.f32.is_none() && dtype.is_float() {
        return Err(Error::DTypeMismatch { op, expected: "integers".into(), got: dtype.to_string() });
    }
    let dtype = if pair.for_type(dtype.wide()).is_some() { dtype } else { DType::F32 };
    let function = if dtype == DType::Bool { of_booleans(function)? } else { function };
    let ready = |x: &Tensor| if pair.types.truth { x.detach().to_dtype(dtype) } else { x.to_dtype(dtype) };
    // Sums, differences and products of unsigned integers are correct modulo 2ⁿ for n bits, for any sign of the number.
    let wraps = matches!(function, BinaryFn::Add | BinaryFn::Sub | BinaryFn::Mul);
    let with_number = |x: &Tensor, value: Scalar, left: bool| {
        if dtype.is_long() {
            let (x, number) = (ready(x)?, value.tensor(op, dtype, x.device())?);
            let [a, b] = if left { [&number, &x] } else { [&x, &number] };
            return apply(Binary { function }, &[a, b]);
        }
        let word = value.word(op, dtype, wraps)?;
        apply(WithNumber { function, value, word, left }, &[&ready(x)?])
    };
    match (a, b) {
        (Operand::Tensor(a), Operand::Tensor(b)) => apply(Binary { function }, &[&ready(a)?, &ready(b)?]),
        (Operand::Tensor(a), Operand::Scalar(b)) => with_number(a, b, false),
        (Operand::Scalar(a), Operand::Tensor(b)) => with_number(b, a, true),
        (Operand::Scalar(_), Operand::Scalar(_)) => Err(Error::argument(op, "needs a tensor")),
    }
}

/// Returns i32 and u32 numbers as u32 numbers that compare in the same way, though no type holds both: 0 and 1 where
/// the signed number is negative.
fn comparable(op: &'static str, signed: &Tensor, unsigned: &Tensor) -> Result<[Tensor; 2]> {
    same_device(op, &[signed, unsigned])?;
    broadcast_shapes(op, signed.shape(), unsigned.shape())?;
    let negative = signed.lt(0)?;
    Ok([negative.where_cond(0, &signed.to_dtype(DType::U32)?)?, negative.where_cond(1, unsigned)?])
}

/// Returns the function for booleans, which are added by `or` and multiplied by `and`. A function that has no meaning
/// for booleans is an error.
fn of_booleans(function: BinaryFn) -> Result<BinaryFn> {
    match function {
        BinaryFn::Add => Ok(BinaryFn::OrAdd),
        BinaryFn::Mul | BinaryFn::Maximum | BinaryFn::Minimum => Ok(function),
        BinaryFn::BitwiseAnd | BinaryFn::BitwiseOr | BinaryFn::BitwiseXor => Ok(function),
        _ if function.row().types.truth => Ok(function),
        _ => {
            let got = "bool (for differences, use logical_xor)".into();
            Err(Error::DTypeMismatch { op: function.name(), expected: "numbers".into(), got })
        }
    }
}

/// Computes a logical function of two tensors; an element is true if it is not 0.
pub(in crate::ops) fn logical(function: BinaryFn, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let truth = |x: &Tensor| x.detach().to_dtype(DType::Bool);
    apply(Binary { function }, &[&truth(a)?, &truth(b)?])
}

/// Computes a function of two tensors as its method does.
#[cfg(feature = "onnx")]
pub(crate) fn of_two(function: BinaryFn, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match function {
        BinaryFn::And | BinaryFn::Or | BinaryFn::Xor => logical(function, a, b),
        _ => binary(function, a.into(), b.into()),
    }
}

impl BinaryFn {
    /// Returns how many parts a task of the host has at least.
    fn chunks(self) -> usize {
        match self {
            BinaryFn::Add | BinaryFn::Sub | BinaryFn::Mul | BinaryFn::Div => FEW_CHUNKS,
            BinaryFn::Maximum | BinaryFn::Minimum => FEW_CHUNKS,
            _ => 1,
        }
    }

    /// Returns the function for the type of an input. There is one for each function and type that `binary` applies.
    fn of(self, dtype: DType) -> Result<&'static TypedFunction> {
        let expected = || Error::DTypeMismatch { op: self.name(), expected: "f32".into(), got: dtype.to_string() };
        self.row().for_type(dtype).ok_or_else(expected)
    }

    fn result(self, shape: Vec<usize>, operand: &Tensor) -> Output {
        (shape, if self.row().types.truth { DType::Bool } else { operand.dtype() })
    }

    /// Returns the gradient of operand `side`.
    fn gradient_of(self, side: usize, a: Operand, b: Operand, ctx: &Gradient) -> Result<Option<Tensor>> {
        match &self.row().gradient {
            Some(sides) => (sides[side].gradient)(&Chain { g: ctx.grad, a, b, out: ctx.out }).map(Some),
            None => Err(no_gradient(self.name())),
        }
    }
}

impl TypedFunction {
    /// Returns this function of f32 for kernels that are fused with others.
    fn pointwise(&self, operands: [gpu::Operand; 2], number: u32, count: usize) -> Pointwise {
        let operands = gpu::operands(&operands);
        Pointwise { formula: self.header, functions: self.calls.texts(), operands, args: [number, 0], count }
    }

    /// Returns the kernel with the first entry point, of vectors of four elements, or with the second one.
    fn kernel(
        &self,
        gpu: &Gpu,
        [fours, ones]: [&'static str; 2],
        in_fours: bool,
        params: StridedParams,
        [a, b]: [&impl AsBuffer; 2],
        out: &Buffer,
    ) -> Kernel {
        let each = elements_each(gpu, in_fours);
        let params = StridedParams { run: each / 4, ..params };
        let entry = if in_fours { fours } else { ones };
        let kernel = Kernel::build(self.calls.shader(), entry, params).header(self.header);
        kernel.input(a).input(b).output(out).each(params.count.div_ceil(each))
    }
}

/// A function of two tensors of one type.
#[derive(Clone, Copy, Debug)]
struct Binary {
    function: BinaryFn,
}

impl Op for Binary {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = Names::OfTables;

    fn name(&self) -> &'static str {
        self.function.name()
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        (!self.function.is_factor()).then_some(Traced::Binary(self.function))
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        match self.function.is_factor() {
            true => Err(no_gradient(self.name())),
            false => pair::of_two(self.function, inputs),
        }
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let (a, b) = (inputs[0], inputs[1]);
        expect_dtype(self.name(), b, a.dtype())?;
        Ok(self.function.result(broadcast_shapes(self.name(), a.shape(), b.shape())?, a))
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        broadcast(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (each, x, y) = (self.function.of(a.dtype())?.each, a.all(), b.all());
        Walk::broadcast_rows(
            self.name(),
            [a.layout(), b.layout()],
            out.0,
            self.function.chunks(),
            |[i, j], steps, out| {
                each(&x[i..], steps[0], &y[j..], steps[1], out);
            },
        )
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let walk = Walk::broadcast(self.name(), [a.layout(), b.layout()])?;
        let (entries, params) = (["strided4", "strided"], walk.params(self.name())?);
        let function = self.function.of(a.dtype())?;
        let call = match [fusable(&walk, 0), fusable(&walk, 1)] {
            [Some(x), Some(y)] if a.dtype() == DType::F32 && !self.function.row().types.truth => {
                Some(function.pointwise([x, y], 0, params.count))
            }
            _ => None,
        };
        let kernel = function.kernel(gpu, entries, walk.is_in_fours(), params, [a, b], out);
        Ok(vec![kernel.pointwise(call)])
    }

    /// A sum passes its gradient on.
    fn takes_halves(&self) -> bool {
        self.function == BinaryFn::Add
    }

    fn saves(&self) -> Saves {
        self.function.row().saves(&[A, B])
    }

    fn gradient_changes_with(&self, input: usize) -> Saves {
        self.function.row().changes_with(input, &[A, B])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (a, b) = (Operand::from(&ctx.inputs[0]), Operand::from(&ctx.inputs[1]));
        let side = |side: usize| if ctx.needs[side] { self.function.gradient_of(side, a, b, ctx) } else { Ok(None) };
        Ok(vec![side(0)?, side(1)?])
    }
}

/// Returns how a kernel that is fused with others reads an operand, if it can: all elements in order, or one row again and
/// again.
fn fusable(walk: &Walk<2>, operand: usize) -> Option<gpu::Operand> {
    let (strides, offset) = (&walk.strides[operand][..], walk.offsets[operand]);
    let in_order = || Layout::contiguous(&walk.dims).strides == strides;
    match (strides, &walk.dims[..]) {
        _ if !offset.is_multiple_of(4) => None,
        (&[1], _) | (_, &[1]) => Some(gpu::Operand::Input(operand, offset)),
        (&[0, 1], &[_, length]) if length.is_multiple_of(4) => Some(gpu::Operand::Row(operand, offset, length)),
        _ => in_order().then_some(gpu::Operand::Input(operand, offset)),
    }
}

/// A function of a tensor and a number, which is on the left or on the right.
#[derive(Clone, Copy, Debug)]
struct WithNumber {
    function: BinaryFn,
    value: Scalar,
    /// The number's bits in the tensor's type.
    word: u32,
    left: bool,
}

impl WithNumber {
    /// Returns which operand the tensor is.
    fn operand(&self) -> u32 {
        if self.left { B } else { A }
    }
}

impl Op for WithNumber {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = Names::OfTables;

    fn name(&self) -> &'static str {
        self.function.name()
    }

    fn traced(&self, inputs: &[&Tensor]) -> Option<Traced> {
        let number = inputs[0].dtype().number(self.word);
        Some(Traced::WithNumber { function: self.function, number, left: self.left })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok(self.function.result(inputs[0].shape().to_vec(), inputs[0]))
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        alike(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (row, number) = (self.function.of(inputs[0].dtype())?, &[self.word][..]);
        let parts = out.0.chunks_mut(CHUNK).zip(inputs[0].slice::<u32>().chunks(CHUNK));
        share(parts, self.function.chunks(), |(out, x)| {
            if self.left { (row.each)(number, 0, x, 1, out) } else { (row.each)(x, 1, number, 0, out) }
        });
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, number) = (&inputs[0], self.word);
        let (offsets, dims) = ([x.offset(), 0, 0, 0], Slots::default());
        let params = StridedParams { count: x.elem_count(), rank: 0, number, run: 1, offsets, dims };
        let entries = if self.left { ["left4", "left"] } else { ["right4", "right"] };
        let function = self.function.of(x.dtype())?;
        let in_fours = x.offset() % 4 == 0;
        let (element, number) = (gpu::Operand::Input(0, x.offset()), gpu::Operand::Number);
        let operands = if self.left { [number, element] } else { [element, number] };
        let fusable = in_fours && x.dtype() == DType::F32 && !self.function.row().types.truth;
        let call = fusable.then(|| function.pointwise(operands, self.word, params.count));
        Ok(vec![function.kernel(gpu, entries, in_fours, params, [x, x], out).pointwise(call)])
    }

    fn saves(&self) -> Saves {
        self.function.row().saves(&[self.operand()])
    }

    fn gradient_changes_with(&self, input: usize) -> Saves {
        self.function.row().changes_with(input, &[self.operand()])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let (x, number) = (Operand::from(&ctx.inputs[0]), Operand::from(self.value));
        let (side, a, b) = if self.left { (1, number, x) } else { (0, x, number) };
        Ok(vec![self.function.gradient_of(side, a, b, ctx)?])
    }
}
