// Joins up to seven dense operands: out[first + i] ← the element of the operand that i falls into. Elements are 32-bit words
// of any type, after fours.wgsl.
//   join:  one invocation: `run` neighbouring elements
//   fours: `run` neighbouring vectors of four; the sizes and all offsets are multiples of four, and counted in vectors

struct Params {
    count: u32,
    run: u32,
    first: u32,
    /// Of each operand: the i after its last, and what is added to i for its element (it may wrap around).
    pieces: array<vec4<u32>, 8>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read> b: array<u32>;
@group(0) @binding(3) var<storage, read> c: array<u32>;
@group(0) @binding(4) var<storage, read> d: array<u32>;
@group(0) @binding(5) var<storage, read> e: array<u32>;
@group(0) @binding(6) var<storage, read> f: array<u32>;
@group(0) @binding(7) var<storage, read> g: array<u32>;
@group(0) @binding(8) var<storage, read_write> out: array<u32>;
@group(0) @binding(1) var<storage, read> a4: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> b4: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> c4: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> d4: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> e4: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read> f4: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read> g4: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read_write> out4: array<vec4<u32>>;

/// Returns the first operand from `k` on that ends after `i`.
fn piece(k: u32, i: u32) -> u32 {
    var found = k;
    while found < 6u && i >= p.pieces[found].x {
        found++;
    }
    return found;
}

fn element(k: u32, i: u32) -> u32 {
    switch k {
        case 0u: { return a[i]; }
        case 1u: { return b[i]; }
        case 2u: { return c[i]; }
        case 3u: { return d[i]; }
        case 4u: { return e[i]; }
        case 5u: { return f[i]; }
        default: { return g[i]; }
    }
}

fn vector(k: u32, i: u32) -> vec4<u32> {
    switch k {
        case 0u: { return a4[i]; }
        case 1u: { return b4[i]; }
        case 2u: { return c4[i]; }
        case 3u: { return d4[i]; }
        case 4u: { return e4[i]; }
        case 5u: { return f4[i]; }
        default: { return g4[i]; }
    }
}

@compute @workgroup_size(WG)
fn join(id: Id) {
    let first = linear_index(id) * p.run;
    var k = 0u;
    for (var i = first; i < min(first + p.run, p.count); i++) {
        k = piece(k, i);
        out[p.first + i] = element(k, i + p.pieces[k].y);
    }
}

@compute @workgroup_size(WG)
fn fours(id: Id) {
    let first = linear_index(id) * p.run;
    var k = 0u;
    for (var i = first; i < min(first + p.run, p.count); i++) {
        k = piece(k, i);
        out4[p.first + i] = vector(k, i + p.pieces[k].y);
    }
}
