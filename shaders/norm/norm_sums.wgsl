// The sums of a normalisation of x as [A, C, B], dense, for each c over A and B (N = A · B elements), after norm_places.wgsl:
//   moments, merge: stats[0, c] ← mean, stats[1, c] ← Σ (x − mean)² / N     (without CENTRE: the mean is taken as 0)
//   gradient_sums:  Σ t for each c, then Σ t · x̂ for each c: [2, C, K] in parts,  t = g · w[f],  f = (i / S) mod M
//                   (RELU: g is taken as 0 where the result y is 0)
// Parts of moments are [C, K, 2]. Part k has the elements k, k + K, k + 2K, … of its c, its own mean and the sum of
// squares around it, so no large sums cancel (Chan et al. 1979). One invocation: one part, or one c (merge).

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> made: array<f32>; // moments, merge
@group(0) @binding(3) var<storage, read> w: array<f32>;
@group(0) @binding(4) var<storage, read> g: array<f32>;
@group(0) @binding(5) var<storage, read> y: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

/// Images of fewer pixels are so short that neighbouring invocations have parts of several c. If K is a multiple of the pixels, a part has
/// those of one place.
const SHORT = 32u;

/// The square of the mean of a part, in variances, from which on it is computed again: far from 0, a sum loses what the sum of
/// differences keeps.
const FAR = 64.0;

/// Returns the c and the k of an invocation, so that neighbours read neighbouring elements.
fn channel_and_chunk(i: u32) -> vec2<u32> {
    if p.inner >= SHORT {
        return vec2(i / p.chunks, i % p.chunks);
    }
    let inner = select(1u, max(p.inner, 1u), p.chunks % max(p.inner, 1u) == 0u);
    let image = p.channels * inner;
    return vec2(i % image / inner, i / image * inner + i % inner);
}

fn elements(k: u32) -> f32 {
    return f32((p.outer * p.inner - k + p.chunks - 1u) / p.chunks);
}

/// Returns t of the element at `at`.
fn term(at: At) -> f32 {
    let i = index(at);
    var t = g[p.last_offset + i];
    if RELU != 0u {
        t = select(t, 0.0, bitcast<u32>(y[i]) == 0u); // NaN keeps the gradient
    }
    if WEIGHT { // not select, which would read w also where there is no weight
        return t * w[p.w_offset + feature(at)];
    }
    return t;
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
    let count = elements(ck.y);
    var mean = sum / count;
    var squares = 0.0;
    at = place_of(ck.x, ck.y);
    for (var e = ck.y; e < p.outer * p.inner; e += p.chunks) {
        let d = x[p.x_offset + index(at)] - mean;
        squares += d * d;
        at = further(at, step);
    }
    if CENTRE && mean * mean * count > FAR * squares {
        sum = 0.0;
        at = place_of(ck.x, ck.y);
        for (var e = ck.y; e < p.outer * p.inner; e += p.chunks) {
            sum += x[p.x_offset + index(at)] - mean;
            at = further(at, step);
        }
        mean += sum / count;
        squares = max(squares - sum * (sum / count), 0.0);
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
    let base = x[first];
    var mean = 0.0;
    for (var k = 1u; k < p.chunks; k++) {
        mean += (x[first + 2u * k] - base) * (elements(k) / count);
    }
    mean += base;
    var squares = 0.0;
    for (var k = 0u; k < p.chunks; k++) {
        let d = x[first + 2u * k] - mean;
        squares += x[first + 2u * k + 1u] + elements(k) * d * d;
    }
    made[c] = mean;
    made[p.channels + c] = squares / count;
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
        let t = term(at);
        let standard = (x[p.x_offset + index(at)] - stats[p.stats_offset + ck.x]) * scale(ck.x);
        total += vec2(t, t * standard);
        at = further(at, step);
    }
    out[ck.x * p.chunks + ck.y] = total.x;
    out[(p.channels + ck.x) * p.chunks + ck.y] = total.y;
}
