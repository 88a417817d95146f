// The gradient of a tensor that was padded along one dimension with its own elements (see pad.wgsl),
// [outer, padded, inner] → [outer, size, inner]:
//   dx[a, i, b] ← Σ of g[a, o, b] over all o that repeat element i
// One invocation: one element of dx.

override OP: u32 = 0u; // as in pad.wgsl

struct Params {
    count: u32, // elements of dx
    offset: u32,
    padded: u32,
    before: u32,
    size: u32,
    inner: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> g: array<f32>;
@group(0) @binding(2) var<storage, read_write> dx: array<f32>;

@compute @workgroup_size(WG)
fn pad_grad(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = (i / p.inner) % p.size;
    let column = p.offset + i / (p.inner * p.size) * p.padded * p.inner + i % p.inner;
    let after = p.before + p.size; // where the second margin starts
    var total = g[column + (p.before + at) * p.inner];
    if OP == 1u {
        if at > 0u && at <= p.before {
            total += g[column + (p.before - at) * p.inner];
        }
        let mirrored = p.before + 2u * (p.size - 1u) - at;
        if mirrored >= after && mirrored < p.padded {
            total += g[column + mirrored * p.inner];
        }
    } else if OP == 2u {
        // If the dimension has one element, both margins are copies of it.
        for (var o = 0u; o < p.before && at == 0u; o++) {
            total += g[column + o * p.inner];
        }
        for (var o = after; o < p.padded && at == p.size - 1u; o++) {
            total += g[column + o * p.inner];
        }
    } else if OP == 3u {
        if at + p.before >= p.size {
            total += g[column + (at + p.before - p.size) * p.inner];
        }
        if after + at < p.padded {
            total += g[column + (after + at) * p.inner];
        }
    }
    dx[i] = total;
}
