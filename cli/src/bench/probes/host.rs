//! The limits of the host, on all threads.

use std::hint::black_box;

use anygpu::Result;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::{Probe, best, rates};

/// Chains of multiply-adds that do not depend on each other: more than two units with four steps each need.
const CHAINS: usize = 12;

/// Multiply-adds of each chain in a round.
const LINKS: u32 = 1 << 14;

/// Floats of a buffer that is copied: 128 MiB, more than most caches hold.
const FLOATS: usize = 32 << 20;

/// Multiply-adds of floats in vectors of the widest kind that this processor has.
pub fn flops() -> Probe {
    let threads = rayon::current_num_threads();
    let lanes = Arch::new().dispatch(Lanes);
    let of_round = 2.0 * (threads * CHAINS * lanes) as f64 * f64::from(LINKS);
    let measured = rates(
        1 << 20,
        |rounds| of_round * f64::from(rounds),
        |rounds| {
            rayon::broadcast(|_| black_box(Arch::new().dispatch(Chains { rounds, factor: black_box(0.5) })));
            Ok(())
        },
    );
    probe(measured, format!("multiply-adds of {lanes} floats, {threads} threads"))
}

/// A copy of a buffer, a part by each thread, in pieces of several sizes: the library of the system writes past the
/// caches in large ones, which is not faster on every processor.
pub fn bytes() -> Probe {
    let threads = rayon::current_num_threads();
    let (from, mut to) = (vec![1.5f32; FLOATS], vec![0f32; FLOATS]);
    let part = FLOATS.div_ceil(threads);
    let shapes = [part, part.min(1 << 14)].map(|piece| {
        let work = |rounds| 8.0 * FLOATS as f64 * f64::from(rounds);
        let measured = rates(1 << 10, work, |rounds| {
            for _ in 0..rounds {
                to.par_chunks_mut(part).zip(from.par_chunks(part)).for_each(|(to, from)| {
                    to.chunks_mut(piece).zip(from.chunks(piece)).for_each(|(to, from)| to.copy_from_slice(from));
                });
                black_box(&mut to);
            }
            Ok(())
        });
        probe(measured, format!("copy of {} MiB, {threads} threads", FLOATS >> 18))
    });
    best(shapes).unwrap_or_else(|| Probe { shape: String::new(), rates: Vec::new() })
}

/// A probe whose work cannot fail.
fn probe(measured: Result<(Vec<f64>, u32)>, shape: String) -> Probe {
    Probe { shape, rates: measured.map(|(rates, _)| rates).unwrap_or_default() }
}

struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    fn with_simd<S: Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}

/// Multiply-adds, of which each depends on the one before in its chain.
struct Chains {
    rounds: u32,
    factor: f32,
}

impl WithSimd for Chains {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let factor = simd.splat_f32s(self.factor);
        let mut chains: [S::f32s; CHAINS] = std::array::from_fn(|i| simd.splat_f32s(i as f32));
        for _ in 0..self.rounds {
            for _ in 0..LINKS {
                for chain in &mut chains {
                    *chain = simd.mul_add_f32s(*chain, factor, factor);
                }
            }
        }
        chains.into_iter().map(|chain| simd.reduce_sum_f32s(chain)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chains_are_computed() {
        // x / 2 + 1 / 2 has the limit 1.
        let lanes = Arch::new().dispatch(Lanes);
        let sum = Arch::new().dispatch(Chains { rounds: 1, factor: 0.5 });
        assert_eq!(sum, (CHAINS * lanes) as f32);
    }
}
