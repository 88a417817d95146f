// out[i] ← f(a[s(i)], b[t(i)]), with strides of its own for each input (0 where it is broadcast). The header (a row of the
// table in ops/pairs.rs) has f and the types T of the operands and R of the result. One invocation: one element of the dense
// output. `dense`: both inputs have the output's layout. `strided`: shape and strides in eight slots, outermost first.
// `right`, `left`: the second or first operand is one number, whose bits are in place of its offset; a is dense.

struct Params {
    count: u32,
    rank: u32,
    a_offset: u32,
    b_offset: u32,
    shape: array<vec4<u32>, 2>,
    a_strides: array<vec4<u32>, 2>,
    b_strides: array<vec4<u32>, 2>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<T>;
@group(0) @binding(2) var<storage, read> b: array<T>;
@group(0) @binding(3) var<storage, read_write> out: array<R>;

const WG = 64u;

@compute @workgroup_size(WG)
fn dense(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i < p.count {
        out[i] = f(a[p.a_offset + i], b[p.b_offset + i]);
    }
}

@compute @workgroup_size(WG)
fn right(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i < p.count {
        out[i] = f(a[p.a_offset + i], bitcast<T>(p.b_offset));
    }
}

@compute @workgroup_size(WG)
fn left(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i < p.count {
        out[i] = f(bitcast<T>(p.a_offset), b[p.b_offset + i]);
    }
}

@compute @workgroup_size(WG)
fn strided(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i >= p.count {
        return;
    }
    var rest = i;
    var at_a = p.a_offset;
    var at_b = p.b_offset;
    for (var d = p.rank; d > 0u; d--) {
        let slot = d - 1u;
        let size = p.shape[slot / 4u][slot % 4u];
        let at = rest % size;
        rest /= size;
        at_a += at * p.a_strides[slot / 4u][slot % 4u];
        at_b += at * p.b_strides[slot / 4u][slot % 4u];
    }
    out[i] = f(a[at_a], b[at_b]);
}
