// Precedes the shaders that read floats as they are stored: an f32 in each word, or two halves. A constant …_HALVES of the
// shader says which for each operand: 0, F16 or BF16.

const F16 = 1u;
const BF16 = 2u;

/// Returns the bits of the f32 that is equal to a half. unpack2x16float may flush subnormals to 0.
fn f16_to_f32(h: u32) -> u32 {
    let size = (h & 0x7fffu) << 13u;
    let special = (size + 0x70000000u) | select(0u, 0x400000u, size > 0x0f800000u);
    // A subnormal half is normal as f32: 2^-14 with its fraction, less 2^-14, which is exact.
    let small = bitcast<u32>(bitcast<f32>(size | 0x38800000u) - 6.103515625e-5);
    let normal = select(size + 0x38000000u, special, size >= 0x0f800000u);
    return ((h & 0x8000u) << 16u) | select(normal, small, size < 0x00800000u);
}

/// Returns the word that has element i.
fn word_of(i: u32, halves: u32) -> u32 {
    return select(i / 2u, i, halves == 0u);
}

/// Returns element i, from its word.
fn float_of(word: u32, i: u32, halves: u32) -> f32 {
    if halves == 0u {
        return bitcast<f32>(word);
    }
    let bits = (word >> (i % 2u * 16u)) & 0xffffu;
    if halves == BF16 {
        return bitcast<f32>(bits << 16u);
    }
    return bitcast<f32>(f16_to_f32(bits));
}
