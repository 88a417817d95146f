// Elements made of words of the Philox stream, from word `skip` on; all arithmetic of `random` is exact.
//   random:  out[i] ← the word of element i, as OP says
//   dropout: y[i] ← x[i] · scale if 24 bits of the word are at least the threshold, otherwise 0
// One invocation: one block of four words, which gives four elements.

struct Params {
    seed: vec2<u32>,
    first: vec2<u32>, // the block of element 0
    count: u32,
    skip: u32,      // words of the first block before the word of element 0
    threshold: u32, // BERNOULLI, dropout: 24 random bits are below this with the requested probability
    low: i32,       // INTEGER: the lowest number
    range: u32,     // INTEGER: the count of possible numbers
    offset: u32,    // dropout: of x
    scale: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

override OP: u32 = 0u;
const UNIFORM = 0u;
const BERNOULLI = 1u;
const INTEGER = 2u;

/// Returns the range of a block's words that are words of elements.
fn used(block: u32) -> vec2<u32> {
    return vec2(select(0u, p.skip, block == 0u), min(4u, p.skip + p.count - 4u * block));
}

@compute @workgroup_size(WG)
fn random(id: Id) {
    let block = linear_index(id);
    if 4u * block >= p.skip + p.count {
        return;
    }
    var words = philox(block);
    let range = used(block);
    for (var j = range.x; j < range.y; j++) {
        let word = words[j];
        var value = 0u;
        switch OP {
            case UNIFORM: { value = bitcast<u32>(f32(word >> 8u) * (1.0 / 16777216.0)); }
            case BERNOULLI: { value = select(0u, bitcast<u32>(1.0), (word >> 8u) < p.threshold); }
            case INTEGER: { value = bitcast<u32>(p.low) + mul_high(word, p.range); }
            default: {}
        }
        out[4u * block + j - p.skip] = value;
    }
}

@compute @workgroup_size(WG)
fn dropout(id: Id) {
    let block = linear_index(id);
    if 4u * block >= p.skip + p.count {
        return;
    }
    var words = philox(block);
    let range = used(block);
    for (var j = range.x; j < range.y; j++) {
        let i = 4u * block + j - p.skip;
        y[i] = select(0.0, x[p.offset + i] * p.scale, (words[j] >> 8u) >= p.threshold);
    }
}
