// out[a, c, b] ← the first r in chunk c at which x[a, r, b] is largest (SMALLEST: smallest); x is [A, R, B] dense,
// out is [A, C, B] of u32. Chunk c is r = c·L … (c + 1)·L − 1. NaN counts as the extreme. The header sets the type T.
// The first round reads all elements of x; with MERGE, only those that the round before has chosen, [A, K, B] of r.
// One invocation: one element of out.

struct Params {
    offset: u32,
    outer: u32,      // A
    reduced: u32,    // R
    inner: u32,      // B
    chunks: u32,     // C
    length: u32,     // L
    candidates: u32, // K: R in the first round
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read> found: array<u32>; // the chosen r; not read without MERGE
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

override SMALLEST: bool;
override MERGE: bool;

fn beats(v: T, best: T) -> bool {
    return select(v > best, v < best, SMALLEST) || (is_nan(f32(v)) && !is_nan(f32(best)));
}

/// Returns the r of candidate `k`.
fn candidate(list: u32, k: u32) -> u32 {
    if MERGE {
        return found[list + k * p.inner];
    }
    return k;
}

@compute @workgroup_size(WG)
fn argmax(id: Id) {
    let i = linear_index(id);
    if i >= p.outer * p.chunks * p.inner {
        return;
    }
    let b = i % p.inner;
    let first = ((i / p.inner) % p.chunks) * p.length;
    let a = i / (p.inner * p.chunks);
    let row = p.offset + a * p.reduced * p.inner + b;
    let list = a * p.candidates * p.inner + b;
    var at = candidate(list, first);
    var best = x[row + at * p.inner];
    for (var k = first + 1u; k < min(first + p.length, p.candidates); k++) {
        let r = candidate(list, k);
        let v = x[row + r * p.inner];
        if beats(v, best) {
            best = v;
            at = r;
        }
    }
    out[i] = at;
}
