//! Functions of one 64-bit element, on the host.

use std::sync::Arc;

use anygpu_host::tasks::share;

use super::{Long, of_pairs, pairs, unsupported, untracked};
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::elementwise::unary::{CHUNK, Double, Integer, UnaryFn};
use crate::ops::names::Names;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Op, Output, apply, only_on_the_host};
use crate::tensor::Tensor;

/// A formula of a row, and the arguments of one of f64.
#[derive(Clone, Copy, Debug)]
enum Formula {
    F64(Double, [f64; 2]),
    I64(Integer),
}

/// A function of pairs of words `[.., 2]`; the result is pairs, or words of 0 and 1 that become booleans.
#[derive(Debug)]
struct OfOne {
    function: UnaryFn,
    formula: Formula,
}

fn each<S: Long, R: Send>(x: &CpuIn<Dense>, out: &mut [R], f: impl Fn(S) -> R + Sync) {
    let x = x.slice::<u32>().as_chunks().0;
    let convert = |(out, x): (&mut [R], &[[u32; 2]])| out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(S::of(x)));
    share(out.chunks_mut(CHUNK).zip(x.chunks(CHUNK)), 1, convert);
}

impl Op for OfOne {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = Names::OfTables;

    fn name(&self) -> &'static str {
        self.function.name()
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let (shape, truth) = (inputs[0].shape(), self.function.row().is_truth());
        let rank = shape.len() - usize::from(truth);
        Ok((shape[..rank].to_vec(), if truth { DType::Bool } else { DType::U32 }))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let x = &inputs[0];
        match (self.formula, self.function.row().is_truth()) {
            (Formula::I64(f), true) => each(x, out.0, move |v: i64| u32::from(f(v) != 0)),
            (Formula::I64(f), false) => each(x, out.0.as_chunks_mut().0, move |v: i64| f(v).pair()),
            (Formula::F64(f, p), true) => each(x, out.0, move |v: f64| u32::from(f(v, p) != 0.0)),
            (Formula::F64(f, p), false) => each(x, out.0.as_chunks_mut().0, move |v: f64| f(v, p).pair()),
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn<Dense>], _out: &Buffer) -> Result<Vec<Kernel>> {
        Err(only_on_the_host(self.name()))
    }
}

/// Computes a function of the elementwise table.
pub(in crate::ops) fn of_one(function: UnaryFn, args: [f32; 2], x: &Tensor) -> Result<Tensor> {
    let (row, dtype) = (function.row(), x.dtype());
    let formula = match dtype {
        DType::I64 => row.i64().map(Formula::I64),
        _ => row.f64.map(|f| Formula::F64(f, args.map(f64::from))),
    };
    let Some(formula) = formula.filter(|_| x.device().is_cpu()) else {
        return Err(unsupported(function.name(), x));
    };
    if !row.is_truth() {
        untracked(function.name(), &[x])?;
    }
    let out = apply(OfOne { function, formula }, &[&pairs(x)])?;
    if row.is_truth() { Ok(out) } else { of_pairs(&out, dtype) }
}
