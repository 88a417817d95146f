// softmax(q kᵀ · scale) v in one pass over the keys, without the scores in memory, after attention_places.wgsl: the running maximum and
// sum of Milakov and Gimelshein ("Online normalizer calculation for softmax", 2018, algorithm 3). One invocation: one query. All
// invocations of a workgroup read the same key at a time, which is one load of a subgroup. Where scores are odd, the result is
// NaN, as in softmax.wgsl.

@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>; // [heads, L, V]

@compute @workgroup_size(WG)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let tile = tile_of(group, p.queries);
    if tile.head >= p.heads {
        return;
    }
    let query = tile.first + local;
    let at = places(tile.head);
    var own = scaled_query(at.x + min(query, p.queries - 1u) * p.rows.x);
    var sums: Row;
    var most = LOWEST;
    var total = 0.0;
    var nan = false;
    let end = select(p.keys, min(p.keys, tile.first + WG), CAUSAL);
    for (var j = 0u; j < end; j += 4u) {
        let key = min(j + vec4(0u, 1u, 2u, 3u), vec4(p.keys - 1u));
        let places_of_keys = at.y + key * p.rows.y;
        let scores = vec4(
            by_key(&own, places_of_keys.x), by_key(&own, places_of_keys.y), by_key(&own, places_of_keys.z), by_key(&own, places_of_keys.w),
        );
        let last = select(p.keys - 1u, min(query, p.keys - 1u), CAUSAL);
        let seen = j + vec4(0u, 1u, 2u, 3u) <= vec4(last);
        let counted = select(vec4(LOWEST), scores, seen);
        nan = nan || any_nan(counted);
        let peak = max(most, most_of(counted));
        let kept = exp(most - peak);
        let weights = select(vec4<f32>(), exp(counted - peak), seen);
        total = total * kept + sum_of(weights);
        most = peak;
        let start = at.z + key * p.rows.z;
        for (var e = 0u; e < OF_VALUE; e++) {
            sums[e] = sums[e] * kept + weights.x * v[start.x + e] + weights.y * v[start.y + e] + weights.z * v[start.z + e]
                + weights.w * v[start.w + e];
        }
    }
    if query >= p.queries {
        return;
    }
    let odd = is_odd(most, total, nan);
    let to = (tile.head * p.queries + query) * OF_VALUE;
    for (var e = 0u; e < OF_VALUE; e++) {
        out[to + e] = nan_if(sums[e] / total, odd);
    }
}
