// The gradient of softmax, y · (g − Σ_r g · y), and of log_softmax, g − exp(y) · Σ_r g, from its result y and the gradient g: [A, R, B]
// dense, as the result. One invocation: one row (all r of one a and b). `rows4`, for B = 1, reads vectors of four neighbours of r,
// with R in vectors, from offsets that are multiples of four.

struct Params {
    y_offset: u32,
    g_offset: u32,
    outer: u32,   // A
    reduced: u32, // R
    inner: u32,   // B
    lanes: u32,   // of softmax_grad_rows.wgsl
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> y: array<f32>;
@group(0) @binding(2) var<storage, read> g: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<storage, read> y4: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> g4: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out4: array<vec4<f32>>;

override LOG: bool;

@compute @workgroup_size(WG)
fn softmax_grad(id: Id) {
    let i = linear_index(id);
    if i >= p.outer * p.inner {
        return;
    }
    let row = (i / p.inner) * p.reduced * p.inner + i % p.inner;
    let end = row + p.reduced * p.inner;
    var total = 0.0;
    for (var at = row; at < end; at += p.inner) {
        let slope = g[p.g_offset + at];
        if LOG {
            total += slope;
        } else {
            total += slope * y[p.y_offset + at];
        }
    }
    for (var at = row; at < end; at += p.inner) {
        let value = y[p.y_offset + at];
        let slope = g[p.g_offset + at];
        if LOG {
            out[at] = slope - exp(value) * total;
        } else {
            out[at] = value * (slope - total);
        }
    }
}

@compute @workgroup_size(WG)
fn rows4(id: Id) {
    let i = linear_index(id);
    if i >= p.outer {
        return;
    }
    let row = i * p.reduced;
    let end = row + p.reduced;
    let of_y = p.y_offset / 4u;
    let of_g = p.g_offset / 4u;
    var sums = vec4(0.0);
    for (var at = row; at < end; at++) {
        let slope = g4[of_g + at];
        if LOG {
            sums += slope;
        } else {
            sums += slope * y4[of_y + at];
        }
    }
    let total = (sums.x + sums.y) + (sums.z + sums.w);
    for (var at = row; at < end; at++) {
        let value = y4[of_y + at];
        let slope = g4[of_g + at];
        if LOG {
            out4[at] = slope - exp(value) * total;
        } else {
            out4[at] = value * (slope - total);
        }
    }
}
