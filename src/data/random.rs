//! Random choices of this module: orders, splits, augmentations. Each is a function of a seed and its purpose,
//! independent of the thread and of earlier draws.

use crate::philox::{Stream, philox, unit};
use crate::tensor::seed_for;

/// The random numbers of one sample in one epoch, for [transforms](crate::data::transforms).
///
/// They are the same in every thread and in a resumed run.
///
/// ```
/// use anygpu::data::Random;
///
/// let mut random = Random::of_sample(7, 0, 3); // seed, epoch, number of the sample
/// let (a, b) = (random.below(10), random.uniform());
/// assert!(a < 10 && (0.0..1.0).contains(&b));
/// assert_eq!(Random::of_sample(7, 0, 3).below(10), a);
/// ```
#[derive(Clone, Debug)]
pub struct Random {
    stream: Stream,
    block: [u32; 4],
    left: usize,
}

impl Random {
    /// Returns the generator of sample `index` in epoch `epoch`.
    #[must_use]
    pub fn of_sample(seed: u64, epoch: u64, index: usize) -> Random {
        let index = index as u64;
        let key = philox([index as u32, (index >> 32) as u32, epoch as u32, (epoch >> 32) as u32], seed ^ SAMPLES);
        Random::from_seed(u64::from(key[0]) | u64::from(key[1]) << 32)
    }

    /// Returns the generator of a split.
    pub(super) fn of_split(seed: u64) -> Random {
        Random::from_seed(seed ^ SPLITS)
    }

    fn from_seed(seed: u64) -> Random {
        Random { stream: Stream { seed, first: 0 }, block: [0; 4], left: 0 }
    }

    /// Returns 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.left == 0 {
            self.block = self.stream.block(0);
            self.stream.first += 1;
            self.left = 4;
        }
        self.left -= 1;
        self.block[3 - self.left]
    }

    /// Returns a number that is uniformly distributed in [0, 1).
    pub fn uniform(&mut self) -> f32 {
        unit(self.next_u32())
    }

    /// Returns an integer below `range`, or 0 if that is 0.
    pub fn below(&mut self, range: usize) -> usize {
        below(|| self.next_u32(), range)
    }

    /// Returns true with probability `p`.
    pub fn chance(&mut self, p: f32) -> bool {
        self.uniform() < p
    }

    pub(super) fn shuffle(&mut self, order: &mut [usize]) {
        fisher_yates(order, || self.next_u32());
    }
}

/// Constants that make the numbers of samples and of splits independent of the orders of the same seed.
const SAMPLES: u64 = 0x5361_6D70_6C65_7321;
const SPLITS: u64 = 0x5370_6C69_7474_6564;

/// Shuffles the order of an epoch. Each epoch has its own stream (stream 0 is used for weights), so the order does not
/// depend on the number of weights.
pub(super) fn shuffle_epoch(order: &mut [usize], seed: u64, epoch: u64) {
    fisher_yates(order, seed_for(seed, epoch.wrapping_add(1)));
}

fn fisher_yates(order: &mut [usize], mut next: impl FnMut() -> u32) {
    for i in (1..order.len()).rev() {
        order.swap(i, below(&mut next, i + 1));
    }
}

/// Returns a number below `range`. The high half of the product maps 64 bits to 0..range without a visible bias.
fn below(mut next: impl FnMut() -> u32, range: usize) -> usize {
    let draw = (u128::from(next()) << 32) | u128::from(next());
    ((draw * range as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_epochs_and_seeds_have_numbers_of_their_own() {
        let draw = |seed, epoch, index| {
            let mut random = Random::of_sample(seed, epoch, index);
            (0..6).map(|_| random.next_u32()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        for other in [draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4), draw(1, 3, 2)] {
            assert_ne!(draw(1, 2, 3), other);
        }
        let mut random = Random::of_sample(0, 0, 0);
        assert_eq!(random.below(0), 0);
        let heads = (0..1000).filter(|_| random.chance(0.25)).count();
        assert!((200..300).contains(&heads), "{heads}");
    }
}
