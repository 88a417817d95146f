// out[o(i)] ← x[s(i)] for every element i of one shape, with strides of its own on either side; or one value everywhere.
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

const WG = 64u;

fn linear_index(wid: vec3<u32>, nwg: vec3<u32>, lid: u32) -> u32 {
    return (wid.y * nwg.x + wid.x) * WG + lid;
}

@compute @workgroup_size(WG)
fn strided(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = linear_index(wid, nwg, lid);
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

struct FillParams {
    count: u32,
    offset: u32,
    value: u32,
}

@group(0) @binding(0) var<uniform> f: FillParams;
@group(0) @binding(1) var<storage, read_write> filled: array<u32>;

@compute @workgroup_size(WG)
fn fill(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = linear_index(wid, nwg, lid);
    if i < f.count {
        filled[f.offset + i] = f.value;
    }
}
