// Pooling [A, L, B] → [A, O, B] over O parts of dimension L, and its gradients. Part o is ⌊o·L / O⌋ .. ⌈(o + 1)·L / O⌉.
//   forward:  out[a, o, b] ← mean of x over the part; MAX: its maximum
//   index:    the position of the maximum
//   backward: dx[a, i, b] ← Σ of x / length over all parts that hold i; MAX: Σ of x over all parts whose index is i. x is
//             the gradient of the result.
// One invocation: one element of out.

struct Params {
    count: u32, // elements of out
    len: u32,   // L
    parts: u32, // O
    inner: u32, // B
    offset: u32, // of x
}

override MAX: bool = false;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read_write> found: array<u32>;
@group(0) @binding(2) var<storage, read> taken: array<u32>; // the result of `index`; not read without MAX
@group(0) @binding(3) var<storage, read_write> dx: array<f32>;

/// Returns the start and the end of the o-th of `parts` parts of `len` elements. If exchanged: an element's parts.
fn part(o: u32, len: u32, parts: u32) -> vec2<u32> {
    return vec2(o * len / parts, ((o + 1u) * len + parts - 1u) / parts);
}

/// Returns the position of element `i` of out in a dimension of `size`, and its column's start in one of `other`.
fn place(i: u32, size: u32, other: u32) -> vec2<u32> {
    let a = i / (p.inner * size);
    return vec2((i / p.inner) % size, a * other * p.inner + i % p.inner);
}

fn largest(i: u32) -> u32 {
    let at = place(i, p.parts, p.len);
    let range = part(at.x, p.len, p.parts);
    var best = range.x;
    var most = x[p.offset + at.y + best * p.inner];
    for (var k = range.x; k < range.y; k++) {
        let v = x[p.offset + at.y + k * p.inner];
        if v > most || is_nan(v) {
            most = v;
            best = k;
        }
    }
    return best;
}

@compute @workgroup_size(WG)
fn forward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = place(i, p.parts, p.len);
    if MAX {
        out[i] = x[p.offset + at.y + largest(i) * p.inner];
        return;
    }
    let range = part(at.x, p.len, p.parts);
    var total = 0.0;
    for (var k = range.x; k < range.y; k++) {
        total += x[p.offset + at.y + k * p.inner];
    }
    out[i] = total / f32(range.y - range.x);
}

@compute @workgroup_size(WG)
fn index(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        found[i] = largest(i);
    }
}

@compute @workgroup_size(WG)
fn backward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = place(i, p.len, p.parts);
    let over = part(at.x, p.parts, p.len);
    var total = 0.0;
    for (var o = over.x; o < over.y; o++) {
        let source = at.y + o * p.inner;
        if !MAX {
            let range = part(o, p.len, p.parts);
            total += x[p.offset + source] / f32(range.y - range.x);
        } else if taken[source] == at.x {
            total += x[p.offset + source];
        }
    }
    dx[i] = total;
}
