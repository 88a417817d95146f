// What pack.wgsl and pack_halves.wgsl have in common: an operand src(z, k, j), with any strides, that is put into panels of j.
// After index_map.wgsl.

struct Params {
    count: u32,  // elements of dst
    depth: u32,  // steps of k of a panel
    panels: u32, // panels of one z
    width: u32,  // valid j
    steps: u32,  // valid k, of as many as the depth in pack.wgsl
    offset: u32,
    z_first: u32,
    z: vec4<u32>, // maps
    k: vec4<u32>,
    j: vec4<u32>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<u32>;

/// Elements of dst that an invocation writes.
const RUN = 8u;
