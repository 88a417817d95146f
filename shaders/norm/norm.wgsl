// Normalisation of x as [A, C, B], dense, with statistics for each c (of N = A · B elements), after norm_places.wgsl:
//   normalise: out ← x̂ · w[f] + bias[f],  x̂ = (x − mean) / √(variance + eps),  f = (i / S) mod M
//              (RELU: 1: out ← max(0, out), 2: out ← max(0, out + residual); NaN stays)
//   backward:  out ← (t − Σ t / N − x̂ · Σ t x̂ / N) / √(variance + eps),  t = g · w[f]  (FIXED: the statistics are constants)
//              (RELU: g is taken as 0 where the result y is 0; 2: this g follows, the gradient of the residual)
// The sums are those of norm_sums.wgsl; where f is c they are over g, and the weight is a factor of all.
// One invocation: `run` neighbouring elements.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> w: array<f32>;
@group(0) @binding(4) var<storage, read> g: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read> residual: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read> sums: array<f32>; // [2, C]
@group(0) @binding(6) var<storage, read> y: array<f32>;
@group(0) @binding(7) var<storage, read_write> dx: array<f32>;

fn standard(i: u32, at: At) -> f32 {
    return (x[p.x_offset + i] - stats[p.stats_offset + at.c]) * scale(at.c);
}

fn weighted(v: f32, at: At) -> f32 {
    if WEIGHT { // not select, which would read w also where there is no weight
        return v * w[p.w_offset + feature(at)];
    }
    return v;
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
        var v = weighted(standard(i, at), at);
        if BIAS {
            v += bias[p.last_offset + feature(at)];
        }
        if RELU == 2u {
            v += residual[p.residual_offset + i];
        }
        if RELU != 0u {
            v = select(v, 0.0, bitcast<u32>(v) - 0x80000000u <= 0x7f800000u); // a number that is not above 0
        }
        out[i] = v;
        at = next(at);
    }
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
        var slope = g[p.last_offset + i];
        if RELU != 0u {
            slope = select(slope, 0.0, bitcast<u32>(y[i]) == 0u); // NaN keeps the gradient
        }
        if RELU == 2u {
            dx[count + i] = slope;
        }
        let sum = select(0.0, sums[at.c], CENTRE);
        let level = (sum + standard(i, at) * sums[p.channels + at.c]) / f32(p.outer * p.inner);
        let flat = select(level, 0.0, FIXED);
        let t = select(weighted(slope, at) - flat, weighted(slope - flat, at), FEATURE == 1u);
        dx[i] = t * scale(at.c);
        at = next(at);
    }
}
