// One step of an optimiser, in place, in PyTorch's forms. g is the gradient, η the rate, λ the decay; s, r and q are its
// state:
//   plain:    w ← w − η (g + λ w)
//   momentum: d ← g + λ w,  s ← μ s + fresh d,  w ← w − η (d + μ s) with Nesterov, else w ← w − η s
//   adam:     w ← w − shrink w,  d ← g + λ w,  s ← β₁ s + (1 − β₁) d,  r ← β₂ r + (1 − β₂) d²,  w ← w − η s / (√r / spread + ε)
//             (Kingma & Ba, 2015; Loshchilov & Hutter, 2019; the host includes the bias corrections in η and spread)
//   rms_prop: d ← g + λ w,  r ← α r + (1 − α) d²,  s ← μ s + d / (√r + ε),  w ← w − η s
//   ams_grad: as adam, with q ← max(q, r) and √q in place of √r (Reddi et al., 2018)
//   adagrad:  d ← g + λ w,  s ← s + d²,  w ← w − η d / (√s + ε)
//   adadelta: d ← g + λ w,  s ← α s + (1 − α) d²,  δ ← √(r + ε) / √(s + ε) d,  r ← α r + (1 − α) δ²,  w ← w − η δ
//   lion:     w ← w − shrink w,  w ← w − η sign(β₁ s + (1 − β₁) g),  s ← β₂ s + (1 − β₂) g
// Each operand is one dense range: all parameters of a device in one dispatch. One invocation: one element.

struct Params {
    count: u32,
    w_offset: u32,
    g_offset: u32,
    s_offset: u32,
    r_offset: u32,
    q_offset: u32,
    rate: f32,
    decay: f32,
    momentum: f32,
    fresh: f32,    // momentum: the factor of the gradient in the velocity
    nesterov: u32, // 0 or 1
    shrink: f32,   // adam: the part of w that is subtracted first, AdamW's decay
    beta1: f32,
    beta2: f32,
    alpha: f32,
    eps: f32,
    spread: f32,   // adam: √(1 − β₂ᵗ)
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> g: array<f32>;
@group(0) @binding(2) var<storage, read_write> w: array<f32>;
@group(0) @binding(3) var<storage, read_write> s: array<f32>;
@group(0) @binding(4) var<storage, read_write> r: array<f32>;
@group(0) @binding(5) var<storage, read_write> q: array<f32>;

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
        let velocity = p.momentum * s[p.s_offset + i] + p.fresh * d;
        s[p.s_offset + i] = velocity;
        w[p.w_offset + i] = old - p.rate * select(velocity, d + p.momentum * velocity, p.nesterov != 0u);
    }
}

@compute @workgroup_size(WG)
fn adam(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let old = w[p.w_offset + i] - p.shrink * w[p.w_offset + i];
        let d = g[p.g_offset + i] + p.decay * old;
        let mean = p.beta1 * s[p.s_offset + i] + (1.0 - p.beta1) * d;
        let square = p.beta2 * r[p.r_offset + i] + (1.0 - p.beta2) * d * d;
        s[p.s_offset + i] = mean;
        r[p.r_offset + i] = square;
        w[p.w_offset + i] = old - p.rate * mean / (sqrt(square) / p.spread + p.eps);
    }
}

@compute @workgroup_size(WG)
fn rms_prop(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let old = w[p.w_offset + i];
        let d = g[p.g_offset + i] + p.decay * old;
        let square = p.alpha * r[p.r_offset + i] + (1.0 - p.alpha) * d * d;
        let velocity = p.momentum * s[p.s_offset + i] + d / (sqrt(square) + p.eps);
        s[p.s_offset + i] = velocity;
        r[p.r_offset + i] = square;
        w[p.w_offset + i] = old - p.rate * velocity;
    }
}

@compute @workgroup_size(WG)
fn ams_grad(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let old = w[p.w_offset + i] - p.shrink * w[p.w_offset + i];
        let d = g[p.g_offset + i] + p.decay * old;
        let mean = p.beta1 * s[p.s_offset + i] + (1.0 - p.beta1) * d;
        let square = p.beta2 * r[p.r_offset + i] + (1.0 - p.beta2) * d * d;
        let before = q[p.q_offset + i];
        let most = select(square, before, before >= square);
        s[p.s_offset + i] = mean;
        r[p.r_offset + i] = square;
        q[p.q_offset + i] = most;
        w[p.w_offset + i] = old - p.rate * mean / (sqrt(most) / p.spread + p.eps);
    }
}

@compute @workgroup_size(WG)
fn adagrad(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let old = w[p.w_offset + i];
        let d = g[p.g_offset + i] + p.decay * old;
        let sum = s[p.s_offset + i] + d * d;
        s[p.s_offset + i] = sum;
        w[p.w_offset + i] = old - p.rate * d / (sqrt(sum) + p.eps);
    }
}

@compute @workgroup_size(WG)
fn adadelta(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let old = w[p.w_offset + i];
        let d = g[p.g_offset + i] + p.decay * old;
        let square = p.alpha * s[p.s_offset + i] + (1.0 - p.alpha) * d * d;
        let change = r[p.r_offset + i];
        let delta = sqrt(change + p.eps) / sqrt(square + p.eps) * d;
        s[p.s_offset + i] = square;
        r[p.r_offset + i] = p.alpha * change + (1.0 - p.alpha) * delta * delta;
        w[p.w_offset + i] = old - p.rate * delta;
    }
}

@compute @workgroup_size(WG)
fn lion(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let old = w[p.w_offset + i] - p.shrink * w[p.w_offset + i];
        let d = g[p.g_offset + i];
        let mean = s[p.s_offset + i];
        let direction = p.beta1 * mean + (1.0 - p.beta1) * d;
        s[p.s_offset + i] = p.beta2 * mean + (1.0 - p.beta2) * d;
        w[p.w_offset + i] = old - p.rate * sign(direction);
    }
}
