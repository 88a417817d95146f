// As pack.wgsl, by workgroups that each move a tile through workgroup memory, so that neighbouring invocations read neighbouring words and
// write neighbouring words: for GPUs. After halves.wgsl, index_map.wgsl and pack_operand.wgsl.
// A workgroup: W neighbouring j of a panel, and as many k as make up to TILE elements. Where k is a tap and a channel (k = tap · channels +
// channel) and taps lie side by side in src, these are all taps of some channels.

@group(0) @binding(2) var<storage, read_write> dst: array<vec4<f32>>;

override W: u32 = 8u;
override X_HALVES: u32 = 0u;
/// Whether neighbours of k, or channels, are closer to each other in src than neighbours of j.
override ALONG_K: bool = false;
override TAPS: u32 = 1u;

const TILE = 2048u;
const INVOCATIONS = 256u;

/// The tile, k by k. A word between them lets neighbouring k lie in different banks.
var<workgroup> tile: array<f32, TILE + TILE / 8u>;

@compute @workgroup_size(INVOCATIONS)
fn pack_tiles(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let channels = p.depth / TAPS;
    let of_tile = TILE / W / TAPS;
    let steps = of_tile * TAPS;
    let parts = (channels + of_tile - 1u) / of_tile;
    let number = group_number(group);
    let panel = number / parts;
    if panel >= p.count / (W * p.depth) {
        return;
    }
    let first = number % parts * of_tile; // channel
    let first_j = panel % p.panels * W;
    let base = p.offset + placed(p.z_first + panel / p.panels, p.z);
    for (var e = local; e < steps * W; e += INVOCATIONS) {
        let pair = e / TAPS;
        let of_part = select(pair / W, pair % of_tile, ALONG_K);
        let j = select(pair % W, pair / of_tile, ALONG_K);
        let channel = first + of_part;
        let step = of_part * TAPS + e % TAPS;
        var value = 0.0;
        if channel < channels && first_j + j < p.width {
            let at = base + placed(step % TAPS * channels + channel, p.k) + placed(first_j + j, p.j);
            value = float_of(src[word_of(at, X_HALVES)], at, X_HALVES);
        }
        tile[step * (W + 1u) + j] = value;
    }
    workgroupBarrier();
    for (var e = local * 4u; e < steps * W; e += INVOCATIONS * 4u) {
        let step = e / W;
        let channel = first + step / TAPS;
        if channel < channels {
            let k = step % TAPS * channels + channel;
            let held = step * (W + 1u) + e % W;
            dst[((panel * p.depth + k) * W + e % W) / 4u] = vec4(tile[held], tile[held + 1u], tile[held + 2u], tile[held + 3u]);
        }
    }
}
