//! Random tensors: Philox 4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
//! SC 2011), so that a seed means the same bits everywhere.
//!
//! The bits are made on the host and moved in one copy.

use std::sync::Mutex;

use crate::device::Device;
use crate::error::Result;
use crate::shape::{Shape, checked_elem_count};
use crate::sync::lock;
use crate::tensor::Tensor;

/// The process's generator: its seed and how many blocks of four words it gave out.
static GENERATOR: Mutex<(u64, u64)> = Mutex::new((0, 0));

/// Seeds the generator behind [`Tensor::rand`], [`Tensor::randn`] and the initialisation of layers.
///
/// ```
/// use anygpu::{Tensor, manual_seed};
///
/// manual_seed(7);
/// let a = Tensor::rand([4], None)?.to_vec::<f32>()?;
/// manual_seed(7);
/// assert_eq!(a, Tensor::rand([4], None)?.to_vec::<f32>()?);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn manual_seed(seed: u64) {
    *lock(&GENERATOR) = (seed, 0);
}

/// A stream of its own for a purpose (shuffling, say), drawn from the process's generator.
pub(crate) fn seed_for(seed: u64, stream: u64) -> impl FnMut() -> u32 {
    let mut block = 0u64;
    let mut left: Vec<u32> = Vec::new();
    move || {
        left.pop().unwrap_or_else(|| {
            left.extend(philox([block as u32, (block >> 32) as u32, stream as u32, (stream >> 32) as u32], seed));
            block += 1;
            left.pop().unwrap_or_default()
        })
    }
}

/// `n` words from the process's generator.
fn words(n: usize) -> Vec<u32> {
    let blocks = n.div_ceil(4) as u64;
    let (seed, first) = {
        let mut generator = lock(&GENERATOR);
        let (seed, first) = *generator;
        generator.1 += blocks;
        (seed, first)
    };
    let mut out: Vec<u32> =
        (first..first + blocks).flat_map(|b| philox([b as u32, (b >> 32) as u32, 0, 0], seed)).collect();
    out.truncate(n);
    out
}

/// One block of Philox 4x32 with ten rounds.
fn philox(mut counter: [u32; 4], seed: u64) -> [u32; 4] {
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// 24 bits to a float in [0, 1).
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

impl Tensor {
    /// Uniform in [0, 1), from the generator that [`manual_seed`] seeds.
    ///
    /// # Errors
    /// If the device has no room for it.
    pub fn rand<'d>(shape: impl Into<Shape>, device: impl Into<Option<&'d Device>>) -> Result<Tensor> {
        let shape = shape.into();
        let values: Vec<f32> = words(checked_elem_count("rand", shape.dims())?).into_iter().map(unit).collect();
        Tensor::from_slice(&values, shape, device)
    }

    /// Standard normal, by the Box–Muller transform of pairs from the same generator.
    ///
    /// # Errors
    /// If the device has no room for it.
    pub fn randn<'d>(shape: impl Into<Shape>, device: impl Into<Option<&'d Device>>) -> Result<Tensor> {
        let shape = shape.into();
        let count = checked_elem_count("randn", shape.dims())?;
        let normal = |pair: &[u32]| {
            let radius = (-2.0 * f64::from(1.0 - unit(pair[0])).ln()).sqrt();
            let (sin, cos) = (std::f64::consts::TAU * f64::from(unit(pair[1]))).sin_cos();
            [(radius * cos) as f32, (radius * sin) as f32]
        };
        let mut values: Vec<f32> = words(count.next_multiple_of(2)).chunks_exact(2).flat_map(normal).collect();
        values.truncate(count);
        Tensor::from_slice(&values, shape, device)
    }
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// The known answers of the Random123 distribution.
    #[test]
    fn philox_matches_random123() {
        assert_eq!(philox([0; 4], 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], u64::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }
}
