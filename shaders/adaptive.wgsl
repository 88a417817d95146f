// Pooling [A, L, B] → [A, O, B] over O parts of dimension L, and its gradients. Part o is ⌊o·L / O⌋ .. ⌈(o + 1)·L / O⌉.
//   avg_forward:  out[a, o, b] ← mean of x over the part;  max_forward: its maximum;  max_index: its position
//   avg_backward: out[a, i, b] ← Σ of x / length over all parts that hold i; x is the gradient of the result
//   max_backward: dx[a, i, b] ← Σ of g over all parts whose index is i
// One invocation: one element of out.

struct Params {
    count: u32, // elements of out
    len: u32,   // L
    parts: u32, // O
    inner: u32, // B
    x_offset: u32,
    g_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read_write> found: array<u32>;
@group(0) @binding(1) var<storage, read> taken: array<u32>;
@group(0) @binding(2) var<storage, read> g: array<f32>;
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
    var most = x[p.x_offset + at.y + best * p.inner];
    for (var k = range.x; k < range.y; k++) {
        let v = x[p.x_offset + at.y + k * p.inner];
        if v > most || is_nan(v) {
            most = v;
            best = k;
        }
    }
    return best;
}

@compute @workgroup_size(WG)
fn max_forward(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = x[p.x_offset + place(i, p.parts, p.len).y + largest(i) * p.inner];
    }
}

@compute @workgroup_size(WG)
fn max_index(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        found[i] = largest(i);
    }
}

@compute @workgroup_size(WG)
fn avg_forward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = place(i, p.parts, p.len);
    let range = part(at.x, p.len, p.parts);
    var total = 0.0;
    for (var k = range.x; k < range.y; k++) {
        total += x[p.x_offset + at.y + k * p.inner];
    }
    out[i] = total / f32(range.y - range.x);
}

@compute @workgroup_size(WG)
fn avg_backward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = place(i, p.len, p.parts);
    let over = part(at.x, p.parts, p.len);
    var total = 0.0;
    for (var o = over.x; o < over.y; o++) {
        let range = part(o, p.len, p.parts);
        total += x[p.x_offset + at.y + o * p.inner] / f32(range.y - range.x);
    }
    out[i] = total;
}

@compute @workgroup_size(WG)
fn max_backward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = place(i, p.len, p.parts);
    let over = part(at.x, p.parts, p.len);
    var total = 0.0;
    for (var o = over.x; o < over.y; o++) {
        if taken[at.y + o * p.inner] == at.x {
            total += g[p.g_offset + at.y + o * p.inner];
        }
    }
    dx[i] = total;
}
