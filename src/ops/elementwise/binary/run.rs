//! Functions of two elements, with broadcasting and PyTorch's promotion: how a row of `pairs` is run and differentiated.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, collapse, fits_u32, grid, strided_params};
use crate::ops::elementwise::binary::operand::{Operand, Scalar};
use crate::ops::elementwise::binary::{self as pairs, Pair, Row};
use crate::ops::elementwise::cast::{narrowed, widened};
use crate::ops::elementwise::unary::CHUNK;
use crate::ops::inplace::filled;
use crate::ops::promote::result_type;
use crate::ops::{Gradient, Op, Spec, apply, expect_dtype};
use crate::shape::{Layout, broadcast_shapes};
use crate::tensor::Tensor;

/// Two operands in the type in which they meet, booleans for comparisons.
pub(in crate::ops) fn binary(pair: &'static Pair, a: Operand, b: Operand) -> Result<Tensor> {
    let dtype = match (a, b) {
        (Operand::Tensor(a), Operand::Tensor(b)) => meeting(pair, a, b)?,
        (Operand::Tensor(x), Operand::Scalar(s)) | (Operand::Scalar(s), Operand::Tensor(x)) => s.meets(x.dtype()),
        (Operand::Scalar(_), Operand::Scalar(_)) => return Err(Error::argument(pair.name, "needs a tensor")),
    };
    let dtype = if pair.row(dtype.wide()).is_some() { dtype } else { DType::F32 };
    let pair = if dtype == DType::Bool { of_booleans(pair)? } else { pair };
    let ready = |x: &Tensor| {
        let x = if pair.truth { x.detach() } else { x.clone() };
        x.to_dtype(dtype).and_then(|x| if dtype.is_packed() { widened(&x) } else { Ok(x) })
    };
    // Sums, differences and products of unsigned integers are right modulo their size, whatever the sign.
    let wraps = [&pairs::ADD, &pairs::SUB, &pairs::MUL].iter().any(|p| std::ptr::eq(*p, pair));
    let with_number = |x: &Tensor, value: Scalar, left: bool| {
        let word = value.word(pair.name, dtype, wraps)?;
        apply(WithNumber { pair, value, word, left }, &[&ready(x)?.contiguous()?])
    };
    let out = match (a, b) {
        (Operand::Tensor(a), Operand::Tensor(b)) => apply(Binary { pair }, &[&ready(a)?, &ready(b)?])?,
        (Operand::Tensor(a), Operand::Scalar(b)) => with_number(a, b, false)?,
        (Operand::Scalar(a), Operand::Tensor(b)) => with_number(b, a, true)?,
        (Operand::Scalar(a), Operand::Scalar(_)) => return Err(Error::argument(pair.name, format!("{a:?}"))),
    };
    narrowed(&out, if pair.truth { DType::Bool } else { dtype })
}

/// The type of both, checking the devices first: that error says more.
fn meeting(pair: &Pair, a: &Tensor, b: &Tensor) -> Result<DType> {
    crate::ops::same_device(pair.name, &[a, b])?;
    result_type(pair.name, a, b)
}

/// Booleans add as `or` and multiply as `and`; what has no meaning for them is refused.
fn of_booleans(pair: &'static Pair) -> Result<&'static Pair> {
    let keeps = [&pairs::MUL, &pairs::MAXIMUM, &pairs::MINIMUM].iter().any(|p| std::ptr::eq(*p, pair));
    if std::ptr::eq(pair, &pairs::ADD) {
        Ok(&pairs::OR_ADD)
    } else if pair.truth || keeps {
        Ok(pair)
    } else {
        let got = "bool (for differences there is logical_xor)".into();
        Err(Error::DTypeMismatch { op: pair.name, expected: "numbers".into(), got })
    }
}

/// Where both are not 0, either is not 0, or one of them.
pub(in crate::ops) fn logical(pair: &'static Pair, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let bits = |x: &Tensor| widened(&x.detach().to_dtype(DType::Bool)?);
    narrowed(&apply(Binary { pair }, &[&bits(a)?, &bits(b)?])?, DType::Bool)
}

/// The row of a type; there is one wherever `binary` comes by.
fn row(pair: &'static Pair, dtype: DType) -> Result<&'static Row> {
    let expected = || Error::DTypeMismatch { op: pair.name, expected: "f32".into(), got: dtype.to_string() };
    pair.row(dtype).ok_or_else(expected)
}

/// A function of two tensors of one type.
#[derive(Clone, Copy, Debug)]
struct Binary {
    pair: &'static Pair,
}

impl Op for Binary {
    fn name(&self) -> &'static str {
        self.pair.name
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        let (a, b) = (inputs[0], inputs[1]);
        expect_dtype(self.name(), b, a.dtype())?;
        let shape = broadcast_shapes(self.name(), a.shape(), b.shape())?;
        Ok(Spec::Fresh(shape, if self.pair.truth { DType::U32 } else { a.dtype() }))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (shape, la, lb) = broadcast(self.name(), a.layout, b.layout)?;
        zip(row(self.pair, a.dtype)?, &shape, (a.words, &la), (b.words, &lb), out.0);
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (shape, la, lb) = broadcast(self.name(), a.layout, b.layout)?;
        let dense = la.is_contiguous() && lb.is_contiguous();
        let params = strided_params(self.name(), &shape, (&la.strides, la.offset), (&lb.strides, lb.offset))?;
        let row = row(self.pair, a.dtype)?;
        Ok(vec![Kernel {
            shader: row.shader,
            entry: if dense { "dense" } else { "strided" },
            header: row.header,
            constants: vec![],
            groups: grid(params[0] as usize),
            params,
            inputs: vec![a.buffer.clone(), b.buffer.clone()],
            outputs: vec![out.clone()],
        }])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let (a, b) = (&ctx.inputs[0].detach(), &ctx.inputs[1].detach());
        let side = |i: usize| {
            let wanted = ctx.needs[i].then(|| slope(self.pair, a.into(), b.into(), i, ctx));
            wanted.transpose()
        };
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
    fn name(&self) -> &'static str {
        self.pair.name
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        let dtype = if self.pair.truth { DType::U32 } else { inputs[0].dtype() };
        Ok(Spec::Fresh(inputs[0].shape().to_vec(), dtype))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let (row, number) = (row(self.pair, inputs[0].dtype)?, &[self.word][..]);
        out.0.par_chunks_mut(CHUNK).zip(inputs[0].slice::<u32>().par_chunks(CHUNK)).for_each(|(out, x)| {
            if self.left { (row.each)(number, 0, x, 1, out) } else { (row.each)(x, 1, number, 0, out) }
        });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, row) = (&inputs[0], row(self.pair, inputs[0].dtype)?);
        let count = fits_u32(self.name(), x.layout.elem_count())?;
        let [a, b] = if self.left { [self.word, x.offset()] } else { [x.offset(), self.word] };
        let mut params = vec![count, 0, a, b];
        params.resize(28, 0); // no shape, no strides
        Ok(vec![Kernel {
            shader: row.shader,
            entry: if self.left { "left" } else { "right" },
            header: row.header,
            constants: vec![],
            params,
            inputs: vec![x.buffer.clone(), x.buffer.clone()],
            outputs: vec![out.clone()],
            groups: grid(count as usize),
        }])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let x = &ctx.inputs[0].detach();
        let grad = if self.left {
            slope(self.pair, self.value.into(), x.into(), 1, ctx)?
        } else {
            slope(self.pair, x.into(), self.value.into(), 0, ctx)?
        };
        Ok(vec![Some(grad)])
    }
}

