// softmax:     out[a, r, b] ← exp(x[a, r, b] − m) / Σ_r exp(x[a, r, b] − m),  m = max_r x[a, r, b]
// log_softmax: out[a, r, b] ← x[a, r, b] − m − log Σ_r exp(x[a, r, b] − m)
// A row with a NaN or +∞, or only −∞, is NaN: this is found by bits, since some adapters have exp(NaN) = 0.
// x and out are [A, R, B], dense. One invocation: one row (all r of one a and b).

struct Params {
    offset: u32,
    outer: u32,   // A
    reduced: u32, // R
    inner: u32,   // B
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

override LOG: bool;

const INFINITE = 0x7f800000u;
const NAN = 0x7fc00000u;

fn magnitude(v: f32) -> u32 {
    return bitcast<u32>(v) & 0x7fffffffu;
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
