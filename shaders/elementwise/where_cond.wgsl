// out[i] ← condition ≠ 0 ? a : b, after strided.wgsl: a, b and the condition are its operands. Values are copied as
// words, so a NaN of the side that is not chosen has no effect. `dense`: all inputs have the output's layout. One
// invocation: one element of the dense output.

@group(0) @binding(1) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read> b: array<u32>;
@group(0) @binding(3) var<storage, read> condition: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<u32>;

fn chosen(at: vec3<u32>) -> u32 {
    return select(b[at.y], a[at.x], condition[at.z] != 0u);
}

@compute @workgroup_size(WG)
fn dense(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = chosen(p.offsets.xyz + i);
    }
}

@compute @workgroup_size(WG)
fn strided(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = chosen(places(i));
    }
}
