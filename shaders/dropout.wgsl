// out[i] ← x[i] · scale if 24 bits of word skip + i of the Philox stream are at least the threshold, otherwise 0.
// One invocation: one block of four words, which gives four elements.

struct Params {
    seed: vec2<u32>,
    first: vec2<u32>, // the block of element 0
    count: u32,
    skip: u32, // words of the first block before the word of element 0
    threshold: u32,
    offset: u32, // of x
    scale: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn dropout(id: Id) {
    let block = linear_index(id);
    if block >= (p.skip + p.count + 3u) / 4u {
        return;
    }
    var words = philox(block);
    for (var j = select(0u, p.skip, block == 0u); j < min(4u, p.skip + p.count - 4u * block); j++) {
        let i = 4u * block + j - p.skip;
        out[i] = select(0.0, x[p.offset + i] * p.scale, (words[j] >> 8u) >= p.threshold);
    }
}