/// The gradient of operand `side` of a function of floats.
fn slope(pair: &'static Pair, a: Operand, b: Operand, side: usize, ctx: &Gradient) -> Result<Tensor> {
    let g = ctx.grad;
    let is = |other: &'static Pair| std::ptr::eq(pair, other);
    let times = |factor: Operand| binary(&pairs::MUL, g.into(), factor);
    let (own, other) = if side == 0 { (a, b) } else { (b, a) };
    let first = side == 0;
    if is(&pairs::ADD) || (first && [&pairs::SUB, &pairs::REM, &pairs::FMOD].into_iter().any(is)) {
        Ok(g.clone())
    } else if is(&pairs::SUB) {
        g.neg()
    } else if is(&pairs::MUL) {
        times(other)
    } else if is(&pairs::DIV) {
        // d(a/b)/db = −a/b² = −out/b
        if first { binary(&pairs::DIV, g.into(), b) } else { binary(&pairs::DIV, (&g.mul(ctx.out)?).into(), b)?.neg() }
    } else if is(&pairs::REM) {
        times((&binary(&pairs::DIV_FLOOR, a, b)?).into())?.neg()
    } else if is(&pairs::FMOD) {
        times((&binary(&pairs::DIV_TRUNC, a, b)?).into())?.neg()
    } else if is(&pairs::POW) {
        times((&binary(if first { &pairs::POW_BASE } else { &pairs::POW_EXPONENT }, a, b)?).into())
    } else if is(&pairs::MAXIMUM) {
        times((&binary(&pairs::SHARE, own, other)?).into())
    } else if is(&pairs::MINIMUM) {
        times((&binary(&pairs::SHARE, other, own)?).into())
    } else if is(&pairs::ATAN2) {
        // d atan2(a, b) = (b da − a db) / (a² + b²)
        let part = times((&binary(&pairs::ANGLE_SLOPE, own, other)?).into())?;
        if first { Ok(part) } else { part.neg() }
    } else {
        filled(g.shape(), 0f32, g.device()) // steps
    }
}

/// Both layouts stretched to their common shape.
fn broadcast(op: &'static str, a: &Layout, b: &Layout) -> Result<(Vec<usize>, Layout, Layout)> {
    let shape = broadcast_shapes(op, &a.shape, &b.shape)?;
    let (a, b) = (a.broadcast_to(&shape), b.broadcast_to(&shape));
    Ok((shape, a, b))
}

/// Runs a row over all pairs of elements of two layouts of one shape.
///
/// By rows along the innermost dimension that is left after merging, each with constant steps; tasks of whole rows, or of
/// parts of the only one.
fn zip(row: &Row, shape: &[usize], (x, lx): (&[u32], &Layout), (y, ly): (&[u32], &Layout), out: &mut [u32]) {
    let (dims, [sx, sy]) = collapse(shape, [&lx.strides, &ly.strides]);
    let inner = dims.len() - 1;
    let (length, step_x, step_y) = (dims[inner], sx[inner], sy[inner]);
    if inner == 0 {
        out.par_chunks_mut(CHUNK).enumerate().for_each(|(i, out)| {
            let (at_x, at_y) = (lx.offset + i * CHUNK * step_x, ly.offset + i * CHUNK * step_y);
            (row.each)(&x[at_x..], step_x, &y[at_y..], step_y, out);
        });
        return;
    }
    let rows = (CHUNK / length).max(1);
    out.par_chunks_mut(rows * length).enumerate().for_each(|(i, part)| {
        for (j, out) in part.chunks_mut(length).enumerate() {
            let (mut rest, mut at_x, mut at_y) = (i * rows + j, lx.offset, ly.offset);
            for d in (0..inner).rev() {
                at_x += rest % dims[d] * sx[d];
                at_y += rest % dims[d] * sy[d];
                rest /= dims[d];
            }
            (row.each)(&x[at_x..], step_x, &y[at_y..], step_y, out);
        }
    });
}
