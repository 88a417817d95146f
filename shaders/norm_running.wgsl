// Running statistics: mean[c] ← K · mean[c] + share · stats[0, c], variance[c] ← K · variance[c] + spread · stats[1, c].
// Both lie in one buffer. One invocation: one of the `count` elements from `first` on of the two, one after the other.

struct Params {
    first: u32,
    count: u32,
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
@group(0) @binding(2) var<storage, read_write> running: array<f32>;

@compute @workgroup_size(WG)
fn norm_running(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let place = p.first + i;
    let is_mean = place < p.channels;
    let to = select(p.variance_offset + place - p.channels, p.mean_offset + place, is_mean);
    running[to] = running[to] * p.kept + stats[p.stats_offset + place] * select(p.spread, p.share, is_mean);
}
