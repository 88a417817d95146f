// Elements around a tensor, and the gradient of what they repeat. Elements are 32-bit words of any type.
//   pad:  out[i..] ← x[from(i − before)..] along every dimension at once, or the value where that is outside of x
//   fold: dx[a, i, b] ← Σ over all o of one padded dimension that repeat element i of g[a, o, b]
// One invocation: one element of out. Shapes and strides are in eight slots, outermost first.

struct Params {
    count: u32,
    rank: u32,
    offset: u32,
    value: u32, // the bits of what stands outside
    shape: array<vec4<u32>, 2>, // of out
    size: array<vec4<u32>, 2>,  // of x
    before: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>, // of x
}

override OP: u32 = 0u; // 0 a value, 1 reflect, 2 replicate, 3 circular

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

const WG = 64u;
const NONE = 0xffffffffu;

struct Id {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

fn linear_index(id: Id) -> u32 {
    return (id.group.y * id.groups.x + id.group.x) * WG + id.local;
}

/// The element of `size` that stands at `at` of the padded dimension; NONE where the value does.
fn repeated(at: u32, before: u32, size: u32) -> u32 {
    if at >= before && at - before < size {
        return at - before;
    }
    if OP == 1u {
        return select(2u * (size - 1u) - (at - before), before - at, at < before);
    }
    if OP == 2u {
        return select(size - 1u, 0u, at < before);
    }
    if OP == 3u {
        return select(at - before - size, at + size - before, at < before);
    }
    return NONE;
}

@compute @workgroup_size(WG)
fn pad(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    var rest = i;
    var source = p.offset;
    var inside = true;
    for (var d = p.rank; d > 0u; d--) {
        let slot = (d - 1u) / 4u;
        let lane = (d - 1u) % 4u;
        let at = repeated(rest % p.shape[slot][lane], p.before[slot][lane], p.size[slot][lane]);
        rest /= p.shape[slot][lane];
        inside = inside && at != NONE;
        source += at * p.strides[slot][lane];
    }
    if inside {
        out[i] = x[source];
    } else {
        out[i] = p.value;
    }
}

struct FoldParams {
    count: u32, // elements of dx
    offset: u32,
    padded: u32,
    before: u32,
    size: u32,
    inner: u32,
}

@group(0) @binding(0) var<uniform> f: FoldParams;
@group(0) @binding(1) var<storage, read> g: array<f32>;
@group(0) @binding(2) var<storage, read_write> dx: array<f32>;

@compute @workgroup_size(WG)
fn fold(id: Id) {
    let i = linear_index(id);
    if i >= f.count {
        return;
    }
    let at = (i / f.inner) % f.size;
    let column = f.offset + i / (f.inner * f.size) * f.padded * f.inner + i % f.inner;
    let after = f.before + f.size; // where the second margin starts
    var total = g[column + (f.before + at) * f.inner];
    if OP == 1u {
        if at > 0u && at <= f.before {
            total += g[column + (f.before - at) * f.inner];
        }
        let mirrored = f.before + 2u * (f.size - 1u) - at;
        if mirrored >= after && mirrored < f.padded {
            total += g[column + mirrored * f.inner];
        }
    } else if OP == 2u {
        // Of a dimension of one element, both margins.
        for (var o = 0u; o < f.before && at == 0u; o++) {
            total += g[column + o * f.inner];
        }
        for (var o = after; o < f.padded && at == f.size - 1u; o++) {
            total += g[column + o * f.inner];
        }
    } else if OP == 3u {
        if at + f.before >= f.size {
            total += g[column + (at + f.before - f.size) * f.inner];
        }
        if after + at < f.padded {
            total += g[column + (after + at) * f.inner];
        }
    }
    dx[i] = total;
}
