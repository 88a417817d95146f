// forward:  out[n] ← −x[n, label[n]];               x is [N, C] log-probabilities, out is [N]
// backward: out[n, c] ← −g[n] where c = label[n], else 0;  g is [N], out is [N, C]
// All dense. A label that is no class gives NaN: an adapter cannot raise an error, but it must not read elsewhere.
// One invocation: one element of out.

struct Params {
    count: u32,
    classes: u32,
    x_offset: u32, // of x, or of g
    label_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> labels: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

const WG = 64u;
const NAN_BITS = 0x7fc00000u;

@compute @workgroup_size(WG)
fn forward(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let n = (wid.y * nwg.x + wid.x) * WG + lid;
    if n >= p.count {
        return;
    }
    let label = labels[p.label_offset + n];
    var bits = NAN_BITS;
    if label < p.classes {
        bits = bitcast<u32>(-x[p.x_offset + n * p.classes + label]);
    }
    out[n] = bitcast<f32>(bits);
}

@compute @workgroup_size(WG)
fn backward(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i >= p.count * p.classes {
        return;
    }
    let n = i / p.classes;
    let hit = labels[p.label_offset + n] == i % p.classes;
    out[i] = select(0.0, -x[p.x_offset + n], hit);
}
