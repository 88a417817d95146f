//! Philox 4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A
//! block is a function of the seed and the block's number, so every device can compute any part of a stream, with the
//! same bits.

/// Computes one block of Philox 4x32 with ten rounds.
pub(crate) fn philox(mut counter: [u32; 4], seed: u64) -> [u32; 4] {
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// A position in the stream of blocks of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub seed: u64,
    /// The first block.
    pub first: u64,
}

impl Stream {
    /// Returns the four words of the block that is `after` blocks after the first.
    pub fn block(self, after: u64) -> [u32; 4] {
        let block = self.first.wrapping_add(after);
        philox([block as u32, (block >> 32) as u32, 0, 0], self.seed)
    }

    /// Returns the words in order, as an infinite iterator.
    pub fn words(self) -> impl Iterator<Item = u32> {
        (0..).flat_map(move |after| self.block(after))
    }
}

/// Converts the upper 24 bits of a word to a float in [0, 1).
pub(crate) fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Converts a word to a whole number below `range`: the upper half of their product. Of the 2³² words, either ⌊2³² /
/// range⌋ or one more map to each number.
pub(crate) fn below(word: u32, range: u32) -> u32 {
    ((u64::from(word) * u64::from(range)) >> 32) as u32
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
