// The gradients of softmax_grad.wgsl for rows of neighbouring elements (B = 1), after rows.wgsl, by workgroups that share rows. R and all
// places are counted in V.
//   kept:     rows of up to KEPT · lanes elements, read once.
//   streamed: longer rows, read twice.

struct Params {
    y_offset: u32,
    g_offset: u32,
    outer: u32,   // A
    reduced: u32, // R
    inner: u32,   // 1
    lanes: u32,   // that share a row or a part: a power of two, up to WIDE
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> y: array<V>;
@group(0) @binding(2) var<storage, read> g: array<V>;
@group(0) @binding(3) var<storage, read_write> out: array<V>;

override LOG: bool;

/// Returns the terms of the row's sum.
fn terms(value: V, slope: V) -> f32 {
    if LOG {
        return sum_of(slope);
    }
    return sum_of(slope * value);
}

fn result(value: V, slope: V, total: f32) -> V {
    if LOG {
        return slope - exp(value) * total;
    }
    return value * (slope - total);
}

@compute @workgroup_size(WIDE)
fn kept(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.outer);
    let first = line.number * p.reduced;
    var values: array<V, KEPT>;
    var slopes: array<V, KEPT>;
    var own = 0.0;
    for (var k = 0u; k < KEPT; k++) {
        let at = line.lane + k * p.lanes;
        if at < p.reduced {
            values[k] = y[p.y_offset + first + at];
            slopes[k] = g[p.g_offset + first + at];
            own += terms(values[k], slopes[k]);
        }
    }
    let total = across(SUM, local, vec2(own, 0.0)).x;
    for (var k = 0u; k < KEPT; k++) {
        let at = line.lane + k * p.lanes;
        if line.exists && at < p.reduced {
            out[first + at] = result(values[k], slopes[k], total);
        }
    }
}

@compute @workgroup_size(WIDE)
fn streamed(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.outer);
    let first = line.number * p.reduced;
    var own = 0.0;
    for (var at = first + line.lane; at < first + p.reduced; at += p.lanes) {
        own += terms(y[p.y_offset + at], g[p.g_offset + at]);
    }
    let total = across(SUM, local, vec2(own, 0.0)).x;
    for (var at = first + line.lane; line.exists && at < first + p.reduced; at += p.lanes) {
        out[at] = result(y[p.y_offset + at], g[p.g_offset + at], total);
    }
}
