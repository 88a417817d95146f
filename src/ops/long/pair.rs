//! Functions of two 64-bit elements, on the host.

use std::sync::Arc;

use super::{Long, of_pairs, pairs, unsupported, untracked};
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::elementwise::binary::BinaryFn;
use crate::ops::inputs::Walk;
use crate::ops::names::Names;
use crate::ops::{CpuIn, CpuOut, Elements, GpuIn, Op, Output, Strided, apply, expect_dtype, only_on_the_host};
use crate::shape::{Layout, broadcast_shapes};
use crate::tensor::Tensor;

/// A function of two operands, pairs of words `[.., 2]`; the result is pairs, or words of 0 and 1 that become booleans.
#[derive(Debug)]
struct OfTwo {
    name: &'static str,
    formula: LongFunction,
}

/// Returns the layout of elements, in words, from the layout of their words.
fn elements(layout: &Layout) -> Layout {
    let last = layout.shape.len() - 1;
    Layout { shape: layout.shape[..last].to_vec(), strides: layout.strides[..last].to_vec(), offset: layout.offset }
}

impl Op for OfTwo {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = Names::OfCaller;

    fn name(&self) -> &'static str {
        self.name
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let [a, b] = [0, 1].map(|i| inputs[i].shape().split_last().map_or(&[][..], |(_, shape)| shape));
        let mut shape = broadcast_shapes(self.name, a, b)?;
        if matches!(self.formula, LongFunction::Truths(_)) {
            return Ok((shape, DType::Bool));
        }
        shape.push(2);
        Ok((shape, DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let words = [0, 1].map(|i| inputs[i].all::<u32>());
        let [a, b] = [0, 1].map(|i| elements(inputs[i].layout()));
        match self.formula {
            LongFunction::Values(each) => {
                let out = out.0.as_chunks_mut().0;
                Walk::broadcast_rows(self.name, [&a, &b], out, 1, |at, steps, out| each(words, at, steps, out))
            }
            LongFunction::Truths(each) => {
                Walk::broadcast_rows(self.name, [&a, &b], out.0, 1, |at, steps, out| each(words, at, steps, out))
            }
        }
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn<Strided>], _out: &Buffer) -> Result<Vec<Kernel>> {
        Err(only_on_the_host(self.name))
    }
}

/// The words of both operands, where the first elements are, and the steps from one element to the next; the results. Steps may be
/// negative, as wrapped numbers.
type Each<R> = fn([&[u32]; 2], [usize; 2], [usize; 2], &mut [R]);

/// A formula of a row.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) enum LongFunction {
    Values(Each<[u32; 2]>),
    Truths(Each<u32>),
}

fn each<S: Long, R>(
    [x, y]: [&[u32]; 2],
    [mut i, mut j]: [usize; 2],
    [step_x, step_y]: [usize; 2],
    out: &mut [R],
    f: impl Fn(S, S) -> R,
) {
    for out in out {
        *out = f(S::of([x[i], x[i + 1]]), S::of([y[j], y[j + 1]]));
        (i, j) = (i.wrapping_add(step_x), j.wrapping_add(step_y));
    }
}

/// The loop of a formula.
pub(in crate::ops) fn values<S: Long>(
    words: [&[u32]; 2],
    at: [usize; 2],
    steps: [usize; 2],
    out: &mut [[u32; 2]],
    f: impl Fn(S, S) -> S,
) {
    each(words, at, steps, out, |x: S, y: S| f(x, y).pair());
}

/// The loop of a comparison.
pub(in crate::ops) fn truths<S: Long>(
    words: [&[u32]; 2],
    at: [usize; 2],
    steps: [usize; 2],
    out: &mut [u32],
    f: impl Fn(S, S) -> bool,
) {
    each(words, at, steps, out, |x: S, y: S| u32::from(f(x, y)));
}

/// Computes a function of two tensors of one 64-bit type.
pub(in crate::ops) fn of_two(function: BinaryFn, inputs: &[&Tensor]) -> Result<Tensor> {
    let (a, b, name) = (inputs[0], inputs[1], function.name());
    expect_dtype(name, b, a.dtype())?;
    let dtype = a.dtype();
    let types = &function.row().types;
    let formula = if dtype == DType::I64 { types.i64 } else { types.f64 };
    let Some(formula) = formula.filter(|_| a.device().is_cpu()) else {
        return Err(unsupported(name, a));
    };
    if !types.truth {
        untracked(name, inputs)?;
    }
    let out = apply(OfTwo { name, formula }, &[&pairs(a), &pairs(b)])?;
    if types.truth { Ok(out) } else { of_pairs(&out, dtype) }
}
