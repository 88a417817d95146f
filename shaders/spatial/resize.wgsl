// Resampling [A, L, B] → [A, O, B] along one dimension, and its gradient.
//   forward:  out[a, o, b] ← (1 − t)·x[a, i, b] + t·x[a, j, b], i + t being o's source position; j is i + 1 within L
//   backward: out[a, i, b] ← Σ over all o of x[a, o, b] · weight of i in o; x is the gradient of the result
// Positions are fractions of integers, so that every adapter finds the same pixels. One invocation: one element.

struct Params {
    count: u32, // elements of out
    len: u32,   // L
    size: u32,  // O
    inner: u32, // B
    offset: u32,
}

override OP: u32 = 0u; // 0 nearest, 1 nearest to the pixel's centre, 2 linear, 3 linear between the corners' centres

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

struct Source {
    first: u32,
    second: u32,
    weight: f32, // of the second
}

/// Returns the source position of output `o` as a fraction: numerator and denominator.
fn position(o: u32) -> vec2<u32> {
    if OP == 0u {
        return vec2(o * p.len, p.size);
    }
    let centre = (2u * o + 1u) * p.len;
    if OP == 1u {
        return vec2(centre, 2u * p.size);
    }
    if OP == 2u {
        return vec2(max(centre, p.size) - p.size, 2u * p.size);
    }
    return vec2(o * (p.len - 1u), max(p.size, 2u) - 1u);
}

fn source(o: u32) -> Source {
    let at = position(o);
    let first = at.x / at.y;
    if OP < 2u {
        return Source(first, first, 0.0);
    }
    return Source(first, min(first + 1u, p.len - 1u), f32(at.x % at.y) / f32(at.y));
}

fn quotient_up(a: u32, b: u32) -> u32 {
    return a / b + u32(a % b > 0u);
}

/// Returns the first output whose source position is at least `k`.
fn reaching(k: u32) -> u32 {
    if k == 0u {
        return 0u;
    }
    var o = p.size;
    if OP == 0u {
        o = quotient_up(k * p.size, p.len);
    } else if OP == 1u {
        o = quotient_up(max(2u * k * p.size, p.len) - p.len, 2u * p.len);
    } else if OP == 2u {
        o = quotient_up(max((2u * k + 1u) * p.size, p.len) - p.len, 2u * p.len);
    } else if p.len > 1u && p.size > 1u {
        o = quotient_up(k * (p.size - 1u), p.len - 1u);
    }
    return min(o, p.size);
}

@compute @workgroup_size(WG)
fn forward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let near = source((i / p.inner) % p.size);
    let column = p.offset + i / (p.inner * p.size) * p.len * p.inner + i % p.inner;
    let first = x[column + near.first * p.inner];
    if OP < 2u {
        out[i] = first;
    } else {
        out[i] = (1.0 - near.weight) * first + near.weight * x[column + near.second * p.inner];
    }
}

@compute @workgroup_size(WG)
fn backward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = (i / p.inner) % p.len;
    let column = p.offset + i / (p.inner * p.len) * p.size * p.inner + i % p.inner;
    // If linear, the outputs between the previous pixel and this one count too.
    let start = reaching(select(at, max(at, 1u) - 1u, OP >= 2u));
    let end = reaching(at + 1u);
    var total = 0.0;
    for (var o = start; o < end; o++) {
        let near = source(o);
        let weight = select(0.0, 1.0 - near.weight, near.first == at) + select(0.0, near.weight, near.second == at);
        total += weight * x[column + o * p.inner];
    }
    out[i] = total;
}
