// softmax:     out[a, r, b] ← exp(x[a, r, b] − m) / Σ_r exp(x[a, r, b] − m),  m = max_r x[a, r, b]
// log_softmax: out[a, r, b] ← x[a, r, b] − m − log Σ_r exp(x[a, r, b] − m)
// A row with a NaN or +∞, or only −∞, is NaN: this is found by bits, since some adapters have exp(NaN) = 0.
// x and out are [A, R, B], dense. One invocation: one row (all r of one a and b). `rows4`, for B = 1, reads vectors of four
// neighbours of r, with R in vectors, from an offset that is a multiple of four.

struct Params {
    offset: u32,
    outer: u32,   // A
    reduced: u32, // R
    inner: u32,   // B
    // Those of softmax_rows.wgsl:
    parts: u32,
    span: u32,
    lanes: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<storage, read> x4: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out4: array<vec4<f32>>;

override LOG: bool;

const INFINITE = 0x7f800000u;
const NAN = 0x7fc00000u;

fn magnitude(v: f32) -> u32 {
    return bitcast<u32>(v) & 0x7fffffffu;
}

fn magnitude4(v: vec4<f32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(v) & vec4(0x7fffffffu);
}

@compute @workgroup_size(WG)
fn softmax(id: Id) {
    let i = linear_index(id);
    if i >= p.outer * p.inner {
        return;
    }
    let row = (i / p.inner) * p.reduced * p.inner + i % p.inner;
    let end = row + p.reduced * p.inner;
    var m = x[p.offset + row];
    var odd = false;
    for (var at = row; at < end; at += p.inner) {
        let v = x[p.offset + at];
        m = max(m, v);
        odd = odd || magnitude(v) > INFINITE;
    }
    odd = odd || magnitude(m) >= INFINITE;
    var total = 0.0;
    for (var at = row; at < end; at += p.inner) {
        total += exp(x[p.offset + at] - m);
    }
    let log_total = log(total);
    for (var at = row; at < end; at += p.inner) {
        let v = x[p.offset + at] - m;
        let y = select(exp(v) / total, v - log_total, LOG);
        out[at] = bitcast<f32>(select(bitcast<u32>(y), NAN, odd));
    }
}

@compute @workgroup_size(WG)
fn rows4(id: Id) {
    let i = linear_index(id);
    if i >= p.outer {
        return;
    }
    let start = p.offset / 4u;
    let row = i * p.reduced;
    let end = row + p.reduced;
    var most = x4[start + row];
    var largest = vec4(0u); // of the magnitudes: NaN is above infinity
    for (var at = row; at < end; at++) {
        let v = x4[start + at];
        most = max(most, v);
        largest = max(largest, magnitude4(v));
    }
    let m = max(max(most.x, most.y), max(most.z, most.w));
    let odd = any(largest > vec4(INFINITE)) || magnitude(m) >= INFINITE;
    var sums = vec4(0.0);
    for (var at = row; at < end; at++) {
        sums += exp(x4[start + at] - m);
    }
    let total = (sums.x + sums.y) + (sums.z + sums.w);
    let log_total = log(total);
    for (var at = row; at < end; at++) {
        let v = x4[start + at] - m;
        let y = select(exp(v) / total, v - log_total, LOG);
        out4[at] = bitcast<vec4<f32>>(select(bitcast<vec4<u32>>(y), vec4(NAN), odd));
    }
}
