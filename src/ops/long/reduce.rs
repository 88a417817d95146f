//! Sums, products and extremes of 64-bit elements, running ones, and the positions of extremes, on the host.

use std::sync::Arc;

use anygpu_host::tasks::share;

use super::{Long, host_only, of_pairs, pairs, unsupported, untracked};
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::binary::Number;
use crate::ops::names::Names;
use crate::ops::reduction::reduce::Reduction;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Op, Output, apply};
use crate::tensor::Tensor;

/// What is computed of the rows `[A, R, B]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) enum Kind {
    /// `[A, B]`.
    Whole(Reduction),
    /// `[A, R, B]`.
    Running(Reduction),
    /// The position of the largest or smallest element, `[A, B]` of u32.
    Position { smallest: bool },
}

/// The elements that are added up before the sum is added to the total, to limit the rounding error.
const BLOCK: usize = 256;

/// Pairs of words `[A, R, B, 2]` to pairs, or to u32.
#[derive(Debug)]
struct Rows {
    name: &'static str,
    kind: Kind,
    dtype: DType,
}

impl Op for Rows {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = Names::OfCaller;

    fn name(&self) -> &'static str {
        self.name
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let &[outer, reduced, inner, two] = inputs[0].shape() else {
            return Err(Error::internal("rows of 64-bit elements are [A, R, B, 2]"));
        };
        let shape = match self.kind {
            Kind::Whole(_) => vec![outer, inner, two],
            Kind::Running(_) => vec![outer, reduced, inner, two],
            Kind::Position { .. } => vec![outer, inner],
        };
        Ok((shape, DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (x, sizes) = (inputs[0].slice::<u32>().as_chunks().0, [1, 2].map(|d| inputs[0].shape()[d]));
        match self.dtype {
            DType::I64 => self.run(x, out, sizes, [0, 1, i64::MIN, i64::MAX], |_| false),
            _ => self.run(x, out, sizes, [0.0, 1.0, f64::NEG_INFINITY, f64::INFINITY], f64::is_nan),
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn<Dense>], _out: &Buffer) -> Result<Vec<Kernel>> {
        host_only(self.name, self.dtype)
    }
}

impl Rows {
    /// `starts` are the results over no elements.
    fn run<S: Long + Number>(
        &self,
        x: &[[u32; 2]],
        out: CpuOut,
        [reduced, inner]: [usize; 2],
        starts: [S; 4],
        is_nan: fn(S) -> bool,
    ) {
        let step = |reduction| -> fn(S, S) -> S {
            match reduction {
                Reduction::Sum => S::plus,
                Reduction::Prod => S::times,
                // The new element is on the left, so that a NaN stays.
                Reduction::Max => |a: S, v: S| v.larger(a),
                Reduction::Min => |a: S, v: S| v.smaller(a),
            }
        };
        let at = |x: &[[u32; 2]], r: usize, b: usize| S::of(x[r * inner + b]);
        // With R = 0, there are no chunks.
        let row = |a: usize| &x[a * reduced * inner..][..reduced * inner];
        match self.kind {
            Kind::Whole(reduction) => {
                let (start, f) = (starts[reduction as usize], step(reduction));
                let rows = out.0.as_chunks_mut().0.chunks_mut(inner).enumerate();
                share(rows, 8, |(a, out)| {
                    for (b, out) in out.iter_mut().enumerate() {
                        let blocks = (0..reduced).step_by(BLOCK).map(|first| {
                            let last = reduced.min(first + BLOCK);
                            (first..last).fold(start, |total, r| f(total, at(row(a), r, b)))
                        });
                        *out = blocks.fold(start, f).pair();
                    }
                });
            }
            Kind::Running(reduction) => {
                let (start, f) = (starts[reduction as usize], step(reduction));
                let rows = out.0.as_chunks_mut().0.chunks_mut(reduced * inner).enumerate();
                share(rows, 8, |(a, out)| {
                    for b in 0..inner {
                        let mut total = start;
                        for r in 0..reduced {
                            total = f(total, at(row(a), r, b));
                            out[r * inner + b] = total.pair();
                        }
                    }
                });
            }
            Kind::Position { smallest } => {
                let beats =
                    |v: S, best: S| (if smallest { v < best } else { v > best }) || (is_nan(v) && !is_nan(best));
                let rows = out.0.chunks_mut(inner).enumerate();
                share(rows, 8, |(a, out)| {
                    for (b, out) in out.iter_mut().enumerate() {
                        let mut best = (0, at(row(a), 0, b));
                        for r in 1..reduced {
                            let v = at(row(a), r, b);
                            if beats(v, best.1) {
                                best = (r, v);
                            }
                        }
                        *out = best.0 as u32;
                    }
                });
            }
        }
    }
}

/// Reduces `x`, seen as `[A, R, B]`, to a result of `shape`.
pub(in crate::ops) fn rows(
    name: &'static str,
    kind: Kind,
    x: &Tensor,
    sizes: [usize; 3],
    shape: Vec<usize>,
) -> Result<Tensor> {
    let dtype = x.dtype();
    if !x.device().is_cpu() {
        return Err(unsupported(name, x));
    }
    let position = matches!(kind, Kind::Position { .. });
    if !position {
        untracked(name, &[x])?;
    }
    let words = pairs(&x.detach().contiguous()?).reshape([&sizes[..], &[2]].concat())?;
    let out = apply(Rows { name, kind, dtype }, &[&words])?;
    let out = if position { out } else { of_pairs(&out, dtype)? };
    out.reshape(shape)
}
