//! Elements of 64 bits as pairs of words.

use super::sealed::{Room, Sealed};
use super::{DType, Element};
use crate::error::Result;

/// The two words of each of these 64-bit numbers, the lower one first.
pub(crate) fn long_words(
    bits: impl ExactSizeIterator<Item = u64>,
    room: fn(usize) -> Result<Vec<u32>>,
) -> Result<Vec<u32>> {
    let mut words = room(bits.len().saturating_mul(2))?;
    words.extend(bits.flat_map(|bits| [bits as u32, (bits >> 32) as u32]));
    Ok(words)
}

/// The 64-bit numbers of pairs of words.
pub(crate) fn long_bits(words: &[u32]) -> impl ExactSizeIterator<Item = u64> + '_ {
    words.as_chunks().0.iter().map(|&[low, high]| u64::from(low) | u64::from(high) << 32)
}

impl Element for i64 {
    const DTYPE: DType = DType::I64;
}

impl Sealed for i64 {
    fn bits(self) -> u64 {
        self.cast_unsigned()
    }
    fn pack(values: &[Self], room: Room<u32>) -> Result<Vec<u32>> {
        long_words(values.iter().map(|value| value.cast_unsigned()), room)
    }
    fn unpack(words: Vec<u32>, count: usize, room: Room<Self>) -> Result<Vec<Self>> {
        let mut values = room(count)?;
        values.extend(long_bits(&words).take(count).map(u64::cast_signed));
        Ok(values)
    }
}
