// Running sums, products or extremes (join.wgsl) along a dimension, in chunks: x and out are [A, R, B] dense.
// scan:  scans each chunk of `length` of R alone; totals[a, c, b] ← the result of chunk c.
// shift: joins each element with the total of all chunks before its own: the result of `scan` on the totals.
// The header sets the type T. One invocation: one chunk in `scan`, one element in `shift`.

struct Params {
    count: u32, // chunks, or elements
    reduced: u32, // R
    inner: u32,   // B
    chunks: u32,  // C
    length: u32,
    offset: u32, // of x
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read_write> out: array<T>;
@group(0) @binding(3) var<storage, read_write> totals: array<T>;

@compute @workgroup_size(WG)
fn scan(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let b = i % p.inner;
    let first = ((i / p.inner) % p.chunks) * p.length;
    let row = (i / (p.inner * p.chunks)) * p.reduced * p.inner + b;
    var total = x[p.offset + row + first * p.inner];
    out[row + first * p.inner] = total;
    for (var r = first + 1u; r < min(first + p.length, p.reduced); r++) {
        total = join(total, x[p.offset + row + r * p.inner]);
        out[row + r * p.inner] = total;
    }
    totals[i] = total;
}

@group(0) @binding(1) var<storage, read> before: array<T>;

@compute @workgroup_size(WG)
fn shift(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let b = i % p.inner;
    let c = ((i / p.inner) % p.reduced) / p.length;
    let a = i / (p.inner * p.reduced);
    if c > 0u {
        out[i] = join(before[(a * p.chunks + c - 1u) * p.inner + b], out[i]);
    }
}
