// Running statistics: mean[c] ← K · mean[c] + share · stats[0, c], variance[c] ← K · variance[c] + spread · stats[1, c].
// One invocation: one c. `one` is for a mean and a variance in one buffer, `two` for those in two.

struct Params {
    channels: u32, // C
    stats_offset: u32,
    mean_offset: u32,
    variance_offset: u32,
    kept: f32, // K
    share: f32,
    spread: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> stats: array<f32>; // [2, C]
@group(0) @binding(2) var<storage, read_write> mean: array<f32>;
@group(0) @binding(3) var<storage, read_write> variance: array<f32>;

/// Returns the new mean of an old one.
fn mean_after(old: f32, c: u32) -> f32 {
    return old * p.kept + stats[p.stats_offset + c] * p.share;
}

fn variance_after(old: f32, c: u32) -> f32 {
    return old * p.kept + stats[p.stats_offset + p.channels + c] * p.spread;
}

@compute @workgroup_size(WG)
fn one(id: Id) {
    let c = linear_index(id);
    if c >= p.channels {
        return;
    }
    mean[p.mean_offset + c] = mean_after(mean[p.mean_offset + c], c);
    mean[p.variance_offset + c] = variance_after(mean[p.variance_offset + c], c);
}

@compute @workgroup_size(WG)
fn two(id: Id) {
    let c = linear_index(id);
    if c >= p.channels {
        return;
    }
    mean[p.mean_offset + c] = mean_after(mean[p.mean_offset + c], c);
    variance[p.variance_offset + c] = variance_after(variance[p.variance_offset + c], c);
}
