// out[o(i)] ← x[s(i)] for every element i of one shape; each side has its own strides.
// Elements are 32-bit words of any type. One invocation: one element.
// Shape and strides are in eight slots, outermost first, in elements.

struct Params {
    count: u32,
    rank: u32,
    src_offset: u32,
    dst_offset: u32,
    shape: array<vec4<u32>, 2>,
    src_strides: array<vec4<u32>, 2>,
    dst_strides: array<vec4<u32>, 2>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(WG)
fn strided(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    var rest = i;
    var src = p.src_offset;
    var dst = p.dst_offset;
    for (var d = p.rank; d > 0u; d--) {
        let slot = d - 1u;
        let size = p.shape[slot / 4u][slot % 4u];
        let at = rest % size;
        rest /= size;
        src += at * p.src_strides[slot / 4u][slot % 4u];
        dst += at * p.dst_strides[slot / 4u][slot % 4u];
    }
    out[dst] = x[src];
}
