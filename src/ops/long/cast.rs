//! Conversions between 64-bit elements and others, by two ops over dense pairs of words.

use std::sync::Arc;

use anygpu_host::tasks::share;
use half::{bf16, f16};

use super::{Long, held, of_pairs, pairs, untracked};
use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::cast::{narrowed, widened};
use crate::ops::elementwise::unary::CHUNK;
use crate::ops::names::{Names, names};
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Op, Output, apply};
use crate::tensor::Tensor;

params! {
    struct Params { count: usize, offset: usize }
}
shader!(SHADER: Params = "long/long");

/// What is read of a 64-bit number.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// The number in the type of the result.
    Value,
    /// The index: a number that fits neither u32 nor i32 becomes −2³¹, which is beyond every dimension.
    Index,
    /// The index from either end: a number that does not fit i32 becomes −2³¹.
    SignedIndex,
    /// 1 unless it is 0.
    Truth,
}

/// Pairs of words `[.., 2]` of type `from` to elements of type `to`.
#[derive(Debug)]
struct FromPairs {
    from: DType,
    to: DType,
    part: Part,
}

fn each<S: Copy + Sync, T: Send>(x: &[S], out: &mut [T], f: impl Fn(S) -> T + Sync) {
    let convert = |(out, x): (&mut [T], &[S])| out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(x));
    share(out.chunks_mut(CHUNK).zip(x.chunks(CHUNK)), 1, convert);
}

/// Converts all numbers of the input to elements with these bits. A last word that is longer than the elements ends with zeros.
fn read<S: Long, B: bytemuck::Pod + Send>(x: &CpuIn<Dense>, out: CpuOut, f: impl Fn(S) -> B + Sync) {
    out.0.last_mut().into_iter().for_each(|last| *last = 0);
    each(x.slice::<u32>().as_chunks().0, bytemuck::cast_slice_mut(out.0), |pair| f(S::of(pair)));
}

impl Op for FromPairs {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Stored;
    const NAMES: Names = names!["to_dtype"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let shape = inputs[0].shape();
        Ok((
            shape[..shape.len() - usize::from(!self.to.is_long())].to_vec(),
            if self.to.is_long() { DType::U32 } else { self.to },
        ))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let x = &inputs[0];
        match (self.from, self.to, self.part) {
            (DType::I64, _, Part::Truth) => read(x, out, |v: i64| u32::from(v != 0)),
            (DType::I64, _, Part::Index) => read(x, out, index),
            (DType::I64, _, Part::SignedIndex) => read(x, out, |v: i64| i32::try_from(v).unwrap_or(i32::MIN)),
            (DType::I64, DType::F32, _) => read(x, out, |v: i64| (v as f32).to_bits()),
            (DType::I64, DType::F64, _) => read(x, out, |v: i64| (v as f64).pair()),
            (DType::I64, _, _) => read(x, out, |v: i64| v as u32),
            (_, _, Part::Truth) => read(x, out, |v: f64| u32::from(v != 0.0)),
            (_, DType::F32, _) => read(x, out, |v: f64| (v as f32).to_bits()),
            (_, DType::F16, _) => read(x, out, |v: f64| f16::from_f32(to_odd(v)).to_bits()),
            (_, DType::BF16, _) => read(x, out, |v: f64| bf16::from_f32(to_odd(v)).to_bits()),
            (_, DType::I64, _) => read(x, out, |v: f64| (v as i64).pair()),
            (_, DType::I32, _) => read(x, out, |v: f64| (v as i32).cast_unsigned()),
            (_, DType::U8, _) => read(x, out, |v: f64| v as u8),
            _ => read(x, out, |v: f64| v as u32),
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let code: u8 = match (self.to, self.part) {
            (_, Part::Index) => 1,
            (_, Part::SignedIndex) => 4,
            (_, Part::Truth) => 2,
            (DType::F32, _) => 0,
            _ => 3,
        };
        let params = Params { count: x.elem_count() / 2, offset: x.offset() };
        let kernel = Kernel::build(SHADER, "from_pairs", params).constant("OP", code);
        Ok(vec![kernel.input(x).output(out).each(params.count)])
    }
}

/// Returns an f32 whose nearest half is also the nearest half of the number: the number cut off, with the last bit set
/// if anything was cut. `half` itself drops 32 bits of an f64 before it rounds.
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if !near.is_finite() || f64::from(near) == value {
        return near;
    }
    let beyond = f64::from(near).abs() > value.abs();
    f32::from_bits((near.to_bits() - u32::from(beyond)) | 1)
}

