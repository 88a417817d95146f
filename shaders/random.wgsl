// out[i] ← word skip + i of the Philox stream, as OP says. All arithmetic is exact.
// One invocation: one block of four words, which gives four elements.

struct Params {
    seed: vec2<u32>,
    first: vec2<u32>, // the block of element 0
    count: u32,
    skip: u32,      // words of the first block before the word of element 0
    threshold: u32, // BERNOULLI: 24 random bits are below this with the requested probability
    low: i32,       // INTEGER: the lowest number
    range: u32,     // INTEGER: the count of possible numbers
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

override OP: u32;
const UNIFORM = 0u;
const BERNOULLI = 1u;
const INTEGER = 2u;

@compute @workgroup_size(WG)
fn random(id: Id) {
    let block = linear_index(id);
    if block >= (p.skip + p.count + 3u) / 4u {
        return;
    }
    var words = philox(block);
    for (var j = select(0u, p.skip, block == 0u); j < min(4u, p.skip + p.count - 4u * block); j++) {
        let word = words[j];
        var value = 0u;
        switch OP {
            case UNIFORM: { value = bitcast<u32>(f32(word >> 8u) * (1.0 / 16777216.0)); }
            case BERNOULLI: { value = select(0u, bitcast<u32>(1.0), (word >> 8u) < p.threshold); }
            case INTEGER: { value = bitcast<u32>(p.low) + upper(word, p.range); }
            default: {}
        }
        out[4u * block + j - p.skip] = value;
    }
}
