// The kernels of norm.wgsl in vectors of four along B, after norm_places.wgsl and fours.wgsl: B and all offsets are
// multiples of four, and the weight of an element is at its c or at its b. One invocation: `run` neighbouring vectors.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> g: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> bias: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> residual: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> sums: array<f32>; // [2, C]
@group(0) @binding(6) var<storage, read> y: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> dx: array<vec4<f32>>;

/// Returns the place of the next vector.
fn next_vector(at: At) -> At {
    return next(At(at.a, at.c, at.b + 3u));
}

/// Returns the weights or biases of a vector at `at`, from the vector that holds the first of them.
fn chosen(held: vec4<f32>, at: At) -> vec4<f32> {
    return select(held, vec4(held[at.c % 4u]), FEATURE == 1u);
}

fn weighted(v: vec4<f32>, at: At) -> vec4<f32> {
    if WEIGHT {
        return v * chosen(w[(p.w_offset + feature(at)) / 4u], at);
    }
    return v;
}

@compute @workgroup_size(WG)
fn normalise(id: Id) {
    let range = vectors(id, p.run, p.outer * p.channels * p.inner);
    var at = place(range.x * 4u);
    for (var i = range.x; i < range.y; i++) {
        let standard = (x[p.x_offset / 4u + i] - stats[p.stats_offset + at.c]) * scale(at.c);
        var v = weighted(standard, at);
        if BIAS {
            v += chosen(bias[(p.last_offset + feature(at)) / 4u], at);
        }
        if RELU == 2u {
            v += residual[p.residual_offset / 4u + i];
        }
        if RELU != 0u {
            let not_above = bitcast<vec4<u32>>(v) - vec4(0x80000000u) <= vec4(0x7f800000u);
            v = select(v, vec4<f32>(), not_above);
        }
        out[i] = v;
        at = next_vector(at);
    }
}

@compute @workgroup_size(WG)
fn backward(id: Id) {
    let count = p.outer * p.channels * p.inner;
    let range = vectors(id, p.run, count);
    var at = place(range.x * 4u);
    for (var i = range.x; i < range.y; i++) {
        let factor = scale(at.c);
        let standard = (x[p.x_offset / 4u + i] - stats[p.stats_offset + at.c]) * factor;
        var slope = g[p.last_offset / 4u + i];
        if RELU != 0u {
            slope = select(slope, vec4<f32>(), bitcast<vec4<u32>>(y[i]) == vec4<u32>());
        }
        if RELU == 2u {
            dx[count / 4u + i] = slope;
        }
        let sum = select(0.0, sums[at.c], CENTRE);
        let level = (sum + standard * sums[p.channels + at.c]) / f32(p.outer * p.inner);
        let flat = select(level, vec4<f32>(), FIXED);
        let t = select(weighted(slope, at) - flat, weighted(slope - flat, at), FEATURE == 1u);
        dx[i] = t * factor;
        at = next_vector(at);
    }
}