/// Returns the word of an index.
fn index(value: i64) -> u32 {
    let word = u32::try_from(value).or_else(|_| i32::try_from(value).map(i32::cast_unsigned));
    word.unwrap_or(1 << 31)
}

/// Words of f32, i32 or u32 to pairs `[.., 2]` of type `to`.
#[derive(Debug)]
struct ToPairs {
    to: DType,
}

impl Op for ToPairs {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Stored;
    const NAMES: Names = names!["to_dtype"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok(([inputs[0].shape(), &[2]].concat(), DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (x, out) = (&inputs[0], out.0.as_chunks_mut().0);
        match (x.dtype(), self.to) {
            (DType::F32, DType::I64) => each(x.slice(), out, |v: f32| (v as i64).pair()),
            (DType::F32, _) => each(x.slice(), out, |v: f32| f64::from(v).pair()),
            (DType::I32, DType::I64) => each(x.slice(), out, |v: i32| i64::from(v).pair()),
            (DType::I32, _) => each(x.slice(), out, |v: i32| f64::from(v).pair()),
            (_, DType::I64) => each(x.slice(), out, |v: u32| i64::from(v).pair()),
            _ => each(x.slice(), out, |v: u32| f64::from(v).pair()),
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let code: u8 = match x.dtype() {
            DType::F32 => 0,
            DType::I32 => 1,
            _ => 2,
        };
        let params = Params { count: x.elem_count(), offset: x.offset() };
        Ok(vec![Kernel::build(SHADER, "to_pairs", params).constant("OP", code).input(x).output(out).each(params.count)])
    }
}

/// Converts from or to a type of 64 bits; the types differ.
pub(in crate::ops) fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    held("to_dtype", dtype, x.device())?;
    if dtype.is_float() && x.dtype().is_float() {
        untracked("to_dtype", &[x])?;
    }
    let x = &x.detach();
    if !x.dtype().is_long() {
        return of_pairs(&apply(ToPairs { to: dtype }, &[&widened(x)?])?, dtype);
    }
    let from = x.dtype();
    let value = |to| apply(FromPairs { from, to, part: Part::Value }, &[&pairs(x)]);
    match dtype {
        DType::I64 | DType::F64 => of_pairs(&value(dtype)?, dtype),
        DType::Bool => narrowed(&apply(FromPairs { from, to: DType::U32, part: Part::Truth }, &[&pairs(x)])?, dtype),
        _ if from == DType::F64 => value(dtype),
        packed => narrowed(&value(packed.wide())?, packed),
    }
}

/// Returns indices of i64 as u32, outside the graph. A number that fits neither u32 nor i32 is an error on the host, and −2³¹ on an
/// adapter, which its check of indices reports.
pub(in crate::ops) fn indices(op: &'static str, x: &Tensor) -> Result<Tensor> {
    beyond_none(op, x, u32::MAX.into())?;
    apply(FromPairs { from: DType::I64, to: DType::U32, part: Part::Index }, &[&pairs(&x.detach())])
}

/// Returns indices of i64 as i32, outside the graph, for dimensions that i32 can count. Others are as for [`indices`].
pub(in crate::ops) fn signed_indices(op: &'static str, x: &Tensor) -> Result<Tensor> {
    beyond_none(op, x, i32::MAX.into())?;
    apply(FromPairs { from: DType::I64, to: DType::I32, part: Part::SignedIndex }, &[&pairs(&x.detach())])
}

/// Checks on the host that no index is beyond every dimension: below the range of i32, or more than `most`.
fn beyond_none(op: &'static str, x: &Tensor, most: i64) -> Result<()> {
    if !x.device().is_cpu() {
        return Ok(());
    }
    let values = x.detach().to_vec::<i64>()?;
    match values.iter().find(|value| !(i64::from(i32::MIN)..=most).contains(value)) {
        Some(value) => Err(Error::argument(op, format!("index {value} is beyond every dimension"))),
        None => Ok(()),
    }
}

/// Returns labels of any type as u32, outside the graph. Labels of i64 are converted by [`indices`].
pub(crate) fn labels_as_words(op: &'static str, x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::I64 { indices(op, x) } else { x.detach().to_dtype(DType::U32) }
}
