// out[a, k, b] ← x[a, index[a, k, b], b], or 0 if there is no such element; x is [A, R, B], out is [A, K, B]. Both are
// dense. With SHARED, index is [K]. With PART, x has the rows from `first` on, and other elements of out stay as they are. Elements are words of any type. One invocation: one element of out.

struct Params {
    count: u32, // elements of out
    inner: u32, // B
    size: u32,  // R
    picks: u32, // K
    x_offset: u32,
    index_offset: u32,
    first: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> index: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

override SHARED: bool = false;
override PART: bool = false;

@compute @workgroup_size(WG)
fn gather(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let b = i % p.inner;
    let k = (i / p.inner) % p.picks;
    let a = i / (p.inner * p.picks);
    let at = index[p.index_offset + select(i, k, SHARED)] - p.first; // large for rows before the first
    if at < p.size {
        out[i] = x[p.x_offset + (a * p.size + at) * p.inner + b];
    } else if !PART {
        out[i] = 0u;
    }
}
