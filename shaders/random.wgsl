// Philox 4x32-10 (Salmon et al., SC 2011), bit for bit as src/philox.rs has it.
//   generate: out[i] ← word offset + i of the stream as OP says, all in exact arithmetic
//   dropout:  out[i] ← x[i] · scale where word b + i is not below p's share of all words, else 0
// One invocation: one block of four words, and so four elements.

struct Params {
    count: u32,
    seed: vec2<u32>,  // low, high
    first: vec2<u32>, // the block of element 0: low, high
    a: u32,           // BERNOULLI, dropout: the threshold for 24 bits; INTEGER: the lowest number
    b: u32,           // INTEGER: how many numbers; dropout: words of block 0 before that of element 0
    offset: u32,      // of x; generate: words of block 0 before that of element 0
    scale: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> bits: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const WG = 64u;

override OP: u32;
const UNIFORM = 0u;
const BERNOULLI = 1u;
const INTEGER = 2u;

// The upper half of a product, by halves: WGSL has no 64-bit integers.
fn upper(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
}

fn philox(block: u32) -> vec4<u32> {
    let low = p.first.x + block;
    var c = vec4(low, p.first.y + select(0u, 1u, low < block), 0u, 0u);
    var key = p.seed;
    for (var round = 0u; round < 10u; round++) {
        let hi = vec2(upper(c.x, 0xD2511F53u), upper(c.z, 0xCD9E8D57u));
        c = vec4(hi.y ^ c.y ^ key.x, c.z * 0xCD9E8D57u, hi.x ^ c.w ^ key.y, c.x * 0xD2511F53u);
        key += vec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return c;
}

@compute @workgroup_size(WG)
fn generate(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let block = (wid.y * nwg.x + wid.x) * WG + lid;
    if block >= (p.offset + p.count + 3u) / 4u {
        return;
    }
    var words = philox(block);
    for (var j = select(0u, p.offset, block == 0u); j < min(4u, p.offset + p.count - 4u * block); j++) {
        let word = words[j];
        var value = 0u;
        switch OP {
            case UNIFORM: { value = bitcast<u32>(f32(word >> 8u) * (1.0 / 16777216.0)); }
            case BERNOULLI: { value = select(0u, bitcast<u32>(1.0), (word >> 8u) < p.a); }
            case INTEGER: { value = p.a + upper(word, p.b); }
            default: {}
        }
        bits[4u * block + j - p.offset] = value;
    }
}

@compute @workgroup_size(WG)
fn dropout(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let block = (wid.y * nwg.x + wid.x) * WG + lid;
    if block >= (p.b + p.count + 3u) / 4u {
        return;
    }
    var words = philox(block);
    for (var j = select(0u, p.b, block == 0u); j < min(4u, p.b + p.count - 4u * block); j++) {
        let i = 4u * block + j - p.b;
        out[i] = select(0.0, x[p.offset + i] * p.scale, (words[j] >> 8u) >= p.a);
    }
}
