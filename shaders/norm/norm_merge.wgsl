// The statistics of norm_sums.wgsl from their parts, as its `merge` does, by `p.lanes` neighbouring invocations for each c (after
// lines.wgsl and rows.wgsl): stats[0, c] ← mean, stats[1, c] ← Σ (x − mean)² / N.

struct Params {
    channels: u32,
    chunks: u32, // K
    count: u32,  // N
    lanes: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> parts: array<vec2<f32>>; // [C, K]: a mean and the sum of squares around it
@group(0) @binding(2) var<storage, read_write> made: array<f32>;

fn elements(k: u32) -> f32 {
    return f32((p.count - k + p.chunks - 1u) / p.chunks);
}

@compute @workgroup_size(WIDE)
fn merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.channels);
    let first = line.number * p.chunks;
    let count = f32(p.count);
    let base = parts[first].x;
    var mean = 0.0;
    for (var k = line.lane; k < p.chunks; k += p.lanes) {
        mean += (parts[first + k].x - base) * (elements(k) / count);
    }
    mean = base + across(SUM, local, vec2(mean, 0.0)).x;
    var squares = 0.0;
    for (var k = line.lane; k < p.chunks; k += p.lanes) {
        let part = parts[first + k];
        let d = part.x - mean;
        squares += part.y + elements(k) * d * d;
    }
    squares = across(SUM, local, vec2(squares, 0.0)).x;
    if line.lane == 0u && line.exists {
        made[line.number] = mean;
        made[p.channels + line.number] = squares / count;
    }
}
