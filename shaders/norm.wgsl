// Normalisation of x as [A, C, B], dense, with statistics over A and B for each c (N = A · B elements):
//   moments, merge: stats[0, c] ← mean, stats[1, c] ← Σ (x − mean)² / N     (without CENTRE: the mean is taken as 0)
//   normalise:      out ← x̂ · w[f] + bias[f],  x̂ = (x − mean) / √(variance + eps),  f = (i / S) mod M
//   gradient_sums:  Σ t for each c, then Σ t · x̂ for each c: [2, C, K] in parts,  t = g · w[f]
//   backward:       out ← (t − Σ t / N − x̂ · Σ t x̂ / N) / √(variance + eps)  (FIXED: the statistics are constants)
// Parts of moments are [C, K, 2]. Part k has the elements k, k + K, k + 2K, … of its c, its own mean and the sum of
// squares around it, so no large sums cancel (Chan et al. 1979). One invocation: one part, one c (merge) or `run`
// neighbouring elements. After norm_places.wgsl.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> made: array<f32>; // moments, merge
@group(0) @binding(2) var<storage, read> stats: array<f32>;
@group(0) @binding(3) var<storage, read> w: array<f32>;
@group(0) @binding(4) var<storage, read> g: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read> sums: array<f32>; // [2, C]
@group(0) @binding(6) var<storage, read_write> dx: array<f32>;

override CENTRE: bool = true;
override FIXED: bool = false;
override WEIGHT: bool = false;
override BIAS: bool = false;

fn channel_and_chunk(i: u32) -> vec2<u32> {
    return select(vec2(i / p.chunks, i % p.chunks), vec2(i % p.channels, i / p.channels), p.inner < 32u);
}

fn elements(k: u32) -> f32 {
    return f32((p.outer * p.inner - k + p.chunks - 1u) / p.chunks);
}

fn scale(c: u32) -> f32 {
    return 1.0 / sqrt(stats[p.stats_offset + p.channels + c] + p.eps);
}

fn standard(at: At) -> f32 {
    return (x[p.x_offset + index(at)] - stats[p.stats_offset + at.c]) * scale(at.c);
}

fn weighted(v: f32, at: At) -> f32 {
    if WEIGHT { // not select, which would read w also where there is no weight
        return v * w[p.w_offset + feature(at)];
    }
    return v;
}

@compute @workgroup_size(WG)
fn moments(id: Id) {
    let i = linear_index(id);
    if i >= p.channels * p.chunks {
        return;
    }
    let ck = channel_and_chunk(i);
    let step = place_of(0u, p.chunks);
    var at = place_of(ck.x, ck.y);
    var sum = 0.0;
    for (var e = ck.y; CENTRE && e < p.outer * p.inner; e += p.chunks) {
        sum += x[p.x_offset + index(at)];
        at = further(at, step);
    }
    let mean = sum / elements(ck.y);
    var squares = 0.0;
    at = place_of(ck.x, ck.y);
    for (var e = ck.y; e < p.outer * p.inner; e += p.chunks) {
        let d = x[p.x_offset + index(at)] - mean;
        squares += d * d;
        at = further(at, step);
    }
    let to = 2u * (ck.x * p.chunks + ck.y);
    made[to] = mean;
    made[to + 1u] = squares;
}

@compute @workgroup_size(WG)
fn merge(id: Id) {
    let c = linear_index(id);
    if c >= p.channels {
        return;
    }
    let first = 2u * c * p.chunks;
    let count = f32(p.outer * p.inner);
    var mean = 0.0;
    for (var k = 0u; k < p.chunks; k++) {
        mean += x[first + 2u * k] * (elements(k) / count);
    }
    var squares = 0.0;
    for (var k = 0u; k < p.chunks; k++) {
        let d = x[first + 2u * k] - mean;
        squares += x[first + 2u * k + 1u] + elements(k) * d * d;
    }
    made[c] = mean;
    made[p.channels + c] = squares / count;
}

@compute @workgroup_size(WG)
fn normalise(id: Id) {
    let first = linear_index(id) * p.run;
    let count = p.outer * p.channels * p.inner;
    if first >= count {
        return;
    }
    var at = place(first);
    for (var i = first; i < min(first + p.run, count); i++) {
        var v = weighted(standard(at), at);
        if BIAS {
            v += bias[p.last_offset + feature(at)];
        }
        out[i] = v;
        at = next(at);
    }
}

@compute @workgroup_size(WG)
fn gradient_sums(id: Id) {
    let i = linear_index(id);
    if i >= p.channels * p.chunks {
        return;
    }
    let ck = channel_and_chunk(i);
    let step = place_of(0u, p.chunks);
    var at = place_of(ck.x, ck.y);
    var total = vec2(0.0);
    for (var e = ck.y; e < p.outer * p.inner; e += p.chunks) {
        let t = weighted(g[p.last_offset + index(at)], at);
        total += vec2(t, t * standard(at));
        at = further(at, step);
    }
    out[ck.x * p.chunks + ck.y] = total.x;
    out[(p.channels + ck.x) * p.chunks + ck.y] = total.y;
}

@compute @workgroup_size(WG)
fn backward(id: Id) {
    let first = linear_index(id) * p.run;
    let count = p.outer * p.channels * p.inner;
    if first >= count {
        return;
    }
    var at = place(first);
    for (var i = first; i < min(first + p.run, count); i++) {
        let sum = select(0.0, sums[at.c], CENTRE);
        let level = (sum + standard(at) * sums[p.channels + at.c]) / f32(p.outer * p.inner);
        dx[i] = (weighted(g[p.last_offset + i], at) - select(level, 0.0, FIXED)) * scale(at.c);
        at = next(at);
    }
}
