// Adds elements around a tensor: out[i..] ← x[from(i − before)..] along every dimension at once, or the value outside
// of x. Elements are 32-bit words of any type. One invocation: one element of out.

struct Params {
    count: u32,
    rank: u32,
    offset: u32,
    value: u32, // the bits of the padding value
    // For each dimension, outermost first: the stride of x, the margin before x, the size of x, the size of out.
    dims: array<vec4<u32>, 8>,
}

override OP: u32 = 0u; // 0 a value, 1 reflect, 2 replicate, 3 circular

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

const NONE = 0xffffffffu;

/// Returns which element of `size` is at place `at` of the padded dimension; NONE if it is the value.
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
        let dim = p.dims[d - 1u];
        let at = repeated(rest % dim.w, dim.y, dim.z);
        rest /= dim.w;
        inside = inside && at != NONE;
        source += at * dim.x;
    }
    if inside {
        out[i] = x[source];
    } else {
        out[i] = p.value;
    }
}
