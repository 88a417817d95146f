// One step of an optimiser, in place, in PyTorch's forms; g is the gradient, η the rate, λ the decay, s and r are remembered:
//   plain:    w ← w − η (g + λ w)
//   momentum: d ← g + λ w,  s ← a s + b d,  w ← w − η (d + a s) with Nesterov (c = 1), else w ← w − η s
//   adam:     w ← w − a w,  d ← g + λ w,  s ← b s + (1 − b) d,  r ← c r + (1 − c) d²,  w ← w − η s / (√r / e + d_)
//             (Kingma & Ba, 2015; Loshchilov & Hutter, 2019; the host folds the bias corrections into η and e; d_ is ε)
//   rms_prop: d ← g + λ w,  r ← a r + (1 − a) d²,  s ← c s + d / (√r + b),  w ← w − η s
// Each operand is one dense range: all parameters of a device in one dispatch. One invocation: one element.

struct Params {
    count: u32,
    w_offset: u32,
    g_offset: u32,
    s_offset: u32,
    r_offset: u32,
    rate: f32,
    decay: f32,
    a: f32,
    b: f32,
    c: f32,
    d: f32,
    e: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> g: array<f32>;
@group(0) @binding(2) var<storage, read_write> w: array<f32>;
@group(0) @binding(3) var<storage, read_write> s: array<f32>;
@group(0) @binding(4) var<storage, read_write> r: array<f32>;

const WG = 64u;

struct Id {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

fn linear_index(id: Id) -> u32 {
    return (id.group.y * id.groups.x + id.group.x) * WG + id.local;
}

@compute @workgroup_size(WG)
fn plain(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let old = w[p.w_offset + i];
        w[p.w_offset + i] = old - p.rate * (g[p.g_offset + i] + p.decay * old);
    }
}

@compute @workgroup_size(WG)
fn momentum(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let old = w[p.w_offset + i];
        let d = g[p.g_offset + i] + p.decay * old;
        let velocity = p.a * s[p.s_offset + i] + p.b * d;
        s[p.s_offset + i] = velocity;
        w[p.w_offset + i] = old - p.rate * select(velocity, d + p.a * velocity, p.c != 0.0);
    }
}

@compute @workgroup_size(WG)
fn adam(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let old = w[p.w_offset + i] - p.a * w[p.w_offset + i];
        let d = g[p.g_offset + i] + p.decay * old;
        let mean = p.b * s[p.s_offset + i] + (1.0 - p.b) * d;
        let square = p.c * r[p.r_offset + i] + (1.0 - p.c) * d * d;
        s[p.s_offset + i] = mean;
        r[p.r_offset + i] = square;
        w[p.w_offset + i] = old - p.rate * mean / (sqrt(square) / p.e + p.d);
    }
}

@compute @workgroup_size(WG)
fn rms_prop(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let old = w[p.w_offset + i];
        let d = g[p.g_offset + i] + p.decay * old;
        let square = p.a * r[p.r_offset + i] + (1.0 - p.a) * d * d;
        let velocity = p.c * s[p.s_offset + i] + d / (sqrt(square) + p.b);
        s[p.s_offset + i] = velocity;
        r[p.r_offset + i] = square;
        w[p.w_offset + i] = old - p.rate * velocity;
    }
}
