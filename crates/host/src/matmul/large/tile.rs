//! One tile of a product: its sums stay in registers.

use std::ops::Range;

use pulp::Simd;

use super::{Start, VECTORS, largest_tile};
use crate::matmul::gemm::Matrix;
use crate::vectors::{apart, array, prefetch};

/// The terms of one turn of the inner loop: counting turns takes ports of the processor from the products.
const AT_ONCE: usize = 4;

/// The rows of the left operand that a tile reads.
#[derive(Clone, Copy)]
pub(super) enum Left<'a> {
    /// Rows that are this far apart.
    Rows(&'a [f32], usize),
    /// The elements of each term lie side by side; the terms are this far apart.
    Terms(&'a [f32], usize),
}

impl<'a> Left<'a> {
    /// Returns the rows from `row` on, and their terms from `term` on, where they lie: rows or columns without gaps.
    #[inline(always)]
    pub fn of(a: Matrix<'a>, row: usize, term: usize) -> Left<'a> {
        let data = &a.data[a.start + row * a.strides[0] + term * a.strides[1]..];
        if a.strides[1] == 1 { Left::Rows(data, a.strides[0]) } else { Left::Terms(data, a.strides[1]) }
    }
}

pub(super) struct Tile<'t, 'a, V> {
    pub left: Left<'t>,
    pub depth: usize,
    pub panel: &'t [V],
    pub start: Start<'t>,
    /// The rows of the result.
    pub out: &'t mut [&'a mut [f32]],
    pub columns: Range<usize>,
}

impl<V: Copy> Tile<'_, '_, V> {
    #[inline(always)]
    pub fn compute<S: Simd<f32s = V>>(self, simd: S, height: usize, vectors: usize) {
        macro_rules! rows {
            ($rows:literal) => {
                apart(
                    #[inline(always)]
                    || match vectors {
                        1 => self.of::<S, $rows, 1>(simd),
                        _ if const { largest_tile::<S>()[1] < VECTORS } => self.of::<S, $rows, 2>(simd),
                        2 => self.of::<S, $rows, 2>(simd),
                        _ => self.of::<S, $rows, VECTORS>(simd),
                    },
                )
            };
        }
        // Constants, so that tiles that do not fit in registers are not compiled.
        match height {
            1 => rows!(1),
            2 => rows!(2),
            3 => rows!(3),
            4 => rows!(4),
            5 => rows!(5),
            _ if const { largest_tile::<S>()[0] < 8 } => rows!(6),
            6 => rows!(6),
            7 => rows!(7),
            _ => rows!(8),
        }
    }

    #[inline(always)]
    fn of<S: Simd<f32s = V>, const M: usize, const W: usize>(self, simd: S) {
        for row in self.out.iter() {
            prefetch(&row[self.columns.clone()]);
        }
        // The sums stay in registers if the only loops over them are short ones, which the compiler unrolls early: so they are
        // copied to memory before anything else is done with them.
        let sums = self.sums::<S, M, W>(simd);
        let mut tile = [[simd.splat_f32s(0.0); W]; M];
        for i in 0..M {
            for j in 0..W {
                tile[i][j] = sums[i][j];
            }
        }
        for (row, sums) in self.out.iter_mut().zip(&tile) {
            let row = &mut row[self.columns.clone()];
            let (mut row, mut bias) = (row, if let Start::Columns(bias) = self.start { bias } else { &[] });
            for sum in sums {
                let (part, rest) = row.split_at_mut(S::F32_LANES.min(row.len()));
                let sum = match self.start {
                    Start::Zero => *sum,
                    Start::Result => simd.add_f32s(*sum, load(simd, part)),
                    Start::Columns(_) => {
                        let (part, rest) = bias.split_at(part.len());
                        bias = rest;
                        simd.add_f32s(*sum, load(simd, part))
                    }
                };
                match S::as_mut_simd_f32s(part) {
                    ([whole], []) => *whole = sum,
                    _ => simd.partial_store_f32s(part, sum),
                }
                row = rest;
            }
        }
    }

    /// Returns the sums of products.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "an iterator might take the sums out of their registers")]
    fn sums<S: Simd<f32s = V>, const M: usize, const W: usize>(&self, simd: S) -> [[V; W]; M] {
        let mut sums = [[simd.splat_f32s(0.0); W]; M];
        let (turns, rest) = self.panel.as_chunks::<W>().0[..self.depth].as_chunks::<AT_ONCE>();
        // A macro, since the sums of a closure would not stay in registers.
        macro_rules! add {
            (|$i:ident| $left:expr, $right:expr) => {
                for $i in 0..M {
                    let factor = simd.splat_f32s($left);
                    for j in 0..W {
                        sums[$i][j] = simd.mul_add_e_f32s(factor, $right[j], sums[$i][j]);
                    }
                }
            };
        }
        match self.left {
            Left::Rows(data, step) => {
                let rows: [&[f32]; M] = array(&[], |i| &data[i * step..][..self.depth]);
                let lines: [&[_]; M] = array(&[], |i| &rows[i].as_chunks::<AT_ONCE>().0[..turns.len()]);
                for (t, right) in turns.iter().enumerate() {
                    for u in 0..AT_ONCE {
                        add!(|i| lines[i][t][u], right[u]);
                    }
                }
                for (t, right) in rest.iter().enumerate() {
                    add!(|i| rows[i][turns.len() * AT_ONCE + t], right);
                }
            }
            Left::Terms(data, step) => {
                let term = |t: usize| &data[t * step..][..M];
                for (t, right) in turns.iter().enumerate() {
                    for u in 0..AT_ONCE {
                        let left = term(t * AT_ONCE + u);
                        add!(|i| left[i], right[u]);
                    }
                }
                for (t, right) in rest.iter().enumerate() {
                    let left = term(turns.len() * AT_ONCE + t);
                    add!(|i| left[i], right);
                }
            }
        }
        sums
    }
}

/// Returns the elements, of which there are at most as many as in a vector, and zeros after them.
#[inline(always)]
fn load<S: Simd>(simd: S, from: &[f32]) -> S::f32s {
    match S::as_simd_f32s(from) {
        (&[whole], []) => whole,
        _ => simd.partial_load_f32s(from),
    }
}
