// out[.., i, j] ← x[.., i, j] on one side of the diagonal j = i + k (and on it), else 0; dense matrices of `columns`.
// Elements are words of any type. One invocation: one element.

struct Params {
    count: u32,
    rows: u32,
    columns: u32,
    offset: u32,
    diagonal: i32, // k
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

const WG = 64u;

override UPPER: bool = false;

@compute @workgroup_size(WG)
fn triangle(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i >= p.count {
        return;
    }
    let above = i32(i % p.columns) - i32((i / p.columns) % p.rows) - p.diagonal;
    out[i] = select(0u, x[p.offset + i], select(above <= 0, above >= 0, UPPER));
}
