// out[i] ← x[i] as another type, by WGSL's value conversion. The header names the types S (of x) and T (of out).
// One invocation: one element.

struct Params {
    count: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<S>;
@group(0) @binding(2) var<storage, read_write> out: array<T>;

const WG = 64u;

@compute @workgroup_size(WG)
fn convert(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i < p.count {
        out[i] = T(x[p.offset + i]);
    }
}
