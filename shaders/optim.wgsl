// SGD with momentum and weight decay, in place (Sutskever et al., 2013, in PyTorch's form):
//   d ← g + λ·w        v ← μ·v + d        w ← w − η·v        (without momentum: w ← w − η·d)
// w, g and v are one dense range each: all parameters of a device in one dispatch. One invocation: one element.

struct Params {
    count: u32,
    w_offset: u32,
    g_offset: u32,
    v_offset: u32,
    rate: f32,     // η
    momentum: f32, // μ
    decay: f32,    // λ
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> g: array<f32>;
@group(0) @binding(2) var<storage, read_write> w: array<f32>;
@group(0) @binding(3) var<storage, read_write> v: array<f32>;

const WG = 64u;

@compute @workgroup_size(WG)
fn sgd(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i < p.count {
        let old = w[p.w_offset + i];
        w[p.w_offset + i] = old - p.rate * (g[p.g_offset + i] + p.decay * old);
    }
}

@compute @workgroup_size(WG)
fn sgd_momentum(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i < p.count {
        let old = w[p.w_offset + i];
        let velocity = p.momentum * v[p.v_offset + i] + (g[p.g_offset + i] + p.decay * old);
        v[p.v_offset + i] = velocity;
        w[p.w_offset + i] = old - p.rate * velocity;
    }
}
