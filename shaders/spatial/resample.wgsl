// out[a, o, b] ← Σ weights[j] · x[a, places[j], b] over starts[o] ≤ j < starts[o + 1]: a sparse matrix along one dimension.
// x is [A, L, B], out is [A, O, B], both dense. One invocation: one element of out.

struct Params {
    count: u32, // elements of out
    inner: u32, // B
    size: u32,  // O
    len: u32,   // L
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read> places: array<u32>;
@group(0) @binding(4) var<storage, read> weights: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn resample(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let o = (i / p.inner) % p.size;
    let column = p.offset + i / (p.inner * p.size) * p.len * p.inner + i % p.inner;
    var total = 0.0;
    for (var j = starts[o]; j < starts[o + 1u]; j++) {
        total += weights[j] * x[column + places[j] * p.inner];
    }
    out[i] = total;
}
