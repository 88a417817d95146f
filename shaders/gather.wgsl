// gather:  out[a, k, b] ← x[a, index[a, k, b], b], or 0 where there is no such element; x is [A, R, B], out is [A, K, B].
//          With SHARED, index is [K]. Elements are words of any type.
// bounds:  starts[row, r] ← how many of the row's sorted indices are below r; sorted is [rows, K], starts is [rows, R + 1].
// segment: out[a, r, b] ← base[a, r, b] + Σ src[a, order[row, j], b] over starts[row, r] ≤ j < starts[row, r + 1], or with
//          LAST, the last of these src if there is any, else base. row is (a, b), or 0 with SHARED. A dispatch adds
//          j = first … last − 1; those after the first one go on with what is in out.
// All dense. The header says what T is. One invocation: one element of out.

struct Params {
    count: u32, // elements of out
    inner: u32, // B
    size: u32,  // R
    picks: u32, // K
    x_offset: u32, // of x, or of base
    index_offset: u32, // of index, or of src
    first: u32,
    last: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read> index: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<T>;

const WG = 64u;

override SHARED: bool = false;
override LAST: bool = false;

@compute @workgroup_size(WG)
fn gather(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i >= p.count {
        return;
    }
    let b = i % p.inner;
    let k = (i / p.inner) % p.picks;
    let a = i / (p.inner * p.picks);
    let at = index[p.index_offset + select(i, k, SHARED)];
    var value = T(0);
    if at < p.size {
        value = x[p.x_offset + (a * p.size + at) * p.inner + b];
    }
    out[i] = value;
}

@group(0) @binding(1) var<storage, read> sorted: array<u32>;
@group(0) @binding(2) var<storage, read_write> starts_out: array<u32>;

@compute @workgroup_size(WG)
fn bounds(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i >= p.count {
        return;
    }
    let r = i % (p.size + 1u);
    let row = (i / (p.size + 1u)) * p.picks;
    var low = 0u;
    var high = p.picks;
    while low < high {
        let at = (low + high) / 2u;
        if sorted[row + at] < r {
            low = at + 1u;
        } else {
            high = at;
        }
    }
    starts_out[i] = low;
}

@group(0) @binding(1) var<storage, read> base: array<T>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read> order: array<u32>;
@group(0) @binding(4) var<storage, read> src: array<T>;
@group(0) @binding(5) var<storage, read_write> sums: array<T>;

@compute @workgroup_size(WG)
fn segment(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i >= p.count {
        return;
    }
    let b = i % p.inner;
    let r = (i / p.inner) % p.size;
    let a = i / (p.inner * p.size);
    let row = select(a * p.inner + b, 0u, SHARED);
    let source = p.index_offset + a * p.picks * p.inner + b;
    var low = starts[row * (p.size + 1u) + r];
    var high = starts[row * (p.size + 1u) + r + 1u];
    if LAST {
        if low < high {
            sums[i] = src[source + order[row * p.picks + high - 1u] * p.inner];
        } else {
            sums[i] = base[p.x_offset + i];
        }
        return;
    }
    low = max(low, p.first);
    high = min(high, p.last);
    var total = T(0);
    for (var j = low; j < high; j++) {
        total += src[source + order[row * p.picks + j] * p.inner];
    }
    if p.first == 0u {
        total = base[p.x_offset + i] + total;
    } else {
        total = sums[i] + total;
    }
    sums[i] = total;
}
