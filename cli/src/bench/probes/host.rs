//! The limits of the host, on all threads.

use std::hint::black_box;

use anygpu::{Error, Result};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::{Probe, best, rates};

/// Chains of multiply-adds that do not depend on each other: more than two units with four steps each need.
const CHAINS: usize = 12;

/// Multiply-adds of each chain in a round.
const LINKS: u32 = 1 << 14;

/// Floats of a buffer that is copied: 128 MiB, more than most caches hold, or less where memory is short.
const FLOATS: [usize; 3] = [32 << 20, 16 << 20, 4 << 20];

/// Multiply-adds of floats in vectors of the widest kind that this processor has.
///
/// # Errors
/// None: the work cannot fail.
pub fn flops() -> Result<Probe> {
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
    let (rates, _) = measured?;
    Ok(Probe { shape: format!("multiply-adds of {lanes} floats, {threads} threads"), rates })
}

/// A copy of a buffer, a part by each thread, in pieces of several sizes: the library of the system writes past the
/// caches in large ones, which is not faster on every processor.
///
/// # Errors
/// [`Error::OutOfMemory`] if there is no memory for two buffers of the smallest size.
pub fn bytes() -> Result<Probe> {
    let threads = rayon::current_num_threads();
    let (from, mut to) = buffers(&FLOATS)?;
    let floats = from.len();
    let part = floats.div_ceil(threads);
    let shapes = [part, part.min(1 << 14)].map(|piece| {
        let work = |rounds| 8.0 * floats as f64 * f64::from(rounds);
        let measured = rates(1 << 10, work, |rounds| {
            for _ in 0..rounds {
                to.par_chunks_mut(part).zip(from.par_chunks(part)).for_each(|(to, from)| {
                    to.chunks_mut(piece).zip(from.chunks(piece)).for_each(|(to, from)| to.copy_from_slice(from));
                });
                black_box(&mut to);
            }
            Ok(())
        });
        measured.map(|(rates, _)| Probe { shape: format!("copy of {} MiB, {threads} threads", floats >> 18), rates })
    });
    let none = Error::Gpu { device: "cpu".to_string(), message: "a probe of its limits failed: no copy".to_string() };
    best(shapes.into_iter().collect::<Result<Vec<_>>>()?).ok_or(none)
}

/// Two buffers of the first of these sizes for which there is memory.
fn buffers(sizes: &[usize]) -> Result<(Vec<f32>, Vec<f32>)> {
    let filled = |floats: usize, value: f32| {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(floats).ok()?;
        buffer.resize(floats, value);
        Some(buffer)
    };
    let both = sizes.iter().find_map(|&floats| filled(floats, 1.5).zip(filled(floats, 0.0)));
    both.ok_or_else(|| {
        let least = sizes.last().map_or(0, |&floats| floats as u64);
        Error::OutOfMemory {
            device: "cpu".to_string(),
            requested: least.saturating_mul(8),
            in_use: 0,
            available: None,
            held: Vec::new(),
        }
    })
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
    fn short_memory_makes_the_buffers_smaller() -> Result<()> {
        let (from, to) = buffers(&[usize::MAX >> 1, 1 << 58, 16])?;
        assert_eq!((from, to), (vec![1.5; 16], vec![0.0; 16]));
        let error = buffers(&[usize::MAX >> 1]).expect_err("no such memory");
        assert!(error.is_out_of_memory(), "{error}");
        Ok(())
    }

    #[test]
    fn the_chains_are_computed() {
        // x / 2 + 1 / 2 has the limit 1.
        let lanes = Arch::new().dispatch(Lanes);
        let sum = Arch::new().dispatch(Chains { rounds: 1, factor: 0.5 });
        assert_eq!(sum, (CHAINS * lanes) as f32);
    }
}
