// Precedes the kernels of a matrix [n, k] of integers of 4 or 8 bits (after halves.wgsl). A row is p.blocks blocks of p.block words, of
// which the last one may reach past k. An element is scale · (integer − zero), with a scale and a zero for each block. The first integer
// of a word is in its lowest bits.

struct Params {
    m: u32,
    n: u32,
    k: u32,
    blocks: u32,
    block: u32,
    x_offset: u32,
    word_offset: u32,
    scale_offset: u32,
    zero_offset: u32,
    zero_row: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> words: array<u32>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
@group(0) @binding(3) var<storage, read> zeros: array<u32>;

/// 4 or 8.
override BITS: u32 = 4u;
/// What the zeros are: the middle of the integers, which are not read; integers as those of the matrix, each row from a whole byte, with
/// p.zero_row bytes; or floats.
override ZEROS: u32 = 0u;
const INTEGERS = 1u;
const FLOATS = 2u;
override SCALE_HALVES: u32 = 0u;
override ZERO_HALVES: u32 = 0u;

/// Returns the largest integer, whose bits are those that an integer has.
fn largest() -> u32 {
    return (1u << BITS) - 1u;
}

fn word_at(row: u32, at: u32) -> u32 {
    return words[p.word_offset + row * p.blocks * p.block + at];
}

fn scale_of(row: u32, block: u32) -> f32 {
    let i = p.scale_offset + row * p.blocks + block;
    return float_of(scales[word_of(i, SCALE_HALVES)], i, SCALE_HALVES);
}

fn zero_of(row: u32, block: u32) -> f32 {
    if ZEROS == INTEGERS {
        let bit = block * BITS;
        let byte = p.zero_offset + row * p.zero_row + bit / 8u;
        return f32((zeros[byte / 4u] >> (byte % 4u * 8u + bit % 8u)) & largest());
    }
    if ZEROS == FLOATS {
        let i = p.zero_offset + row * p.blocks + block;
        return float_of(zeros[word_of(i, ZERO_HALVES)], i, ZERO_HALVES);
    }
    return f32(1u << (BITS - 1u));
}
