//! Functions of two 64-bit elements, on the host.

use std::sync::Arc;

use super::{Long, host_only, of_pairs, pairs, unsupported, untracked};
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::binary::Number;
use crate::ops::inputs::Walk;
use crate::ops::{CpuIn, CpuOut, Elements, GpuIn, Op, Output, Strided, apply, expect_dtype};
use crate::shape::{Layout, broadcast_shapes};
use crate::tensor::Tensor;

/// A function of two operands, pairs of words `[.., 2]`; the result is pairs, or words of 0 and 1 that become booleans.
#[derive(Debug)]
struct OfTwo {
    name: &'static str,
    truth: bool,
    dtype: DType,
}

/// The layout of elements, in words, of that of their words.
fn elements(layout: &Layout) -> Layout {
    let last = layout.shape.len() - 1;
    Layout { shape: layout.shape[..last].to_vec(), strides: layout.strides[..last].to_vec(), offset: layout.offset }
}

impl Op for OfTwo {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Any;

    fn name(&self) -> &'static str {
        self.name
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let [a, b] = [0, 1].map(|i| inputs[i].shape().split_last().map_or(&[][..], |(_, shape)| shape));
        let mut shape = broadcast_shapes(self.name, a, b)?;
        if self.truth {
            return Ok((shape, DType::Bool));
        }
        shape.push(2);
        Ok((shape, DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let run = Run { op: self, inputs };
        let done = match (self.truth, self.dtype) {
            (true, DType::I64) => run.truths::<i64>(out),
            (true, _) => run.truths::<f64>(out),
            (_, DType::I64) => run.integers(out),
            _ => run.floats(out),
        };
        done.unwrap_or_else(|| Err(Error::internal(format!("{} of {}", self.name, self.dtype))))
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn<Strided>], _out: &Buffer) -> Result<Vec<Kernel>> {
        host_only(self.name, self.dtype)
    }
}

struct Run<'a> {
    op: &'a OfTwo,
    inputs: &'a [CpuIn<'a, Strided>],
}

impl Run<'_> {
    fn each<S: Long, R: Send>(&self, out: &mut [R], f: impl Fn(S, S) -> R + Sync) -> Option<Result<()>> {
        let [x, y] = [0, 1].map(|i| self.inputs[i].all::<u32>());
        let [a, b] = [0, 1].map(|i| elements(self.inputs[i].layout()));
        Some(Walk::broadcast_rows(self.op.name, [&a, &b], out, 1, |[mut i, mut j], [step_x, step_y], out| {
            for out in out {
                *out = f(S::of([x[i], x[i + 1]]), S::of([y[j], y[j + 1]]));
                // The steps may be negative, as wrapped numbers.
                (i, j) = (i.wrapping_add(step_x), j.wrapping_add(step_y));
            }
        }))
    }

    fn truths<S: Long>(&self, out: CpuOut) -> Option<Result<()>> {
        let test: fn(&S, &S) -> bool = match self.op.name {
            "eq" => S::eq,
            "ne" => S::ne,
            "lt" => S::lt,
            "le" => S::le,
            "gt" => S::gt,
            "ge" => S::ge,
            _ => return None,
        };
        self.each(out.0, move |x: S, y: S| u32::from(test(&x, &y)))
    }

    /// The functions that both types have.
    fn numbers<S: Long + Number>(&self, out: CpuOut) -> Option<Result<()>> {
        macro_rules! row {
            ($f:path) => {
                self.each(out.0.as_chunks_mut().0, |x: S, y: S| $f(x, y).pair())
            };
        }
        match self.op.name {
            "add" => row!(S::plus),
            "sub" => row!(S::minus),
            "mul" => row!(S::times),
            "div_trunc" => row!(S::div_trunc),
            "div_floor" => row!(S::div_floor),
            "fmod" => row!(S::fmod),
            "rem" => row!(S::rem),
            "pow" => row!(S::power),
            "maximum" => row!(S::larger),
            "minimum" => row!(S::smaller),
            _ => None,
        }
    }

    fn integers(&self, out: CpuOut) -> Option<Result<()>> {
        macro_rules! row {
            ($f:expr) => {
                self.each(out.0.as_chunks_mut().0, |x: i64, y: i64| $f(x, y).pair())
            };
        }
        let within = |places: i64| (0..64).contains(&places);
        match self.op.name {
            "bitwise_and" => row!(|x: i64, y: i64| x & y),
            "bitwise_or" => row!(|x: i64, y: i64| x | y),
            "bitwise_xor" => row!(|x: i64, y: i64| x ^ y),
            "bitwise_left_shift" => row!(|x: i64, y: i64| if within(y) { x << y } else { 0 }),
            // A shift by more leaves the sign.
            "bitwise_right_shift" => row!(|x: i64, y: i64| if within(y) { x >> y } else { x >> 63 }),
            _ => self.numbers::<i64>(out),
        }
    }

    fn floats(&self, out: CpuOut) -> Option<Result<()>> {
        match self.op.name {
            "div" => self.each(out.0.as_chunks_mut().0, |x: f64, y: f64| (x / y).pair()),
            "atan2" => self.each(out.0.as_chunks_mut().0, |x: f64, y: f64| x.atan2(y).pair()),
            _ => self.numbers::<f64>(out),
        }
    }
}

/// Computes a function of two tensors of one 64-bit type, by its name.
pub(in crate::ops) fn of_two(name: &'static str, truth: bool, inputs: &[&Tensor]) -> Result<Tensor> {
    let (a, b) = (inputs[0], inputs[1]);
    expect_dtype(name, b, a.dtype())?;
    if !a.device().is_cpu() {
        return Err(unsupported(name, a));
    }
    if !truth {
        untracked(name, inputs)?;
    }
    let dtype = a.dtype();
    let out = apply(OfTwo { name, truth, dtype }, &[&pairs(a), &pairs(b)])?;
    if truth { Ok(out) } else { of_pairs(&out, dtype) }
}
