// out[i] ← condition ≠ 0 ? a : b; each input has its own strides (0 where it is broadcast). Values are copied as words,
// so a NaN of the side that is not chosen has no effect. `dense`: all inputs have the output's layout. One invocation:
// one element of the dense output.

struct Params {
    count: u32,
    rank: u32,
    a_offset: u32,
    b_offset: u32,
    condition_offset: u32,
    shape: array<vec4<u32>, 2>,
    a_strides: array<vec4<u32>, 2>,
    b_strides: array<vec4<u32>, 2>,
    condition_strides: array<vec4<u32>, 2>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read> b: array<u32>;
@group(0) @binding(3) var<storage, read> condition: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(WG)
fn dense(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = select(b[p.b_offset + i], a[p.a_offset + i], condition[p.condition_offset + i] != 0u);
    }
}

@compute @workgroup_size(WG)
fn strided(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    var rest = i;
    var at_a = p.a_offset;
    var at_b = p.b_offset;
    var at_condition = p.condition_offset;
    for (var d = p.rank; d > 0u; d--) {
        let slot = d - 1u;
        let size = p.shape[slot / 4u][slot % 4u];
        let at = rest % size;
        rest /= size;
        at_a += at * p.a_strides[slot / 4u][slot % 4u];
        at_b += at * p.b_strides[slot / 4u][slot % 4u];
        at_condition += at * p.condition_strides[slot / 4u][slot % 4u];
    }
    out[i] = select(b[at_b], a[at_a], condition[at_condition] != 0u);
}
